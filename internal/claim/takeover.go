package claim

import (
	"context"
	"errors"
	"maps"
	"sync"
	"time"

	"github.com/seed-1a2d6d8f/sandbox/internal/bound"
	"github.com/seed-1a2d6d8f/sandbox/internal/record"
)

// A Watch tells holders that died from those whose lease only seems to have ended because the
// engine's clock was set. It is safe for concurrent use.
type Watch struct {
	mu   sync.Mutex
	seen map[string]sighting
}

// sighting is when an expired marker was first seen with that end of its lease.
type sighting struct{ until, at time.Time }

// ConfirmAfter is how long an expired marker has to be watched, without a renewal, until its
// holder counts as dead: longer than a living one takes to renew it. Only tests change it.
var ConfirmAfter = 12 * time.Second

// Dead reports whether the holder of an expired marker is dead: this process saw the marker
// expired ConfirmAfter ago, by its own clock, and it has not been renewed since. The first call
// for a marker is false.
func (w *Watch) Dead(m record.Marker, now time.Time) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	key := m.Name + " " + m.Nonce
	if !m.Expired(now) {
		delete(w.seen, key)
		return false
	}
	if got, ok := w.seen[key]; ok && got.until.Equal(m.Until) {
		return time.Since(got.at) >= ConfirmAfter
	}
	if w.seen == nil {
		w.seen = map[string]sighting{}
	}
	// Those of markers that are gone.
	maps.DeleteFunc(w.seen, func(_ string, got sighting) bool { return time.Since(got.at) > time.Hour })
	w.seen[key] = sighting{m.Until, time.Now()}
	return false
}

// TakeOverTime bounds a takeover. It is shorter than the lease of its own, after which another
// process may do the same at the same time. Only tests change it.
var TakeOverTime = Lease * 2 / 3

// unfinished is what an error says of what the engine does not do within a limit of this package's.
const unfinished = "the engine did not finish that"

// TakeOver removes what a dead creator left: it calls cleanUp, which removes the objects
// with the marker's nonce, and then removes the marker. One caller at a time does so for a
// name. For the others, and if the marker has changed meanwhile, TakeOver does nothing and
// returns nil: look again.
func TakeOver(ctx context.Context, v Volumes, dead record.Marker, nonce, holder string, cleanUp func(context.Context) error) (err error) {
	now := v.Now()
	mine := record.Marker{Name: dead.Name, Nonce: nonce, Holder: holder, Until: now.Add(Lease)}
	lock := record.TakeoverName(dead.Name)
	defer func() {
		// The lock may exist even if the reply was lost; don't leave it until its lease ends.
		err = errors.Join(err, bound.Detached(ctx, 10*time.Second, unfinished, func(ctx context.Context) error {
			if got, err := v.InspectVolume(ctx, lock); err != nil || got.Labels[record.Nonce] != nonce {
				return nil
			}
			return remove(ctx, v, lock)
		}))
	}()
	got, err := v.CreateVolume(ctx, lock, mine.Labels(record.RoleTakeover, now))
	if err != nil {
		return err
	}
	if got.Labels[record.Nonce] != nonce {
		if record.Is(got.Labels, record.RoleTakeover) && record.DecodeMarker(got.Labels).Expired(now) {
			return remove(ctx, v, lock)
		}
		return nil
	}
	m, found, err := FindMarker(ctx, v, dead.Name)
	if err != nil || !found || m.Nonce != dead.Nonce || m.By != dead.By || !m.Expired(v.Now()) || m.Until.After(dead.Until) {
		return err
	}
	return bound.Within(ctx, TakeOverTime, unfinished, func(ctx context.Context) error {
		if err := cleanUp(ctx); err != nil {
			return err
		}
		return Drop(ctx, v, dead.Name, dead.Nonce, dead.By)
	})
}
