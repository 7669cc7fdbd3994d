package sandboxhttp_test

import (
	"crypto/rand"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/seed-1a2d6d8f/sandbox/test/harness"
)

// reach presses Tab until what a selector finds has the focus.
func (tb *tab) reach(selector string) {
	tb.t.Helper()
	tb.await(fmt.Sprintf("document.querySelector(%q)?.disabled !== true && document.querySelector(%[1]q)", selector))
	for range 300 {
		if eval[bool](tb, fmt.Sprintf("document.activeElement.matches(%q)", selector)) {
			return
		}
		tb.keys(kb.Tab)
	}
	tb.t.Fatalf("Tab does not reach %s; the focus is on %s", selector, eval[string](tb, "document.activeElement.outerHTML.slice(0, 200)"))
}

// press reaches something, and presses Enter on it.
func (tb *tab) press(selector string) {
	tb.t.Helper()
	tb.reach(selector)
	tb.keys("\r")
}

// entry opens a menu, and presses Enter on one of its entries.
func (tb *tab) entry(menu, entry string) {
	tb.t.Helper()
	tb.press(fmt.Sprintf("[aria-label=%q]", "Actions for "+menu))
	tb.await("document.activeElement.role === 'menuitem'")
	for range 20 {
		if eval[bool](tb, fmt.Sprintf("document.activeElement.textContent === %q", entry)) {
			tb.keys("\r")
			return
		}
		tb.keys(kb.ArrowDown)
	}
	tb.t.Fatalf("the menu of %s has no %s", menu, entry)
}

// dialog types a text into the first field of the dialog, and confirms it with Enter.
func (tb *tab) dialog(text string) {
	tb.t.Helper()
	tb.await("document.querySelector('#dialog').open")
	if text != "" {
		tb.await("document.activeElement.tagName === 'INPUT'")
		tb.keys("a", chromedp.KeyModifiers(chromedp.ModifierCtrl))
		tb.keys(text)
	}
	tb.untilAnswered(func() string {
		tb.press("#dialog-confirm")
		tb.await("!document.querySelector('#dialog').open || document.querySelector('#dialog-trouble').textContent")
		return eval[string](tb, "document.querySelector('#dialog-trouble').textContent")
	})
}

// Everything that the page can do, it does by the keyboard alone: no element is clicked, and none gets the
// focus but by keys.
func TestPageByKeyboardAlone(t *testing.T) {
	t.Parallel()
	c := harness.NewClient(t)
	name := "keys-" + strings.ToLower(rand.Text()[:8])
	api{t: t, client: c}.remove(name)
	address := pageOf(t, name, func(*http.Request) {})
	tb := newTab(t)
	tb.do("open", chromedp.Navigate(address))
	tb.press("#create:enabled")
	tb.dialog(name)
	row := fmt.Sprintf("tr:has([aria-label=%q]) ", "Actions for "+name)
	tb.awaitText(row+".status", "running")
	tb.press(row + ".name a")
	show := func(part string) {
		t.Helper()
		tb.press(fmt.Sprintf(".tabs a[href$=%q]", "/"+part))
		tb.await(fmt.Sprintf("document.querySelector('#view').dataset.address === %q", "#/sandboxes/"+name+"/"+part))
	}

	// In the terminal Tab goes to the shell, and Escape before it leaves.
	tb.await("document.querySelector('#terminal-state')?.textContent === '' && document.querySelector('.term-live').innerText.trim()")
	tb.reach(".term-input")
	tb.keys("X=kept; echo $((6*7))\r")
	tb.awaitText(".term-live", "42")
	tb.keys(kb.Escape + kb.Tab)
	tb.await("!document.activeElement.matches('.term-input')")

	// A command in the background, which is interrupted.
	show("processes")
	tb.reach("#command:enabled")
	tb.keys("sleep 1000\r")
	tb.awaitText("#processes", "sleep 1000")
	tb.entry("sleep 1000", "Interrupt (SIGINT)")
	tb.awaitText("#processes .how", "ended by signal")
	tb.await("document.querySelector('#processes .menu-button').hidden")

	// Files: a directory, a text in it, a new name, and their end.
	show("files")
	button := func(label string) string {
		t.Helper()
		tb.await(fmt.Sprintf("[...document.querySelectorAll('#tab .bar button')].some(b => b.textContent === %q)", label))
		tb.do("mark", chromedp.Evaluate[chromedp.Void](fmt.Sprintf("document.querySelectorAll('#tab .bar button').forEach(b => b.dataset.marked = b.textContent === %q)", label)))
		return "#tab .bar button[data-marked=true]"
	}
	tb.press(button("New directory …"))
	tb.dialog("notes")
	tb.awaitText("#files", "notes/")
	tb.press("#files th a")
	tb.awaitText("#tab", "This directory is empty")
	tb.press(button("New file …"))
	tb.await("document.activeElement.id === 'file-name'")
	tb.keys("one.txt" + kb.Tab)
	tb.reach("#file-text")
	tb.keys("first line")
	tb.do("back", chromedp.KeyEvent(kb.Tab, chromedp.KeyModifiers(chromedp.ModifierShift)))
	tb.do("back", chromedp.KeyEvent(kb.Tab, chromedp.KeyModifiers(chromedp.ModifierShift)))
	tb.press(button("Save"))
	tb.awaitText("#files", "one.txt")
	tb.entry("one.txt", "Rename …")
	tb.dialog("two.txt")
	tb.awaitText("#files", "two.txt")
	if got, err := readFile(t, c, name, "/workspace/notes/two.txt"); err != nil || got != "first line" {
		t.Errorf("the renamed file is %q, %v", got, err)
	}
	tb.entry("two.txt", "Delete …")
	tb.dialog("")
	tb.awaitText("#tab", "This directory is empty")
	tb.press(".crumbs a[href$='/files/workspace']")
	tb.awaitText("#files", "notes/")
	tb.entry("notes", "Delete …")
	tb.dialog("")
	tb.awaitText("#tab", "This directory is empty")

	show("network")
	tb.await("document.querySelector('#policy').value")
	tb.reach("#policy")
	tb.keys("a", chromedp.KeyModifiers(chromedp.ModifierCtrl))
	tb.keys("deny-all\r")
	tb.awaitText("#news", "deny-all")

	show("snapshots")
	tb.press(button("Take snapshot …"))
	tb.dialog("first")
	tb.awaitText("#snapshots", "first")

	// The shell has gone on meanwhile.
	show("terminal")
	tb.reach(".term-input")
	tb.keys(" echo $X shell\r") // the space goes with the Escape of before, to readline
	tb.awaitText(".term-live", "kept shell")
	tb.keys(kb.Escape + kb.Tab)

	tb.press(".brand")
	tb.await("document.querySelector('#view').dataset.address === '#/'")
	tb.press(row + "[aria-label^=Actions]")
	tb.await("document.activeElement.role === 'menuitem'")
	tb.keys(kb.End)
	tb.await("document.activeElement.textContent === 'Delete …'")
	tb.keys("\r")
	tb.await("document.querySelector('#dialog').open")
	tb.reach("#field-volumes")
	tb.keys(" ")
	tb.reach("#field-snapshots")
	tb.keys(" ")
	tb.dialog("")
	tb.awaitText("#list-empty", "Create the first sandbox")
}
