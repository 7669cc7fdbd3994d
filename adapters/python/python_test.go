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

// The base classes are stubs: inspect_ai and Harbor themselves are not here.
func TestInspect(t *testing.T) { runCases(t, "inspect_cases.py", 2) }

func TestHarbor(t *testing.T) { runCases(t, "harbor_cases.py", 1) }

// Crabbox itself is not here either: the requests are those of its documentation.
func TestCrabbox(t *testing.T) { runCases(t, "crabbox_cases.py", 1) }

// runCases runs a script that prints the names of its sandboxes, of which none may be left.
func runCases(t *testing.T, script string, sandboxes int) {
	enginetest.Need(t)
	t.Parallel()
	program := filepath.Join(t.TempDir(), "sandbox")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-C", "../..", "-o", program, "./cmd/sandbox").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	c := exec.CommandContext(t.Context(), "/usr/bin/python3", "-B", "-W", "error", "testdata/"+script)
	c.Env = append(os.Environ(), "SANDBOX_PROGRAM="+program, "PYTHONPATH=.:testdata/stub", "DOCKER_BUILDKIT=0")
	var errOut strings.Builder
	c.Stderr = &errOut
	out, err := c.Output()
	if err != nil {
		t.Errorf("%v\n%s", err, errOut.String())
	}
	names := strings.Fields(string(out))
	if len(names) != sandboxes {
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
