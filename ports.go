package sandbox

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/seed-1a2d6d8f/sandbox/internal/engine"
	"github.com/seed-1a2d6d8f/sandbox/internal/guest"
	"github.com/seed-1a2d6d8f/sandbox/internal/guest/wire"
	"github.com/seed-1a2d6d8f/sandbox/internal/record"
)

// published returns the ports that were asked for, which check has found good.
func (s *settings) published() []uint16 {
	var ports []uint16
	for _, p := range s.ports {
		ports = append(ports, uint16(p))
	}
	return ports
}

// bound is where the published ports are reached, nil when nothing is published.
func bound(rec record.Sandbox, got engine.Container) map[uint16]netip.AddrPort {
	var ports map[uint16]netip.AddrPort
	for _, p := range rec.Settings.Ports {
		if at, ok := got.Ports[p]; ok {
			if ports == nil {
				ports = map[uint16]netip.AddrPort{}
			}
			ports[p] = at
		}
	}
	return ports
}

// Port returns where a port published by [WithPorts] is reached, on the engine's
// machine. Another session has another address, so it is looked up in every call. A
// port that was not published is [ErrInvalidArgument]; without a session the error is
// [ErrNotRunning], and none is started.
func (s *Sandbox) Port(ctx context.Context, port int) (netip.AddrPort, error) {
	at, err := s.port(ctx, port)
	return at, fail("port", s.rec.Name, err)
}

func (s *Sandbox) port(ctx context.Context, port int) (netip.AddrPort, error) {
	if err := s.usable(); err != nil {
		return netip.AddrPort{}, err
	}
	if port < 1 || port > 65535 {
		return netip.AddrPort{}, invalid("%d is not a port", port)
	}
	got, err := s.current(ctx)
	if err != nil {
		return netip.AddrPort{}, err
	}
	if published := s.settings().Ports; !slices.Contains(published, uint16(port)) {
		return netip.AddrPort{}, invalid("port %d is not published; of this sandbox %v are: see WithPorts, or use DialContext", port, published)
	}
	if got.State != engine.StateRunning && got.State != engine.StatePaused {
		return netip.AddrPort{}, fmt.Errorf("%w: it is %s, and port %d has no address", ErrNotRunning, stateOf(got.State), port)
	}
	at, ok := got.Ports[uint16(port)]
	if !ok {
		return netip.AddrPort{}, fmt.Errorf("%w: the engine publishes nothing for port %d", ErrUnsupported, port)
	}
	return at, nil
}

const (
	portWaitMin = 5 * time.Millisecond
	portWaitMax = 100 * time.Millisecond
)

// WaitPort returns when something in the sandbox listens on the TCP port, published or
// not, and makes no connection to find out. When the main process fails first
// ([WithCommand]) the error tells how it ended; when the session ends it is
// [ErrNotRunning]; else ctx bounds the waiting.
func (s *Sandbox) WaitPort(ctx context.Context, port int) error {
	return fail("wait for port", s.rec.Name, s.waitPort(ctx, port))
}

func (s *Sandbox) waitPort(ctx context.Context, port int) error {
	if err := s.usable(); err != nil {
		return err
	}
	if port < 1 || port > 65535 {
		return invalid("%d is not a port: it takes 1 to 65535", port)
	}
	// One session's guest is asked: should that session end, waiting on would be for
	// something that nobody is starting.
	conn, err := s.connect(ctx)
	if err != nil {
		return fmt.Errorf("port %d: %w", port, err)
	}
	// What is known of the main process by the look before.
	var fate error
	for wait := portWaitMin; ; wait = min(2*wait, portWaitMax) {
		open, err := conn.Listens(ctx, uint16(port))
		switch {
		case ctx.Err() != nil:
			return fmt.Errorf("nothing listens on port %d: %w", port, cancelled(ctx))
		case errors.Is(err, guest.ErrConnectionLost):
			return s.lost(ctx, err)
		case err != nil:
			return err
		case open:
			return nil
		case fate != nil:
			return fmt.Errorf("nothing listens on port %d: %w", port, fate)
		}
		if fate, err = s.mainFate(ctx, conn); err != nil {
			return err
		}
		if fate != nil {
			continue // it may have left something behind that listens: look once more
		}
		if pause(ctx, wait) != nil {
			return fmt.Errorf("nothing listens on port %d: %w", port, cancelled(ctx))
		}
	}
}

// mainFate returns how the main process failed, or nil when it did not.
func (s *Sandbox) mainFate(ctx context.Context, conn *guest.Conn) (fate, err error) {
	argv := s.settings().Command
	if len(argv) == 0 || len(s.rec.ControlKey) == 0 {
		return nil, nil
	}
	reply, err := s.askOn(ctx, conn, wire.Control{Op: wire.OpStatus})
	switch {
	case ctx.Err() != nil:
		return nil, nil // the caller looks
	case errors.Is(err, guest.ErrConnectionLost):
		return nil, s.lost(ctx, err)
	case err != nil || reply.Main == nil:
		return nil, err
	case reply.Main.Start != nil:
		return fmt.Errorf("main process: %w", startError(argv[0], s.rec.Settings.Workdir, reply.Main.Start)), nil
	case reply.Main.Exit == nil || reply.Main.Exit.Code == 0 && reply.Main.Exit.Signal == 0:
		return nil, nil
	}
	e := &ExitError{cmd: argv[0], sandbox: s.rec.Name, code: reply.Main.Exit.Code}
	if n := reply.Main.Exit.Signal; n != 0 {
		e.Signal = hostSignal(n)
	}
	return fmt.Errorf("the main process has ended: %w", e), nil
}
