package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/seed-1a2d6d8f/sandbox/internal/errdefs"
	"github.com/seed-1a2d6d8f/sandbox/internal/trace"
)

// A resumption is a session that the handle started, with its calls of OnResume. One caller
// makes them, on its own goroutine and context; the others wait for the result.
type resumption struct {
	started time.Time     // the session's start
	turn    chan struct{} // has a value while a caller makes the calls
	done    bool          // the rest is for who has the turn
	err     error
}

func newResumption(started time.Time) *resumption {
	return &resumption{started: started, turn: make(chan struct{}, 1)}
}

// errHookAborted is the result of a hook that panicked or ended its goroutine.
var errHookAborted = errors.New("it did not return")

// finish makes the calls, or waits for those of another caller. A caller whose context ends
// meanwhile leaves the calls to the next one. life is the handle's.
func (r *resumption) finish(ctx, life context.Context, call func(context.Context) error) error {
	select {
	case r.turn <- struct{}{}:
	case <-ctx.Done():
		return errdefs.Cancelled(ctx)
	case <-life.Done():
		return errdefs.Closed
	}
	defer func() { <-r.turn }()
	if r.done {
		return r.err
	}
	r.done, r.err = true, fmt.Errorf("OnResume: %w", errHookAborted)
	err := call(ctx)
	if err != nil {
		err = fmt.Errorf("OnResume: %w", err)
	}
	r.done, r.err = err == nil || ctx.Err() == nil, err
	return err
}

// isPending reports whether nobody has made the calls, or is making them.
func (r *resumption) isPending() bool {
	select {
	case r.turn <- struct{}{}:
		defer func() { <-r.turn }()
		return !r.done
	default:
		return false
	}
}

type resumingKey struct{}

// withoutResume returns a context whose calls on the handle use the session that runs: they
// neither start one nor call OnResume.
func (h *Handle) withoutResume(ctx context.Context) context.Context {
	return context.WithValue(ctx, resumingKey{}, h)
}

func (h *Handle) mayResume(ctx context.Context) bool { return ctx.Value(resumingKey{}) != h }

// finishResume calls OnResume for a session that the handle started.
func (h *Handle) finishResume(ctx context.Context, r *resumption) error {
	return r.finish(ctx, h.life, func(ctx context.Context) error {
		for _, fn := range h.onResume {
			err := trace.Do(h.withoutResume(ctx), trace.Hook, func(ctx context.Context) error { return fn(ctx, h) }, h.Trace()...)
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// lastResumption returns the handle's latest one, nil if there is none. A call asks for it before it looks for a
// session, which another call may be starting.
func (h *Handle) lastResumption() *resumption {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.resumed
}

// finishResumption waits for the calls of OnResume for a session that the handle is starting, or has started since before
// was the latest. Those for before itself are left to who makes them, since they may contain this call; if the context of
// its starter ended first, it makes them.
func (h *Handle) finishResumption(ctx context.Context, before *resumption) error {
	if !h.mayResume(ctx) {
		return nil
	}
	h.mu.Lock()
	r, starting := h.resumed, h.starting
	h.mu.Unlock()
	if starting {
		var err error
		if r, err = h.startSession(ctx); err != nil {
			return err
		}
	}
	if r == nil || r == before && !r.isPending() {
		return nil
	}
	return h.finishResume(ctx, r)
}
