package lifecycle

import (
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"slices"

	"github.com/seed-1a2d6d8f/sandbox/internal/errdefs"
	"github.com/seed-1a2d6d8f/sandbox/internal/guest"
	"github.com/seed-1a2d6d8f/sandbox/internal/guest/wire"
)

// control sends a signed request to PID 1.
func (h *Handle) control(ctx context.Context, req wire.Control) error {
	_, err := h.request(ctx, req)
	return err
}

// request sends a signed request to PID 1 and returns its reply.
func (h *Handle) request(ctx context.Context, req wire.Control) (wire.Reply, error) {
	reply, _, err := h.requestVia(ctx, req)
	return reply, err
}

// requestVia is request that also returns the connection of the reply. It connects again if the
// connection turns out to be lost.
func (h *Handle) requestVia(ctx context.Context, req wire.Control) (wire.Reply, *guest.Conn, error) {
	conn, err := h.Connect(ctx)
	if err != nil {
		return wire.Reply{}, nil, err
	}
	reply, err := h.requestOn(ctx, conn, req)
	if errors.Is(err, guest.ErrConnectionLost) && ctx.Err() == nil {
		// It may have been lost before this request: a session that still runs accepts another.
		h.dropLost(conn)
		again, e := h.ConnectRunning(ctx)
		if errors.Is(e, ErrNoSession) {
			return reply, nil, err
		}
		if e != nil {
			return reply, nil, e
		}
		conn = again
		reply, err = h.requestOn(ctx, conn, req)
	}
	return reply, conn, err
}

// errIncomplete is the error for a reply without what PID 1 adds to each: something else inside has
// answered.
var errIncomplete = errors.New("PID 1's reply is incomplete")

func (h *Handle) requestOn(ctx context.Context, conn *guest.Conn, req wire.Control) (wire.Reply, error) {
	if len(h.Record().ControlKey) != ed25519.SeedSize {
		return wire.Reply{}, fmt.Errorf("%w: the record has no control key", errdefs.Unsupported)
	}
	reply, err := conn.Control(ctx, ed25519.NewKeyFromSeed(h.Record().ControlKey), req)
	if err == nil && reply.Error != "" {
		err = fmt.Errorf("PID 1 refused %s: %s", req.Op, reply.Error)
	}
	return reply, err
}

// connectSession is ConnectRunning for a call that needs a running session.
func (h *Handle) connectSession(ctx context.Context) (*guest.Conn, error) {
	conn, err := h.ConnectRunning(ctx)
	if errors.Is(err, ErrNoSession) {
		err = fmt.Errorf("%w: %w", errdefs.NotRunning, err)
	}
	return conn, err
}

// checkMainStarted waits until PID 1 knows whether the main process could be started, and
// fails if it could not.
func (h *Handle) checkMainStarted(ctx context.Context) error {
	if len(h.Record().Settings.Command) == 0 {
		return nil
	}
	reply, err := h.request(ctx, wire.Control{Op: wire.OpStatus})
	if err != nil {
		return err
	}
	if reply.Main != nil && reply.Main.Start != nil {
		cmd := h.Record().Settings.Command
		return fmt.Errorf("main process: %w", StartError(cmd[0], h.Record().Settings.Workdir, reply.Main.Start))
	}
	return nil
}

// MainFailedError is the error of a main process that exited with a failure.
type MainFailedError struct {
	Program string
	Exit    wire.Exit
}

func (e *MainFailedError) Error() string { return "the main process has ended" }

// mainFailure returns how the main process failed, or nil. It fails if the session is ending.
func (h *Handle) mainFailure(ctx context.Context, conn *guest.Conn) (failure, err error) {
	argv, ask := h.settings().Command, wire.Control{Op: wire.OpStatus}
	if len(argv) == 0 {
		ask.Op = wire.OpNetwork // no start to wait for
	}
	reply, err := h.requestOn(ctx, conn, ask)
	switch {
	case ctx.Err() != nil:
		return nil, nil // the caller looks
	case errors.Is(err, guest.ErrConnectionLost):
		return nil, h.ExplainLost(ctx, err)
	case err == nil && reply.Ending != 0:
		h.dropLost(conn) // a server that nobody needs would hold up the session's end
		return nil, endingError(reply)
	case err != nil || reply.Main == nil:
		return nil, err
	case reply.Main.Start != nil:
		return fmt.Errorf("main process: %w", StartError(argv[0], h.Record().Settings.Workdir, reply.Main.Start)), nil
	case reply.Main.Exit == nil || reply.Main.Exit.Code == 0 && reply.Main.Exit.Signal == 0:
		return nil, nil
	}
	return &MainFailedError{Program: argv[0], Exit: *reply.Main.Exit}, nil
}

// Egress returns the connections that PID 1 allowed and blocked, the latest last.
func (h *Handle) Egress(ctx context.Context) ([]wire.Egress, error) {
	if err := h.CheckUsable(); err != nil {
		return nil, err
	}
	if _, err := h.awaitRunning(ctx); err != nil {
		return nil, err
	}
	conn, err := h.connectSession(ctx)
	if err != nil {
		return nil, err
	}
	reply, err := h.requestOn(ctx, conn, wire.Control{Op: wire.OpEgress})
	switch {
	case errors.Is(err, guest.ErrConnectionLost):
		return nil, h.ExplainLost(ctx, err)
	case err != nil:
		return nil, err
	case reply.Egress == nil:
		return nil, nil
	}
	slices.SortStableFunc(reply.Egress.Entries, func(a, b wire.Egress) int { return a.Last.Compare(b.Last) })
	return reply.Egress.Entries, nil
}

// Report returns what PID 1 says about the session. It is known only if there is a connection to
// the guest already.
func (h *Handle) Report(ctx context.Context) (reply wire.Reply, known bool) {
	h.mu.Lock()
	conn := h.conn
	h.mu.Unlock()
	if conn == nil || conn.Err() != nil {
		return reply, false
	}
	reply, err := h.requestOn(ctx, conn, wire.Control{Op: wire.OpNetwork})
	return reply, err == nil
}
