package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/term"

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
			return errors.New("not confirmed")
		}
		fmt.Fprintln(a.stderr, "Answer y, yes, n or no.")
	}
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

// progress returns a function that shows the steps of a long call on stderr: on a terminal in a
// line that changes, otherwise the pulls of images, which take longest, each in a line.
func (a *app) progress() func(sandbox.Progress) {
	if !isTerminal(a.stderr) {
		var last string
		return func(p sandbox.Progress) {
			if p.Step == "image" && strings.HasPrefix(p.Text, "pulling ") && p.Text != last {
				last = p.Text
				fmt.Fprintln(a.stderr, "sandbox:", graphic(p.Text))
			}
		}
	}
	return a.bar.show
}

// bar is the line on a terminal that says how far a long call is.
type bar struct {
	out   io.Writer
	width func() int

	mu    sync.Mutex
	shown bool
	last  time.Time
	step  string
}

// barEvery is how often the line changes at most: more often nobody can read.
const barEvery = 100 * time.Millisecond

func (b *bar) show(p sandbox.Progress) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if p.Step == b.step && time.Since(b.last) < barEvery {
		return
	}
	b.step, b.last, b.shown = p.Step, time.Now(), true
	fmt.Fprintf(b.out, "\r\x1b[K%s", barText(p, b.width()))
}

// clear removes the line, before anything else is printed.
func (b *bar) clear() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.shown {
		fmt.Fprint(b.out, "\r\x1b[K")
		b.shown = false
	}
}

// barText is what the bar says of a step, in at most width columns.
func barText(p sandbox.Progress, width int) string {
	text := p.Step
	if p.Text != "" {
		text += ": " + graphic(p.Text)
	}
	switch {
	case p.Total > 0:
		const cells = 20
		full := int(min(p.Current, p.Total) * cells / p.Total)
		text = fmt.Sprintf("[%s%s] %s of %s  %s", strings.Repeat("#", full), strings.Repeat(".", cells-full), bytesText(p.Current), bytesText(p.Total), text)
	case p.Current > 0:
		text = fmt.Sprintf("%s  %s", bytesText(p.Current), text)
	}
	if p.Files > 0 {
		text += fmt.Sprintf("  %d files", p.Files)
	}
	if r := []rune(text); len(r) >= width {
		text = string(r[:max(0, width-1)])
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
