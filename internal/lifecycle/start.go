package lifecycle

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/seed-1a2d6d8f/sandbox/internal/build"
	"github.com/seed-1a2d6d8f/sandbox/internal/engine"
	"github.com/seed-1a2d6d8f/sandbox/internal/fault"
	"github.com/seed-1a2d6d8f/sandbox/internal/machine"
	"github.com/seed-1a2d6d8f/sandbox/internal/record"
	"github.com/seed-1a2d6d8f/sandbox/internal/store"
)

type resumingKey struct{}

// resume starts a session, once for concurrent callers and on a context of its own.
func (h *Handle) resume(ctx context.Context) error {
	if ctx.Value(resumingKey{}) == h {
		return nil // OnResume uses the sandbox: it runs already
	}
	_, err := h.share(ctx, "resume", remakeTimeout, func(ctx context.Context) (any, error) {
		h.dropConn()
		if err := h.remakeOutdated(ctx); err != nil {
			return nil, err
		}
		ctx, cancel := context.WithTimeout(ctx, store.UndoTimeout)
		defer cancel()
		return nil, h.resumeOnce(ctx)
	})
	return err
}

// remakeOutdated replaces a container that lacks changes of the sandbox.
func (h *Handle) remakeOutdated(ctx context.Context) error {
	for {
		got, rec, err := h.look(ctx)
		if err != nil {
			return err
		}
		if got.HasSession() {
			return nil
		}
		outdated, err := build.Outdated(ctx, h.c.Machine, rec, got)
		if err != nil || !outdated && !store.IsNext(got, rec) {
			return err
		}
		err = build.Remake(ctx, h.c.Machine, rec, &machine.Reporter{})
		var held *record.HeldError
		if errors.As(err, &held) {
			err = h.c.AwaitChange(ctx, rec.Name)
		}
		if err != nil {
			return err
		}
	}
}

// look returns the present container and the record with all changes, read at once.
func (h *Handle) look(ctx context.Context) (got engine.Container, rec record.Sandbox, err error) {
	var read sync.WaitGroup
	var recErr error
	read.Go(func() { _, recErr = h.Refresh(ctx) })
	got, err = h.Current(ctx)
	read.Wait()
	// The settings in the record are those of the container that Current has found.
	return got, h.known(), cmp.Or(err, recErr)
}

func (h *Handle) resumeOnce(ctx context.Context) error {
	wait := h.prefetch(ctx)
	err := h.c.Start(ctx, h.rec.Name, machine.OwnLayer{})
	wait()
	if err != nil {
		return err
	}
	got, rec, err := h.look(ctx)
	if err != nil {
		return err
	}
	if got.State != engine.StateRunning {
		return fmt.Errorf("%w: the container exited during its start: %s", fault.NotRunning, store.ReasonOf(got))
	}
	h.c.Log.Info("session resumed", "sandbox", h.rec.Name)
	h.keepLease()
	ctx = context.WithValue(ctx, resumingKey{}, h)
	if err := h.connectIfNeeded(ctx, rec, got, resumed); err != nil {
		return err
	}
	for _, fn := range h.onResume {
		if err := fn(ctx, h); err != nil {
			return fmt.Errorf("OnResume: %w", err)
		}
	}
	return nil
}

// remakeTimeout bounds a start that replaces the container first, which copies its files.
const remakeTimeout = time.Hour

// prefetch is machine.Prefetch for a container that has had a session.
func (h *Handle) prefetch(ctx context.Context) (wait func()) {
	p, _ := h.known().Network().Parse()
	return h.c.Prefetch(ctx, p, true)
}
