package build

import (
	"context"
	"errors"
	"fmt"

	"github.com/seed-1a2d6d8f/sandbox/internal/engine"
	"github.com/seed-1a2d6d8f/sandbox/internal/fault"
	"github.com/seed-1a2d6d8f/sandbox/internal/record"
	"github.com/seed-1a2d6d8f/sandbox/internal/transfer"
)

// makeVolumes creates the workspace, or adopts one that a deleted sandbox left under its ID,
// and the volumes for copies.
func (b *Build) makeVolumes(ctx context.Context) error {
	name := record.WorkspaceName(b.Record.ID)
	got, err := b.makeVolume(ctx, name, record.Workspace, b.Record.VolumeLabels(record.RoleWorkspace))
	var foreign *record.ForeignError
	if errors.As(err, &foreign) && record.Is(got.Labels, record.RoleWorkspace) {
		err = b.adopt(ctx, name)
	}
	if err != nil {
		return err
	}
	return b.makeCopyVolumes(ctx)
}

// adopt takes over a workspace that is not in use. It has files, so it excludes a source.
func (b *Build) adopt(ctx context.Context, workspace string) error {
	users, err := b.Engine.ListContainers(ctx, engine.Filter{Volume: workspace})
	if err != nil {
		return err
	}
	if len(users) > 0 {
		return fmt.Errorf("%w: ID %q is that of container %s", fault.Exists, b.Record.ID, users[0].Name)
	}
	if b.Plan.Source != nil || b.origin != nil {
		return fmt.Errorf("%w: workspace %s exists and has files: it is adopted without a source, or deleted first", fault.Exists, workspace)
	}
	b.adopted = true
	return nil
}

// makeCopyVolumes creates the volumes for copies of directories.
func (b *Build) makeCopyVolumes(ctx context.Context) error {
	for i, m := range b.mounted {
		if m.Mode == record.RWCopy && (m.Volume == "" || b.origin != nil) {
			var err error
			if m.Volume, err = b.makeCopyVolume(ctx, m); err != nil {
				return err
			}
			b.mounted[i] = m
		}
		b.Record.Settings.Mounts = append(b.Record.Settings.Mounts, m)
	}
	return nil
}

// makeCopyVolume creates the volume for a copy of a directory, or of another sandbox's copy.
func (b *Build) makeCopyVolume(ctx context.Context, m record.Mount) (name string, err error) {
	role := record.RoleRWCopy
	if m.Volume != "" {
		role = record.RoleFork
	}
	name = record.VolumeName(b.Record.ID, role, m.Target, b.op)
	labels := b.Record.VolumeLabels(role)
	labels[record.CreatedBy], labels[record.Source] = role, m.Source
	if b.op != b.Record.Nonce {
		labels[record.By] = b.op
	}
	if _, err := b.makeVolume(ctx, name, m.Target, labels); err != nil {
		return "", err
	}
	if role == record.RoleFork {
		b.forked = append(b.forked, transfer.Job{What: m.Target, From: transfer.Tree{Volume: m.Volume}, To: transfer.Tree{Volume: name}, Labels: labels})
	} else {
		b.dirs = append(b.dirs, transfer.Directory{Dir: m.Source, Volume: name})
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
				v, err := b.MakeVolume(ctx, &b.undo, part, b.Record.VolumeLabels(record.RoleOverlay), nil)
				if err != nil {
					return v, err
				}
				*[]*string{&overlay.Upper, &overlay.Work}[i] = v.Mountpoint
			}
		}
	}
	return b.MakeVolume(ctx, &b.undo, name, labels, overlay)
}
