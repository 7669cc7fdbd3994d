package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/seed-1a2d6d8f/sandbox/internal/bound"
	"github.com/seed-1a2d6d8f/sandbox/internal/engine"
	"github.com/seed-1a2d6d8f/sandbox/internal/errdefs"
	"github.com/seed-1a2d6d8f/sandbox/internal/guest"
	"github.com/seed-1a2d6d8f/sandbox/internal/guest/wire"
	"github.com/seed-1a2d6d8f/sandbox/internal/provision"
	"github.com/seed-1a2d6d8f/sandbox/internal/record"
)

// A lease is over provision.LeaseTime, and a third of it, after the end of the guest's server that has the handle's
// connection, which ends with the handle's program. If a machine or a network fails, the engine may not notice, and code
// inside may keep a server from ending: then it is over leaseTime, and a third of it, after the last renewal.
const (
	leaseTime = 6 * time.Minute
	renewal   = 110 * time.Second
	tryTime   = 10 * time.Second
	retryTime = 2 * time.Second

	// A living owner may miss two renewals, and be late by one if PID 1 did not run for longer than the lease.
	_ = uint64(leaseTime - 3*renewal)
	_ = uint64(leaseTime/3 - renewal)
	// A connection that was lost is replaced in time.
	_ = uint64(provision.LeaseTime - tryTime - retryTime)
)

// LeaseRenewal is how often handles renew their leases. Only tests change it, before they create sandboxes.
var LeaseRenewal = renewal

// keepLease starts the renewal of the lease if the handle owns the sandbox. It is called when
// a session is known to run.
func (h *Handle) keepLease() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.owner && h.lease == nil && !h.closed {
		h.leaseID = record.NewNonce()
		h.lease = newLease(h)
	}
}

func (h *Handle) setOwner(owner bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.owner = owner
}

// applyPersistence makes the running session, if there is one, end with this handle, or go on
// without one, as was just recorded.
func (h *Handle) applyPersistence(ctx context.Context, got engine.Container, persistent bool) error {
	h.setOwner(!persistent)
	switch {
	case got.State != engine.StateRunning:
		return nil
	case !persistent:
		h.keepLease()
		return nil
	}
	h.stopLease()
	err := h.endLease(ctx)
	if errors.Is(err, errdefs.NotRunning) {
		return nil // it ended just now, and the next one has no lease
	}
	if err != nil {
		return fmt.Errorf("it is persistent now, but the running session may end with its handle: %w", err)
	}
	return nil
}

// A lease is the background renewal of a lease, for a sandbox that lives as long as its
// handle.
type lease struct {
	cancel context.CancelFunc
	done   sync.WaitGroup
}

func newLease(h *Handle) *lease {
	ctx, cancel := context.WithCancel(context.Background())
	l := &lease{cancel: cancel}
	l.done.Go(func() {
		h.renewLease(ctx)
		h.mu.Lock()
		defer h.mu.Unlock()
		if h.lease == l {
			h.lease = nil // the session ended; the next one gets its own
		}
	})
	return l
}

func (l *lease) stop() {
	l.cancel()
	l.done.Wait()
}

// leaseIs returns the ID of the lease that the handle keeps or kept last, "" if it never did.
func (h *Handle) leaseIs() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.leaseID
}

func (h *Handle) renewLease(ctx context.Context) {
	ctx = h.withoutResume(ctx)
	read := false // the record, since somebody may have released the lease
	for wait := time.Duration(0); bound.Sleep(ctx, wait) == nil; {
		try, cancel := context.WithTimeout(ctx, tryTime)
		reply, conn, err := h.requestVia(try, wire.Control{Op: wire.OpLease, Lease: leaseTime, Alone: provision.LeaseTime, ID: h.leaseIs()})
		if err == nil && !(read && reply.Renewed) {
			// Another process may have made it persistent before this.
			rec, e := h.Refresh(try)
			persists := e == nil && rec.Persists()
			if persists {
				e = h.endLease(ctx)
			}
			if persists && e == nil {
				cancel()
				h.setOwner(false)
				return
			}
			read, err = e == nil, e
		}
		cancel()
		switch {
		case err == nil:
			awaitRenewal(ctx, conn)
			wait = 0
		case errors.Is(err, errdefs.NotRunning) && !h.hasEnded(ctx):
			wait = time.Second // PID 1 gives us a moment once it is unpaused
		case errors.Is(err, errdefs.NotFound), errors.Is(err, errdefs.NotRunning), errors.Is(err, errdefs.Unsupported):
			return
		default:
			// Until the lease runs out there is time to try again.
			wait = retryTime
			if ctx.Err() == nil {
				h.c.Log.Warn("lease not renewed", "sandbox", h.Record().Name, "error", err)
			}
		}
	}
}

// awaitRenewal returns when a lease has to be renewed: after LeaseRenewal, and at once when the connection of its last
// renewal has ended.
func awaitRenewal(ctx context.Context, conn *guest.Conn) {
	due := time.NewTimer(LeaseRenewal)
	defer due.Stop()
	select {
	case <-due.C:
	case <-conn.Done():
	case <-ctx.Done():
	}
}

// hasEnded reports whether the session is known to have ended. It has not if it was paused when a
// renewal met it and runs again by now.
func (h *Handle) hasEnded(ctx context.Context) bool {
	got, err := h.Current(ctx)
	return errors.Is(err, errdefs.NotFound) || err == nil && !got.HasSession()
}
