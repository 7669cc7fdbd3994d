package sandbox

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/seed-1a2d6d8f/sandbox/internal/engine"
	"github.com/seed-1a2d6d8f/sandbox/internal/record"
)

// A DeleteOption configures [Delete].
type DeleteOption func(*deletion)

type deletion struct{ fate fate }

// fate is what becomes of a sandbox's volumes when it is deleted.
type fate int

const (
	keepVolumes fate = iota
	dropOwn          // those that were made for it
	dropAll          // attached ones too
)

// PreserveVolumes decides what [Delete] does with the sandbox's volumes. The default,
// true, keeps them: [WithID] adopts a workspace that was kept, and [WithMounts] attaches
// any volume. False deletes the workspace, the copies and what was attached, but for
// volumes that another sandbox refers to.
func PreserveVolumes(preserve bool) DeleteOption {
	return func(d *deletion) {
		d.fate = dropAll
		if preserve {
			d.fate = keepVolumes
		}
	}
}

func deleteSettings(opts []DeleteOption) deletion {
	var d deletion
	for _, o := range opts {
		if o != nil {
			o(&d)
		}
	}
	return d
}

// What became of a volume.
const (
	VolumePreserved    = "preserved"
	VolumeDeleted      = "deleted"
	VolumeDeleteFailed = "delete-failed"
)

// VolumeOutcome tells what a deletion did with one volume.
type VolumeOutcome struct {
	Name   string
	Status string // "preserved", "deleted" or "delete-failed"
	Reason string // why, on one line; may be empty unless it failed
}

func (o VolumeOutcome) String() string {
	reason := strings.Join(strings.Fields(o.Reason), " ")
	switch {
	case o.Status == VolumeDeleteFailed:
		return fmt.Sprintf("volume %s: delete failed: %s", o.Name, reason)
	case reason != "":
		return fmt.Sprintf("volume %s: %s (%s)", o.Name, o.Status, reason)
	}
	return fmt.Sprintf("volume %s: %s", o.Name, o.Status)
}

// DeleteReport tells what a deletion did with each volume, in a stable order.
type DeleteReport struct {
	Volumes []VolumeOutcome
	// Sandboxes are the names of those that [DeleteVolume] deleted because of [Force].
	Sandboxes []string
}

// String returns one line for each volume.
func (r DeleteReport) String() string {
	lines := make([]string, len(r.Volumes))
	for i, o := range r.Volumes {
		lines[i] = o.String()
	}
	return strings.Join(lines, "\n")
}

// delete removes a sandbox: its session gracefully, then its container, and only then
// the volumes, which the engine would not let go of before.
func (c *Client) delete(ctx context.Context, eng *engine.Engine, rec record.Sandbox, fate fate) (report DeleteReport, err error) {
	report.Volumes = []VolumeOutcome{}
	var got engine.Container
	err = insist(ctx, func() (err error) {
		got, err = eng.InspectContainer(ctx, record.ContainerName(rec.Name))
		return err
	})
	if errors.Is(err, engine.ErrNotFound) {
		return report, ErrNotFound
	}
	if err != nil {
		return report, err
	}
	if r, ok := record.Decode(got.Labels); !ok || r.ID != rec.ID {
		return report, ErrNotFound
	}
	var volumes []engine.Volume
	err = insist(ctx, func() (err error) {
		volumes, err = mountedVolumes(ctx, eng, got)
		return err
	})
	if err != nil {
		return report, err
	}
	for _, v := range volumes {
		report.Volumes = append(report.Volumes, VolumeOutcome{Name: v.Name, Status: VolumePreserved})
	}
	begun := false // some of it may be gone
	if fate != keepVolumes && rec.Nonce != "" {
		// Once the container is gone nothing says that its volumes were to go too. So a
		// marker with the sandbox's own nonce says it first: should we die in between,
		// whoever finds it clears the rest. When somebody holds one already, they will.
		var claim *record.Claim
		e := insist(ctx, func() (err error) {
			claim, err = settle(ctx, func(ctx context.Context) (*record.Claim, error) {
				return record.TryClaim(ctx, eng, rec.Name, rec.Nonce, holder())
			})
			return err
		})
		if e != nil && (ctx.Err() != nil || errors.Is(e, engine.ErrUnavailable)) {
			return report, errors.Join(e, dropMarker(ctx, eng, rec))
		}
		if e == nil {
			defer func() {
				claim.Stop()
				// What may be half gone, or can't be closed once more, is left to the sweep.
				unknown := ctx.Err() != nil || errors.Is(err, engine.ErrUnavailable)
				if err == nil || !unknown || rec.Persistent && !begun {
					err = errors.Join(err, dropMarker(ctx, eng, rec))
				}
			}()
		}
	}
	err = insist(ctx, func() error { return stopContainer(ctx, eng, got, rec) })
	if err != nil && !errors.Is(err, ErrNotFound) {
		if ctx.Err() != nil || errors.Is(err, engine.ErrUnavailable) {
			return report, err
		}
		c.log.Warn("not stopped before it is removed", "sandbox", rec.Name, "error", err)
	}
	begun = true
	if err := c.removeSandbox(ctx, eng, got.ID); err != nil {
		return report, err
	}
	if err := insist(ctx, func() error { return record.DropRevisions(ctx, eng, rec) }); err != nil {
		c.log.Warn("revisions are left for the next sweep", "sandbox", rec.Name, "error", err)
	}
	if fate == keepVolumes {
		return report, nil
	}
	// The sandbox is gone: the caller's end does not leave its volumes between having
	// and not having.
	own, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTimeout)
	defer cancel()
	var errs []error
	for i, v := range volumes {
		if fate == dropOwn && v.Labels[record.ID] != rec.ID {
			continue
		}
		report.Volumes[i], err = deleteOwn(own, eng, v.Name)
		errs = append(errs, err)
	}
	return report, errors.Join(errs...)
}

// dropMarker takes the intention to delete back, done or not, on a context of its own.
func dropMarker(ctx context.Context, eng *engine.Engine, rec record.Sandbox) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeMargin)
	defer cancel()
	return record.Drop(ctx, eng, rec.Name, rec.Nonce)
}

// removeSandbox removes the container. Of several who try one wins; to the others the
// sandbox is not found.
func (c *Client) removeSandbox(ctx context.Context, eng *engine.Engine, id string) error {
	_, err := settle(ctx, func(ctx context.Context) (struct{}, error) {
		return struct{}{}, eng.RemoveContainer(ctx, id, true)
	})
	switch {
	case errors.Is(err, engine.ErrNotFound):
		return ErrNotFound
	case errors.Is(err, engine.ErrConflict):
		for {
			if _, e := eng.InspectContainer(ctx, id); errors.Is(e, engine.ErrNotFound) {
				return ErrNotFound
			} else if e != nil {
				return e
			}
			if e := pause(ctx, stillThere); e != nil {
				return errors.Join(err, e)
			}
		}
	case errors.Is(err, engine.ErrUnavailable):
		// The reply may be what was lost: not found now means that it was done.
		lost := insist(ctx, func() error { return eng.RemoveContainer(ctx, id, true) })
		if errors.Is(lost, engine.ErrNotFound) {
			return nil
		}
		return lost
	}
	return err
}

// mountedVolumes returns the volumes with somebody's files that a container mounts.
func mountedVolumes(ctx context.Context, eng *engine.Engine, got engine.Container) ([]engine.Volume, error) {
	var volumes []engine.Volume
	for _, m := range got.Mounts {
		if m.Type != "volume" || slices.ContainsFunc(volumes, func(v engine.Volume) bool { return v.Name == m.Name }) {
			continue
		}
		v, err := eng.InspectVolume(ctx, m.Name)
		if errors.Is(err, engine.ErrNotFound) {
			continue
		}
		if err != nil {
			return nil, err
		}
		if record.IsData(v.Name, v.Labels) {
			volumes = append(volumes, v)
		}
	}
	slices.SortFunc(volumes, func(a, b engine.Volume) int { return strings.Compare(a.Name, b.Name) })
	return volumes, nil
}

// deleteOwn deletes a volume unless a container still refers to it.
func deleteOwn(ctx context.Context, eng *engine.Engine, name string) (VolumeOutcome, error) {
	failed := func(err error) (VolumeOutcome, error) {
		return VolumeOutcome{name, VolumeDeleteFailed, err.Error()}, fmt.Errorf("volume %s: %w", name, err)
	}
	var users volumeUsers
	err := insist(ctx, func() (err error) {
		users, err = usersOf(ctx, eng, name)
		return err
	})
	if err != nil {
		return failed(err)
	}
	if names := users.names(); len(names) > 0 {
		return VolumeOutcome{name, VolumePreserved, "still referenced by " + strings.Join(names, ", ")}, nil
	}
	if err := users.refuse(name); err != nil {
		return failed(err)
	}
	if err := insist(ctx, func() error { return dropVolume(ctx, eng, name) }); err != nil {
		return failed(err)
	}
	return VolumeOutcome{Name: name, Status: VolumeDeleted}, nil
}

// insist tries again what only a broken connection prevented.
func insist(ctx context.Context, fn func() error) error {
	for try := 0; ; try++ {
		err := fn()
		if !errors.Is(err, engine.ErrUnavailable) || try == 3 || pause(ctx, stillThere<<try) != nil {
			return err
		}
	}
}
