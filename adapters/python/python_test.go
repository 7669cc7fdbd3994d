// Package python has the tests of the modules for Python beside it.
package python

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/internal/enginetest"
	"github.com/seed-1a2d6d8f/sandbox/test/harness"
)

func TestMain(m *testing.M) { harness.Main(m) }

// The base class is a stub: inspect_ai itself is not here.
func TestInspect(t *testing.T) {
	enginetest.Need(t)
	t.Parallel()
	program := filepath.Join(t.TempDir(), "sandbox")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-C", "../..", "-o", program, "./cmd/sandbox").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	c := exec.CommandContext(t.Context(), "/usr/bin/python3", "-B", "-W", "error", "testdata/inspect_cases.py")
	c.Env = append(os.Environ(), "SANDBOX_PROGRAM="+program, "PYTHONPATH=.:testdata/stub")
	var errOut strings.Builder
	c.Stderr = &errOut
	out, err := c.Output()
	if err != nil {
		t.Errorf("%v\n%s", err, errOut.String())
	}
	names := strings.Fields(string(out))
	if len(names) != 2 {
		t.Errorf("sandboxes: %q", names)
	}
	client := harness.NewClient(t)
	for _, name := range names {
		if _, err := client.Inspect(t.Context(), name); !errors.Is(err, sandbox.ErrNotFound) {
			t.Errorf("sandbox %s is left: %v", name, err)
			harness.RemoveNow(t, client, name)
		}
	}
}
