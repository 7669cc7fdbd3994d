package store

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/seed-1a2d6d8f/sandbox/internal/bound"
	"github.com/seed-1a2d6d8f/sandbox/internal/claim"
	"github.com/seed-1a2d6d8f/sandbox/internal/engine"
	"github.com/seed-1a2d6d8f/sandbox/internal/errdefs"
	"github.com/seed-1a2d6d8f/sandbox/internal/record"
)

// TakeOver finishes or reverts what the dead holder of a marker began, and removes the marker.
func (s *Store) TakeOver(ctx context.Context, m record.Marker) error {
	err := claim.TakeOver(ctx, s.Engine, m, record.NewNonce(), Holder(), func(ctx context.Context) error {
		if m.Moves() {
			if moved, err := s.settle(ctx, m); err != nil || moved {
				return err // of a sandbox that was moved here the marker is all that is to be removed
			}
		}
		if m.Of != "" {
			// There is no time to copy files: the next user of the sandbox does that.
			return s.finishChange(ctx, record.Sandbox{Name: m.Name, Nonce: m.Of}, m.Nonce, nil)
		}
		if _, _, is := m.Pauses(); is {
			return s.unpauseFor(ctx, m)
		}
		if id, is := m.SnapshotOf(); is {
			if err := errors.Join(s.RemoveVolume(ctx, record.SnapshotName(id), m.Nonce), s.removeContainersOf(ctx, m.Nonce)); err != nil {
				return err
			}
			return s.dropSnapshotFiles(ctx, id, m.Nonce)
		}
		return s.removeAllOf(ctx, m.Nonce)
	})
	if err != nil {
		return fmt.Errorf("clear what %s left of %q: %w", m.Holder, m.Name, err)
	}
	return nil
}

// removeContainersOf removes every container with the nonce.
func (s *Store) removeContainersOf(ctx context.Context, nonce string) error {
	containers, err := s.Engine.ListContainers(ctx, engine.Filter{Labels: []string{record.Filter(record.Managed, "true"), record.Filter(record.Nonce, nonce)}})
	if err != nil {
		return err
	}
	var errs []error
	for _, got := range containers {
		errs = append(errs, s.RemoveContainer(ctx, got.ID, nonce))
	}
	return errors.Join(errs...)
}

// removeAllOf removes every object with the nonce except markers, containers first.
func (s *Store) removeAllOf(ctx context.Context, nonce string) error {
	if nonce == "" {
		return nil
	}
	if err := s.removeContainersOf(ctx, nonce); err != nil {
		return err
	}
	volumes, err := s.Engine.ListVolumes(ctx, record.Filter(record.Managed, "true"), record.Filter(record.Nonce, nonce))
	if err != nil {
		return err
	}
	var errs []error
	for _, v := range volumes {
		if record.Is(v.Labels, record.RolePending, record.RoleTakeover) {
			continue
		}
		// A volume that another sandbox uses by now stays.
		if err := s.RemoveVolume(ctx, v.Name, nonce); !errors.Is(err, errdefs.VolumeInUse) {
			errs = append(errs, err)
		}
	}
	errs = append(errs, s.dropLayers(ctx, record.Filter(record.Nonce, nonce)))
	return errors.Join(append(errs, claim.DropRevisionsOf(ctx, s.Engine, nonce))...)
}

// Discard removes everything of a sandbox that the caller has claimed for its creation, but for the
// marker, and without a graceful stop.
func (s *Store) Discard(ctx context.Context, rec record.Sandbox) error {
	if err := s.removeAllOf(ctx, rec.Nonce); err != nil {
		return err
	}
	s.freeName(ctx, rec)
	return nil
}

// Hold claims the sandbox for a change: until Release nobody else changes or deletes it. It
// returns the nonce of the change. The claim is nil during the sandbox's own creation.
func (s *Store) Hold(ctx context.Context, rec record.Sandbox) (*claim.Claim, string, error) {
	return s.hold(ctx, rec, func(ctx context.Context, op string) (*claim.Claim, error) {
		return claim.TryChange(ctx, s.Engine, rec, op, Holder())
	})
}

func (s *Store) hold(ctx context.Context, rec record.Sandbox, try func(ctx context.Context, op string) (*claim.Claim, error)) (*claim.Claim, string, error) {
	op := record.NewNonce()
	mine, err := bound.FinishCall(ctx, func(ctx context.Context) (*claim.Claim, error) { return try(ctx, op) })
	var held *claim.TakenError
	switch {
	case err == nil:
		return mine, op, nil
	case errors.As(err, &held) && held.Marker.Nonce == rec.Nonce && isCreating(ctx, rec.Name):
		return nil, op, nil // called by a hook of its creation
	case !errors.As(err, &held):
		err = errors.Join(err, s.Release(ctx, rec, nil, op, err))
	}
	return nil, op, err
}

// Release ends a Hold. After a failure, its cause, it finishes or reverts the change; when
// that fails, too, the marker stays and the next caller does so.
func (s *Store) Release(ctx context.Context, rec record.Sandbox, mine *claim.Claim, op string, cause error) error {
	if errors.Is(cause, ErrUnsettled) {
		mine.Stop()
		return nil
	}
	err := bound.Detached(ctx, UndoTimeout, "the change was not ended", func(ctx context.Context) (err error) {
		if cause != nil && mine != nil {
			err = engine.Retry(ctx, func() error { return s.finishChange(ctx, rec, op, nil) })
		}
		if mine != nil {
			mine.Stop()
		}
		if err != nil {
			return err // with the marker in place
		}
		return engine.Retry(ctx, func() error { return claim.Drop(ctx, s.Engine, rec.Name, op, "") })
	})
	if err != nil && cause == nil {
		s.Log.Warn("a marker is left for the next sweep", "sandbox", rec.Name, "error", err)
		return nil
	}
	return err
}

// AwaitChange waits until no process creates, changes or deletes the sandbox of that name,
// and takes over from a dead one.
func (s *Store) AwaitChange(ctx context.Context, name string) (err error) {
	wait := newPace(name, 10*time.Millisecond)
	defer wait.end(&err)
	for {
		m, found, err := claim.FindMarker(ctx, s.Engine, name)
		if err != nil || !found {
			return err
		}
		if s.isDead(m) {
			if err := s.TakeOver(ctx, m); err != nil {
				return err
			}
		}
		if err := wait.sleep(ctx); err != nil {
			return err
		}
	}
}

// AwaitTakeOver takes over from the holder of an expired marker once it is certain that it is
// dead, or returns nil when it turns out to live, or the marker is gone.
func (s *Store) AwaitTakeOver(ctx context.Context, name string) (err error) {
	wait := newPace(name, PollEvery)
	defer wait.end(&err)
	for {
		m, found, err := claim.FindMarker(ctx, s.Engine, name)
		if err != nil || !found || !m.Expired(s.Engine.Now()) {
			return err
		}
		if s.isDead(m) {
			return s.TakeOver(ctx, m)
		}
		if err := wait.sleep(ctx); err != nil {
			return err
		}
	}
}

// finishChange completes or reverts an interrupted change, and removes its unused volumes
// and images.
func (s *Store) finishChange(ctx context.Context, rec record.Sandbox, op string, refill Refill) error {
	if err := s.FinishReplacement(ctx, rec, refill); err != nil {
		return err
	}
	if op != "" && op != rec.Nonce { // the change's helpers, which may hold its volumes
		if err := s.removeContainersOf(ctx, op); err != nil {
			return err
		}
	}
	volumes, err := s.Engine.ListVolumes(ctx, record.Filter(record.Managed, "true"), record.Filter(record.By, op))
	if err != nil {
		return err
	}
	var errs []error
	for _, v := range volumes {
		if record.IsData(v.Name, v.Labels) {
			if err := s.DropVolume(ctx, v); !errors.Is(err, errdefs.VolumeInUse) {
				errs = append(errs, err)
			}
		}
	}
	return errors.Join(append(errs, s.dropLayers(ctx, record.Filter(record.Nonce, rec.Nonce)))...)
}

// finishOrphan completes or reverts the replacement of a container that nobody works on. One of
// a rollback that has to go on it leaves as it is, unless refill is set.
func (s *Store) finishOrphan(ctx context.Context, rec record.Sandbox, refill bool) error {
	mine, op, err := s.Hold(ctx, rec)
	var held *claim.TakenError
	if errors.As(err, &held) {
		return nil
	}
	if err != nil {
		return err
	}
	own := ctx
	if mine != nil {
		var release func()
		own, release = mine.Bind(ctx)
		defer release()
	}
	var fill Refill
	if refill {
		fill = func(ctx context.Context, rec record.Sandbox) error { return s.Refill(ctx, rec, op) }
		err = s.removeContainersOf(own, rec.By) // helpers that may go on to copy
	}
	if err == nil {
		err = s.finishChange(own, rec, rec.By, fill)
	}
	return errors.Join(err, s.Release(ctx, rec, mine, op, err))
}

// A Refill makes the files of a sandbox's volumes those of a snapshot, as its rollback says. The
// caller has a Hold.
type Refill func(ctx context.Context, rec record.Sandbox) error

// FinishReplacement lets the replacement of a sandbox's container, if there is one, take its
// place. If the old container had another session since it was copied, the replacement is
// removed instead. The caller has a Hold.
//
// A rollback is reverted while the old container exists, since nothing has been overwritten.
// Afterwards refill completes it; if that is nil the replacement stays as it is.
func (s *Store) FinishReplacement(ctx context.Context, rec record.Sandbox, refill Refill) error {
	// An unfinished one has no files that the old container lacks.
	if err := s.RemoveContainer(ctx, record.UnfinishedName(rec.Name), rec.Nonce); err != nil {
		return err
	}
	return bound.Poll(ctx, PollEvery, func() (done bool, err error) { return s.replaceStep(ctx, rec, refill, false) })
}

// CommitRollback ends the session of a sandbox and lets the replacement of its container, with
// the files of a snapshot, take its place. From the removal of the old container on the rollback
// can't be reverted. The caller has a Hold.
func (s *Store) CommitRollback(ctx context.Context, rec record.Sandbox, refill Refill) error {
	return bound.Poll(ctx, PollEvery, func() (done bool, err error) { return s.replaceStep(ctx, rec, refill, true) })
}

// replaceStep renames the replacement, or removes the container that is in the way. Another
// process may do the same, so a step that finds its object gone or in use is no failure. It
// is done when there is no replacement. commit is that of CommitRollback.
func (s *Store) replaceStep(ctx context.Context, rec record.Sandbox, refill Refill, commit bool) (done bool, err error) {
	next, err := s.Engine.InspectContainer(ctx, record.NextName(rec.Name))
	if errors.Is(err, engine.ErrNotFound) {
		return true, nil
	}
	if err != nil {
		return false, err
	}
	nextRec, ok := record.Decode(next.Labels)
	if !ok || nextRec.Nonce != rec.Nonce {
		return false, &record.ForeignError{Kind: "container", Object: next.Name}
	}
	old, err := s.Engine.InspectContainer(ctx, record.ContainerName(rec.Name))
	oldRec, ok := record.Decode(old.Labels)
	switch {
	case errors.Is(err, engine.ErrNotFound):
		if isHalfRolledBack(next, nextRec) {
			if refill == nil {
				return true, nil
			}
			if err := refill(ctx, nextRec); err != nil {
				return false, err
			}
		}
		err = s.Engine.RenameContainer(ctx, next.ID, record.ContainerName(rec.Name))
	case err != nil:
		return false, err
	case old.ID == next.ID: // a rename that somebody did not wait for has ended just now
		return true, nil
	case !ok || oldRec.Nonce != rec.Nonce:
		return false, &record.ForeignError{Kind: "container", Object: old.Name}
	case old.State == engine.StateRemoving:
	default:
		remove := next
		switch {
		case BeingRemoved(old):
			remove = old
		case nextRec.Settings.Rollback == nil:
			if !old.HasSession() && Fingerprint(old) == nextRec.Previous {
				remove = old
			}
		case commit && strings.HasPrefix(nextRec.Previous, old.ID+" "):
			// Whatever its sessions change is to be lost.
			if err := s.StopContainer(ctx, old, rec); err != nil {
				return false, err
			}
			remove = old
		}
		// Without force the engine does not remove a container that has just been started.
		err = bound.Finish(ctx, func(ctx context.Context) error {
			return s.removeContainer(ctx, remove.ID, remove.State == engine.StateDead)
		})
	}
	if errors.Is(err, engine.ErrNotFound) || errors.Is(err, engine.ErrConflict) {
		err = nil
	}
	return false, err
}

// Fingerprint identifies the state of a stopped container. Every session changes it.
func Fingerprint(got engine.Container) string {
	return got.ID + " " + got.FinishedAt.UTC().Format(time.RFC3339Nano)
}

// UnpauseNow unpauses a container and reports whether it was paused.
func (s *Store) UnpauseNow(ctx context.Context, id string) (was bool, err error) {
	for began := time.Now(); ; {
		err := s.Engine.UnpauseContainer(ctx, id)
		switch {
		case err == nil:
			return true, nil
		case errors.Is(err, engine.ErrUnavailable):
			return false, err
		case errors.Is(err, engine.ErrNotFound):
			return false, nil
		}
		// Not every engine has a class of error for a container that is not paused. One that is
		// behind says so of a container that has just been paused again, and reports one that has
		// just exited as paused.
		got, e := s.Engine.InspectContainer(ctx, id)
		running := got.State == engine.StateRunning
		switch {
		case errors.Is(e, engine.ErrNotFound), e == nil && !running && got.State != engine.StatePaused, e == nil && running && time.Since(began) > lateStateTimeout:
			return false, nil
		case e != nil, time.Since(began) > staleStateTimeout:
			return false, errors.Join(err, e)
		}
		if e := bound.Sleep(ctx, PollEvery); e != nil {
			return false, errors.Join(err, e)
		}
	}
}

// Unpause unpauses a session. A sandbox that is being copied is unpaused by its copier.
func (s *Store) Unpause(ctx context.Context, got engine.Container) error {
	if rec, ok := SandboxOf(got); ok && record.ValidName(rec.Name) {
		if err := s.AwaitUnpause(ctx, rec.Name); err != nil {
			return err
		}
	}
	now, err := s.Engine.InspectContainer(ctx, got.ID)
	if err != nil || now.State == engine.StateRunning {
		return err
	}
	_, err = s.UnpauseNow(ctx, got.ID)
	return err
}

// ErrCopied is the error of a sandbox that is paused, or about to be, because it is being copied.
var ErrCopied = errors.New("the sandbox is being copied")

// CheckCopied returns ErrCopied if a process has paused the sandbox to copy it, or is about to.
func (s *Store) CheckCopied(ctx context.Context, name string) error {
	_, found, err := claim.FindPause(ctx, s.Engine, name)
	var foreign *record.ForeignError
	if errors.As(err, &foreign) {
		return nil
	}
	if err == nil && found {
		return ErrCopied
	}
	return err
}

// AwaitUnpause returns when no process has paused the sandbox to copy it. It unpauses a
// sandbox for a process that died.
func (s *Store) AwaitUnpause(ctx context.Context, name string) (err error) {
	wait := newPace(name, PollEvery)
	defer wait.end(&err)
	for {
		m, found, err := claim.FindPause(ctx, s.Engine, name)
		var foreign *record.ForeignError
		switch {
		case errors.As(err, &foreign):
			return nil
		case err != nil, !found:
			return err
		case s.isDead(m):
			err = s.TakeOver(ctx, m)
		}
		if err == nil {
			err = wait.sleep(ctx)
		}
		if err != nil {
			return err
		}
	}
}

// unpauseFor unpauses a sandbox for the dead holder of its pause marker.
func (s *Store) unpauseFor(ctx context.Context, m record.Marker) error {
	name, of, _ := m.Pauses()
	if !record.ValidName(name) {
		return nil
	}
	got, err := s.Engine.InspectContainer(ctx, record.ContainerName(name))
	if errors.Is(err, engine.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	if rec, ok := record.Decode(got.Labels); !ok || rec.Nonce != of || got.State != engine.StatePaused {
		return nil
	}
	_, err = s.UnpauseNow(ctx, got.ID)
	return err
}

// staleStateTimeout bounds the wait for an engine that reports a container as paused which
// has just exited: a busy one takes seconds to notice.
const staleStateTimeout = 20 * time.Second

// lateStateTimeout bounds the wait for an engine that reports a container as running which has
// just been paused: it learns of a pause and of its end once more, from the runtime, and takes the
// end of the pause before for the end of this one until it learns of this one, too. On a busy
// machine that took milliseconds.
const lateStateTimeout = time.Second
