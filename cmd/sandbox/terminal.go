package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode"

	"github.com/spf13/cobra"
	"golang.org/x/term"
	"golang.org/x/text/width"

	"github.com/seed-1a2d6d8f/sandbox"
)

func isTerminal(stream any) bool {
	f, ok := stream.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// confirm prints what is about to happen, and asks question until the answer is yes or no. No
// is an error.
func (a *app) confirm(ctx context.Context, yes bool, what, question string) error {
	if yes {
		return nil
	}
	if !a.interactive(a.stdin) {
		return errors.New("a confirmation is needed, and stdin is not a terminal: use --yes")
	}
	fmt.Fprintln(a.stderr, graphicLines(what))
	lines := bufio.NewReader(a.stdin)
	for {
		fmt.Fprint(a.stderr, question, " [y/n] ")
		answer, err := readLine(ctx, lines)
		if err != nil {
			fmt.Fprintln(a.stderr)
			return err
		}
		switch strings.ToLower(strings.TrimSpace(answer)) {
		case "y", "yes":
			return nil
		case "n", "no":
			return errCancelled
		}
		fmt.Fprintln(a.stderr, "Answer y, yes, n or no.")
	}
}

// errCancelled is the error of who was asked, and said no.
var errCancelled = errors.New("cancelled")

// confirmLoss is confirm before something is lost for good. A script, which nobody watches, is not
// asked.
func (a *app) confirmLoss(ctx context.Context, yes bool, what string, names []string) error {
	if yes || !a.interactive(a.stdin) {
		return nil
	}
	lines := make([]string, len(names))
	for i, name := range names {
		kind, more, both := strings.Cut(what, ",")
		if lines[i] = kind + " " + name; both {
			lines[i] += "," + more
		}
	}
	return a.confirm(ctx, false, strings.Join(lines, "\n"), "Delete for good?")
}

// yesFlag is the flag of subcommands that ask for a confirmation.
func yesFlag(c *cobra.Command, yes *bool) {
	c.Flags().BoolVarP(yes, "yes", "y", false, "don't ask for a confirmation")
}

// readLine reads a line, or returns when ctx ends; then the reading continues in vain.
func readLine(ctx context.Context, r *bufio.Reader) (string, error) {
	type result struct {
		line string
		err  error
	}
	got := make(chan result, 1)
	go func() {
		line, err := r.ReadString('\n')
		got <- result{line, err}
	}()
	select {
	case r := <-got:
		if errors.Is(r.err, io.EOF) {
			return "", errors.New("the input ended before an answer")
		}
		return r.line, r.err
	case <-ctx.Done():
		return "", ctx.Err()
	}
}

// progress shows the steps of long calls on stderr: on a terminal in one line that changes,
// otherwise in a line when a step begins that may take long, and another one every reportEvery.
type progress struct {
	out      io.Writer
	width    func() int // of the terminal; nil if out is none
	quiet    bool       // only warnings
	mu       sync.Mutex
	step     string
	last     time.Time
	terminal bool // the line on the terminal has text
}

const (
	barEvery    = 100 * time.Millisecond // more often nobody can read
	reportEvery = 10 * time.Second
)

func newProgress(out io.Writer) *progress {
	p := &progress{out: out}
	if isTerminal(out) {
		p.width = func() int { return columns(out) }
	}
	return p
}

// show is for [sandbox.WithProgress].
func (p *progress) show(now sandbox.Progress) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if warning := now.Text != "" && slices.Contains([]string{"container", "settings"}, now.Step); warning {
		p.erase()
		fmt.Fprintf(p.out, "sandbox: %s: %s\n", now.Step, graphic(now.Text))
		return
	}
	every := barEvery
	if p.width == nil {
		every = reportEvery
	}
	first := now.Step != p.step
	if p.quiet || !first && time.Since(p.last) < every {
		return
	}
	p.step, p.last = now.Step, time.Now()
	switch {
	case p.width != nil:
		fmt.Fprintf(p.out, "\r\x1b[K%s", barText(now, p.width()))
		p.terminal = true
	case !slices.Contains([]string{"image", "copy", "source", "commit"}, now.Step):
	case first:
		fmt.Fprintln(p.out, "sandbox:", stepText(sandbox.Progress{Step: now.Step, Text: now.Text}))
	default:
		fmt.Fprintln(p.out, "sandbox:", stepText(now))
	}
}

// copied is for [sandbox.CopyOptions].
func (p *progress) copied(now sandbox.CopyStatus) {
	p.show(sandbox.Progress{Step: "copy", Current: now.Bytes, Files: now.Files})
}

// clear removes the line on the terminal, before anything else is printed.
func (p *progress) clear() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.erase()
	p.step = ""
}

func (p *progress) erase() {
	if p.terminal {
		fmt.Fprint(p.out, "\r\x1b[K")
		p.terminal = false
	}
}

// barText is stepText after a bar, if the total is known, in fewer columns than the terminal's
// width, since in the last one it would wrap.
func barText(p sandbox.Progress, width int) string {
	text := stepText(p)
	if p.Total > 0 {
		const cells = 20
		full := int(min(p.Current, p.Total) * cells / p.Total)
		text = fmt.Sprintf("[%s%s] %s", strings.Repeat("#", full), strings.Repeat(".", cells-full), text)
	}
	return cut(text, width-1)
}

// cut returns the beginning of a text that fits into so many columns of a terminal.
func cut(text string, columns int) string {
	for i, r := range text {
		if columns -= columnsOf(r); columns < 0 {
			return text[:i]
		}
	}
	return text
}

// columnsOf is how many columns of a terminal a graphic character takes.
func columnsOf(r rune) int {
	if unicode.In(r, unicode.Mn, unicode.Me) {
		return 0
	}
	switch width.LookupRune(r).Kind() {
	case width.EastAsianWide, width.EastAsianFullwidth:
		return 2
	}
	return 1
}

// stepText describes a step and how far it is.
func stepText(p sandbox.Progress) string {
	text := p.Step
	if p.Text != "" {
		text += ": " + graphic(p.Text)
	}
	switch {
	case p.Total > 0:
		text = fmt.Sprintf("%s of %s  %s", bytesText(p.Current), bytesText(p.Total), text)
	case p.Current > 0:
		text = fmt.Sprintf("%s  %s", bytesText(p.Current), text)
	}
	if p.Files > 0 {
		text += fmt.Sprintf("  %d files", p.Files)
	}
	return text
}

// columns is the width of a terminal.
func columns(out io.Writer) int {
	if f, ok := out.(*os.File); ok {
		if width, _, err := term.GetSize(int(f.Fd())); err == nil && width > 0 {
			return width
		}
	}
	return 80
}
