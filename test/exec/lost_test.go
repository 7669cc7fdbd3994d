package exec_test

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/internal/enginetest"
	"github.com/seed-1a2d6d8f/sandbox/internal/record"
	"github.com/seed-1a2d6d8f/sandbox/test/harness"
)

// lingering keeps a session from ending for a while after SIGTERM, so that calls end before it does.
const lingering = "trap 'sleep 2; exit' TERM; echo ready; while :; do sleep 0.1; done"

// started starts a command that writes a line once it is ready.
func started(t *testing.T, cmd *sandbox.Cmd) {
	t.Helper()
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatalf("Start: %v", err)
	}
	if _, err := out.Read(make([]byte, 6)); err != nil {
		t.Fatalf("the command says nothing: %v", err)
	}
	go io.Copy(io.Discard, out)
}

// Whatever ends a session, a call that ends by it says so, and why, by one class.
func TestCallSaysWhyItsSessionEnded(t *testing.T) {
	t.Parallel()
	eng := harness.NewEngine(t)
	by := func(end func(context.Context, string) error) func(*testing.T, *sandbox.Sandbox) {
		return func(t *testing.T, sb *sandbox.Sandbox) {
			if err := end(t.Context(), record.ContainerName(sb.Name())); err != nil {
				t.Errorf("the end: %v", err)
			}
		}
	}
	for what, tt := range map[string]struct {
		opts []sandbox.CreateOption
		end  func(*testing.T, *sandbox.Sandbox) // nil ends by itself
		want string
		also error
	}{
		"stopped by another": {nil, func(t *testing.T, sb *sandbox.Sandbox) {
			other, err := harness.NewClient(t).Get(t.Context(), sb.Name())
			if err != nil {
				t.Errorf("Get: %v", err)
				return
			}
			defer other.Detach()
			if _, err := other.Stop(t.Context()); err != nil {
				t.Errorf("Stop: %v", err)
			}
		}, "stopped", sandbox.ErrNotRunning},
		"stopped by the engine": {nil, by(func(ctx context.Context, ref string) error { return eng.StopContainer(ctx, ref, 10*time.Second) }), "stopped", sandbox.ErrNotRunning},
		"killed":                {nil, by(func(ctx context.Context, ref string) error { return eng.KillContainer(ctx, ref, "KILL") }), "stopped", sandbox.ErrNotRunning},
		"removed":               {nil, by(func(ctx context.Context, ref string) error { return eng.RemoveContainer(ctx, ref, true) }), "removed", sandbox.ErrNotFound},
		"timeout":               {[]sandbox.CreateOption{sandbox.WithTimeout(40 * time.Second)}, nil, "timeout", sandbox.ErrNotRunning},
		"idle timeout":          {[]sandbox.CreateOption{sandbox.WithIdleTimeout(10 * time.Second), sandbox.IgnoreDetached()}, nil, "idle timeout", sandbox.ErrNotRunning},
		"out of memory":         {[]sandbox.CreateOption{sandbox.WithMemory(64 << 20)}, outOfMemory, "out of memory", sandbox.ErrNotRunning},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			sb := harness.NewSandbox(t, append(tt.opts, sandbox.WithName(harness.UniqueName(t)))...)
			t.Cleanup(func() { eng.RemoveVolume(context.Background(), record.WorkspaceName(sb.ID()), false) })
			ends := map[string]*sandbox.Cmd{}
			for name, argv := range map[string][]string{
				"killed by SIGTERM": {"sh", "-c", "echo ready; exec sleep 1000"},
				"handles SIGTERM":   {"sh", "-c", "trap 'exit 3' TERM; echo ready; while :; do sleep 0.1; done"},
				"lingers":           {"sh", "-c", lingering},
			} {
				for _, detached := range []bool{false, true} {
					cmd := sb.Command(t.Context(), argv[0], argv[1:]...)
					if cmd.Detached = detached; detached {
						name += ", detached"
					} else if what == "idle timeout" {
						continue // it would be a use
					}
					started(t, cmd)
					ends[name] = cmd
				}
			}
			if tt.end != nil {
				tt.end(t, sb)
			}
			for name, cmd := range ends {
				err := cmd.Wait()
				if name == "lingers" || name == "lingers, detached" {
					if what != "killed" && what != "removed" && what != "out of memory" && err == nil {
						continue // it had time to end well
					}
				}
				want := tt.want
				if what == "out of memory" && !harness.Raw(t, sb).State.OOMKilled {
					want = "stopped" // the engine has not heard of it
				}
				if !errors.Is(err, sandbox.ErrSessionLost) || !errors.Is(err, tt.also) || !strings.Contains(err.Error(), want) {
					t.Errorf("a command that %s: Wait = %v, want ErrSessionLost that says %q, and %v", name, err, want, tt.also)
				}
			}
		})
	}
}

// An engine may hear of the end of a session before it hears that memory ran out.
func TestCallSaysThatMemoryRanOutWhenTheEngineHearsOfItLate(t *testing.T) {
	t.Parallel()
	proxy := enginetest.NewProxy(t)
	made := harness.NewSandbox(t, sandbox.WithName(harness.UniqueName(t)), sandbox.WithMemory(64<<20))
	sb, err := harness.NewClient(t, sandbox.WithHost(proxy.Host())).Get(t.Context(), made.Name())
	if err != nil {
		t.Fatalf("Get: %v", err)
	}
	defer sb.Detach()
	proxy.TellOfMemoryLate(2)
	cmd := sb.Command(t.Context(), "sh", "-c", "echo ready; exec sleep 1000")
	started(t, cmd)
	outOfMemory(t, made)
	err = cmd.Wait()
	if told := harness.Raw(t, made).State.OOMKilled; !errors.Is(err, sandbox.ErrSessionLost) || strings.Contains(err.Error(), "out of memory") != told {
		t.Errorf("Wait = %v, want ErrSessionLost that says \"out of memory\": %t", err, told)
	}
}

// outOfMemory lets a sandbox run out of memory so that PID 1 is killed: root inside has it killed first.
func outOfMemory(t *testing.T, sb *sandbox.Sandbox) {
	sb.Command(t.Context(), "sh", "-c", "echo 1000 >/proc/1/oom_score_adj; echo -n 0 >/proc/self/oom_score_adj; dd if=/dev/zero of=/dev/null bs=256M count=1").Run()
}

// Calls that end while others delay the end of the session don't wait for it.
func TestFileCallAndDialSayWhyTheSessionEnds(t *testing.T) {
	t.Parallel()
	sb := harness.NewSandbox(t, sandbox.WithName(harness.UniqueName(t)), sandbox.WithStopTimeout(time.Minute))
	linger := sb.Command(t.Context(), "sh", "-c", "trap 'sleep 40; exit' TERM; echo ready; while :; do sleep 0.1; done")
	linger.Detached = true
	started(t, linger)
	f, err := sb.Open(t.Context(), "/dev/zero")
	if err != nil {
		t.Fatalf("Open: %v", err)
	}
	defer f.Close()
	listening := sb.Command(t.Context(), "node", "-e", `require("net").createServer().listen(3000, () => console.log("ready"))`)
	started(t, listening)
	other, err := harness.NewClient(t).Get(t.Context(), sb.Name())
	if err != nil {
		t.Fatal(err)
	}
	defer other.Detach()
	stopped := make(chan error, 1)
	go func() { stopped <- harness.Second(other.Stop(context.Background())) }()
	err = listening.Wait()
	if began := time.Now(); !errors.Is(err, sandbox.ErrSessionLost) || harness.ExitCode(err) != 143 {
		t.Errorf("Wait = %v, want ErrSessionLost and code 143", err)
	} else {
		for what, call := range map[string]func() error{
			"Read": func() error { // until its server has got the signal that ended the command
				for {
					if _, err := io.ReadFull(f, make([]byte, 1<<20)); err != nil || time.Since(began) > 38*time.Second {
						return err
					}
				}
			},
			"WaitPort": func() error {
				ctx, cancel := context.WithTimeout(t.Context(), 38*time.Second)
				defer cancel()
				return sb.WaitPort(ctx, 3001)
			},
		} {
			if err := call(); !errors.Is(err, sandbox.ErrSessionLost) || !strings.Contains(err.Error(), "stopped") {
				t.Errorf("%s while the session ends = %v, want ErrSessionLost that says \"stopped\"", what, err)
			}
		}
		if d := time.Since(began); d > 38*time.Second {
			t.Errorf("the calls took %v: they waited for the session's end", d)
		}
	}
	if err := <-stopped; err != nil {
		t.Errorf("Stop: %v", err)
	}
}

func TestCallSaysThatTheEngineIsGone(t *testing.T) {
	t.Parallel()
	proxy := enginetest.NewProxy(t)
	made := harness.NewSandbox(t, sandbox.WithName(harness.UniqueName(t)))
	sb, err := harness.NewClient(t, sandbox.WithHost(proxy.Host())).Get(t.Context(), made.Name())
	if err != nil {
		t.Fatalf("Get: %v", err)
	}
	defer sb.Detach()
	cmd := sb.Command(t.Context(), "sh", "-c", "echo ready; exec sleep 1000")
	started(t, cmd)
	f, err := sb.Open(t.Context(), "/dev/zero")
	if err != nil {
		t.Fatalf("Open: %v", err)
	}
	defer f.Close()
	proxy.Refuse(true)
	proxy.CloseAll()
	for what, err := range map[string]error{"Wait": cmd.Wait(), "Read": harness.Second(f.Read(make([]byte, 1)))} {
		if !errors.Is(err, sandbox.ErrSessionLost) || !errors.Is(err, sandbox.ErrEngineUnavailable) {
			t.Errorf("%s when the engine is gone = %v, want ErrSessionLost and ErrEngineUnavailable", what, err)
		}
		if e := (*sandbox.Error)(nil); errors.As(err, &e) && e.StatusCode() != 503 {
			t.Errorf("%s: the status is %d, want 503", what, e.StatusCode())
		}
	}
	proxy.Refuse(false)
}

// A dial in the middle of which the session ends.
func TestDialSaysThatTheSessionEnded(t *testing.T) {
	t.Parallel()
	sb := harness.NewSandbox(t, sandbox.WithName(harness.UniqueName(t)))
	// It listens, and accepts nothing: its queue is full soon, and a dial waits.
	listening := sb.Command(t.Context(), "node", "-e", `require("net").createServer().listen({port: 3000, backlog: 1}, () => { console.log("ready"); Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0) })`)
	started(t, listening)
	failed := make(chan error, 64)
	for range cap(failed) {
		go func() {
			var c net.Conn
			c, err := sb.DialContext(t.Context(), "tcp", "localhost:3000")
			if err == nil {
				c.Close()
			}
			failed <- err
		}()
	}
	for range 2 {
		<-failed // the first ones that the queue takes
	}
	if err := harness.NewEngine(t).KillContainer(t.Context(), record.ContainerName(sb.Name()), "KILL"); err != nil {
		t.Fatal(err)
	}
	lost := 0
	for range cap(failed) - 2 {
		if err := <-failed; errors.Is(err, sandbox.ErrSessionLost) && strings.Contains(err.Error(), "stopped") {
			lost++
		} else if err != nil {
			t.Errorf("DialContext when the session ended = %v, want ErrSessionLost that says \"stopped\"", err)
		}
	}
	if lost == 0 {
		t.Error("no dial was under way when the session ended")
	}
	if err := listening.Wait(); !errors.Is(err, sandbox.ErrSessionLost) {
		t.Errorf("Wait = %v, want ErrSessionLost", err)
	}
}

func TestNextCallSaysWhyTheLastSessionEnded(t *testing.T) {
	t.Parallel()
	sb := harness.NewSandbox(t, sandbox.WithTimeout(30*time.Second))
	harness.Eventually(t, "the session has ended", func() bool { return harness.Status(t, sb).State != sandbox.StateRunning })
	err := sb.Command(t.Context(), "true").Run()
	if !errors.Is(err, sandbox.ErrSessionLost) || !errors.Is(err, sandbox.ErrNotRunning) || !strings.Contains(err.Error(), "timeout") {
		t.Errorf("Run after the timeout = %v, want ErrSessionLost and ErrNotRunning", err)
	}
}

// Root inside can kill all but PID 1, and the servers of its own commands with them. That is the end of the
// commands, and neither of the session nor of the engine.
func TestCommandThatKillsItsServerWasKilled(t *testing.T) {
	t.Parallel()
	sb := harness.NewSandbox(t)
	for _, detached := range []bool{false, true} {
		began := harness.Status(t, sb).StartedAt
		cmd := sb.Command(t.Context(), "sh", "-c", "kill -9 -1; sleep 1000")
		cmd.Detached = detached
		err := cmd.Run()
		var exit *sandbox.ExitError
		if !errors.As(err, &exit) || exit.Signal != syscall.SIGKILL || exit.ExitCode() != 137 || errors.Is(err, sandbox.ErrEngineUnavailable) || errors.Is(err, sandbox.ErrSessionLost) {
			t.Errorf("detached %v: Run = %v, want an ExitError for SIGKILL alone", detached, err)
		}
		if got := harness.Run(t, sb, "echo", "on"); got != "on" || !harness.Status(t, sb).StartedAt.Equal(began) {
			t.Errorf("detached %v: afterwards a command prints %q", detached, got)
		}
	}
}
