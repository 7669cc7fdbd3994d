package transfer

import (
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/seed-1a2d6d8f/sandbox/internal/engine"
	"github.com/seed-1a2d6d8f/sandbox/internal/guest/wire"
	"github.com/seed-1a2d6d8f/sandbox/internal/machine"
	"github.com/seed-1a2d6d8f/sandbox/internal/record"
	"github.com/seed-1a2d6d8f/sandbox/internal/store"
)

// SnapshotFiles is a consistent copy of the files of a sandbox, on the way to become a
// snapshot.
type SnapshotFiles struct {
	Record record.SnapshotRecord

	m      *machine.Machine
	from   record.Sandbox
	got    engine.Container
	image  engine.Image   // that the container was made from
	mounts []record.Mount // of the sandbox
	claim  *record.Claim
	undo   store.Undo
	report *machine.Reporter
}

// NewSnapshotFiles returns files to copy from a sandbox with this container, image and mounts.
func NewSnapshotFiles(m *machine.Machine, from record.Sandbox, got engine.Container, image engine.Image, mounts []record.Mount, report *machine.Reporter) *SnapshotFiles {
	return &SnapshotFiles{m: m, from: from, got: got, image: image, mounts: mounts, report: report, Record: record.SnapshotRecord{
		ID: record.NewID(), Nonce: record.NewNonce(), CreatedAt: m.Engine.Now(), Sandbox: from.Name, SandboxID: from.ID,
		Parent: from.Settings.Snapshot, Image: from.Settings.Image, User: from.Settings.User,
	}}
}

// Create copies the files. A marker protects them from a sweep until Commit, Release or Undo.
func (f *SnapshotFiles) Create(ctx context.Context) error {
	if err := f.claimID(ctx); err != nil {
		return err
	}
	if _, err := f.m.EnsureGuest(ctx, f.report); err != nil {
		return err
	}
	jobs := f.jobs()
	for i := range jobs {
		name := record.FrozenName(f.Record.ID, i)
		f.Record.Trees[i].Volume, jobs[i].To.Volume, jobs[i].Labels = name, name, f.Record.FrozenLabels()
		if _, err := f.m.MakeVolume(ctx, &f.undo, name, jobs[i].Labels, nil); err != nil {
			return err
		}
	}
	image, roots, err := f.copy(ctx, jobs)
	if err != nil {
		return err
	}
	for i, r := range roots {
		t := &f.Record.Trees[i]
		t.Mode, t.UID, t.GID, t.Mtime = r.Mode, r.UID, r.GID, r.Mtime
	}
	if last := len(jobs) - 1; jobs[last].Layer && roots[last].Bare {
		f.Record.Trees = f.Record.Trees[:last] // a sweep removes its volume, which the helper still mounts
	}
	return f.m.Engine.TagImage(ctx, image, record.SnapshotImage(f.Record.ID))
}

// Commit records the snapshot and removes the marker.
func (f *SnapshotFiles) Commit(ctx context.Context) error {
	labels, err := f.Record.Labels()
	if err != nil {
		return err
	}
	if _, err := f.m.MakeVolume(ctx, &f.undo, record.SnapshotName(f.Record.ID), labels, nil); err != nil {
		return err
	}
	return f.claim.Commit(ctx)
}

func (f *SnapshotFiles) claimID(ctx context.Context) (err error) {
	marker := record.SnapshotMarker(f.Record.ID)
	f.undo.Add("marker of snapshot "+f.Record.ID, func(ctx context.Context) error {
		return record.Drop(ctx, f.m.Engine, marker, f.Record.Nonce)
	})
	f.claim, err = store.FinishCall(ctx, func(ctx context.Context) (*record.Claim, error) {
		return record.TryClaim(ctx, f.m.Engine, marker, f.Record.Nonce, store.Holder())
	})
	return err
}

// needsCommit reports whether the container's own files have to be committed, because the
// engine does not show where they are on its disk.
func (f *SnapshotFiles) needsCommit() bool { return f.got.Upper == "" }

// jobs returns the copies to make, and sets the trees of the record.
func (f *SnapshotFiles) jobs() []Job {
	jobs := []Job{{What: "workspace", From: Tree{Volume: record.WorkspaceName(f.from.ID)}}}
	f.Record.Trees = []record.Tree{{Target: record.Workspace}}
	for _, m := range f.mounts {
		if m.Mode == record.RWCopy && m.Volume != "" {
			jobs = append(jobs, Job{What: m.Target, From: Tree{Volume: m.Volume}})
			f.Record.Trees = append(f.Record.Trees, record.Tree{Target: m.Target, Source: m.Source})
		}
	}
	if f.needsCommit() {
		return jobs
	}
	// Sandboxes from the snapshot mount these again, so they are no content.
	var mounts []string
	for _, t := range f.Record.Trees {
		mounts = append(mounts, strings.TrimPrefix(t.Target, "/"))
	}
	f.Record.Trees = append(f.Record.Trees, record.Tree{})
	return append(jobs, Job{What: "files of the container", Layer: true, Mounts: mounts})
}

// copy runs the jobs while the sandbox is paused. It returns the image for containers with
// these files, and the attributes of the trees' root directories.
func (f *SnapshotFiles) copy(ctx context.Context, jobs []Job) (image string, roots []wire.Root, err error) {
	ref := record.SnapshotImage(f.Record.ID)
	f.undo.Add("image "+ref, func(ctx context.Context) error { return f.m.Uncommit(ctx, ref, f.Record.Nonce) })
	k := NewCopier(f.m, f.from.Name, f.Record.Nonce, f.report)
	f.undo.Add("helper", k.Undo.Run)
	err = CopyPaused(ctx, k, f.from, jobs, func(ctx context.Context, got engine.Container) error {
		image, f.Record.ImageID = got.ImageID, got.ImageID
		if !f.needsCommit() {
			return nil
		}
		made, err := Commit(ctx, f.m, got, f.image, ref, f.Record.FrozenLabels(), f.report)
		if made != "" {
			image, f.Record.ImageID = made, ""
		}
		return err
	})
	f.Record.Size = k.last.Bytes
	return image, k.last.Roots, err
}

// Commit commits a container to ref and returns the image's ID, or nothing if the container
// has no files of its own. The end of ctx does not cancel it: the engine goes on, and its
// image would come after the undo.
func Commit(ctx context.Context, m *machine.Machine, got engine.Container, image engine.Image, ref string, labels map[string]string, report *machine.Reporter) (string, error) {
	diff, err := m.Engine.DiffContainer(ctx, got.ID)
	if err != nil || unchanged(diff, got) {
		return "", err
	}
	report.Report(machine.Progress{Step: "commit"})
	made, err := m.Commit(context.WithoutCancel(ctx), got, image, ref, labels)
	return made.ID, err
}

// unchanged reports whether a container differs from its image in mount points only.
func unchanged(diff []engine.Change, got engine.Container) bool {
	return !slices.ContainsFunc(diff, func(c engine.Change) bool {
		return c.Kind != engine.Added || !slices.ContainsFunc(got.Mounts, func(m engine.MountPoint) bool { return m.Target == c.Path })
	})
}

// Undo removes everything that was created.
func (f *SnapshotFiles) Undo(ctx context.Context) error {
	if f.claim != nil {
		f.claim.Stop()
	}
	return f.undo.Run(ctx)
}

// Mounts returns the sandbox's mounts, with the copied volumes in the place of its own.
func (f *SnapshotFiles) Mounts() []record.Mount {
	mounts := slices.Clone(f.mounts)
	for i, m := range mounts {
		for _, t := range f.Record.Trees {
			if m.Mode == record.RWCopy && m.Volume != "" && t.Target == m.Target {
				mounts[i].Volume = t.Volume
			}
		}
	}
	return mounts
}

// Release ends the use of files that are not recorded. It removes them unless volumes share
// them; then a sweep does after the removal of the last such volume.
func (f *SnapshotFiles) Release(ctx context.Context, shared bool) error {
	if f.claim != nil {
		f.claim.Stop()
	}
	if !shared {
		return f.undo.Run(ctx)
	}
	own, cancel := context.WithTimeout(context.WithoutCancel(ctx), store.UndoTimeout)
	defer cancel()
	ref := record.SnapshotImage(f.Record.ID)
	return errors.Join(
		engine.Retry(own, func() error { return f.m.DropLayer(own, ref) }),
		engine.Retry(own, func() error {
			return record.Drop(own, f.m.Engine, record.SnapshotMarker(f.Record.ID), f.Record.Nonce)
		}))
}
