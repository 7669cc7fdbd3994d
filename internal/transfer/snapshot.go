package transfer

import (
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/seed-1a2d6d8f/sandbox/internal/bound"
	"github.com/seed-1a2d6d8f/sandbox/internal/claim"
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
	// Check, which may be nil, can fail the copy while the sandbox is paused.
	Check func(context.Context, engine.Container) error

	m      *machine.Machine
	from   record.Sandbox
	got    engine.Container
	image  engine.Image   // that the container was made from
	mounts []record.Mount // of the sandbox
	claim  *claim.Claim
	undo   store.Undo
	report *machine.Reporter

	commits bool // the container's own files have to be committed
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
	layer, err := f.m.LayerOf(ctx, f.got)
	if err != nil {
		return err
	}
	f.commits = layer == (machine.Layer{})
	jobs := f.jobs()
	for i := range jobs {
		name := record.FrozenName(f.Record.ID, i)
		f.Record.Trees[i].Volume, jobs[i].To.Volume, jobs[i].Labels = name, name, f.Record.FrozenLabels()
		if _, err := f.m.Store.MakeVolume(ctx, &f.undo, name, jobs[i].Labels, nil); err != nil {
			return err
		}
	}
	image, roots, err := f.copy(ctx, jobs)
	if errors.Is(err, ErrNoLayer) && !f.commits {
		f.m.Log.Warn("files outside of volumes are committed", "sandbox", f.from.Name, "error", err)
		last := len(jobs) - 1
		f.commits, jobs, f.Record.Trees = true, jobs[:last], f.Record.Trees[:last] // as below
		image, roots, err = f.copy(ctx, jobs)
	}
	if err != nil {
		return err
	}
	for i, r := range roots {
		t := &f.Record.Trees[i]
		t.Mode, t.UID, t.GID, t.Mtime, t.Xattrs = r.Mode, r.UID, r.GID, r.Mtime, r.Xattrs
	}
	if last := len(jobs) - 1; jobs[last].Layer && roots[last].Bare {
		f.Record.Trees = f.Record.Trees[:last] // a sweep removes its volume, which the helper still mounts
	}
	return bound.Finish(ctx, func(ctx context.Context) error {
		return f.m.Engine.TagImage(ctx, image, record.SnapshotImage(f.Record.ID))
	})
}

// Commit records the snapshot and removes the marker.
func (f *SnapshotFiles) Commit(ctx context.Context) error {
	labels, err := f.Record.Labels()
	if err != nil {
		return err
	}
	if _, err := f.m.Store.MakeVolume(ctx, &f.undo, record.SnapshotName(f.Record.ID), labels, nil); err != nil {
		return err
	}
	return f.claim.Commit(ctx)
}

func (f *SnapshotFiles) claimID(ctx context.Context) (err error) {
	marker := record.SnapshotMarker(f.Record.ID)
	f.undo.AddGuard("marker of snapshot "+f.Record.ID, func(ctx context.Context) error {
		return claim.Drop(ctx, f.m.Engine, marker, f.Record.Nonce, "")
	})
	f.claim, err = bound.FinishCall(ctx, func(ctx context.Context) (*claim.Claim, error) {
		return claim.Try(ctx, f.m.Engine, marker, f.Record.Nonce, store.Holder())
	})
	return err
}

// jobs returns the copies to make, and sets the trees of the record.
func (f *SnapshotFiles) jobs() []Job {
	jobs := []Job{{What: "workspace", From: Tree{Volume: record.WorkspaceName(f.from.ID)}}}
	f.Record.Trees = []record.Tree{{Target: record.Workspace}}
	for _, m := range f.mounts {
		if m.Mode == record.RWCopy && m.Volume != "" {
			jobs = append(jobs, Job{What: m.Target, From: Tree{Volume: m.Volume}})
			f.Record.Trees = append(f.Record.Trees, record.Tree{Target: m.Target, Source: m.Source, Declared: m.Declared})
		}
	}
	if f.commits {
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

// copy runs the jobs while no process of the sandbox runs. It returns the image for containers
// with these files, and the attributes of the trees' root directories.
func (f *SnapshotFiles) copy(ctx context.Context, jobs []Job) (image string, roots []wire.Root, err error) {
	ref := record.SnapshotImage(f.Record.ID)
	f.undo.Add("image "+ref, func(ctx context.Context) error { return f.m.Store.Uncommit(ctx, ref, f.Record.Nonce) })
	k := NewCopier(f.m, f.from.Name, f.Record.Nonce, f.report)
	f.undo.Add("helper", k.Helper.Undo.Run)
	committed := ""
	var commit *AfterCopy
	if f.commits || f.Check != nil {
		commit = &AfterCopy{
			Do: func(ctx context.Context, got engine.Container) (err error) {
				if f.Check != nil {
					if err := f.Check(ctx, got); err != nil {
						return err
					}
				}
				if f.commits {
					committed, err = Commit(ctx, f.m, got, f.image, ref, f.Record.FrozenLabels(), false, f.report)
				}
				return err
			},
			Undo: func(ctx context.Context) error { return f.m.Store.Uncommit(ctx, ref, f.Record.Nonce) },
		}
	}
	got, err := CopyConsistent(ctx, k, f.from, jobs, commit)
	image, f.Record.ImageID = got.ImageID, got.ImageID
	if committed != "" {
		image, f.Record.ImageID = committed, ""
	}
	f.Record.Size = k.last.Bytes
	return image, k.last.Roots, err
}

// Commit commits a container to ref and returns the image's ID, or nothing if the container
// has no files of its own. The record of its processes alone counts only if processes is set. The
// end of ctx does not cancel it: the engine goes on, and its image would come after the undo.
func Commit(ctx context.Context, m *machine.Machine, got engine.Container, image engine.Image, ref string, labels map[string]string, processes bool, report *machine.Reporter) (string, error) {
	diff, err := m.Engine.DiffContainer(ctx, got.ID)
	if err != nil || unchanged(diff, got, processes) {
		return "", err
	}
	report.Report(machine.Progress{Step: "commit"})
	made, err := m.Store.Commit(context.WithoutCancel(ctx), got, image, ref, labels)
	return made.ID, err
}

// unchanged reports whether a container differs from its image in mount points only, and in the
// record of its processes unless processes is set.
func unchanged(diff []engine.Change, got engine.Container, processes bool) bool {
	return !slices.ContainsFunc(diff, func(c engine.Change) bool {
		if !processes && strings.HasPrefix(c.Path, wire.ProcessesFile) {
			return false
		}
		return c.Kind != engine.Added || !slices.ContainsFunc(got.Mounts, func(m engine.MountPoint) bool { return m.Target == c.Path })
	})
}

// ChangedPaths returns the paths of a container that differ from its image, sorted, except mount
// points, its working directory, and directories above these.
func ChangedPaths(ctx context.Context, m *machine.Machine, got engine.Container, workdir string) ([]string, error) {
	diff, err := m.Engine.DiffContainer(ctx, got.ID)
	var paths []string
	for _, c := range diff {
		above := func(dir string) bool { return dir == c.Path || strings.HasPrefix(dir, c.Path+"/") }
		if strings.HasPrefix(c.Path, wire.ProcessesFile) {
			continue
		}
		if c.Kind == engine.Deleted || !above(workdir) && !slices.ContainsFunc(got.Mounts, func(m engine.MountPoint) bool { return above(m.Target) }) {
			paths = append(paths, c.Path)
		}
	}
	slices.Sort(paths)
	return paths, err
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
	ref := record.SnapshotImage(f.Record.ID)
	return bound.Detached(ctx, store.UndoTimeout, "the image of the copied files was not removed", func(ctx context.Context) error {
		return errors.Join(
			engine.Retry(ctx, func() error { return f.m.Store.DropLayer(ctx, ref) }),
			engine.Retry(ctx, func() error {
				return claim.Drop(ctx, f.m.Engine, record.SnapshotMarker(f.Record.ID), f.Record.Nonce, "")
			}))
	})
}
