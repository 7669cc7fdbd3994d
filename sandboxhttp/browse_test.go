package sandboxhttp_test

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/audits"
	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/sandboxhttp"
	"github.com/seed-1a2d6d8f/sandbox/test/harness"
)

// A tab is a page in a browser. The test fails if the page reports an error, or violates its
// Content-Security-Policy.
type tab struct {
	t   *testing.T
	ctx context.Context

	mu       sync.Mutex
	problems []string
}

// sharedBrowser is one browser for all tests, whose tabs share nothing: each start takes seconds.
var sharedBrowser = sync.OnceValues(func() (context.Context, error) {
	path, err := chromium()
	if err != nil {
		return nil, err
	}
	opts := append(slices.Clone(chromedp.DefaultExecAllocatorOptions[:]), chromedp.ExecPath(path), chromedp.NoSandbox, chromedp.WSURLReadTimeout(2*time.Minute),
		chromedp.WindowSize(1280, 900), chromedp.Flag("lang", "en-GB"))
	ctx, free := chromedp.NewExecAllocator(context.Background(), opts...)
	ctx, cancel := chromedp.NewContext(ctx)
	harness.AtEnd(func() {
		chromedp.Cancel(ctx)
		cancel()
		free()
	})
	return ctx, chromedp.Do(ctx)
})

// chromium returns the path of a browser.
func chromium() (string, error) {
	for _, name := range []string{"google-chrome", "chromium-browser", "chromium"} {
		if path, err := exec.LookPath(name); err == nil {
			return path, nil
		}
	}
	return "", errors.New("there is no chromium; ci/clients installs it")
}

func newTab(t *testing.T) *tab {
	t.Helper()
	browser, err := sharedBrowser()
	if err != nil {
		t.Fatal(err)
	}
	t.ArtifactDir() // it is removed after what is registered later
	tb := &tab{t: t}
	var cancel context.CancelFunc
	tb.ctx, cancel = chromedp.NewContext(browser, chromedp.WithNewBrowserContext(), chromedp.WithListener(tb.listen))
	t.Cleanup(func() {
		tb.mu.Lock()
		problems := slices.Clone(tb.problems)
		tb.mu.Unlock()
		for _, p := range problems {
			t.Errorf("the page reports: %s", p)
		}
		if t.Failed() {
			tb.screenshot("failed")
		}
		chromedp.Cancel(tb.ctx)
		cancel()
	})
	_, err = chromedp.Call(tb.ctx, log.Enable, cdp.Empty{})
	if err == nil {
		_, err = chromedp.Call(tb.ctx, audits.Enable, cdp.Empty{})
	}
	if err != nil {
		t.Fatal(err)
	}
	return tb
}

func (tb *tab) listen(event any) {
	switch e := event.(type) {
	case *log.EventEntryAdded:
		// A sandbox may go (404) or stop (409) between two requests, and each container that starts
		// or ends changes the machine's interfaces. TestPage ends connections of snapshots.
		harmless := func(what string) bool { return strings.Contains(e.Entry.Text, what) }
		if e.Entry.Source == log.EntrySourceNetwork && (slices.ContainsFunc([]string{"status of 404", "status of 409", "net::ERR_NETWORK_CHANGED"}, harmless) ||
			harmless("net::ERR_EMPTY_RESPONSE") && strings.HasSuffix(e.Entry.URL, "/snapshots")) {
			return
		}
	case *audits.EventIssueAdded:
		// Addresses that a test sets, and not a click.
		if text, err := json.Marshal(e); err == nil && strings.Contains(string(text), "NavigationEntryMarkedSkippable") {
			return
		}
	case *runtime.EventExceptionThrown, *runtime.EventConsoleAPICalled:
	default:
		return
	}
	text, err := json.Marshal(event)
	tb.mu.Lock()
	defer tb.mu.Unlock()
	tb.problems = append(tb.problems, fmt.Sprintf("%T %s %v", event, text, err))
}

// do runs actions.
func (tb *tab) do(what string, actions ...chromedp.Action[chromedp.Void]) {
	tb.t.Helper()
	ctx, cancel := context.WithTimeout(tb.ctx, 5*time.Minute)
	defer cancel()
	if err := chromedp.Do(ctx, actions...); err != nil {
		tb.t.Fatalf("%s: %v", what, err)
	}
}

// eval returns the value of an expression.
func eval[T any](tb *tab, expression string) T {
	tb.t.Helper()
	value, err := chromedp.Run(tb.ctx, chromedp.Evaluate[T](expression))
	if err != nil {
		tb.t.Fatalf("%s: %v", expression, err)
	}
	return value
}

// call calls the browser.
func call[P, R any](tb *tab, command cdp.Command[P, R], params P) R {
	tb.t.Helper()
	result, err := chromedp.Call(tb.ctx, command, params)
	if err != nil {
		tb.t.Fatalf("%s: %v", command.Method, err)
	}
	return result
}

// await waits until an expression is true.
func (tb *tab) await(expression string) {
	tb.t.Helper()
	for end := time.Now().Add(5 * time.Minute); !eval[bool](tb, "Boolean("+expression+")"); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(end) {
			tb.t.Fatalf("five minutes later this is not true: %s; the page is\n%s", expression, eval[string](tb, "document.body.innerText"))
		}
	}
}

// awaitText waits until the text of an element contains another one.
func (tb *tab) awaitText(selector, text string) {
	tb.t.Helper()
	tb.await(fmt.Sprintf("document.querySelector(%q)?.innerText.includes(%q)", selector, text))
}

// click clicks what a selector finds, as a mouse does.
func (tb *tab) click(selector string) {
	tb.t.Helper()
	tb.do("click "+selector, chromedp.Click(chromedp.CSS(selector), chromedp.NodeVisible, chromedp.NodeEnabled))
}

// open follows a link with the keyboard, to an address.
func (tb *tab) open(selector, address string) {
	tb.t.Helper()
	tb.await(fmt.Sprintf("(e => (e?.focus(), e && document.activeElement === e))(document.querySelector(%q))", selector))
	tb.keys("\r")
	tb.await(fmt.Sprintf("document.querySelector('#view').dataset.address === %q", address))
}

// tab shows a part of a sandbox.
func (tb *tab) tab(name string) {
	tb.t.Helper()
	tb.open(fmt.Sprintf(".tabs a[href$=%q]", "/"+strings.ToLower(name)), eval[string](tb, fmt.Sprintf("document.querySelector(%q).hash", fmt.Sprintf(".tabs a[href$=%q]", "/"+strings.ToLower(name)))))
}

// choose chooses an entry of the menu of a thing, with the keyboard: rows move when others create sandboxes.
func (tb *tab) choose(name, entry string) {
	tb.t.Helper()
	tb.await(fmt.Sprintf(`(e => (e?.focus(), e && document.activeElement === e))(document.querySelector('[aria-label=%q]:enabled'))`, "Actions for "+name))
	tb.keys("\r")
	tb.await("document.activeElement.role === 'menuitem'")
	at := eval[int](tb, fmt.Sprintf("[...document.querySelectorAll('#menu button')].findIndex(b => b.textContent === %q)", entry))
	if at < 0 {
		tb.t.Fatalf("the menu of %s has no %s", name, entry)
	}
	for range at {
		tb.keys(kb.ArrowDown)
	}
	tb.await(fmt.Sprintf("document.activeElement.textContent === %q", entry))
	tb.keys("\r")
	tb.await("!document.querySelector('#menu').matches(':popover-open')")
	if strings.HasSuffix(entry, "…") {
		tb.await("document.querySelector('#dialog').open")
	}
}

// fill types a text into a field, instead of what is there.
func (tb *tab) fill(selector, text string) {
	tb.t.Helper()
	tb.do("select", chromedp.Evaluate[chromedp.Void](fmt.Sprintf("document.querySelector(%q).select()", selector)))
	tb.do("fill "+selector, chromedp.SendKeys(chromedp.CSS(selector), text))
}

// keys types on what has the focus.
func (tb *tab) keys(text string, opts ...chromedp.KeyOption) {
	tb.t.Helper()
	tb.do("type", chromedp.KeyEvent(text, opts...))
}

// confirm checks that the dialog has this title and its plan these parts, and confirms it.
func (tb *tab) confirm(title string, parts ...string) {
	tb.t.Helper()
	if got := eval[string](tb, "document.querySelector('#dialog-title').innerText"); got != title {
		tb.t.Fatalf("the dialog is %q, want %q", got, title)
	}
	plan := eval[string](tb, "document.querySelector('#plan').innerText")
	for _, part := range parts {
		if !strings.Contains(plan, part) {
			tb.t.Errorf("the plan is %q, want %q in it", plan, part)
		}
	}
	tb.untilAnswered(func() string {
		tb.click("#dialog-confirm")
		tb.await("!document.querySelector('#dialog').open || document.querySelector('#dialog-trouble').textContent")
		return eval[string](tb, "document.querySelector('#dialog-trouble').textContent")
	})
}

// untilAnswered calls do, which makes a request and returns what the page says of its failure, up to
// three times: the browser may not have connected yet when the machine's interfaces change, see
// api.js.
func (tb *tab) untilAnswered(do func() (trouble string)) {
	tb.t.Helper()
	for range 3 {
		trouble := do()
		if trouble == "" {
			return
		}
		if !strings.HasPrefix(trouble, "No answer came (") {
			tb.t.Fatalf("the page says %s", trouble)
		}
	}
	tb.t.Fatal("no answer came, three times")
}

// screenshot keeps a picture of the page, in both color schemes, where -artifacts keeps files.
func (tb *tab) screenshot(name string) {
	tb.t.Helper()
	if keep := flag.Lookup("test.artifacts"); keep.Value.String() != "true" {
		return
	}
	for _, scheme := range []string{"light", "dark"} {
		tb.colors(scheme)
		picture, err := chromedp.Run(tb.ctx, chromedp.FullScreenshot(100))
		if err == nil {
			err = os.WriteFile(filepath.Join(tb.t.ArtifactDir(), name+"-"+scheme+".png"), picture, 0o644)
		}
		if err != nil {
			tb.t.Errorf("screenshot: %v", err)
		}
	}
}

func (tb *tab) colors(scheme string) {
	tb.t.Helper()
	call(tb, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}, {Name: "prefers-reduced-motion", Value: "reduce"}}})
}

// pageOf returns the address of a server's page, with the token, below a prefix. The page lists
// sandboxes whose names begin with name, since it asks again and again what each of them uses.
// middle sees each request before the page's handler does.
func pageOf(t *testing.T, name string, middle func(*http.Request)) string {
	t.Helper()
	c, err := sandbox.NewClient()
	if err != nil {
		t.Fatal(err)
	}
	page := http.StripPrefix("/v1", sandboxhttp.Handler(c, sandboxhttp.WithToken("s3cret")))
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == "GET" && r.URL.Path == "/v1/sandboxes" {
			r.URL.RawQuery = "prefix=" + name
		}
		middle(r)
		page.ServeHTTP(w, r)
	}))
	t.Cleanup(func() { s.CloseClientConnections(); s.Close(); c.Close() })
	return s.URL + "/v1/ui#token=s3cret"
}
