package errdefs

import (
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Printable returns a text that a sandbox made in a form that is safe in a terminal, a log and
// an error: unchanged if it has only graphic characters, otherwise quoted as a Go string, so
// that it contains neither an escape sequence nor a line break.
func Printable(text string) string {
	if utf8.ValidString(text) && strings.IndexFunc(text, func(c rune) bool { return !unicode.IsGraphic(c) }) < 0 {
		return text
	}
	return strconv.QuoteToGraphic(text)
}

// Cut returns at most the first n bytes of a text, in memory of its own: a part of a string
// keeps the whole of it.
func Cut(text string, n int) string { return strings.Clone(text[:min(n, len(text))]) }
