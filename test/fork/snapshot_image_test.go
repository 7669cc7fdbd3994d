package fork_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/seed-1a2d6d8f/sandbox"
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
			snap := harness.SnapshotOf(t, c, sb)
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
