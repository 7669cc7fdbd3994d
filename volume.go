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

type deletion struct{ preserve bool }

// PreserveVolumes decides what [Delete] does with the sandbox's volumes. The default,
// true, keeps them: [WithID] adopts a workspace that was kept.
func PreserveVolumes(preserve bool) DeleteOption {
	return func(d *deletion) { d.preserve = preserve }
}

func deleteSettings(opts []DeleteOption) deletion {
	d := deletion{preserve: true}
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
func (c *Client) delete(ctx context.Context, eng *engine.Engine, rec record.Sandbox, preserve bool) (report DeleteReport, err error) {
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
	var volumes []string
	err = insist(ctx, func() (err error) {
		volumes, err = ownVolumes(ctx, eng, got)
		return err
	})
	if err != nil {
		return report, err
	}
	for _, v := range volumes {
		report.Volumes = append(report.Volumes, VolumeOutcome{Name: v, Status: VolumePreserved})
	}
	begun := false // some of it may be gone
	if !preserve && rec.Nonce != "" {
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
	if preserve {
		return report, nil
	}
	// The sandbox is gone: the caller's end does not leave its volumes between having
	// and not having.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTimeout)
	defer cancel()
	var errs []error
	for i, v := range volumes {
		report.Volumes[i], err = deleteOwn(ctx, eng, v)
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

// ownVolumes returns the volumes of ours that a container mounts, but for the guest's.
func ownVolumes(ctx context.Context, eng *engine.Engine, got engine.Container) ([]string, error) {
	var names []string
	for _, m := range got.Mounts {
		if m.Type != "volume" || slices.Contains(names, m.Name) {
			continue
		}
		v, err := eng.InspectVolume(ctx, m.Name)
		if errors.Is(err, engine.ErrNotFound) {
			continue
		}
		if err != nil {
			return nil, err
		}
		if record.Is(v.Labels, record.RoleWorkspace) {
			names = append(names, m.Name)
		}
	}
	slices.Sort(names)
	return names, nil
}

// deleteOwn deletes a volume unless a container still refers to it.
func deleteOwn(ctx context.Context, eng *engine.Engine, name string) (VolumeOutcome, error) {
	failed := func(err error) (VolumeOutcome, error) {
		return VolumeOutcome{name, VolumeDeleteFailed, err.Error()}, fmt.Errorf("volume %s: %w", name, err)
	}
	var users []engine.Container
	err := insist(ctx, func() (err error) {
		users, err = eng.ListContainers(ctx, engine.Filter{Volume: name})
		return err
	})
	if err != nil {
		return failed(err)
	}
	for _, u := range users {
		if r, ok := record.Decode(u.Labels); ok {
			return VolumeOutcome{name, VolumePreserved, "still referenced by " + r.Name}, nil
		}
	}
	if len(users) > 0 {
		return failed(fmt.Errorf("used by container %s, which is not a sandbox", users[0].Name))
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
