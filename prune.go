package sandbox

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/seed-1a2d6d8f/sandbox/internal/engine"
	"github.com/seed-1a2d6d8f/sandbox/internal/guest"
	"github.com/seed-1a2d6d8f/sandbox/internal/record"
)

// PruneReport tells what [Prune] removed and what it could not.
type PruneReport struct {
	// Removed names the objects: "sandbox x", "volume y", "image z", in order.
	Removed []string
	// Failed names the objects that are still there, each with the reason.
	Failed []string
}

// String returns one line for each object.
func (r PruneReport) String() string {
	lines := make([]string, 0, len(r.Removed)+len(r.Failed))
	for _, o := range r.Removed {
		lines = append(lines, o+": removed")
	}
	return strings.Join(append(lines, r.Failed...), "\n")
}

// Prune removes from the engine what nobody needs any more: what crashed programs left
// of sandboxes, as every [List] does, and the guest of other versions of this package
// where no sandbox uses it. Sandboxes that anybody could still want, their volumes and
// the guest of this version stay. The error joins what Failed tells.
func Prune(ctx context.Context) (PruneReport, error) { return defaultClient().Prune(ctx) }

// Prune is [Prune] on the client's engine.
func (c *Client) Prune(ctx context.Context) (PruneReport, error) {
	report := PruneReport{Removed: []string{}, Failed: []string{}}
	var errs []error
	note := func(object string, err error) {
		if err != nil {
			report.Failed = append(report.Failed, fmt.Sprintf("%s: %v", object, err))
			errs = append(errs, fmt.Errorf("%s: %w", object, err))
			return
		}
		report.Removed = append(report.Removed, object)
	}
	eng, err := c.engine(ctx)
	if err != nil {
		return report, fail("prune", "", err)
	}
	all, err := look(ctx, eng)
	if err != nil {
		return report, fail("prune", "", err)
	}
	c.sweep(ctx, eng, all, note)
	if err := pruneGuests(ctx, eng, all.volumes, note); err != nil {
		errs = append(errs, err)
	}
	if err := pruneLayers(ctx, eng, all, note); err != nil {
		errs = append(errs, err)
	}
	slices.Sort(report.Removed)
	slices.Sort(report.Failed)
	return report, fail("prune", "", errors.Join(errs...))
}

// pruneLayers removes images of sandboxes' files that a change which failed has left and no
// snapshot has, and those of snapshots that are gone.
func pruneLayers(ctx context.Context, eng *engine.Engine, all everything, note func(string, error)) error {
	images, err := eng.ListImages(ctx)
	if err != nil {
		return err
	}
	remove := func(ref string) {
		// One that a container uses the engine keeps.
		if err := eng.RemoveImage(ctx, ref, false); !errors.Is(err, engine.ErrNotFound) && !errors.Is(err, engine.ErrConflict) {
			note("image "+ref, err)
		}
	}
	now := eng.Now()
	for _, i := range images {
		// A snapshot's own has its name.
		if record.Is(i.Labels, record.RoleLayer) || record.Is(i.Labels, record.RoleFrozen) && len(i.Tags) == 0 {
			made, _ := time.Parse(time.RFC3339Nano, i.Labels[record.CreatedAt])
			if now.Sub(made) >= youngAge && !all.claimed(i.Labels[record.By], now) && !all.claimed(i.Labels[record.Nonce], now) {
				refs, err := spare(ctx, eng, i)
				if err != nil {
					return err
				}
				for _, ref := range refs {
					remove(ref)
				}
			}
		}
		// Most of snapshots are others' images under one more name, which has no label.
		for _, tag := range i.Tags {
			over, err := overSnapshot(ctx, eng, tag)
			if err != nil {
				return err
			}
			if over {
				remove(tag)
			}
		}
	}
	return nil
}

// pruneGuests removes guests of other versions. What is in use the engine keeps, and
// it has the last word: a sandbox may be made between a look and a removal.
func pruneGuests(ctx context.Context, eng *engine.Engine, volumes []engine.Volume, note func(string, error)) error {
	arch, err := eng.Arch(ctx)
	if err != nil {
		return err
	}
	hash, err := guest.Hash(arch)
	if err != nil {
		return classify(ErrUnsupported, err)
	}
	try := func(object string, err error) {
		if !errors.Is(err, engine.ErrNotFound) && !errors.Is(err, engine.ErrConflict) {
			note(object, err)
		}
	}
	for _, v := range volumes {
		if record.Is(v.Labels, record.RoleGuest) && v.Name != record.GuestName(hash) {
			try("volume "+v.Name, eng.RemoveVolume(ctx, v.Name, false))
		}
	}
	images, err := eng.ListImages(ctx, record.Filter(record.Managed, "true"), record.Filter(record.Role, record.RoleGuest))
	if err != nil {
		return err
	}
	for _, i := range images {
		ref := i.ID
		if len(i.Tags) > 0 {
			ref = i.Tags[0]
		}
		if !slices.Contains(i.Tags, record.GuestImage(hash)) {
			try("image "+ref, eng.RemoveImage(ctx, ref, false))
		}
	}
	return nil
}
