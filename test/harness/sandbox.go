package harness

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/internal/enginetest"
	"github.com/seed-1a2d6d8f/sandbox/internal/record"
)

// Shared returns a running sandbox with every default, which tests use together. Who
// leaves something in it is a nuisance to the others.
var Shared = Sharing()

// Sharing is a function like [Shared] for a sandbox with options. It belongs to a package's variable.
func Sharing(opts ...sandbox.CreateOption) func(*testing.T) *sandbox.Sandbox {
	make := sync.OnceValues(func() (*sandbox.Sandbox, error) {
		c, err := Open()
		if err != nil {
			return nil, err
		}
		sb, err := c.Create(context.Background(), opts...)
		AtEnd(func() {
			if sb != nil {
				sb.Close()
			}
			c.Close()
		})
		return sb, err
	})
	return func(t *testing.T) *sandbox.Sandbox {
		t.Helper()
		enginetest.Need(t)
		sb, err := make()
		if err != nil {
			t.Fatalf("make the shared sandbox: %v", err)
		}
		return sb
	}
}

// ExitCode is that of a command's error, -1 for an error of another kind.
func ExitCode(err error) int {
	var exit *sandbox.ExitError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &exit):
		return exit.ExitCode()
	}
	return -1
}

// Quick keeps a session that will not end from making a test slow.
var Quick = sandbox.WithStopTimeout(time.Second)

// Second is the error of a call that returns something else, too.
func Second[T any](_ T, err error) error { return err }

// RemoveNow removes a sandbox and its volumes; that there is none is fine.
func RemoveNow(t *testing.T, c *sandbox.Client, name string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if _, err := c.Delete(ctx, name, sandbox.DeleteOptions{Volumes: true}); err != nil && !errors.Is(err, sandbox.ErrNotFound) {
		t.Errorf("Delete(%q): %v", name, err)
	}
}

// Run runs a command in the sandbox and returns what it wrote to stdout, trimmed.
func Run(t *testing.T, sb *sandbox.Sandbox, argv ...string) string {
	t.Helper()
	out, err := sb.Command(t.Context(), argv[0], argv[1:]...).Output()
	if err != nil {
		var exit *sandbox.ExitError
		if errors.As(err, &exit) {
			t.Fatalf("%q: %v\n%s", argv, err, exit.Stderr)
		}
		t.Fatalf("%q: %v", argv, err)
	}
	return strings.TrimSpace(string(out))
}

// Eventually waits until the condition holds, for three minutes, since the machine may be busy. It looks less often the longer it
// takes: what it asks of the engine would make others wait.
func Eventually(t *testing.T, what string, cond func() bool) {
	t.Helper()
	for began, pause := time.Now(), 20*time.Millisecond; !cond(); pause = min(pause*5/4, 250*time.Millisecond) {
		if time.Since(began) > 3*time.Minute {
			t.Fatalf("after three minutes it still does not hold that %s", what)
		}
		time.Sleep(pause)
	}
}

// Patiently calls try with a time that something is to happen within, and with ever longer ones if it has an error only after that
// time: what a slow machine has not done by then is no fault.
func Patiently(t *testing.T, within time.Duration, try func(within time.Duration) error) {
	t.Helper()
	for ; ; within *= 2 {
		began := time.Now()
		err := try(within)
		took := time.Since(began)
		switch {
		case err == nil:
			return
		case took < within, within > 2*time.Minute:
			t.Fatalf("within %v: %v", within, err)
		}
		t.Logf("again with more than %v, since it took %v: %v", within, took, err)
	}
}

// Write writes a file in the sandbox, and [Read] reads one: neither needs a program in it.
func Write(t *testing.T, sb *sandbox.Sandbox, name, text string) {
	t.Helper()
	if err := sb.WriteFile(t.Context(), name, []byte(text), 0o644); err != nil {
		t.Fatalf("WriteFile(%q): %v", name, err)
	}
}

// Read is what a file in the sandbox holds.
func Read(t *testing.T, sb *sandbox.Sandbox, name string) string {
	t.Helper()
	b, err := sb.ReadFile(t.Context(), name)
	if err != nil {
		t.Fatalf("ReadFile(%q): %v", name, err)
	}
	return string(b)
}

// Status is the sandbox's status.
func Status(t *testing.T, sb *sandbox.Sandbox) sandbox.Status {
	t.Helper()
	st, err := sb.Status(t.Context())
	if err != nil {
		t.Fatalf("Status: %v", err)
	}
	return st
}

// WaitForFile waits for a file in the sandbox.
func WaitForFile(t *testing.T, sb *sandbox.Sandbox, file string) {
	t.Helper()
	Eventually(t, file+" is there", func() bool { return sb.Command(t.Context(), "test", "-e", file).Run() == nil })
}

// Open is [sandbox.NewClient]. With SANDBOX_TEST_SWARM=1 the client is of the swarm that the engine is in, and
// has room for all that tests create: docs/cluster.md has what the tests find there.
func Open(opts ...sandbox.ClientOption) (*sandbox.Client, error) {
	if os.Getenv("SANDBOX_TEST_SWARM") != "" {
		opts = append(opts, sandbox.WithSwarm(sandbox.WithOvercommit(1000, 1000)))
	}
	return sandbox.NewClient(opts...)
}

// NewClient is a client of the test's own.
func NewClient(t *testing.T, opts ...sandbox.ClientOption) *sandbox.Client {
	t.Helper()
	enginetest.Need(t)
	return Unconnected(t, opts...)
}

// Unconnected is [NewClient] for a test that makes no call of the engine. A test that fails
// shows the warnings of its clients.
func Unconnected(t *testing.T, opts ...sandbox.ClientOption) *sandbox.Client {
	t.Helper()
	log := slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelWarn}))
	c, err := Open(append([]sandbox.ClientOption{sandbox.WithLogger(log)}, opts...)...)
	if err != nil {
		t.Fatalf("NewClient: %v", err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Errorf("Client.Close: %v", err)
		}
	})
	return c
}

// UniqueName is a name that no other test has.
func UniqueName(t *testing.T) string {
	t.Helper()
	return namePrefix + record.NewID()
}

// namePrefix begins the names of this process's tests.
var namePrefix = "t-" + record.NewID()[:6] + "-"

// NewSandbox makes a sandbox that is removed with all it has when the test ends.
func NewSandbox(t *testing.T, opts ...sandbox.CreateOption) *sandbox.Sandbox {
	t.Helper()
	sb, err := TrySandbox(t, opts...)
	if err != nil {
		t.Fatalf("Create: %v", err)
	}
	return sb
}

// TrySandbox is [NewSandbox] for a sandbox whose time may be over before it is there.
func TrySandbox(t *testing.T, opts ...sandbox.CreateOption) (*sandbox.Sandbox, error) {
	t.Helper()
	c := NewClient(t)
	sb, err := c.Create(t.Context(), opts...)
	if err != nil {
		return nil, err
	}
	Remove(t, c, sb.Name())
	t.Cleanup(func() { sb.Detach() })
	return sb, nil
}

// Remove has a sandbox of that name, if there is one, and its volumes removed when the
// test ends. It runs on a context of its own, since the test's is over by then.
func Remove(t *testing.T, c *sandbox.Client, name string) {
	t.Helper()
	t.Cleanup(func() { RemoveNow(t, c, name) })
}

// Nowhere is a client whose engine does not exist: what gets beyond the checks of
// arguments fails with ErrEngineUnavailable.
func Nowhere(t *testing.T) *sandbox.Client {
	t.Helper()
	return Unconnected(t, sandbox.WithHost("unix://"+t.TempDir()+"/none.sock"))
}

// CreateWith makes a sandbox of the client's with the mounts.
func CreateWith(t *testing.T, c *sandbox.Client, mounts []sandbox.Mount, opts ...sandbox.CreateOption) *sandbox.Sandbox {
	t.Helper()
	name := UniqueName(t)
	Remove(t, c, name)
	sb, err := c.Create(t.Context(), append(opts, sandbox.WithName(name), Quick, sandbox.WithMounts(mounts...))...)
	if err != nil {
		t.Fatalf("Create: %v", err)
	}
	t.Cleanup(func() { sb.Detach() })
	return sb
}

// SnapshotOf is a snapshot that is removed when the test ends, before which what stands
// on it has gone.
func SnapshotOf(t *testing.T, c *sandbox.Client, sb *sandbox.Sandbox, o sandbox.SnapshotOptions) sandbox.Snapshot {
	t.Helper()
	snap, err := sb.Snapshot(t.Context(), o)
	if err != nil {
		t.Fatalf("Snapshot: %v", err)
	}
	t.Cleanup(func() {
		if err := c.DeleteSnapshot(context.Background(), snap.ID); err != nil && !errors.Is(err, sandbox.ErrSnapshotNotFound) {
			t.Errorf("DeleteSnapshot: %v", err)
		}
	})
	return snap
}

// Inspect is Inspect on a client that knows nothing of the sandbox yet.
func Inspect(t *testing.T, name string) sandbox.Status {
	t.Helper()
	st, err := NewClient(t).Inspect(t.Context(), name)
	if err != nil {
		t.Fatalf("Inspect(%q): %v", name, err)
	}
	return st
}

// Update updates the sandbox, or fails the test.
func Update(t *testing.T, sb *sandbox.Sandbox, opts ...sandbox.UpdateOption) {
	t.Helper()
	if err := sb.Update(t.Context(), opts...); err != nil {
		t.Fatalf("Update: %v", err)
	}
}

// Cleanup selects the volumes of these names. Without names it selects none.
func Cleanup(names ...string) sandbox.CleanupOptions {
	return sandbox.CleanupOptions{Select: func(v sandbox.Volume) bool { return slices.Contains(names, v.Name) }}
}
