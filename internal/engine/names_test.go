package engine_test

import (
	"strings"
	"testing"
	"time"

	"github.com/seed-1a2d6d8f/sandbox/internal/engine"
	"github.com/seed-1a2d6d8f/sandbox/internal/enginetest"
)

// TestNamesAreRefusedBeforeAnyCall: the Docker client cleans paths, so such
// names would reach other endpoints.
func TestNamesAreRefusedBeforeAnyCall(t *testing.T) {
	enginetest.Need(t)
	t.Parallel()
	p := enginetest.NewProxy(t)
	e := openAt(t, p.Host())
	p.Arm(0, enginetest.None, nil)
	ctx := t.Context()
	for _, name := range []string{
		"", "../containers/x", "..", ".", "a/b", "a/../b", "-a", "_a", ".a", "a b", "a\n", "\na", "a?x=y", "a#b", "a%2fb", "é", "a\x00b", "x:y",
	} {
		in, out := engine.ContainerSpec{Name: name, Image: image}, engine.ContainerSpec{Name: "x", Image: image}
		if name == "" {
			in.Image = "" // a container may go without a name
		}
		out.Mounts = []engine.Mount{{Type: "volume", Source: name + "/", Target: "/x"}}
		calls := map[string]func() error{
			"CreateContainer":    func() error { _, err := e.CreateContainer(ctx, in); return err },
			"CreateContainer of": func() error { _, err := e.CreateContainer(ctx, out); return err },
			"InspectContainer":   func() error { _, err := e.InspectContainer(ctx, name); return err },
			"ListContainers":     func() error { _, err := e.ListContainers(ctx, engine.Filter{Names: []string{name}}); return err },
			"StartContainer":     func() error { return e.StartContainer(ctx, name) },
			"StopContainer":      func() error { return e.StopContainer(ctx, name, time.Second) },
			"KillContainer":      func() error { return e.KillContainer(ctx, name, "SIGKILL") },
			"PauseContainer":     func() error { return e.PauseContainer(ctx, name) },
			"UnpauseContainer":   func() error { return e.UnpauseContainer(ctx, name) },
			"RenameContainer":    func() error { return e.RenameContainer(ctx, name, "x") },
			"RenameContainer to": func() error { return e.RenameContainer(ctx, "x", name) },
			"UpdateContainer":    func() error { return e.UpdateContainer(ctx, name, engine.Resources{}) },
			"RemoveContainer":    func() error { return e.RemoveContainer(ctx, name, true) },
			"Logs":               func() error { _, err := e.Logs(ctx, name, engine.LogSpec{}); return err },
			"Exec":               func() error { _, err := e.Exec(ctx, name, engine.ExecSpec{Argv: []string{"x"}}); return err },
			"CopyTo":             func() error { return e.CopyTo(ctx, name, "/", strings.NewReader("")) },
			"CopyFrom":           func() error { _, _, err := e.CopyFrom(ctx, name, "/"); return err },
			"StatPath":           func() error { _, err := e.StatPath(ctx, name, "/"); return err },
			"CreateVolume":       func() error { _, err := e.CreateVolume(ctx, name, nil); return err },
			"InspectVolume":      func() error { _, err := e.InspectVolume(ctx, name); return err },
			"RemoveVolume":       func() error { return e.RemoveVolume(ctx, name, true) },
		}
		if name != "" {
			calls["ListContainers by volume"] = func() error { _, err := e.ListContainers(ctx, engine.Filter{Volume: name}); return err }
		}
		if name != "a/b" && name != "x:y" { // fine for images
			calls["InspectImage"] = func() error { _, err := e.InspectImage(ctx, name); return err }
			calls["PullImage"] = func() error { return e.PullImage(ctx, name, nil) }
			calls["ImportImage"] = func() error { return e.ImportImage(ctx, name, strings.NewReader(""), nil) }
			calls["RemoveImage"] = func() error { return e.RemoveImage(ctx, name, true) }
		}
		for what, call := range calls {
			wantClass(t, what+" "+name, call(), engine.ErrInvalid)
		}
	}
	_, err := e.Exec(ctx, "x", engine.ExecSpec{})
	wantClass(t, "Exec of nothing", err, engine.ErrInvalid)
	if n := p.Count(); n != 0 {
		t.Errorf("%d calls reached the engine: %q", n, p.Calls())
	}
}

// TestForeignThingsStay shows the rule at work: with it broken, the client
// would delete the container.
func TestForeignThingsStay(t *testing.T) {
	t.Parallel()
	f := enginetest.NewForeign(t)
	e := open(t)
	wantClass(t, "RemoveVolume", e.RemoveVolume(t.Context(), "../containers/"+f.Victim, true), engine.ErrInvalid)
	f.Check(t)
}
