package main

import (
	"io"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// verbs calls fn with each command of this program, and with none of cobra's.
func verbs(fn func(*cobra.Command)) {
	eachCommand(newApp(nil, io.Discard, io.Discard).root(), fn)
}

// Each command has examples, whose flags it knows and whose arguments it accepts.
func TestHelpHasExamplesThatWork(t *testing.T) {
	t.Parallel()
	var paths []string
	verbs(func(c *cobra.Command) {
		if paths = append(paths, c.CommandPath()); c.Example == "" {
			t.Errorf("%s has no example", c.CommandPath())
		}
	})
	for path, text := range examples {
		if !slices.Contains(paths, path) {
			t.Errorf("there are examples for %q, which is no command", path)
		}
		for _, call := range callsIn(text) {
			root := newApp(nil, io.Discard, io.Discard).root()
			c, rest, err := root.Find(call)
			if err == nil {
				err = c.ParseFlags(rest)
			}
			if err == nil {
				err = c.ValidateArgs(c.Flags().Args())
			}
			if err != nil || isGroup(c) {
				t.Errorf("the example %q of %s: %v", call, path, err)
			}
		}
	}
}

// callsIn returns the arguments of the calls of this program in lines of a shell.
func callsIn(text string) (calls [][]string) {
	word := regexp.MustCompile(`\$\([^)]*\)|'[^']*'|"[^"]*"|\||[^\s|]+`)
	inner := regexp.MustCompile(`\$\((sandbox [^)]*)\)`)
	for line := range strings.Lines(text) {
		var words []string
		for _, w := range append(word.FindAllString(line, -1), "|") {
			if w != "|" {
				words = append(words, strings.Trim(w, `'"`))
				continue
			}
			if len(words) > 0 && words[0] == "sandbox" {
				words = slices.DeleteFunc(words, func(w string) bool { return strings.HasPrefix(w, ">>") })
				calls = append(calls, words[1:])
			}
			words = nil
		}
		for _, m := range inner.FindAllStringSubmatch(line, -1) {
			calls = append(calls, strings.Fields(m[1])[1:])
		}
	}
	return calls
}

// The help names values by what they are, and not by types of the program.
func TestHelpNamesValues(t *testing.T) {
	t.Parallel()
	types := regexp.MustCompile(`--\S+ (string|strings|stringArray|stringToString|stringToInt|int|ints|float|float64|duration|size|template)\b|default \[`)
	verbs(func(c *cobra.Command) {
		if text := types.FindString(c.UsageString()); text != "" {
			t.Errorf("the help of %s has %q", c.CommandPath(), text)
		}
	})
}

// The verbs are in groups, and the flags of verbs with many are by subject.
func TestHelpIsBySubject(t *testing.T) {
	t.Parallel()
	root := newApp(nil, io.Discard, io.Discard).root()
	for _, c := range root.Commands() {
		if c.GroupID == "" {
			t.Errorf("%s is in no group", c.CommandPath())
		}
	}
	for verb, rest := range map[string][]string{"create": {"json"}, "run": nil, "fork": {"json"}, "update": {"json"}} {
		c, _, err := root.Find([]string{verb})
		if err != nil {
			t.Fatal(err)
		}
		c.InitDefaultHelpFlag()
		text := c.UsageString()
		at := -1
		for _, title := range []string{"\nImage and limits:\n", "\nWorkspace and mounts:\n", "\nNetwork:\n", "\nLifetime:\n", "\nNames, tags and place:\n", "\nFlags:\n"} {
			i := strings.Index(text, title)
			if i < at || i < 0 {
				t.Errorf("the help of %s has %q at %d, after one at %d", verb, title, i, at)
			}
			at = i
		}
		others, _, _ := strings.Cut(text[max(at, 0):], "\nGlobal Flags:")
		if got := regexp.MustCompile(`--[a-z-]+`).FindAllString(others, -1); len(got) != len(rest)+1 {
			t.Errorf("the flags %v of %s have no subject, want --help and %v", got, verb, rest)
		}
	}
}
