package engine_test

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/seed-1a2d6d8f/sandbox/internal/engine"
)

const unprivilegedHost = "ENGINETEST_UNPRIVILEGED_HOST"

// openUnprivileged is what this test binary does as nobody: it prints what
// Open says.
func openUnprivileged() int {
	_, err := engine.Open(context.Background(), engine.Options{Host: os.Getenv(unprivilegedHost)})
	fmt.Print(err)
	return 0
}

// TestForbiddenSocketNamesTheGroup: permission is what most first runs lack.
func TestForbiddenSocketNamesTheGroup(t *testing.T) {
	t.Parallel()
	if os.Getuid() != 0 {
		t.Skip("only root can become nobody")
	}
	// Nobody can neither enter the test's folders nor run what is in them.
	dir, err := os.MkdirTemp("", "nb")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(self)
	if err != nil {
		t.Fatal(err)
	}
	program, socket := filepath.Join(dir, "unprivileged"), filepath.Join(dir, "s")
	if err := os.WriteFile(program, b, 0o755); err != nil {
		t.Fatal(err)
	}
	ln, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ln.Close() })
	if err := os.Chmod(socket, 0o660); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), program)
	cmd.Dir = "/"
	cmd.Env = []string{unprivilegedHost + "=unix://" + socket}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for _, want := range []string{"permission denied", socket, "usermod -aG docker", "DOCKER_HOST"} {
		if !strings.Contains(string(out), want) {
			t.Errorf("Open as nobody = %q, want it to mention %q", out, want)
		}
	}
}
