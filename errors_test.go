package sandbox_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os/exec"
	"strings"
	"testing"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/internal/engine"
	"github.com/seed-1a2d6d8f/sandbox/test/harness"
)

// A sentinel's text and status code are a contract.
func TestSentinelsHaveTextAndStatusCode(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		err  error
		text string
		code int
	}{
		{sandbox.ErrNotFound, "Sandbox not found", 404},
		{sandbox.ErrExists, "Sandbox already exists", 409},
		{sandbox.ErrForeign, "Name is held by something that is not a sandbox", 409},
		{sandbox.ErrInvalidArgument, "Invalid argument", 400},
		{sandbox.ErrVolumeInUse, "Volume is in use by running sandbox", 409},
		{sandbox.ErrVolumeNotFound, "Volume not found", 404},
		{sandbox.ErrSnapshotNotFound, "Snapshot not found", 404},
		{sandbox.ErrProcessNotFound, "Process not found", 404},
		{sandbox.ErrImageNotFound, "Image not found", 404},
		{sandbox.ErrEngineUnavailable, "Docker Engine unavailable", 503},
		{sandbox.ErrUnsupported, "Not supported by this engine", 501},
		{sandbox.ErrNotRunning, "Sandbox is not running", 409},
		{sandbox.ErrSessionLost, "Session lost", 409},
		{sandbox.ErrClosed, "Sandbox handle is closed", 409},
		{sandbox.ErrTimeout, "Timed out", 504},
		{sandbox.ErrTooLarge, "Too large", 413},
		{context.DeadlineExceeded, "context deadline exceeded", 504},
		{context.Canceled, "context canceled", 499},
		{errors.New("else"), "else", 500},
	} {
		err := error(&sandbox.Error{Op: "verb", Name: "a b", Err: tt.err})
		if got := err.(*sandbox.Error).StatusCode(); got != tt.code {
			t.Errorf("StatusCode of %v = %d, want %d", tt.err, got, tt.code)
		}
		if want := `sandbox: verb "a b": ` + tt.text; err.Error() != want {
			t.Errorf("it reads %q, want %q", err.Error(), want)
		}
		if !errors.Is(err, tt.err) {
			t.Errorf("errors.Is does not find %v", tt.err)
		}
	}
	if got, want := (&sandbox.Error{Op: "list", Err: sandbox.ErrClosed}).Error(), "sandbox: list: Sandbox handle is closed"; got != want {
		t.Errorf("without a name it reads %q, want %q", got, want)
	}
}

// failures are calls that fail, each for its own reason.
func failures(t *testing.T) map[string]error {
	t.Helper()
	c, sb := harness.NewClient(t), harness.Shared(t)
	fails := map[string]error{}
	_, fails["get"] = c.Get(t.Context(), harness.UniqueName(t))
	_, fails["inspect"] = c.Inspect(t.Context(), "../x")
	_, fails["create"] = c.Create(t.Context(), sandbox.WithName(sb.Name()))
	_, fails["get or create"] = harness.Nowhere(t).GetOrCreate(t.Context(), "a")
	_, fails["delete"] = c.Delete(t.Context(), harness.UniqueName(t), sandbox.DeleteOptions{})
	_, fails["list"] = harness.Nowhere(t).List(t.Context(), sandbox.ListOptions{})
	fails["exec"] = sb.Command(t.Context(), "no-such-program").Run()
	_, e := sb.Process(t.Context(), "nobody")
	fails["exec "] = e
	return fails
}

// Wrapped once, at the exported edge.
func TestErrorsSayOnceWhereTheyHappened(t *testing.T) {
	t.Parallel()
	for op, err := range failures(t) {
		var e *sandbox.Error
		if !errors.As(err, &e) || e.Op != strings.TrimSpace(op) {
			t.Errorf("%s: %v is no *Error of that operation", op, err)
			continue
		}
		if n := strings.Count(err.Error(), "sandbox: "); n != 1 || !strings.HasPrefix(err.Error(), "sandbox: "+e.Op) {
			t.Errorf("%s: %q says %d times where it happened, want once", op, err, n)
		}
		if inner := new(sandbox.Error); errors.As(e.Err, &inner) {
			t.Errorf("%s: %q has an *Error in an *Error", op, err)
		}
		for _, rough := range []string{"failed to", "%!", "\n"} {
			if strings.Contains(err.Error(), rough) {
				t.Errorf("%s: %q contains %q", op, err, rough)
			}
		}
	}
}

// The engine's own cause stays reachable behind the sentinel.
func TestCauseStaysReachable(t *testing.T) {
	t.Parallel()
	_, err := harness.Nowhere(t).Inspect(t.Context(), "a")
	if !errors.Is(err, sandbox.ErrEngineUnavailable) || !errors.Is(err, engine.ErrUnavailable) || !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Inspect = %v; want ErrEngineUnavailable and the missing socket", err)
	}
	err = harness.Shared(t).Command(t.Context(), "no-such-program").Run()
	var missing *exec.Error
	if !errors.As(err, &missing) || missing.Name != "no-such-program" {
		t.Errorf("Run = %v; want the *exec.Error of os/exec", err)
	}
}

// The error of an engine that is not there says what was tried and what to do.
func TestUnreachableEngineSaysWhatToDo(t *testing.T) {
	t.Parallel()
	_, err := harness.Nowhere(t).Create(t.Context())
	for _, say := range []string{"Docker Engine unavailable", "none.sock", "DOCKER_HOST"} {
		if err == nil || !strings.Contains(err.Error(), say) {
			t.Errorf("Create = %v; want it to mention %q", err, say)
		}
	}
}

// Values of the environment and the control key are in no error.
func TestErrorsTellNoSecret(t *testing.T) {
	t.Parallel()
	const secret = "hunter2-hunter2"
	c := harness.NewClient(t)
	var errs []error
	note := func(err error) {
		if err == nil {
			t.Error("a call succeeded that should not")
		}
		errs = append(errs, err)
	}
	env := sandbox.WithEnv(map[string]string{"TOKEN": secret})
	for _, opts := range [][]sandbox.CreateOption{
		{sandbox.WithEnv(map[string]string{"TOKEN": secret + "\x00"})},
		{sandbox.WithEnv(map[string]string{"TOKEN": secret + strings.Repeat("x", 128<<10)})},
		{sandbox.WithEnv(map[string]string{"": secret})},
		{sandbox.WithEnv(map[string]string{"a=b": secret})},
		{env, sandbox.WithVCPUs(100000)},
		{env, sandbox.WithCommand("no-such-program")},
		{env, sandbox.WithImage("127.0.0.1:1/no/such:image")},
		{env, sandbox.OnCreate(func(context.Context, *sandbox.Sandbox) error { return errors.New("no") })},
	} {
		_, err := c.Create(t.Context(), opts...)
		note(err)
	}
	sb := harness.NewSandbox(t, env)
	for name, set := range map[string]func(c *sandbox.Cmd){
		"true":            func(c *sandbox.Cmd) { c.Env = []string{"TOKEN=" + secret + "\x00"} },
		"no-such-program": func(c *sandbox.Cmd) { c.Env = []string{"TOKEN=" + secret} },
		"false":           func(c *sandbox.Cmd) { c.Env = []string{"TOKEN=" + secret} },
		"cat":             func(c *sandbox.Cmd) { c.Env = []string{secret} },
	} {
		cmd := sb.Command(t.Context(), name)
		set(cmd)
		note(cmd.Run())
	}
	key := harness.Raw(t, sb).Config.Labels["agent-sandbox.control-key"]
	if err := harness.NewEngine(t).RemoveContainer(t.Context(), "agent-sandbox-"+sb.Name(), true); err != nil {
		t.Fatal(err)
	}
	harness.NewEngine(t).RemoveVolume(t.Context(), "agent-sandbox-"+sb.ID(), false)
	note(sb.Command(t.Context(), "true").Run())
	for _, err := range errs {
		if strings.Contains(err.Error(), secret) {
			t.Errorf("an error tells the secret: %v", err)
		}
		if key == "" || strings.Contains(err.Error(), key) {
			t.Errorf("an error tells the control key: %v", err)
		}
	}
}

func TestRegistryAuthIsHiddenWhenPrinted(t *testing.T) {
	t.Parallel()
	const secret = "hunter2-hunter2"
	auth := sandbox.RegistryAuth{Username: secret + "-name", Password: secret, IdentityToken: secret, RegistryToken: secret}
	var text, js bytes.Buffer
	slog.New(slog.NewTextHandler(&text, nil)).Info("pull", "auth", auth, "pointer", &auth)
	slog.New(slog.NewJSONHandler(&js, nil)).Info("pull", "auth", auth, "pointer", &auth)
	for how, got := range map[string]string{
		"%v": fmt.Sprintf("%v", auth), "%+v": fmt.Sprintf("%+v", auth), "%#v": fmt.Sprintf("%#v", auth),
		"%+v of a pointer": fmt.Sprintf("%+v", &auth), "%#v in a slice": fmt.Sprintf("%#v", []sandbox.RegistryAuth{auth}),
		"slog as text": text.String(), "slog as JSON": js.String(),
	} {
		if strings.Contains(got, secret) || !strings.Contains(got, "credentials for a registry") {
			t.Errorf("a RegistryAuth by %s is %q, want what it is and no secret", how, got)
		}
	}
}

func TestExitErrorIsNoError(t *testing.T) {
	t.Parallel()
	err := harness.Shared(t).Command(t.Context(), "false").Run()
	var exit *sandbox.ExitError
	var e *sandbox.Error
	if !errors.As(err, &exit) || errors.As(err, &e) || errors.Unwrap(exit) != nil {
		t.Errorf("Run = %#v; want an *ExitError alone", err)
	}
}
