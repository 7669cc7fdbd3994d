package machine

import (
	"testing"

	"golang.org/x/sync/errgroup"

	"github.com/seed-1a2d6d8f/sandbox/internal/record"
)

// PlaceScratchGuests places the guest n times at once under a name of the test's own,
// and removes what that leaves under the name.
func (m *Machine) PlaceScratchGuests(t *testing.T, n int) {
	ctx := t.Context()
	arch, err := m.Engine.Arch(ctx)
	if err != nil {
		t.Fatal(err)
	}
	hash := "test-" + record.NewID()
	volume, image := record.GuestName(hash), record.GuestImage(hash)
	var g errgroup.Group
	for range n {
		g.Go(func() error { return m.placeGuest(ctx, arch, volume, image) })
	}
	if err := g.Wait(); err != nil {
		t.Errorf("placeGuest: %v", err)
	}
	if err := m.Engine.RemoveImage(ctx, image, false); err != nil {
		t.Errorf("RemoveImage: %v", err)
	}
	if err := m.DropVolume(ctx, volume); err != nil {
		t.Errorf("DropVolume: %v", err)
	}
}
