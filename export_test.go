package sandbox

import (
	"testing"

	"golang.org/x/sync/errgroup"

	"github.com/seed-1a2d6d8f/sandbox/internal/engine"
	"github.com/seed-1a2d6d8f/sandbox/internal/record"
)

// CloseDefaultClient lets go of the package's own client, so that a test can look for
// goroutines.
func CloseDefaultClient() error { return defaultClient().Close() }

// Reason is why a session ended that left such a container.
func Reason(code int, oom bool, engineError string) string {
	return reason(engine.Container{State: engine.StateExited, ExitCode: code, OOMKilled: oom, Error: engineError})
}

// PlaceScratchGuests places the guest n times at once under a name of the test's own,
// and removes what that leaves under the name.
func PlaceScratchGuests(t *testing.T, eng *engine.Engine, n int) {
	ctx := t.Context()
	arch, err := eng.Arch(ctx)
	if err != nil {
		t.Fatal(err)
	}
	hash := "test-" + record.NewID()
	volume, image := record.GuestName(hash), record.GuestImage(hash)
	var g errgroup.Group
	for range n {
		g.Go(func() error { return placeGuest(ctx, eng, arch, volume, image) })
	}
	if err := g.Wait(); err != nil {
		t.Errorf("placeGuest: %v", err)
	}
	if err := eng.RemoveImage(ctx, image, false); err != nil {
		t.Errorf("RemoveImage: %v", err)
	}
	if err := dropVolume(ctx, eng, volume); err != nil {
		t.Errorf("RemoveVolume: %v", err)
	}
}

// LimitsOf returns what options add up to: CPUs, and memory in bytes.
func LimitsOf(opts ...CreateOption) (vcpus float64, memory int64, err error) {
	s := createSettings(opts)
	err = s.check()
	return s.vcpus, s.memory, err
}

// CopyThrough makes the client copy directories through this process, as it would to an
// engine elsewhere.
func (c *Client) CopyThrough() { c.setApart() }
