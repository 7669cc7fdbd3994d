package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/spf13/cobra"

	"github.com/seed-1a2d6d8f/sandbox"
)

func (a *app) logsCommand() *cobra.Command {
	var (
		follow, times, asJSON bool
		tail                  lastLines
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
			o := sandbox.LogOptions{Follow: follow, Tail: int(tail)}
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
	c.Flags().VarP(&tail, "tail", "n", "start with this many of the last lines")
	c.Flags().StringVar(&since, "since", "", "skip lines that are older: a duration such as 10m or 2d, a time such as 2006-01-02T15:04:05, or Unix seconds")
	c.Flags().StringVar(&command, "command", "", "print only the lines of the detached command of this ID; \"\" is the main process")
	c.Flags().BoolVarP(&times, "timestamps", "t", false, "print the time of each line")
	jsonFlag(c, &asJSON)
	return c
}

// lastLines is the Tail of [sandbox.LogOptions], given as docker's: all, or a number, of which one below 0 is all, too.
type lastLines int

func (n *lastLines) Type() string { return "lines" }

func (n *lastLines) String() string {
	if *n == 0 {
		return "all"
	}
	return strconv.Itoa(max(int(*n), 0))
}

func (n *lastLines) Set(s string) error {
	i, err := strconv.Atoi(s)
	switch {
	case s == "all" || err == nil && i < 0:
		*n = 0
	case err != nil:
		return fmt.Errorf("%q is neither a number of lines nor \"all\"", s)
	case i == 0:
		*n = -1
	default:
		*n = lastLines(i)
	}
	return nil
}

// sinceTime parses a duration before now, Unix seconds or a time, as docker's command line does. A time without a zone
// has that of now.
func sinceTime(s string, now time.Time) (time.Time, error) {
	if s == "" {
		return time.Time{}, nil
	}
	if t, ok := unixTime(s); ok {
		return t, nil
	}
	var d duration
	if d.Set(s) == nil {
		return now.Add(-time.Duration(d)), nil
	}
	for _, layout := range []string{"2006-01-02", "2006-01-02T15", "2006-01-02T15:04", "2006-01-02T15:04:05"} {
		for _, zone := range []string{"", "Z07:00"} {
			if t, err := time.ParseInLocation(layout+zone, s, time.FixedZone(now.Zone())); err == nil {
				return t, nil
			}
		}
	}
	return time.Time{}, usagef("--since: %q is neither a duration such as 10m, nor a time such as 2006-01-02T15:04:05, nor Unix seconds", s)
}

// unixTime parses seconds since 1970, which may have a fraction. The engine takes no year of five digits.
func unixTime(s string) (t time.Time, ok bool) {
	seconds, fraction, _ := strings.Cut(s, ".")
	sec, err := strconv.ParseUint(seconds, 10, 37)
	nano, e := strconv.ParseUint((fraction + "000000000")[:9], 10, 32)
	return time.Unix(int64(sec), int64(nano)), err == nil && e == nil
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
		text = line.Time.UTC().Format("2006-01-02T15:04:05.000000000Z07:00") + " " + text
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
