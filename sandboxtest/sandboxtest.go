// Package sandboxtest gives a test a sandbox of its own and takes it away again.
//
//	func TestReport(t *testing.T) {
//		sb := sandboxtest.New(t)
//		if got := sandboxtest.Run(t, sb, "node", "-p", "6*7"); got != "42\n" {
//			t.Errorf("node -p 6*7 = %q, want 42", got)
//		}
//	}
//
// A test that needs an engine fails without one; it is not skipped. Tests may run in
// parallel: each has another sandbox.
package sandboxtest

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/seed-1a2d6d8f/sandbox"
)

const (
	// stopTimeout is what a process left running by a test gets to heed SIGTERM.
	stopTimeout = 2 * time.Second
	// removeTimeout bounds the removal, which has no deadline of the test's any more.
	removeTimeout = time.Minute
)

// New makes a sandbox for t, unnamed unless an option names it, and removes it with
// its volumes when t and its subtests have ended, whatever t did with it in between.
// It fails t at once when there is no sandbox to be had, and at the end when something
// of it could not be removed. Processes that t leaves running get 2 s to end, unless
// [sandbox.WithStopTimeout] says otherwise.
//
// Should the test binary be killed, an unnamed sandbox ends by itself, as
// [sandbox.WithPersistent] describes.
func New(t testing.TB, opts ...sandbox.CreateOption) *sandbox.Sandbox {
	t.Helper()
	opts = append([]sandbox.CreateOption{sandbox.WithStopTimeout(stopTimeout)}, opts...)
	sb, err := sandbox.Create(t.Context(), opts...)
	if err != nil {
		t.Fatalf("make a sandbox: %v", err)
	}
	t.Cleanup(func() {
		t.Helper()
		// The test's own context has ended by now.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), removeTimeout)
		defer cancel()
		report, err := sb.Delete(ctx, sandbox.PreserveVolumes(false))
		if errors.Is(err, sandbox.ErrClosed) {
			// The test let go of the handle. A persistent sandbox is still there.
			report, err = sandbox.Delete(ctx, sb.ID(), sandbox.PreserveVolumes(false))
		}
		if err != nil && !errors.Is(err, sandbox.ErrNotFound) {
			t.Errorf("remove sandbox %s: %v\n%s", sb.Name(), err, report)
		}
	})
	return sb
}

// Run runs a command in sb and returns what it wrote to stdout. It fails t when the
// command does not succeed, with what it wrote to stderr. The test's context bounds it.
func Run(t testing.TB, sb *sandbox.Sandbox, name string, args ...string) string {
	t.Helper()
	out, err := sb.Command(t.Context(), name, args...).Output()
	if err != nil {
		var said string
		if exit := (*sandbox.ExitError)(nil); errors.As(err, &exit) {
			said = string(exit.Stderr)
		}
		t.Fatalf("%s: %v\n%s%s", strings.Join(append([]string{name}, args...), " "), err, out, said)
	}
	return string(out)
}
