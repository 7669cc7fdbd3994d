// Package link_test tests what callers see of a connection to the engine that dies without a
// word.
package link_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/internal/enginetest"
	"github.com/seed-1a2d6d8f/sandbox/test/harness"
)

const (
	// deadBound is within what a dead connection is noticed: 22 s with the intervals in use, and what a busy machine adds.
	deadBound   = 45 * time.Second
	stopTimeout = 5 * time.Second
	// closeBound is that of Close, and something for a busy machine.
	closeBound = stopTimeout + 30*time.Second + 10*time.Second
)

// A deadCall is a call on a dead connection. Its error may be one of or, too.
type deadCall struct {
	do func() error
	or []error
}

// Each call on a dead connection returns, without a context that ends it, and says that the
// engine is unavailable. With -v the test prints how long each took. With make soak the intervals
// are those in use.
func TestDeadConnectionEndsEveryCall(t *testing.T) {
	t.Parallel()
	for what, engineToo := range map[string]bool{"streams alone": false, "the engine, as well": true} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			stall := (*enginetest.Proxy).StallStreams
			if engineToo {
				stall = (*enginetest.Proxy).StallAll
			}
			proxy := enginetest.NewProxy(t)
			c := harness.NewClient(t, sandbox.WithHost(proxy.Host()))
			create := func() *sandbox.Sandbox {
				sb, err := c.Create(t.Context(), sandbox.WithTimeout(time.Hour), sandbox.WithStopTimeout(stopTimeout))
				if err != nil {
					t.Fatal(err)
				}
				harness.Remove(t, harness.NewClient(t), sb.Name())
				return sb
			}
			sb, detached, closed := create(), create(), create()
			t.Cleanup(func() {
				stall(proxy, false)
				if err := sb.Close(); err != nil {
					t.Errorf("Close once the connection is back: %v", err)
				}
			})
			ctx := context.WithoutCancel(t.Context())
			cmd := sb.Command(ctx, "cat")
			in, err := cmd.StdinPipe()
			if err != nil {
				t.Fatal(err)
			}
			defer in.Close()
			killed, onTerminal := sb.Command(ctx, "sleep", "1000"), sb.Command(ctx, "sleep", "1000")
			onTerminal.TTY = true
			for _, c := range []*sandbox.Cmd{cmd, killed, onTerminal} {
				if err := c.Start(); err != nil {
					t.Fatal(err)
				}
			}
			file, err := sb.Open(ctx, "/etc/passwd")
			if err != nil {
				t.Fatal(err)
			}
			closing, err := sb.Open(ctx, "/etc/passwd")
			if err != nil {
				t.Fatal(err)
			}
			for _, other := range []*sandbox.Sandbox{detached, closed} {
				harness.Run(t, other, "true") // it is connected
			}
			logged := sb.Command(ctx, "echo", "a line")
			logged.Detached = true
			if err := logged.Start(); err != nil {
				t.Fatal(err)
			}
			following, followed := make(chan struct{}), make(chan error, 1)
			go func() {
				for _, err := range sb.Logs(t.Context(), sandbox.LogOptions{Follow: true}) {
					if err != nil {
						followed <- err
						return
					}
					close(following) // of one line
				}
				followed <- nil
			}()
			select {
			case <-following:
			case err := <-followed:
				t.Fatalf("Logs = %v", err)
			}
			from, to := t.TempDir(), filepath.Join(t.TempDir(), "to")
			stall(proxy, true)
			calls := map[string]deadCall{
				"Cmd.Wait":   {do: cmd.Wait},
				"Cmd.Signal": {func() error { return cmd.Signal(syscall.SIGTERM) }, []error{os.ErrProcessDone}},
				"Cmd.Kill":   {killed.Kill, []error{os.ErrProcessDone}},
				"Cmd.Resize": {func() error { return onTerminal.Resize(30, 100) }, []error{nil}}, // nothing answers it
				"Cmd.Stdin":  {func() error { return harness.Second(in.Write(make([]byte, 16<<20))) }, []error{io.ErrClosedPipe}},
				"Cmd.Run":    {do: sb.Command(ctx, "true").Run},
				"File.Read":  {do: func() error { return harness.Second(io.ReadFull(file, make([]byte, 1))) }},
				"File.Stat":  {do: func() error { return harness.Second(file.Stat()) }},
				"File.Close": {closing.Close, []error{nil}},
				"ReadFile":   {do: func() error { return harness.Second(sb.ReadFile(ctx, "/etc/passwd")) }},
				"CopyIn":     {do: func() error { return harness.Second(sb.CopyIn(ctx, from, "/workspace/from", sandbox.CopyOptions{})) }},
				"CopyOut":    {do: func() error { return harness.Second(sb.CopyOut(ctx, "/etc/passwd", to, sandbox.CopyOptions{})) }},
				"DialContext": {func() error { return harness.Second(sb.DialContext(ctx, "tcp", "127.0.0.1:1")) },
					[]error{syscall.ECONNREFUSED}}, // on the next connection
				"Detach": {do: detached.Detach},
				"Close":  {do: closed.Close},
			}
			if engineToo { // else the log goes on
				calls["Logs"] = deadCall{do: func() error { return <-followed }}
			} else {
				calls["Detach"] = deadCall{detached.Detach, []error{nil}} // on the next connection
				calls["Close"] = deadCall{closed.Close, []error{nil}}     // by the engine
				// These ask the engine first, and their context alone bounds that.
				calls["ExtendTimeout"] = deadCall{do: func() error { return sb.ExtendTimeout(ctx, time.Minute) }}
				calls["Egress"] = deadCall{do: func() error { return harness.Second(sb.Egress(ctx)) }}
			}
			type result struct {
				err  error
				took time.Duration
			}
			results := map[string]chan result{}
			began := time.Now()
			for name, call := range calls {
				ended := make(chan result, 1)
				results[name] = ended
				go func() { err := call.do(); ended <- result{err, time.Since(began)} }()
			}
			var lines []string
			for name, ended := range results {
				bound := deadBound
				if name == "Close" {
					bound = closeBound
				}
				select {
				case r := <-ended:
					lines = append(lines, fmt.Sprintf("%-13s %4.1f s", name, r.took.Seconds()))
					expected := slices.ContainsFunc(calls[name].or, func(or error) bool { return errors.Is(r.err, or) })
					if !expected && (!errors.Is(r.err, sandbox.ErrEngineUnavailable) || errors.Is(r.err, context.DeadlineExceeded)) {
						t.Errorf("%s = %v, want ErrEngineUnavailable", name, r.err)
					}
					if r.took > bound {
						t.Errorf("%s took %v, want at most %v", name, r.took, bound)
					}
				case <-time.After(harness.CallBound):
					t.Errorf("%s does not return", name)
				}
			}
			slices.Sort(lines)
			t.Logf("until the call returned:\n%s", strings.Join(lines, "\n"))
		})
	}
}
