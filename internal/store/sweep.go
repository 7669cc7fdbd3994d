package store

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/seed-1a2d6d8f/sandbox/internal/engine"
	"github.com/seed-1a2d6d8f/sandbox/internal/fault"
	"github.com/seed-1a2d6d8f/sandbox/internal/guest/wire"
	"github.com/seed-1a2d6d8f/sandbox/internal/record"
)

const (
	// sweepEvery is how often Create sweeps; List always has what a sweep needs.
	sweepEvery = time.Minute
	// SweepTimeout bounds one sweep; the next one does the rest.
	SweepTimeout = 20 * time.Second
	// SweepPatience bounds a sweep that a call for something else makes.
	SweepPatience = 2 * time.Second
	// sweepConcurrency is how many objects one sweep cares for at once.
	sweepConcurrency = 8
	// silentTime is how long a sweep leaves an object alone that the engine did not answer for:
	// it may hold the object's lock until it is restarted.
	silentTime = 10 * time.Minute
	// stoppedRetention is how long a sandbox that is not persistent is kept after its handle
	// stopped it and did not start it again.
	stoppedRetention = time.Hour
	// neverStartedAge is the age at which a container that never ran and has no creator is
	// the leftover of a create whose reply was lost.
	neverStartedAge = 5 * time.Minute
	// minOrphanAge is the age at which an object without an owner is an orphan; a younger
	// one may belong to something that is being created.
	minOrphanAge = time.Minute
	// PollEvery is the pause between two inspections of an object that is changing.
	PollEvery = 50 * time.Millisecond
)

// SweepIfDue sweeps unless this client has done so within the last minute.
func (s *Store) SweepIfDue(ctx context.Context) {
	s.mu.Lock()
	due := time.Since(s.swept) > sweepEvery
	s.mu.Unlock()
	if !due {
		return
	}
	all, err := s.List(ctx)
	if err != nil {
		return // the caller's next call to the engine reports it
	}
	s.Sweep(ctx, all, SweepPatience, nil)
}

// Sweep removes what crashed programs left: unfinished sandboxes, sandboxes whose owner is
// gone, and their other objects. It returns the IDs of the containers it removed, and calls
// report, which may be nil, for each object, one call at a time. A failure is only logged: the
// next sweep tries again, and so it does with what is left after d.
func (s *Store) Sweep(ctx context.Context, all Inventory, d time.Duration, report func(object string, err error)) map[string]bool {
	s.mu.Lock()
	s.swept = time.Now()
	s.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	w := &sweep{Store: s, all: all, now: s.Engine.Now(), gone: map[string]bool{}, alive: map[string]bool{}, report: report}
	w.steps.SetLimit(sweepConcurrency)
	w.markers(ctx)
	w.replacements(ctx)
	for _, got := range all.Containers {
		if w.isRemoved(got.ID) {
			continue
		}
		if record.Is(got.Labels, record.RoleHelper) {
			w.beside(ctx, got.ID, func(ctx context.Context) error { return w.helper(ctx, got) })
		} else if rec, ok := SandboxOf(got); ok {
			w.sandbox(ctx, rec, got)
		}
	}
	w.steps.Wait()
	w.snapshots(ctx)
	for _, name := range record.OrphanedRevisions(all.Volumes, w.alive, w.now, minOrphanAge) {
		w.log("revision "+name, s.DropVolume(ctx, name))
	}
	return w.gone
}

// sweep is one sweep.
type sweep struct {
	*Store
	all    Inventory
	now    time.Time
	gone   map[string]bool // IDs of the removed containers
	alive  map[string]bool // nonces of the sandboxes that stay
	report func(object string, err error)
	steps  errgroup.Group

	mu sync.Mutex // of gone and report
}

// beside runs a step for one object beside others. It leaves out an object that the engine has
// not answered for of late.
func (w *sweep) beside(ctx context.Context, object string, step func(context.Context) error) {
	if at, silent := w.silent.Load(object); silent && time.Since(at.(time.Time)) < silentTime {
		return
	}
	w.steps.Go(func() error {
		began := time.Now()
		if err := step(ctx); err != nil && time.Since(began) > SweepPatience/2 && ctx.Err() != nil {
			w.silent.Store(object, time.Now())
		}
		return nil
	})
}

func (w *sweep) removed(id string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.gone[id] = true
}

func (w *sweep) isRemoved(id string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.gone[id]
}

func (w *sweep) log(object string, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.report != nil {
		w.report(object, err)
	}
	if err != nil {
		w.Log.Warn("sweep", "object", object, "error", err)
	} else {
		w.Log.Info("swept", "object", object)
	}
}

// markers takes over from dead processes, and removes leftovers of markers.
func (w *sweep) markers(ctx context.Context) {
	for _, m := range w.all.Markers {
		if m.Expired(w.now) {
			w.beside(ctx, m.Name, func(ctx context.Context) error { return w.takeOver(ctx, m) })
		}
	}
	for _, name := range record.ExpiredLeftovers(w.all.Volumes, w.now) {
		w.log("marker "+name, w.DropVolume(ctx, name))
	}
	w.steps.Wait()
}

func (w *sweep) takeOver(ctx context.Context, m record.Marker) error {
	err := w.TakeOver(ctx, m)
	w.log("half-made sandbox "+m.Name, err)
	for _, got := range w.all.Containers {
		if err == nil && m.Nonce != "" && got.Labels[record.Nonce] == m.Nonce {
			w.removed(got.ID)
		}
	}
	return err
}

// replacements finishes replacements of containers whose process is gone.
func (w *sweep) replacements(ctx context.Context) {
	for _, rec := range w.all.replacements {
		if _, marked := w.all.Markers[rec.Name]; marked {
			continue
		}
		w.beside(ctx, record.NextName(rec.Name), func(ctx context.Context) error {
			err := w.finishOrphan(ctx, rec)
			if err != nil {
				w.log("new container of sandbox "+rec.Name, err)
			}
			return err
		})
	}
	w.steps.Wait()
}

// helper removes a helper whose user is dead.
func (w *sweep) helper(ctx context.Context, got engine.Container) error {
	if !w.all.abandonedHelper(got, w.now) {
		return nil
	}
	err := w.RemoveContainer(ctx, got.ID, got.Labels[record.Nonce])
	w.log("helper "+got.Name, err)
	return err
}

// isIdle reports whether a helper's container does not run: it was not started yet, or has ended.
func isIdle(got engine.Container) bool {
	return got.State == engine.StateCreated || got.State == engine.StateExited || got.State == engine.StateDead
}

// dropIdleHelper removes a helper that nobody will start any more, because no live process has the
// marker of the operation that created it. A helper that mounts a data volume has always been
// created under one, and the caller found the helper before: so a missing marker is not a future one.
func (s *Store) dropIdleHelper(ctx context.Context, got engine.Container) error {
	if !isIdle(got) {
		return nil
	}
	nonce := got.Labels[record.Nonce]
	claimed, err := record.Claimed(ctx, s.Engine, nonce)
	if err != nil || claimed {
		return err
	}
	return s.RemoveContainer(ctx, got.ID, nonce)
}

// sandbox removes a sandbox that was never started, or that is not persistent and whose
// handle is gone.
func (w *sweep) sandbox(ctx context.Context, rec record.Sandbox, got engine.Container) {
	age := w.now.Sub(got.CreatedAt)
	if _, marked := w.all.Markers[rec.Name]; got.State == engine.StateCreated && rec.By == "" && !marked && age > neverStartedAge {
		w.beside(ctx, got.ID, func(ctx context.Context) error {
			err := w.removeAllOf(ctx, rec.Nonce)
			if err == nil {
				w.removed(got.ID)
			}
			w.log("sandbox "+rec.Name+", which was never started", err)
			return err
		})
		return
	}
	w.alive[rec.Nonce] = true
	stopped := got.State == engine.StateExited || got.State == engine.StateCreated && age > stoppedRetention
	if !rec.Persistent && !w.all.Pending(rec, w.now) && stopped {
		w.beside(ctx, got.ID, func(ctx context.Context) error { return w.abandon(ctx, rec, got) })
	}
}

// abandon removes a stopped sandbox that is not persistent, if it has outlived its handle.
func (w *sweep) abandon(ctx context.Context, rec record.Sandbox, got engine.Container) error {
	abandoned, err := w.abandoned(ctx, got.ID, w.now)
	if err == nil && abandoned {
		if _, err = w.Delete(ctx, w.all.Revisions.Of(rec), DropOwn); !errors.Is(err, fault.NotFound) {
			w.log("sandbox "+rec.Name, err)
		}
		abandoned = err == nil
	}
	// Another sweep may have removed it.
	if abandoned || errors.Is(err, engine.ErrNotFound) || errors.Is(err, fault.NotFound) {
		w.removed(got.ID)
	}
	return err
}

// abandoned reports whether a stopped sandbox that is not persistent has outlived its
// handle: PID 1 ended its session, or the handle stopped it long ago.
func (s *Store) abandoned(ctx context.Context, id string, now time.Time) (bool, error) {
	got, err := s.Engine.InspectContainer(ctx, id)
	if err != nil {
		return false, err
	}
	if got.State == engine.StateCreated {
		return true, nil
	}
	if got.State != engine.StateExited {
		return false, nil
	}
	byItself := got.ExitCode == wire.CodeLease || got.ExitCode == wire.CodeTimeout
	return byItself || now.Sub(got.FinishedAt) > stoppedRetention, nil
}

// snapshots removes expired snapshots, orphaned snapshot files, and the parts of overlays
// that are gone.
func (w *sweep) snapshots(ctx context.Context) {
	names, sharers := w.all.volumeNames(), sharers(w.all.Volumes)
	recs := map[string]record.SnapshotRecord{}
	for _, v := range w.all.Volumes {
		if rec, ok := record.DecodeSnapshot(v.Name, v.Labels); ok {
			recs[rec.ID] = rec
		}
	}
	for _, v := range w.all.Volumes {
		if w.all.claimed(v.Labels[record.Nonce], w.now) {
			continue
		}
		if rec, ok := record.DecodeSnapshot(v.Name, v.Labels); ok && !rec.ExpiresAt.IsZero() && w.now.After(rec.ExpiresAt) && len(sharers[rec.ID]) == 0 {
			w.log("expired snapshot "+rec.ID, w.DropSnapshot(ctx, rec))
		}
		if w.emptyTree(v, recs) {
			w.log("volume "+v.Name, w.DropVolume(ctx, v.Name))
		}
		if of, is := record.OverlayOf(v.Name); is && record.Is(v.Labels, record.RoleOverlay) && !names[of] {
			w.log("volume "+v.Name, w.DropVolume(ctx, v.Name))
		}
	}
	for id, nonce := range w.all.orphanedFiles(w.now) {
		w.log("files of snapshot "+id, w.dropSnapshotFiles(ctx, id, nonce))
	}
}

// emptyTree reports whether a volume was created for a snapshot's tree that turned out to
// be empty.
func (w *sweep) emptyTree(v engine.Volume, recs map[string]record.SnapshotRecord) bool {
	rec, recorded := recs[v.Labels[record.ID]]
	return recorded && record.Is(v.Labels, record.RoleFrozen) && record.ValidName(rec.ID) && rec.Nonce == v.Labels[record.Nonce] &&
		w.now.Sub(rec.CreatedAt) > minOrphanAge && !slices.ContainsFunc(rec.Trees, func(t record.Tree) bool { return t.Volume == v.Name })
}
