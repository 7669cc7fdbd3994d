package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/seed-1a2d6d8f/sandbox/internal/bound"
	"github.com/seed-1a2d6d8f/sandbox/internal/engine"
	"github.com/seed-1a2d6d8f/sandbox/internal/errdefs"
	"github.com/seed-1a2d6d8f/sandbox/internal/guest/wire"
	"github.com/seed-1a2d6d8f/sandbox/internal/record"
	"github.com/seed-1a2d6d8f/sandbox/internal/store"
)

// Start starts a session if there is none.
func (h *Handle) Start(ctx context.Context) error {
	if err := h.CheckUsable(); err != nil {
		return err
	}
	before := h.lastResumption()
	got, err := h.Current(ctx)
	if err != nil {
		return err
	}
	if got.State == engine.StateRunning {
		// Commands get the environment of the latest update.
		if _, err := h.Refresh(ctx); err != nil {
			return err
		}
		h.keepLease()
		return h.finishResumption(ctx, before)
	}
	return h.resume(ctx)
}

// Stop ends the session and keeps the handle usable.
func (h *Handle) Stop(ctx context.Context) error {
	if err := h.CheckUsable(); err != nil {
		return err
	}
	got, err := h.Current(ctx)
	if err != nil {
		return err
	}
	rec, err := h.Refresh(ctx)
	if err != nil {
		return err
	}
	if err := h.c.Store.StopContainer(ctx, got, rec); err != nil {
		return err
	}
	h.stopLease() // not before: a session that could not be stopped goes on
	h.dropConn()
	return nil
}

// Close ends the session, and deletes a sandbox that is not persistent. It logs its error as
// wrap returns it.
func (h *Handle) Close(wrap func(error) error) error {
	h.mu.Lock()
	if h.ending != nil {
		ending := h.ending
		h.mu.Unlock()
		<-ending
		return h.closeErr
	}
	h.ending = make(chan struct{})
	already := h.closed // detached or deleted
	h.closed = true
	h.mu.Unlock()
	defer close(h.ending)

	if already {
		h.release()
		return nil
	}
	limit := h.known().Grace() + store.CloseMargin
	err := bound.Within(context.Background(), limit, "the session was not ended, or the sandbox not removed,", func(ctx context.Context) error {
		h.releaseFor(store.CloseMargin / 2)
		// What is left then is removed by a sweep.
		return h.end(bound.FinalDeadline(ctx))
	})
	if err != nil && !errors.Is(err, errdefs.NotFound) {
		h.closeErr = wrap(err)
		h.c.Log.LogAttrs(context.Background(), slog.LevelError, "sandbox not closed", slog.String("sandbox", h.Record().Name), slog.Any("error", h.closeErr))
	}
	return h.closeErr
}

func (h *Handle) end(ctx context.Context) error {
	// Another process may have made it persistent.
	var rec record.Sandbox
	if err := engine.Retry(ctx, func() (err error) {
		rec, err = h.Refresh(ctx)
		return err
	}); err != nil {
		return err
	}
	if rec.Persists() {
		return engine.Retry(ctx, func() error {
			got, err := h.Current(ctx)
			if err != nil {
				return err
			}
			return h.c.Store.StopContainer(ctx, got, h.known())
		})
	}
	_, err := h.c.Store.Delete(ctx, rec, store.DropOwn)
	return err
}

// Detach releases the handle and leaves the session running.
func (h *Handle) Detach() error {
	h.mu.Lock()
	if h.closed {
		h.mu.Unlock()
		return nil
	}
	h.closed = true
	owner := h.owner
	h.mu.Unlock()

	var err error
	if owner {
		h.stopLease()
		err = h.endLease(context.Background())
		if errors.Is(err, errdefs.NotRunning) || errors.Is(err, errdefs.NotFound) {
			err = nil // there is no session to leave running
		}
	}
	h.release()
	return err
}

// endLease makes PID 1 of the running session go on without a handle, also if a renewal that was cut short arrives
// after this.
func (h *Handle) endLease(ctx context.Context) error {
	return bound.Within(ctx, store.CloseMargin, "the session's lease was not ended", func(ctx context.Context) error {
		ctx = h.withoutResume(ctx)
		return engine.Retry(ctx, func() error { return h.control(ctx, wire.Control{Op: wire.OpRelease, ID: h.leaseIs()}) })
	})
}

// Delete deletes the sandbox; after that the handle can't be used.
func (h *Handle) Delete(ctx context.Context, reclaim store.Reclaim) ([]store.Outcome, error) {
	if err := h.CheckUsable(); err != nil {
		return nil, err
	}
	outcomes, err := h.c.Store.Delete(ctx, h.known(), reclaim)
	if err == nil || errors.Is(err, errdefs.NotFound) {
		h.mu.Lock()
		h.deleted = true
		h.mu.Unlock()
		h.release()
	}
	return outcomes, err
}

// endReportTimeout is how long after the end of its log, or after it refused to change its limits, the
// engine may report a session as running.
const endReportTimeout = 10 * time.Second

// confirmEnded returns nil when the session has ended. The end of its log does not prove that:
// it ends with the engine, too.
func (h *Handle) confirmEnded(ctx context.Context, was engine.Container) error {
	deadline := time.Now().Add(endReportTimeout)
	return bound.Poll(ctx, store.PollEvery, func() (done bool, err error) {
		got, err := h.c.Store.Locate(ctx, h.Record().Name)
		switch {
		case errors.Is(err, engine.ErrNotFound):
			return true, nil // removed
		case err != nil:
			return true, fmt.Errorf("the log ended, and it is unknown whether the session has: %w", err)
		case got.ID != was.ID || !got.StartedAt.Equal(was.StartedAt) || !got.HasSession():
			return true, nil
		case time.Now().After(deadline):
			return true, errdefs.Classify(errdefs.EngineUnavailable, errors.New("the engine ended the log, and the session goes on"))
		}
		return false, nil
	})
}
