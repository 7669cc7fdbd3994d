package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"text/tabwriter"
	"unicode"
	"unicode/utf8"

	"github.com/spf13/cobra"
)

func jsonFlag(c *cobra.Command, asJSON *bool) {
	c.Flags().BoolVar(asJSON, "json", false, "print JSON")
}

// printJSON prints v indented. Characters that are not graphic are escaped: a sandbox may have
// chosen the text, and must not control the terminal.
func printJSON(w io.Writer, v any) error {
	var text bytes.Buffer
	e := json.NewEncoder(&text)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	if err := e.Encode(v); err != nil {
		return err
	}
	_, err := io.WriteString(w, graphicJSON(text.String()))
	return err
}

// graphicJSON escapes what package json leaves in strings: between them there is only white space
// that is graphic or a newline.
func graphicJSON(text string) string {
	var b strings.Builder
	for _, r := range text {
		switch {
		case r == '\n' || unicode.IsGraphic(r):
			b.WriteRune(r)
		case r > 0xffff: // in JSON a pair of surrogates
			r -= 0x10000
			fmt.Fprintf(&b, `\u%04x\u%04x`, 0xd800+r>>10, 0xdc00+r&0x3ff)
		default:
			fmt.Fprintf(&b, `\u%04x`, r)
		}
	}
	return b.String()
}

// printJSONList prints the items as an array, which is empty and not null if there are none.
func printJSONList[T any](w io.Writer, items []T) error {
	return printJSON(w, append([]T{}, items...))
}

// graphic returns s, or s quoted if it contains anything but graphic characters: what comes
// from a sandbox, an image or a label must not control the terminal.
func graphic(s string) string {
	if utf8.ValidString(s) && !strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsGraphic(r) }) {
		return s
	}
	return strconv.QuoteToGraphic(s)
}

// graphicLines is graphic for each line of s.
func graphicLines(s string) string {
	lines := strings.Split(s, "\n")
	for i, line := range lines {
		lines[i] = graphic(line)
	}
	return strings.Join(lines, "\n")
}

// say prints a line that says what was done, unless --quiet is given.
func (a *app) say(format string, args ...any) error {
	if a.progress.quiet {
		return nil
	}
	a.progress.clear()
	_, err := fmt.Fprintln(a.stdout, graphic(fmt.Sprintf(format, args...)))
	return err
}

// printNames prints a line for each item.
func printNames[T any](w io.Writer, items []T, name func(T) string) error {
	var lines strings.Builder
	for _, i := range items {
		fmt.Fprintln(&lines, graphic(name(i)))
	}
	_, err := io.WriteString(w, lines.String())
	return err
}

// A status is a cell that decides the colour of its row.
type status string

// colours are the rows that stand out, by their status: red, yellow, dim.
var colours = map[status]string{"error": "31", "blocked": "31", "orphaned": "33", "paused": "33", "stopped": "2", "ended": "2"}

// colourful reports whether w is a terminal of somebody who wants colours: see no-color.org.
func colourful(w io.Writer) bool {
	return isTerminal(w) && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"
}

// printTable prints a row of cells for each item, and "-" for an empty cell.
func printTable[T any](w io.Writer, header string, items []T, row func(T) []any) error {
	var text bytes.Buffer
	t := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, header)
	paint := []string{"1"} // the header is bold
	for _, i := range items {
		var (
			cells  []string
			colour string
		)
		for _, cell := range row(i) {
			if s, is := cell.(status); is {
				colour = colours[s]
			}
			shown := graphic(fmt.Sprint(cell))
			if shown == "" {
				shown = "-"
			}
			cells = append(cells, shown)
		}
		fmt.Fprintln(t, strings.Join(cells, "\t"))
		paint = append(paint, colour)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	lines := strings.SplitAfter(text.String(), "\n")
	for i, colour := range paint {
		if line := strings.TrimSuffix(lines[i], "\n"); colour != "" && colourful(w) {
			lines[i] = "\x1b[" + colour + "m" + line + "\x1b[m\n"
		}
	}
	_, err := io.WriteString(w, strings.Join(lines, ""))
	return err
}
