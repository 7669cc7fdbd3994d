package store

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/seed-1a2d6d8f/sandbox/internal/engine"
	"github.com/seed-1a2d6d8f/sandbox/internal/fault"
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
		return rec, fmt.Errorf("%w: there is none of ID %q", fault.SnapshotNotFound, id)
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
	own, cancel := context.WithTimeout(context.WithoutCancel(ctx), UndoTimeout)
	defer cancel()
	claim, err := RetryCall(ctx, func() (*record.Claim, error) {
		return FinishCall(ctx, func(ctx context.Context) (*record.Claim, error) {
			return record.TryClaim(ctx, s.Engine, marker, rec.Nonce, Holder())
		})
	})
	var held *record.HeldError
	if errors.As(err, &held) {
		return fmt.Errorf("%w: it is being deleted", fault.SnapshotNotFound)
	}
	if err != nil {
		return errors.Join(err, record.Drop(own, s.Engine, marker, rec.Nonce))
	}
	defer claim.Stop()
	if err := engine.Retry(own, func() error { return s.RemoveVolume(own, record.SnapshotName(rec.ID), rec.Nonce) }); err != nil {
		return errors.Join(err, record.Drop(own, s.Engine, marker, rec.Nonce))
	}
	if err := engine.Retry(own, func() error { return s.dropSnapshotFiles(own, rec.ID, rec.Nonce) }); err != nil {
		return err
	}
	claim.Stop()
	return engine.Retry(own, func() error { return record.Drop(own, s.Engine, marker, rec.Nonce) })
}

// checkUnshared fails if volumes share a snapshot's files.
func (s *Store) checkUnshared(ctx context.Context, id string) error {
	on, err := s.Engine.ListVolumes(ctx, record.Filter(record.Managed, "true"), record.Filter(record.Snapshot, id))
	if err != nil || len(on) == 0 {
		return err
	}
	var names []string
	for _, v := range on {
		names = append(names, v.Name)
	}
	return fmt.Errorf("%w: its files are shared by %s", fault.SnapshotInUse, strings.Join(names, ", "))
}

// dropSnapshotFiles removes a snapshot's files and image, unless volumes share the files.
func (s *Store) dropSnapshotFiles(ctx context.Context, id, nonce string) error {
	if err := s.checkUnshared(ctx, id); err != nil {
		if errors.Is(err, fault.SnapshotInUse) {
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
			errs = append(errs, s.DropVolume(ctx, v.Name))
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
	var all []record.SnapshotRecord
	for _, v := range volumes {
		if rec, ok := record.DecodeSnapshot(v.Name, v.Labels); ok {
			all = append(all, rec)
		}
	}
	slices.SortStableFunc(all, func(a, b record.SnapshotRecord) int { return b.CreatedAt.Compare(a.CreatedAt) })
	return all, sharers(volumes), nil
}

// KeepLast removes all snapshots of a sandbox except the n newest and those in use.
func (s *Store) KeepLast(ctx context.Context, sandboxID string, n int) error {
	all, _, err := s.ListSnapshots(ctx)
	if err != nil {
		return err
	}
	var errs []error
	for _, rec := range all {
		if rec.SandboxID != sandboxID {
			continue
		}
		if n--; n >= 0 {
			continue
		}
		if err := s.DropSnapshot(ctx, rec); !errors.Is(err, fault.SnapshotInUse) && !errors.Is(err, fault.SnapshotNotFound) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
