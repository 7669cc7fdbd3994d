package fork_test

import (
	"errors"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/internal/engine"
	"github.com/seed-1a2d6d8f/sandbox/internal/record"
	"github.com/seed-1a2d6d8f/sandbox/test/harness"
)

// No container uses the image of a snapshot, so "docker image prune -a" removes it.
func TestSnapshotWhoseImageWasPruned(t *testing.T) {
	t.Parallel()
	for name, behind := range map[string][]sandbox.ClientOption{
		"layers on disk": nil,
		"commits":        {harness.Behind(t, harness.WithoutLayers, harness.WithoutOverlays)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c, eng := harness.NewClient(t, behind...), harness.NewEngine(t)
			image := harness.SmallImage(t)
			sb := harness.CreateWith(t, c, nil, sandbox.WithImage(image))
			harness.Write(t, sb, "/srv/a", "a")
			snap := harness.SnapshotOf(t, c, sb, sandbox.SnapshotOptions{})
			if err := eng.RemoveImage(t.Context(), record.SnapshotImage(snap.ID), false); err != nil {
				t.Fatal(err)
			}
			if behind != nil {
				_, err := c.Create(t.Context(), sandbox.WithSource(sandbox.FromSnapshot(snap.ID)))
				if !errors.Is(err, sandbox.ErrImageNotFound) || !strings.Contains(err.Error(), "docker image prune") {
					t.Errorf("Create from the snapshot = %v, want ErrImageNotFound and why", err)
				}
				return
			}
			again := harness.CreateWith(t, c, nil, sandbox.WithSource(sandbox.FromSnapshot(snap.ID)))
			if got := harness.Read(t, again, "/srv/a"); got != "a" {
				t.Errorf("the file is %q, want %q", got, "a")
			}
			if _, err := eng.InspectImage(t.Context(), record.SnapshotImage(snap.ID)); err != nil {
				t.Errorf("the snapshot's image: %v", err)
			}
		})
	}
}

// A snapshot that is deleted while a sandbox is created from it is not found: its image has gone with
// it.
func TestSnapshotThatIsDeletedDuringACreate(t *testing.T) {
	t.Parallel()
	c, name := harness.NewClient(t), harness.UniqueName(t)
	sb := harness.CreateWith(t, c, nil)
	harness.Write(t, sb, "/srv/a", "a")
	snap, err := sb.Snapshot(t.Context(), sandbox.SnapshotOptions{})
	if err != nil {
		t.Fatal(err)
	}
	harness.Remove(t, c, name)
	// Where its files are copied nothing holds them yet when the container is created.
	_, err = harness.NewClient(t, harness.Behind(t, harness.WithoutOverlays)).Create(t.Context(), sandbox.WithName(name), sandbox.WithSource(sandbox.FromSnapshot(snap.ID)),
		sandbox.WithProgress(func(p sandbox.Progress) {
			if p.Step == "container" {
				// The first try uses overlays, which are in use.
				if err := c.DeleteSnapshot(t.Context(), snap.ID); err != nil && !errors.Is(err, sandbox.ErrSnapshotInUse) {
					t.Errorf("DeleteSnapshot: %v", err)
				}
			}
		}))
	if !errors.Is(err, sandbox.ErrSnapshotNotFound) {
		t.Errorf("Create = %v, want ErrSnapshotNotFound", err)
	}
}

// A snapshot's image that is nowhere on the engine is pulled again. One that has changed in its
// registry meanwhile is not taken for it.
func TestSnapshotWhoseImageIsPulledAgain(t *testing.T) {
	t.Parallel()
	c, eng := harness.NewClient(t), harness.NewEngine(t)
	hub := harness.NewRegistry(t)
	ref := hub.Ref(t)
	sb := harness.CreateWith(t, c, nil, sandbox.WithImage(ref))
	harness.Write(t, sb, "/srv/a", "a")
	snap := harness.SnapshotOf(t, c, sb, sandbox.SnapshotOptions{})
	if _, err := c.Delete(t.Context(), sb.Name(), sandbox.DeleteOptions{Volumes: true}); err != nil {
		t.Fatal(err)
	}
	prune := func() {
		t.Helper()
		for _, ref := range []string{record.SnapshotImage(snap.ID), ref} {
			if err := eng.RemoveImage(t.Context(), ref, false); err != nil && !errors.Is(err, engine.ErrNotFound) {
				t.Fatal(err)
			}
		}
		if _, err := eng.InspectImage(t.Context(), ref); !errors.Is(err, engine.ErrNotFound) {
			t.Fatalf("the image is still on the engine: %v", err)
		}
	}
	create := func() (*sandbox.Sandbox, error) {
		return c.Create(t.Context(), sandbox.WithSource(sandbox.FromSnapshot(snap.ID)))
	}

	prune()
	again, err := create()
	if err != nil {
		t.Fatal(err)
	}
	if got := harness.Read(t, again, "/srv/a"); got != "a" {
		t.Errorf("the file is %q, want %q", got, "a")
	}
	if err := again.Close(); err != nil {
		t.Fatal(err)
	}

	prune()
	hub.Set("2")
	if _, err := create(); !errors.Is(err, sandbox.ErrImageNotFound) || !strings.Contains(err.Error(), "another one by now") {
		t.Errorf("Create from a snapshot whose image has changed = %v, want ErrImageNotFound and why", err)
	}
}

// A failure that says nothing of mounts is not taken for an engine without overlays.
func TestOverlaysAreUsedAfterAnotherFailure(t *testing.T) {
	t.Parallel()
	var refuse atomic.Bool
	c := harness.NewClient(t, sandbox.WithHost(harness.InFront(t, func(w http.ResponseWriter, r *http.Request) bool {
		if r.Method != http.MethodPut || !strings.HasSuffix(r.URL.Path, "/archive") || !refuse.CompareAndSwap(true, false) {
			return false
		}
		harness.Refuse(w, "no space left on device")
		return true
	}, nil)))
	eng := harness.NewEngine(t)
	sb := harness.CreateWith(t, c, nil, sandbox.WithImage(harness.SmallImage(t)))
	harness.Write(t, sb, "a", "a")
	snap := harness.SnapshotOf(t, c, sb, sandbox.SnapshotOptions{})
	overlay := func() bool {
		t.Helper()
		made := harness.CreateWith(t, c, nil, fromSnap(snap))
		if got := harness.Read(t, made, "a"); got != "a" {
			t.Errorf("the file is %q, want %q", got, "a")
		}
		v, err := eng.InspectVolume(t.Context(), record.WorkspaceName(made.ID()))
		if err != nil {
			t.Fatal(err)
		}
		return v.Options["type"] == "overlay"
	}
	if !overlay() {
		t.Fatal("its workspace is no overlay: this engine mounts none, or the test looks for the wrong thing")
	}
	refuse.Store(true)
	if overlay() || refuse.Load() {
		t.Errorf("the workspace is an overlay, or nothing was refused (%v); want a copy", refuse.Load())
	}
	if !overlay() {
		t.Error("the next workspace is a copy, want an overlay")
	}
}
