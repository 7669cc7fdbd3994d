package lifecycle_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/internal/enginetest"
	"github.com/seed-1a2d6d8f/sandbox/internal/record"
	"github.com/seed-1a2d6d8f/sandbox/test/harness"
)

// Each test is given the name of the same sandbox, stopped, and a client for it.
func TestResume(t *testing.T) {
	t.Parallel()
	made := harness.NewSandbox(t, sandbox.WithName(harness.UniqueName(t)))
	for _, test := range []struct {
		what string
		test func(*testing.T, *sandbox.Client, string)
	}{
		{"NeverResume starts no session", testNeverResumeStartsNoSession},
		{"OnResume has the context of its caller", testOnResumeHasTheContextOfItsCaller},
		{"a panic in OnResume reaches its caller", testPanicInOnResumeReachesItsCaller},
		{"the next call calls OnResume for a caller that gave up", testNextCallCallsOnResume},
		{"a call that meets a start waits for OnResume", testCallThatMeetsAStartWaitsForOnResume},
		{"OnResume may end its handle", func(t *testing.T, c *sandbox.Client, name string) {
			testOnResumeMayEndItsHandle(t, c, made)
		}},
	} {
		t.Run(test.what, func(t *testing.T) {
			if _, err := made.Stop(t.Context()); err != nil {
				t.Fatalf("Stop: %v", err)
			}
			test.test(t, harness.NewClient(t), made.Name())
		})
	}
}

// returns fails the test where call does not return.
func returns(t *testing.T, what string, call func()) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		call()
	}()
	select {
	case <-done:
	case <-time.After(harness.CallBound):
		t.Fatalf("%s does not return", what)
	}
}

func testOnResumeMayEndItsHandle(t *testing.T, c *sandbox.Client, made *sandbox.Sandbox) {
	for _, test := range []struct {
		what string
		end  func(context.Context, *sandbox.Sandbox) error
	}{
		{"Close", func(_ context.Context, sb *sandbox.Sandbox) error { return sb.Close() }},
		{"Detach", func(_ context.Context, sb *sandbox.Sandbox) error { return sb.Detach() }},
		{"Delete", func(ctx context.Context, sb *sandbox.Sandbox) error {
			return harness.Second(sb.Delete(ctx, sandbox.DeleteOptions{Volumes: true}))
		}},
	} {
		if _, err := made.Stop(t.Context()); err != nil {
			t.Fatalf("Stop: %v", err)
		}
		returns(t, test.what+" in OnResume", func() {
			sb, err := c.Get(context.WithoutCancel(t.Context()), made.Name(), sandbox.OnResume(func(ctx context.Context, sb *sandbox.Sandbox) error {
				if err := sb.Command(ctx, "true").Run(); err != nil {
					return err
				}
				return test.end(ctx, sb)
			}))
			if err != nil {
				t.Errorf("Get: %v", err)
				return
			}
			if _, err := sb.ReadFile(t.Context(), "/etc/passwd"); !errors.Is(err, sandbox.ErrClosed) && !errors.Is(err, sandbox.ErrNotFound) {
				t.Errorf("ReadFile after %s: %v, want that the handle is closed", test.what, err)
			}
		})
	}
}

// A handle that never resumes uses the session that there is, and starts none, whichever call
// needs one.
func testNeverResumeStartsNoSession(t *testing.T, c *sandbox.Client, name string) {
	sb, err := c.Get(t.Context(), name, sandbox.NeverResume())
	if err != nil {
		t.Fatalf("Get: %v", err)
	}
	defer sb.Detach()
	ctx, cancel := context.WithTimeout(t.Context(), harness.CallBound)
	defer cancel()
	starts := map[string]func() error{
		"Start":       func() error { return harness.Second(sb.Start(t.Context())) },
		"Command":     func() error { return sb.Command(t.Context(), "true").Run() },
		"DialContext": func() error { return harness.Second(sb.DialContext(t.Context(), "tcp", "localhost:1")) },
		"WriteFile":   func() error { return sb.WriteFile(t.Context(), "f", nil, 0o644) },
		"SSH":         func() error { return harness.Second(sb.SSH(t.Context())) },
		"WaitPort":    func() error { return sb.WaitPort(ctx, 1) },
	}
	refuse := func(when string) {
		t.Helper()
		for what, call := range starts {
			if err := call(); !errors.Is(err, sandbox.ErrNotRunning) {
				t.Errorf("%s of a sandbox that is stopped %s: %v, want ErrNotRunning", what, when, err)
			}
		}
		if st, err := c.Inspect(t.Context(), name); err != nil || st.State != sandbox.StateStopped {
			t.Errorf("then it is %s, %v", st.State, err)
		}
	}
	refuse("from the start")
	other, err := c.Get(t.Context(), name)
	if err != nil {
		t.Fatalf("Get: %v", err)
	}
	defer other.Detach()
	if err := sb.Command(t.Context(), "true").Run(); err != nil {
		t.Errorf("a command in the session of another handle: %v", err)
	}
	if _, err := other.Stop(t.Context()); err != nil {
		t.Fatalf("Stop: %v", err)
	}
	refuse("while the handle is connected")
}

// A hook takes as long as it likes, and ends with its caller's context.
func testOnResumeHasTheContextOfItsCaller(t *testing.T, c *sandbox.Client, name string) {
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(t.Context()))
	defer cancel(nil)
	why := errors.New("the caller gave up")
	returns(t, "a hook whose caller gave up", func() {
		_, err := c.Get(ctx, name, sandbox.OnResume(func(ctx context.Context, sb *sandbox.Sandbox) error {
			if d, ok := ctx.Deadline(); ok {
				t.Errorf("the hook must end in %v, though its caller has no deadline", time.Until(d))
			}
			cancel(why)
			<-ctx.Done()
			return context.Cause(ctx)
		}))
		if !errors.Is(err, why) {
			t.Errorf("Get = %v, want the cause of its context's end", err)
		}
	})
}

func testPanicInOnResumeReachesItsCaller(t *testing.T, c *sandbox.Client, name string) {
	func() {
		defer func() {
			if got := recover(); got != "in the hook" {
				t.Errorf("recover() = %v, want the hook's panic", got)
			}
		}()
		c.Get(t.Context(), name, sandbox.OnResume(func(context.Context, *sandbox.Sandbox) error { panic("in the hook") }))
	}()
	sb, err := c.Get(t.Context(), name)
	if err != nil {
		t.Fatalf("Get after the panic: %v", err)
	}
	defer sb.Detach()
	if st := harness.Status(t, sb); st.State != sandbox.StateRunning {
		t.Errorf("after the panic it is %s, want running", st.State)
	}
}

// A caller may give up after the session has started and before OnResume was called. The
// session's next user calls it then.
func testNextCallCallsOnResume(t *testing.T, _ *sandbox.Client, name string) {
	proxy := enginetest.NewProxy(t)
	c := harness.NewClient(t, sandbox.WithHost(proxy.Host()))
	called := 0
	sb, err := c.Get(t.Context(), name, sandbox.WithoutResume(), sandbox.OnResume(func(ctx context.Context, sb *sandbox.Sandbox) error {
		called++
		return sb.Command(ctx, "true").Run()
	}))
	if err != nil {
		t.Fatal(err)
	}
	defer sb.Close()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	proxy.ArmAt("/start", enginetest.Cancel, cancel)
	if _, err := sb.Start(ctx); !errors.Is(err, context.Canceled) {
		t.Fatalf("Start = %v, want Canceled", err)
	}
	for range 2 {
		if err := sb.Command(t.Context(), "true").Run(); err != nil {
			t.Fatal(err)
		}
	}
	if called != 1 {
		t.Errorf("OnResume was called %d times, want once", called)
	}
}

// A call may find the session that another call of the handle is still starting. It waits for OnResume as that one does.
func testCallThatMeetsAStartWaitsForOnResume(t *testing.T, _ *sandbox.Client, name string) {
	started, met := make(chan struct{}), make(chan struct{})
	isStart, isExec := sync.OnceFunc(func() { close(started) }), sync.OnceFunc(func() { close(met) })
	host := harness.InFront(t, func(_ http.ResponseWriter, r *http.Request) bool {
		if strings.Contains(r.URL.Path, "/exec/") && strings.HasSuffix(r.URL.Path, "/start") {
			isExec()
		}
		return false
	}, func(r *http.Response) error {
		if path := r.Request.URL.Path; strings.Contains(path, "/containers/") && strings.HasSuffix(path, "/start") {
			isStart()
			select {
			case <-met:
			case <-r.Request.Context().Done():
			}
		}
		return nil
	})
	c := harness.NewClient(t, sandbox.WithHost(host))
	var returned atomic.Bool
	sb, err := c.Get(t.Context(), name, sandbox.WithoutResume(), sandbox.OnResume(func(_ context.Context, sb *sandbox.Sandbox) error {
		err := sb.Command(t.Context(), "sleep", "1").Run() // any context will do
		returned.Store(err == nil)
		return err
	}))
	if err != nil {
		t.Fatal(err)
	}
	defer sb.Close()
	var callers sync.WaitGroup
	callers.Go(func() {
		defer isStart()
		if _, err := sb.Start(t.Context()); err != nil {
			t.Errorf("Start: %v", err)
		}
	})
	<-started
	if err := sb.Command(t.Context(), "true").Run(); err != nil || !returned.Load() {
		t.Errorf("a command during the start: %v, after OnResume: %v", err, returned.Load())
	}
	callers.Wait()
}

// Start of a paused sandbox unpauses it: the session and the handle's commands go on.
func TestStartOfAPausedSandboxKeepsItsCommands(t *testing.T) {
	t.Parallel()
	for _, first := range []string{"Start", "another handle's Get"} {
		t.Run(first, func(t *testing.T) {
			t.Parallel()
			made := harness.NewSandbox(t, sandbox.WithName(harness.UniqueName(t)))
			before := harness.Status(t, made)
			sb, err := harness.NewClient(t).Get(t.Context(), made.Name(), sandbox.OnResume(func(context.Context, *sandbox.Sandbox) error {
				t.Error("OnResume was called, and no session was started")
				return nil
			}))
			if err != nil {
				t.Fatal(err)
			}
			defer sb.Detach()
			cmd := sb.Command(t.Context(), "cat")
			in, err := cmd.StdinPipe()
			if err != nil {
				t.Fatal(err)
			}
			var out bytes.Buffer
			cmd.Stdout = &out
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			harness.Pause(t, harness.NewEngine(t), record.ContainerName(sb.Name()))
			if st := harness.Status(t, sb); st.State != sandbox.StatePaused {
				t.Errorf("it is %s, want paused", st.State)
			}
			switch first {
			case "Start":
				_, err = sb.Start(t.Context())
			default:
				var other *sandbox.Sandbox
				if other, err = harness.NewClient(t).Get(t.Context(), sb.Name()); err == nil {
					defer other.Detach()
				}
			}
			if err != nil {
				t.Fatalf("%s: %v", first, err)
			}
			if _, err := io.WriteString(in, "it goes on"); err != nil {
				t.Errorf("write to the command after %s: %v", first, err)
			}
			in.Close()
			if err := cmd.Wait(); err != nil || out.String() != "it goes on" {
				t.Errorf("the command after %s: %q, %v; want that it goes on", first, &out, err)
			}
			if after := harness.Status(t, sb); !after.StartedAt.Equal(before.StartedAt) {
				t.Errorf("it was restarted: %v, %v", before.StartedAt, after.StartedAt)
			}
		})
	}
}
