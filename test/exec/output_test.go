package exec_test

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/test/harness"
)

// Output that does not end takes no more memory than its limit, and ends the command.
func TestOutputEndsAtItsLimit(t *testing.T) {
	t.Parallel()
	const limit = 100_000
	c := harness.NewClient(t, sandbox.WithLimits(sandbox.Limits{Output: limit}))
	sb, err := c.Create(t.Context(), sandbox.WithName(harness.UniqueName(t)))
	if err != nil {
		t.Fatal(err)
	}
	harness.Remove(t, c, sb.Name())
	t.Cleanup(func() { sb.Detach() })
	ctx, cancel := context.WithTimeout(t.Context(), harness.CallBound)
	defer cancel()
	output, combined := (*sandbox.Cmd).Output, (*sandbox.Cmd).CombinedOutput
	for _, tt := range []struct {
		script string
		call   func(*sandbox.Cmd) ([]byte, error)
		large  bool
	}{
		{"head -c 100000 /dev/zero", output, false},
		{"head -c 100001 /dev/zero", output, true},
		{"cat /dev/zero", output, true},
		{"trap '' TERM PIPE; while :; do head -c 1000 /dev/zero; done", output, true},
		{"head -c 50000 /dev/zero; head -c 50000 /dev/zero >&2", combined, false},
		{"head -c 50000 /dev/zero; head -c 50001 /dev/zero >&2", combined, true},
		{"cat /dev/zero >&2", combined, true},
	} {
		out, err := tt.call(sb.Command(ctx, "bash", "-c", tt.script))
		if !bytes.Equal(out, make([]byte, limit)) {
			t.Errorf("%s: %d bytes, want the first %d", tt.script, len(out), limit)
		}
		if !tt.large && err != nil {
			t.Errorf("%s: %v", tt.script, err)
		}
		if tt.large && (!errors.Is(err, sandbox.ErrTooLarge) || !strings.Contains(err.Error(), "Limits.Output")) {
			t.Errorf("%s: %v, want ErrTooLarge with Limits.Output", tt.script, err)
		}
	}
	harness.Eventually(t, "the commands have ended", func() bool {
		out, err := sb.Command(ctx, "ps", "-eo", "args=").Output()
		return err == nil && !strings.Contains(string(out), "/dev/zero")
	})

	detached := sb.Command(ctx, "sh", "-c", "cat /dev/zero | head -c 200000; exec sleep 1000")
	detached.Detached = true
	if err := detached.Start(); err != nil {
		t.Fatal(err)
	}
	again, err := sb.Process(ctx, detached.ID())
	if err != nil {
		t.Fatal(err)
	}
	if out, err := again.Output(); !errors.Is(err, sandbox.ErrTooLarge) || len(out) != limit {
		t.Errorf("Output of a detached command: %d bytes, %v, want ErrTooLarge", len(out), err)
	}
	if _, err := sb.Process(ctx, detached.ID()); err != nil {
		t.Errorf("the detached command: %v, want that it goes on", err)
	}
	if err := detached.Kill(); err != nil {
		t.Error(err)
	}
	detached.Wait()
}

// A detached command that was started with a stream for each of stdout and stderr loses neither to
// a reader that has one writer for both.
func TestBothStreamsOfADetachedCommandGoToOneWriter(t *testing.T) {
	t.Parallel()
	const limit = 1 << 20
	c := harness.NewClient(t, sandbox.WithLimits(sandbox.Limits{Output: limit}))
	sb, err := c.Create(t.Context(), sandbox.WithName(harness.UniqueName(t)))
	if err != nil {
		t.Fatal(err)
	}
	harness.Remove(t, c, sb.Name())
	t.Cleanup(func() { sb.Detach() })
	ctx, cancel := context.WithTimeout(t.Context(), harness.CallBound)
	defer cancel()
	start := func(script string) *sandbox.Cmd {
		t.Helper()
		cmd := sb.Command(ctx, "bash", "-c", script)
		cmd.Detached = true
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { cmd.Kill(); cmd.Wait() })
		again, err := sb.Process(ctx, cmd.ID())
		if err != nil {
			t.Fatal(err)
		}
		return again
	}
	const both = "for i in {1..2000}; do echo out$i; echo err$i >&2; done"
	check := func(call string, cmd *sandbox.Cmd, got string, err error) {
		t.Helper()
		// A part of one stream may end within a line, and one of the other follow it: letters are counted.
		if outs, errs := strings.Count(got, "u"), strings.Count(got, "e"); err != nil || outs != 2000 || errs != 2000 || cmd.Dropped() != 0 {
			t.Errorf("%s: %d lines of stdout and %d of stderr, %d bytes dropped, %v, want 2000, 2000, 0 and nil", call, outs, errs, cmd.Dropped(), err)
		}
	}
	combined := start(both)
	out, err := combined.CombinedOutput()
	check("CombinedOutput", combined, string(out), err)

	one := start(both)
	var buf bytes.Buffer
	one.Stdout, one.Stderr = &buf, &buf
	err = one.Run()
	check("Run with one writer", one, buf.String(), err)

	large := start("head -c 2000000 /dev/zero >&2; exec sleep 1000")
	if out, err := large.CombinedOutput(); !errors.Is(err, sandbox.ErrTooLarge) || len(out) != limit {
		t.Errorf("CombinedOutput of more than its limit: %d bytes, %v, want %d and ErrTooLarge", len(out), err, limit)
	}
}
