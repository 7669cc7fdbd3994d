package sandbox

import (
	"context"
	"errors"
	"net"

	"github.com/seed-1a2d6d8f/sandbox/internal/guest"
)

// DialContext connects to an address inside the sandbox, as [net.Dialer.DialContext]
// does: network is tcp, tcp4, tcp6 or unix, and names are resolved inside. No port
// need be published. It can be used as DialContext of an [net/http.Transport]. Sockets see
// a client that is root.
//
// ctx bounds the dial only. Several thousand connections may be open at once; each has
// deadlines, and a CloseWrite to end one direction. All end with the handle. What
// package net would return is found by errors.Is and errors.As, such as
// syscall.ECONNREFUSED and [*net.OpError]. A persistent sandbox that was stopped is
// resumed.
func (s *Sandbox) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	conn, err := s.dialContext(ctx, network, address)
	return conn, fail("dial", s.rec.Name, err)
}

func (s *Sandbox) dialContext(ctx context.Context, network, address string) (net.Conn, error) {
	if err := s.usable(); err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, cancelled(ctx)
	}
	link, err := s.connect(ctx)
	if err != nil {
		return nil, err
	}
	conn, err := link.DialContext(ctx, network, address)
	var unknown net.UnknownNetworkError
	var malformed *net.AddrError
	switch {
	case err == nil:
		return conn, nil
	case ctx.Err() != nil:
		return nil, err
	case errors.Is(err, guest.ErrConnectionLost):
		return nil, s.lost(ctx, err)
	case errors.As(err, &unknown), errors.As(err, &malformed):
		return nil, classify(ErrInvalidArgument, err)
	}
	return nil, err
}
