package machine

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"path"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/seed-1a2d6d8f/sandbox/internal/engine"
	"github.com/seed-1a2d6d8f/sandbox/internal/guest"
	"github.com/seed-1a2d6d8f/sandbox/internal/guest/wire"
	"github.com/seed-1a2d6d8f/sandbox/internal/record"
	"github.com/seed-1a2d6d8f/sandbox/internal/store"
)

// PlaceScratchGuests places the guest n times at once under a name of the test's own,
// and removes what that leaves under the name.
func (m *Machine) PlaceScratchGuests(t *testing.T, n int) {
	ctx := t.Context()
	arch, volume, image := m.scratch(t)
	var g errgroup.Group
	for range n {
		g.Go(func() error { _, err := m.placeGuest(ctx, arch, volume, image, profileFile("{}")); return err })
	}
	if err := g.Wait(); err != nil {
		t.Errorf("placeGuest: %v", err)
	}
	m.removeScratchGuest(t, volume, image)
}

// RepairScratchGuest places the guest where a volume of the test's own has another program of
// the same size and another seccomp profile, and reports whether the volume contains the right ones afterwards.
func (m *Machine) RepairScratchGuest(t *testing.T) bool {
	ctx := t.Context()
	arch, volume, image := m.scratch(t)
	defer m.removeScratchGuest(t, volume, image)
	profile := profileFile("{}")
	if _, err := m.placeGuest(ctx, arch, volume, image, profile); err != nil {
		t.Fatal(err)
	}
	id, remove := m.withVolume(t, image, volume)
	defer remove()
	binary, err := guest.Binary(arch)
	if err != nil {
		t.Fatal(err)
	}
	binary[len(binary)/2] ^= 1
	other := guestTar(entry{path.Base(wire.Path), 0o755, binary}, entry{profile.name, 0o644, []byte(`{"defaultAction":"SCMP_ACT_ALLOW"}`)})
	if err := m.Engine.CopyTo(ctx, id, wire.Dir, bytes.NewReader(other)); err != nil {
		t.Fatal(err)
	}
	want, err := guest.Sum(arch)
	if err != nil {
		t.Fatal(err)
	}
	same := func() bool {
		program, err := m.sumOf(ctx, id, wire.Path)
		if err != nil {
			t.Fatal(err)
		}
		file, err := m.sumOf(ctx, id, path.Join(wire.Dir, profile.name))
		if err != nil {
			t.Fatal(err)
		}
		return program == want && file == fmt.Sprintf("%x", sha256.Sum256(profile.content))
	}
	if same() {
		t.Fatal("the volume was not changed")
	}
	verified.Clear() // as in another process
	if _, err := m.placeGuest(ctx, arch, volume, image, profile); err != nil {
		t.Errorf("placeGuest: %v", err)
	}
	return same()
}

// GuestDir returns the directory of the guest's volume on the engine's machine.
func (m *Machine) GuestDir(t *testing.T, g Guest) string {
	got, err := m.Engine.InspectVolume(t.Context(), g.volume)
	if err != nil {
		t.Fatal(err)
	}
	return got.Mountpoint
}

// Measure returns the size of a directory on the engine's machine.
func (m *Machine) Measure(ctx context.Context, dir string) (int64, error) {
	sizes := map[string]int64{}
	err := m.measure(ctx, []string{dir}, sizes)
	return sizes[dir], err
}

// WriteScratchGuest writes the guest n times at once, in a volume of the test's own.
func (m *Machine) WriteScratchGuest(t *testing.T, n int) {
	ctx := t.Context()
	arch, volume, image := m.scratch(t)
	defer m.removeScratchGuest(t, volume, image)
	if _, err := m.placeGuest(ctx, arch, volume, image, entry{}); err != nil {
		t.Fatal(err)
	}
	id, remove := m.withVolume(t, image, volume)
	defer remove()
	var g errgroup.Group
	for range n {
		g.Go(func() error { return m.writeGuest(ctx, id, arch) })
	}
	if err := g.Wait(); err != nil {
		t.Errorf("writeGuest: %v", err)
	}
}

// ClaimAfter sets how long a helper runs before it is claimed.
func ClaimAfter(d time.Duration) { claimAfter = d }

// QueryExpired runs a helper that has expired from the beginning. started is called with its
// nonce before its container is created.
func (m *Machine) QueryExpired(ctx context.Context, started func(nonce string)) error {
	return m.query(ctx, func(spec *engine.ContainerSpec) {
		spec.Labels[record.Until] = time.Now().Add(-time.Minute).UTC().Format(time.RFC3339Nano)
		spec.Entrypoint = append(spec.Entrypoint, wire.VerbDu)
		started(spec.Labels[record.Nonce])
	}, new(any))
}

// scratch returns the platform of the engine, and names of the test's own for the guest's volume and image.
func (m *Machine) scratch(t *testing.T) (arch, volume, image string) {
	arch, err := m.Engine.Arch(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	hash := "test-" + record.NewID()
	return arch, record.GuestName(hash), record.GuestImage(hash)
}

// withVolume creates a container of an image with a volume where the guest is. The caller calls remove.
func (m *Machine) withVolume(t *testing.T, image, volume string) (id string, remove func()) {
	nonce := record.NewNonce()
	var u store.Undo
	remove = func() {
		if err := u.Run(t.Context()); err != nil {
			t.Error(err)
		}
	}
	id, err := m.Store.CreateContainer(t.Context(), &u, engine.ContainerSpec{
		Name: record.HelperName(nonce), Image: image, Labels: m.Store.HelperLabels(nonce), NetworkMode: "none", Entrypoint: []string{wire.Path},
		Mounts: []engine.Mount{{Type: "volume", Source: volume, Target: wire.Dir}},
	}, nonce)
	if err != nil {
		remove()
		t.Fatal(err)
	}
	return id, remove
}

func (m *Machine) removeScratchGuest(t *testing.T, volume, image string) {
	ctx := t.Context()
	if err := m.Engine.RemoveImage(ctx, image, false); err != nil {
		t.Errorf("RemoveImage: %v", err)
	}
	if err := m.Store.DropVolume(ctx, engine.Volume{Name: volume}); err != nil {
		t.Errorf("DropVolume: %v", err)
	}
}
