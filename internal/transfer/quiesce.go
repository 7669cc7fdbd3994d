package transfer

import (
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"strings"
	"syscall"

	"github.com/seed-1a2d6d8f/sandbox/internal/engine"
	"github.com/seed-1a2d6d8f/sandbox/internal/guest"
	"github.com/seed-1a2d6d8f/sandbox/internal/guest/wire"
	"github.com/seed-1a2d6d8f/sandbox/internal/machine"
	"github.com/seed-1a2d6d8f/sandbox/internal/record"
	"github.com/seed-1a2d6d8f/sandbox/internal/trace"
)

var (
	// errChanged is the error of a sandbox that was started, stopped or unpaused while it was
	// copied. It is a conflict.
	errChanged = fmt.Errorf("it was started, stopped or unpaused while it was copied: %w", syscall.EBUSY)
	// errMoved is the error of a sandbox of whose processes one ran while they were held.
	errMoved = errors.New("a process ran while it was copied")
)

const (
	// holdAttempts is how often the processes of a sandbox are held of which some run all the
	// same. Then the engine pauses it.
	holdAttempts = 3
	// changeAttempts is how often the copy of a sandbox is tried whose state changes meanwhile.
	changeAttempts = 3
)

// AfterCopy is what comes after a copy, and how to revert it before it is done again.
type AfterCopy struct {
	Do   func(context.Context, engine.Container) error
	Undo func(context.Context) error
}

// CopyConsistent runs the jobs and does then, which may be nil, while no process of the sandbox
// runs: PID 1 holds them, or if it can't, the engine pauses the sandbox. A sandbox that does
// not run, or that somebody else has paused, stays as it is. If something has run, or the
// sandbox's state has changed, all of it runs again, a few times. It returns the container that
// was copied.
func CopyConsistent(ctx context.Context, k *Copier, rec record.Sandbox, jobs []Job, then *AfterCopy) (engine.Container, error) {
	var tries attempts
	for again := false; ; again = true {
		got, err := k.Helper.Machine.Store.Recheck(ctx, rec)
		if err == nil {
			err = k.setLayers(ctx, jobs, got, again)
		}
		if err == nil && then != nil && again {
			err = then.Undo(ctx)
		}
		if err != nil {
			return got, err
		}
		q := &quiesce{pause: pause{s: k.Helper.Machine.Store, rec: rec, id: got.ID}, got: got,
			hold: tries.moved < holdAttempts && got.State == engine.StateRunning && len(rec.ControlKey) == ed25519.SeedSize}
		if then != nil {
			q.then = func() error { return then.Do(ctx, got) }
		}
		err = k.run(ctx, jobs, q)
		q.span.End(&err)
		stayed, endErr := q.end(ctx)
		if endErr != nil || ctx.Err() != nil {
			return got, errors.Join(err, endErr)
		}
		if err != nil || !q.held {
			var repeat bool
			if repeat, err = tries.judge(ctx, k, q, stayed, err); repeat {
				continue
			}
		}
		if err == nil {
			err = k.checkSources(ctx)
		}
		return got, err
	}
}

// setLayers makes the jobs for a container's own layer read the layer of got.
func (k *Copier) setLayers(ctx context.Context, jobs []Job, got engine.Container, again bool) error {
	for i := range jobs {
		jobs[i].Again = jobs[i].Again || again
		if !jobs[i].Layer {
			continue
		}
		layer, err := k.Helper.Machine.LayerOf(ctx, got)
		if err == nil && layer == (machine.Layer{}) {
			err = ErrNoLayer
		}
		if err != nil {
			return err
		}
		jobs[i].readLayer(got, layer)
		jobs[i].omit = append(jobs[i].omit, strings.TrimPrefix(wire.ProcessesFile, "/"))
	}
	return nil
}

// attempts counts the copies of a sandbox that were not consistent.
type attempts struct{ moved, changed int }

// judge reports whether a copy has to be repeated that failed with err, or was made without a
// hold. A failure because the sandbox has changed is reported as such.
func (a *attempts) judge(ctx context.Context, k *Copier, q *quiesce, stayed bool, err error) (repeat bool, _ error) {
	now, gone := k.Helper.Machine.Store.Recheck(ctx, q.rec)
	if gone != nil {
		return false, errors.Join(gone, err)
	}
	switch {
	case errors.Is(err, errMoved):
		a.moved++
		k.Helper.Machine.Log.Info("the sandbox is copied again", "sandbox", q.rec.Name, "error", err)
		return true, nil
	case errors.Is(err, errChanged) || !stayed || now.ID != q.got.ID || !now.StartedAt.Equal(q.got.StartedAt) || now.State != q.got.State:
		if a.changed++; a.changed == changeAttempts {
			return false, errors.Join(errChanged, err)
		}
		return true, nil
	case q.hold && errors.Is(err, machine.ErrHelperNotStarted):
		a.moved = holdAttempts // it may be for the network namespace
		return true, nil
	}
	return false, err
}

// A quiesce keeps the processes of a sandbox from running while its files are copied.
type quiesce struct {
	pause
	got  engine.Container
	hold bool         // PID 1 is to hold them
	held bool         // and does
	then func() error // called after the copy, or nil
	span *trace.Span  // from the hold to the end of the copy
}

// join has a helper run where PID 1 can be reached from, if that is to hold the processes.
func (q *quiesce) join(spec *engine.ContainerSpec, order *wire.Copy) {
	order.Wait, order.Linger = true, q.then != nil
	if q.hold {
		order.Hold = true
		spec.NetworkDisabled, spec.NetworkMode = false, "container:"+q.got.ID
	}
}

// answer returns what a helper that is ready waits for: a request for PID 1, or an empty line once
// the engine has paused the sandbox.
func (q *quiesce) answer(ctx context.Context, k *Copier, ready wire.Copied) ([]byte, error) {
	if len(ready.Challenge) > 0 && q.hold {
		q.held = true
		_, q.span = trace.Start(ctx, trace.Hold, trace.Name(q.rec.Name), trace.Container(q.got.ID))
		return guest.SignHold(ed25519.NewKeyFromSeed(q.rec.ControlKey), ready.Challenge)
	}
	q.held = false
	if q.hold {
		k.Helper.Machine.Log.Info("the engine pauses the sandbox for a copy: its processes can't be held", "sandbox", q.rec.Name, "reason", ready.Unheld)
	}
	return []byte{'\n'}, q.start(ctx, q.got)
}
