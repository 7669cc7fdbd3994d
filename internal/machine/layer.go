package machine

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/seed-1a2d6d8f/sandbox/internal/engine"
	"github.com/seed-1a2d6d8f/sandbox/internal/errdefs"
	"github.com/seed-1a2d6d8f/sandbox/internal/guest/wire"
)

// A Layer is the directory on the engine's machine that a container's own layer is in. Either the
// engine reports it as Dir, or a copier finds it among all layers: it is Root/*/Name, for the one
// entry of Root that has the directory Name/Mark.
type Layer struct {
	Dir, Merged      string // see [engine.Container]
	Root, Name, Mark string
}

// LayersDir is where a copier that has to find layers has all of them mounted, until it has.
const LayersDir = "/copy/layers"

// snapshotter is the storage driver of engines that keep layers in directories and don't report
// them: those with containerd's image store.
const snapshotter = "overlayfs"

// Layers returns a [errdefs.Unsupported] if an engine with that storage driver has no layers to copy.
func Layers(driver string) error {
	drivers := []string{"overlay2", "fuse-overlayfs", "overlay", snapshotter}
	if slices.Contains(drivers, driver) {
		return nil
	}
	return fmt.Errorf("%w: files outside of volumes are committed, since the storage driver %s keeps them in no overlay: it takes %s",
		errdefs.Unsupported, driver, strings.Join(drivers, ", "))
}

// LayerOf returns the layer of a sandbox's container, or the zero Layer if the storage driver keeps
// layers in another way. A layer that the engine does not report is a sibling of any helper's, and
// its mark is the mount point of the guest, whose name is random. A container that was never started
// has a mark once [Machine.FreshLayer] was called for it; without one its layer is empty.
func (m *Machine) LayerOf(ctx context.Context, got engine.Container) (Layer, error) {
	if got.Upper != "" {
		return Layer{Dir: got.Upper, Merged: got.Merged}, nil
	}
	driver, err := m.Engine.StorageDriver(ctx)
	mark := ""
	for _, p := range got.Mounts {
		if strings.HasPrefix(p.Target, wire.Dir+"-") {
			mark = p.Target
		}
	}
	if err != nil || driver != snapshotter || mark == "" {
		return Layer{}, err
	}
	own, err := m.facts.layers.get(ctx, m, func(spec *engine.ContainerSpec) { spec.Entrypoint = append(spec.Entrypoint, wire.VerbLayer) })
	if err != nil || !path.IsAbs(own.Upper) {
		return Layer{}, err
	}
	// …/snapshots/12/fs
	return Layer{Root: path.Dir(path.Dir(own.Upper)), Name: path.Base(own.Upper), Mark: path.Base(mark)}, nil
}

// FreshLayer is LayerOf for a container that was just created. Its layer is still empty, so the
// engine may make the mount points, which gives it a mark.
func (m *Machine) FreshLayer(ctx context.Context, made engine.Container) (Layer, error) {
	layer, err := m.LayerOf(ctx, made)
	if err != nil || layer.Mark == "" {
		return layer, err
	}
	// To look at a mount point the engine makes all of them, those in other volumes, too.
	if err := m.checkFiles(ctx, made, OwnLayer{Pristine: true}); err != nil {
		return Layer{}, err
	}
	if _, err := m.Engine.StatPath(ctx, made.ID, path.Join("/", layer.Mark)); err != nil && !errors.Is(err, engine.ErrNotFound) {
		return Layer{}, err
	}
	return layer, nil
}

// emptyDir is where a helper has mounted what it is to empty.
const emptyDir = "/empty"

// empty removes all files of a volume or directory of the engine's machine, see [store.Store].
func (m *Machine) empty(ctx context.Context, what engine.Mount) error {
	what.Target, what.NoCopy = emptyDir, what.Type == "volume"
	return m.query(ctx, func(spec *engine.ContainerSpec) {
		spec.Mounts = append(spec.Mounts, what)
		spec.Entrypoint = append(spec.Entrypoint, wire.VerbEmpty, emptyDir)
	}, &struct{}{})
}
