//go:build linux

package guest_test

import (
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seed-1a2d6d8f/sandbox/internal/guest"
	"github.com/seed-1a2d6d8f/sandbox/internal/guest/wire"
)

// deadLink is a connection that, once dead, swallows what is written and gives nothing to
// read. It counts the writes.
type deadLink struct {
	io.ReadWriteCloser
	writes atomic.Int32
	dead   atomic.Bool
	once   sync.Once
	closed chan struct{}
}

func (l *deadLink) Read(b []byte) (int, error) {
	n, err := l.ReadWriteCloser.Read(b)
	if l.dead.Load() {
		<-l.closed
		return 0, io.ErrClosedPipe
	}
	return n, err
}

func (l *deadLink) Write(b []byte) (int, error) {
	l.writes.Add(1)
	if l.dead.Load() {
		return len(b), nil
	}
	return l.ReadWriteCloser.Write(b)
}

func (l *deadLink) Close() error {
	l.once.Do(func() { close(l.closed) })
	return l.ReadWriteCloser.Close()
}

// serveOver is serve over a link that can die.
func serveOver(t *testing.T, binary string) (*guest.Conn, *deadLink) {
	t.Helper()
	cmd := exec.Command(binary, wire.VerbServe)
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
	l := &deadLink{ReadWriteCloser: pipes{out, in}, closed: make(chan struct{})}
	conn, err := guest.Dial(t.Context(), l)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		conn.Close()
		cmd.Wait()
	})
	return conn, l
}

// Each wait ends when the link is found dead, with the reason.
func TestDeadLinkEndsEveryWait(t *testing.T) {
	t.Parallel()
	conn, link := serveOver(t, binary)
	why := errors.New("the engine is gone, too")
	var answering, checks atomic.Int32
	conn.KeepAliveEvery(guest.Intervals{Silent: 50 * time.Millisecond, Idle: 50 * time.Millisecond, Answer: 3 * time.Second}, func(context.Context, time.Duration) error {
		checks.Add(1)
		if !link.dead.Load() {
			answering.Add(1)
			return nil
		}
		return why
	})
	p, err := conn.Exec(t.Context(), wire.Exec{Args: []string{"cat"}, Stdin: true})
	if err != nil {
		t.Fatal(err)
	}
	files, err := conn.Files(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	h, _, err := files.Open(t.Context(), "/etc/passwd", wire.FlagRead, 0)
	if err != nil {
		t.Fatal(err)
	}
	link.dead.Store(true)
	results := map[string]chan error{}
	for what, call := range map[string]func() error{
		"Wait":   func() error { _, err := p.Wait(); return err },
		"output": func() error { _, err := io.ReadAll(p.Stdout()); return err },
		"Signal": func() error { return p.Signal(context.Background(), 15, false) },
		"read": func() error {
			_, err := files.ReadAt(context.Background(), h, make([]byte, 10), 0)
			return err
		},
		"stat":  func() error { _, err := files.Info(context.Background(), "/", true); return err },
		"close": func() error { return files.CloseHandle(context.Background(), h) },
		"Exec":  func() error { _, err := conn.Exec(context.Background(), wire.Exec{Args: []string{"true"}}); return err },
		"dial":  func() error { _, err := conn.DialContext(context.Background(), "tcp", "127.0.0.1:1"); return err },
	} {
		result := make(chan error, 1)
		results[what] = result
		go func() { result <- call() }()
	}
	for what, result := range results {
		soon(t, what, func() {
			if err := <-result; !errors.Is(err, guest.ErrConnectionLost) {
				t.Errorf("%s = %v, want ErrConnectionLost", what, err)
			}
		})
	}
	soon(t, "the end of the connection", func() { <-conn.Done() })
	if !errors.Is(conn.Err(), why) {
		t.Errorf("Err = %v, want that it says why", conn.Err())
	}
	if checks.Load() == answering.Load() {
		t.Error("nobody was asked about the silence")
	}
}

// An idle guest answers keepalives: nobody is asked about it.
func TestIdleConnectionIsKept(t *testing.T) {
	t.Parallel()
	conn, link := serveOver(t, binary)
	conn.KeepAliveEvery(guest.Intervals{Silent: time.Hour, Idle: 10 * time.Millisecond, Answer: time.Minute}, func(context.Context, time.Duration) error {
		t.Error("the guest answers, and its silence is checked")
		return errors.New("silent")
	})
	before := link.writes.Load()
	eventually(t, "keepalives are sent", func() bool { return link.writes.Load() >= before+1 })
	if out := run(t, conn, wire.Exec{Args: []string{"echo", "on"}}); out.stdout != "on\n" {
		t.Errorf("a command on an idle connection said %q", out.stdout)
	}
}

// A command lasts on its connection until it has ended. A file server counts for nothing: each call on it waits for its
// answer.
func TestKeepalivesAreForThoseWhoWait(t *testing.T) {
	t.Parallel()
	conn, link := serveOver(t, binary)
	conn.KeepAliveEvery(guest.Intervals{Silent: 10 * time.Millisecond, Idle: time.Hour, Answer: 10 * time.Millisecond}, func(context.Context, time.Duration) error {
		return nil
	})
	files, err := conn.Files(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer files.Close()
	if _, err := files.Info(t.Context(), "/", true); err != nil {
		t.Fatal(err)
	}
	if conn.Lasts() {
		t.Error("a file server counts as a command")
	}
	p, err := conn.Exec(t.Context(), wire.Exec{Args: []string{"cat"}, Stdin: true})
	if err != nil {
		t.Fatal(err)
	}
	before := link.writes.Load()
	eventually(t, "keepalives are sent while a command runs", func() bool { return link.writes.Load() >= before+5 })
	p.Stdin().Close()
	if _, err := p.Wait(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "nothing lasts after the command", func() bool { return !conn.Lasts() })
}

// A guest may be silent for as long as its sandbox is paused.
func TestPausedGuestIsWaitedFor(t *testing.T) {
	t.Parallel()
	conn, cmd := serve(t)
	var checks atomic.Int32
	conn.KeepAliveEvery(guest.Intervals{Silent: 10 * time.Millisecond, Idle: 10 * time.Millisecond, Answer: 20 * time.Millisecond}, func(context.Context, time.Duration) error {
		checks.Add(1)
		return nil
	})
	p, err := conn.Exec(t.Context(), wire.Exec{Args: []string{"cat"}, Stdin: true})
	if err != nil {
		t.Fatal(err)
	}
	freeze(t, cmd.Process.Pid)
	before := checks.Load()
	eventually(t, "the silence is checked again and again", func() bool { return checks.Load() >= before+3 })
	thaw(t, cmd.Process.Pid)
	p.Stdin().Close()
	soon(t, "Wait", func() {
		if exit, err := p.Wait(); err != nil || exit.Code != 0 {
			t.Errorf("Wait = %+v, %v, want that the command went on", exit, err)
		}
	})
}

// The commands of a client that has vanished end, though nothing tells the guest.
func TestCommandsOfAVanishedClientEnd(t *testing.T) {
	t.Parallel()
	quick := filepath.Join(t.TempDir(), "guest")
	build := exec.Command("go", "build", "-o", quick, "-ldflags", "-X github.com/seed-1a2d6d8f/sandbox/internal/guest/cmd/sshserver.silenceTick=100ms", "./cmd")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	conn, link := serveOver(t, quick)
	p, err := conn.Exec(t.Context(), wire.Exec{Args: []string{"sleep", "1000"}})
	if err != nil {
		t.Fatal(err)
	}
	link.dead.Store(true)
	eventually(t, "the command of the vanished client ends", func() bool { return !alivePid(p.Started().Pid) })
}
