package transfer

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/seed-1a2d6d8f/sandbox/internal/bound"
	"github.com/seed-1a2d6d8f/sandbox/internal/claim"
	"github.com/seed-1a2d6d8f/sandbox/internal/engine"
	"github.com/seed-1a2d6d8f/sandbox/internal/errdefs"
	"github.com/seed-1a2d6d8f/sandbox/internal/record"
	"github.com/seed-1a2d6d8f/sandbox/internal/store"
	"github.com/seed-1a2d6d8f/sandbox/internal/trace"
)

// A pause is a pause of a sandbox by this process. A marker lasts as long: whoever finds it
// after this process has died unpauses the sandbox.
type pause struct {
	s         *store.Store
	rec       record.Sandbox
	id        string
	nonce     string
	claim     *claim.Claim
	requested bool // we may have paused it
	confirmed bool // and have
}

// pauseTimeout bounds the engine's call that pauses.
const pauseTimeout = 30 * time.Second

// start pauses the sandbox if it runs.
func (p *pause) start(ctx context.Context, got engine.Container) (err error) {
	if got.State != engine.StateRunning {
		return nil
	}
	ctx, span := trace.Start(ctx, trace.Pause, trace.Name(p.rec.Name), trace.Container(got.ID))
	defer span.End(&err)
	p.nonce = record.PauseNonce(p.rec)
	for {
		var err error
		p.claim, err = bound.FinishCall(ctx, func(ctx context.Context) (*claim.Claim, error) {
			return claim.TryPause(ctx, p.s.Engine, p.rec, p.nonce, store.Holder())
		})
		var held *claim.TakenError
		if err == nil {
			break
		}
		if !errors.As(err, &held) {
			return err
		}
		if err := p.s.AwaitUnpause(ctx, p.rec.Name); err != nil {
			return err
		}
	}
	// An abandoned call could still pause the container after end has looked.
	p.requested = true
	err = bound.Detached(ctx, pauseTimeout, "the engine did not pause it", p.pauseContainer)
	switch {
	case errors.Is(err, engine.ErrConflict), errors.Is(err, engine.ErrNotFound):
		p.requested = false // it was stopped, or paused by somebody else
		return fmt.Errorf("%w: %w", errChanged, err)
	case err != nil:
		return fmt.Errorf("pause %s: %w", p.rec.Name, err)
	}
	p.confirmed = true
	return nil
}

// pauseTries is how often a pause is tried that the runtime fails to make, which happens on a
// busy machine.
const pauseTries = 8

func (p *pause) pauseContainer(ctx context.Context) error {
	for try := 0; ; try++ {
		err := p.s.Engine.PauseContainer(ctx, p.id)
		switch {
		case err == nil, errors.Is(err, engine.ErrConflict), errors.Is(err, engine.ErrNotFound), errors.Is(err, engine.ErrUnavailable), ctx.Err() != nil:
			return err
		case try == pauseTries: // as an engine without cgroups
			p.requested = false
			return fmt.Errorf("%w: the engine can't pause it, so stop it first: %w", errdefs.Unsupported, err)
		}
		if e := bound.Sleep(ctx, store.PollEvery<<(try/2)); e != nil {
			return errors.Join(err, e)
		}
		if now, e := p.s.Recheck(ctx, p.rec); e != nil || now.State == engine.StatePaused {
			return e
		} else if now.State != engine.StateRunning {
			return fmt.Errorf("%w: %w", errChanged, err)
		}
	}
}

// end unpauses the sandbox if start paused it, and reports whether it was paused all the time.
// It may be called again. If the engine can't be reached the marker stays for the next
// process.
func (p *pause) end(ctx context.Context) (stayed bool, err error) {
	if p.nonce == "" {
		return true, nil
	}
	stayed = true
	err = bound.Detached(ctx, store.UndoTimeout, p.rec.Name+" may still be paused: the engine did not unpause it", func(ctx context.Context) (err error) {
		if p.requested {
			if stayed, err = p.unpause(ctx); err != nil {
				err = fmt.Errorf("%s may still be paused: %w", p.rec.Name, err)
			}
			p.requested = err != nil
		}
		if p.claim != nil {
			p.claim.Stop()
			p.claim = nil
		}
		if err == nil {
			err = engine.Retry(ctx, func() error { return claim.DropPause(ctx, p.s.Engine, p.rec, p.nonce) })
		}
		return err
	})
	if err == nil {
		p.nonce = ""
	}
	return stayed, err
}

func (p *pause) unpause(ctx context.Context) (stayed bool, err error) {
	if !p.confirmed {
		// The engine may still carry out the pause whose reply was lost.
		if err := bound.Sleep(ctx, bound.CancelGrace); err != nil {
			return false, err
		}
	}
	first := true
	err = engine.Retry(ctx, func() error {
		wasPaused, err := p.s.UnpauseNow(ctx, p.id)
		stayed = wasPaused || err == nil && !first // or an earlier try unpaused it
		first = false
		return err
	})
	return stayed, err
}
