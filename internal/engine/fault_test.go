package engine_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/seed-1a2d6d8f/sandbox/internal/engine"
	"github.com/seed-1a2d6d8f/sandbox/internal/enginetest"
)

// verb is one method, with what it needs made first through a sound engine.
type verb struct {
	name string
	// prepare returns the call to fail.
	prepare func(t *testing.T, sound, e *engine.Engine) func(context.Context) error
}

func running(t *testing.T, sound *engine.Engine) string {
	id, _ := start(t, sound, engine.ContainerSpec{})
	return id
}

func verbs() []verb {
	type call = func(context.Context) error
	return []verb{
		{"Info", func(_ *testing.T, _, e *engine.Engine) call {
			return func(ctx context.Context) error { _, err := e.Info(ctx); return err }
		}},
		{"Arch", func(_ *testing.T, _, e *engine.Engine) call {
			return func(ctx context.Context) error { _, err := e.Arch(ctx); return err }
		}},
		{"CreateContainer", func(t *testing.T, _, e *engine.Engine) call {
			name := unique()
			t.Cleanup(func() { dropContainer(t, name) })
			return func(ctx context.Context) error {
				_, err := e.CreateContainer(ctx, engine.ContainerSpec{Name: name, Image: image, Labels: labels()})
				return err
			}
		}},
		{"InspectContainer", func(t *testing.T, sound, e *engine.Engine) call {
			id, _ := create(t, sound, engine.ContainerSpec{})
			return func(ctx context.Context) error { _, err := e.InspectContainer(ctx, id); return err }
		}},
		{"ListContainers", func(t *testing.T, sound, e *engine.Engine) call {
			create(t, sound, engine.ContainerSpec{})
			return func(ctx context.Context) error {
				_, err := e.ListContainers(ctx, engine.Filter{Labels: []string{runLabel}})
				return err
			}
		}},
		{"StartContainer", func(t *testing.T, sound, e *engine.Engine) call {
			id, _ := create(t, sound, engine.ContainerSpec{})
			return func(ctx context.Context) error { return e.StartContainer(ctx, id) }
		}},
		{"StopContainer", func(t *testing.T, sound, e *engine.Engine) call {
			id := running(t, sound)
			return func(ctx context.Context) error { return e.StopContainer(ctx, id, 0) }
		}},
		{"KillContainer", func(t *testing.T, sound, e *engine.Engine) call {
			id := running(t, sound)
			return func(ctx context.Context) error { return e.KillContainer(ctx, id, "SIGKILL") }
		}},
		{"PauseContainer", func(t *testing.T, sound, e *engine.Engine) call {
			id := running(t, sound)
			return func(ctx context.Context) error { return e.PauseContainer(ctx, id) }
		}},
		{"UnpauseContainer", func(t *testing.T, sound, e *engine.Engine) call {
			id := running(t, sound)
			if err := sound.PauseContainer(t.Context(), id); err != nil {
				t.Fatal(err)
			}
			return func(ctx context.Context) error { return e.UnpauseContainer(ctx, id) }
		}},
		{"RenameContainer", func(t *testing.T, sound, e *engine.Engine) call {
			id, _ := create(t, sound, engine.ContainerSpec{})
			return func(ctx context.Context) error { return e.RenameContainer(ctx, id, unique()) }
		}},
		{"UpdateContainer", func(t *testing.T, sound, e *engine.Engine) call {
			id, _ := create(t, sound, engine.ContainerSpec{})
			return func(ctx context.Context) error { return e.UpdateContainer(ctx, id, engine.Resources{NanoCPUs: 5e8}) }
		}},
		{"RemoveContainer", func(t *testing.T, sound, e *engine.Engine) call {
			id, _ := create(t, sound, engine.ContainerSpec{})
			return func(ctx context.Context) error { return e.RemoveContainer(ctx, id, true) }
		}},
		{"Logs", func(t *testing.T, sound, e *engine.Engine) call {
			id, _ := start(t, sound, engine.ContainerSpec{Cmd: []string{"exit"}})
			enginetest.Exited(t, id)
			return func(ctx context.Context) error {
				rc, err := e.Logs(ctx, id, engine.LogSpec{})
				if err != nil {
					return err
				}
				defer rc.Close()
				_, err = io.Copy(io.Discard, rc)
				return err
			}
		}},
		{"Exec", func(t *testing.T, sound, e *engine.Engine) call {
			id := running(t, sound)
			return func(ctx context.Context) error {
				st, err := e.Exec(ctx, id, engine.ExecSpec{Argv: []string{"/tool", "exit", "3"}})
				if err != nil {
					return err
				}
				defer st.Close()
				if _, err := io.Copy(io.Discard, st); err != nil {
					return err
				}
				_, err = st.ExitCode(ctx)
				return err
			}
		}},
		{"DiffContainer", func(t *testing.T, sound, e *engine.Engine) call {
			id := changed(t, sound)
			return func(ctx context.Context) error { _, err := e.DiffContainer(ctx, id); return err }
		}},
		{"ExportContainer", func(t *testing.T, sound, e *engine.Engine) call {
			id := changed(t, sound)
			return func(ctx context.Context) error {
				rc, err := e.ExportContainer(ctx, id)
				if err != nil {
					return err
				}
				defer rc.Close()
				_, err = io.Copy(io.Discard, rc)
				return err
			}
		}},
		{"CommitContainer", func(t *testing.T, sound, e *engine.Engine) call {
			id, ref := changed(t, sound), imageRef(t, sound)
			return func(ctx context.Context) error {
				_, err := e.CommitContainer(ctx, id, ref, captureLabels(ref))
				return err
			}
		}},
		{"FlattenContainer", func(t *testing.T, sound, e *engine.Engine) call {
			id, ref := changed(t, sound), imageRef(t, sound)
			return func(ctx context.Context) error {
				_, err := e.FlattenContainer(ctx, id, ref, captureLabels(ref), func(string) {})
				return err
			}
		}},
		{"TagImage", func(t *testing.T, sound, e *engine.Engine) call {
			id, ref := changed(t, sound), imageRef(t, sound)
			if _, err := sound.CommitContainer(t.Context(), id, ref, captureLabels(ref)); err != nil {
				t.Fatal(err)
			}
			return func(ctx context.Context) error { return e.TagImage(ctx, ref, ref+"-b") }
		}},
		{"CopyTo", func(t *testing.T, sound, e *engine.Engine) call {
			id, _ := create(t, sound, engine.ContainerSpec{})
			b := tarball(file{"tmp/a", 0o644, "x"})
			return func(ctx context.Context) error { return e.CopyTo(ctx, id, "/", bytes.NewReader(b)) }
		}},
		{"CopyFrom", func(t *testing.T, sound, e *engine.Engine) call {
			id, _ := create(t, sound, engine.ContainerSpec{})
			return func(ctx context.Context) error {
				rc, _, err := e.CopyFrom(ctx, id, "/etc/passwd")
				if err != nil {
					return err
				}
				defer rc.Close()
				_, err = io.Copy(io.Discard, rc)
				return err
			}
		}},
		{"StatPath", func(t *testing.T, sound, e *engine.Engine) call {
			id, _ := create(t, sound, engine.ContainerSpec{})
			return func(ctx context.Context) error { _, err := e.StatPath(ctx, id, "/tool"); return err }
		}},
		{"Ping", func(_ *testing.T, _, e *engine.Engine) call { return e.Ping }},
		{"CreateVolume", func(t *testing.T, _, e *engine.Engine) call {
			name := unique()
			t.Cleanup(func() { dropVolume(t, name) })
			return func(ctx context.Context) error { _, err := e.CreateVolume(ctx, name, labels()); return err }
		}},
		{"InspectVolume", func(t *testing.T, sound, e *engine.Engine) call {
			v := volume(t, sound)
			return func(ctx context.Context) error { _, err := e.InspectVolume(ctx, v.Name); return err }
		}},
		{"ListVolumes", func(t *testing.T, sound, e *engine.Engine) call {
			volume(t, sound)
			return func(ctx context.Context) error { _, err := e.ListVolumes(ctx, runLabel); return err }
		}},
		{"RemoveVolume", func(t *testing.T, sound, e *engine.Engine) call {
			v := volume(t, sound)
			return func(ctx context.Context) error { return e.RemoveVolume(ctx, v.Name, false) }
		}},
		{"InspectImage", func(_ *testing.T, _, e *engine.Engine) call {
			return func(ctx context.Context) error { _, err := e.InspectImage(ctx, image); return err }
		}},
		{"ListImages", func(_ *testing.T, _, e *engine.Engine) call {
			return func(ctx context.Context) error { _, err := e.ListImages(ctx, runLabel); return err }
		}},
		{"ImportImage", func(t *testing.T, sound, e *engine.Engine) call {
			ref := "enginetest-import:" + strings.TrimPrefix(unique(), "enginetest-")
			t.Cleanup(func() { _ = sound.RemoveImage(context.Background(), ref, true) })
			b := tarball(file{"a", 0o644, ref})
			return func(ctx context.Context) error {
				return e.ImportImage(ctx, ref, bytes.NewReader(b), []string{"LABEL " + runLabel})
			}
		}},
		{"RemoveImage", func(t *testing.T, sound, e *engine.Engine) call {
			ref := "enginetest-remove:" + strings.TrimPrefix(unique(), "enginetest-")
			b := tarball(file{"a", 0o644, ref})
			if err := sound.ImportImage(t.Context(), ref, bytes.NewReader(b), []string{"LABEL " + runLabel}); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = sound.RemoveImage(context.Background(), ref, true) })
			return func(ctx context.Context) error { return e.RemoveImage(ctx, ref, true) }
		}},
	}
}

// TestEveryFaultOfEveryCallHasItsClass fails each call of each method in each
// way. A lost connection is ErrUnavailable, and a cancellation the caller's;
// a call that only asks may also be repeated unseen, and succeed.
func TestEveryFaultOfEveryCallHasItsClass(t *testing.T) {
	t.Parallel()
	first := rand.IntN(2)
	for _, v := range verbs() {
		t.Run(v.name, func(t *testing.T) {
			t.Parallel()
			sound := open(t)
			for k := 1; ; k++ {
				more := false
				for i, fault := range enginetest.Faults {
					if os.Getenv("SANDBOX_SOAK") == "" && (i+k+first)%2 != 0 {
						continue // a plain run has half of them, another half in every run
					}
					more = faulted(t, v, sound, k, fault) || more
				}
				if !more {
					if k == 1 {
						t.Error("no fault ever happened")
					}
					return
				}
			}
		})
	}
}

func faulted(t *testing.T, v verb, sound *engine.Engine, k int, fault enginetest.Fault) (fired bool) {
	t.Helper()
	p := enginetest.NewProxy(t)
	e := openAt(t, p.Host())
	call := v.prepare(t, sound, e)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	p.Arm(k, fault, func() {
		if fault == enginetest.Cancel {
			cancel()
		}
	})
	err := call(ctx)
	if !p.Fired() {
		if err != nil {
			t.Errorf("call %d does not happen, and yet: %v", k, err)
		}
		return false
	}
	what := fmt.Sprintf("call %d %s (%s)", k, fault, strings.Join(p.Calls(), ", "))
	asks := slices.ContainsFunc(p.Calls(), func(c string) bool {
		return strings.HasPrefix(c, "GET ") || strings.HasPrefix(c, "HEAD ")
	})
	switch {
	case err == nil && fault == enginetest.Cancel:
		// The reply may have won, or what is left needs no context.
	case fault == enginetest.Cancel:
		wantClass(t, what, err, context.Canceled)
	case err == nil && asks:
	default:
		wantClass(t, what, err, engine.ErrUnavailable)
	}
	return true
}

func TestEngineThatIsDown(t *testing.T) {
	enginetest.Need(t)
	t.Parallel()
	p := enginetest.NewProxy(t)
	e := openAt(t, p.Host())
	p.Refuse(true)
	_, err := e.Info(t.Context())
	wantClass(t, "Info", err, engine.ErrUnavailable)
	_, err = e.CreateVolume(t.Context(), unique(), labels())
	wantClass(t, "CreateVolume", err, engine.ErrUnavailable)
	_, err = e.Exec(t.Context(), "x", engine.ExecSpec{Argv: []string{"x"}})
	wantClass(t, "Exec", err, engine.ErrUnavailable)
	_, err = engine.Open(t.Context(), engine.Options{Host: p.Host()})
	wantClass(t, "Open", err, engine.ErrUnavailable)
	p.Refuse(false)
	if _, err := e.Info(t.Context()); err != nil {
		t.Errorf("Info of an engine that is back: %v", err)
	}
}

func TestHangingCallEndsWithItsContext(t *testing.T) {
	t.Parallel()
	for _, v := range verbs() {
		t.Run(v.name, func(t *testing.T) {
			t.Parallel()
			sound := open(t)
			p := enginetest.NewProxy(t)
			call := v.prepare(t, sound, openAt(t, p.Host()))
			p.Stall(1)
			ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
			defer cancel()
			begun := time.Now()
			wantClass(t, v.name, call(ctx), context.DeadlineExceeded)
			if took := time.Since(begun); took > time.Minute {
				t.Errorf("%s took %v to notice", v.name, took)
			}
		})
	}
}

func TestEngineDyingUnderACallIsUnavailable(t *testing.T) {
	enginetest.Need(t)
	t.Parallel()
	p := enginetest.NewProxy(t)
	e := openAt(t, p.Host())
	id := running(t, e)
	p.Arm(1, enginetest.Stall, nil)
	waiting := make(chan error, 1)
	go func() { waiting <- e.StopContainer(t.Context(), id, 0) }() // a GET would be repeated
	eventually(t, "the call is under way", func() bool { return p.Count() == 1 })
	p.CloseAll()
	wantClass(t, "StopContainer", <-waiting, engine.ErrUnavailable)
}

func TestErrorsKeepTheirCause(t *testing.T) {
	enginetest.Need(t)
	t.Parallel()
	p := enginetest.NewProxy(t)
	e := openAt(t, p.Host())
	p.Arm(1, enginetest.RefuseBefore, nil)
	_, err := e.CreateVolume(t.Context(), unique(), labels())
	// Which of them depends on whether the request was written by then.
	if !slices.ContainsFunc([]error{io.EOF, syscall.ECONNRESET, syscall.EPIPE, net.ErrClosed}, func(cause error) bool { return errors.Is(err, cause) }) {
		t.Errorf("CreateVolume = %v, want the cause to be reachable", err)
	}
	if err != nil && !strings.Contains(err.Error(), p.Host()) {
		t.Errorf("CreateVolume = %v, want it to name the engine", err)
	}
}
