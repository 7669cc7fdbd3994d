package provision

import (
	"archive/tar"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/seed-1a2d6d8f/sandbox/internal/bound"
	"github.com/seed-1a2d6d8f/sandbox/internal/engine"
	"github.com/seed-1a2d6d8f/sandbox/internal/errdefs"
	"github.com/seed-1a2d6d8f/sandbox/internal/machine"
	"github.com/seed-1a2d6d8f/sandbox/internal/plan"
	"github.com/seed-1a2d6d8f/sandbox/internal/record"
	"github.com/seed-1a2d6d8f/sandbox/internal/transfer"
)

// An Origin supplies the files of a new sandbox before its first session starts: a live
// sandbox (fork) or a snapshot.
type Origin interface {
	// prepare sets the image to create the container from.
	prepare(context.Context, *Build) error
	// lower returns the directory that a new volume for target can be an overlay over, or
	// nothing, and the ID of its snapshot.
	lower(target string) (dir, id string)
	// beforeContainer is called when the volumes exist and the container does not.
	beforeContainer(context.Context, *Build) error
	// fill is called when the container exists and has not been started.
	fill(ctx context.Context, b *Build) error
}

// ErrTryAgain is the error of a build that failed in a way that the next try avoids.
var ErrTryAgain = errors.New("to be built in another way")

// Live is the origin of a fork: a sandbox in its present state.
type Live struct {
	Record    record.Sandbox
	Container engine.Container
	Image     engine.Image  // that the container was made from
	Plan      *plan.Sandbox // to make one like it
	base      string        // to make the container from
	commits   bool          // the container's own files have to be committed
}

// NewLive returns the sandbox of that name or ID as an origin, after its creation has
// finished.
func NewLive(ctx context.Context, m *machine.Machine, nameOrID string) (*Live, error) {
	rec, got, err := m.Store.AwaitCreated(ctx, nameOrID)
	if err != nil {
		return nil, err
	}
	if got.State == engine.StateRemoving {
		return nil, errdefs.NotFound
	}
	image, err := m.Store.ImageOf(ctx, got)
	if err != nil {
		return nil, err
	}
	o := &Live{Record: rec, Container: got, Image: image, base: got.ImageID}
	if slices.Contains(image.Tags, got.Image) {
		o.base = got.Image // else another image has that name by now
	}
	if o.Plan, err = plan.FromRecord(rec, got, image); err != nil {
		return nil, err
	}
	if o.Plan.Network, err = rec.Network().Parse(); err != nil {
		return nil, err
	}
	if o.Plan.OCIRuntime == "runc" {
		o.Plan.OCIRuntime = "" // the default of every engine
	}
	return o, nil
}

func (o *Live) prepare(ctx context.Context, b *Build) error {
	b.Record.Settings.Source, b.Record.Settings.Snapshot, b.Record.Settings.ForkOf = forkOf(o.Record.Name), o.Record.Settings.Snapshot, o.Record.ID
	if b.Plan.Has(plan.Image) {
		// It is checked again while the source is paused. But a pull takes long.
		return o.CheckNoFiles(ctx, b.Machine, o.Container)
	}
	b.image, b.base, b.usualUser = o.Image, o.base, o.Record.Settings.User
	layer, err := b.Machine.LayerOf(ctx, o.Container)
	o.commits = o.commits || layer == (machine.Layer{})
	return err
}

// CheckNoFiles fails if the sandbox, which has this container by now, has files of its own outside
// of volumes: then a fork of it can't have another image.
func (o *Live) CheckNoFiles(ctx context.Context, m *machine.Machine, got engine.Container) error {
	changed, err := transfer.ChangedPaths(ctx, m, got, o.Record.Settings.Workdir)
	if err != nil || len(changed) == 0 {
		return err
	}
	text := strings.Join(changed[:min(len(changed), shownPaths)], " ")
	if len(changed) > shownPaths {
		text += " …"
	}
	return errdefs.Invalid("it can't have another image: %d paths of %q outside of volumes differ from its own image: %s", len(changed), o.Record.Name, errdefs.Printable(text))
}

// shownPaths bounds the paths in an error, beside their number.
const shownPaths = 5

// WithoutUser makes the plan of a fork that gets another image leave out the user if that is the
// image's.
func (o *Live) WithoutUser() {
	if o.Plan.User == o.Image.User {
		o.Plan.User = ""
	}
}

// forkOf returns the text for the source of a fork.
func forkOf(sandbox string) string { return "fork of " + sandbox }

func (o *Live) lower(string) (dir, id string) { return "", "" }

// jobs returns the copies of the source's volumes into those of b.
func (o *Live) jobs(b *Build) []transfer.Job {
	jobs := []transfer.Job{{What: "workspace", From: transfer.Tree{Volume: record.WorkspaceName(o.Record.ID)},
		To: transfer.Tree{Volume: record.WorkspaceName(b.Record.ID)}, Labels: b.Record.VolumeLabels(record.RoleWorkspace)}}
	return append(jobs, b.forked...)
}

// beforeContainer commits the container's own files if they can't be copied.
func (o *Live) beforeContainer(ctx context.Context, b *Build) error {
	if !o.commits {
		return nil
	}
	return o.copy(ctx, b, o.jobs(b), &transfer.AfterCopy{
		Do: func(ctx context.Context, got engine.Container) (err error) {
			if b.base, err = b.layer(ctx, got, false); err != nil {
				return err
			}
			return b.placeAgain(ctx, b.base)
		},
		Undo: b.dropLayer,
	})
}

// fill copies the files unless beforeContainer has.
func (o *Live) fill(ctx context.Context, b *Build) error {
	if o.commits {
		return nil
	}
	if b.Plan.Has(plan.Image) {
		return o.copy(ctx, b, o.jobs(b), &transfer.AfterCopy{
			Do:   func(ctx context.Context, got engine.Container) error { return o.CheckNoFiles(ctx, b.Machine, got) },
			Undo: func(context.Context) error { return nil },
		})
	}
	made, err := b.Engine.InspectContainer(ctx, record.ContainerName(b.Record.Name))
	if err != nil {
		return err
	}
	to, err := b.Machine.FreshLayer(ctx, made)
	if err != nil {
		return err
	}
	layer := transfer.Job{What: "files of the container", To: transfer.Tree{Layer: to}, Layer: true, Check: b.paths()}
	err = o.copy(ctx, b, append(o.jobs(b), layer), nil)
	if errors.Is(err, transfer.ErrNoLayer) {
		o.commits = true
		b.Log.Warn("files outside of volumes are committed", "sandbox", o.Record.Name, "error", err)
		err = fmt.Errorf("%w: %w", ErrTryAgain, err)
	}
	return err
}

func (o *Live) copy(ctx context.Context, b *Build, jobs []transfer.Job, then *transfer.AfterCopy) error {
	k := transfer.NewCopier(b.Machine, b.Record.Name, b.Record.Nonce, b.report)
	b.undo.Add("helper", k.Helper.Undo.Run)
	for i := range jobs {
		jobs[i].Again = b.mayHaveMountPoints()
	}
	_, err := transfer.CopyConsistent(ctx, k, o.Record, jobs, then)
	if err == nil {
		b.ownLayer = k.OwnLayer(0, jobs)
	}
	return err
}

// mayHaveMountPoints reports whether the engine has made mount points in volumes that are still to be
// filled: with containerd's image store it does, to find the container's own layer.
func (b *Build) mayHaveMountPoints() bool { return plan.Nested(b.placed[0], b.mounted, true) }

// Stored is the origin that is a snapshot, or the copied files that several forks share.
type Stored struct {
	rec      record.SnapshotRecord
	recorded bool
	dirs     map[string]string // of trees that volumes can be laid over, by target
	again    bool              // an earlier try may have left something
	copies   bool              // an earlier try could not use overlays
}

// FromSnapshot returns the snapshot of that ID as an origin.
func FromSnapshot(id string) *Stored {
	return &Stored{rec: record.SnapshotRecord{ID: id}, recorded: true}
}

// FromFiles returns as an origin the files that were copied for several forks.
func FromFiles(rec record.SnapshotRecord) *Stored { return &Stored{rec: rec} }

func (o *Stored) prepare(ctx context.Context, b *Build) error {
	if o.recorded {
		if err := o.adopt(ctx, b); err != nil {
			return err
		}
	} else {
		b.Record.Settings.Snapshot, b.Record.Settings.Source, b.Record.Settings.ForkOf = o.rec.Parent, forkOf(o.rec.Sandbox), o.rec.SandboxID
	}
	if b.Plan.Has(plan.Image) && !o.recorded {
		b.base = "" // that of the plan
		o.rec.Trees = slices.DeleteFunc(slices.Clone(o.rec.Trees), func(t record.Tree) bool { return t.Target == "" })
		return o.findLowers(ctx, b)
	}
	b.usualUser = o.rec.User
	if err := o.setImage(ctx, b); err != nil {
		return err
	}
	return o.findLowers(ctx, b)
}

// findLowers finds the trees that volumes can be laid over.
func (o *Stored) findLowers(ctx context.Context, b *Build) error {
	if o.dirs = map[string]string{}; b.Machine.Overlays() && !o.copies {
		return o.checkTrees(ctx, b, func(t record.Tree, v engine.Volume) {
			if t.Target != "" {
				o.dirs[t.Target] = v.Mountpoint
			}
		})
	}
	return nil
}

// setImage makes the snapshot's image the one that the container is created from.
func (o *Stored) setImage(ctx context.Context, b *Build) (err error) {
	b.base = record.SnapshotImage(o.rec.ID)
	b.image, err = b.Engine.InspectImage(ctx, b.base)
	if errors.Is(err, engine.ErrNotFound) {
		b.image, err = o.restoreImage(ctx, b)
	}
	return err
}

// checkTrees fails if volumes with the snapshot's files were removed, and calls found for each.
func (o *Stored) checkTrees(ctx context.Context, b *Build, found func(record.Tree, engine.Volume)) error {
	for _, t := range o.rec.Trees {
		v, err := b.Engine.InspectVolume(ctx, t.Volume)
		if errors.Is(err, engine.ErrNotFound) {
			return fmt.Errorf("%w: its volume %s was removed", errdefs.SnapshotNotFound, t.Volume)
		}
		if err != nil {
			return err
		}
		found(t, v)
	}
	return nil
}

// restoreImage gives the snapshot its image again, which "docker image prune -a" removes: no
// container uses it. An image that was committed for the snapshot can't be restored.
func (o *Stored) restoreImage(ctx context.Context, b *Build) (engine.Image, error) {
	const pruned = "was removed, as \"docker image prune -a\" does"
	if o.rec.ImageID == "" {
		return engine.Image{}, fmt.Errorf("%w: the image %s, which had files of the snapshot, %s: it can't be restored", errdefs.ImageNotFound, b.base, pruned)
	}
	image, err := b.Engine.InspectImage(ctx, o.rec.ImageID)
	if errors.Is(err, engine.ErrNotFound) {
		image, err = b.Machine.EnsureImage(ctx, o.rec.Image, true, b.Plan.From, b.slot, b.report)
	}
	if err != nil {
		return image, fmt.Errorf("the image of the snapshot %s: %w", pruned, err)
	}
	if image.ID != o.rec.ImageID {
		return image, fmt.Errorf("%w: the image of the snapshot %s, and %s is another one by now: it takes the image with ID %s",
			errdefs.ImageNotFound, pruned, o.rec.Image, o.rec.ImageID)
	}
	return image, bound.Finish(ctx, func(ctx context.Context) error { return b.Engine.TagImage(ctx, image.ID, b.base) })
}

// adopt takes over the snapshot's settings that the caller did not set.
func (o *Stored) adopt(ctx context.Context, b *Build) error {
	var err error
	if o.rec, err = b.Store.FindSnapshot(ctx, o.rec.ID); err != nil {
		return err
	}
	b.Plan.User = cmp.Or(b.Plan.User, o.rec.User)
	b.Plan.Image, b.Record.Settings.Image = o.rec.Image, o.rec.Image
	b.Record.Settings.Source, b.Record.Settings.Snapshot = "snapshot "+o.rec.ID, o.rec.ID
	for _, t := range o.rec.Trees {
		if t.Target != "" && t.Target != record.Workspace && !slices.ContainsFunc(b.mounted, func(m record.Mount) bool { return m.Target == t.Target }) {
			b.mounted = append(b.mounted, record.Mount{Source: t.Source, Volume: t.Volume, Target: t.Target, Mode: record.RWCopy, Declared: t.Declared})
		}
	}
	return nil
}

func (o *Stored) lower(target string) (dir, id string) { return o.dirs[target], o.rec.ID }

func (o *Stored) beforeContainer(context.Context, *Build) error { return nil }

// jobs returns the copies of the snapshot's files into the container and the volumes of b, and
// the trees of which only the root directory has to be copied, because a volume is an overlay
// over them.
func (o *Stored) jobs(ctx context.Context, b *Build, made engine.Container) (jobs []transfer.Job, roots []record.Tree, err error) {
	var last []transfer.Job
	for _, t := range o.rec.Trees {
		to, labels, has := o.volumeOf(b, t)
		switch {
		case t.Target == "":
			layer, err := b.Machine.FreshLayer(ctx, made)
			if err != nil {
				return nil, nil, err
			}
			if layer == (machine.Layer{}) {
				return nil, nil, errdefs.Classify(errdefs.Unsupported, errors.New("the snapshot was made with another storage driver than the engine has now"))
			}
			jobs = append(jobs, transfer.Job{What: "files of the container", From: transfer.Tree{Volume: t.Volume}, To: transfer.Tree{Layer: layer}, Layer: true,
				Check: b.paths()})
		case !has:
		case o.dirs[t.Target] != "":
			roots = append(roots, t)
			last = append(last, transfer.Job{What: t.Target, From: transfer.Tree{Volume: t.Volume}, To: to, Labels: labels, Root: true})
		default:
			jobs = append(jobs, transfer.Job{What: t.Target, From: transfer.Tree{Volume: t.Volume}, To: to, Labels: labels, Again: o.again || b.mayHaveMountPoints()})
		}
	}
	return append(jobs, last...), roots, nil
}

// volumeOf returns the volume of b for a tree's files, if there is one.
func (o *Stored) volumeOf(b *Build, t record.Tree) (transfer.Tree, map[string]string, bool) {
	if t.Target == record.Workspace {
		return transfer.Tree{Volume: record.WorkspaceName(b.Record.ID)}, b.Record.VolumeLabels(record.RoleWorkspace), true
	}
	for _, f := range b.forked {
		if f.From.Volume == t.Volume {
			return f.To, f.Labels, true
		}
	}
	return transfer.Tree{}, nil, false
}

func (o *Stored) fill(ctx context.Context, b *Build) error {
	made, err := b.Engine.InspectContainer(ctx, record.ContainerName(b.Record.Name))
	if err != nil {
		return err
	}
	jobs, roots, err := o.jobs(ctx, b, made)
	if err != nil {
		return err
	}
	k := transfer.NewCopier(b.Machine, b.Record.Name, b.Record.Nonce, b.report)
	// An archive to the engine has no extended attributes of a directory.
	if len(jobs) > len(roots) || slices.ContainsFunc(roots, func(t record.Tree) bool { return t.Xattrs }) {
		b.undo.Add("helper", k.Helper.Undo.Run)
		err = k.Copy(ctx, jobs)
	} else if len(roots) > 0 && plan.Nested(b.placed[0], b.mounted, true) {
		// The engine would make mounts at paths in the snapshot's files.
		b.undo.Add("helper", k.Helper.Undo.Run)
		err = k.Copy(ctx, jobs)
	} else if len(roots) > 0 {
		err = b.Engine.CopyTo(ctx, made.ID, "/", rootsArchive(roots))
		if err != nil && ctx.Err() == nil && !errors.Is(err, engine.ErrUnavailable) {
			err = fmt.Errorf("%w: %w", machine.ErrHelperNotStarted, err)
		}
	}
	b.ownLayer = k.OwnLayer(0, jobs)
	if errors.Is(err, machine.ErrHelperNotStarted) && len(roots) > 0 {
		o.copies = true
		if engine.IsMountError(err) {
			b.Log.Warn("snapshots are copied from now on: the engine mounts no overlays", "error", err)
			b.Machine.DisableOverlays()
		}
		return fmt.Errorf("%w: a volume over a snapshot's files: %w", ErrTryAgain, err)
	}
	if err != nil || !o.recorded {
		return err
	}
	return o.recheck(ctx, b)
}

// recheck fails if the snapshot was deleted. A deletion removes the record before it checks
// whether the files are in use: so it either finds what we made, or we find no record.
func (o *Stored) recheck(ctx context.Context, b *Build) error {
	now, err := b.Store.FindSnapshot(ctx, o.rec.ID)
	if err == nil && now.Nonce != o.rec.Nonce {
		err = errdefs.SnapshotNotFound
	}
	return err
}

// FillMany fills builds of the same files with a single helper. When it fails they have to be
// filled one by one.
func FillMany(ctx context.Context, builds []*Build) error {
	first := builds[0]
	k := transfer.NewCopier(first.Machine, first.Record.Name, first.Record.Nonce, first.report)
	var all []transfer.Job
	var each [][]transfer.Job
	for _, b := range builds {
		o := b.origin.(*Stored)
		made, err := b.Engine.InspectContainer(ctx, record.ContainerName(b.Record.Name))
		if err != nil {
			return err
		}
		jobs, _, err := o.jobs(ctx, b, made)
		if err != nil {
			return err
		}
		o.again = true
		all, each = append(all, jobs...), append(each, jobs)
	}
	if err := k.Copy(ctx, all); err != nil {
		return errors.Join(err, k.Helper.Undo.Run(ctx))
	}
	done := 0
	for i, jobs := range each {
		builds[i].ownLayer = k.OwnLayer(done, jobs)
		done += len(jobs)
	}
	return nil
}

// rootsArchive returns an archive of the trees' root directories, whose attributes an overlay
// takes from its new upper layer.
func rootsArchive(trees []record.Tree) *bytes.Reader {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, t := range trees {
		mtime := time.Unix(0, t.Mtime)
		w.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: strings.TrimPrefix(t.Target, "/") + "/", Mode: int64(t.Mode), Uid: int(t.UID), Gid: int(t.GID),
			ModTime: mtime, AccessTime: mtime, Format: tar.FormatPAX})
	}
	w.Close()
	return bytes.NewReader(b.Bytes())
}
