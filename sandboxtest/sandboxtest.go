// Package sandboxtest creates sandboxes for tests, and removes them afterwards.
//
//	func TestReport(t *testing.T) {
//		sb := sandboxtest.New(t)
//		if got := sandboxtest.Run(t, sb, "node", "-p", "6*7"); got != "42\n" {
//			t.Errorf("node -p 6*7 = %q, want 42", got)
//		}
//	}
//
// Without an engine a test fails; it is not skipped unless it calls [SkipWithoutEngine]. Tests may
// run in parallel: each has a sandbox of its own. Of a test that fails, "go test -artifacts" keeps
// the sandbox's log, its egress and a listing of its files.
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
	// stopTimeout is the time that processes have to react to SIGTERM.
	stopTimeout = 2 * time.Second
	// removeTimeout bounds the removal, since the test's context has ended.
	removeTimeout = time.Minute
)

// New creates a sandbox for t, unnamed unless an option names it, and deletes it with its
// volumes when t and its subtests have ended, whatever t did with it. If it can't be created
// New fails t at once, and if it can't be deleted, at the end. Processes that t leaves running
// have 2 s to end, unless [sandbox.WithStopTimeout] sets another time.
//
// If t has failed, New first keeps what explains it in a directory of t's artifacts
// ([testing.T.ArtifactDir]) that has the sandbox's name: log.txt, egress.txt, files.txt with a
// listing of the workspace, and status.json. They stay with "go test -artifacts".
//
// The engine is that of the environment, unless [WithClient] is given. If the test binary is
// killed, an unnamed sandbox ends by itself, as described at [sandbox.WithPersistent].
func New(t testing.TB, opts ...sandbox.CreateOption) *sandbox.Sandbox {
	t.Helper()
	on := engineOf(opts)
	sb, err := on.create(t.Context(), quick(opts)...)
	if err != nil {
		t.Fatalf("create a sandbox: %v", err)
	}
	on.removeAfter(t, sb)
	return sb
}

// A Pool has sandboxes for tests that run already, see [sandbox.Pool]. It is safe for concurrent use.
type Pool struct {
	p  *sandbox.Pool
	on engine
}

// NewPool returns a pool of size sandboxes for t and its subtests, and closes it when they have ended.
// The options are those of [New], without a name. If there can't be a pool NewPool fails t at once, and
// if it can't be closed, at the end.
func NewPool(t testing.TB, size int, opts ...sandbox.CreateOption) *Pool {
	t.Helper()
	on := engineOf(opts)
	p, err := on.newPool(t.Context(), size, quick(opts)...)
	if err != nil {
		t.Fatalf("create a pool: %v", err)
	}
	t.Cleanup(func() {
		t.Helper()
		if err := p.Close(); err != nil {
			t.Errorf("close the pool: %v", err)
		}
	})
	return &Pool{p, on}
}

// New is [New] with a sandbox of the pool: it takes milliseconds if one waits there.
func (p *Pool) New(t testing.TB, opts ...sandbox.PoolOption) *sandbox.Sandbox {
	t.Helper()
	sb, err := p.p.Create(t.Context(), opts...)
	if err != nil {
		t.Fatalf("create a sandbox: %v", err)
	}
	p.on.removeAfter(t, sb)
	return sb
}

// quick returns the options of a sandbox that is stopped fast unless opts say otherwise.
func quick(opts []sandbox.CreateOption) []sandbox.CreateOption {
	return append([]sandbox.CreateOption{sandbox.WithStopTimeout(stopTimeout)}, opts...)
}

// engineOf is that of WithClient, or of the environment.
func engineOf(opts []sandbox.CreateOption) engine {
	on := engine{sandbox.Create, sandbox.NewPool, sandbox.Get, sandbox.Delete, sandbox.Inspect}
	for _, o := range opts {
		if c, is := o.(client); is {
			on = engine{c.Create, c.NewPool, c.Get, c.Delete, c.Inspect}
		}
	}
	return on
}

// engine is what New uses of a client.
type engine struct {
	create  func(context.Context, ...sandbox.CreateOption) (*sandbox.Sandbox, error)
	newPool func(context.Context, int, ...sandbox.CreateOption) (*sandbox.Pool, error)
	get     func(context.Context, string, ...sandbox.GetOption) (*sandbox.Sandbox, error)
	delete  func(context.Context, string, sandbox.DeleteOptions) (sandbox.DeleteReport, error)
	inspect func(context.Context, string) (sandbox.Status, error)
}

// removeAfter removes the sandbox when the test has ended.
func (on engine) removeAfter(t testing.TB, sb *sandbox.Sandbox) {
	t.Helper()
	t.Cleanup(func() {
		t.Helper()
		if t.Failed() {
			on.keep(t, sb)
		}
		on.remove(t, sb)
	})
}

func (on engine) remove(t testing.TB, sb *sandbox.Sandbox) {
	t.Helper()
	// The test's own context has ended by now.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), removeTimeout)
	defer cancel()
	report, err := sb.Delete(ctx, sandbox.DeleteOptions{Volumes: true})
	if errors.Is(err, sandbox.ErrClosed) {
		// The test closed the handle. A persistent sandbox still exists.
		report, err = on.delete(ctx, sb.ID(), sandbox.DeleteOptions{Volumes: true})
	}
	if err != nil && !errors.Is(err, sandbox.ErrNotFound) {
		t.Errorf("remove sandbox %s: %v\n%s", sb.Name(), err, report)
	}
}

// client is an option for New and NewPool alone.
type client struct {
	sandbox.CreateOption // it configures nothing of the sandbox
	*sandbox.Client
}

// WithClient makes [New] and [NewPool] create sandboxes with c, which the caller closes after the test. Of
// other calls it is no option. Default: the engine of the environment, as for
// [sandbox.Create].
func WithClient(c *sandbox.Client) sandbox.CreateOption {
	return client{sandbox.WithProgress(nil), c}
}

// SkipWithoutEngine skips t, with the reason, if the engine of the environment can't be used.
// Nothing else in this package skips a test because there is no engine: [New] fails it.
func SkipWithoutEngine(t testing.TB) {
	t.Helper()
	h, err := sandbox.CheckHealth(t.Context())
	if err != nil {
		t.Fatalf("check the engine: %v", err)
	}
	if !h.Healthy {
		t.Skipf("no engine: %s", h.Guidance)
	}
}

// Run runs a command in sb and returns its stdout. If the command fails, Run fails t with the
// command's stderr. The test's context bounds the command.
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
