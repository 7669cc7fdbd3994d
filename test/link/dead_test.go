// Package link_test tests what callers see of a connection to the engine that dies without a
// word.
package link_test

import (
	"context"
	"errors"
	"io"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/internal/enginetest"
	"github.com/seed-1a2d6d8f/sandbox/test/harness"
)

// Each call on a dead connection returns, without a context that ends it, and says that the
// engine is unavailable. With -v the test prints how long each took.
func TestDeadConnectionEndsEveryCall(t *testing.T) {
	t.Parallel()
	for what, stall := range map[string]func(*enginetest.Proxy, bool){
		"streams alone":       (*enginetest.Proxy).StallStreams,
		"the engine, as well": (*enginetest.Proxy).StallAll,
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			proxy := enginetest.NewProxy(t)
			sb, err := harness.NewClient(t, sandbox.WithHost(proxy.Host())).Create(t.Context())
			if err != nil {
				t.Fatal(err)
			}
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
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			file, err := sb.Open(ctx, "/etc/passwd")
			if err != nil {
				t.Fatal(err)
			}
			closing, err := sb.Open(ctx, "/etc/passwd")
			if err != nil {
				t.Fatal(err)
			}
			stall(proxy, true)
			began := time.Now()
			type result struct {
				err error
				d   time.Duration
			}
			results := map[string]chan result{}
			for call, do := range map[string]func() error{
				"Cmd.Wait":   cmd.Wait,
				"Cmd.Signal": func() error { return cmd.Signal(syscall.SIGTERM) },
				"File.Read":  func() error { _, err := io.ReadFull(file, make([]byte, 1)); return err },
				"File.Stat":  func() error { _, err := file.Stat(); return err },
				"File.Close": closing.Close,
				"Cmd.Run":    sb.Command(ctx, "true").Run,
				"ReadFile":   func() error { _, err := sb.ReadFile(ctx, "/etc/passwd"); return err },
				"DialContext": func() error {
					_, err := sb.DialContext(ctx, "tcp", "127.0.0.1:1")
					return err
				},
			} {
				c := make(chan result, 1)
				results[call] = c
				go func() { err := do(); c <- result{err, time.Since(began)} }()
			}
			var lines []string
			for call, c := range results {
				select {
				case r := <-c:
					lines = append(lines, call+" "+r.d.Round(100*time.Millisecond).String())
					refused := errors.Is(r.err, syscall.ECONNREFUSED) // of the next connection
					switch {
					case call == "File.Close" && r.err == nil, call == "DialContext" && refused, call == "Cmd.Signal" && errors.Is(r.err, os.ErrProcessDone):
					case !errors.Is(r.err, sandbox.ErrEngineUnavailable), errors.Is(r.err, context.DeadlineExceeded):
						t.Errorf("%s = %v, want ErrEngineUnavailable", call, r.err)
					}
				case <-time.After(harness.CallBound):
					t.Errorf("%s does not return", call)
				}
			}
			slices.Sort(lines)
			t.Logf("until the call returned:\n%s", strings.Join(lines, "\n"))
		})
	}
}
