package provision

import (
	"context"
	"errors"
	"fmt"

	"github.com/seed-1a2d6d8f/sandbox/internal/engine"
	"github.com/seed-1a2d6d8f/sandbox/internal/errdefs"
	"github.com/seed-1a2d6d8f/sandbox/internal/record"
	"github.com/seed-1a2d6d8f/sandbox/internal/transfer"
)

// makeVolumes creates the workspace, or adopts one that a deleted sandbox left under its ID,
// and the volumes for copies and for what the image declares.
func (b *Build) makeVolumes(ctx context.Context) error {
	name := record.WorkspaceName(b.Record.ID)
	got, err := b.makeVolume(ctx, name, record.Workspace, b.Record.VolumeLabels(record.RoleWorkspace))
	switch {
	case isLeft(got, err, record.RoleWorkspace):
		err = b.adopt(ctx, "workspace", name, b.Plan.Source != nil)
	case err == nil && b.Plan.Source == nil && b.origin == nil:
		b.fresh = append(b.fresh, b.placed[0])
	}
	if err != nil {
		return err
	}
	return b.makeCopyVolumes(ctx)
}

// isLeft reports whether err says that a volume of that role exists.
func isLeft(got engine.Volume, err error, role string) bool {
	var foreign *record.ForeignError
	return errors.As(err, &foreign) && record.Is(got.Labels, role)
}

// adopt takes over a volume that is not in use. It has files, so it excludes another source of them.
func (b *Build) adopt(ctx context.Context, what, volume string, hasSource bool) error {
	users, err := b.Engine.ListContainers(ctx, engine.Filter{Volume: volume})
	if err != nil {
		return err
	}
	if len(users) > 0 {
		return fmt.Errorf("%w: ID %q belongs to container %s", errdefs.Exists, b.Record.ID, users[0].Name)
	}
	if hasSource || b.origin != nil {
		return fmt.Errorf("%w: %s %s exists and has files: it is adopted without a source, or deleted first", errdefs.Exists, what, volume)
	}
	b.adopted = true
	return nil
}

// makeCopyVolumes creates the volumes for copies of directories, and for what the image declares.
func (b *Build) makeCopyVolumes(ctx context.Context) error {
	for i, m := range b.mounted {
		if m.Mode == record.RWCopy && (m.Volume == "" || b.origin != nil) {
			var err error
			if m.Volume, err = b.makeCopyVolume(ctx, m); err != nil {
				return err
			}
			b.mounted[i] = m
		}
		recorded := &b.Record.Settings.Mounts
		if m.Declared {
			recorded = &b.Record.Settings.Declared
		}
		*recorded = append(*recorded, m)
	}
	return nil
}

// makeCopyVolume creates the volume for a copy of a directory, or of another sandbox's volume, or
// for what the image declares. Of the last it adopts one that a deleted sandbox left under the ID.
func (b *Build) makeCopyVolume(ctx context.Context, m record.Mount) (name string, err error) {
	role, source, nonce := record.RoleRWCopy, m.Source, b.op
	switch {
	case m.Declared:
		role, source = record.RoleImage, m.Target
		if b.op == b.Record.Nonce {
			nonce = ""
		}
	case m.Volume != "":
		role = record.RoleFork
	}
	name = record.VolumeName(b.Record.ID, role, m.Target, nonce)
	labels := b.Record.VolumeLabels(role)
	labels[record.CreatedBy], labels[record.Source] = role, source
	if b.op != b.Record.Nonce {
		labels[record.By] = b.op
	}
	got, err := b.makeVolume(ctx, name, m.Target, labels)
	if m.Declared && isLeft(got, err, role) {
		return name, b.adopt(ctx, "volume", name, false)
	}
	if err != nil {
		return "", err
	}
	switch {
	case m.Volume != "":
		b.forked = append(b.forked, transfer.Job{What: m.Target, From: transfer.Tree{Volume: m.Volume}, To: transfer.Tree{Volume: name}, Labels: labels})
	case m.Source != "":
		b.dirs = append(b.dirs, transfer.Directory{Dir: m.Source, Volume: name, Target: m.Target})
	default:
		b.fresh = append(b.fresh, m.Target)
	}
	return name, nil
}

// makeVolume creates a volume for target, as an overlay over the origin's files if possible.
func (b *Build) makeVolume(ctx context.Context, name, target string, labels map[string]string) (engine.Volume, error) {
	var overlay *engine.Overlay
	if b.origin != nil {
		if lower, snapshot := b.origin.lower(target); lower != "" {
			b.shares = true
			labels = record.With(labels, record.Snapshot, snapshot)
			overlay = &engine.Overlay{Lower: lower}
			upper, work := record.OverlayNames(name)
			for i, part := range []string{upper, work} {
				v, err := b.Store.MakeVolume(ctx, &b.undo, part, b.Record.VolumeLabels(record.RoleOverlay), nil)
				if err != nil {
					return v, err
				}
				*[]*string{&overlay.Upper, &overlay.Work}[i] = v.Mountpoint
			}
		}
	}
	return b.Store.MakeVolume(ctx, &b.undo, name, labels, overlay)
}
