package claim

import (
	"context"
	"errors"
	"time"

	"github.com/seed-1a2d6d8f/sandbox/internal/engine"
	"github.com/seed-1a2d6d8f/sandbox/internal/record"
)

// TrySweep reports whether the caller is to make the sweep that is due now. Of all clients of an
// engine one is, every SweepEvery. nonce is of that call.
func TrySweep(ctx context.Context, v Volumes, nonce, holder string) (bool, error) {
	now := v.Now()
	name := record.SweepName(now)
	// Most of the time somebody else has swept, and an inspection costs the engine less.
	if _, err := v.InspectVolume(ctx, name); !errors.Is(err, engine.ErrNotFound) {
		return false, err
	}
	l := record.Base(record.RoleSweep, nonce, now)
	l[record.Holder], l[record.Until] = holder, now.Truncate(record.SweepEvery).Add(record.SweepEvery).UTC().Format(time.RFC3339Nano)
	got, err := v.CreateVolume(ctx, name, l)
	return err == nil && got.Labels[record.Nonce] == nonce, err
}

// GiveUpSweep lets another client make the sweep that TrySweep gave to the caller.
func GiveUpSweep(ctx context.Context, v Volumes, nonce string) error {
	for _, at := range []time.Time{v.Now(), v.Now().Add(-record.SweepEvery)} {
		got, err := v.InspectVolume(ctx, record.SweepName(at))
		if err != nil && !errors.Is(err, engine.ErrNotFound) {
			return err
		}
		if err == nil && record.Is(got.Labels, record.RoleSweep) && got.Labels[record.Nonce] == nonce {
			return remove(ctx, v, got.Name)
		}
	}
	return nil
}
