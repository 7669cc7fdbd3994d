package harness

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"runtime/pprof"
	"strings"
	"testing"
	"time"

	"github.com/seed-1a2d6d8f/sandbox/internal/enginetest"
)

// LabelledGoroutines returns the stacks of a trial's goroutines, once there are none or the
// time is over.
func LabelledGoroutines(mark string, d time.Duration) string {
	for deadline := time.Now().Add(d); ; time.Sleep(10 * time.Millisecond) {
		var b bytes.Buffer
		pprof.Lookup("goroutine").WriteTo(&b, 1)
		var found []string
		for stack := range strings.SplitSeq(b.String(), "\n\n") {
			if strings.Contains(stack, fmt.Sprintf("%q", mark)) && !strings.Contains(stack, "runtime/pprof.Do") {
				found = append(found, stack)
			}
		}
		if len(found) == 0 || time.Now().After(deadline) {
			return strings.Join(found, "\n\n")
		}
	}
}

// Process returns this test binary as another process in the role, not yet started.
func Process(t *testing.T, role string, args ...string) *exec.Cmd {
	t.Helper()
	enginetest.Need(t)
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

// roles are programs that tests run as processes of their own: the test binary, started
// again with roleVar set.
var roles = map[string]func(args []string) error{}

const roleVar = "SANDBOX_TEST_ROLE"

// AddRole adds a program that tests run as a process of its own, see [Process]. It is
// called by an init function.
func AddRole(role string, program func(args []string) error) { roles[role] = program }

// StartProcess is a process in a role, killed when the test ends at the latest.
func StartProcess(t *testing.T, role string, args ...string) *exec.Cmd {
	t.Helper()
	cmd := Process(t, role, args...)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { Kill(cmd) })
	return cmd
}

// Ready starts a program in a role, and returns when it has printed a line, by which it has connected. goOn is
// the line that it waits for then.
func Ready(t *testing.T, cmd *exec.Cmd) (goOn func()) {
	t.Helper()
	cmd.Stderr = nil
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	bufio.NewReader(out).ReadString('\n')
	return func() { in.Write([]byte("\n")) }
}

// Kill kills a process and waits until it has ended.
func Kill(cmd *exec.Cmd) {
	cmd.Process.Kill()
	cmd.Wait()
}
