package engine_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/seed-1a2d6d8f/sandbox/internal/engine"
	"github.com/seed-1a2d6d8f/sandbox/internal/enginetest"
)

func TestContainerComesBackAsSpecified(t *testing.T) {
	t.Parallel()
	e := open(t)
	v := volume(t, e)
	spec := engine.ContainerSpec{
		Hostname: "here", User: "0:0", WorkingDir: "/tmp", Cmd: []string{"wait", "x"}, Env: []string{"B=spec"},
		NanoCPUs: 5e8, Memory: 64 << 20, PidsLimit: 50,
		Mounts: []engine.Mount{
			{Type: "volume", Source: v.Name, Target: "/data", ReadOnly: true, NoCopy: true},
			{Type: "tmpfs", Target: "/scratch"},
		},
		Tmpfs:   map[string]string{"/fast": "size=1m"},
		CapDrop: []string{"NET_RAW"}, CapAdd: []string{"NET_ADMIN"},
		StopSignal: "SIGTERM", StopTimeout: 1500 * time.Millisecond,
		LogMaxSize: "1m", LogMaxFiles: 2, NetworkMode: "bridge", Ports: []uint16{3000},
		OpenStdin: true,
	}
	id, name := start(t, e, spec)
	for _, ref := range []string{id, name} {
		c, err := e.InspectContainer(t.Context(), ref)
		if err != nil {
			t.Fatalf("InspectContainer(%q): %v", ref, err)
		}
		if c.ID != id || c.Name != name || c.Image != image || c.State != "running" || c.Pid == 0 || c.Hostname != "here" ||
			c.User != "0:0" || c.WorkingDir != "/tmp" || c.NanoCPUs != 5e8 || c.Memory != 64<<20 || c.PidsLimit != 50 || c.NetworkMode != "bridge" {
			t.Errorf("InspectContainer(%q) = %+v", ref, c)
		}
		if diff := cmp.Diff([]string{"wait", "x"}, c.Cmd); diff != "" {
			t.Errorf("Cmd (-want +got):\n%s", diff)
		}
		if !slices.Contains(c.Env, "B=spec") || !slices.Contains(c.Env, "A=image") || c.Labels[runKey] != runID {
			t.Errorf("Env %q, Labels %v", c.Env, c.Labels)
		}
		if !slices.ContainsFunc(c.Mounts, func(m engine.MountPoint) bool {
			return m.Type == "volume" && m.Name == v.Name && m.Target == "/data" && !m.RW
		}) {
			t.Errorf("Mounts = %+v", c.Mounts)
		}
		if p := c.Ports[3000]; !p.Addr().IsLoopback() || p.Port() == 0 {
			t.Errorf("Ports = %v", c.Ports)
		}
		if c.CreatedAt.IsZero() || c.StartedAt.IsZero() || !c.FinishedAt.IsZero() || !c.IP.IsValid() {
			t.Errorf("created %v, started %v, finished %v, IP %v", c.CreatedAt, c.StartedAt, c.FinishedAt, c.IP)
		}
	}
}

func TestContainerLifecycle(t *testing.T) {
	t.Parallel()
	e, ctx := open(t), t.Context()
	id, name := create(t, e, engine.ContainerSpec{})
	state := func() engine.Container {
		t.Helper()
		c, err := e.InspectContainer(ctx, id)
		if err != nil {
			t.Fatalf("InspectContainer: %v", err)
		}
		return c
	}
	ok := func(what string, err error) {
		t.Helper()
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
	}
	if c := state(); c.State != "created" || !c.StartedAt.IsZero() {
		t.Errorf("before the start: %+v", c)
	}
	wantClass(t, "kill a created container", e.KillContainer(ctx, id, "SIGKILL"), engine.ErrConflict)
	_, err := e.Exec(ctx, id, engine.ExecSpec{Argv: []string{"/tool"}})
	wantClass(t, "exec in a created container", err, engine.ErrConflict)
	ok("start", e.StartContainer(ctx, id))
	ok("start again", e.StartContainer(ctx, id))
	ok("pause", e.PauseContainer(ctx, id))
	if got := state().State; got != "paused" {
		t.Errorf("paused container is %q", got)
	}
	wantClass(t, "pause again", e.PauseContainer(ctx, id), engine.ErrConflict)
	ok("unpause", e.UnpauseContainer(ctx, id))
	ok("update", e.UpdateContainer(ctx, id, engine.Resources{Memory: 128 << 20, MemorySwap: 256 << 20, NanoCPUs: 1e9, PidsLimit: 20}))
	if c := state(); c.Memory != 128<<20 || c.NanoCPUs != 1e9 || c.PidsLimit != 20 {
		t.Errorf("after the update: %+v", c)
	}
	wantClass(t, "remove without force while it runs", e.RemoveContainer(ctx, id, false), engine.ErrConflict)
	awaitReady(t, e, id)
	ok("stop", e.StopContainer(ctx, id, 30*time.Second))
	ok("stop again", e.StopContainer(ctx, id, -1))
	if c := state(); c.State != "exited" || c.ExitCode != 7 || c.FinishedAt.IsZero() || c.Pid != 0 {
		t.Errorf("after the stop: %+v", c)
	}
	other := unique()
	ok("rename", e.RenameContainer(ctx, id, other))
	_, err = e.InspectContainer(ctx, name)
	wantClass(t, "inspect by the old name", err, engine.ErrNotFound)
	if got := state().Name; got != other {
		t.Errorf("renamed container is called %q, want %q", got, other)
	}
	ok("remove", e.RemoveContainer(ctx, id, false))
	for what, err := range map[string]error{
		"remove again": e.RemoveContainer(ctx, id, true),
		"start":        e.StartContainer(ctx, id),
		"stop":         e.StopContainer(ctx, id, 0),
		"kill":         e.KillContainer(ctx, id, "SIGKILL"),
		"pause":        e.PauseContainer(ctx, id),
		"unpause":      e.UnpauseContainer(ctx, id),
		"rename":       e.RenameContainer(ctx, id, unique()),
		"update":       e.UpdateContainer(ctx, id, engine.Resources{Memory: 64 << 20}),
		"copy":         e.CopyTo(ctx, id, "/", http.NoBody),
	} {
		wantClass(t, what+" a removed container", err, engine.ErrNotFound)
	}
	_, err = e.Logs(ctx, id, engine.LogSpec{})
	wantClass(t, "logs of a removed container", err, engine.ErrNotFound)
	_, err = e.Exec(ctx, id, engine.ExecSpec{Argv: []string{"/tool"}})
	wantClass(t, "exec in a removed container", err, engine.ErrNotFound)
}

// awaitReady waits until a container's program has its handler of SIGTERM.
func awaitReady(t *testing.T, e *engine.Engine, id string) {
	t.Helper()
	eventually(t, "the program handles SIGTERM", func() bool {
		rc, err := e.Logs(t.Context(), id, engine.LogSpec{Stdout: true})
		if err != nil {
			t.Fatal(err)
		}
		defer rc.Close()
		return readAll(t, engine.NewDemux(rc, nil)) == "ready\n"
	})
}

func TestStopKillsAfterTheGrace(t *testing.T) {
	t.Parallel()
	e := open(t)
	id, _ := start(t, e, engine.ContainerSpec{Cmd: []string{"stubborn"}})
	awaitReady(t, e, id)
	if err := e.StopContainer(t.Context(), id, 200*time.Millisecond); err != nil {
		t.Fatalf("StopContainer: %v", err)
	}
	if c, err := e.InspectContainer(t.Context(), id); err != nil || c.ExitCode != 137 {
		t.Errorf("InspectContainer = %+v, %v, want exit code 137", c, err)
	}
}

func TestErrorsOfCancelledCallsHaveTheContextsCause(t *testing.T) {
	t.Parallel()
	e := open(t)
	mine := errors.New("my reason")
	ctx, stop := context.WithCancelCause(t.Context())
	stop(mine)
	_, err := e.InspectContainer(ctx, "x")
	wantClass(t, "InspectContainer", err, context.Canceled)
	if !errors.Is(err, mine) {
		t.Errorf("InspectContainer = %v, want the context's cause", err)
	}
}

func TestTakenNameIsConflict(t *testing.T) {
	t.Parallel()
	e := open(t)
	_, name := create(t, e, engine.ContainerSpec{})
	_, err := e.CreateContainer(t.Context(), engine.ContainerSpec{Name: name, Image: image, Labels: labels()})
	wantClass(t, "create under a taken name", err, engine.ErrConflict)
	id, _ := create(t, e, engine.ContainerSpec{})
	wantClass(t, "rename to a taken name", e.RenameContainer(t.Context(), id, name), engine.ErrConflict)
}

func TestMissingImageIsNamed(t *testing.T) {
	t.Parallel()
	e := open(t)
	_, err := e.CreateContainer(t.Context(), engine.ContainerSpec{Name: unique(), Image: "enginetest-no-such:image", Labels: labels()})
	wantClass(t, "create from a missing image", err, engine.ErrNotFound)
	var missing *engine.NoImageError
	if !errors.As(err, &missing) || missing.Ref != "enginetest-no-such:image" {
		t.Errorf("CreateContainer = %v, want a NoImageError", err)
	}
}

func TestUnknownMountTypeAndRuntimeAreInvalid(t *testing.T) {
	t.Parallel()
	e := open(t)
	for _, s := range []engine.ContainerSpec{
		{Mounts: []engine.Mount{{Type: "nfs", Source: "x", Target: "/x"}}},
		{Mounts: []engine.Mount{{Type: "volume", Source: "x"}}},
		{Mounts: []engine.Mount{{Type: "volume", Source: "../x", Target: "/x"}}},
		{Mounts: []engine.Mount{{Type: "bind", Source: "/no/such/path", Target: "/x"}}},
		{Runtime: "no-such-runtime"},
		{Memory: 1},
	} {
		s.Name, s.Image, s.Labels = unique(), image, labels()
		_, err := e.CreateContainer(t.Context(), s)
		wantClass(t, fmt.Sprintf("CreateContainer(%+v)", s), err, engine.ErrInvalid)
	}
}

func TestListFilters(t *testing.T) {
	t.Parallel()
	e := open(t)
	v := volume(t, e)
	mine := unique()
	l := labels()
	l["enginetest.mine"] = mine
	// One mounts the volume, one has the volume's name for a path.
	id1, name1 := create(t, e, engine.ContainerSpec{Labels: l, Mounts: []engine.Mount{{Type: "volume", Source: v.Name, Target: "/v"}}})
	other := volume(t, e)
	id2, name2 := create(t, e, engine.ContainerSpec{Labels: l, Mounts: []engine.Mount{{Type: "volume", Source: other.Name, Target: "/" + v.Name}}})
	create(t, e, engine.ContainerSpec{Name: name1 + "-longer"})

	byName := []string{id1, id2}
	if name2 < name1 {
		byName = []string{id2, id1}
	}
	for _, c := range []struct {
		f    engine.Filter
		want []string
	}{
		{engine.Filter{Labels: []string{"enginetest.mine=" + mine}}, byName},
		{engine.Filter{Labels: []string{"enginetest.mine", runLabel}}, byName},
		{engine.Filter{Labels: []string{"enginetest.mine=other"}}, nil},
		{engine.Filter{Volume: v.Name}, []string{id1}},
		{engine.Filter{Names: []string{name1}}, []string{id1}},
		{engine.Filter{Names: []string{name1, name2}}, byName},
	} {
		got, err := e.ListContainers(t.Context(), c.f)
		if err != nil {
			t.Fatalf("ListContainers(%+v): %v", c.f, err)
		}
		var ids []string
		for _, c := range got {
			ids = append(ids, c.ID)
		}
		if diff := cmp.Diff(c.want, ids); diff != "" {
			t.Errorf("ListContainers(%+v) (-want +got):\n%s", c.f, diff)
		}
	}
	got, err := e.ListContainers(t.Context(), engine.Filter{Names: []string{name1}})
	if err != nil || len(got) != 1 || got[0].Name != name1 || got[0].State != "created" || got[0].Labels["enginetest.mine"] != mine || got[0].CreatedAt.IsZero() {
		t.Errorf("ListContainers = %+v, %v", got, err)
	}
}

func TestListIsOneCall(t *testing.T) {
	enginetest.Need(t)
	t.Parallel()
	p := enginetest.NewProxy(t)
	e := openAt(t, p.Host())
	p.Arm(0, enginetest.None, nil)
	if _, err := e.ListContainers(t.Context(), engine.Filter{Labels: []string{runLabel}}); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"GET /containers/json"}, p.Calls()); diff != "" {
		t.Errorf("calls (-want +got):\n%s", diff)
	}
}

func TestRemovalByTwoIsTold(t *testing.T) {
	t.Parallel()
	// An engine whose container is stuck in its removal.
	host := fakeEngine(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodDelete {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusConflict)
			_, _ = io.WriteString(w, `{"message":"removal of container x is already in progress"}`)
			return
		}
		_, _ = io.WriteString(w, `{"Id":"abc","Name":"/x","State":{"Status":"removing"},"Config":{},"HostConfig":{}}`)
	})
	err := openAt(t, host).RemoveContainer(t.Context(), "x", true)
	wantClass(t, "RemoveContainer", err, engine.ErrConflict)
	var busy *engine.RemovalInProgressError
	if !errors.As(err, &busy) || busy.Ref != "x" {
		t.Errorf("RemoveContainer = %v, want a RemovalInProgressError", err)
	}
}

func TestLogs(t *testing.T) {
	t.Parallel()
	e := open(t)
	id, _ := start(t, e, engine.ContainerSpec{Cmd: []string{"exit", "3"}, LogMaxSize: "1m"})
	if code := enginetest.Exited(t, id); code != 3 {
		t.Fatalf("exit code %d, want 3", code)
	}
	read := func(s engine.LogSpec) (string, string) {
		t.Helper()
		rc, err := e.Logs(t.Context(), id, s)
		if err != nil {
			t.Fatalf("Logs(%+v): %v", s, err)
		}
		defer rc.Close()
		var stderr buffer
		return readAll(t, engine.NewDemux(rc, &stderr)), string(stderr)
	}
	for _, c := range []struct {
		s        engine.LogSpec
		out, err string
	}{
		{engine.LogSpec{}, "out", "err"},
		{engine.LogSpec{Stdout: true}, "out", ""},
		{engine.LogSpec{Stderr: true, Follow: true}, "", "err"},
		{engine.LogSpec{Tail: -1}, "", ""},
		{engine.LogSpec{Since: time.Now().Add(time.Hour)}, "", ""},
	} {
		if out, err := read(c.s); out != c.out || err != c.err {
			t.Errorf("Logs(%+v) = %q, %q, want %q, %q", c.s, out, err, c.out, c.err)
		}
	}
	if out, _ := read(engine.LogSpec{Stdout: true, Timestamps: true, Tail: 5}); len(out) < len(time.RFC3339) {
		t.Errorf("Logs with timestamps = %q", out)
	}
}

func TestFollowingLogsEndsWithItsContext(t *testing.T) {
	t.Parallel()
	e := open(t)
	id, _ := start(t, e, engine.ContainerSpec{})
	ctx, cancel := context.WithCancel(t.Context())
	rc, err := e.Logs(ctx, id, engine.LogSpec{Follow: true, Stdout: true})
	if err != nil {
		t.Fatal(err)
	}
	defer rc.Close()
	d := engine.NewDemux(rc, nil)
	b := make([]byte, 6)
	if _, err := io.ReadFull(d, b); err != nil || string(b) != "ready\n" {
		t.Fatalf("first line %q, %v", b, err)
	}
	cancel()
	_, err = d.Read(b)
	wantClass(t, "Read", err, context.Canceled)
}

// buffer is a writer without a lock.
type buffer []byte

func (b *buffer) Write(p []byte) (int, error) { *b = append(*b, p...); return len(p), nil }
