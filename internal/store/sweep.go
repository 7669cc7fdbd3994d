package store

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/seed-1a2d6d8f/sandbox/internal/bound"
	"github.com/seed-1a2d6d8f/sandbox/internal/claim"
	"github.com/seed-1a2d6d8f/sandbox/internal/engine"
	"github.com/seed-1a2d6d8f/sandbox/internal/errdefs"
	"github.com/seed-1a2d6d8f/sandbox/internal/guest/wire"
	"github.com/seed-1a2d6d8f/sandbox/internal/record"
)

const (
	// sweepTimeout bounds one sweep; the next one does the rest.
	sweepTimeout = 20 * time.Second
	// slowStep is the time from which on a step that the end of the sweep cuts off is blamed on
	// its object.
	slowStep = time.Second
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

// SweepInTurn starts a sweep in the background, if it is this client's turn: of all clients of
// the engine that call it, one sweeps every record.SweepEvery. It returns at once. A client
// without calls makes no sweeps, and has no goroutine.
func (s *Store) SweepInTurn() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || s.endSweep != nil || time.Since(s.swept) < record.SweepEvery && !s.swept.IsZero() {
		return
	}
	s.swept = time.Now()
	ctx, cancel := context.WithTimeout(context.Background(), sweepTimeout)
	s.endSweep = cancel
	s.sweeps.Go(func() {
		defer func() {
			cancel()
			s.mu.Lock()
			defer s.mu.Unlock()
			s.endSweep = nil
		}()
		s.sweepInTurn(ctx)
	})
}

// sweepInTurn sweeps if it is this client's turn. If the client is closed meanwhile, as by a
// program that lives shortly, another one has the turn.
func (s *Store) sweepInTurn(ctx context.Context) {
	nonce := record.NewNonce()
	turn, err := claim.TrySweep(ctx, s.Engine, nonce, Holder())
	if err == nil && turn {
		var all Inventory
		if all, err = s.List(ctx); err == nil {
			s.Sweep(ctx, all, nil)
		}
		if s.Cluster != nil {
			err = errors.Join(err, s.Cluster.Sweep(ctx))
		}
	}
	if errors.Is(ctx.Err(), context.Canceled) && (turn || err != nil) {
		own, cancel := bound.Outlive(ctx, time.Second)
		defer cancel()
		err = claim.GiveUpSweep(own, s.Engine, nonce)
	}
	if err != nil {
		s.Log.Warn("sweep", "error", err)
	}
}

// Sweep removes what crashed programs left: unfinished sandboxes, sandboxes whose owner is
// gone, and their other objects. It calls report, which may be nil, for each object, one call
// at a time. A failure is only logged: the next sweep tries again, and so it does with what is
// left after sweepTimeout.
func (s *Store) Sweep(ctx context.Context, all Inventory, report func(object string, err error)) {
	ctx, cancel := context.WithTimeout(ctx, sweepTimeout)
	defer cancel()
	w := &sweep{store: s, all: all, now: s.Engine.Now(), gone: map[string]bool{}, alive: map[string]bool{}, report: report}
	w.steps.SetLimit(sweepConcurrency)
	w.markers(ctx)
	w.replacements(ctx)
	for _, got := range all.Containers {
		if w.isRemoved(got.Container.ID) {
			continue
		}
		if record.Is(got.Container.Labels, record.RoleHelper) {
			w.beside(ctx, got.Container.ID, func(ctx context.Context) error { return w.helper(ctx, got.Container) })
		} else if got.IsSandbox {
			w.sandbox(ctx, got.Record, got.Container)
		}
	}
	w.steps.Wait()
	w.snapshots(ctx)
	w.revisions(ctx)
	w.suspects(ctx)
}

// sweep is one sweep.
type sweep struct {
	store  *Store
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
	if at, silent := w.store.silent.Load(object); silent && time.Since(at.(time.Time)) < silentTime {
		return
	}
	w.steps.Go(func() error {
		began := time.Now()
		if err := step(ctx); err != nil && time.Since(began) > slowStep && ctx.Err() != nil {
			w.store.silent.Store(object, time.Now())
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
		w.store.Log.Warn("sweep", "object", object, "error", err)
	} else {
		w.store.Log.Info("swept", "object", object)
	}
}

// markers takes over from dead processes, and removes leftovers of markers.
func (w *sweep) markers(ctx context.Context) {
	for _, m := range w.all.Markers {
		if !w.all.claimed(m.Nonce) {
			w.beside(ctx, m.Name, func(ctx context.Context) error { return w.takeOver(ctx, m) })
		}
	}
	for _, name := range claim.ExpiredLeftovers(w.all.Volumes, w.now) {
		w.log("marker "+name, w.store.DropVolume(ctx, engine.Volume{Name: name}))
	}
	w.steps.Wait()
}

// suspects takes over from the holders of expired markers that this client had not seen before.
// It comes last, since it waits until it is certain that they are dead.
func (w *sweep) suspects(ctx context.Context) {
	var expired []record.Marker
	for _, m := range w.all.Markers {
		if m.Expired(w.now) && w.all.claimed(m.Nonce) {
			expired = append(expired, m)
		}
	}
	if len(expired) == 0 || bound.Sleep(ctx, claim.ConfirmAfter) != nil {
		return
	}
	for _, m := range expired {
		w.beside(ctx, m.Name, func(ctx context.Context) error {
			now, found, err := claim.FindMarker(ctx, w.store.Engine, m.Name)
			if err != nil || !found || now.Nonce != m.Nonce || !w.store.isDead(now) {
				return err
			}
			return w.takeOver(ctx, now)
		})
	}
	w.steps.Wait()
}

// revisions removes revisions of sandboxes that are gone, and those that no search needs.
func (w *sweep) revisions(ctx context.Context) {
	for _, name := range claim.OrphanedRevisions(w.all.Volumes, w.alive, w.now, minOrphanAge) {
		w.log("revision "+name, w.store.DropVolume(ctx, engine.Volume{Name: name}))
	}
	// What follows is no leftover of anybody, so it is in no report.
	for _, line := range claim.SupersededRevisions(w.all.Volumes, w.now, minOrphanAge) {
		for _, name := range line {
			if w.store.DropVolume(ctx, engine.Volume{Name: name}) != nil {
				break
			}
		}
	}
	for _, name := range claim.PastSweeps(w.all.Volumes, w.now) {
		_ = w.store.DropVolume(ctx, engine.Volume{Name: name})
	}
}

func (w *sweep) takeOver(ctx context.Context, m record.Marker) error {
	err := w.store.TakeOver(ctx, m)
	w.log("half-made sandbox "+m.Name, err)
	for _, got := range w.all.Containers {
		if err == nil && m.Nonce != "" && got.Container.Labels[record.Nonce] == m.Nonce {
			w.removed(got.Container.ID)
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
			err := w.store.finishOrphan(ctx, rec, false)
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
	err := w.store.RemoveContainer(ctx, got.ID, got.Labels[record.Nonce])
	w.log("helper "+got.Name, err)
	return err
}

// isIdle reports whether a helper's container does not run: it was not started yet, or has ended.
func isIdle(got engine.Container) bool {
	return got.State == engine.StateCreated || got.State == engine.StateExited || got.State == engine.StateDead
}

// dropIdleHelper removes a helper that no process will start any more, because no live process has
// the marker of the operation that created it. The marker of a helper that mounts a data volume is
// older than the helper, which the caller has found: so a missing marker was removed.
func (s *Store) dropIdleHelper(ctx context.Context, got engine.Container) error {
	if !isIdle(got) {
		return nil
	}
	nonce := got.Labels[record.Nonce]
	claims, err := claim.FindClaims(ctx, s.Engine, nonce)
	if err != nil || slices.ContainsFunc(claims, func(m record.Marker) bool { return !s.isDead(m) }) {
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
			err := w.store.removeAllOf(ctx, rec.Nonce)
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
	if !w.all.Revisions.Of(rec).Persists() && !w.all.claimedBy(rec) && stopped {
		w.beside(ctx, got.ID, func(ctx context.Context) error { return w.abandon(ctx, rec, got) })
	}
}

// abandon removes a stopped sandbox that is not persistent, if it has outlived its handle.
func (w *sweep) abandon(ctx context.Context, rec record.Sandbox, got engine.Container) error {
	abandoned, err := w.store.abandoned(ctx, got.ID, w.now)
	if err == nil && abandoned {
		// It may have become persistent since it was listed.
		rec, err = claim.Latest(ctx, w.store.Engine, w.all.Revisions.Of(rec))
		abandoned = err == nil && !rec.Persists()
	}
	if err == nil && abandoned {
		if _, err = w.store.Delete(ctx, rec, DropOwn); !errors.Is(err, errdefs.NotFound) {
			w.log("sandbox "+rec.Name, err)
		}
		abandoned = err == nil
	}
	// Another sweep may have removed it.
	if abandoned || errors.Is(err, engine.ErrNotFound) || errors.Is(err, errdefs.NotFound) {
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
	code, _ := wire.EndCode(got.ExitCode)
	byItself := code == wire.CodeLease || code == wire.CodeTimeout || code == wire.CodeIdle
	return byItself || now.Sub(got.FinishedAt) > stoppedRetention, nil
}

// snapshots removes expired snapshots, orphaned snapshot files, and the parts of overlays
// that are gone.
func (w *sweep) snapshots(ctx context.Context) {
	names, users := w.all.volumeNames(), w.all.snapshotUsers()
	recs := map[string]record.SnapshotRecord{}
	for _, v := range w.all.Volumes {
		if rec, ok := record.DecodeSnapshot(v.Name, v.Labels); ok {
			recs[rec.ID] = rec
		}
	}
	for _, v := range w.all.Volumes {
		if w.all.claimed(v.Labels[record.Nonce]) {
			continue
		}
		if rec, ok := record.DecodeSnapshot(v.Name, v.Labels); ok && !rec.ExpiresAt.IsZero() && w.now.After(rec.ExpiresAt) && len(users[rec.ID]) == 0 {
			w.log("expired snapshot "+rec.ID, w.store.DropSnapshot(ctx, rec))
		}
		if w.emptyTree(v, recs) {
			w.log("volume "+v.Name, w.store.DropVolume(ctx, v))
		}
		if of, is := record.OverlayOf(v.Name); is && record.Is(v.Labels, record.RoleOverlay) && !names[of] && w.isMissing(ctx, of) {
			w.log("volume "+v.Name, w.store.DropVolume(ctx, v))
		}
	}
	for id, nonce := range w.all.orphanedFiles() {
		if w.isMissing(ctx, record.SnapshotName(id)) {
			w.log("files of snapshot "+id, w.store.dropSnapshotFiles(ctx, id, nonce))
		}
	}
}

// isMissing reports whether a volume that is not in the inventory does not exist. The engine reads
// the labels of the volumes that it lists after their names: a list may lack the marker of an
// operation that has just ended, as removed, and what was created before that, as not yet there.
func (w *sweep) isMissing(ctx context.Context, name string) bool {
	_, err := w.store.Engine.InspectVolume(ctx, name)
	return errors.Is(err, engine.ErrNotFound)
}

// emptyTree reports whether a volume was created for a snapshot's tree that turned out to
// be empty.
func (w *sweep) emptyTree(v engine.Volume, recs map[string]record.SnapshotRecord) bool {
	rec, recorded := recs[v.Labels[record.ID]]
	return recorded && record.Is(v.Labels, record.RoleFrozen) && record.ValidName(rec.ID) && rec.Nonce == v.Labels[record.Nonce] &&
		w.now.Sub(rec.CreatedAt) > minOrphanAge && !slices.ContainsFunc(rec.Trees, func(t record.Tree) bool { return t.Volume == v.Name })
}
