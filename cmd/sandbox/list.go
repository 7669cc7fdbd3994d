package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/template"

	"github.com/spf13/cobra"
)

// listing is how a list is printed: a table, names alone, JSON, or a line of a template for each item.
type listing struct {
	json   bool
	format format
}

func (l *listing) flags(c *cobra.Command) {
	jsonFlag(c, &l.json)
	l.format.flag(c)
}

// format is a template of package text/template for each item of a list.
type format struct {
	given string
	parts *template.Template
}

func (f *format) flag(c *cobra.Command) {
	c.Flags().Var(f, "format", "print a line for each, by a template of Go such as '{{.Name}}', or json; the fields are those of the library's types")
	_ = c.RegisterFlagCompletionFunc("format", fixed("json"))
	if c.Flags().Lookup("json") != nil {
		c.MarkFlagsMutuallyExclusive("format", "json")
	}
}

func (f *format) Type() string   { return "template" }
func (f *format) String() string { return f.given }

func (f *format) Set(text string) (err error) {
	f.given = text
	if text == "json" {
		text = "{{json .}}"
	}
	f.parts, err = template.New("--format").Funcs(template.FuncMap{
		"json": func(v any) (string, error) { b, err := json.Marshal(v); return string(b), err },
		"join": strings.Join, "lower": strings.ToLower, "upper": strings.ToUpper, "size": bytesText, "ago": ago,
	}).Parse(text)
	return err
}

// printFormatted prints a line for each item. A line has no characters that control a terminal, except tabs.
func printFormatted[T any](w io.Writer, f format, items []T) error {
	var text strings.Builder
	for _, i := range items {
		var line strings.Builder
		if err := f.parts.Execute(&line, i); err != nil {
			return usageError{fmt.Errorf("--format: %w", err)}
		}
		fmt.Fprintln(&text, escaped(line.String()))
	}
	_, err := io.WriteString(w, text.String())
	return err
}

// printList prints a list as its flags say, or as a table. With --quiet it prints names, if there are some.
func printList[T any](a *app, l listing, items []T, name func(T) string, table func([]T) error) error {
	switch {
	case l.json:
		return printJSONList(a.stdout, items)
	case l.format.parts != nil:
		return printFormatted(a.stdout, l.format, items)
	case a.progress.quiet && name != nil:
		return printNames(a.stdout, items, name)
	}
	return table(items)
}
