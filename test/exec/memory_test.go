package exec_test

import (
	"errors"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/test/harness"
)

// small has less memory than the tests that use it need, which they do in turn.
var (
	small   = harness.Sharing(sandbox.WithMemory(64 << 20))
	filling sync.Mutex
)

func TestCommandKilledForMemorySaysSo(t *testing.T) {
	t.Parallel()
	sb := small(t)
	for what, tt := range map[string]struct {
		argv   []string
		signal syscall.Signal // 0 if the command exits
		oom    bool
	}{
		"the command itself":          {[]string{"dd", "if=/dev/zero", "of=/dev/null", "bs=256M", "count=1"}, syscall.SIGKILL, true},
		"the child of a shell":        {[]string{"sh", "-c", "dd if=/dev/zero of=/dev/null bs=256M count=1 2>/dev/null; exit $?"}, 0, true},
		"killed from inside":          {[]string{"sh", "-c", "kill -9 $$"}, syscall.SIGKILL, false},
		"a child killed from inside":  {[]string{"sh", "-c", "sh -c 'kill -9 $$'; exit $?"}, 0, false},
		"a shell that handles it":     {[]string{"sh", "-c", "dd if=/dev/zero of=/dev/null bs=256M count=1 2>/dev/null; exit 3"}, 0, false},
		"an exit code of its own":     {[]string{"sh", "-c", "exit 137"}, 0, false},
		"a failure that handles none": {[]string{"false"}, 0, false},
	} {
		for _, detached := range []bool{false, true} {
			filling.Lock()
			cmd := sb.Command(t.Context(), tt.argv[0], tt.argv[1:]...)
			cmd.Detached = detached
			err := cmd.Run()
			filling.Unlock()
			var exit *sandbox.ExitError
			if !errors.As(err, &exit) {
				t.Errorf("%s: Run = %v, want an *ExitError", what, err)
				continue
			}
			if exit.OutOfMemory != tt.oom || strings.Contains(err.Error(), "out of memory") != tt.oom {
				t.Errorf("%s, detached %v: Run = %v with OutOfMemory %v, want %v", what, detached, err, exit.OutOfMemory, tt.oom)
			}
			if signal, _ := exit.Signal.(syscall.Signal); signal != tt.signal {
				t.Errorf("%s, detached %v: Run = %v with the signal %v, want %v", what, detached, err, exit.Signal, tt.signal)
			}
			if !detached {
				continue
			}
			list, err := sb.Processes(t.Context())
			if err != nil {
				t.Fatalf("Processes: %v", err)
			}
			for _, p := range list {
				if p.ID == cmd.ID() && p.OutOfMemory != tt.oom {
					t.Errorf("%s: Processes say %+v, want OutOfMemory %v", what, p, tt.oom)
				}
			}
		}
	}
}

// Who kills a command does not mistake that for the kernel's, even if the kernel has killed a child of
// the command before.
func TestKilledCommandIsNotOutOfMemory(t *testing.T) {
	t.Parallel()
	sb := small(t)
	filling.Lock()
	defer filling.Unlock()
	for what, kill := range map[string]func(*sandbox.Cmd) error{
		"Kill":    (*sandbox.Cmd).Kill,
		"Signal":  func(c *sandbox.Cmd) error { return c.Signal(syscall.SIGKILL) },
		"Timeout": func(*sandbox.Cmd) error { return nil },
	} {
		cmd := sb.Command(t.Context(), "sh", "-c", "dd if=/dev/zero of=/dev/null bs=256M count=1 2>/dev/null; echo $?; exec sleep 1000")
		if what == "Timeout" {
			cmd.Timeout = 3 * time.Second
		}
		out, err := cmd.StdoutPipe()
		if err == nil {
			err = cmd.Start()
		}
		if err != nil {
			t.Fatal(err)
		}
		said := make([]byte, 4)
		if n, err := out.Read(said); string(said[:n]) != "137\n" {
			t.Fatalf("the child's exit code is %q, %v, want 137", said[:n], err)
		}
		if err := kill(cmd); err != nil {
			t.Errorf("%s: %v", what, err)
		}
		err = cmd.Wait()
		var exit *sandbox.ExitError
		if !errors.As(err, &exit) || exit.OutOfMemory || exit.ExitCode() != 137 {
			t.Errorf("%s: Wait = %v, want an *ExitError with code 137 without OutOfMemory", what, err)
		}
		if lost := errors.Is(err, sandbox.ErrSessionLost); lost || errors.Is(err, sandbox.ErrTimeout) != (what == "Timeout") {
			t.Errorf("%s: Wait = %v", what, err)
		}
	}
}
