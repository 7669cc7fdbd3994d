package store

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/seed-1a2d6d8f/sandbox/internal/engine"
	"github.com/seed-1a2d6d8f/sandbox/internal/fault"
	"github.com/seed-1a2d6d8f/sandbox/internal/record"
)

// A Reclaim says which volumes the deletion of a sandbox deletes.
type Reclaim int

// The values of Reclaim.
const (
	KeepVolumes Reclaim = iota
	DropOwn             // those created for the sandbox
	DropAll             // attached ones too
)

// The values of Outcome.Status.
const (
	Preserved    = "preserved"
	Deleted      = "deleted"
	DeleteFailed = "delete-failed"
)

// An Outcome reports what a deletion did with one volume.
type Outcome struct {
	Name   string
	Status string // Preserved, Deleted or DeleteFailed
	Reason string // why; may be empty unless it failed
}

// Delete stops a sandbox gracefully and removes its container, and then its volumes, which
// the engine does not release before.
func (s *Store) Delete(ctx context.Context, rec record.Sandbox, reclaim Reclaim) (outcomes []Outcome, err error) {
	got, err := s.findToDelete(ctx, rec)
	if err != nil {
		return []Outcome{}, err
	}
	return s.DeleteFound(ctx, rec, got, reclaim)
}

// DeleteFound is Delete for a sandbox whose container was found a moment ago.
func (s *Store) DeleteFound(ctx context.Context, rec record.Sandbox, got engine.Container, reclaim Reclaim) (outcomes []Outcome, err error) {
	claim, err := s.claimDeletion(ctx, rec, reclaim)
	if err != nil {
		return []Outcome{}, err
	}
	removing := false // something may be removed already
	if claim != nil {
		defer func() { err = errors.Join(err, claim.end(ctx, err, removing)) }()
	}
	found := got.ID
	var volumes []engine.Volume
	var volumesErr error
	var look sync.WaitGroup
	lookUp := func() {
		volumes, volumesErr = RetryCall(ctx, func() ([]engine.Volume, error) { return s.mountedVolumes(ctx, got) })
	}
	if claim == nil {
		lookUp()
	} else {
		// From here on nobody replaces the container; it may have been replaced just before.
		look.Go(lookUp)
		now, err := s.findToDelete(ctx, rec)
		look.Wait()
		if err != nil {
			return []Outcome{}, err
		}
		if got = now; got.ID != found {
			lookUp()
		}
	}
	err = volumesErr
	outcomes = make([]Outcome, len(volumes))
	for i, v := range volumes {
		outcomes[i] = Outcome{Name: v.Name, Status: Preserved}
	}
	if err != nil {
		return outcomes, err
	}
	if err := s.stopToDelete(ctx, got, rec); err != nil {
		return outcomes, err
	}
	removing = true
	if err := s.deleteContainers(ctx, rec, got, claim != nil); err != nil || reclaim == KeepVolumes {
		return outcomes, err
	}
	// The sandbox is gone: from here on the end of ctx does not stop the deletion halfway.
	own, cancel := outlive(ctx, UndoTimeout)
	defer cancel()
	var errs []error
	for i, v := range volumes {
		if reclaim == DropOwn && v.Labels[record.ID] != rec.ID {
			continue
		}
		outcomes[i], err = s.deleteUnreferenced(own, v.Name)
		errs = append(errs, err)
	}
	err = errors.Join(errs...)
	if own.Err() != nil && ctx.Err() == nil && errors.Is(err, context.DeadlineExceeded) {
		err = fault.Classify(fault.EngineUnavailable, fmt.Errorf("the volumes were not removed within %v", UndoTimeout))
	}
	return outcomes, err
}

// findToDelete returns the sandbox's present container, or fault.NotFound.
func (s *Store) findToDelete(ctx context.Context, rec record.Sandbox) (engine.Container, error) {
	got, err := RetryCall(ctx, func() (engine.Container, error) { return s.Locate(ctx, rec.Name) })
	if r, ok := SandboxOf(got); errors.Is(err, engine.ErrNotFound) || err == nil && (!ok || r.ID != rec.ID) {
		return got, fault.NotFound
	}
	return got, err
}

// stopToDelete ends the session. It fails only when ctx has ended or the engine is not
// reachable: otherwise the removal of the container ends the session, too.
func (s *Store) stopToDelete(ctx context.Context, got engine.Container, rec record.Sandbox) error {
	err := engine.Retry(ctx, func() error { return s.stop(ctx, got, rec, s.Engine.StopToRemove) })
	if err == nil || errors.Is(err, fault.NotFound) {
		return nil
	}
	if ctx.Err() != nil || errors.Is(err, engine.ErrUnavailable) {
		return err
	}
	s.Log.Warn("sandbox removed without a graceful stop", "sandbox", rec.Name, "error", err)
	return nil
}

// deleteContainers removes the sandbox's container, its image, anonymous volumes and
// revisions. With a claim it first removes a replacement, which would take the name otherwise.
func (s *Store) deleteContainers(ctx context.Context, rec record.Sandbox, got engine.Container, claimed bool) error {
	if claimed {
		var g errgroup.Group
		for _, name := range []string{record.UnfinishedName(rec.Name), record.NextName(rec.Name)} {
			g.Go(func() error {
				return engine.Retry(ctx, func() error { return s.RemoveContainer(ctx, name, rec.Nonce) })
			})
		}
		if err := g.Wait(); err != nil {
			return err
		}
	}
	if err := s.removeSandbox(ctx, got.ID); err != nil {
		return err
	}
	s.dropAnonymous(ctx, got)
	if err := engine.Retry(ctx, func() error { return record.DropRevisions(ctx, s.Engine, rec) }); err != nil {
		s.Log.Warn("revisions are left for the next sweep", "sandbox", rec.Name, "error", err)
	}
	return nil
}

// A deletionClaim keeps others from replacing the container that is being deleted. If
// volumes are deleted, too, its marker is a creator's: when this process dies in between,
// whoever finds the marker removes the rest.
type deletionClaim struct {
	*record.Claim
	rec     record.Sandbox
	reclaim Reclaim
	drop    func(context.Context) error // on a context of its own
}

// end drops the claim. It leaves it to a sweep when the deletion was interrupted with the
// sandbox removed in part, or with one that nobody would delete again.
func (d *deletionClaim) end(ctx context.Context, err error, removing bool) error {
	d.Stop()
	unknown := ctx.Err() != nil || errors.Is(err, engine.ErrUnavailable) || errors.Is(err, fault.EngineUnavailable)
	if err == nil || !unknown || d.rec.Persistent && !removing || d.reclaim == KeepVolumes {
		return d.drop(ctx)
	}
	return nil
}

// claimDeletion claims the sandbox for its deletion. It returns nil when another process
// that creates or deletes the sandbox has the claim: that one removes it.
func (s *Store) claimDeletion(ctx context.Context, rec record.Sandbox, reclaim Reclaim) (*deletionClaim, error) {
	if rec.Nonce == "" {
		return nil, nil
	}
	nonce, try := rec.Nonce, func(ctx context.Context) (*record.Claim, error) {
		return record.TryDelete(ctx, s.Engine, rec, Holder())
	}
	if reclaim == KeepVolumes {
		nonce = record.NewNonce()
		try = func(ctx context.Context) (*record.Claim, error) {
			return record.TryHold(ctx, s.Engine, rec, nonce, Holder())
		}
	}
	d := &deletionClaim{rec: rec, reclaim: reclaim}
	d.drop = func(ctx context.Context) error {
		ctx, cancel := outlive(ctx, CloseMargin)
		defer cancel()
		return engine.Retry(ctx, func() error {
			if d.Claim != nil {
				return d.Claim.Drop(ctx)
			}
			return record.Drop(ctx, s.Engine, rec.Name, nonce)
		})
	}
	for {
		var held *record.HeldError
		var err error
		d.Claim, err = RetryCall(ctx, func() (*record.Claim, error) { return FinishCall(ctx, try) })
		switch {
		case err == nil:
			return d, nil
		case errors.As(err, &held) && held.Marker.Of != "":
			if err := s.AwaitChange(ctx, rec.Name); err != nil {
				return nil, err
			}
			continue
		case ctx.Err() != nil || errors.Is(err, engine.ErrUnavailable):
			return nil, errors.Join(err, d.drop(ctx))
		}
		return nil, nil
	}
}

// dropAnonymous removes the image and the anonymous volumes of a container that is gone. No
// report mentions them.
func (s *Store) dropAnonymous(ctx context.Context, got engine.Container) {
	ctx, cancel := outlive(ctx, CloseMargin)
	defer cancel()
	check := func(object string, err error) {
		if err != nil && !errors.Is(err, engine.ErrNotFound) && !errors.Is(err, engine.ErrConflict) {
			s.Log.Warn("left behind", "object", object, "error", err)
		}
	}
	check("image "+got.Image, engine.Retry(ctx, func() error { return s.DropImage(ctx, got.Image) }))
	if rec, ok := record.Decode(got.Labels); ok {
		for _, name := range rec.Settings.Unnamed {
			check("volume "+name, engine.Retry(ctx, func() error { return s.Engine.RemoveVolume(ctx, name, false) }))
		}
	}
}

// removeSandbox removes the container. Among concurrent callers one succeeds; the others
// get fault.NotFound.
func (s *Store) removeSandbox(ctx context.Context, id string) error {
	err := Finish(ctx, func(ctx context.Context) error { return s.Engine.RemoveContainer(ctx, id, true) })
	switch {
	case errors.Is(err, engine.ErrNotFound):
		return fault.NotFound
	case errors.Is(err, engine.ErrConflict):
		// Another call removes it. If that fails this one goes on. A removal that is asked for just
		// when another one ends may succeed, too: so look first.
		return fault.Poll(ctx, PollEvery, func() (bool, error) {
			got, err := s.Engine.InspectContainer(ctx, id)
			if err == nil && got.State != engine.StateRemoving {
				err = Finish(ctx, func(ctx context.Context) error { return s.Engine.RemoveContainer(ctx, id, true) })
				if err == nil {
					return true, nil
				}
			}
			switch {
			case errors.Is(err, engine.ErrNotFound):
				return true, fault.NotFound
			case errors.Is(err, engine.ErrConflict):
				return false, nil
			}
			return false, err
		})
	case errors.Is(err, engine.ErrUnavailable):
		// Only the reply may have been lost: not found now means that it was removed.
		lost := engine.Retry(ctx, func() error { return s.Engine.RemoveContainer(ctx, id, true) })
		if errors.Is(lost, engine.ErrNotFound) {
			return nil
		}
		return lost
	}
	return err
}

// lookConcurrency bounds the looks at objects at once, for one call.
const lookConcurrency = 8

// mountedVolumes returns the data volumes that a container mounts, by name.
func (s *Store) mountedVolumes(ctx context.Context, got engine.Container) ([]engine.Volume, error) {
	var names []string
	for _, m := range got.Mounts {
		if m.Type == "volume" && !slices.Contains(names, m.Name) {
			names = append(names, m.Name)
		}
	}
	volumes := make([]engine.Volume, len(names))
	var g errgroup.Group
	g.SetLimit(lookConcurrency)
	for i, name := range names {
		g.Go(func() error {
			v, err := s.Engine.InspectVolume(ctx, name)
			if errors.Is(err, engine.ErrNotFound) {
				return nil
			}
			volumes[i] = v
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	volumes = slices.DeleteFunc(volumes, func(v engine.Volume) bool { return !record.IsData(v.Name, v.Labels) })
	slices.SortFunc(volumes, func(a, b engine.Volume) int { return strings.Compare(a.Name, b.Name) })
	return volumes, nil
}

// deleteUnreferenced deletes a volume unless a container still refers to it.
func (s *Store) deleteUnreferenced(ctx context.Context, name string) (Outcome, error) {
	err := engine.Retry(ctx, func() error { return s.DropVolume(ctx, name) })
	var used *inUse
	switch {
	case err == nil:
		return Outcome{Name: name, Status: Deleted}, nil
	case errors.As(err, &used) && len(used.users.sandboxes) > 0:
		return Outcome{name, Preserved, "still referenced by " + strings.Join(used.users.Names(), ", ")}, nil
	}
	return Outcome{name, DeleteFailed, err.Error()}, fmt.Errorf("volume %s: %w", name, err)
}

// StopContainer stops a container gracefully and returns when it has stopped.
func (s *Store) StopContainer(ctx context.Context, got engine.Container, rec record.Sandbox) error {
	return s.stop(ctx, got, rec, s.Engine.StopContainer)
}

func (s *Store) stop(ctx context.Context, got engine.Container, rec record.Sandbox, call func(context.Context, string, time.Duration) error) error {
	switch got.State {
	case engine.StateExited, engine.StateCreated, engine.StateDead:
		return nil
	}
	// The kernel drops a signal that reaches a PID 1 before it has a handler for it. So a
	// session that has just started gets a second SIGTERM, which is harmless after a first.
	stopped, cancel := context.WithCancel(ctx)
	var resignal sync.WaitGroup
	if s.Engine.Now().Sub(got.StartedAt) < startingTime {
		resignal.Go(func() {
			if fault.Sleep(stopped, resignalAfter) == nil {
				_ = s.Engine.KillContainer(stopped, got.ID, "SIGTERM")
			}
		})
	}
	err := call(ctx, got.ID, rec.Grace())
	cancel()
	resignal.Wait()
	if errors.Is(err, engine.ErrNotFound) {
		return fault.NotFound
	}
	return err
}

const (
	// startingTime is how long PID 1 may take on a busy engine to install its handlers.
	startingTime = 5 * time.Second
	// resignalAfter is the time between the two SIGTERMs.
	resignalAfter = 500 * time.Millisecond
)

// CloseMargin is how long Close may take beyond the stop timeout.
const CloseMargin = 15 * time.Second
