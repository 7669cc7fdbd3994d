package sandbox

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/seed-1a2d6d8f/sandbox/internal/engine"
	"github.com/seed-1a2d6d8f/sandbox/internal/guest/wire"
	"github.com/seed-1a2d6d8f/sandbox/internal/record"
)

// A Snapshot is what a sandbox held at one moment: its own files, the workspace and every
// copy of a directory. It is not tied to the sandbox's life, and never changes.
type Snapshot struct {
	ID, Name string
	// Sandbox and SandboxID are of whom it is; that one may be gone.
	Sandbox, SandboxID string
	// Parent is the snapshot that the sandbox was made from, or what it is a fork of, if
	// one was. It may be gone, too.
	Parent    string
	CreatedAt time.Time
	// ExpiresAt is when it may be removed, unless it is in use; zero is never.
	ExpiresAt time.Time
	// SizeBytes is what its files have, without those of the image.
	SizeBytes int64
	Image     string
	// Volumes are those that share its files. While there are any it is not deleted.
	Volumes []string
}

// A SnapshotOption configures [Sandbox.Snapshot].
type SnapshotOption interface{ applySnapshot(*snapshotting) }

type snapshotting struct {
	name     string
	expiry   time.Duration
	keep     int
	progress func(Progress)
	problems []error
}

type snapshotOption func(*snapshotting)

func (o snapshotOption) applySnapshot(s *snapshotting) { o(s) }

// WithSnapshotName names the snapshot, for people: several may have one name. It follows
// the rule of sandboxes' names.
func WithSnapshotName(name string) SnapshotOption {
	return snapshotOption(func(s *snapshotting) {
		if !record.ValidName(name) {
			s.problems = append(s.problems, fmt.Errorf("WithSnapshotName: %q: it takes %s", name, record.NameRule))
		}
		s.name = name
	})
}

// WithExpiry has the snapshot removed some time after d has passed, by whichever program
// sweeps then, once no volume shares its files. Default: never.
func WithExpiry(d time.Duration) SnapshotOption {
	return snapshotOption(func(s *snapshotting) {
		if d <= 0 {
			s.problems = append(s.problems, fmt.Errorf("WithExpiry: %v; it takes more than 0", d))
		}
		s.expiry = d
	})
}

// WithKeepLast removes all snapshots of the sandbox but the n newest once this one is
// made; those whose files volumes share stay. Default: all stay.
func WithKeepLast(n int) SnapshotOption {
	return snapshotOption(func(s *snapshotting) {
		if n < 1 {
			s.problems = append(s.problems, fmt.Errorf("WithKeepLast: %d; it takes at least 1", n))
		}
		s.keep = n
	})
}

// Snapshot stores what the sandbox holds at this instant, and leaves it as it is: as in
// [Fork] a running one is paused while its files are copied. [FromSnapshot] makes
// sandboxes of it.
func (s *Sandbox) Snapshot(ctx context.Context, opts ...SnapshotOption) (Snapshot, error) {
	got, err := s.snapshot(ctx, opts)
	return got, fail("snapshot", s.rec.Name, err)
}

func (s *Sandbox) snapshot(ctx context.Context, opts []SnapshotOption) (Snapshot, error) {
	var set snapshotting
	for _, o := range opts {
		if o != nil {
			o.applySnapshot(&set)
		}
	}
	if len(set.problems) > 0 {
		return Snapshot{}, classify(ErrInvalidArgument, errors.Join(set.problems...))
	}
	if err := s.usable(); err != nil {
		return Snapshot{}, err
	}
	o, err := s.c.live(ctx, s.eng, s.rec.Name)
	if err != nil {
		return Snapshot{}, err
	}
	if o.rec.ID != s.rec.ID {
		return Snapshot{}, ErrNotFound
	}
	z := s.c.newFrozen(o)
	z.report.fn = set.progress
	defer z.report.silence()
	z.rec.Name = set.name
	if set.expiry > 0 {
		z.rec.ExpiresAt = z.rec.CreatedAt.Add(set.expiry)
	}
	if err := z.make(ctx, true); err != nil {
		return Snapshot{}, errors.Join(err, z.drop(ctx))
	}
	if set.keep > 0 {
		if err := s.c.keepLast(ctx, s.eng, s.rec.ID, set.keep); err != nil {
			s.c.log.Warn("older snapshots stay", "sandbox", s.rec.Name, "error", err)
		}
	}
	return snapshotOf(z.rec, nil), nil
}

// frozen is the files of a sandbox at one moment, in the making.
type frozen struct {
	c      *Client
	eng    *engine.Engine
	from   *live
	rec    record.SnapshotRecord
	claim  *record.Claim
	undo   undo
	report reporter
}

func (c *Client) newFrozen(from *live) *frozen {
	return &frozen{c: c, eng: from.eng, from: from, rec: record.SnapshotRecord{
		ID: record.NewID(), Nonce: record.NewNonce(), CreatedAt: from.eng.Now(), Sandbox: from.rec.Name, SandboxID: from.rec.ID,
		Parent: from.rec.Settings.Snapshot, Image: from.settings.image, User: from.settings.user,
	}}
}

// make copies the files. While the marker is there they stay; a record makes them stay
// after that.
func (z *frozen) make(ctx context.Context, recorded bool) error {
	marker := record.SnapshotMarker(z.rec.ID)
	z.undo.add("marker of snapshot "+z.rec.ID, func(ctx context.Context) error {
		return record.Drop(ctx, z.eng, marker, z.rec.Nonce)
	})
	var err error
	z.claim, err = settle(ctx, func(ctx context.Context) (*record.Claim, error) {
		return record.TryClaim(ctx, z.eng, marker, z.rec.Nonce, holder())
	})
	if err != nil {
		return err
	}
	if _, err := z.c.ensureGuest(ctx, z.eng, &z.report); err != nil {
		return err
	}
	ts := []transfer{{what: "workspace", from: tree{volume: record.WorkspaceName(z.from.rec.ID)}}}
	z.rec.Trees = []record.Tree{{Target: Workspace}}
	for _, m := range z.from.settings.mounts {
		if m.Mode == RWCopy && m.Volume != "" {
			ts = append(ts, transfer{what: m.Target, from: tree{volume: m.Volume}})
			z.rec.Trees = append(z.rec.Trees, record.Tree{Target: m.Target, Source: m.Source})
		}
	}
	commits := z.from.got.Upper == "" || z.c.commits
	if !commits {
		// What was made of it mounts these again, so they are no content.
		mounts := []string{strings.TrimPrefix(wire.Dir, "/")}
		for _, t := range z.rec.Trees {
			mounts = append(mounts, strings.TrimPrefix(t.Target, "/"))
		}
		ts = append(ts, transfer{what: "files of the container", layer: true, mounts: mounts})
		z.rec.Trees = append(z.rec.Trees, record.Tree{})
	}
	for i := range ts {
		name := record.FrozenName(z.rec.ID, i)
		z.rec.Trees[i].Volume, ts[i].to.volume, ts[i].labels = name, name, z.rec.FrozenLabels()
		if err := z.volume(ctx, name, z.rec.FrozenLabels()); err != nil {
			return err
		}
	}
	image := ""
	ref := record.SnapshotImage(z.rec.ID)
	z.undo.add("image "+ref, func(ctx context.Context) error { return uncommit(ctx, z.eng, ref, z.rec.Nonce) })
	k := z.c.capture(z.eng, z.from.rec.Name, z.rec.Nonce, &z.report)
	z.undo.add("helper", func(ctx context.Context) error { return k.undo.run(ctx) })
	err = z.c.still(ctx, z.eng, z.from.rec, stillTries, func(ctx context.Context, got engine.Container, again bool, freeze func() error) error {
		for i := range ts {
			if ts[i].layer {
				ts[i].from = layerOf(got)
			}
			ts[i].again = again
		}
		image = got.ImageID
		if err := k.copy(ctx, ts, freeze, nil); err != nil || !commits {
			return err
		}
		diff, err := z.eng.DiffContainer(ctx, got.ID)
		if err != nil || clean(diff, got) {
			return err
		}
		z.report.report(Progress{Step: "commit"})
		// As in a fork the engine does not stop for a caller who goes.
		made, err := commit(context.WithoutCancel(ctx), z.eng, got, z.from.image, ref, z.rec.FrozenLabels())
		image = made.ID
		return err
	})
	if err != nil {
		return err
	}
	for i, r := range k.last.Roots {
		z.rec.Trees[i].Mode, z.rec.Trees[i].UID, z.rec.Trees[i].GID, z.rec.Trees[i].Mtime = r.Mode, r.UID, r.GID, r.Mtime
	}
	if last := len(ts) - 1; ts[last].layer && k.last.Roots[last].Bare {
		z.rec.Trees = z.rec.Trees[:last] // its volume, which the helper still has, is for the sweep
	}
	z.rec.Size = k.last.Bytes
	if err := z.eng.TagImage(ctx, image, ref); err != nil {
		return err
	}
	if !recorded {
		return nil
	}
	labels, err := z.rec.Labels()
	if err != nil {
		return err
	}
	if err := z.volume(ctx, record.SnapshotName(z.rec.ID), labels); err != nil {
		return err
	}
	return z.claim.Commit(ctx)
}

func (z *frozen) volume(ctx context.Context, name string, labels map[string]string) error {
	z.undo.add("volume "+name, func(ctx context.Context) error { return removeVolume(ctx, z.eng, name, z.rec.Nonce) })
	got, err := settle(ctx, func(ctx context.Context) (engine.Volume, error) { return z.eng.CreateVolume(ctx, name, labels) })
	if err != nil {
		return fmt.Errorf("make volume %s: %w", name, err)
	}
	if got.Labels[record.Nonce] != z.rec.Nonce {
		return &record.ForeignError{Kind: "volume", Object: name}
	}
	return nil
}

// drop takes everything back.
func (z *frozen) drop(ctx context.Context) error {
	if z.claim != nil {
		z.claim.Stop()
	}
	return z.undo.run(ctx)
}

func snapshotOf(rec record.SnapshotRecord, volumes []string) Snapshot {
	return Snapshot{ID: rec.ID, Name: rec.Name, Sandbox: rec.Sandbox, SandboxID: rec.SandboxID, Parent: rec.Parent,
		CreatedAt: rec.CreatedAt, ExpiresAt: rec.ExpiresAt, SizeBytes: rec.Size, Image: rec.Image, Volumes: volumes}
}

// A ListSnapshotsOption narrows [ListSnapshots]. Several must all hold.
type ListSnapshotsOption func(*snapshotFilter)

type snapshotFilter struct {
	keep     []func(Snapshot) bool
	problems []error
}

// OfSandbox keeps the snapshots of the sandbox with that name or ID, which may be gone.
// Those of another one that had the name before it are among them.
func OfSandbox(nameOrID string) ListSnapshotsOption {
	return func(l *snapshotFilter) {
		if err := checkName(nameOrID); err != nil {
			l.problems = append(l.problems, err)
		}
		l.keep = append(l.keep, func(s Snapshot) bool { return s.Sandbox == nameOrID || s.SandboxID == nameOrID })
	}
}

// SnapshotNamed keeps the snapshots of that name ([WithSnapshotName]).
func SnapshotNamed(name string) ListSnapshotsOption {
	return func(l *snapshotFilter) {
		if !record.ValidName(name) {
			l.problems = append(l.problems, invalid("%q is not a snapshot's name: it takes %s", name, record.NameRule))
		}
		l.keep = append(l.keep, func(s Snapshot) bool { return s.Name == name })
	}
}

// ListSnapshots tells of the snapshots on the engine, the newest first, in one call.
func ListSnapshots(ctx context.Context, opts ...ListSnapshotsOption) ([]Snapshot, error) {
	return defaultClient().ListSnapshots(ctx, opts...)
}

// ListSnapshots is the package's [ListSnapshots] on the client's engine.
func (c *Client) ListSnapshots(ctx context.Context, opts ...ListSnapshotsOption) ([]Snapshot, error) {
	all, err := c.listSnapshots(ctx, opts)
	return all, fail("list snapshots", "", err)
}

func (c *Client) listSnapshots(ctx context.Context, opts []ListSnapshotsOption) ([]Snapshot, error) {
	var l snapshotFilter
	for _, o := range opts {
		if o != nil {
			o(&l)
		}
	}
	if len(l.problems) > 0 {
		return nil, errors.Join(l.problems...)
	}
	eng, err := c.engine(ctx)
	if err != nil {
		return nil, err
	}
	volumes, err := eng.ListVolumes(ctx, record.Filter(record.Managed, "true"))
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(snapshots(volumes), func(s Snapshot) bool {
		return slices.ContainsFunc(l.keep, func(keep func(Snapshot) bool) bool { return !keep(s) })
	}), nil
}

func snapshots(volumes []engine.Volume) []Snapshot {
	on := standing(volumes)
	all := []Snapshot{}
	for _, v := range volumes {
		if rec, ok := record.DecodeSnapshot(v.Name, v.Labels); ok {
			all = append(all, snapshotOf(rec, on[rec.ID]))
		}
	}
	slices.SortStableFunc(all, func(a, b Snapshot) int { return b.CreatedAt.Compare(a.CreatedAt) })
	return all
}

// standing are the volumes that share a snapshot's files, by its ID.
func standing(volumes []engine.Volume) map[string][]string {
	on := map[string][]string{}
	for _, v := range volumes {
		if id := v.Labels[record.Snapshot]; id != "" && v.Labels[record.Managed] == "true" {
			on[id] = append(on[id], v.Name)
		}
	}
	return on
}

// DeleteSnapshot removes a snapshot for good. While volumes share its files, those of
// sandboxes or preserved ones, that is [ErrSnapshotInUse]. Snapshots of sandboxes that
// were made from it do not need it.
func DeleteSnapshot(ctx context.Context, id string) error {
	return defaultClient().DeleteSnapshot(ctx, id)
}

// DeleteSnapshot is the package's [DeleteSnapshot] on the client's engine.
func (c *Client) DeleteSnapshot(ctx context.Context, id string) error {
	return fail("delete snapshot", id, c.deleteSnapshot(ctx, id))
}

func (c *Client) deleteSnapshot(ctx context.Context, id string) error {
	if !record.ValidName(id) {
		return invalid("%q is not a snapshot's ID: it takes %s", id, record.NameRule)
	}
	eng, err := c.engine(ctx)
	if err != nil {
		return err
	}
	rec, err := findSnapshot(ctx, eng, id)
	if err != nil {
		return err
	}
	return dropSnapshot(ctx, eng, rec)
}

func findSnapshot(ctx context.Context, eng *engine.Engine, id string) (record.SnapshotRecord, error) {
	v, err := eng.InspectVolume(ctx, record.SnapshotName(id))
	if err != nil && !errors.Is(err, engine.ErrNotFound) {
		return record.SnapshotRecord{}, err
	}
	rec, ok := record.DecodeSnapshot(v.Name, v.Labels)
	if err != nil || !ok {
		return rec, fmt.Errorf("%w: there is none of ID %q", ErrSnapshotNotFound, id)
	}
	return rec, nil
}

// dropSnapshot removes a snapshot that nobody uses: its record first, so that nobody new
// can. From then on a marker has whoever finds it do the rest.
func dropSnapshot(ctx context.Context, eng *engine.Engine, rec record.SnapshotRecord) error {
	if err := unused(ctx, eng, rec.ID); err != nil {
		return err
	}
	marker := record.SnapshotMarker(rec.ID)
	own, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTimeout)
	defer cancel()
	var claim *record.Claim
	err := engine.Insist(ctx, func() (err error) {
		claim, err = settle(ctx, func(ctx context.Context) (*record.Claim, error) {
			return record.TryClaim(ctx, eng, marker, rec.Nonce, holder())
		})
		return err
	})
	var held *record.HeldError
	if errors.As(err, &held) {
		return fmt.Errorf("%w: it is being deleted", ErrSnapshotNotFound)
	}
	if err != nil {
		return errors.Join(err, record.Drop(own, eng, marker, rec.Nonce))
	}
	defer claim.Stop()
	if err := engine.Insist(own, func() error { return removeVolume(own, eng, record.SnapshotName(rec.ID), rec.Nonce) }); err != nil {
		return errors.Join(err, record.Drop(own, eng, marker, rec.Nonce))
	}
	if err := engine.Insist(own, func() error { return clearFrozen(own, eng, rec.ID, rec.Nonce) }); err != nil {
		return err
	}
	claim.Stop()
	return engine.Insist(own, func() error { return record.Drop(own, eng, marker, rec.Nonce) })
}

// unused reports who shares a snapshot's files.
func unused(ctx context.Context, eng *engine.Engine, id string) error {
	on, err := eng.ListVolumes(ctx, record.Filter(record.Managed, "true"), record.Filter(record.Snapshot, id))
	if err != nil || len(on) == 0 {
		return err
	}
	var names []string
	for _, v := range on {
		names = append(names, v.Name)
	}
	return fmt.Errorf("%w: its files are shared by %s", ErrSnapshotInUse, strings.Join(names, ", "))
}

// clearFrozen removes a snapshot's files, unless somebody has come to share them, and its
// image.
func clearFrozen(ctx context.Context, eng *engine.Engine, id, nonce string) error {
	if err := unused(ctx, eng, id); err != nil {
		if errors.Is(err, ErrSnapshotInUse) {
			return nil // the sweep has them when they are not
		}
		return err
	}
	volumes, err := eng.ListVolumes(ctx, record.Filter(record.Managed, "true"), record.Filter(record.Role, record.RoleFrozen), record.Filter(record.ID, id))
	if err != nil {
		return err
	}
	var errs []error
	for _, v := range volumes {
		if v.Labels[record.Nonce] == nonce {
			errs = append(errs, dropVolume(ctx, eng, v.Name))
		}
	}
	return errors.Join(append(errs, uncommit(ctx, eng, record.SnapshotImage(id), nonce))...)
}

func (c *Client) keepLast(ctx context.Context, eng *engine.Engine, sandboxID string, n int) error {
	volumes, err := eng.ListVolumes(ctx, record.Filter(record.Managed, "true"), record.Filter(record.Role, record.RoleSnapshot))
	if err != nil {
		return err
	}
	var errs []error
	for _, s := range snapshots(volumes) {
		if s.SandboxID != sandboxID {
			continue
		}
		if n--; n >= 0 {
			continue
		}
		if err := c.deleteSnapshot(ctx, s.ID); !errors.Is(err, ErrSnapshotInUse) && !errors.Is(err, ErrSnapshotNotFound) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// sweepSnapshots removes what of snapshots is over: those that have expired, files without
// a record that nobody shares, and what belonged to volumes that are gone.
func (c *Client) sweepSnapshots(ctx context.Context, eng *engine.Engine, all everything, note func(string, error)) {
	now := eng.Now()
	there, on := all.names(), standing(all.volumes)
	recs := map[string]record.SnapshotRecord{}
	for _, v := range all.volumes {
		if rec, ok := record.DecodeSnapshot(v.Name, v.Labels); ok {
			recs[rec.ID] = rec
		}
	}
	for _, v := range all.volumes {
		nonce := v.Labels[record.Nonce]
		if all.claimed(nonce, now) {
			continue
		}
		if rec, ok := record.DecodeSnapshot(v.Name, v.Labels); ok && !rec.ExpiresAt.IsZero() && now.After(rec.ExpiresAt) && len(on[rec.ID]) == 0 {
			note("expired snapshot "+rec.ID, dropSnapshot(ctx, eng, rec))
		}
		if id := v.Labels[record.ID]; record.Is(v.Labels, record.RoleFrozen) && record.ValidName(id) {
			rec, recorded := recs[id]
			if recorded && rec.Nonce == nonce && now.Sub(rec.CreatedAt) > youngAge && !slices.ContainsFunc(rec.Trees, func(t record.Tree) bool { return t.Volume == v.Name }) {
				note("volume "+v.Name, dropVolume(ctx, eng, v.Name)) // it held nothing
			}
		}
		if of, is := record.OverlayOf(v.Name); is && record.Is(v.Labels, record.RoleOverlay) && !there[of] {
			note("volume "+v.Name, dropVolume(ctx, eng, v.Name))
		}
	}
	for id, nonce := range all.unshared(now) {
		note("files of snapshot "+id, clearFrozen(ctx, eng, id, nonce))
	}
}

// names are those of the volumes.
func (all everything) names() map[string]bool {
	names := map[string]bool{}
	for _, v := range all.volumes {
		names[v.Name] = true
	}
	return names
}

// unshared are the files of a moment that have no record, which nobody shares and nobody
// is about to: the nonce of each by the snapshot's ID.
func (all everything) unshared(now time.Time) map[string]string {
	there, on, unshared := all.names(), standing(all.volumes), map[string]string{}
	for _, v := range all.volumes {
		id, nonce := v.Labels[record.ID], v.Labels[record.Nonce]
		if record.Is(v.Labels, record.RoleFrozen) && record.ValidName(id) && !there[record.SnapshotName(id)] && len(on[id]) == 0 && !all.claimed(nonce, now) {
			unshared[id] = nonce
		}
	}
	return unshared
}

// FromSnapshot is a [Source]: the files of a snapshot, those outside of the workspace,
// too. So it brings its image, and goes with neither [WithImage] nor [WithRuntime]; its
// user is the default of [WithUser]. Copies of directories that it holds are mounted
// where they were, unless [WithMounts] has something else there.
//
// Where the engine can mount overlays the new volumes share the snapshot's files, which
// takes milliseconds for any size; else they are copied. A snapshot that is not there is
// [ErrSnapshotNotFound].
func FromSnapshot(id string) Source { return fromSnapshot(id) }

type fromSnapshot string

func (f fromSnapshot) String() string { return "snapshot " + string(f) }

func (f fromSnapshot) check(*settings) []error {
	if !record.ValidName(string(f)) {
		return []error{fmt.Errorf("FromSnapshot: %q is not a snapshot's ID: it takes %s", string(f), record.NameRule)}
	}
	return nil
}

func (f fromSnapshot) prepare(ctx context.Context, b *build) error {
	rec, err := findSnapshot(ctx, b.eng, string(f))
	if err != nil {
		return err
	}
	b.s.origin = &stored{rec: rec, recorded: true}
	if b.s.user == "" {
		b.s.user = rec.User
	}
	b.s.image, b.rec.Settings.Image = rec.Image, rec.Image
	for _, t := range rec.Trees {
		if t.Target != "" && t.Target != Workspace && !slices.ContainsFunc(b.mounted, func(m Mount) bool { return m.Target == t.Target }) {
			b.mounted = append(b.mounted, Mount{Source: t.Source, Volume: t.Volume, Target: t.Target, Mode: RWCopy})
		}
	}
	return nil
}

// fill has nothing to do: the files come with the container.
func (f fromSnapshot) fill(context.Context, *filler) error { return nil }

// stored is the ancestor that is frozen files.
type stored struct {
	rec      record.SnapshotRecord
	recorded bool
	dirs     map[string]string // of trees that volumes can be laid over, by target
	part     *part             // in what is put into several at once; may be nil
}

func (o *stored) prepare(ctx context.Context, b *build) error {
	b.base = record.SnapshotImage(o.rec.ID)
	b.rec.Settings.Snapshot = o.rec.ID
	if !o.recorded {
		b.rec.Settings.Snapshot, b.rec.Settings.Source = o.rec.Parent, forkOf(o.rec.Sandbox)
	}
	var err error
	if b.image, err = b.eng.InspectImage(ctx, b.base); errors.Is(err, engine.ErrNotFound) {
		return fmt.Errorf("%w: the image %s of the snapshot was removed", ErrImageNotFound, b.base)
	} else if err != nil {
		return err
	}
	if o.dirs = map[string]string{}; b.c.overlays() {
		for _, t := range o.rec.Trees {
			v, err := b.eng.InspectVolume(ctx, t.Volume)
			if errors.Is(err, engine.ErrNotFound) {
				return fmt.Errorf("%w: its volume %s was removed", ErrSnapshotNotFound, t.Volume)
			}
			if err != nil {
				return err
			}
			if t.Target != "" {
				o.dirs[t.Target] = v.Mountpoint
			}
		}
	}
	return nil
}

func (o *stored) lower(target string) (dir, id string) { return o.dirs[target], o.rec.ID }

func (o *stored) before(context.Context, *build) error { return nil }

func (o *stored) fill(ctx context.Context, b *build, ready func()) error {
	made, err := b.eng.InspectContainer(ctx, record.ContainerName(b.rec.Name))
	if err != nil {
		return err
	}
	var ts, roots []transfer
	var over []record.Tree // that volumes are laid over
	for _, t := range o.rec.Trees {
		switch {
		case t.Target == "":
			if made.Upper == "" {
				return classify(ErrUnsupported, errors.New("the snapshot was made with another storage driver than the engine has now"))
			}
			ts = append(ts, transfer{what: "files of the container", from: tree{volume: t.Volume}, to: tree{dir: made.Upper}, layer: true})
		case o.dirs[t.Target] != "":
			if root, ok := o.root(b, t); ok {
				over = append(over, t)
				roots = append(roots, root)
			}
		case t.Target == Workspace:
			ts = append(ts, transfer{what: "workspace", from: tree{volume: t.Volume}, to: tree{volume: record.WorkspaceName(b.rec.ID)},
				labels: b.rec.VolumeLabels(record.RoleWorkspace)})
		default:
			for _, f := range b.forked {
				if f.from.volume == t.Volume {
					ts = append(ts, f)
				}
			}
		}
	}
	all := append(ts, roots...)
	if tried, err := o.part.join(ctx, b, all); tried && err == nil {
		return nil
	} else if tried {
		if ctx.Err() != nil {
			return err
		}
		b.c.log.Warn("a fork is filled by itself", "sandbox", b.rec.Name, "error", err)
		for i := range all {
			all[i].again = !all[i].root
		}
	}
	if len(ts) > 0 {
		k := b.c.capture(b.eng, b.rec.Name, b.rec.Nonce, b.report)
		b.undo.add("helper", func(ctx context.Context) error { return k.undo.run(ctx) })
		if b.user() != o.rec.User {
			ready = nil // as in a fork
		}
		err = k.copy(ctx, all, nil, ready)
	} else if len(over) > 0 {
		err = b.eng.CopyTo(ctx, made.ID, "/", rootsOf(over))
		if err != nil && ctx.Err() == nil && !errors.Is(err, engine.ErrUnavailable) {
			err = fmt.Errorf("%w: %w", errNoHelper, err)
		}
	}
	if errors.Is(err, errNoHelper) && len(over) > 0 {
		b.c.log.Warn("files of snapshots are copied from here on", "error", err)
		b.c.setNoOverlay()
		return fmt.Errorf("%w: a volume over a snapshot's files: %w", errAnew, err)
	}
	if err != nil {
		return err
	}
	if !o.recorded {
		return nil
	}
	// Who deletes it has removed the record before looking whether anybody uses the rest.
	now, err := findSnapshot(ctx, b.eng, o.rec.ID)
	if err == nil && now.Nonce != o.rec.Nonce {
		err = ErrSnapshotNotFound
	}
	return err
}

// root gives the volume of b that stands on that tree, if one does, what the tree's own
// directory has.
func (o *stored) root(b *build, t record.Tree) (transfer, bool) {
	root := transfer{what: t.Target, from: tree{volume: t.Volume}, root: true}
	if t.Target == Workspace {
		root.to.volume, root.labels = record.WorkspaceName(b.rec.ID), b.rec.VolumeLabels(record.RoleWorkspace)
		return root, true
	}
	for _, f := range b.forked {
		if f.from.volume == t.Volume {
			root.to, root.labels = f.to, f.labels
			return root, true
		}
	}
	return root, false
}

// rootsOf is an archive of the trees' own directories, whose attributes an overlay takes
// from its new upper layer.
func rootsOf(trees []record.Tree) *bytes.Reader {
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

func (c *Client) overlays() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return !c.noOverlay
}

func (c *Client) setNoOverlay() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.noOverlay = true
}

// overlay makes a volume that stands on frozen files.
func (b *build) overlay(ctx context.Context, name, lower, id string, labels map[string]string) (engine.Volume, error) {
	upper, work := record.OverlayNames(name)
	var dirs []string
	for _, part := range []string{upper, work} {
		b.undo.add("volume "+part, func(ctx context.Context) error { return removeVolume(ctx, b.eng, part, b.rec.Nonce) })
		v, err := settle(ctx, func(ctx context.Context) (engine.Volume, error) {
			return b.eng.CreateVolume(ctx, part, b.rec.VolumeLabels(record.RoleOverlay))
		})
		if err != nil {
			return v, err
		}
		if v.Labels[record.Nonce] != b.rec.Nonce {
			return v, &record.ForeignError{Kind: "volume", Object: part}
		}
		dirs = append(dirs, v.Mountpoint)
	}
	return settle(ctx, func(ctx context.Context) (engine.Volume, error) {
		return b.eng.CreateOverlay(ctx, name, record.With(labels, record.Snapshot, id), engine.Overlay{Lower: lower, Upper: dirs[0], Work: dirs[1]})
	})
}

// volume makes a volume for target, which stands on the ancestor's if that can be.
func (b *build) volume(ctx context.Context, name, target string, labels map[string]string) (engine.Volume, error) {
	if b.s.origin != nil {
		if dir, id := b.s.origin.lower(target); dir != "" {
			return b.overlay(ctx, name, dir, id, labels)
		}
	}
	return settle(ctx, func(ctx context.Context) (engine.Volume, error) { return b.eng.CreateVolume(ctx, name, labels) })
}
