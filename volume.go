package sandbox

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/seed-1a2d6d8f/sandbox/internal/engine"
	"github.com/seed-1a2d6d8f/sandbox/internal/record"
)

// UnknownSize is the size in bytes of a volume whose size the engine does not know.
const UnknownSize int64 = -1

// largeVolume is the size that a volume may have without a warning.
const largeVolume = 10 << 30

// A Volume holds files of sandboxes: a workspace, or a copy of a directory.
type Volume struct {
	Name string
	// Role is "workspace", "rwcopy" or "fork".
	Role string
	// SizeBytes is what the files have, [UnknownSize] when the engine does not know.
	SizeBytes int64
	// Size is SizeBytes for people, such as "1.5 MB", or "unknown".
	Size string
	// Sandboxes are the names of those that mount the volume, whatever they are doing.
	Sandboxes []string
	CreatedAt time.Time
	// CreatedBy says what made the volume, and Source from which directory, where that
	// is known: "rwcopy".
	CreatedBy, Source string
	// InUse says that a sandbox mounts the volume, or one is being made with it.
	InUse bool
	// Orphaned says that the volume has no sandbox.
	Orphaned bool
	// Warning is not empty when the volume uses more than 10 GB of disk.
	Warning string
}

// State is "orphaned" or "in use".
func (v Volume) State() string {
	if v.Orphaned {
		return "orphaned"
	}
	return "in use"
}

// A DeleteVolumeOption configures [DeleteVolume].
type DeleteVolumeOption func(*volumeDeletion)

type volumeDeletion struct{ force bool }

// Force makes [DeleteVolume] delete the sandboxes that refer to the volume first; their
// other volumes are preserved. A container that is not a sandbox is never touched.
func Force() DeleteVolumeOption {
	return func(d *volumeDeletion) { d.force = true }
}

// ListVolumes is [ListVolumes] on the client's engine.
func (c *Client) ListVolumes(ctx context.Context) ([]Volume, error) {
	eng, err := c.engine(ctx)
	if err != nil {
		return nil, fail("list volumes", "", err)
	}
	all, err := look(ctx, eng)
	if err != nil {
		return nil, fail("list volumes", "", err)
	}
	sizes := c.sizes(ctx, eng, all.volumes)
	if ctx.Err() != nil {
		return nil, fail("list volumes", "", cancelled(ctx))
	}
	return all.list(eng, sizes), nil
}

// list returns the volumes with somebody's files, by name.
func (all everything) list(eng *engine.Engine, sizes map[string]int64) []Volume {
	refs := map[string][]string{}
	for _, got := range all.containers {
		rec, ok := isSandbox(got)
		if !ok {
			continue
		}
		for _, m := range got.Mounts {
			if m.Type == "volume" && !slices.Contains(refs[m.Name], rec.Name) {
				refs[m.Name] = append(refs[m.Name], rec.Name)
			}
		}
	}
	now := eng.Now()
	volumes := []Volume{}
	for _, got := range all.volumes {
		if !record.IsData(got.Name, got.Labels) {
			continue
		}
		v := describe(got, sizes)
		v.Sandboxes = append(v.Sandboxes, refs[v.Name]...)
		slices.Sort(v.Sandboxes)
		maker, making := all.markers[got.Labels[record.Name]]
		making = making && maker.Nonce == got.Labels[record.Nonce] && !maker.Expired(now)
		v.InUse = len(v.Sandboxes) > 0 || making
		v.Orphaned = !v.InUse
		volumes = append(volumes, v)
	}
	return volumes
}

// isSandbox reads the record of a container that is a sandbox. One that a stranger made
// from an image of a sandbox inherits its labels, not its name.
func isSandbox(got engine.Container) (record.Sandbox, bool) {
	rec, ok := record.Decode(got.Labels)
	return rec, ok && (got.Name == record.ContainerName(rec.Name) || isNext(got, rec))
}

// describe tells what a volume's labels and sizes do.
func describe(got engine.Volume, sizes map[string]int64) Volume {
	v := Volume{
		Name: got.Name, Role: got.Labels[record.Role], Sandboxes: []string{},
		CreatedAt: got.CreatedAt, CreatedBy: got.Labels[record.CreatedBy], Source: got.Labels[record.Source],
	}
	if v.Role == "" {
		v.Role = record.RoleWorkspace
	}
	// The engine's own time moves when files are written on older ones.
	if t, err := time.Parse(time.RFC3339Nano, got.Labels[record.CreatedAt]); err == nil {
		v.CreatedAt = t
	}
	size := UnknownSize
	if n, known := sizes[got.Name]; known {
		size = n
	}
	v.setSize(size)
	return v
}

func (v *Volume) setSize(n int64) {
	v.SizeBytes, v.Size, v.Warning = n, sizeText(n), ""
	if n > largeVolume {
		v.Warning = fmt.Sprintf("disk usage is %s, more than %s", v.Size, sizeText(largeVolume))
	}
}

// findVolume returns a volume that a caller named.
func findVolume(ctx context.Context, eng *engine.Engine, name string) (engine.Volume, error) {
	v, err := eng.InspectVolume(ctx, name)
	switch {
	case errors.Is(err, engine.ErrNotFound):
		return v, fmt.Errorf("%w: there is no volume %s", ErrVolumeNotFound, name)
	case err != nil:
		return v, err
	case !record.IsData(v.Name, v.Labels):
		return v, fmt.Errorf("%w: volume %s is not tracked: it is not a sandbox volume", ErrVolumeNotFound, name)
	case v.Driver != "" && v.Driver != "local":
		return v, classify(ErrUnsupported, fmt.Errorf("volume %s has driver %q, and only local ones can be used", name, v.Driver))
	}
	return v, nil
}

// volumeUsers is who mounts a volume.
type volumeUsers struct {
	sandboxes []record.Sandbox
	running   bool     // one of them is
	foreign   []string // containers that are not ours
	leaving   int      // containers that are about to go: helpers, and what is being removed
	maker     string   // the sandbox that it is being made for, or deleted with
}

func usersOf(ctx context.Context, eng *engine.Engine, volume string) (u volumeUsers, err error) {
	list, err := eng.ListContainers(ctx, engine.Filter{Volume: volume})
	if err != nil {
		return u, err
	}
	for _, got := range list {
		rec, ok := isSandbox(got)
		switch {
		case got.State == engine.StateRemoving, record.Is(got.Labels, record.RoleHelper), isUnfinished(got):
			u.leaving++
		case ok:
			// Two, while one container takes the place of another.
			if !slices.ContainsFunc(u.sandboxes, func(s record.Sandbox) bool { return s.ID == rec.ID }) {
				u.sandboxes = append(u.sandboxes, rec)
			}
			u.running = u.running || got.State == engine.StateRunning || got.State == engine.StatePaused || got.State == engine.StateRestarting
		default:
			u.foreign = append(u.foreign, got.Name)
		}
	}
	slices.SortFunc(u.sandboxes, func(a, b record.Sandbox) int { return strings.Compare(a.Name, b.Name) })
	return u, nil
}

// withMaker looks for who is making the volume's sandbox, or deleting it.
func (u *volumeUsers) withMaker(ctx context.Context, eng *engine.Engine, v engine.Volume) error {
	name := v.Labels[record.Name]
	if !record.ValidName(name) {
		return nil
	}
	m, found, err := record.Look(ctx, eng, name)
	var foreign *record.ForeignError
	if errors.As(err, &foreign) {
		return nil
	}
	if err == nil && found && m.Nonce == v.Labels[record.Nonce] && !m.Expired(eng.Now()) {
		u.maker = name
	}
	return err
}

func (u *volumeUsers) names() []string {
	var names []string
	for _, s := range u.sandboxes {
		names = append(names, s.Name)
	}
	return names
}

// inUse is an ErrVolumeInUse with a text of its own: not every user is running.
type inUse struct{ text string }

func (e *inUse) Error() string { return e.text }
func (e *inUse) Unwrap() error { return ErrVolumeInUse }

// refuse says who keeps a volume from being deleted.
func (u *volumeUsers) refuse(volume string) error {
	names := strings.Join(u.names(), ", ")
	switch {
	case len(u.foreign) > 0:
		return &inUse{fmt.Sprintf("volume %s is used by container %s, which is not a sandbox", volume, strings.Join(u.foreign, ", "))}
	case u.running:
		return fmt.Errorf("%w: volume %s is referenced by sandboxes %s", ErrVolumeInUse, volume, names)
	case names != "":
		return &inUse{fmt.Sprintf("volume %s is referenced by sandboxes %s", volume, names)}
	case u.maker != "":
		return &inUse{fmt.Sprintf("volume %s belongs to sandbox %s, which is being made or deleted", volume, u.maker)}
	}
	return nil
}

// DeleteVolume is [DeleteVolume] on the client's engine.
func (c *Client) DeleteVolume(ctx context.Context, name string, opts ...DeleteVolumeOption) (DeleteReport, error) {
	var d volumeDeletion
	for _, o := range opts {
		if o != nil {
			o(&d)
		}
	}
	if err := checkVolume(name); err != nil {
		return DeleteReport{}, fail("delete volume", name, classify(ErrInvalidArgument, err))
	}
	eng, err := c.engine(ctx)
	if err != nil {
		return DeleteReport{}, fail("delete volume", name, err)
	}
	report, err := c.deleteVolume(ctx, eng, name, d.force)
	return report, fail("delete volume", name, err)
}

func (c *Client) deleteVolume(ctx context.Context, eng *engine.Engine, name string, force bool) (report DeleteReport, err error) {
	report.Volumes = []VolumeOutcome{}
	v, err := findVolume(ctx, eng, name)
	if err != nil {
		return report, err
	}
	outcome := VolumeOutcome{Name: name, Status: VolumeDeleted}
	defer func() {
		if err != nil {
			outcome.Status, outcome.Reason = VolumeDeleteFailed, err.Error()
		}
		report.Volumes = append([]VolumeOutcome{outcome}, report.Volumes...)
	}()
	users, err := usersOf(ctx, eng, name)
	if err == nil {
		err = users.withMaker(ctx, eng, v)
	}
	if err != nil {
		return report, err
	}
	doomed := users.sandboxes
	if force && users.maker == "" {
		users.sandboxes, users.running = nil, false
	}
	if err := users.refuse(name); err != nil {
		return report, err
	}
	for _, rec := range doomed {
		r, err := c.delete(ctx, eng, rec, keepVolumes)
		if err != nil && !errors.Is(err, ErrNotFound) {
			err = fmt.Errorf("delete sandbox %s: %w", rec.Name, err)
			if len(report.Sandboxes) > 0 {
				err = fmt.Errorf("%w; already deleted: %s", err, strings.Join(report.Sandboxes, ", "))
			}
			return report, err
		}
		if err == nil {
			report.Sandboxes = append(report.Sandboxes, rec.Name)
		}
		for _, o := range r.Volumes {
			if o.Name != name && !slices.ContainsFunc(report.Volumes, func(p VolumeOutcome) bool { return p.Name == o.Name }) {
				report.Volumes = append(report.Volumes, o)
			}
		}
	}
	return report, removeUnused(ctx, eng, name)
}

// dropOverlay removes what a volume that is gone kept elsewhere, if it stood on a
// snapshot's files, and those too if it was the last and there is no such snapshot: what
// [ForkN] made for its forks to share. What it can't the next sweep does.
func dropOverlay(ctx context.Context, eng *engine.Engine, name string) {
	if !record.ValidVolume(name) {
		return // no data
	}
	upper, work := record.OverlayNames(name)
	stood := false
	for _, part := range []string{upper, work} {
		if v, err := eng.InspectVolume(ctx, part); err == nil && record.Is(v.Labels, record.RoleOverlay) {
			eng.RemoveVolume(ctx, part, false)
			stood = true
		}
	}
	if !stood {
		return
	}
	if all, err := look(ctx, eng); err == nil {
		for id, nonce := range all.unshared(eng.Now()) {
			clearFrozen(ctx, eng, id, nonce)
		}
	}
}

// removeUnused removes a volume on which the engine has the last word: somebody may have
// come to use it since we looked, or have removed it.
//
// The engine deletes the files with its lock on all volumes held, so that others' calls
// may wait: 2 s for 50,000 files on 20.10. Emptying the volume in a helper before would
// spare them that, but only the engine's removal is one with its look for users. Who came
// to use the volume in between would keep it, and not the files.
func removeUnused(ctx context.Context, eng *engine.Engine, name string) error {
	lost := 0 // replies
	for try := 0; ; try++ {
		_, err := settle(ctx, func(ctx context.Context) (struct{}, error) {
			return struct{}{}, eng.RemoveVolume(ctx, name, false)
		})
		switch {
		case err == nil, errors.Is(err, engine.ErrNotFound) && lost > 0:
			dropOverlay(ctx, eng, name)
			return nil
		case errors.Is(err, engine.ErrNotFound):
			return fmt.Errorf("%w: somebody else removed %s", ErrVolumeNotFound, name)
		case errors.Is(err, engine.ErrUnavailable) && lost < 3:
			lost++
		case !errors.Is(err, engine.ErrConflict):
			return err
		default:
			users, e := usersOf(ctx, eng, name)
			if e != nil {
				return e
			}
			if e := users.refuse(name); e != nil {
				return e
			}
			if try > 20 && users.leaving == 0 || try > 600 {
				return &inUse{fmt.Sprintf("volume %s: %v", name, err)}
			}
		}
		if err := pause(ctx, stillThere); err != nil {
			return err
		}
	}
}
