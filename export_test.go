package sandbox

import (
	"context"
	"io"
	"testing"

	"golang.org/x/sync/errgroup"

	"github.com/seed-1a2d6d8f/sandbox/internal/archive"
	"github.com/seed-1a2d6d8f/sandbox/internal/engine"
	"github.com/seed-1a2d6d8f/sandbox/internal/guest/trees"
	"github.com/seed-1a2d6d8f/sandbox/internal/record"
)

// CloseDefaultClient lets go of the package's own client, so that a test can look for
// goroutines.
func CloseDefaultClient() error { return defaultClient().Close() }

// Reason is why a session ended that left such a container.
func Reason(code int, oom bool, engineError string) string {
	return reason(engine.Container{State: engine.StateExited, ExitCode: code, OOMKilled: oom, Error: engineError})
}

// StateOf is the state for one of the engine's own words.
func StateOf(word string) State { return stateOf(word) }

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

// VolumeOfSize is a volume of so many bytes, as it is listed.
func VolumeOfSize(n int64) (v Volume) {
	v.setSize(n)
	return v
}

// Check reads the archive as if there were a sandbox to fill with it.
func (t Tarball) Check(ctx context.Context) error {
	return t.read(ctx, func(ctx context.Context, tree io.Reader, limits archive.Limits) error {
		_, err := trees.New(ctx, io.Discard).Archive(0, tree, t.Strip, limits)
		return err
	})
}

// AssembleLog puts a log's lines together as Logs does, and tells how many lines it held
// unfinished at the most.
func AssembleLog(pieces [][]byte, end func(i int) bool) (lines []LogLine, held int) {
	asm := assembly{}
	for i, text := range pieces {
		if line, whole := asm.add(engine.LogPiece{Text: text, End: end(i), Stderr: i%3 == 0}); whole {
			lines = append(lines, line)
		}
		held = max(held, len(asm))
	}
	asm.rest(func(l LogLine) bool {
		lines = append(lines, l)
		return true
	})
	return lines, held
}
