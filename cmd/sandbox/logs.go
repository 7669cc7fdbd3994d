package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"
	"unicode"

	"github.com/spf13/cobra"

	"github.com/seed-1a2d6d8f/sandbox"
)

func (a *app) logsCommand() *cobra.Command {
	var (
		follow, times, asJSON bool
		tail                  int
		since, command        string
	)
	c := &cobra.Command{
		Use:   "logs [flags] NAME",
		Short: "Print the output of a sandbox's main process and detached commands",
		Long: `Print the output of a sandbox's main process and detached commands: lines of stdout to stdout, of
stderr to stderr. On a terminal, control characters are replaced by their Go escapes.`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: a.oneSandbox,
		RunE: func(c *cobra.Command, args []string) error {
			o := sandbox.LogOptions{Follow: follow}
			if c.Flags().Changed("tail") {
				if o.Tail = tail; tail <= 0 {
					o.Tail = -1
				}
			}
			if c.Flags().Changed("command") {
				o.Command = &command
			}
			var err error
			if o.Since, err = sinceTime(since, time.Now()); err != nil {
				return err
			}
			return a.withSandbox(c, args[0], func(sb *sandbox.Sandbox) error {
				for line, err := range sb.Logs(c.Context(), o) {
					if err == nil {
						err = a.printLine(line, times, asJSON)
					}
					if err != nil {
						return err
					}
				}
				return nil
			})
		},
	}
	c.Flags().BoolVarP(&follow, "follow", "f", false, "continue with new lines until the session ends")
	c.Flags().IntVar(&tail, "tail", 0, "start with this many of the last lines (default all)")
	c.Flags().StringVar(&since, "since", "", "skip lines that are older: a duration such as 10m or 2d, or a time in RFC 3339")
	c.Flags().StringVar(&command, "command", "", "print only the lines of the detached command of this ID; \"\" is the main process")
	c.Flags().BoolVar(&times, "timestamps", false, "print the time of each line")
	jsonFlag(c, &asJSON)
	return c
}

// sinceTime parses a time, or a duration before now.
func sinceTime(s string, now time.Time) (time.Time, error) {
	if s == "" {
		return time.Time{}, nil
	}
	if t, err := time.Parse(time.RFC3339Nano, s); err == nil {
		return t, nil
	}
	var d duration
	if err := d.Set(s); err != nil {
		return time.Time{}, usagef("--since: %q is neither a duration such as 10m nor a time in RFC 3339", s)
	}
	return now.Add(-time.Duration(d)), nil
}

func (a *app) printLine(line sandbox.LogLine, times, asJSON bool) error {
	if asJSON {
		text, err := json.Marshal(line)
		if err == nil {
			_, err = io.WriteString(a.stdout, graphicJSON(string(text))+"\n")
		}
		return err
	}
	out := a.stdout
	if line.Stream == "stderr" {
		out = a.stderr
	}
	text := line.Text
	if isTerminal(out) {
		text = escaped(text)
	}
	if times {
		text = line.Time.Format(time.RFC3339Nano) + " " + text
	}
	_, err := io.WriteString(out, text+"\n")
	return err
}

// escaped replaces what could control a terminal, and leaves tabs.
func escaped(text string) string {
	var b strings.Builder
	for _, r := range text {
		if r == '\t' || unicode.IsGraphic(r) {
			b.WriteRune(r)
		} else {
			b.WriteString(strings.Trim(fmt.Sprintf("%q", r), "'"))
		}
	}
	return b.String()
}
