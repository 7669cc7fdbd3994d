// Evaluator runs many snippets that nobody trusts, each in a sandbox of its own that can reach
// nobody, with limits of time, memory, processes and output. It prints a JSON object for each, and a
// count of the verdicts at the end. The sandboxes come from a pool, so that each snippet begins at once.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/seed-1a2d6d8f/sandbox"
)

// A snippet is a program, and what it should print.
type snippet struct {
	ID, Code, Want string
}

// A result is what became of a snippet. Verdict is "correct", "wrong", "failed", "timeout", "out of
// memory" or "too much output".
type result struct {
	ID         string `json:"id"`
	Verdict    string `json:"verdict"`
	ExitCode   int    `json:"exitCode"`
	Output     string `json:"output"`
	DurationMS int64  `json:"durationMs"`
}

const (
	atOnce    = 2
	maxOutput = 1 << 10
)

func main() {
	log.SetFlags(0)
	n := flag.Int("n", 200, "how many snippets to run")
	limit := flag.Duration("limit", 5*time.Second, "how long a snippet may run")
	flag.Parse()
	if err := run(context.Background(), snippets(*n), *limit); err != nil {
		log.Fatal(err)
	}
}

// snippets stands for what users, or a model, have sent.
func snippets(n int) []snippet {
	kinds := []snippet{
		{Code: "console.log(%d + 1)", Want: "%d+1"},
		{Code: "console.log(%d)", Want: "%d+1"},
		{Code: "console.log(%d + 1); require('fs').rmSync('/usr', {recursive: true, force: true})", Want: "%d+1"},
		{Code: "fetch('http://192.0.2.1/').catch(() => process.exit(%d %% 2 + 1))", Want: ""},
		{Code: "for (let i = %d; ; i++);", Want: ""},
		{Code: "const all = []; for (;;) all.push(Buffer.alloc(1 << 20, %d))", Want: ""},
		{Code: "for (;;) console.log('%d'.repeat(1000))", Want: ""},
	}
	all := make([]snippet, n)
	for i := range all {
		kind := kinds[i%len(kinds)]
		all[i] = snippet{ID: fmt.Sprint(i), Code: fmt.Sprintf(kind.Code, i)}
		if kind.Want != "" {
			all[i].Want = fmt.Sprintln(i + 1)
		}
	}
	return all
}

func run(ctx context.Context, all []snippet, limit time.Duration) (err error) {
	pool, err := sandbox.NewPool(ctx, atOnce,
		sandbox.WithNetworkPolicy(sandbox.DenyAll()),
		sandbox.WithVCPUs(0.5),
		sandbox.WithMemory(256<<20),
		sandbox.WithPidsLimit(64))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, pool.Close()) }()
	var mu sync.Mutex
	verdicts := map[string]int{}
	out := json.NewEncoder(os.Stdout)
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(atOnce)
	for _, s := range all {
		g.Go(func() error {
			r, err := evaluate(ctx, pool, s, limit)
			if err != nil {
				return fmt.Errorf("snippet %s: %w", s.ID, err)
			}
			mu.Lock()
			defer mu.Unlock()
			verdicts[r.Verdict]++
			return out.Encode(r)
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	return out.Encode(verdicts)
}

// evaluate runs a snippet. An error is not the snippet's fault.
func evaluate(ctx context.Context, pool *sandbox.Pool, s snippet, limit time.Duration) (r result, err error) {
	sb, err := pool.Create(ctx)
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, sb.Close()) }() // which deletes it
	if err := sb.WriteFile(ctx, "main.js", []byte(s.Code), 0o644); err != nil {
		return r, err
	}
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	text := limited{full: func() { stop(errOutput) }}
	cmd := sb.Command(ctx, "node", "main.js")
	cmd.Stdout, cmd.Stderr, cmd.Timeout = &text, &text, limit
	begin := time.Now()
	runErr := cmd.Run()
	r = result{ID: s.ID, Output: text.String(), DurationMS: time.Since(begin).Milliseconds()}
	exit, exited := errors.AsType[*sandbox.ExitError](runErr)
	switch {
	case exited:
		r.ExitCode = exit.ExitCode()
	case runErr != nil:
		r.ExitCode = -1
	}
	switch {
	case errors.Is(runErr, errOutput):
		r.Verdict = "too much output"
	case errors.Is(runErr, sandbox.ErrTimeout):
		r.Verdict = "timeout"
	case exited && exit.OutOfMemory, errors.Is(runErr, sandbox.ErrSessionLost):
		r.Verdict = "out of memory" // of one process, or of all together, which ends the session
	case exited:
		r.Verdict = "failed"
	case runErr != nil:
		return r, runErr
	case r.Output == s.Want:
		r.Verdict = "correct"
	default:
		r.Verdict = "wrong"
	}
	return r, nil
}

var errOutput = errors.New("the snippet writes too much")

// limited keeps the first bytes that are written to it, and calls full when there are more.
type limited struct {
	strings.Builder
	full func()
}

func (l *limited) Write(p []byte) (int, error) {
	if _, err := l.Builder.Write(p[:min(len(p), maxOutput-l.Len())]); err != nil {
		return 0, err
	}
	if l.Len() == maxOutput {
		l.full()
	}
	return len(p), nil
}
