package transfer

import (
	"context"
	"errors"
	"fmt"

	"github.com/seed-1a2d6d8f/sandbox/internal/engine"
	"github.com/seed-1a2d6d8f/sandbox/internal/errdefs"
	"github.com/seed-1a2d6d8f/sandbox/internal/machine"
	"github.com/seed-1a2d6d8f/sandbox/internal/record"
)

// Refill makes the files of a sandbox's volumes those of a snapshot, as the rollback in its record
// says. It removes the present files first, and so can be repeated after it was interrupted.
// nonce is that of the operation.
func Refill(ctx context.Context, m *machine.Machine, rec record.Sandbox, nonce string, report *machine.Reporter) error {
	if _, err := m.EnsureGuest(ctx, report); err != nil {
		return err
	}
	var jobs []Job
	for _, r := range rec.Settings.Rollback.Refills {
		// Without its source the copy would remove the present files all the same.
		from, err := m.Engine.InspectVolume(ctx, r.From)
		if err != nil && !errors.Is(err, engine.ErrNotFound) {
			return err
		}
		if err != nil || !record.OurName(from.Name) || !record.Is(from.Labels, record.RoleFrozen) {
			return fmt.Errorf("%w: its volume %s was removed", errdefs.SnapshotNotFound, r.From)
		}
		to, err := m.Store.FindVolume(ctx, r.To)
		if err != nil {
			return err
		}
		jobs = append(jobs, Job{What: "volume " + r.To, From: Tree{Volume: r.From}, To: Tree{Volume: r.To}, Labels: to.Labels, Again: true})
	}
	k := NewCopier(m, rec.Name, nonce, report)
	if err := k.Copy(ctx, jobs); err != nil {
		return errors.Join(err, k.Helper.Undo.Run(ctx))
	}
	return nil
}
