package sandboxhttp_test

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/chromedp/cdproto/accessibility"
	"github.com/chromedp/cdproto/audits"
	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/internal/enginetest"
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
	case *runtime.EventExceptionThrown, *runtime.EventConsoleAPICalled, *audits.EventIssueAdded:
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
	ctx, cancel := context.WithTimeout(tb.ctx, time.Minute)
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
	for end := time.Now().Add(time.Minute); !eval[bool](tb, "Boolean("+expression+")"); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(end) {
			tb.t.Fatalf("a minute later this is not true: %s; the page is\n%s", expression, eval[string](tb, "document.body.innerText"))
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

// press presses a button with the keyboard: rows move when others create sandboxes.
func (tb *tab) press(label string) {
	tb.t.Helper()
	tb.await(fmt.Sprintf(`(e => (e?.focus(), e && document.activeElement === e))(document.querySelector('[aria-label=%q]:enabled'))`, label))
	tb.keys("\r")
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

// start starts a sandbox.
func (tb *tab) start(name string) {
	tb.t.Helper()
	tb.untilAnswered(func() string {
		tb.press("Start " + name)
		started := fmt.Sprintf("document.querySelector('#news').textContent === %q", "Started "+name+".")
		tb.await(started + " || document.querySelector('#trouble').textContent.startsWith('No answer came')")
		return eval[string](tb, started+" ? '' : document.querySelector('#trouble').textContent")
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
	call(tb, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}}})
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

// Somebody creates a sandbox, works in it, forks, stores, stops and deletes it, all in the page.
func TestPage(t *testing.T) {
	t.Parallel()
	c := harness.NewClient(t)
	name := "page-" + strings.ToLower(rand.Text()[:8])
	var snapshots atomic.Int32
	address := pageOf(t, name, func(r *http.Request) {
		if r.Method == "POST" && strings.HasSuffix(r.URL.Path, "/snapshots") && snapshots.Add(1) <= 2 {
			panic(http.ErrAbortHandler) // twice, since a browser tries once more on a connection that it had
		}
		if r.Method == "POST" && r.URL.Path == "/v1/sandboxes" {
			// The shell in the terminal ignores SIGTERM, so Stop takes as long as it may.
			body, err := io.ReadAll(r.Body)
			if err != nil {
				t.Error(err)
			}
			short := strings.Replace(string(body), "{", `{"stopTimeoutMs":1000,`, 1)
			r.Body, r.ContentLength = io.NopCloser(strings.NewReader(short)), int64(len(short))
		}
	})
	tb := newTab(t)
	fork := name + "-fork"
	for _, n := range []string{name, fork} {
		api{t: t, client: c}.remove(n)
	}
	tb.do("open", chromedp.Navigate(address))
	tb.await("!document.querySelector('#create').disabled")
	if got := eval[string](tb, "location.pathname + location.search + location.hash"); got != "/v1/ui/" {
		t.Errorf("the address is %s, want it without the token", got)
	}

	// The main process writes to the log what is added to a file.
	tb.click("#create")
	tb.fill("#field-name", name)
	tb.fill("#field-command", "touch f; echo hello; exec tail -f f")
	tb.fill("#field-network", "deny-all")
	tb.confirm("New sandbox", "A sandbox "+name, "tail -f f", "Network policy: deny-all")
	row := fmt.Sprintf("tr:has([aria-label=%q]) ", "Fork "+name)
	tb.awaitText(row+".status", "running")
	tb.do("focus", chromedp.Focus(chromedp.CSS(row+".link")))
	tb.keys("\r")
	tb.awaitText("#log", "hello")

	tb.click("#terminal-open")
	tb.await("document.activeElement.id == 'keys' && document.querySelector('#screen').innerText.trim()")
	tb.keys("echo $((6*7)) in the termimal\b\b\bnal\r")
	tb.awaitText("#screen", "42 in the terminal")
	tb.keys("echo '<b>added</b>' | tee -a f\r")
	tb.awaitText("#log", "<b>added</b>")
	tb.await(`/added<.b>\n.*# *$/.test(document.querySelector("#screen").innerText.trimEnd())`)
	if got := eval[int](tb, `document.querySelector("#screen").innerText.split("# ").length - 1`); got != 3 {
		t.Errorf("after two commands there are %d prompts, want 3", got)
	}
	tb.keys(`printf 'ab\rc\n\033[31mred\033[0m \033]0;title\007\033[1;38;5;46mgreen\033[0m\033[999;999z\n12345\033[3D\033[K.\n'` + "\r")
	tb.awaitText("#screen", "\ncb\nred green\n12.\n")
	for expression, want := range map[string]string{
		"document.querySelector('#screen .text-1')?.textContent ?? ''":                                             "red",
		`[...document.querySelectorAll("#screen .bold")].find(s => s.textContent.startsWith("green")).style.color`: "rgb(0, 255, 0)",
		"document.title": "Sandboxes",
	} {
		if got := eval[string](tb, expression); got != want {
			t.Errorf("%s is %q, want %q", expression, got, want)
		}
	}
	tb.keys("(exec 3<>/dev/tcp/192.0.2.7/81); sleep 1000\r")
	tb.awaitText("#egress", "192.0.2.7:81")
	tb.keys("c", chromedp.KeyModifiers(chromedp.ModifierCtrl))
	tb.awaitText("#screen", "^C")
	tb.await(fmt.Sprintf("document.querySelector(%q).getAttribute('points').split(' ').length > 1", row+".cpu polyline"))
	tb.await(fmt.Sprintf("document.querySelector(%q).getAttribute('points').split(' ').length > 1", row+".memory polyline"))
	tb.await(fmt.Sprintf(`/^\d+\.\d [KM]B$/.test(document.querySelector(%q).innerText.trim())`, row+".memory"))
	tb.await(fmt.Sprintf(`[...document.querySelectorAll("#volumes tr")].some(tr => tr.querySelector(".users").innerText === %q && /^\d+(\.\d)? [KM]?B$/.test(tr.querySelector(".size").innerText))`, name))
	tb.keys("ls --color=always -d /workspace/f /bin\r")
	tb.awaitText("#screen", "/workspace/f")
	tb.accessible("details")
	tb.screenshot("details")

	tb.press("Fork " + name)
	tb.await("document.querySelector('#dialog').open")
	tb.fill("#field-name", fork)
	tb.confirm("Fork "+name, "A new sandbox with the settings and all files of "+name, "Copy of volume")
	tb.awaitText("#news", "Created "+fork)
	tb.press("Snapshot of " + name)
	tb.await("document.querySelector('#dialog').open")
	tb.fill("#field-name", "first")
	tb.confirm("Snapshot of "+name, "Copy of all files of "+name)
	tb.await(fmt.Sprintf(`[...document.querySelectorAll("#tree > li")].some(li => [%q, %q, "first of %s"].every(text => li.innerText.includes(text)))`, name, fork, name))

	tb.press("Stop " + name)
	tb.await("document.querySelector('#dialog').open")
	tb.confirm("Stop "+name, "SIGTERM", "Its files are kept")
	tb.awaitText(row+".status", "stopped")
	tb.awaitText("#log-end", "The session has ended: stopped")
	tb.await("document.querySelector('#terminal').hidden")
	tb.start(name)
	tb.awaitText(row+".status", "running")
	tb.await(`/hello[^]*hello/.test(document.querySelector("#log").innerText)`) // of the second session, too

	tb.press("Delete " + name)
	tb.await("document.querySelector('#dialog').open")
	tb.click("#field-volumes")
	tb.click("#field-snapshots")
	tb.accessible("dialog")
	tb.screenshot("delete")
	tb.confirm("Delete "+name, "Sandbox "+name+" is deleted", "deleted, unless another sandbox uses it", "Snapshot first, ")
	tb.await("!document.querySelector('#list').innerText.split(/\\s/).includes(" + fmt.Sprintf("%q", name) + ")")
	tb.await("document.activeElement.id === 'list-title'") // the heading of the list has the focus, whether the row or the dialog went first
	kept, err := c.Inspect(t.Context(), fork)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if _, err := c.DeleteVolume(context.WithoutCancel(t.Context()), kept.Workspace.Name, sandbox.DeleteVolumeOptions{}); err != nil {
			t.Error(err)
		}
	})
	tb.press("Delete " + fork)
	tb.await("document.querySelector('#dialog').open")
	tb.confirm("Delete "+fork, ": kept")
	tb.awaitText("#volumes", "orphaned")
	for _, n := range []string{name, fork} {
		if _, err := c.Inspect(t.Context(), n); err == nil {
			t.Errorf("%s is still there", n)
		}
	}
	tb.accessible("lists")
	tb.screenshot("lists")
}

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
	for _, test := range []struct {
		path   string
		option sandboxhttp.Option
		status int
		kind   string
	}{
		{"/ui/", sandboxhttp.WithToken("s3cret"), 200, "text/html; charset=utf-8"},
		{"/ui/page.js", sandboxhttp.WithToken(""), 200, "text/javascript; charset=utf-8"},
		{"/ui/style.css", sandboxhttp.WithoutAuthorization(), 200, "text/css; charset=utf-8"},
		{"/ui/icon.svg", sandboxhttp.WithHosts(), 200, "image/svg+xml"},
		{"/ui", sandboxhttp.WithToken("s3cret"), 308, ""},
		{"/ui/nothing", sandboxhttp.WithToken("s3cret"), 404, "application/json"},
		{"/ui/..%2fui.go", sandboxhttp.WithToken("s3cret"), 404, "application/json"},
		{"/ui/", refusing, 403, "application/json"},
		{"/ui", refusing, 403, "application/json"},
	} {
		w := httptest.NewRecorder()
		http.StripPrefix("/v1", sandboxhttp.Handler(c, test.option)).ServeHTTP(w, httptest.NewRequest("GET", "/v1"+test.path, nil))
		h := w.Header()
		if w.Code != test.status || h.Get("Content-Type") != test.kind {
			t.Errorf("GET %s: %d %s, want %d %s", test.path, w.Code, h.Get("Content-Type"), test.status, test.kind)
		}
		if policy := h.Get("Content-Security-Policy"); w.Code == 200 && (!strings.HasPrefix(policy, "default-src 'none'; script-src 'self'; style-src 'self';") || strings.Contains(policy, "unsafe")) {
			t.Errorf("GET %s: the policy is %q", test.path, policy)
		}
		if to := h.Get("Location"); w.Code == 308 && to != "/v1/ui/" {
			t.Errorf("GET %s leads to %q", test.path, to)
		}
	}
	if want := (sandboxhttp.Action{Name: "page"}); len(asked) != 2 || asked[0] != want {
		t.Errorf("WithAuthorize was asked for %+v, want %+v", asked, want)
	}
}

// accessible checks what a page needs for users of keyboards, of screen readers, of both color
// schemes and of large text.
func (tb *tab) accessible(state string) {
	t := tb.t
	t.Helper()
	named := []string{"button", "textbox", "spinbutton", "combobox", "checkbox", "dialog", "region", "log", "heading", "columnheader", "rowheader"}
	seen := map[string]int{}
	for _, n := range call(tb, accessibility.GetFullAXTree, accessibility.GetFullAXTreeParams{}).Nodes {
		if n.Ignored || n.Role == nil {
			continue
		}
		role, name := text(n.Role), text(n.Name)
		seen[role]++
		if slices.Contains(named, role) && strings.TrimSpace(name) == "" {
			t.Errorf("%s: a %s has no name", state, role)
		}
	}
	if seen["button"] < 2 || seen["heading"] < 2 {
		t.Errorf("%s: the accessibility tree has %v, which can't be all", state, seen)
	}
	for _, problem := range eval[[]string](tb, checks) {
		t.Errorf("%s: %s", state, problem)
	}
	for _, scheme := range []string{"light", "dark"} {
		tb.colors(scheme)
		for _, problem := range eval[[]string](tb, contrasts) {
			t.Errorf("%s in %s: %s", state, scheme, problem)
		}
	}
	// 1280 pixels at 200 %.
	call(tb, emulation.SetDeviceMetricsOverride, emulation.SetDeviceMetricsOverrideParams{Width: 640, Height: 450, DeviceScaleFactor: 2})
	if wide := eval[int](tb, "document.documentElement.scrollWidth"); wide > 640 {
		t.Errorf("%s: at 200 %% it is %d pixels wide, want 640", state, wide)
	}
	call(tb, emulation.ClearDeviceMetricsOverride, cdp.Empty{})
	tb.tabThrough(state)
}

func text(v *accessibility.Value) (s string) {
	if v != nil {
		json.Unmarshal(v.Value, &s)
	}
	return s
}

// tabThrough checks that the key Tab reaches everything that can be used, and shows where it is.
func (tb *tab) tabThrough(state string) {
	tb.t.Helper()
	total := eval[int](tb, `(() => {
		const root = document.querySelector("dialog[open]") ?? document;
		window.toReach = new Set([...root.querySelectorAll("button, input, textarea, [tabindex='0']")].filter(e => !e.disabled && e.checkVisibility()));
		window.unseen = [];
		if (!document.querySelector("dialog[open]")) { document.activeElement.blur(); getSelection().removeAllRanges(); }
		return window.toReach.size;
	})()`)
	for range 2*total + 20 {
		tb.keys(kb.Tab)
		left := eval[int](tb, `(() => {
			const e = document.activeElement;
			if (toReach.delete(e) && getComputedStyle(e).outlineStyle == "none") unseen.push(e.id || e.innerText);
			for (const gone of [...toReach].filter(e => !e.isConnected)) toReach.delete(gone);
			return toReach.size;
		})()`)
		if left == 0 {
			break
		}
	}
	if left := eval[[]string](tb, "[...toReach].map(e => e.id || e.ariaLabel || e.innerText)"); len(left) > 0 || total == 0 {
		tb.t.Errorf("%s: of %d controls Tab does not reach %q", state, total, left)
	}
	if unseen := eval[[]string](tb, "unseen"); len(unseen) > 0 {
		tb.t.Errorf("%s: the focus is not visible on %q", state, unseen)
	}
}

// checks returns what is wrong with the structure of the document.
const checks = `(() => {
	const problems = [], shown = [...document.querySelectorAll("*")].filter(e => e.checkVisibility());
	let level = 0;
	for (const h of shown.filter(e => /^H[1-6]$/.test(e.tagName) && !e.closest("dialog"))) {
		if (+h.tagName[1] > level + 1) problems.push("heading " + h.innerText + " is of level " + h.tagName[1] + " after " + level);
		level = +h.tagName[1];
	}
	const ids = shown.map(e => e.id).filter(Boolean);
	for (const id of ids) if (ids.indexOf(id) != ids.lastIndexOf(id)) problems.push("two elements have the id " + id);
	for (const e of document.querySelectorAll("*"))
		for (const attribute of ["aria-labelledby", "aria-describedby", "aria-controls", "for"])
			for (const id of (e.getAttribute(attribute) ?? "").split(" ").filter(Boolean))
				if (!document.getElementById(id)) problems.push(attribute + " names " + id + ", which is not there");
	for (const th of shown.filter(e => e.tagName == "TH")) if (!th.scope) problems.push("header " + th.innerText + " has no scope");
	for (const svg of shown.filter(e => e.tagName == "svg")) if (svg.getAttribute("aria-hidden") != "true") problems.push("a picture is not hidden from screen readers, and has no name");
	if (document.documentElement.lang != "en" || !document.title) problems.push("the document has no language or title");
	return problems;
})()`

// contrasts returns the texts whose contrast is below 4.5, and the borders of fields below 3.
const contrasts = `(() => {
	const parse = c => (c.match(/[\d.]+/g) ?? []).map(Number);
	const light = c => { const [r, g, b] = parse(c).map(v => (v /= 255) <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4); return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
	const ratio = (a, b) => { const [x, y] = [light(a), light(b)].sort((p, q) => q - p); return (x + 0.05) / (y + 0.05); };
	const back = e => { for (; e; e = e.parentElement) { const c = getComputedStyle(e).backgroundColor; if (parse(c)[3] !== 0) return c; } return "rgb(255, 255, 255)"; };
	const problems = new Set();
	for (const e of document.querySelectorAll("body *")) {
		if (!e.checkVisibility() || e.disabled) continue;
		const style = getComputedStyle(e), own = [...e.childNodes].some(n => n.nodeType == 3 && n.data.trim());
		if (own && ratio(style.color, back(e)) < 4.5) problems.add(e.tagName + "." + e.className + " " + style.color + " on " + back(e) + " is " + ratio(style.color, back(e)).toFixed(2));
		if (/INPUT|TEXTAREA/.test(e.tagName) && ratio(style.borderTopColor, back(e.parentElement)) < 3) problems.add("the border of " + e.id + " is " + ratio(style.borderTopColor, back(e.parentElement)).toFixed(2));
	}
	return [...problems];
})()`
