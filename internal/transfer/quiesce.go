package transfer

import (
	"context"
	"crypto/ed25519"
	"errors"
	"strings"

	"github.com/seed-1a2d6d8f/sandbox/internal/engine"
	"github.com/seed-1a2d6d8f/sandbox/internal/guest"
	"github.com/seed-1a2d6d8f/sandbox/internal/guest/wire"
	"github.com/seed-1a2d6d8f/sandbox/internal/machine"
	"github.com/seed-1a2d6d8f/sandbox/internal/record"
	"github.com/seed-1a2d6d8f/sandbox/internal/trace"
)

var (
	// errChanged is the error of a sandbox that was started, stopped or unpaused while it was
	// copied.
	errChanged = errors.New("it was started, stopped or unpaused while it was copied")
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

// Then is what comes after a copy, and how to revert it before it is done again.
type Then struct {
	Do   func(context.Context, engine.Container) error
	Undo func(context.Context) error
}

// CopyConsistent runs the jobs and does then, which may be nil, while no process of the sandbox
// runs: PID 1 holds them, or if it can't, the engine pauses the sandbox. A sandbox that does
// not run, or that somebody else has paused, stays as it is. If something has run, or the
// sandbox's state has changed, all of it runs again, a few times. It returns the container that
// was copied.
func CopyConsistent(ctx context.Context, k *Copier, rec record.Sandbox, jobs []Job, then *Then) (engine.Container, error) {
	for moved, changed, again := 0, 0, false; ; again = true {
		got, err := k.Recheck(ctx, rec)
		if err != nil {
			return got, err
		}
		for i := range jobs {
			if jobs[i].Layer {
				layer, err := k.LayerOf(ctx, got)
				if err == nil && layer == (machine.Layer{}) {
					err = ErrNoLayer
				}
				if err != nil {
					return got, err
				}
				jobs[i].readLayer(got, layer)
				jobs[i].omit = append(jobs[i].omit, strings.TrimPrefix(wire.ProcessesFile, "/"))
			}
			jobs[i].Again = again
		}
		s := &standstill{pause: pause{s: k.Store, rec: rec, id: got.ID}, got: got,
			hold: moved < holdAttempts && got.State == engine.StateRunning && len(rec.ControlKey) == ed25519.SeedSize}
		if then != nil {
			s.then = func() error { return then.Do(ctx, got) }
		}
		if then != nil && again {
			if err := then.Undo(ctx); err != nil {
				return got, err
			}
		}
		err = k.run(ctx, jobs, s)
		s.span.End(&err)
		stayed, endErr := s.end(ctx)
		if endErr != nil || ctx.Err() != nil {
			return got, errors.Join(err, endErr)
		}
		if err == nil && s.held {
			return got, k.checkSources(ctx)
		}
		// A failure because the sandbox has changed is reported as such.
		now, gone := k.Recheck(ctx, rec)
		if gone != nil {
			return got, errors.Join(gone, err)
		}
		switch {
		case errors.Is(err, errMoved):
			moved++
			k.Log.Info("the sandbox is copied again", "sandbox", rec.Name, "error", err)
		case errors.Is(err, errChanged) || !stayed || now.ID != got.ID || !now.StartedAt.Equal(got.StartedAt) || now.State != got.State:
			if changed++; changed == changeAttempts {
				return got, errors.Join(errChanged, err)
			}
		case s.hold && errors.Is(err, machine.ErrHelperNotStarted):
			moved = holdAttempts // it may be for the network namespace
		case err == nil:
			return got, k.checkSources(ctx)
		default:
			return got, err
		}
	}
}

// A standstill keeps the processes of a sandbox from running while its files are copied.
type standstill struct {
	pause
	got  engine.Container
	hold bool         // PID 1 is to hold them
	held bool         // and does
	then func() error // called after the copy, or nil
	span *trace.Span  // from the hold to the end of the copy
}

// join has a helper run where PID 1 can be reached from, if that is to hold the processes.
func (s *standstill) join(spec *engine.ContainerSpec, order *wire.Copy) {
	order.Wait, order.Linger = true, s.then != nil
	if s.hold {
		order.Hold = true
		spec.NetworkDisabled, spec.NetworkMode = false, "container:"+s.got.ID
	}
}

// answer returns what a helper that is ready waits for: a request for PID 1, or an empty line once
// the engine has paused the sandbox.
func (s *standstill) answer(ctx context.Context, k *Copier, ready wire.Copied) ([]byte, error) {
	if len(ready.Challenge) > 0 && s.hold {
		s.held = true
		_, s.span = trace.Start(ctx, trace.Hold, trace.Name(s.rec.Name), trace.Container(s.got.ID))
		return guest.SignHold(ed25519.NewKeyFromSeed(s.rec.ControlKey), ready.Challenge)
	}
	s.held = false
	if s.hold {
		k.Log.Info("the engine pauses the sandbox for a copy: its processes can't be held", "sandbox", s.rec.Name, "reason", ready.Unheld)
	}
	return []byte{'\n'}, s.start(ctx, s.got)
}
