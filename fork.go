package sandbox

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/seed-1a2d6d8f/sandbox/internal/cluster"
	"github.com/seed-1a2d6d8f/sandbox/internal/errdefs"
	"github.com/seed-1a2d6d8f/sandbox/internal/lifecycle"
	"github.com/seed-1a2d6d8f/sandbox/internal/record"
	"github.com/seed-1a2d6d8f/sandbox/internal/store"
	"github.com/seed-1a2d6d8f/sandbox/internal/trace"
)

// Fork creates a sandbox with the current files of another one, and starts its session.
// It copies the container's own files, the workspace and every copy of a directory;
// attached volumes and mounted directories are shared. Later changes to the copied files
// in one of the two do not appear in the other.
//
// The new sandbox has the settings of the source, as last updated ([Sandbox.Update]).
// Each option replaces the source's value as a whole: [WithTags] all tags, [WithEnv] all
// variables, [WithMounts] all mounts. [WithoutTag], [WithoutEnv] and [WithoutMount] take single
// ones away. [WithImage] and [WithRuntime] give the fork another image, with the source's
// volumes, if nothing else of the source's files differs from its own image; otherwise the error
// is [ErrInvalidArgument] and names the first paths. The other image then sets the user,
// unless [WithUser] does. The name and the ID are new, by the rules of
// [Create]: with [WithName] it is persistent, without a name it is not, whatever the source is, unless
// [WithPersistent] says otherwise. Values that a policy's transforms set are not stored
// and so not inherited: [WithNetworkPolicy] sets them again.
//
// The source may be running or stopped, persistent or not, and keeps its state. The processes
// of a running source are stopped while its files are copied, and go on 10 s later at most if
// this process dies meanwhile. Where they can't be stopped the engine pauses the source; if
// this process dies then, the first [Get], [List] or command 30 s later unpauses it, and
// earlier ones wait. A source that was already paused stays paused. If the source is stopped, started
// or unpaused meanwhile the copy starts again; if that happens three times the error is [syscall.EBUSY]. Sockets, files
// on a tmpfs and processes are not copied.
//
// An engine with another storage driver than an overlay commits the container's own files, if there
// are any, before the processes go on. That takes about 5 s for a gigabyte. Times are kept to the
// second, and of the extended attributes only capabilities.
func Fork(ctx context.Context, source string, opts ...ForkOption) (*Sandbox, error) {
	return defaultClient().Fork(ctx, source, opts...)
}

// Fork is the package's [Fork] on the client's engine.
func (c *Client) Fork(ctx context.Context, source string, opts ...ForkOption) (_ *Sandbox, err error) {
	ctx, span := trace.Start(ctx, "sandbox.fork", trace.Source(source))
	defer span.End(&err)
	defer wrap(&err, "fork", source)
	o, err := c.forkOrder(source, opts, 0)
	if err != nil {
		return nil, err
	}
	defer o.Report.Silence()
	var h *lifecycle.Handle
	err = c.withSandbox(ctx, source, func(l *lifecycle.Client) (err error) {
		h, err = l.Fork(ctx, source, o)
		return err
	})
	return traced(span, h), err
}

// Fork is the package's [Fork] of this sandbox. The handle is not changed, and the caller closes the
// new one.
func (s *Sandbox) Fork(ctx context.Context, opts ...ForkOption) (_ *Sandbox, err error) {
	ctx, span := trace.Start(ctx, "sandbox.fork", trace.Source(s.Name()))
	defer span.End(&err)
	defer wrap(&err, "fork", s.Name())
	o, err := s.forkOrder(opts, 0)
	if err != nil {
		return nil, err
	}
	defer o.Report.Silence()
	h, err := s.h.Fork(ctx, o)
	return traced(span, h), err
}

// forkOrder validates the options. n is the number of forks of
// [Client.ForkN], or 0.
func (c *Client) forkOrder(source string, opts []ForkOption, n int) (*lifecycle.CreateOptions, error) {
	if err := checkName(source); err != nil {
		return nil, err
	}
	return c.settings().fork(opts, n)
}

func (s *Sandbox) forkOrder(opts []ForkOption, n int) (*lifecycle.CreateOptions, error) {
	o, err := settingsOn(s.h.Client()).fork(opts, n)
	if err != nil {
		return nil, err
	}
	return o, s.h.CheckUsable()
}

// fork applies the options of n forks, which can't share an ID, or of one if n is 0.
func (s *settings) fork(opts []ForkOption, n int) (*lifecycle.CreateOptions, error) {
	apply(opts, func(o ForkOption) { o.applyFork(s) })
	if s.ID != "" && n > 0 {
		return nil, errdefs.Invalid("WithID: %d sandboxes can't have one ID", n)
	}
	return s.request(), s.Numbered(n).Complete()
}

// A ForkResult is the result for one of the sandboxes of [ForkN]: the sandbox, which the
// caller closes, or the error.
type ForkResult struct {
	Sandbox *Sandbox
	Err     error
}

// ForkN creates n forks of the same moment, as [Fork] does, at most 256: the source's
// processes are stopped once and its files are copied once; the new sandboxes share them if
// the engine can mount overlays. With [WithName] the names get the suffixes -1, -2 …; [WithID] is an
// error.
//
// If one fork fails the others are still created. There are n results, or none if the
// source's files could not be copied. The error joins the errors of the results.
func ForkN(ctx context.Context, source string, n int, opts ...ForkOption) ([]ForkResult, error) {
	return defaultClient().ForkN(ctx, source, n, opts...)
}

// ForkN is the package's [ForkN] on the client's engine.
func (c *Client) ForkN(ctx context.Context, source string, n int, opts ...ForkOption) (_ []ForkResult, err error) {
	ctx, span := trace.Start(ctx, "sandbox.fork_n", trace.Source(source))
	defer span.End(&err)
	defer wrap(&err, "fork", source)
	if err := checkForks(n); err != nil {
		return nil, err
	}
	o, err := c.forkOrder(source, opts, n)
	if err != nil {
		return nil, err
	}
	defer o.Report.Silence()
	var made []lifecycle.Fork
	err = c.withSandbox(ctx, source, func(l *lifecycle.Client) (err error) {
		made, err = l.ForkN(ctx, source, n, o)
		return err
	})
	return forkResults(made, err)
}

// ForkN is the package's [ForkN] of this sandbox. The handle is not changed, and the caller closes
// the new ones.
func (s *Sandbox) ForkN(ctx context.Context, n int, opts ...ForkOption) (_ []ForkResult, err error) {
	ctx, span := trace.Start(ctx, "sandbox.fork_n", trace.Source(s.Name()))
	defer span.End(&err)
	defer wrap(&err, "fork", s.Name())
	if err := checkForks(n); err != nil {
		return nil, err
	}
	o, err := s.forkOrder(opts, n)
	if err != nil {
		return nil, err
	}
	defer o.Report.Silence()
	return forkResults(s.h.ForkN(ctx, n, o))
}

func forkResults(made []lifecycle.Fork, err error) (results []ForkResult, _ error) {
	for _, r := range made {
		results = append(results, ForkResult{newSandbox(r.Handle), fail("fork", r.Name, r.Err)})
		err = errors.Join(err, results[len(results)-1].Err)
	}
	return results, err
}

// maxForks bounds one ForkN, so that a mistyped number does not fill an engine.
const maxForks = 256

func checkForks(n int) error {
	if n < 1 || n > maxForks {
		return errdefs.Invalid("%d forks; one call makes 1 to %d", n, maxForks)
	}
	return nil
}

// A Snapshot contains the files of a sandbox at one moment: the container's own files,
// the workspace and every copy of a directory. It never changes and outlives the sandbox.
type Snapshot struct {
	ID   string `json:"id"`
	Name string `json:"name,omitempty"`
	// Sandbox and SandboxID identify the sandbox, which may no longer exist.
	Sandbox   string `json:"sandbox"`
	SandboxID string `json:"sandboxId"`
	// Parent is the snapshot that the sandbox, or the source it was forked from, was
	// created from or rolled back to before, if any. It may no longer exist.
	Parent    string    `json:"parent,omitempty"`
	CreatedAt time.Time `json:"createdAt"`
	// ExpiresAt is when the snapshot may be removed, unless it is in use; zero is never.
	ExpiresAt time.Time `json:"expiresAt,omitzero"`
	// SizeBytes is the size of its files, without the image's.
	SizeBytes int64  `json:"sizeBytes"`
	Image     string `json:"image"`
	// Volumes are the volumes that share its files. While there are any it can't be
	// deleted.
	Volumes []string `json:"volumes,omitempty"`
	// Copied is what [Sandbox.Snapshot] has copied and left out, as in [Sandbox.Copied]. Only its
	// result has it.
	Copied *CopyReport `json:"copied,omitempty"`
}

// SnapshotOptions configure [Sandbox.Snapshot]. The zero value takes a snapshot without a name that
// is kept until it is deleted.
type SnapshotOptions struct {
	// Name is for people: several snapshots may have the same name. The rule for names of
	// sandboxes applies.
	Name string
	// Expiry is the time after which any program that sweeps may remove the snapshot, unless
	// volumes share its files. 0 is never.
	Expiry time.Duration
	// KeepLast is how many snapshots of the sandbox stay: once this one is created, older ones are
	// removed, except those whose files volumes share. 0 keeps all.
	KeepLast int
	// Progress, if not nil, is called with the steps of the call, by the rules of [WithProgress].
	Progress func(Progress)
}

// Check returns all that is wrong with the options, as [Sandbox.Snapshot] does, without an engine.
func (o SnapshotOptions) Check() error {
	var errs []error
	if o.Name != "" {
		errs = append(errs, checkSnapshotName(o.Name))
	}
	if o.Expiry < 0 {
		errs = append(errs, errdefs.Invalid("SnapshotOptions.Expiry: %v is negative", o.Expiry))
	}
	if o.KeepLast < 0 {
		errs = append(errs, errdefs.Invalid("SnapshotOptions.KeepLast: %d is negative", o.KeepLast))
	}
	return errors.Join(errs...)
}

// checkSnapshotName fails if no snapshot can have the name.
func checkSnapshotName(name string) error {
	if !record.ValidName(name) {
		return errdefs.Invalid("%q is not a snapshot's name: use %s", name, record.NameRule)
	}
	return nil
}

// Snapshot stores the sandbox's current files. The sandbox keeps its state; as in [Fork]
// the processes of a running one are stopped while its files are copied. [FromSnapshot] creates sandboxes
// with these files.
func (s *Sandbox) Snapshot(ctx context.Context, o SnapshotOptions) (_ Snapshot, err error) {
	ctx, span := trace.Start(ctx, "sandbox.snapshot", s.h.Trace()...)
	defer span.End(&err)
	defer wrap(&err, "snapshot", s.Name())
	if err := o.Check(); err != nil {
		return Snapshot{}, err
	}
	if err := s.h.CheckUsable(); err != nil {
		return Snapshot{}, err
	}
	report := newReporter(o.Progress)
	defer report.Silence()
	rec, err := s.h.Snapshot(ctx, o.Name, o.Expiry, o.KeepLast, report)
	if err != nil {
		return Snapshot{}, err
	}
	snap, copied := snapshotOf(rec, nil), reportOf(report.Copied())
	snap.Copied = &copied
	return snap, nil
}

func snapshotOf(rec record.SnapshotRecord, volumes []string) Snapshot {
	return Snapshot{ID: rec.ID, Name: rec.Name, Sandbox: rec.Sandbox, SandboxID: rec.SandboxID, Parent: rec.Parent,
		CreatedAt: rec.CreatedAt, ExpiresAt: rec.ExpiresAt, SizeBytes: rec.Size, Image: rec.Image, Volumes: volumes}
}

// ListSnapshotsOptions select what [ListSnapshots] lists. The zero value selects every snapshot.
type ListSnapshotsOptions struct {
	// Sandbox selects the snapshots of the sandbox with this name or ID, which may no longer
	// exist. Snapshots of an earlier sandbox of the same name match too.
	Sandbox string
	// Name selects the snapshots of this name, see [SnapshotOptions].
	Name string
}

func (o ListSnapshotsOptions) check() error {
	var errs []error
	if o.Sandbox != "" {
		errs = append(errs, checkName(o.Sandbox))
	}
	if o.Name != "" {
		errs = append(errs, checkSnapshotName(o.Name))
	}
	return errors.Join(errs...)
}

func (o ListSnapshotsOptions) match(s Snapshot) bool {
	return (o.Sandbox == "" || s.Sandbox == o.Sandbox || s.SandboxID == o.Sandbox) && (o.Name == "" || s.Name == o.Name)
}

// ListSnapshots lists the snapshots on the engine, newest first, in one call.
func ListSnapshots(ctx context.Context, o ListSnapshotsOptions) ([]Snapshot, error) {
	return defaultClient().ListSnapshots(ctx, o)
}

// ListSnapshots is the package's [ListSnapshots] on the client's engine.
func (c *Client) ListSnapshots(ctx context.Context, o ListSnapshotsOptions) (_ []Snapshot, err error) {
	ctx, span := trace.Start(ctx, "sandbox.list_snapshots")
	defer span.End(&err)
	defer wrap(&err, "list snapshots", "")
	if err := o.check(); err != nil {
		return nil, err
	}
	all, missing, err := eachEngine(ctx, c, func(ctx context.Context, l *lifecycle.Client) (some []Snapshot, _ error) {
		recs, sharers, err := l.Store.ListSnapshots(ctx)
		for _, rec := range recs {
			if s := snapshotOf(rec, sharers[rec.ID]); o.match(s) {
				some = append(some, s)
			}
		}
		return some, err
	})
	if err != nil {
		return nil, err
	}
	if c.swarm != nil {
		slices.SortStableFunc(all, func(a, b Snapshot) int { return b.CreatedAt.Compare(a.CreatedAt) })
	}
	return all, cluster.Unanswered(missing)
}

// GetSnapshot returns the snapshot with that ID. If there is none the error is
// [ErrSnapshotNotFound].
func GetSnapshot(ctx context.Context, id string) (Snapshot, error) {
	return defaultClient().GetSnapshot(ctx, id)
}

// GetSnapshot is the package's [GetSnapshot] on the client's engine.
func (c *Client) GetSnapshot(ctx context.Context, id string) (got Snapshot, err error) {
	ctx, span := trace.Start(ctx, "sandbox.get_snapshot")
	defer span.End(&err)
	defer wrap(&err, "get snapshot", id)
	if err := checkSnapshotID(id); err != nil {
		return Snapshot{}, err
	}
	err = c.withVolume(ctx, record.SnapshotName(id), func(l *lifecycle.Client) error {
		rec, err := l.Store.FindSnapshot(ctx, id)
		if err != nil {
			return err
		}
		volumes, err := l.Store.SharersOf(ctx, id)
		got = snapshotOf(rec, volumes)
		return err
	})
	return got, err
}

// checkSnapshotID fails if no snapshot can have the ID.
func checkSnapshotID(id string) error {
	if !record.ValidName(id) {
		return errdefs.Invalid("%q is not a snapshot's ID: use %s", id, record.NameRule)
	}
	return nil
}

// Rollback replaces the files of the sandbox by the files of a snapshot: the container's own files,
// the workspace, every copy of a directory and the volumes that its image declares. Files that are not
// in the snapshot are removed. The name, the ID, the settings and the names of the volumes stay, the
// image becomes the snapshot's. Attached volumes and mounted directories, which others may use, do not
// change.
//
// The snapshot may be of any sandbox that has copies of directories at the same targets. If
// the targets differ the error is [ErrInvalidArgument] and names the difference; for an unknown
// snapshot it is [ErrSnapshotNotFound]. While another sandbox mounts the workspace or a copy of
// this one the error is [ErrVolumeInUse].
//
// A running session ends as in [Sandbox.Stop], with all its commands, and another one is
// started, which calls [OnResume]. A stopped sandbox stays stopped. As after an [Sandbox.Update]
// that needs a new container, the log of earlier sessions is lost. Other calls that need the
// files wait for the rollback; what they do at the same moment may be lost.
//
// The sandbox always has either all of its own files or all of the snapshot's, also if this
// process dies during the call. What was copied is then removed, or the rest is copied by the
// next call that uses the sandbox. So after an [ErrEngineUnavailable], or if ctx ended, it can be
// either; the call can be repeated. The workspace and the copies of directories are emptied and
// filled while no session runs. If that fails, as on a full disk, calls that need the files try
// again and fail with the same error until they succeed; the sandbox can still be deleted.
func (s *Sandbox) Rollback(ctx context.Context, snapshotID string) (err error) {
	ctx, span := trace.Start(ctx, "sandbox.rollback", s.h.Trace()...)
	defer span.End(&err)
	defer wrap(&err, "roll back", s.Name())
	if err := checkSnapshotID(snapshotID); err != nil {
		return err
	}
	return s.h.Rollback(ctx, snapshotID)
}

// DeleteSnapshot removes a snapshot permanently. While volumes share its files, also
// preserved ones, the error is [ErrSnapshotInUse]. Snapshots of sandboxes that were
// created from it, or rolled back to it, do not depend on it.
func DeleteSnapshot(ctx context.Context, id string) error {
	return defaultClient().DeleteSnapshot(ctx, id)
}

// DeleteSnapshot is the package's [DeleteSnapshot] on the client's engine.
func (c *Client) DeleteSnapshot(ctx context.Context, id string) (err error) {
	ctx, span := trace.Start(ctx, "sandbox.delete_snapshot")
	defer span.End(&err)
	defer wrap(&err, "delete snapshot", id)
	if err := checkSnapshotID(id); err != nil {
		return err
	}
	return c.withVolume(ctx, record.SnapshotName(id), func(l *lifecycle.Client) error {
		rec, err := l.Store.FindSnapshot(ctx, id)
		if err != nil {
			return err
		}
		return l.Store.DropSnapshot(ctx, rec)
	})
}

// A SnapshotNode is a snapshot or a sandbox in [SnapshotTree].
type SnapshotNode struct {
	// Kind is [SnapshotKind] or [SandboxKind].
	Kind string `json:"kind"`
	// Snapshot describes a snapshot. Of a sandbox it has the ID, the Name, the Image, the time of
	// its creation, as Sandbox and SandboxID name and ID again, and as Parent the snapshot that
	// the sandbox, or the source it was forked from, was created from or rolled back to.
	Snapshot
	// ForkOf is the ID of the sandbox that this one was forked from, which may no longer exist.
	ForkOf string `json:"forkOf,omitempty"`
	// Children came from this one, the oldest first. It is never nil.
	Children []*SnapshotNode `json:"children"`
}

// The values of [SnapshotNode.Kind].
const (
	SnapshotKind = "snapshot"
	SandboxKind  = "sandbox"
)

// SnapshotTree returns all snapshots and sandboxes on the engine, each below the one that its
// files came from, and those that came from none that still exists. A fork is below its source.
// Otherwise a sandbox is below the snapshot that it was created from, or rolled back to since. A
// snapshot is below its sandbox, or, if that was rolled back or deleted since, below the snapshot
// that the sandbox came from then.
func SnapshotTree(ctx context.Context) ([]*SnapshotNode, error) {
	return defaultClient().SnapshotTree(ctx)
}

// SnapshotTree is the package's [SnapshotTree] on the client's engine.
func (c *Client) SnapshotTree(ctx context.Context) (_ []*SnapshotNode, err error) {
	ctx, span := trace.Start(ctx, "sandbox.snapshot_tree")
	defer span.End(&err)
	defer wrap(&err, "list snapshots", "")
	nodes, missing, err := eachEngine(ctx, c, func(ctx context.Context, l *lifecycle.Client) ([]*SnapshotNode, error) {
		all, err := l.Store.List(ctx)
		return treeNodes(all), err
	})
	if err != nil {
		return nil, err
	}
	return forest(nodes), cluster.Unanswered(missing)
}

// treeNodes returns the snapshots and sandboxes of an engine, without their children.
func treeNodes(all store.Inventory) (nodes []*SnapshotNode) {
	snapshots, sharers := all.Snapshots()
	for _, rec := range snapshots {
		nodes = append(nodes, &SnapshotNode{Kind: SnapshotKind, Snapshot: snapshotOf(rec, sharers[rec.ID])})
	}
	for _, got := range all.Containers {
		rec := got.Record
		if !got.IsSandbox || all.Abandoned(rec) {
			continue
		}
		nodes = append(nodes, &SnapshotNode{Kind: SandboxKind, ForkOf: rec.Settings.ForkOf, Snapshot: Snapshot{
			ID: rec.ID, Name: rec.Name, Sandbox: rec.Name, SandboxID: rec.ID, Parent: rec.Settings.Snapshot,
			CreatedAt: rec.CreatedAt, Image: cmp.Or(rec.Settings.Image, got.Container.Image),
		}})
	}
	return nodes
}

// forest puts each node below the one it came from, and returns the others.
func forest(nodes []*SnapshotNode) []*SnapshotNode {
	slices.SortFunc(nodes, func(a, b *SnapshotNode) int {
		return cmp.Or(a.CreatedAt.Compare(b.CreatedAt), cmp.Compare(a.ID, b.ID))
	})
	snapshots, sandboxes := map[string]*SnapshotNode{}, map[string]*SnapshotNode{}
	for _, n := range nodes {
		n.Children = []*SnapshotNode{}
		if n.Kind == SnapshotKind {
			snapshots[n.ID] = n
		} else {
			sandboxes[n.ID] = n
		}
	}
	from := func(n *SnapshotNode) *SnapshotNode {
		of := sandboxes[n.ForkOf]
		if n.Kind == SnapshotKind {
			of = sandboxes[n.SandboxID]
		}
		if of != nil && of.Parent == n.Parent { // else it was rolled back since
			return of
		}
		return snapshots[n.Parent]
	}
	roots := []*SnapshotNode{}
	for _, n := range nodes {
		parent := from(n)
		// Labels may describe a circle: then all of it are roots.
		for up, steps := parent, 0; up != nil && steps < len(nodes); up, steps = from(up), steps+1 {
			if up == n {
				parent = nil
				break
			}
		}
		if parent == nil {
			roots = append(roots, n)
		} else {
			parent.Children = append(parent.Children, n)
		}
	}
	return roots
}
