package record

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"time"

	"github.com/seed-1a2d6d8f/sandbox/internal/engine"
)

// SweepEvery is how often all clients of an engine together sweep, by the engine's clock.
const SweepEvery = time.Minute

// sweepName is the name of the volume whose creator makes the sweep that is due at that time.
func sweepName(now time.Time) string {
	return objects + "sweep.S" + strconv.FormatInt(now.Unix()/int64(SweepEvery/time.Second), 10)
}

// TrySweep reports whether the caller is to make the sweep that is due now. Of all clients of an
// engine one is, every SweepEvery. nonce is of that call.
func TrySweep(ctx context.Context, v Volumes, nonce, holder string) (bool, error) {
	now := v.Now()
	name := sweepName(now)
	// Most of the time somebody else has swept, and an inspection costs the engine less.
	if _, err := v.InspectVolume(ctx, name); !errors.Is(err, engine.ErrNotFound) {
		return false, err
	}
	l := Base(roleSweep, nonce, now)
	l[Holder], l[Until] = holder, now.Truncate(SweepEvery).Add(SweepEvery).UTC().Format(time.RFC3339Nano)
	got, err := v.CreateVolume(ctx, name, l)
	return err == nil && got.Labels[Nonce] == nonce, err
}

// GiveUpSweep lets another client make the sweep that TrySweep gave to the caller.
func GiveUpSweep(ctx context.Context, v Volumes, nonce string) error {
	for _, at := range []time.Time{v.Now(), v.Now().Add(-SweepEvery)} {
		got, err := v.InspectVolume(ctx, sweepName(at))
		if err == nil && Is(got.Labels, roleSweep) && got.Labels[Nonce] == nonce {
			return remove(ctx, v, got.Name)
		}
	}
	return nil
}

// PastSweeps returns the names of the volumes of sweeps that were due before now.
func PastSweeps(vols []engine.Volume, now time.Time) (names []string) {
	for _, v := range vols {
		if Is(v.Labels, roleSweep) && strings.HasPrefix(v.Name, objects+"sweep.S") && v.Name != sweepName(now) {
			names = append(names, v.Name)
		}
	}
	return names
}
