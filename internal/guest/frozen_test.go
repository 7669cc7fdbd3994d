//go:build linux

package guest_test

import (
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/crypto/ssh"
	"golang.org/x/sys/unix"

	"github.com/seed-1a2d6d8f/sandbox/internal/guest"
	"github.com/seed-1a2d6d8f/sandbox/internal/guest/guesttest"
	"github.com/seed-1a2d6d8f/sandbox/internal/guest/wire"
)

// soon fails the test where f does not return although nothing is left to wait for.
func soon(t *testing.T, what string, f func()) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	select {
	case <-done:
	case <-time.After(5 * time.Minute):
		t.Fatalf("%s does not return", what)
	}
}

// freeze stops a process and returns when it stands still.
func freeze(t *testing.T, pid int) {
	t.Helper()
	if err := unix.Kill(pid, unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the guest is frozen", func() bool {
		threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range threads {
			b, err := os.ReadFile(file)
			if err == nil && !strings.Contains(string(b), ") T ") {
				return false
			}
		}
		return true
	})
}

func thaw(t *testing.T, pid int) {
	t.Helper()
	if err := unix.Kill(pid, unix.SIGCONT); err != nil {
		t.Fatal(err)
	}
}

// A guest that is frozen for good keeps nobody beyond the end of a context.
func TestContextEndsARequestToAFrozenGuest(t *testing.T) {
	t.Parallel()
	public, private, _ := ed25519.GenerateKey(nil)
	b := newBox(t, wire.Init{ControlKey: public})
	conn, cmd := serve(t, b.in(binary, wire.VerbServe)...)
	// What entered the namespaces waits for the guest, which may stay stopped.
	t.Cleanup(func() { cmd.Process.Kill() })
	entered := children(t, cmd.Process.Pid)
	if len(entered) != 1 {
		t.Fatalf("what entered: %v", entered)
	}
	pid := entered[0]
	// Whether a connection to PID 1 is there already, or is still to come.
	for _, there := range []bool{false, true} {
		if there {
			if _, err := conn.Control(t.Context(), private, wire.Control{Op: wire.OpStatus}); err != nil {
				t.Fatal(err)
			}
		}
		freeze(t, pid)
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		soon(t, "Control", func() {
			if _, err := conn.Control(ctx, private, wire.Control{Op: wire.OpStatus}); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("Control of a guest that is frozen: %v, want DeadlineExceeded", err)
			}
		})
		thaw(t, pid)
	}
	if _, err := conn.Control(t.Context(), private, wire.Control{Op: wire.OpStatus}); err != nil {
		t.Errorf("Control once it goes on: %v", err)
	}
}

// Who lets go of a command has done with it, also where the guest can't hear of it.
func TestCloseEndsACommandOfAFrozenGuest(t *testing.T) {
	t.Parallel()
	conn, cmd := serve(t)
	p, err := conn.Exec(t.Context(), wire.Exec{Args: sh("echo out; echo err >&2; sleep 1000"), Stdin: true})
	if err != nil {
		t.Fatal(err)
	}
	out, errs := newTail(p.Stdout()), newTail(p.Stderr())
	out.until(t, "out\n")
	errs.until(t, "err\n")
	freeze(t, cmd.Process.Pid)
	written := make(chan error)
	go func() {
		_, err := p.Stdin().Write(make([]byte, 8<<20)) // more than there is room for
		written <- err
	}()
	p.Close()
	soon(t, "Write", func() {
		if err := <-written; err != io.ErrClosedPipe {
			t.Errorf("Write after Close: %v, want ErrClosedPipe", err)
		}
	})
	soon(t, "Close of the input", func() { p.Stdin().Close() })
	soon(t, "Wait", func() {
		if _, err := p.Wait(); !errors.Is(err, guest.ErrConnectionLost) {
			t.Errorf("Wait after Close: %v, want ErrConnectionLost", err)
		}
	})
	for name, r := range map[string]io.Reader{"stdout": p.Stdout(), "stderr": p.Stderr()} {
		soon(t, "Read", func() {
			if b, err := io.ReadAll(r); len(b) > 0 || !errors.Is(err, guest.ErrConnectionLost) {
				t.Errorf("reading %s after Close: %q, %v, want ErrConnectionLost", name, b, err)
			}
		})
	}
	thaw(t, cmd.Process.Pid)
}

// Output that comes once Close has given up on the guest is nobody's, though a read still waits for it.
// It is not parallel: no other test's goroutines come meanwhile.
func TestOutputOfAReadThatWasGivenUpIsNobodys(t *testing.T) {
	say := make(chan struct{})
	conn, err := guest.Dial(t.Context(), guesttest.Serve(t, guesttest.Frozen(func(nc ssh.NewChannel) {
		ch, ok := guesttest.Start(nc)
		if !ok {
			return
		}
		<-say
		ch.Write([]byte("out"))
		ch.Stderr().Write([]byte("err"))
	})))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	p, err := conn.Exec(t.Context(), wire.Exec{Args: []string{"true"}})
	if err != nil {
		close(say)
		t.Fatal(err)
	}
	before := goleak.IgnoreCurrent()
	streams := map[string]io.Reader{"stdout": p.Stdout(), "stderr": p.Stderr()}
	read := func(when string) {
		var reads sync.WaitGroup
		for name, r := range streams {
			reads.Go(func() {
				b := make([]byte, 10)
				if n, err := r.Read(b); n > 0 || !errors.Is(err, guest.ErrConnectionLost) {
					t.Errorf("reading %s %s: %q, %v, want ErrConnectionLost", name, when, b[:n], err)
				}
			})
		}
		reads.Wait()
	}
	given := make(chan struct{})
	go func() {
		defer close(given)
		read("before Close")
	}()
	eventually(t, "both reads wait for the guest", func() bool {
		stacks := make([]byte, 1<<20)
		return strings.Count(string(stacks[:runtime.Stack(stacks, true)]), "guest.(*Process).with.func1(") >= len(streams)
	})
	p.Close()
	soon(t, "Read", func() { <-given })
	close(say)
	eventually(t, "the reads that were given up have ended", func() bool { return goleak.Find(before) == nil })
	read("once there is output")
}

// It is not parallel: no other test's goroutines come meanwhile.
func TestKillsOfAFrozenGuestEndWithTheConnection(t *testing.T) {
	conn, cmd := serve(t)
	before := goleak.IgnoreCurrent()
	kept := make([]*guest.Process, 100)
	for i := range kept {
		p, err := conn.Exec(t.Context(), wire.Exec{Args: []string{"sleep", "1000"}})
		if err != nil {
			t.Fatal(err)
		}
		kept[i] = p
	}
	freeze(t, cmd.Process.Pid)
	defer thaw(t, cmd.Process.Pid)
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	var kills sync.WaitGroup
	for _, p := range kept {
		kills.Go(func() {
			if err := p.Signal(ctx, int(unix.SIGKILL), true); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("Signal to a guest that is frozen: %v, want DeadlineExceeded", err)
			}
		})
	}
	soon(t, "Signal", kills.Wait)
	soon(t, "Close", func() { conn.Close() })
	if err := goleak.Find(before); err != nil {
		t.Errorf("after Close: %v", err)
	}
}
