package sandbox_test

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/internal/enginetest"
)

// removeNow removes a sandbox and its volumes; that there is none is fine.
func removeNow(t *testing.T, c *sandbox.Client, name string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if _, err := c.Delete(ctx, name, sandbox.PreserveVolumes(false)); err != nil && !errors.Is(err, sandbox.ErrNotFound) {
		t.Errorf("Delete(%q): %v", name, err)
	}
}

// run runs a command in the sandbox and returns what it wrote to stdout, trimmed.
func run(t *testing.T, sb *sandbox.Sandbox, argv ...string) string {
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

// eventually waits until the condition holds, looking often, for a minute.
func eventually(t *testing.T, what string, cond func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !cond(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("after a minute it still does not hold that %s", what)
		}
	}
}

// process returns this test binary as another process in the role, not yet started.
func process(t *testing.T, role string, args ...string) *exec.Cmd {
	t.Helper()
	if roles[role] == nil {
		t.Fatalf("there is no role %q", role)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self, args...)
	cmd.Env = append(os.Environ(), roleVar+"="+role)
	cmd.Stderr = os.Stderr
	return cmd
}

// behind is an option for a client of an engine that is another one than the real one:
// one without what a Proxy takes from it.
func behind(t *testing.T, less ...func(*enginetest.Proxy)) sandbox.ClientOption {
	t.Helper()
	p := enginetest.NewProxy(t)
	for _, f := range less {
		f(p)
	}
	return sandbox.WithHost(p.Host())
}

// Engines that lack something, see behind.
var (
	withoutLayers   = (*enginetest.Proxy).HideLayers     // forks go by commit
	withoutOverlays = (*enginetest.Proxy).RefuseOverlays // what a snapshot has is copied
	elsewhereRun    = (*enginetest.Proxy).RunElsewhere   // directories are copied through the client
)
