package sandboxhttp_test

import (
	"encoding/json"
	"slices"
	"strings"

	"github.com/chromedp/cdproto/accessibility"
	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp/kb"
)

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
	if seen["button"] < 2 || seen["heading"] < 1 {
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
	tb.await("innerWidth > 900")
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
		window.toReach = new Set([...root.querySelectorAll("a[href], button, input, select, summary, textarea, [tabindex='0']")].filter(e => !e.disabled && e.tabIndex >= 0 && e.checkVisibility({checkVisibilityCSS: true})));
		window.unseen = [];
		if (!document.querySelector("dialog[open]")) { document.activeElement.blur(); getSelection().removeAllRanges(); }
		return window.toReach.size;
	})()`)
	for range 2*total + 20 {
		if eval[bool](tb, "document.activeElement.className === 'term-input'") {
			tb.keys(kb.Escape) // then Tab leaves the terminal
		}
		tb.keys(kb.Tab)
		left := eval[int](tb, `(() => {
			const e = document.activeElement;
			if (toReach.delete(e) && getComputedStyle(e.closest(".term") ?? e).outlineStyle == "none") unseen.push(e.id || e.innerText);
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
		if (/INPUT|TEXTAREA|SELECT/.test(e.tagName) && parseFloat(style.borderTopWidth) > 0 && ratio(style.borderTopColor, back(e.parentElement)) < 3) problems.add("the border of " + e.id + " is " + ratio(style.borderTopColor, back(e.parentElement)).toFixed(2));
	}
	return [...problems];
})()`
