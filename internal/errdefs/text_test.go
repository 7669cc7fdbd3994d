package errdefs

import (
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"
)

func TestPrintableQuotesWhatATerminalWouldObey(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"":                      "",
		"permission denied":     "permission denied",
		"naïve — 日本語 🙂":         "naïve — 日本語 🙂",
		`C:\path "quoted"`:      `C:\path "quoted"`,
		"\x1b]0;owned\a":        `"\x1b]0;owned\a"`,
		"line\nlevel=error":     `"line\nlevel=error"`,
		"a\rb":                  `"a\rb"`,
		"\x9b31m":               `"\x9b31m"`,
		"\u009b31m":             `"\u009b31m"`,
		"right\u202eto left":    `"right\u202eto left"`,
		"no\u00a0break, \u2003": "no\u00a0break, \u2003",
	} {
		if got := Printable(text); got != want {
			t.Errorf("Printable(%q) = %q, want %q", text, got, want)
		}
	}
}

func FuzzPrintable(f *testing.F) {
	f.Add("\x1b[2J")
	f.Add("plain")
	f.Fuzz(func(t *testing.T, text string) {
		got := Printable(text)
		if !utf8.ValidString(got) || strings.ContainsFunc(got, func(c rune) bool { return !unicode.IsGraphic(c) }) {
			t.Errorf("Printable(%q) = %q", text, got)
		}
		if again := Printable(got); again != got {
			t.Errorf("Printable(%q) = %q", got, again)
		}
	})
}
