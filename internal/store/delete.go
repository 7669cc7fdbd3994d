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

	"github.com/seed-1a2d6d8f/sandbox/internal/bound"
	"github.com/seed-1a2d6d8f/sandbox/internal/claim"
	"github.com/seed-1a2d6d8f/sandbox/internal/engine"
	"github.com/seed-1a2d6d8f/sandbox/internal/errdefs"
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
	mine, err := s.claimDeletion(ctx, rec, reclaim)
	if err != nil {
		return []Outcome{}, err
	}
	removing := false // something may be removed already
	if mine != nil {
		defer func() { err = errors.Join(err, mine.end(ctx, err, removing)) }()
	}
	d := &deletion{store: s, rec: rec, got: got}
	err = d.look(ctx, mine != nil)
	outcomes = make([]Outcome, len(d.volumes))
	for i, v := range d.volumes {
		outcomes[i] = Outcome{Name: v.Name, Status: Preserved}
	}
	if err != nil {
		return outcomes, err
	}
	if err := s.stopToDelete(ctx, d.got, rec); err != nil {
		return outcomes, err
	}
	removing = true
	if err := s.deleteContainers(ctx, rec, d.got, d.replacements); err != nil {
		return outcomes, err
	}
	var rest sync.WaitGroup
	rest.Go(func() { s.dropRevisions(ctx, rec) })
	rest.Go(func() { s.freeName(ctx, rec) })
	defer rest.Wait() // before the claim ends
	s.DropImageOf(ctx, d.got)
	if reclaim == KeepVolumes {
		return outcomes, nil
	}
	return outcomes, d.deleteVolumes(ctx, reclaim, outcomes)
}

// freeName gives the name of a deleted sandbox back to the cluster. A name that stays taken is freed by
// who looks for it next, since its node has nothing of that name.
func (s *Store) freeName(ctx context.Context, rec record.Sandbox) {
	if s.Cluster == nil {
		return
	}
	if err := engine.Retry(ctx, func() error { return s.Cluster.Free(ctx, rec) }); err != nil {
		s.Log.Warn("the name of a deleted sandbox is not freed yet", "sandbox", rec.Name, "error", err)
	}
}

// A deletion is what DeleteFound removes.
type deletion struct {
	store        *Store
	rec          record.Sandbox
	got          engine.Container
	replacements []string        // IDs
	volumes      []engine.Volume // that got mounts, and that it mounted before updates
}

// look finds the replacements and the volumes. While the deletion holds a claim nobody replaces
// the container; it may have been replaced just before.
func (d *deletion) look(ctx context.Context, claimed bool) error {
	var volumesErr error
	list := func() {
		d.volumes, volumesErr = engine.RetryCall(ctx, func() ([]engine.Volume, error) { return d.store.volumesOf(ctx, d.got) })
	}
	if !claimed {
		list()
		return volumesErr
	}
	var replacementsErr error
	var looking sync.WaitGroup
	looking.Go(list)
	looking.Go(func() { d.replacements, replacementsErr = d.store.replacementsOf(ctx, d.rec) })
	now, err := d.store.findToDelete(ctx, d.rec)
	looking.Wait()
	if err := errors.Join(err, replacementsErr); err != nil {
		d.volumes = nil
		return err
	}
	replaced := now.ID != d.got.ID
	if d.got = now; replaced {
		list()
	}
	return volumesErr
}

// deleteVolumes deletes those volumes that reclaim selects, with their outcomes. The sandbox is
// gone: the end of ctx does not stop the deletion halfway.
func (d *deletion) deleteVolumes(ctx context.Context, reclaim Reclaim, outcomes []Outcome) error {
	return bound.Detached(ctx, UndoTimeout, "the volumes were not removed", func(ctx context.Context) error {
		var errs []error
		for i, v := range d.volumes {
			if reclaim == DropOwn && v.Labels[record.ID] != d.rec.ID {
				continue
			}
			var err error
			outcomes[i], err = d.store.deleteUnreferenced(ctx, v)
			errs = append(errs, err)
		}
		return errors.Join(errs...)
	})
}

// findToDelete returns the sandbox's present container, or errdefs.NotFound.
func (s *Store) findToDelete(ctx context.Context, rec record.Sandbox) (engine.Container, error) {
	got, err := engine.RetryCall(ctx, func() (engine.Container, error) { return s.locate(ctx, rec.Name) })
	if r, ok := SandboxOf(got); errors.Is(err, engine.ErrNotFound) || err == nil && (!ok || r.ID != rec.ID) {
		return got, errdefs.NotFound
	}
	return got, err
}

// stopToDelete ends the session. It fails only when ctx has ended or the engine is not
// reachable: otherwise the removal of the container ends the session, too.
func (s *Store) stopToDelete(ctx context.Context, got engine.Container, rec record.Sandbox) error {
	err := engine.Retry(ctx, func() error { return s.stop(ctx, got, rec, s.Engine.StopToRemove) })
	if err == nil || errors.Is(err, errdefs.NotFound) {
		return nil
	}
	if ctx.Err() != nil || errors.Is(err, engine.ErrUnavailable) {
		return err
	}
	s.Log.Warn("sandbox removed without a graceful stop", "sandbox", rec.Name, "error", err)
	return nil
}

// replacementsOf returns the IDs of the replacements of a sandbox's container.
func (s *Store) replacementsOf(ctx context.Context, rec record.Sandbox) ([]string, error) {
	var ids [2]string
	var g errgroup.Group
	for i, name := range []string{record.UnfinishedName(rec.Name), record.NextName(rec.Name)} {
		g.Go(func() error {
			got, err := engine.RetryCall(ctx, func() (engine.Container, error) { return s.Engine.InspectContainer(ctx, name) })
			if errors.Is(err, engine.ErrNotFound) {
				return nil
			}
			ids[i] = got.ID
			return err
		})
	}
	err := g.Wait()
	return slices.DeleteFunc(ids[:], func(id string) bool { return id == "" }), err
}

// deleteContainers removes the sandbox's container, and before it its replacements, which would
// take the name otherwise.
func (s *Store) deleteContainers(ctx context.Context, rec record.Sandbox, got engine.Container, replacements []string) error {
	for _, id := range replacements {
		if id == got.ID {
			continue // it is the only one, and removed below
		}
		if err := engine.Retry(ctx, func() error { return s.RemoveContainer(ctx, id, rec.Nonce) }); err != nil {
			return err
		}
	}
	return s.removeSandbox(ctx, got.ID)
}

// dropRevisions removes the revisions of a sandbox whose container is gone.
func (s *Store) dropRevisions(ctx context.Context, rec record.Sandbox) {
	if err := engine.Retry(ctx, func() error { return claim.DropRevisions(ctx, s.Engine, rec) }); err != nil {
		s.Log.Warn("revisions are left for the next sweep", "sandbox", rec.Name, "error", err)
	}
}

// A deletionClaim keeps others from replacing the container that is being deleted. If
// volumes are deleted, too, its marker is a creator's: when this process dies in between,
// the process that finds the marker removes the rest.
type deletionClaim struct {
	claim   *claim.Claim
	rec     record.Sandbox
	reclaim Reclaim
	drop    func(context.Context) error // on a context of its own
}

// end drops the claim. It leaves it to a sweep when the deletion was interrupted with the
// sandbox removed in part, or with one that nobody would delete again.
func (d *deletionClaim) end(ctx context.Context, err error, removing bool) error {
	d.claim.Stop()
	unknown := ctx.Err() != nil || errors.Is(err, engine.ErrUnavailable) || errors.Is(err, errdefs.EngineUnavailable)
	if err == nil || !unknown || d.rec.Persists() && !removing || d.reclaim == KeepVolumes {
		return d.drop(ctx)
	}
	return nil
}

// claimDeletion claims the sandbox for its deletion, after other deletions and changes: the
// engine may answer several removals of a container at once as if each had removed it. It returns
// nil when the process that creates the sandbox has the claim: that one removes it.
func (s *Store) claimDeletion(ctx context.Context, rec record.Sandbox, reclaim Reclaim) (*deletionClaim, error) {
	if rec.Nonce == "" {
		return nil, nil
	}
	nonce, by := rec.Nonce, record.NewNonce()
	try := func(ctx context.Context) (*claim.Claim, error) {
		return claim.TryDelete(ctx, s.Engine, rec, by, Holder())
	}
	if reclaim == KeepVolumes {
		nonce, by = by, ""
		try = func(ctx context.Context) (*claim.Claim, error) {
			return claim.TryChange(ctx, s.Engine, rec, nonce, Holder())
		}
	}
	d := &deletionClaim{rec: rec, reclaim: reclaim}
	d.drop = func(ctx context.Context) error {
		return bound.Detached(ctx, CloseMargin, "the marker of the deletion was not removed", func(ctx context.Context) error {
			return engine.Retry(ctx, func() error {
				if d.claim != nil {
					return d.claim.Drop(ctx)
				}
				return claim.Drop(ctx, s.Engine, rec.Name, nonce, by)
			})
		})
	}
	for {
		var held *claim.TakenError
		var err error
		d.claim, err = engine.RetryCall(ctx, func() (*claim.Claim, error) { return bound.FinishCall(ctx, try) })
		switch {
		case err == nil:
			return d, nil
		case errors.As(err, &held) && (held.Marker.Of != "" || held.Marker.Deletes):
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

// removeSandbox removes the container. Among concurrent callers one succeeds; the others
// get errdefs.NotFound.
func (s *Store) removeSandbox(ctx context.Context, id string) error {
	remove := func() error {
		return bound.Finish(ctx, func(ctx context.Context) error { return s.removeContainer(ctx, id, true) })
	}
	err := remove()
	switch {
	case err == nil:
		return nil
	case errors.Is(err, engine.ErrNotFound):
		return errdefs.NotFound
	case errors.Is(err, engine.ErrUnavailable):
		// Only the reply may have been lost: not found now means that it was removed.
		lost := engine.Retry(ctx, func() error { return s.removeContainer(ctx, id, true) })
		if errors.Is(lost, engine.ErrNotFound) {
			return nil
		}
		return lost
	}
	// Another call removes it, and this one goes on if that fails. Or another call was starting it,
	// so that the engine could not remove its files.
	began := time.Now()
	return bound.Poll(ctx, PollEvery, func() (bool, error) {
		got, e := s.Engine.InspectContainer(ctx, id)
		switch {
		case errors.Is(e, engine.ErrNotFound):
			return true, errdefs.NotFound
		case e != nil:
			return true, e
		case got.State == engine.StateRemoving:
			return false, nil
		case !errors.Is(err, engine.ErrConflict) && (got.State != engine.StateDead || time.Since(began) > releaseTimeout):
			return true, err
		}
		// A removal that is asked for just when another one ends may succeed, too: so it has looked first.
		switch err = remove(); {
		case errors.Is(err, engine.ErrNotFound):
			return true, errdefs.NotFound
		case errors.Is(err, engine.ErrUnavailable):
			return true, err
		}
		return err == nil, nil
	})
}

// lookConcurrency bounds the looks at objects at once, for one call.
const lookConcurrency = 8

// volumesOf returns the data volumes that a sandbox's container mounts, and those that were created for
// the sandbox and lost their mount by an update, by name.
func (s *Store) volumesOf(ctx context.Context, got engine.Container) ([]engine.Volume, error) {
	volumes, err := s.mountedVolumes(ctx, got)
	rec, ok := SandboxOf(got)
	if err != nil || !ok || rec.By == "" || rec.Nonce == "" { // only another container has other mounts
		return volumes, err
	}
	// By the nonce: volumes preserved from an earlier sandbox of the same ID are nobody's.
	own, err := s.Engine.ListVolumes(ctx, record.Filter(record.Managed, "true"), record.Filter(record.Nonce, rec.Nonce))
	if err != nil {
		return nil, err
	}
	for _, v := range own {
		mounted := slices.ContainsFunc(volumes, func(m engine.Volume) bool { return m.Name == v.Name })
		if !mounted && record.IsData(v.Name, v.Labels) && v.Labels[record.ID] == rec.ID {
			volumes = append(volumes, v)
		}
	}
	slices.SortFunc(volumes, byName)
	return volumes, nil
}

func byName(a, b engine.Volume) int { return strings.Compare(a.Name, b.Name) }

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
	slices.SortFunc(volumes, byName)
	return volumes, nil
}

// deleteUnreferenced deletes a volume unless a container still refers to it.
func (s *Store) deleteUnreferenced(ctx context.Context, v engine.Volume) (Outcome, error) {
	name := v.Name
	err := engine.Retry(ctx, func() error { return s.DropVolume(ctx, v) })
	var used *inUse
	switch {
	case err == nil:
		return Outcome{Name: name, Status: Deleted}, nil
	case errors.As(err, &used) && len(used.users.sandboxes) > 0:
		return Outcome{name, Preserved, "still referenced by " + strings.Join(used.users.names(), ", ")}, nil
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
	// session that has just started gets a second SIGTERM, which is harmless after a first. Its
	// end is waited for: the engine would carry out a call that was given up, in the next session.
	stopped, cancel := context.WithCancel(ctx)
	var resignal sync.WaitGroup
	if s.Engine.Now().Sub(got.StartedAt) < startingTime {
		resignal.Go(func() {
			if bound.Sleep(stopped, resignalAfter) != nil {
				return
			}
			own, cancel := context.WithTimeout(ctx, CloseMargin)
			defer cancel()
			_ = s.Engine.KillContainer(own, got.ID, "SIGTERM")
		})
	}
	err := call(ctx, got.ID, rec.Grace())
	cancel()
	resignal.Wait()
	if errors.Is(err, engine.ErrNotFound) {
		return errdefs.NotFound
	}
	return err
}

const (
	// startingTime is how long PID 1 may take on a busy engine to install its handlers.
	startingTime = 5 * time.Second
	// resignalAfter is the time between the two SIGTERMs.
	resignalAfter = 500 * time.Millisecond
)

// CloseMargin is how long Close may take beyond the stop timeout. An engine with 2 CPUs and a load of 30
// was seen to take more than 15 s for the end of a session and the removal of its container.
const CloseMargin = 30 * time.Second
