package sandbox

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/seed-1a2d6d8f/sandbox/internal/engine"
	"github.com/seed-1a2d6d8f/sandbox/internal/guest/wire"
	"github.com/seed-1a2d6d8f/sandbox/internal/record"
)

const (
	// sweepEvery is how often Create sweeps; List always has what a sweep needs.
	sweepEvery = time.Minute
	// sweepTimeout bounds one sweep: what it does not get to, the next one does.
	sweepTimeout = 20 * time.Second
	// stoppedKept is how long a sandbox that is not persistent is kept after its handle
	// stopped it and was not heard of again.
	stoppedKept = time.Hour
	// neverStarted is the age at which a container that nobody is making and that never
	// ran is the trace of a create whose reply came too late for everybody.
	neverStarted = 5 * time.Minute
	// youngAge protects what somebody may be in the middle of making.
	youngAge = time.Minute
	// stillThere is how long to wait before looking again for what is being removed.
	stillThere = 50 * time.Millisecond
)

// everything is all that is ours on an engine, in two calls.
type everything struct {
	containers []engine.Container // of a sandbox the one that counts
	next       []record.Sandbox   // whose container is to take the place of another
	volumes    []engine.Volume
	markers    map[string]record.Marker
	revisions  record.Revisions
}

func look(ctx context.Context, eng *engine.Engine) (all everything, err error) {
	managed := record.Filter(record.Managed, "true")
	// Volumes first: a marker that goes in between has its container in the other list.
	if all.volumes, err = eng.ListVolumes(ctx, managed); err != nil {
		return all, err
	}
	if all.containers, err = eng.ListContainers(ctx, engine.Filter{Labels: []string{managed}}); err != nil {
		return all, err
	}
	all.settle()
	all.revisions = record.ReadRevisions(all.volumes)
	all.markers = map[string]record.Marker{}
	for _, m := range record.Markers(all.volumes) {
		all.markers[m.Name] = m
	}
	return all, nil
}

// settle leaves one container of each sandbox, by the rules of locate.
func (all *everything) settle() {
	at := map[string]engine.Container{}
	for _, got := range all.containers {
		at[got.Name] = got
	}
	all.containers = slices.DeleteFunc(all.containers, func(got engine.Container) bool {
		if rec, ok := record.Decode(got.Labels); ok && isUnfinished(got) {
			all.next = append(all.next, rec)
			return true
		}
		rec, ok := isSandbox(got)
		if !ok {
			return false
		}
		now, there := at[record.ContainerName(rec.Name)]
		next, coming := at[record.NextName(rec.Name)]
		if isNext(got, rec) {
			all.next = append(all.next, rec)
			return there && !leaving(now)
		}
		return coming && leaving(now) && next.ID != ""
	})
}

// pending reports whether a living creator is making the sandbox.
func (all everything) pending(rec record.Sandbox, now time.Time) bool {
	m, ok := all.markers[rec.Name]
	return ok && m.Nonce == rec.Nonce && !m.Expired(now)
}

// claimed reports whether whoever uses the nonce is alive.
func (all everything) claimed(nonce string, now time.Time) bool {
	for _, m := range all.markers {
		if m.Nonce == nonce && !m.Expired(now) {
			return true
		}
	}
	return false
}

// sweepIfDue sweeps on the way to something else, at most once a minute for a client.
func (c *Client) sweepIfDue(ctx context.Context, eng *engine.Engine) {
	c.mu.Lock()
	due := time.Since(c.swept) > sweepEvery
	c.mu.Unlock()
	if !due {
		return
	}
	all, err := look(ctx, eng)
	if err != nil {
		return // what the caller is about to do will say it better
	}
	c.sweep(ctx, eng, all, nil)
}

// sweep removes what crashed programs left: sandboxes half made, sandboxes whose
// owner is gone, and what belonged to them. It returns the IDs of the containers it
// removed, and tells report, which may be nil, of each object. A failure is logged: it
// is nobody's in particular, and the next sweep tries again.
func (c *Client) sweep(ctx context.Context, eng *engine.Engine, all everything, report func(object string, err error)) map[string]bool {
	c.mu.Lock()
	c.swept = time.Now()
	c.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, sweepTimeout)
	defer cancel()
	now := eng.Now()
	gone := map[string]bool{}
	note := func(what string, err error) {
		if report != nil {
			report(what, err)
		}
		if err != nil {
			c.log.Warn("sweep", "object", what, "error", err)
		} else {
			c.log.Info("swept", "object", what)
		}
	}
	for _, m := range all.markers {
		if m.Expired(now) {
			err := c.takeOver(ctx, eng, m)
			note("half-made sandbox "+m.Name, err)
			if err == nil {
				for _, got := range all.containers {
					if m.Nonce != "" && got.Labels[record.Nonce] == m.Nonce {
						gone[got.ID] = true
					}
				}
			}
		}
	}
	for _, name := range record.Stray(all.volumes, now) {
		note("marker "+name, dropVolume(ctx, eng, name))
	}
	for _, rec := range all.next {
		if _, marked := all.markers[rec.Name]; !marked {
			if err := c.settleStray(ctx, eng, rec); err != nil {
				note("new container of sandbox "+rec.Name, err)
			}
		}
	}
	alive := map[string]bool{} // nonces of the sandboxes that are there
	for _, got := range all.containers {
		if gone[got.ID] {
			continue
		}
		if record.Is(got.Labels, record.RoleHelper) {
			if all.claimed(got.Labels[record.Nonce], now) {
				continue // a copy takes as long as it takes
			}
			if until, err := time.Parse(time.RFC3339Nano, got.Labels[record.Until]); err != nil || now.After(until) {
				note("helper "+got.Name, removeContainer(ctx, eng, got.ID, got.Labels[record.Nonce]))
			}
			continue
		}
		rec, ok := isSandbox(got)
		if !ok {
			continue
		}
		if _, marked := all.markers[rec.Name]; got.State == engine.StateCreated && rec.By == "" && !marked && now.Sub(got.CreatedAt) > neverStarted {
			err := clear(ctx, eng, rec.Nonce)
			gone[got.ID] = err == nil
			note("sandbox "+rec.Name+", which was never started", err)
			continue
		}
		alive[rec.Nonce] = true
		stopped := got.State == engine.StateExited || got.State == engine.StateCreated && now.Sub(got.CreatedAt) > stoppedKept
		if rec.Persistent || all.pending(rec, now) || !stopped {
			continue
		}
		over, err := c.abandoned(ctx, eng, got.ID, now)
		if err == nil && over {
			if _, err = c.delete(ctx, eng, all.revisions.Of(rec), dropOwn); !errors.Is(err, ErrNotFound) {
				note("sandbox "+rec.Name, err)
			}
			gone[got.ID] = err == nil
		}
		// Another sweep may have been quicker.
		gone[got.ID] = gone[got.ID] || errors.Is(err, engine.ErrNotFound) || errors.Is(err, ErrNotFound)
	}
	c.sweepSnapshots(ctx, eng, all, note)
	for _, name := range record.StrayRevisions(all.volumes, alive, now, youngAge) {
		note("revision "+name, dropVolume(ctx, eng, name))
	}
	return gone
}

// abandoned reports whether a stopped sandbox that is not persistent has outlived its
// handle: PID 1 ended the session itself, or the handle stopped it long ago.
func (c *Client) abandoned(ctx context.Context, eng *engine.Engine, id string, now time.Time) (bool, error) {
	got, err := eng.InspectContainer(ctx, id)
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
	return byItself || now.Sub(got.FinishedAt) > stoppedKept, nil
}

// takeOver clears what a dead creator left of a sandbox, and its marker.
func (c *Client) takeOver(ctx context.Context, eng *engine.Engine, m record.Marker) error {
	err := record.TakeOver(ctx, eng, m, record.NewNonce(), holder(), func(ctx context.Context) error {
		if m.Of != "" {
			return c.settleChange(ctx, eng, record.Sandbox{Name: m.Name, Nonce: m.Of}, m.Nonce)
		}
		if _, _, is := m.Pauses(); is {
			return letGoOn(ctx, eng, m)
		}
		if id, is := m.SnapshotOf(); is {
			if err := errors.Join(removeVolume(ctx, eng, record.SnapshotName(id), m.Nonce), clearContainers(ctx, eng, m.Nonce)); err != nil {
				return err
			}
			return clearFrozen(ctx, eng, id, m.Nonce)
		}
		return clear(ctx, eng, m.Nonce)
	})
	if err != nil {
		return fmt.Errorf("clear what %s left of %q: %w", m.Holder, m.Name, err)
	}
	return nil
}

// clearContainers removes every container with the nonce.
func clearContainers(ctx context.Context, eng *engine.Engine, nonce string) error {
	containers, err := eng.ListContainers(ctx, engine.Filter{Labels: []string{record.Filter(record.Managed, "true"), record.Filter(record.Nonce, nonce)}})
	if err != nil {
		return err
	}
	var errs []error
	for _, got := range containers {
		errs = append(errs, removeContainer(ctx, eng, got.ID, nonce))
	}
	return errors.Join(errs...)
}

// clear removes every object with the nonce but markers, containers first.
func clear(ctx context.Context, eng *engine.Engine, nonce string) error {
	if nonce == "" {
		return nil
	}
	if err := clearContainers(ctx, eng, nonce); err != nil {
		return err
	}
	volumes, err := eng.ListVolumes(ctx, record.Filter(record.Managed, "true"), record.Filter(record.Nonce, nonce))
	if err != nil {
		return err
	}
	var errs []error
	for _, v := range volumes {
		if record.Is(v.Labels, record.RolePending, record.RoleTakeover) {
			continue
		}
		// One that others use by now is theirs.
		if err := removeVolume(ctx, eng, v.Name, nonce); !errors.Is(err, ErrVolumeInUse) {
			errs = append(errs, err)
		}
	}
	errs = append(errs, dropLayers(ctx, eng, record.Filter(record.Nonce, nonce)))
	return errors.Join(append(errs, record.DropRevisionsOf(ctx, eng, nonce))...)
}
