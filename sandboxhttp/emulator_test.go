package sandboxhttp_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/sandboxhttp"
)

// The terminal's screen is what another terminal makes of the same output. testdata/terminal.json has what
// "tmux capture-pane" says of a pane of 20 columns and 6 lines; the cases of xterm are those in which tmux
// differs from it, by xterm's documentation.
func TestTheTerminalsScreenIsThatOfOthers(t *testing.T) {
	t.Parallel()
	var cases []struct {
		Name, From, Output string
		Screen             []string
		Cursor             []int
	}
	text, err := os.ReadFile("testdata/terminal.json")
	if err == nil {
		err = json.Unmarshal(text, &cases)
	}
	if err != nil || len(cases) < 50 {
		t.Fatalf("%d cases, %v", len(cases), err)
	}
	tb := emulatorTab(t)
	for _, test := range cases {
		output, err := json.Marshal(test.Output)
		if err != nil {
			t.Fatal(err)
		}
		for _, cut := range []string{"[%s]", "%s"} { // as a whole, and each character for itself
			got := eval[struct {
				Screen []string
				Cursor []int
			}](tb, fmt.Sprintf(`(() => {
				const s = new Screen(20, 6), p = new Parser(s);
				for (const part of %s) p.write(part);
				return {screen: s.text(), cursor: [s.x + (s.wrapping ? 1 : 0), s.y]};
			})()`, fmt.Sprintf(cut, output)))
			for len(got.Screen) > 0 && got.Screen[len(got.Screen)-1] == "" {
				got.Screen = got.Screen[:len(got.Screen)-1]
			}
			if !slices.Equal(got.Screen, test.Screen) || !slices.Equal(got.Cursor, test.Cursor) {
				t.Errorf("%s: after %s the screen is %q with the cursor at %v, that of %s %q at %v", test.Name, output, got.Screen, got.Cursor, test.From, test.Screen, test.Cursor)
			}
		}
	}
}

// emulatorTab opens a page that has the terminal's Screen and Parser as globals.
func emulatorTab(t *testing.T) *tab {
	t.Helper()
	c, err := sandbox.NewClient(sandbox.WithHost("unix:///nowhere.sock"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		fmt.Fprint(w, "<!doctype html><link rel=icon href=data:,><title>Emulator</title>")
	})
	mux.Handle("/v1/", http.StripPrefix("/v1", sandboxhttp.Handler(c)))
	s := httptest.NewServer(mux)
	t.Cleanup(s.Close)
	w := httptest.NewRecorder()
	sandboxhttp.Handler(c).ServeHTTP(w, httptest.NewRequest("GET", "/ui/", nil))
	_, version, _ := strings.Cut(w.Body.String(), `data-version="`)
	version, _, _ = strings.Cut(version, `"`)
	tb := newTab(t)
	tb.do("open", chromedp.Navigate(s.URL))
	tb.do("import", chromedp.Evaluate[chromedp.Void](fmt.Sprintf(`(() => {
		const get = () => Promise.all(["term-screen.js", "term-parser.js"].map(name => import("/v1/ui/%s/" + name + "?" + Math.random()))).then(all => Object.assign(window, ...all, {ready: true}), () => setTimeout(get, 200));
		get();
	})()`, version)))
	tb.await("window.ready")
	return tb
}
