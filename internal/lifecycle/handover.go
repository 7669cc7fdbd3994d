package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/seed-1a2d6d8f/sandbox/internal/bound"
	"github.com/seed-1a2d6d8f/sandbox/internal/claim"
	"github.com/seed-1a2d6d8f/sandbox/internal/engine"
	"github.com/seed-1a2d6d8f/sandbox/internal/errdefs"
	"github.com/seed-1a2d6d8f/sandbox/internal/guest"
	"github.com/seed-1a2d6d8f/sandbox/internal/guest/wire"
	"github.com/seed-1a2d6d8f/sandbox/internal/plan"
	"github.com/seed-1a2d6d8f/sandbox/internal/record"
	"github.com/seed-1a2d6d8f/sandbox/internal/store"
)

// answerTimeout bounds a request to PID 1 of a sandbox that is to be handed over. One that does
// not answer, such as one that somebody paused, is none to hand over.
const answerTimeout = 5 * time.Second

// errLost is the error of a sandbox that can't be handed over, for a reason of its own.
var errLost = errors.New("the sandbox that waited is lost")

func isLost(err error) bool {
	for _, lost := range []error{errLost, ErrNoSession, guest.ErrConnectionLost, errdefs.SessionLost, errdefs.NotRunning, errdefs.NotFound} {
		if errors.Is(err, lost) {
			return true
		}
	}
	return false
}

// handOver gives a sandbox that waited the name, unless that is empty, and applies the changes of set. If
// the sandbox is lost the error is one that isLost knows. If it is errdefs.Exists another sandbox has the
// name, and this one is as before.
func (h *Handle) handOver(ctx context.Context, name string, set *plan.Sandbox) error {
	conn := h.connection()
	switch {
	case conn == nil || conn.Useless():
		return errLost
	case name != "":
		return h.handOverNamed(ctx, name, func(ctx context.Context) error { return h.change(ctx, conn, set) })
	case set.Has(plan.Persistence):
		return notTaken(h.handOverAs(ctx, h.Record().Name, func(ctx context.Context) error { return h.change(ctx, conn, set) }))
	}
	return h.change(ctx, conn, set)
}

// handOverNamed renames the sandbox and calls change. The name is claimed as by a creation: first by
// the marker, and then, since a container's name is the lock, by the rename. Nobody else changes the
// sandbox under the name that it had.
func (h *Handle) handOverNamed(ctx context.Context, name string, change func(context.Context) error) error {
	return h.c.claimName(ctx, name, "", func() error {
		was := h.Record()
		mine, op, err := h.c.Store.Hold(ctx, was)
		if err != nil {
			return notTaken(err)
		}
		err = h.handOverAs(ctx, name, func(ctx context.Context) error {
			if err := h.rename(ctx, name); err != nil {
				return err
			}
			return change(ctx)
		})
		return errors.Join(err, h.c.Store.Release(ctx, was, mine, op, nil))
	})
}

// notTaken returns err, or errLost if somebody else changes or deletes the sandbox that waited.
func notTaken(err error) error {
	var held *claim.TakenError
	if errors.As(err, &held) {
		return fmt.Errorf("%w: %s", errLost, err)
	}
	return err
}

// handOverAs calls change while the sandbox has a marker under that name, as one that is being
// created. If change fails, or this program dies, the sandbox is removed, even if it is persistent by
// then. It is as before after an errdefs.Exists and after a *claim.TakenError.
func (h *Handle) handOverAs(ctx context.Context, name string, change func(context.Context) error) error {
	rec := h.Record()
	mine, err := bound.FinishCall(ctx, func(ctx context.Context) (*claim.Claim, error) {
		return claim.Try(ctx, h.c.Engine, name, rec.Nonce, store.Holder())
	})
	var held *claim.TakenError
	if errors.As(err, &held) {
		return err
	}
	if err == nil {
		own, release := mine.Bind(ctx)
		err = change(own)
		release()
	}
	if err == nil {
		err = mine.Commit(ctx)
	}
	if err == nil {
		if err := mine.DropRenewals(context.WithoutCancel(ctx)); err != nil {
			h.c.Log.Warn("a renewed marker is left for the next sweep", "sandbox", name, "error", err)
		}
		return nil
	}
	if mine != nil {
		mine.Stop()
	}
	discard := !errors.Is(err, errdefs.Exists)
	if discard {
		h.release()
	}
	return errors.Join(err, bound.Detached(ctx, store.UndoTimeout, "what was handed over was not removed", func(ctx context.Context) error {
		return engine.Retry(ctx, func() error {
			if discard {
				if err := h.c.Store.Discard(ctx, rec); err != nil {
					return err // with the marker in place
				}
			}
			return claim.Drop(ctx, h.c.Engine, name, rec.Nonce, "")
		})
	}))
}

// rename gives the container the name. If another one has it the error is errdefs.Exists.
func (h *Handle) rename(ctx context.Context, name string) error {
	h.stopLease() // a renewal would look for the container by its name
	defer h.keepLease()
	return bound.Poll(ctx, store.PollEvery, func() (done bool, err error) {
		err = bound.Finish(ctx, func(ctx context.Context) error {
			return h.c.Engine.RenameContainer(ctx, h.containerID(), record.ContainerName(name))
		})
		switch {
		case err == nil:
			h.setName(name)
			return true, nil
		case errors.Is(err, engine.ErrNotFound):
			return true, errLost
		case errors.Is(err, engine.ErrConflict):
			// The container of that name may be being removed, or gone since.
			return false, h.c.Store.NameTaken(ctx, name)
		}
		return true, fmt.Errorf("rename the container: %w", err)
	})
}

// change applies the changes of set, and makes the timeouts count from now. It calls the engine only
// for changes, and for a timeout. It fails with errLost if the session has ended or does not answer.
func (h *Handle) change(ctx context.Context, conn *guest.Conn, set *plan.Sandbox) error {
	const times = plan.Timeout | plan.StopTimeout
	update := *set
	if update.Given &^= times; update.Given != 0 {
		if err := h.Update(ctx, &update); err != nil {
			return err
		}
	}
	timeouts := wire.Timeouts{Timeout: h.known().Timeout(), Grace: h.known().Grace()}
	if set.Has(plan.Timeout) {
		timeouts.Timeout = set.Timeout
	}
	if set.Has(plan.StopTimeout) {
		timeouts.Grace = set.StopTimeout
	}
	var reply wire.Reply
	err := bound.Within(ctx, answerTimeout, "the sandbox that waited did not answer", func(ctx context.Context) (err error) {
		reply, err = h.requestOn(ctx, conn, wire.Control{Op: wire.OpTimeouts, Timeouts: &timeouts})
		return err
	})
	switch {
	case ctx.Err() != nil:
		return errdefs.Cancelled(ctx)
	case err != nil:
		return fmt.Errorf("%w: %w", errLost, err)
	case reply.Ending != 0:
		return errLost
	case timeouts.Timeout == 0 && !set.Has(times):
		return nil
	}
	got, err := h.Current(ctx)
	if err != nil {
		return err
	}
	return h.revise(ctx, h.known(), func(c *record.Changes) bool {
		if set.Has(plan.Timeout) {
			c.TimeoutMS = new(set.Timeout.Milliseconds())
		}
		if set.Has(plan.StopTimeout) {
			c.StopTimeoutMS = new(set.StopTimeout.Milliseconds())
		}
		c.Session = &record.Session{StartedAt: got.StartedAt}
		if reply.Timeout > 0 {
			c.Session.ExpiresAt = got.StartedAt.Add(reply.Timeout)
		}
		return true
	})
}
