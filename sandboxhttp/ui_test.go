package sandboxhttp_test

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/chromedp"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/internal/enginetest"
	"github.com/seed-1a2d6d8f/sandbox/sandboxhttp"
)

// The page says that it loads until its scripts are there, and asks for the token if it has none.
func TestPageOnASlowNetwork(t *testing.T) {
	enginetest.Need(t)
	t.Parallel()
	scripts := make(chan struct{}) // closed when they may load
	address := pageOf(t, "none", func(r *http.Request) {
		if strings.HasSuffix(r.URL.Path, ".js") {
			<-scripts
		}
	})
	tb := newTab(t)
	call(tb, network.EmulateNetworkConditionsByRule, network.EmulateNetworkConditionsByRuleParams{
		MatchedNetworkConditions: []*network.Conditions{{Latency: 300, DownloadThroughput: 20_000, UploadThroughput: 20_000}},
	})
	without, _, _ := strings.Cut(address, "#")
	open := make(chan error, 1)
	go func() { open <- chromedp.Do(tb.ctx, chromedp.Navigate(without)) }()
	tb.await("location.pathname == '/v1/ui/' && document.querySelector('#create')")
	if got := eval[string](tb, "document.querySelector('header').innerText"); !strings.Contains(got, "Loading") || !eval[bool](tb, "document.querySelector('#create').disabled") {
		t.Errorf("without scripts the page says %q, want that it loads, and nothing that does nothing", got)
	}
	close(scripts)
	if err := <-open; err != nil {
		t.Fatal(err)
	}
	tb.await("document.querySelector('#dialog').open")
	tb.fill("#field-token", "wrong")
	tb.click("#dialog-confirm")
	tb.awaitText("#dialog-trouble", "the token is missing or wrong")
	tb.fill("#field-token", "s3cret")
	tb.click("#dialog-confirm")
	tb.await("!document.querySelector('#dialog').open && !document.querySelector('#create').disabled")
	tb.awaitText("#engine", "Engine")
	tb.mu.Lock()
	defer tb.mu.Unlock()
	// What the browser says of the answers that refused the token.
	tb.problems = slices.DeleteFunc(tb.problems, func(p string) bool { return strings.Contains(p, "status of 401") })
}

// While the server does not answer, the page says since when, dims what it knows, lets nobody use it, and
// tries again.
func TestPageWithoutItsServer(t *testing.T) {
	enginetest.Need(t)
	t.Parallel()
	var gone atomic.Bool
	address := pageOf(t, "none", func(*http.Request) {
		if gone.Load() {
			panic(http.ErrAbortHandler)
		}
	})
	tb := newTab(t)
	tb.do("open", chromedp.Navigate(address))
	tb.awaitText("#list-empty", "Create the first sandbox")
	usable := "!document.querySelector('#create').disabled && !document.querySelector('#view').inert && document.querySelector('#gone').hidden && getComputedStyle(document.querySelector('main')).opacity === '1'"
	tb.await(usable)
	gone.Store(true)
	tb.await(`/^Disconnected since \d.* Retrying …$/.test(document.querySelector('#gone').innerText)`)
	tb.await("document.querySelector('#create').disabled && document.querySelector('#view').inert && getComputedStyle(document.querySelector('main')).opacity < 1")
	gone.Store(false)
	tb.await(usable)
	tb.mu.Lock()
	defer tb.mu.Unlock()
	// What the browser says of requests without an answer.
	tb.problems = slices.DeleteFunc(tb.problems, func(p string) bool { return strings.Contains(p, "net::ERR_EMPTY_RESPONSE") })
}

// The files of the page are for everybody that WithAuthorize permits, and can do nothing but use
// this server.
func TestThePagesFiles(t *testing.T) {
	t.Parallel()
	c, err := sandbox.NewClient(sandbox.WithHost("unix:///nowhere.sock"))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	var asked []sandboxhttp.Action
	refusing := sandboxhttp.WithAuthorize(func(_ *http.Request, a sandboxhttp.Action) error {
		asked = append(asked, a)
		return errors.New("no")
	})
	w := httptest.NewRecorder()
	sandboxhttp.Handler(c).ServeHTTP(w, httptest.NewRequest("GET", "/ui/", nil))
	_, version, _ := strings.Cut(w.Body.String(), `data-version="`)
	version, _, _ = strings.Cut(version, `"`)
	if len(version) < 8 {
		t.Fatalf("the page has the version %q", version)
	}
	for _, test := range []struct {
		path   string
		option sandboxhttp.Option
		status int
		kind   string
	}{
		{"/ui/", sandboxhttp.WithToken("s3cret"), 200, "text/html; charset=utf-8"},
		{"/ui/" + version + "/app.js", sandboxhttp.WithToken(""), 200, "text/javascript; charset=utf-8"},
		{"/ui/" + version + "/style.css", sandboxhttp.WithoutAuthorization(), 200, "text/css; charset=utf-8"},
		{"/ui/" + version + "/icon.svg", sandboxhttp.WithHosts(), 200, "image/svg+xml"},
		{"/ui", sandboxhttp.WithToken("s3cret"), 308, ""},
		{"/ui/" + version + "/nothing", sandboxhttp.WithToken("s3cret"), 404, "application/json"},
		{"/ui/other/app.js", sandboxhttp.WithToken("s3cret"), 404, "application/json"},
		{"/ui/" + version + "/..%2fui.go", sandboxhttp.WithToken("s3cret"), 404, "application/json"},
		{"/ui/", refusing, 403, "application/json"},
		{"/ui", refusing, 403, "application/json"},
	} {
		w := httptest.NewRecorder()
		http.StripPrefix("/v1", sandboxhttp.Handler(c, test.option)).ServeHTTP(w, httptest.NewRequest("GET", "/v1"+test.path, nil))
		h := w.Header()
		if w.Code != test.status || h.Get("Content-Type") != test.kind {
			t.Errorf("GET %s: %d %s, want %d %s", test.path, w.Code, h.Get("Content-Type"), test.status, test.kind)
		}
		if policy := h.Get("Content-Security-Policy"); w.Code == 200 && (!strings.HasPrefix(policy, "default-src 'none'; script-src 'self' 'sha256-") || strings.Contains(policy, "unsafe")) {
			t.Errorf("GET %s: the policy is %q", test.path, policy)
		}
		if cache := h.Get("Cache-Control"); w.Code == 200 && strings.Contains(cache, "immutable") != (test.path != "/ui/") {
			t.Errorf("GET %s: Cache-Control is %q", test.path, cache)
		}
		if to := h.Get("Location"); w.Code == 308 && to != "/v1/ui/" {
			t.Errorf("GET %s leads to %q", test.path, to)
		}
	}
	if want := (sandboxhttp.Action{Name: "page"}); len(asked) != 2 || asked[0] != want {
		t.Errorf("WithAuthorize was asked for %+v, want %+v", asked, want)
	}
}
