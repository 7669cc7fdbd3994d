package sandbox_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/seed-1a2d6d8f/sandbox"
)

// WithPidsLimit bounds what a fork bomb can be, and leaves the sandbox usable.
func TestPidsLimitBoundsForks(t *testing.T) {
	t.Parallel()
	sb := newSandbox(t, sandbox.WithName(uniqueName(t)), sandbox.WithPidsLimit(64))
	got, err := directly(t).InspectContainer(t.Context(), "agent-sandbox-"+sb.Name())
	if err != nil || got.PidsLimit != 64 {
		t.Errorf("the container's limit is %d (%v), want 64", got.PidsLimit, err)
	}
	out, _ := sb.Command(t.Context(), "sh", "-c", "n=0; while [ $n -lt 100 ]; do sleep 100 & n=$((n+1)); done 2>&1; echo all").CombinedOutput()
	if strings.Contains(string(out), "all") || !strings.Contains(string(out), "fork") {
		t.Errorf("a hundred processes started under a limit of 64: %s", out)
	}
	if got := run(t, sb, "echo", "alive"); got != "alive" {
		t.Errorf("after the fork bomb: %q", got)
	}
}

func TestDefaultPidsLimit(t *testing.T) {
	t.Parallel()
	sb := newSandbox(t)
	got, err := directly(t).InspectContainer(t.Context(), "agent-sandbox-"+sb.Name())
	if err != nil || got.PidsLimit != sandbox.DefaultPidsLimit {
		t.Errorf("the container's limit is %d (%v), want %d", got.PidsLimit, err, sandbox.DefaultPidsLimit)
	}
}

func TestOCIRuntimeIsTheEngines(t *testing.T) {
	t.Parallel()
	c := newClient(t)
	_, err := c.Create(t.Context(), sandbox.WithOCIRuntime("no-such-runtime"))
	if !errors.Is(err, sandbox.ErrUnsupported) || !strings.Contains(err.Error(), "runc") {
		t.Errorf("WithOCIRuntime of none: %v, want ErrUnsupported with those there are", err)
	}
	sb := newSandbox(t, sandbox.WithOCIRuntime("runc"))
	got, err := directly(t).InspectContainer(t.Context(), "agent-sandbox-"+sb.Name())
	if err != nil || got.Runtime != "runc" {
		t.Errorf("the container's runtime is %q (%v), want runc", got.Runtime, err)
	}
}

func TestHardeningOptionsAreChecked(t *testing.T) {
	t.Parallel()
	_, err := newClient(t).Create(t.Context(), sandbox.WithPidsLimit(3), sandbox.WithOCIRuntime(""))
	if !errors.Is(err, sandbox.ErrInvalidArgument) || !strings.Contains(err.Error(), "WithPidsLimit") || !strings.Contains(err.Error(), "WithOCIRuntime") {
		t.Errorf("Create with two wrong options: %v, want both complaints", err)
	}
}
