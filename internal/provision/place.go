package provision

import (
	"context"

	"github.com/seed-1a2d6d8f/sandbox/internal/errdefs"
	"github.com/seed-1a2d6d8f/sandbox/internal/guest/wire"
	"github.com/seed-1a2d6d8f/sandbox/internal/machine"
	"github.com/seed-1a2d6d8f/sandbox/internal/plan"
	"github.com/seed-1a2d6d8f/sandbox/internal/record"
)

// placeFirst is place for a new sandbox, with the volumes that its image declares.
func (b *Build) placeFirst(ctx context.Context) error {
	b.mounted = plan.WithDeclared(b.mounted, b.image.Volumes)
	return b.place(ctx, b.image.ID)
}

// place finds where the mounts are to be in a container of an image, given by its ID, and makes that
// their targets. What the image declares keeps its target, since the engine would make a volume of
// its own there.
func (b *Build) place(ctx context.Context, imageID string) error {
	targets := []machine.Target{{Path: record.Workspace}}
	for _, m := range b.mounted {
		targets = append(targets, machine.Target{Path: m.Target, Kept: m.Declared})
	}
	p, err := b.Machine.Place(ctx, imageID, targets)
	if err != nil {
		return err
	}
	b.imageID, b.placed = imageID, p.Targets
	for i := range b.mounted {
		if m := &b.mounted[i]; p.Targets[i+1] != m.Target && !m.Declared {
			m.As, m.Target = m.Target, p.Targets[i+1]
		}
	}
	b.Record.Settings.Links, b.Record.Settings.LinkedFiles = p.Links, p.Linked
	return nil
}

// placeAgain is place for an image with files of a session, after the volumes were made: no target
// may lead elsewhere by a symbolic link of these.
func (b *Build) placeAgain(ctx context.Context, image string) error {
	got, err := b.Engine.InspectImage(ctx, image)
	if err != nil {
		return err
	}
	was := b.placed
	if err := b.place(ctx, got.ID); err != nil {
		return err
	}
	for i, now := range b.placed {
		if now != was[i] {
			return errdefs.Invalid("mount target %s leads to %s by a symbolic link that was made in the sandbox: take the mount away (WithoutMount), which keeps all files", was[i], now)
		}
	}
	return nil
}

// paths returns what a container's own layer may have for the container's mounts.
func (b *Build) paths() []wire.PathCheck {
	return machine.Paths(b.placed, b.Record.Settings.Links, b.Record.Settings.LinkedFiles)
}

// bootMounts returns the mounts that PID 1 has to find.
func (b *Build) bootMounts() []wire.Mount {
	mounts := []wire.Mount{{Target: b.placed[0], Volume: record.WorkspaceName(b.Record.ID)}}
	for i, m := range b.mounted {
		mounts = append(mounts, wire.Mount{Target: b.placed[i+1], Volume: m.Volume})
	}
	return mounts
}
