package lifecycle

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/seed-1a2d6d8f/sandbox/internal/bound"
	"github.com/seed-1a2d6d8f/sandbox/internal/claim"
	"github.com/seed-1a2d6d8f/sandbox/internal/engine"
	"github.com/seed-1a2d6d8f/sandbox/internal/errdefs"
	"github.com/seed-1a2d6d8f/sandbox/internal/machine"
	"github.com/seed-1a2d6d8f/sandbox/internal/provision"
	"github.com/seed-1a2d6d8f/sandbox/internal/record"
	"github.com/seed-1a2d6d8f/sandbox/internal/store"
)

// resume starts a session and calls OnResume on the caller's context.
func (h *Handle) resume(ctx context.Context) error {
	if !h.mayResume(ctx) {
		return nil // OnResume uses the sandbox: it runs already
	}
	if h.neverResume {
		return fmt.Errorf("%w: %w", errdefs.NotRunning, ErrNoSession)
	}
	r, err := h.startSession(ctx)
	if err != nil || r == nil {
		return err
	}
	return h.finishResume(ctx, r)
}

// startSession starts a session, once for concurrent callers and on a context of its own. The result is nil if this
// handle did not start the one that runs.
func (h *Handle) startSession(ctx context.Context) (*resumption, error) {
	got, err := h.share(ctx, "resume", remakeTimeout, func(ctx context.Context) (any, error) {
		ctx = h.withoutResume(ctx)
		h.setStarting(true)
		defer h.setStarting(false)
		got, err := h.remakeOutdated(ctx)
		if err != nil {
			return nil, err
		}
		var r *resumption
		err = bound.Within(ctx, startTimeout, "the session did not start", func(ctx context.Context) error {
			r, err = h.resumeOnce(ctx, got)
			return err
		})
		return r, err
	})
	if err != nil {
		return nil, err
	}
	return got.(*resumption), nil
}

func (h *Handle) setStarting(starting bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.starting = starting
}

// remakeOutdated replaces a container that lacks changes of the sandbox, and returns the
// present one.
func (h *Handle) remakeOutdated(ctx context.Context) (engine.Container, error) {
	for {
		got, rec, err := h.look(ctx)
		if err != nil || got.HasSession() {
			return got, err
		}
		outdated, err := provision.Outdated(ctx, h.c.Machine, rec, got)
		if err != nil || !outdated && !store.IsNext(got, rec) {
			return got, err
		}
		err = provision.Remake(ctx, h.c.Machine, rec, "", h.report)
		var held *claim.TakenError
		if errors.As(err, &held) {
			err = h.c.Store.AwaitChange(ctx, rec.Name)
		}
		if err != nil {
			return got, err
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

// resumeOnce starts a session if there is none. A session that is paused goes on, with the
// commands of the handle; nil means that no session had to be started.
func (h *Handle) resumeOnce(ctx context.Context, was engine.Container) (*resumption, error) {
	if was.HasSession() {
		if was.State == engine.StatePaused {
			if err := h.c.Store.Unpause(ctx, was); err != nil {
				return nil, err
			}
		}
		return h.connectResumed(ctx, wasRunning)
	}
	h.dropConn()
	if cluster := h.c.Store.Cluster; cluster != nil {
		if err := cluster.Room(ctx, h.known(), was.NanoCPUs, was.Memory); err != nil {
			return nil, err
		}
	}
	wait := h.prefetch(ctx)
	err := h.c.Machine.Start(ctx, h.Record().Name, machine.OwnLayer{})
	if h.c.Engine.IsPortTaken(err) {
		if err = provision.Remake(ctx, h.c.Machine, h.known(), was.ID, h.report); err == nil {
			err = h.c.Machine.Start(ctx, h.Record().Name, machine.OwnLayer{})
		}
	}
	wait()
	if err != nil {
		return nil, err
	}
	return h.connectResumed(ctx, resumed)
}

// connectResumed connects to a session that has just been started or unpaused, if something
// depends on it.
func (h *Handle) connectResumed(ctx context.Context, how sessionOrigin) (*resumption, error) {
	got, rec, err := h.look(ctx)
	if err != nil {
		return nil, err
	}
	if got.State != engine.StateRunning {
		return nil, h.c.withLog(ctx, rec, fmt.Errorf("%w: the container exited during its start: %s", errdefs.NotRunning, store.ReasonOf(got)))
	}
	h.keepLease()
	if err := h.connectIfNeeded(ctx, rec, got, how); err != nil {
		return nil, err
	}
	if how == resumed {
		h.c.Log.Info("session resumed", "sandbox", h.Record().Name)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if how == resumed {
		h.resumed = newResumption(got.StartedAt)
	}
	if h.resumed == nil || !h.resumed.started.Equal(got.StartedAt) {
		return nil, nil
	}
	return h.resumed, nil
}

// startTimeout bounds the start of a session, and the connection to it if that is needed.
const startTimeout = time.Minute

// remakeTimeout bounds a start that replaces the container first, which copies its files.
const remakeTimeout = time.Hour

// prefetch is machine.Prefetch for the policy in the record.
func (h *Handle) prefetch(ctx context.Context) (wait func()) {
	p, _ := h.known().Network().Parse()
	return h.c.Machine.Prefetch(ctx, p)
}
