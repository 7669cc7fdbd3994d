package sandboxhttp_test

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/chromedp/chromedp"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/test/harness"
)

// Somebody creates a sandbox, works in it, forks, stores, stops and deletes it, all in the page.
func TestPage(t *testing.T) {
	t.Parallel()
	c := harness.NewClient(t)
	name := "page-" + strings.ToLower(rand.Text()[:8])
	fork := name + "-fork"
	var snapshots atomic.Int32
	address := pageOf(t, name, func(r *http.Request) {
		if r.Method == "POST" && strings.HasSuffix(r.URL.Path, "/snapshots") && snapshots.Add(1) <= 2 {
			panic(http.ErrAbortHandler) // twice, since a browser tries once more on a connection that it had
		}
	})
	tb := newTab(t)
	for _, n := range []string{name, fork} {
		api{t: t, client: c}.remove(n)
	}
	tb.do("open", chromedp.Navigate(address))
	tb.await("document.querySelector('#create')?.disabled === false")
	if got := eval[string](tb, "location.pathname + location.search + location.hash"); got != "/v1/ui/" {
		t.Errorf("the address is %s, want it without the token", got)
	}
	tb.awaitText("#list-empty", "Create the first sandbox")

	// The main process writes to the log what is added to a file. The shell in the terminal ignores
	// SIGTERM, so Stop takes as long as it may.
	tb.click("#create")
	tb.await("document.querySelector('#dialog').open")
	tb.fill("#field-name", "No Name")
	tb.fill("#field-command", "touch f; echo hello; exec tail -f f")
	tb.fill("#field-network", "deny-all")
	tb.click("summary")
	tb.fill("#field-grace", "1 s")
	tb.click("#dialog-confirm")
	tb.await(`document.querySelector("#field-name-problem").innerText.startsWith("name \"No Name\": use 1 to 63")`)
	tb.await("document.activeElement.id === 'field-name' && document.activeElement.getAttribute('aria-invalid') === 'true'")
	tb.fill("#field-name", name)
	tb.confirm("New sandbox", "A sandbox "+name, "tail -f f", "Network policy: deny-all")
	row := fmt.Sprintf("tr:has([aria-label=%q]) ", "Actions for "+name)
	tb.awaitText(row+".status", "running")
	tb.await(fmt.Sprintf(`/^\d+\.\d [KM]B$/.test(document.querySelector(%q)?.innerText)`, row+".memory .value"))
	tb.accessible("overview")

	tb.open(row+".name a", "#/sandboxes/"+name)
	tb.useTerminal(name)
	tb.accessible("terminal")
	tb.tab("Log")
	tb.awaitText("#log", "<b>added</b>")
	tb.tab("Network")
	tb.awaitText("#egress", "192.0.2.7:81")
	tb.fill("#host", "example.com")
	tb.keys("\r")
	tb.awaitText("#verdict", "example.com:443 is blocked")
	tb.tab("Files")
	tb.awaitText("#files", "f")
	tb.click("#files tr button.link")
	tb.await("document.querySelector('#file-text')?.value.includes('added')")
	tb.fill("#file-text", "edited\n")
	tb.do("save", chromedp.Evaluate[chromedp.Void]("document.querySelector('.editor .primary').focus()"))
	tb.keys("\r")
	tb.awaitText("#news", "Saved f.")
	if got, err := readFile(t, c, name, "/workspace/f"); err != nil || got != "edited\n" {
		t.Errorf("the edited file is %q, %v", got, err)
	}
	tb.accessible("files")
	tb.editExactly(c, name)

	tb.tab("Snapshots")
	tb.do("take", chromedp.Evaluate[chromedp.Void]("document.querySelector('#tab .primary').focus()"))
	tb.keys("\r")
	tb.await("document.querySelector('#dialog').open")
	tb.fill("#field-name", "first")
	tb.confirm("Snapshot of "+name, "Copy of all files of "+name)
	tb.awaitText("#snapshots", "first")
	tb.open(".brand", "#/")
	tb.choose(name, "Fork …")
	tb.fill("#field-name", fork)
	tb.confirm("Fork "+name, "A new sandbox with the settings and all files of "+name, "Copy of volume")
	tb.awaitText("#news", "Created "+fork)
	tb.open("#views a[href='#/tree']", "#/tree")
	tb.await(fmt.Sprintf(`[...document.querySelectorAll("#tree > li")].some(li => [%q, %q, "first", "of %s"].every(text => li.innerText.includes(text)))`, name, fork, name))
	tb.accessible("tree")
	tb.open("#views a[href='#/']", "#/")
	tb.endInPage(c, name, fork, row)
}

// useTerminal uses the terminal of the sandbox that is shown.
func (tb *tab) useTerminal(name string) {
	tb.t.Helper()
	tb.await("document.querySelector('#terminal-state')?.textContent === '' && document.querySelector('.term-live').innerText.trim()")
	tb.do("focus", chromedp.Focus(chromedp.CSS(".term-input")))
	tb.keys("echo $((6*7)) in the termimal\b\b\bnal\r")
	tb.awaitText(".term-live", "42 in the terminal")
	tb.keys("echo '<b>added</b>' | tee -a f\r")
	tb.await(`/added<.b>\n.*# *$/.test(document.querySelector(".term-live").innerText.trimEnd())`)
	tb.keys("(exec 3<>/dev/tcp/192.0.2.7/81); echo https://example.com/a.\r")
	tb.awaitText(".term-live a[rel='noopener noreferrer']", "https://example.com/a")
	// Tab completes, and Ctrl+L leaves the prompt in sight.
	tb.keys("cat /etc/os-rel\t")
	tb.awaitText(".term-live", "/etc/os-release")
	tb.keys("l", chromedp.KeyModifiers(chromedp.ModifierCtrl))
	tb.await(`!document.querySelector(".term-live").innerText.includes("added") && document.querySelector(".term-live").innerText.includes("cat /etc/os-release")`)
	const within = `(() => {
		const [cursor, box] = [".term-cursor", ".term"].map(s => document.querySelector(s).getBoundingClientRect());
		return cursor.height > 0 && cursor.top >= box.top && cursor.bottom <= box.bottom && cursor.right <= box.right;
	})()`
	tb.await(within)
	tb.keys("\r")
	tb.awaitText(".term-live", "PRETTY_NAME")
	tb.await(within)
	if got := eval[string](tb, "document.title"); !strings.Contains(got, name) {
		tb.t.Errorf("the title is %q, want the name in it", got)
	}
}

// editExactly edits files of which the editor does not show all.
func (tb *tab) editExactly(c *sandbox.Client, name string) {
	t := tb.t
	t.Helper()
	sb, err := c.Get(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	defer sb.Detach()
	harness.Run(t, sb, "sh", "-c", `printf '\357\273\277a\r\nb\r\n' >dos; chmod 4000 dos; printf 'a\r\nb\n' >mixed; printf 1 >"$(printf 'z\376')"; printf 1 >"$(printf 'z\377')"`)
	tb.do("refresh", chromedp.Evaluate[chromedp.Void]("[...document.querySelectorAll('#tab .bar button')].find(b => b.textContent === 'Refresh').click()"))
	tb.awaitText("#files", "mixed")
	open := func(name string) {
		t.Helper()
		tb.do("open "+name, chromedp.Evaluate[chromedp.Void](fmt.Sprintf("[...document.querySelectorAll('#files button.link')].find(b => b.textContent === %q).click()", name)))
	}
	open("mixed")
	tb.awaitText("#trouble", "mixed has line ends of several kinds")
	open("dos")
	tb.await(`document.querySelector('#file-text')?.value === "a\nb\n"`)
	tb.fill("#file-text", "a\nc\n")
	tb.do("save", chromedp.Evaluate[chromedp.Void]("document.querySelector('.editor .primary').click()"))
	tb.awaitText("#news", "Saved dos.")
	if got := harness.Run(t, sb, "sh", "-c", "stat -c %a dos; cat dos mixed | base64"); got != "4000\n"+base64.StdEncoding.EncodeToString([]byte("\xef\xbb\xbfa\r\nc\r\na\r\nb\n")) {
		t.Errorf("the edited file and the one that can't be edited: %s", got)
	}
	// Of two names that look alike the first one is opened.
	open("z\ufffd")
	tb.await(`document.querySelector('#file-text')?.value === "1"`)
	tb.fill("#file-text", "2")
	tb.do("save", chromedp.Evaluate[chromedp.Void]("document.querySelector('.editor .primary').click()"))
	tb.awaitText("#news", "Saved z")
	if got := harness.Run(t, sb, "sh", "-c", "cat z*; ls | grep -c ^z"); got != "212" {
		t.Errorf("the file whose name is not UTF-8, another one, and their number: %s", got)
	}
}

// endInPage stops, starts and deletes the sandbox, and then its fork, in the overview.
func (tb *tab) endInPage(c *sandbox.Client, name, fork, row string) {
	t := tb.t
	t.Helper()
	tb.choose(name, "Stop …")
	tb.confirm("Stop "+name, "SIGTERM", "Files are kept")
	tb.awaitText(row+".status", "stopped")
	tb.untilAnswered(func() string {
		tb.choose(name, "Start")
		started := fmt.Sprintf("document.querySelector('#news').textContent === %q", "Started "+name+".")
		tb.await(started + " || document.querySelector('#trouble').textContent.startsWith('No answer came')")
		return eval[string](tb, started+" ? '' : document.querySelector('#trouble').textContent")
	})
	tb.awaitText(row+".status", "running")
	tb.choose(name, "Delete …")
	tb.click("#field-volumes")
	tb.click("#field-snapshots")
	tb.accessible("dialog")
	tb.confirm("Delete "+name, "Sandbox "+name+" is deleted", "deleted, unless another sandbox uses it", "Snapshot first, ")
	tb.await(fmt.Sprintf("!document.querySelector(%q)", row))
	tb.await("document.activeElement.tagName === 'H1'") // whether the row or the dialog went first
	kept, err := c.Inspect(t.Context(), fork)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if _, err := c.DeleteVolume(context.WithoutCancel(t.Context()), kept.Workspace.Name, sandbox.DeleteVolumeOptions{}); err != nil {
			t.Error(err)
		}
	})
	// By the selection of several.
	tb.do("select", chromedp.Evaluate[chromedp.Void](fmt.Sprintf("document.querySelector('[aria-label=%q]').focus()", "Select "+fork)))
	tb.keys(" ")
	tb.awaitText(".bulk", "1 sandbox selected")
	tb.do("delete", chromedp.Evaluate[chromedp.Void]("document.querySelector('.bulk .danger').focus()"))
	tb.keys("\r")
	tb.await("document.querySelector('#dialog').open")
	tb.confirm("Delete "+fork, ": kept")
	tb.awaitText("#list-empty", "Create the first sandbox")
	tb.open("#views a[href='#/volumes']", "#/volumes")
	tb.awaitText(".orphans", kept.Workspace.Name)
	for _, n := range []string{name, fork} {
		if _, err := c.Inspect(t.Context(), n); err == nil {
			t.Errorf("%s is still there", n)
		}
	}
	tb.accessible("volumes")
}

// readFile reads a file of a sandbox.
func readFile(t *testing.T, c *sandbox.Client, name, path string) (string, error) {
	t.Helper()
	sb, err := c.Get(t.Context(), name)
	if err != nil {
		return "", err
	}
	defer sb.Detach()
	content, err := sb.ReadFile(t.Context(), path)
	return string(content), err
}
