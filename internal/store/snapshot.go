package store

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/seed-1a2d6d8f/sandbox/internal/bound"
	"github.com/seed-1a2d6d8f/sandbox/internal/claim"
	"github.com/seed-1a2d6d8f/sandbox/internal/engine"
	"github.com/seed-1a2d6d8f/sandbox/internal/errdefs"
	"github.com/seed-1a2d6d8f/sandbox/internal/record"
)

// FindSnapshot returns the snapshot of that ID.
func (s *Store) FindSnapshot(ctx context.Context, id string) (record.SnapshotRecord, error) {
	v, err := s.Engine.InspectVolume(ctx, record.SnapshotName(id))
	if err != nil && !errors.Is(err, engine.ErrNotFound) {
		return record.SnapshotRecord{}, err
	}
	rec, ok := record.DecodeSnapshot(v.Name, v.Labels)
	if err != nil || !ok {
		return rec, fmt.Errorf("%w: no snapshot has the ID %q", errdefs.SnapshotNotFound, id)
	}
	return rec, nil
}

// DropSnapshot removes a snapshot whose files nobody shares: its record first, so that
// nobody new can. The rest is under a marker: if this process dies, a sweep takes over.
func (s *Store) DropSnapshot(ctx context.Context, rec record.SnapshotRecord) error {
	if err := s.checkUnshared(ctx, rec.ID); err != nil {
		return err
	}
	marker := record.SnapshotMarker(rec.ID)
	mine, err := engine.RetryCall(ctx, func() (*claim.Claim, error) {
		return bound.FinishCall(ctx, func(ctx context.Context) (*claim.Claim, error) {
			return claim.Try(ctx, s.Engine, marker, rec.Nonce, Holder())
		})
	})
	var held *claim.TakenError
	if errors.As(err, &held) {
		return fmt.Errorf("%w: it is being deleted", errdefs.SnapshotNotFound)
	}
	drop := func(ctx context.Context) error { return claim.Drop(ctx, s.Engine, marker, rec.Nonce, "") }
	switch {
	case engine.IsInternal(err):
		// On a full disk there is no room for the marker. The sweep that takes over also removes files
		// whose record is gone.
		mine = nil
	case err != nil:
		return errors.Join(err, bound.Detached(ctx, UndoTimeout, "the marker of its deletion was not removed", drop))
	default:
		defer mine.Stop()
	}
	return bound.Detached(ctx, UndoTimeout, "the snapshot was not removed", func(ctx context.Context) error {
		if err := engine.Retry(ctx, func() error { return s.RemoveVolume(ctx, record.SnapshotName(rec.ID), rec.Nonce) }); err != nil {
			return errors.Join(err, drop(ctx))
		}
		if err := engine.Retry(ctx, func() error { return s.dropSnapshotFiles(ctx, rec.ID, rec.Nonce) }); err != nil {
			return err
		}
		if mine != nil {
			mine.Stop()
		}
		return engine.Retry(ctx, func() error { return drop(ctx) })
	})
}

// SharersOf returns the volumes that share a snapshot's files.
func (s *Store) SharersOf(ctx context.Context, id string) ([]string, error) {
	on, err := s.Engine.ListVolumes(ctx, record.Filter(record.Managed, "true"), record.Filter(record.Snapshot, id))
	var names []string
	for _, v := range on {
		names = append(names, v.Name)
	}
	return names, err
}

// checkUnshared fails if volumes share a snapshot's files, or a rollback needs them.
func (s *Store) checkUnshared(ctx context.Context, id string) error {
	names, err := s.SharersOf(ctx, id)
	if err != nil {
		return err
	}
	if len(names) > 0 {
		return fmt.Errorf("%w: its files are shared by %s", errdefs.SnapshotInUse, strings.Join(names, ", "))
	}
	containers, err := s.Engine.ListContainers(ctx, engine.Filter{Labels: []string{record.Filter(record.Managed, "true"), record.Filter(record.Snapshot, id)}})
	if err != nil {
		return err
	}
	for _, got := range containers {
		if rec, ok := record.Decode(got.Labels); ok && (IsNext(got, rec) || isUnfinished(got, rec)) {
			return fmt.Errorf("%w: sandbox %s is being rolled back to it", errdefs.SnapshotInUse, rec.Name)
		}
	}
	return nil
}

// dropSnapshotFiles removes a snapshot's files and image, unless volumes share the files.
func (s *Store) dropSnapshotFiles(ctx context.Context, id, nonce string) error {
	if err := s.checkUnshared(ctx, id); err != nil {
		if errors.Is(err, errdefs.SnapshotInUse) {
			return nil // for the sweep after the last sharer is gone
		}
		return err
	}
	volumes, err := s.Engine.ListVolumes(ctx, record.Filter(record.Managed, "true"), record.Filter(record.Role, record.RoleFrozen), record.Filter(record.ID, id))
	if err != nil {
		return err
	}
	var errs []error
	for _, v := range volumes {
		if v.Labels[record.Nonce] == nonce {
			errs = append(errs, s.DropVolume(ctx, v))
		}
	}
	return errors.Join(append(errs, s.Uncommit(ctx, record.SnapshotImage(id), nonce))...)
}

// ListSnapshots returns the recorded snapshots, the newest first, and the volumes that
// share the files of each, by its ID.
func (s *Store) ListSnapshots(ctx context.Context) ([]record.SnapshotRecord, map[string][]string, error) {
	volumes, err := s.Engine.ListVolumes(ctx, record.Filter(record.Managed, "true"))
	if err != nil {
		return nil, nil, err
	}
	return snapshotsIn(volumes), sharers(volumes), nil
}

func snapshotsIn(volumes []engine.Volume) (all []record.SnapshotRecord) {
	for _, v := range volumes {
		if rec, ok := record.DecodeSnapshot(v.Name, v.Labels); ok {
			all = append(all, rec)
		}
	}
	slices.SortStableFunc(all, func(a, b record.SnapshotRecord) int { return b.CreatedAt.Compare(a.CreatedAt) })
	return all
}

// KeepLast removes all snapshots of a sandbox except the n newest and those in use.
func (s *Store) KeepLast(ctx context.Context, sandboxID string, n int) error {
	_, err := s.dropSnapshotsOf(ctx, sandboxID, n)
	return err
}

// DropSnapshotsOf removes all snapshots of a sandbox except those in use. It reports each, the
// newest first.
func (s *Store) DropSnapshotsOf(ctx context.Context, sandboxID string) ([]Outcome, error) {
	return s.dropSnapshotsOf(ctx, sandboxID, 0)
}

func (s *Store) dropSnapshotsOf(ctx context.Context, sandboxID string, keep int) (outcomes []Outcome, err error) {
	all, _, err := s.ListSnapshots(ctx)
	if err != nil {
		return nil, err
	}
	var errs []error
	for _, rec := range all {
		if rec.SandboxID != sandboxID {
			continue
		}
		if keep--; keep >= 0 {
			continue
		}
		o := Outcome{Name: rec.ID, Status: Deleted}
		err := s.DropSnapshot(ctx, rec)
		switch {
		case err == nil, errors.Is(err, errdefs.SnapshotNotFound):
		case errors.Is(err, errdefs.SnapshotInUse):
			o.Status, o.Reason = Preserved, err.Error()
		default:
			o.Status, o.Reason = DeleteFailed, err.Error()
			errs = append(errs, fmt.Errorf("snapshot %s: %w", rec.ID, err))
		}
		outcomes = append(outcomes, o)
	}
	return outcomes, errors.Join(errs...)
}
