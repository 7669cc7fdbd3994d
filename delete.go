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
	find := func() (got engine.Container, err error) {
		err = engine.Insist(ctx, func() (err error) {
			got, err = locate(ctx, eng, rec.Name)
			return err
		})
		if r, ok := isSandbox(got); errors.Is(err, engine.ErrNotFound) || err == nil && (!ok || r.ID != rec.ID) {
			return got, ErrNotFound
		}
		return got, err
	}
	got, err := find()
	if err != nil {
		return report, err
	}
	begun := false // some of it may be gone
	claim, err := c.claimDeletion(ctx, eng, rec, fate)
	if err != nil {
		return report, err
	}
	if claim != nil {
		defer func() {
			claim.Stop()
			// What may be half gone, or can't be closed once more, is left to the sweep.
			unknown := ctx.Err() != nil || errors.Is(err, engine.ErrUnavailable)
			if err == nil || !unknown || rec.Persistent && !begun || fate == keepVolumes {
				err = errors.Join(err, claim.drop(ctx))
			}
		}()
		// Now nobody puts another in its place, but may have just done so.
		if got, err = find(); err != nil {
			return report, err
		}
	}
	var volumes []engine.Volume
	err = engine.Insist(ctx, func() (err error) {
		volumes, err = mountedVolumes(ctx, eng, got)
		return err
	})
	if err != nil {
		return report, err
	}
	for _, v := range volumes {
		report.Volumes = append(report.Volumes, VolumeOutcome{Name: v.Name, Status: VolumePreserved})
	}
	err = engine.Insist(ctx, func() error { return stopContainer(ctx, eng, got, rec) })
	if err != nil && !errors.Is(err, ErrNotFound) {
		if ctx.Err() != nil || errors.Is(err, engine.ErrUnavailable) {
			return report, err
		}
		c.log.Warn("not stopped before it is removed", "sandbox", rec.Name, "error", err)
	}
	begun = true
	if claim != nil {
		// One that was to take its place goes first, or it would still.
		for _, name := range []string{record.UnfinishedName(rec.Name), record.NextName(rec.Name)} {
			err := engine.Insist(ctx, func() error { return removeContainer(ctx, eng, name, rec.Nonce) })
			if err != nil {
				return report, err
			}
		}
	}
	if err := c.removeSandbox(ctx, eng, got.ID); err != nil {
		return report, err
	}
	c.dropUnnamed(ctx, eng, got)
	if err := engine.Insist(ctx, func() error { return record.DropRevisions(ctx, eng, rec) }); err != nil {
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

// A deletionClaim keeps others from putting a new container in the place of the one that
// is being deleted. When volumes go, too, it says so: once the container is gone nothing
// else would. Should we die in between, whoever finds it clears the rest.
type deletionClaim struct {
	*record.Claim
	drop func(context.Context) error // on a context of its own
}

// claimDeletion returns nil when somebody who makes or deletes the sandbox has the claim:
// they will clear it.
func (c *Client) claimDeletion(ctx context.Context, eng *engine.Engine, rec record.Sandbox, fate fate) (*deletionClaim, error) {
	if rec.Nonce == "" {
		return nil, nil
	}
	nonce, try := rec.Nonce, func(ctx context.Context) (*record.Claim, error) {
		return record.TryClaim(ctx, eng, rec.Name, rec.Nonce, holder())
	}
	if fate == keepVolumes {
		nonce = record.NewNonce()
		try = func(ctx context.Context) (*record.Claim, error) {
			return record.TryHold(ctx, eng, rec, nonce, holder())
		}
	}
	d := &deletionClaim{drop: func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeMargin)
		defer cancel()
		return engine.Insist(ctx, func() error { return record.Drop(ctx, eng, rec.Name, nonce) })
	}}
	for {
		err := engine.Insist(ctx, func() (err error) {
			d.Claim, err = settle(ctx, try)
			return err
		})
		var held *record.HeldError
		switch {
		case err == nil:
			return d, nil
		case errors.As(err, &held) && held.Marker.Of != "":
			if err := c.settleHeld(ctx, eng, rec.Name); err != nil {
				return nil, err
			}
			continue
		case ctx.Err() != nil || errors.Is(err, engine.ErrUnavailable):
			return nil, errors.Join(err, d.drop(ctx))
		}
		return nil, nil
	}
}

// dropUnnamed removes what belonged to a container that is gone and has no place in a
// report.
func (c *Client) dropUnnamed(ctx context.Context, eng *engine.Engine, got engine.Container) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeMargin)
	defer cancel()
	note := func(what string, err error) {
		if err != nil && !errors.Is(err, engine.ErrNotFound) && !errors.Is(err, engine.ErrConflict) {
			c.log.Warn("left behind", "object", what, "error", err)
		}
	}
	note("image "+got.Image, engine.Insist(ctx, func() error { return dropImage(ctx, eng, got.Image) }))
	if rec, ok := record.Decode(got.Labels); ok {
		for _, name := range rec.Settings.Unnamed {
			note("volume "+name, engine.Insist(ctx, func() error { return eng.RemoveVolume(ctx, name, false) }))
		}
	}
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
		lost := engine.Insist(ctx, func() error { return eng.RemoveContainer(ctx, id, true) })
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
	err := engine.Insist(ctx, func() (err error) {
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
	if err := engine.Insist(ctx, func() error { return dropVolume(ctx, eng, name) }); err != nil {
		return failed(err)
	}
	return VolumeOutcome{Name: name, Status: VolumeDeleted}, nil
}
