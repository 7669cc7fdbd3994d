package lifecycle_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/internal/engine"
	"github.com/seed-1a2d6d8f/sandbox/internal/record"
	"github.com/seed-1a2d6d8f/sandbox/test/harness"
)

func init() {
	// timeout-maker makes a sandbox with a timeout, leaves work in it that writes a
	// file when it is asked to end, and waits to be killed.
	harness.AddRole("timeout-maker", func(args []string) error {
		ctx := context.Background()
		c, err := harness.Open()
		if err != nil {
			return err
		}
		timeout, err := time.ParseDuration(args[1])
		if err != nil {
			return err
		}
		sb, err := c.Create(ctx, sandbox.WithName(args[0]), sandbox.WithTimeout(timeout))
		if err != nil {
			return err
		}
		work := sb.Command(ctx, "sh", "-c", "trap 'echo bye >/workspace/last; exit' TERM; echo started >/workspace/first; while :; do sleep 0.05; done")
		work.Detached = true
		if err := work.Start(); err != nil {
			return err
		}
		for {
			err := sb.Command(ctx, "test", "-s", "/workspace/first").Run()
			if err == nil {
				break
			}
			if errors.Is(err, sandbox.ErrSessionLost) || errors.Is(err, sandbox.ErrNotRunning) {
				return err
			}
		}
		fmt.Println("ready")
		select {}
	})
}

// ended waits until the session has ended, and returns the status and when that was, by
// the engine's clock.
func ended(t *testing.T, name string) (sandbox.Status, time.Time) {
	t.Helper()
	eng := harness.NewEngine(t)
	var got engine.Container
	harness.Eventually(t, "the session has ended", func() (is bool) {
		var err error
		got, err = eng.InspectContainer(t.Context(), "agent-sandbox-"+name)
		return err == nil && got.State == engine.StateExited
	})
	return harness.Inspect(t, name), got.FinishedAt
}

// started starts a session, unless there is one, and returns what the status says during it.
func started(t *testing.T, sb *sandbox.Sandbox) (st sandbox.Status) {
	t.Helper()
	harness.Eventually(t, "a session is started", func() bool {
		if _, err := sb.Start(t.Context()); err != nil {
			t.Logf("Start: %v", err)
			return false
		}
		st = harness.Inspect(t, sb.Name())
		return st.State == sandbox.StateRunning
	})
	return st
}

// The session ends on time, gracefully, when the program that made it is
// long gone; others see why, and get the files.
func TestTimeoutHoldsWhenTheMakerIsKilled(t *testing.T) {
	t.Parallel()
	c := harness.NewClient(t)
	var name string
	var timeout time.Duration
	harness.Patiently(t, 6*time.Second, func(within time.Duration) error {
		name, timeout = harness.UniqueName(t), within
		maker := harness.Process(t, "timeout-maker", name, timeout.String())
		out, err := maker.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := maker.Start(); err != nil {
			t.Fatal(err)
		}
		harness.Remove(t, c, name)
		ready := make([]byte, 5)
		_, err = out.Read(ready)
		maker.Process.Kill()
		maker.Wait()
		if err != nil {
			return fmt.Errorf("the maker said %q, %v", ready, err)
		}
		return nil
	})
	if list, err := c.List(t.Context(), sandbox.ListOptions{Prefix: name}); err != nil || len(list) != 1 {
		t.Errorf("List without the maker: %+v, %v", list, err)
	}

	st, seen := ended(t, name)
	if st.Reason != "timeout" || st.State != sandbox.StateStopped {
		t.Errorf("Inspect: state %q, reason %q; want stopped by timeout", st.State, st.Reason)
	}
	if took := seen.Sub(st.StartedAt); took < timeout-time.Second {
		t.Errorf("the session ended %v after its start, want %v", took, timeout)
	}
	sb, err := c.Get(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	defer sb.Close()
	if got := harness.Run(t, sb, "cat", "/workspace/first", "/workspace/last"); got != "started\nbye" {
		t.Errorf("files after the timeout: %q; the trap wrote its file if the end was graceful", got)
	}
	// The next session has its own full timeout.
	next := started(t, sb)
	if got := next.ExpiresAt.Sub(next.StartedAt); got != timeout || !next.StartedAt.After(st.EndedAt) {
		t.Errorf("the next session, started %v after the end of the first, expires %v after its start, want %v", next.StartedAt.Sub(st.EndedAt), got, timeout)
	}
}

// Nothing that root does inside keeps the session beyond its time.
func TestRootInsideCannotOutliveTheTimeout(t *testing.T) {
	t.Parallel()
	attacks := map[string]string{
		"signals": `trap '' TERM INT HUP; for s in STOP KILL SEGV ALRM 33 34; do kill -$s 1; done; while :; do kill -STOP 1; sleep 0.01; done`,
		"floods the control socket": `trap '' TERM; exec node -e '
			const net = require("net"); process.on("SIGTERM", () => {});
			const more = () => { const c = net.connect({path: "\0agent-sandbox/control"}); c.on("error", () => {}); c.write("x".repeat(70000)); };
			setInterval(() => { for (let i = 0; i < 50; i++) more(); }, 1)'`,
		"fills memory and tmpfs": `trap '' TERM; cat /dev/zero >/dev/shm/full; while :; do tail /dev/zero; done`,
		"forks to the limit":     `trap '' TERM; while :; do (trap '' TERM; exec sleep 1000) & done 2>/dev/null; while :; do sleep 1; done`,
	}
	eng := harness.NewEngine(t)
	for what, script := range attacks {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			var sb *sandbox.Sandbox
			var timeout time.Duration
			harness.Patiently(t, 3*time.Second, func(within time.Duration) (err error) {
				timeout = 2 * within
				sb, err = harness.TrySandbox(t, sandbox.WithName(harness.UniqueName(t)), sandbox.WithTimeout(timeout), sandbox.WithStopTimeout(time.Second),
					sandbox.WithMemory(96<<20), sandbox.WithVCPUs(0.5), sandbox.WithPidsLimit(200))
				if err != nil {
					return err
				}
				cmd := sb.Command(context.WithoutCancel(t.Context()), "sh", "-c", script)
				cmd.Detached = true
				if err := cmd.Start(); errors.Is(err, sandbox.ErrNotRunning) || errors.Is(err, sandbox.ErrSessionLost) {
					return err
				} else if err != nil {
					t.Fatal(err)
				}
				got, err := eng.InspectContainer(t.Context(), record.ContainerName(sb.Name()))
				if err != nil {
					t.Fatal(err)
				}
				if age := eng.Now().Sub(got.StartedAt); age > within {
					return fmt.Errorf("the attack begins %v after the session", age)
				}
				return nil
			})
			st, seen := ended(t, sb.Name())
			if st.Reason != "timeout" {
				t.Errorf("reason %q, want timeout", st.Reason)
			}
			// The stop timeout, and what a busy machine takes to clear up full memory.
			if took := seen.Sub(st.StartedAt); took < timeout-time.Second || took > timeout+time.Minute {
				t.Errorf("it ended %v after its start, want %v and a grace of 1s", took, timeout)
			}
		})
	}
}

// A session that was started again has its own time, and is not ended by what was
// left of the one before.
func TestTimeoutOfTheSessionBeforeEndsNothing(t *testing.T) {
	t.Parallel()
	var sb *sandbox.Sandbox
	var timeout time.Duration
	var first, began time.Time
	harness.Patiently(t, 6*time.Second, func(within time.Duration) (err error) {
		timeout = within
		if sb, err = harness.TrySandbox(t, sandbox.WithName(harness.UniqueName(t)), sandbox.WithTimeout(timeout), harness.Quick); err != nil {
			return err
		}
		first = harness.Status(t, sb).StartedAt
		if _, err := sb.Stop(t.Context()); err != nil {
			return err
		}
		began = time.Now() // before PID 1, whose start the engine may record late
		_, err = sb.Start(t.Context())
		return err
	})
	st, at := ended(t, sb.Name())
	if !st.StartedAt.After(first) || st.Reason != "timeout" || at.Sub(began) < timeout-100*time.Millisecond {
		t.Errorf("sessions began at %v and after %v, and the second ended at %v (%s), want %v after it began", first, began, at, st.Reason, timeout)
	}
}

// A timeout that passes while Stop waits for a process changes nothing for it.
func TestTimeoutWhileStopRuns(t *testing.T) {
	t.Parallel()
	var sb *sandbox.Sandbox
	harness.Patiently(t, 6*time.Second, func(timeout time.Duration) (err error) {
		sb, err = harness.TrySandbox(t, sandbox.WithName(harness.UniqueName(t)), sandbox.WithTimeout(timeout), sandbox.WithStopTimeout(timeout+2*time.Second), stubborn)
		if err != nil {
			return err
		}
		if err := sb.Command(t.Context(), "sh", "-c", "until [ -e up ]; do sleep 0.1; done").Run(); err != nil {
			return err
		}
		if state, err := sb.Stop(t.Context()); state != sandbox.StateStopped || err != nil {
			t.Errorf("Stop = %q, %v", state, err)
		}
		return nil
	})
	if st := harness.Inspect(t, sb.Name()); st.State != sandbox.StateStopped || st.Reason != "stopped" && st.Reason != "timeout" {
		t.Errorf("afterwards it is %s (%s)", st.State, st.Reason)
	}
	if _, err := sb.Start(t.Context()); err != nil {
		t.Errorf("Start: %v", err)
	}
}

// ExtendTimeout acts on the running session, and everyone sees it.
func TestExtendedSessionLivesOn(t *testing.T) {
	t.Parallel()
	var sb *sandbox.Sandbox
	var timeout time.Duration
	harness.Patiently(t, 6*time.Second, func(within time.Duration) (err error) {
		timeout = within
		if sb, err = harness.TrySandbox(t, sandbox.WithName(harness.UniqueName(t)), sandbox.WithTimeout(timeout)); err != nil {
			return err
		}
		return sb.ExtendTimeout(t.Context(), time.Hour)
	})
	st := harness.Inspect(t, sb.Name())
	if got, want := st.ExpiresAt.Sub(st.StartedAt), time.Hour+timeout; got != want {
		t.Errorf("another client sees it expire %v after its start, want %v", got, want)
	}
	harness.Eventually(t, "the first timeout has passed", func() bool { return time.Since(st.StartedAt) > timeout+time.Second/2 })
	if st := harness.Inspect(t, sb.Name()); st.State != sandbox.StateRunning {
		t.Errorf("after the timeout it had first it is %s (%s)", st.State, st.Reason)
	}
	// The next session has the timeout that was set, not the extended one.
	if _, err := sb.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	if st := started(t, sb); st.ExpiresAt.Sub(st.StartedAt) != timeout {
		t.Errorf("the next session expires %v after its start, want %v", st.ExpiresAt.Sub(st.StartedAt), timeout)
	}
}

// Extensions of several callers add up.
func testExtensionsAddUp(t *testing.T, sb *sandbox.Sandbox) {
	var all sync.WaitGroup
	for range 3 {
		other, err := harness.NewClient(t).Get(t.Context(), sb.Name())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { other.Detach() })
		all.Go(func() {
			for range 3 {
				if err := other.ExtendTimeout(t.Context(), time.Minute); err != nil {
					t.Errorf("ExtendTimeout: %v", err)
				}
			}
		})
	}
	all.Wait()
	st := harness.Inspect(t, sb.Name())
	if got, want := st.ExpiresAt.Sub(st.StartedAt), time.Hour+9*time.Minute; got != want {
		t.Errorf("after nine extensions by a minute it expires %v after its start, want %v", got, want)
	}
}

// ExtendTimeout refuses what can't be extended.
func TestExtendTimeoutNeedsASessionAndATimeout(t *testing.T) {
	t.Parallel()
	sb := harness.NewSandbox(t, sandbox.WithName(harness.UniqueName(t)))
	for _, d := range []time.Duration{0, -time.Second} {
		if err := sb.ExtendTimeout(t.Context(), d); !errors.Is(err, sandbox.ErrInvalidArgument) {
			t.Errorf("ExtendTimeout(%v): %v, want ErrInvalidArgument", d, err)
		}
	}
	if err := sb.ExtendTimeout(t.Context(), time.Hour); err != nil {
		t.Errorf("ExtendTimeout of a session without a timeout: %v", err)
	}
	if st := harness.Inspect(t, sb.Name()); !st.ExpiresAt.IsZero() {
		t.Errorf("a session without a timeout expires at %v", st.ExpiresAt)
	}
	if _, err := sb.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := sb.ExtendTimeout(t.Context(), time.Hour); !errors.Is(err, sandbox.ErrNotRunning) {
		t.Errorf("ExtendTimeout of a stopped sandbox: %v, want ErrNotRunning", err)
	}
	if st := harness.Inspect(t, sb.Name()); st.State != sandbox.StateStopped {
		t.Errorf("ExtendTimeout started a session: it is %s", st.State)
	}
}

// Other timeouts are refused.
func TestTimeoutTakesWholeMillisecondsFromZeroUp(t *testing.T) {
	t.Parallel()
	for _, d := range []time.Duration{-time.Second, time.Microsecond, time.Second + 1} {
		_, err := harness.NewClient(t).Create(t.Context(), sandbox.WithTimeout(d))
		if !errors.Is(err, sandbox.ErrInvalidArgument) || !strings.Contains(err.Error(), "WithTimeout") {
			t.Errorf("WithTimeout(%v): %v, want ErrInvalidArgument", d, err)
		}
	}
}

// A session that was frozen for longer than its lease does not end before its
// owner could be heard again.
func TestFrozenSessionKeepsItsLeaseSoak(t *testing.T) {
	harness.Soak(t)
	t.Parallel()
	sb := harness.NewSandbox(t)
	harness.Run(t, sb, "true")
	eng := harness.NewEngine(t)
	container := "agent-sandbox-" + sb.Name()
	harness.Pause(t, eng, container)
	time.Sleep(40 * time.Second)
	if err := eng.UnpauseContainer(t.Context(), container); err != nil {
		t.Fatal(err)
	}
	time.Sleep(10 * time.Second)
	if st := harness.Inspect(t, sb.Name()); st.State != sandbox.StateRunning {
		t.Errorf("ten seconds after a freeze of 40 s it is %s (%s)", st.State, st.Reason)
	}
}

// Who has a sandbox that was paused under them lets go of it, whatever the renewal
// of its lease waits for.
func TestPausedSandboxKeepsNobodySoak(t *testing.T) {
	harness.Soak(t)
	eng := harness.NewEngine(t)
	for what, letGo := range map[string]func(*sandbox.Sandbox) error{
		"Close": (*sandbox.Sandbox).Close,
		"Stop": func(sb *sandbox.Sandbox) error {
			_, err := sb.Stop(context.Background())
			return err
		},
		"Delete": func(sb *sandbox.Sandbox) error {
			_, err := sb.Delete(context.Background(), sandbox.DeleteOptions{Volumes: true})
			return err
		},
		"Detach": func(sb *sandbox.Sandbox) error {
			if err := sb.Detach(); err == nil {
				return errors.New("it was let go of, and could not be told")
			}
			return nil
		},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			sb := harness.NewSandbox(t)
			harness.Run(t, sb, "true")
			container := "agent-sandbox-" + sb.Name()
			harness.Pause(t, eng, container)
			t.Cleanup(func() { eng.UnpauseContainer(context.Background(), container) })
			time.Sleep(11 * time.Second) // a renewal is under way, and gets no answer
			done := make(chan error, 1)
			go func() { done <- letGo(sb) }()
			select {
			case err := <-done:
				if err != nil {
					t.Error(err)
				}
			case <-time.After(harness.CallBound):
				t.Error("it does not return")
			}
		})
	}
}
