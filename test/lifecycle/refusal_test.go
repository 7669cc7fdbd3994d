package lifecycle_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/internal/claim"
	"github.com/seed-1a2d6d8f/sandbox/internal/engine"
	"github.com/seed-1a2d6d8f/sandbox/internal/record"
	"github.com/seed-1a2d6d8f/sandbox/test/harness"
)

// A sandbox whose container the engine does not remove keeps its volumes, and the report says
// so.
func TestDeleteThatFailsKeepsTheVolumes(t *testing.T) {
	t.Parallel()
	clean, eng := harness.NewClient(t), harness.NewEngine(t)
	sb := harness.CreateWith(t, clean, []sandbox.Mount{{Source: harness.HostDir(t, map[string]string{"f": "x"}), Target: "/data"}})
	const cause = "device or resource busy"
	var volumes sync.Map
	c := harness.NewClient(t, sandbox.WithHost(harness.InFront(t, func(w http.ResponseWriter, r *http.Request) bool {
		if r.Method != http.MethodDelete {
			return false
		}
		if _, name, is := strings.Cut(r.URL.Path, "/volumes/"); is {
			volumes.Store(name, true)
		}
		if strings.Contains(r.URL.Path, "/containers/") {
			harness.Refuse(w, cause)
			return true
		}
		return false
	}, nil)))
	report, err := c.Delete(t.Context(), sb.Name(), sandbox.DeleteOptions{Volumes: true})
	if err == nil || !strings.Contains(err.Error(), cause) {
		t.Errorf("Delete = %v, want what the engine said", err)
	}
	if len(report.Volumes) != 2 {
		t.Errorf("the report is %+v, want two volumes", report)
	}
	for _, o := range report.Volumes {
		if o.Status != sandbox.VolumePreserved {
			t.Errorf("the report says %s", o)
		}
		if _, tried := volumes.Load(o.Name); tried {
			t.Errorf("volume %s was to be removed", o.Name)
		}
		if _, err := eng.InspectVolume(t.Context(), o.Name); err != nil {
			t.Errorf("volume %s: %v", o.Name, err)
		}
	}
	if _, err := sb.Start(t.Context()); err != nil {
		t.Fatalf("Start of the sandbox that was not deleted: %v", err)
	}
	if got := harness.Run(t, sb, "cat", "/data/f"); got != "x" {
		t.Errorf("the copy has %q", got)
	}
}

// What the engine finds wrong with a helper is no argument of the caller's, who may try again: a layer or a
// namespace has gone meanwhile. The caller's is the directory that a helper is to look at.
func TestHelpersAreNoArguments(t *testing.T) {
	t.Parallel()
	const cause = `invalid mount config for type "bind": bind source path does not exist`
	var refuse atomic.Bool
	c := harness.NewClient(t, sandbox.WithHost(harness.InFront(t, func(w http.ResponseWriter, r *http.Request) bool {
		if !refuse.Load() || !strings.HasPrefix(r.URL.Query().Get("name"), "agent-sandbox-helper.") {
			return false
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusBadRequest)
		json.NewEncoder(w).Encode(map[string]string{"message": cause})
		return true
	}, nil)))
	sb := harness.CreateWith(t, c, nil)
	refuse.Store(true)
	for call, do := range map[string]func() error{
		"Fork":     func() error { return harness.Second(c.Fork(t.Context(), sb.Name())) },
		"Snapshot": func() error { return harness.Second(sb.Snapshot(t.Context(), sandbox.SnapshotOptions{})) },
		"Create": func() error {
			return harness.Second(c.Create(t.Context(), sandbox.WithMounts(sandbox.Mount{Source: t.TempDir(), Target: "/data", Mode: sandbox.RO})))
		},
	} {
		if err := do(); err == nil || !strings.Contains(err.Error(), cause) || errors.Is(err, sandbox.ErrInvalidArgument) != (call == "Create") {
			t.Errorf("%s = %v, want what the engine said, ErrInvalidArgument of Create alone", call, err)
		}
	}
}

// creations notes the names of containers and of data volumes that a client makes.
func creations(t *testing.T) (opt sandbox.ClientOption, made func() []string) {
	var mu sync.Mutex
	var names []string
	host := harness.InFront(t, func(_ http.ResponseWriter, r *http.Request) bool {
		if r.Method != http.MethodPost || !strings.HasSuffix(r.URL.Path, "/volumes/create") && !strings.HasSuffix(r.URL.Path, "/containers/create") {
			return false
		}
		body, err := io.ReadAll(r.Body)
		r.Body = io.NopCloser(bytes.NewReader(body))
		var v struct {
			Name   string
			Labels map[string]string
		}
		if err = errors.Join(err, json.Unmarshal(body, &v)); err != nil {
			t.Errorf("%s: %v", r.URL.Path, err)
		}
		if record.Is(v.Labels, record.RoleSandbox, record.RoleWorkspace, record.RoleRWCopy) {
			mu.Lock()
			defer mu.Unlock()
			names = append(names, v.Name+r.URL.Query().Get("name"))
		}
		return false
	}, nil)
	return sandbox.WithHost(host), func() []string {
		mu.Lock()
		defer mu.Unlock()
		return names
	}
}

// The image is ensured before a volume or the container is made.
func TestImageComesFirst(t *testing.T) {
	t.Parallel()
	opt, made := creations(t)
	c := harness.NewClient(t, opt)
	_, err := c.Create(t.Context(), sandbox.WithName(harness.UniqueName(t)), sandbox.WithImage("127.0.0.1:1/no/such:image"),
		sandbox.WithMounts(sandbox.Mount{Source: t.TempDir(), Target: "/data"}))
	if !errors.Is(err, sandbox.ErrImageNotFound) {
		t.Errorf("Create = %v, want ErrImageNotFound", err)
	}
	if names := made(); len(names) > 0 {
		t.Errorf("without an image these were made: %q", names)
	}
	harness.CreateWith(t, c, []sandbox.Mount{{Source: t.TempDir(), Target: "/data"}})
	if names := made(); len(names) != 3 {
		t.Errorf("with an image these were made: %q; does the test still see them?", names)
	}
}

// The error of a failed create names the step, the object and the cause, and everything that
// could not be removed again.
func TestFailedUndoSaysWhatIsLeft(t *testing.T) {
	t.Parallel()
	clean, eng, name := harness.NewClient(t), harness.NewEngine(t), harness.UniqueName(t)
	id := record.NewID()
	const cause, kept = "no space left on device", "volume store is read-only"
	var refused sync.Map
	var over atomic.Bool
	host := harness.InFront(t, func(w http.ResponseWriter, r *http.Request) bool {
		volume := r.URL.Path[strings.LastIndex(r.URL.Path, "/")+1:]
		switch {
		case over.Load():
		case r.Method == http.MethodPost && strings.HasSuffix(r.URL.Path, "/containers/create") && r.URL.Query().Get("name") == record.ContainerName(name):
			harness.Refuse(w, cause)
			return true
		case r.Method == http.MethodDelete && strings.HasPrefix(volume, record.WorkspaceName(id)):
			refused.Store(volume, true)
			harness.Refuse(w, kept)
			return true
		}
		return false
	}, nil)
	c := harness.NewClient(t, sandbox.WithHost(host))
	_, err := c.Create(t.Context(), sandbox.WithName(name), sandbox.WithID(id), sandbox.WithMounts(sandbox.Mount{Source: t.TempDir(), Target: "/data"}))
	failed := time.Now()
	over.Store(true)
	if err == nil || !strings.Contains(err.Error(), `create "`+name+`"`) || !strings.Contains(err.Error(), "make container "+record.ContainerName(name)) || !strings.Contains(err.Error(), cause) {
		t.Errorf("Create = %v, want the step, the container and %q", err, cause)
	}
	var left []string
	refused.Range(func(volume, _ any) bool { left = append(left, volume.(string)); return true })
	if len(left) != 2 {
		t.Errorf("the undo tried to remove %q, want two volumes", left)
	}
	for _, volume := range left {
		if !strings.Contains(err.Error(), "left behind: volume "+volume+": ") || !strings.Contains(err.Error(), kept) {
			t.Errorf("Create = %v, want that %s is left and %q", err, volume, kept)
		}
		// A helper that tried to empty it may not be gone.
		harness.Eventually(t, volume+" is removed", func() bool {
			err := eng.RemoveVolume(context.Background(), volume, false)
			if err != nil && !errors.Is(err, engine.ErrConflict) {
				t.Errorf("%s is said to be left: %v", volume, err)
			}
			return !errors.Is(err, engine.ErrConflict)
		})
	}
	// Nobody takes what was left for a sandbox: the creator's marker is there until a sweep finds its lease over.
	if !strings.Contains(err.Error(), "the next sweep removes it") {
		t.Errorf("Create = %v, want that the next sweep removes it", err)
	}
	sweptOnceItsLeaseIsOver(t, name, failed)
	if !harness.Gone(t, clean, eng, name) {
		t.Error("more is left than the error says")
	}
}

// What a creation could not remove again does not count as a sandbox, and goes with a sweep.
func TestFailedUndoLeavesNoSandbox(t *testing.T) {
	t.Parallel()
	clean, eng, name := harness.NewClient(t), harness.NewEngine(t), harness.UniqueName(t)
	harness.Remove(t, clean, name)
	var refused, over atomic.Bool
	host := harness.InFront(t, func(w http.ResponseWriter, r *http.Request) bool {
		if over.Load() || r.Method != http.MethodDelete || !strings.Contains(r.URL.Path, "/containers/") {
			return false
		}
		c, err := eng.InspectContainer(context.Background(), r.URL.Path[strings.LastIndex(r.URL.Path, "/")+1:])
		if err != nil || c.Name != record.ContainerName(name) {
			return false
		}
		refused.Store(true)
		harness.Refuse(w, "driver is busy")
		return true
	}, nil)
	failed := errors.New("not prepared")
	_, err := harness.NewClient(t, sandbox.WithHost(host)).Create(t.Context(), sandbox.WithName(name), sandbox.OnCreate(func(context.Context, *sandbox.Sandbox) error { return failed }))
	ended := time.Now()
	over.Store(true)
	if !errors.Is(err, failed) || !strings.Contains(err.Error(), "left behind: container ") || !refused.Load() {
		t.Errorf("Create = %v, want the cause and the container that is left", err)
	}
	if sb, err := clean.Get(t.Context(), name); !errors.Is(err, sandbox.ErrNotFound) {
		t.Errorf("Get of what is left = %v, want ErrNotFound", err)
		if err == nil {
			sb.Detach()
		}
	}
	sweptOnceItsLeaseIsOver(t, name, ended)
}

// sweptOnceItsLeaseIsOver waits until sweeps have removed all that a creator has left that ended then. They can't before its
// lease is over.
func sweptOnceItsLeaseIsOver(t *testing.T, name string, ended time.Time) {
	t.Helper()
	eng := harness.NewEngine(t)
	time.Sleep(time.Until(ended.Add(claim.Lease)))
	for deadline := time.Now().Add(deathBound); ; time.Sleep(time.Second) {
		harness.Sweep(t)
		left := harness.Objects(t, eng, harness.Named(name))
		if len(left) == 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%v after its creator's lease %q is left", deathBound, left)
		}
	}
}

// A step of the engine's clock neither ends a session nor changes what it has left.
func TestSessionOutlivesAStepOfTheClock(t *testing.T) {
	t.Parallel()
	var step atomic.Int64
	host := harness.InFront(t, func(http.ResponseWriter, *http.Request) bool { return false }, func(r *http.Response) error {
		if at, err := http.ParseTime(r.Header.Get("Date")); err == nil {
			r.Header.Set("Date", at.Add(time.Duration(step.Load())).Format(http.TimeFormat))
		}
		return nil
	})
	c := harness.NewClient(t, sandbox.WithHost(host))
	sb, err := c.Create(t.Context(), sandbox.WithName(harness.UniqueName(t)), sandbox.WithTimeout(time.Hour), harness.Quick)
	if err != nil {
		t.Fatal(err)
	}
	harness.Remove(t, harness.NewClient(t), sb.Name())
	defer sb.Detach()
	was := harness.Status(t, sb)
	for _, d := range []time.Duration{3 * time.Hour, -3 * time.Hour} {
		step.Store(int64(d))
		if _, err := c.List(t.Context(), sandbox.ListOptions{}); err != nil { // learns the new time, and sweeps
			t.Fatal(err)
		}
		now := harness.Status(t, sb)
		if now.State != sandbox.StateRunning || !now.StartedAt.Equal(was.StartedAt) || now.ExpiresAt.Sub(now.StartedAt) != time.Hour {
			t.Errorf("after a step of %v it is %s, started at %v, expires at %v; before: %v, %v", d, now.State, now.StartedAt, now.ExpiresAt, was.StartedAt, was.ExpiresAt)
		}
		// The uptime is by the engine's clock, and never negative: so the client has seen the step.
		if since := now.Uptime - was.Uptime; d > 0 && (since < d || since > d+10*time.Minute) || d < 0 && now.Uptime != 0 {
			t.Errorf("after a step of %v the uptime is %v, before %v; want that the client has seen the step", d, now.Uptime, was.Uptime)
		}
		if err := sb.Command(t.Context(), "true").Run(); err != nil {
			t.Errorf("a command after a step of %v: %v", d, err)
		}
	}
	if err := sb.ExtendTimeout(t.Context(), time.Hour); err != nil {
		t.Fatal(err)
	}
	if now := harness.Status(t, sb); now.ExpiresAt.Sub(now.StartedAt) != 2*time.Hour {
		t.Errorf("extended, it expires %v after its start, want 2h", now.ExpiresAt.Sub(now.StartedAt))
	}
}

// An engine whose disk is full makes a volume, and fails to store its labels. Neither a name nor a
// workspace is blocked by that, and a snapshot can be deleted to make room.
func TestFullDiskBlocksNoNameAndNoDeletion(t *testing.T) {
	t.Parallel()
	eng := harness.NewEngine(t)
	var full atomic.Bool
	var half sync.Map
	host := harness.InFront(t, func(w http.ResponseWriter, r *http.Request) bool {
		if !full.Load() || r.Method != http.MethodPost || !strings.HasSuffix(r.URL.Path, "/volumes/create") {
			return false
		}
		var order struct{ Name string }
		if err := json.NewDecoder(r.Body).Decode(&order); err != nil {
			t.Error(err)
		}
		if _, err := eng.CreateVolume(context.Background(), order.Name, nil); err != nil {
			t.Error(err)
		}
		half.Store(order.Name, true)
		harness.Refuse(w, "no space left on device")
		return true
	}, nil)
	c := harness.NewClient(t, sandbox.WithHost(host))
	sb := harness.CreateWith(t, c, nil)
	snap, err := sb.Snapshot(t.Context(), sandbox.SnapshotOptions{})
	if err != nil {
		t.Fatal(err)
	}
	name, id := harness.UniqueName(t), record.NewID()
	harness.Remove(t, c, name)
	full.Store(true)
	if _, err := c.Create(t.Context(), sandbox.WithName(name), sandbox.WithID(id)); err == nil || !strings.Contains(err.Error(), "no space left") {
		t.Errorf("Create on a full disk = %v", err)
	}
	if err := c.DeleteSnapshot(t.Context(), snap.ID); err != nil {
		t.Errorf("DeleteSnapshot on a full disk = %v", err)
	}
	if _, err := c.GetSnapshot(t.Context(), snap.ID); !errors.Is(err, sandbox.ErrSnapshotNotFound) {
		t.Errorf("GetSnapshot of what was deleted = %v", err)
	}
	tried := 0
	half.Range(func(volume, _ any) bool {
		tried++
		if v, err := eng.InspectVolume(t.Context(), volume.(string)); !errors.Is(err, engine.ErrNotFound) {
			t.Errorf("left is %+v, %v", v, err)
		}
		return true
	})
	if tried < 2 {
		t.Errorf("the engine was asked for %d volumes, want one for each call", tried)
	}
	// One that was left by an engine that died is no obstacle either.
	for _, volume := range []string{"agent-sandbox-pending." + name, record.WorkspaceName(id)} {
		if _, err := eng.CreateVolume(t.Context(), volume, nil); err != nil {
			t.Fatal(err)
		}
	}
	full.Store(false)
	made, err := c.Create(t.Context(), sandbox.WithName(name), sandbox.WithID(id), harness.Quick)
	if err != nil {
		t.Fatalf("Create with room = %v", err)
	}
	defer made.Detach()
}
