package claim

import (
	"context"
	"errors"

	"github.com/seed-1a2d6d8f/sandbox/internal/engine"
	"github.com/seed-1a2d6d8f/sandbox/internal/record"
)

// StaleError reports that another revision came first. Read it and try again.
type StaleError struct{ ID string }

func (e *StaleError) Error() string { return "the record of " + e.ID + " changed concurrently" }

// Latest returns r with its latest revision. It takes fewer calls if r has a recent one.
func Latest(ctx context.Context, v Volumes, r record.Sandbox) (record.Sandbox, error) {
	if r.Revision.N > 1 {
		if rev, found, err := searchFrom(ctx, v, r, r.Revision.N); err != nil || found {
			return r.With(rev), err
		}
	}
	rev, _, err := searchFrom(ctx, v, r, 1)
	if err != nil {
		return r, err
	}
	return r.With(rev), nil
}

// revisionAt returns the revision of that number, if there is one.
func revisionAt(ctx context.Context, v Volumes, r record.Sandbox, n int) (rev record.Revision, found bool, err error) {
	vol, err := v.InspectVolume(ctx, record.RevisionName(r.ID, n))
	if errors.Is(err, engine.ErrNotFound) {
		return record.Revision{}, false, nil
	}
	if err != nil {
		return record.Revision{}, false, err
	}
	rev, found = r.RevisionOf(vol.Name, vol.Labels)
	return rev, found, nil
}

// searchFrom finds the latest revision, given that there has been one of the number from. It
// finds none if that one is gone.
func searchFrom(ctx context.Context, v Volumes, r record.Sandbox, from int) (latest record.Revision, found bool, err error) {
	latest.N = from
	if from == 1 {
		if latest, found, err = revisionAt(ctx, v, r, 1); err != nil || !found {
			return record.Revision{}, false, err
		}
	}
	step := lowBit(from)
	for up := true; up || step > 0; {
		next, found, err := revisionAt(ctx, v, r, latest.N+step)
		switch {
		case err != nil:
			return record.Revision{}, false, err
		case found && up:
			latest, step = next, lowBit(next.N)
			continue
		case found:
			latest = next
		}
		up, step = false, step/2
	}
	if from == 1 {
		return latest, true, nil
	}
	// A sweep removes lower numbers first: as long as this one is there, none was missed.
	first, found, err := revisionAt(ctx, v, r, from)
	if latest.N == from {
		latest = first
	}
	return latest, found, err
}

// lowBit returns the lowest bit of n that is set. n is superseded, for readers, once there is
// a revision n + lowBit(n).
func lowBit(n int) int { return n & -n }

// Revise makes the revision after r's own, with change applied to a copy of its changes,
// and returns r with it. When another revision came first it reads that one and tries
// again, so change may be called more than once and must be idempotent. If change returns
// false, Revise returns r unchanged.
func Revise(ctx context.Context, v Volumes, r record.Sandbox, change func(*record.Changes) bool) (record.Sandbox, error) {
	for {
		next := record.Revision{N: r.Revision.N + 1, Changes: r.Revision.Changes, Nonce: record.NewNonce()}
		if !change(&next.Changes) {
			return r, nil
		}
		err := commit(ctx, v, r, next)
		if err == nil {
			return r.With(next), nil
		}
		var stale *StaleError
		if !errors.As(err, &stale) {
			return r, err
		}
		if r, err = Latest(ctx, v, r); err != nil {
			return r, err
		}
		if ctx.Err() != nil {
			return r, context.Cause(ctx)
		}
	}
}

// commit makes the volume of rev, or fails with a *StaleError if another revision came first.
func commit(ctx context.Context, v Volumes, r record.Sandbox, rev record.Revision) error {
	labels, err := r.RevisionLabels(rev, r.Revision.Nonce, v.Now())
	if err != nil {
		return err
	}
	name := record.RevisionName(r.ID, rev.N)
	var got engine.Volume
	// Safe to repeat when a reply is lost: creating the volume again returns it.
	err = engine.Retry(ctx, func() (err error) {
		got, err = v.CreateVolume(ctx, name, labels)
		return err
	})
	if err != nil {
		return err
	}
	if got.Labels[record.Nonce] != rev.Nonce {
		switch {
		case !record.Is(got.Labels, record.RoleRevision):
			return &record.ForeignError{Kind: "volume", Object: name}
		case got.Labels[record.Of] != r.Nonce:
			// It belonged to an earlier sandbox with this ID.
			if err := remove(ctx, v, name); err != nil {
				return err
			}
		}
		return &StaleError{r.ID}
	}
	return confirm(ctx, v, r, rev)
}

// confirm checks that a volume that commit made is the latest revision. A slow writer may have
// made a number again that was used and removed: then there are higher ones, and the next
// does not follow this one.
func confirm(ctx context.Context, v Volumes, r record.Sandbox, rev record.Revision) error {
	return engine.Retry(ctx, func() error {
		latest, _, err := searchFrom(ctx, v, r, 1)
		if err != nil {
			return err
		}
		if latest.N > rev.N && rev.N > 1 { // the first one is never removed, so never made again
			next, err := v.InspectVolume(ctx, record.RevisionName(r.ID, rev.N+1))
			if err != nil && !errors.Is(err, engine.ErrNotFound) {
				return err
			}
			if _, is := r.RevisionOf(next.Name, next.Labels); err != nil || !is || next.Labels[record.After] != rev.Nonce {
				return errors.Join(&StaleError{r.ID}, remove(ctx, v, record.RevisionName(r.ID, rev.N)))
			}
		}
		return nil
	})
}

// DropRevisions removes the revisions of r, the first one last: readers look for the others
// only if it exists. A sweep removes what it does not find.
func DropRevisions(ctx context.Context, v Volumes, r record.Sandbox) error {
	latest, err := Latest(ctx, v, r.With(record.Revision{}))
	if err != nil {
		return err
	}
	var errs []error
	for n := latest.Revision.N; n > 0; {
		_, found, err := revisionAt(ctx, v, r, n)
		if err == nil && found {
			err = remove(ctx, v, record.RevisionName(r.ID, n))
		}
		errs = append(errs, err)
		switch {
		case found || err != nil:
			n--
		case n == lowBit(n):
			n /= 2
		default:
			n -= lowBit(n) // the next lower number that a sweep leaves
		}
	}
	return errors.Join(errs...)
}

// DropRevisionsOf removes all revisions of the sandbox with this creation nonce.
func DropRevisionsOf(ctx context.Context, v Volumes, nonce string) error {
	all, err := v.ListVolumes(ctx, record.Filter(record.Role, record.RoleRevision), record.Filter(record.Of, nonce))
	if err != nil {
		return err
	}
	var errs []error
	for _, vol := range all {
		if record.OurName(vol.Name) && record.Is(vol.Labels, record.RoleRevision) {
			errs = append(errs, remove(ctx, v, vol.Name))
		}
	}
	return errors.Join(errs...)
}
