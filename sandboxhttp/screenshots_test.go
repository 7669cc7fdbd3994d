package sandboxhttp_test

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"testing"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/test/harness"
)

// The page's main states, in three sizes and both color schemes, as files in the directory that
// SANDBOX_SCREENSHOTS names.
func TestScreenshots(t *testing.T) {
	dir := os.Getenv("SANDBOX_SCREENSHOTS")
	if dir == "" {
		t.Skip("SANDBOX_SCREENSHOTS names no directory")
	}
	c := harness.NewClient(t)
	const prefix = "demo-"
	server := `console.log("listening on :3000"); let n = 0; require("http").createServer((q, r) => r.end("hello")).listen(3000); setInterval(() => { for (let i = 0; i < 3e7; i++); console.log("GET / 200 " + ++n) }, 700)`
	create := func(name string, opts ...sandbox.CreateOption) *sandbox.Sandbox {
		t.Helper()
		api{t: t, client: c}.remove(prefix + name)
		sb, err := c.Create(t.Context(), append(opts, sandbox.WithName(prefix+name), sandbox.WithStopTimeout(1e9))...)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { sb.Detach() })
		return sb
	}
	web := create("web", sandbox.WithCommand("node", "-e", server), sandbox.WithTags(map[string]string{"team": "shop"}), sandbox.WithPorts(3000),
		sandbox.WithNetworkPolicy(sandbox.NetworkPolicy{Allow: []string{"registry.npmjs.org", "*.github.com"}}))
	create("evaluator", sandbox.WithTags(map[string]string{"team": "search"}), sandbox.WithMemory(512<<20), sandbox.WithNetworkPolicy(sandbox.DenyAll()))
	stopped := create("notebook", sandbox.WithTags(map[string]string{"team": "search"}))
	if err := web.WriteFile(t.Context(), "/workspace/README.md", []byte("# Shop\n\nRun `npm start`.\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if out, err := web.Command(t.Context(), "sh", "-c", "mkdir -p src test; echo 'export const port = 3000;' >src/config.js; curl -sm2 https://example.org; curl -sm2 https://registry.npmjs.org; true").CombinedOutput(); err != nil {
		t.Fatal(err, string(out))
	}
	if _, err := web.Snapshot(t.Context(), sandbox.SnapshotOptions{Name: "before-upgrade"}); err != nil {
		t.Fatal(err)
	}
	for _, n := range []string{"variant-a", "variant-b"} {
		api{t: t, client: c}.remove(prefix + n)
		f, err := c.Fork(t.Context(), web.Name(), sandbox.WithName(prefix+n))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Detach() })
	}
	if _, err := stopped.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	tb := newTab(t)
	address := pageOf(t, prefix, func(*http.Request) {})
	tb.do("open", chromedp.Navigate(address))
	tb.await("document.querySelectorAll('#list tr').length === 5 && document.querySelector('[data-total=Disk] strong').innerText !== '…'")
	tb.await(fmt.Sprintf("document.querySelector('tr:has([aria-label=%q]) polyline').getAttribute('points').split(' ').length > 4", "Actions for "+web.Name()))
	tb.pictures(dir, "overview")
	at := "#/sandboxes/" + web.Name()
	visit := func(name, address, ready string) {
		t.Helper()
		tb.do(name, chromedp.Evaluate[chromedp.Void](fmt.Sprintf("location.hash = %q", address)))
		tb.await(fmt.Sprintf("document.querySelector('#view').dataset.address === %q && %s", address, ready))
		tb.pictures(dir, name)
	}
	tb.do("terminal", chromedp.Evaluate[chromedp.Void](fmt.Sprintf("location.hash = %q", at)))
	tb.await("document.querySelector('#terminal-state')?.textContent === '' && document.querySelector('.term-live').innerText.includes('#')")
	tb.do("focus", chromedp.Focus(chromedp.CSS(".term-input")))
	tb.keys("ls --color=always -la / | head -12; printf '\\033[1;38;5;46mtests passed\\033[0m  \\033[38;2;255;120;80mtrue colour\\033[0m  日本語 ✓ https://example.com\\n'\r")
	tb.await("/tests passed {2}true colour.*\\n.*# *$/.test(document.querySelector('.term-live').innerText.trimEnd())")
	tb.pictures(dir, "terminal")
	visit("usage", at+"/usage", "document.querySelector('.chart polyline')")
	visit("log", at+"/log", "document.querySelector('#log div')")
	visit("files", at+"/files", "document.querySelector('#files tr')")
	visit("network", at+"/network", "document.querySelector('#egress tr')")
	visit("snapshots", at+"/snapshots", "document.querySelector('#snapshots li')")
	visit("settings", at+"/settings", "document.querySelector('.facts')")
	visit("ports", at+"/ports", "document.querySelector('#ports li')")
	visit("processes", at+"/processes", "document.querySelector('.empty')")
	visit("tree", "#/tree", "document.querySelectorAll('#tree .node').length === 6")
	visit("volumes", "#/volumes", "document.querySelector('#volumes li')")
	tb.do("back", chromedp.Evaluate[chromedp.Void]("location.hash = '#/'"))
	tb.click("#create")
	tb.await("document.querySelector('#dialog').open")
	tb.fill("#field-name", "No Name")
	tb.click("#dialog-confirm")
	tb.await("document.querySelector('#field-name-problem').innerText")
	tb.pictures(dir, "dialog")
}

// pictures keeps pictures of the page.
func (tb *tab) pictures(dir, name string) {
	tb.t.Helper()
	for _, size := range []struct{ width, height int }{{1440, 900}, {768, 1024}, {390, 844}} {
		call(tb, emulation.SetDeviceMetricsOverride, emulation.SetDeviceMetricsOverrideParams{Width: int64(size.width), Height: int64(size.height), DeviceScaleFactor: 1})
		for _, scheme := range []string{"light", "dark"} {
			tb.colors(scheme)
			picture, err := chromedp.Run(tb.ctx, chromedp.CaptureScreenshot())
			if err == nil {
				err = os.WriteFile(filepath.Join(dir, fmt.Sprintf("%s-%d-%s.png", name, size.width, scheme)), picture, 0o644)
			}
			if err != nil {
				tb.t.Error(err)
			}
		}
		if wide := eval[int](tb, "document.documentElement.scrollWidth"); wide > size.width {
			tb.t.Errorf("%s: at %d pixels it is %d wide", name, size.width, wide)
		}
	}
	call(tb, emulation.ClearDeviceMetricsOverride, cdp.Empty{})
}
