package guest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"sync"
	"syscall"

	"golang.org/x/crypto/ssh"

	"github.com/seed-1a2d6d8f/sandbox/internal/guest/wire"
)

// DialContext connects to an address inside the sandbox: network is tcp, tcp4, tcp6
// or unix. ctx bounds the dial only. Errors are *net.OpError, as those of package net.
// When c ends, the connection fails with ECONNRESET and ErrConnectionLost.
func (c *Conn) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	conn, err := c.dial(ctx, network, address)
	if err != nil {
		return nil, &net.OpError{Op: "dial", Net: network, Addr: target{network, address}, Err: err}
	}
	return conn, nil
}

func (c *Conn) dial(ctx context.Context, network, address string) (net.Conn, error) {
	switch network {
	case "tcp", "tcp4", "tcp6":
		if _, _, err := net.SplitHostPort(address); err != nil {
			return nil, err
		}
	case "unix":
	default:
		return nil, net.UnknownNetworkError(network)
	}
	extra, err := json.Marshal(wire.Dial{Network: network, Address: address})
	if err != nil {
		return nil, err
	}
	ch, reqs, err := c.openChannel(ctx, wire.ChannelDial, extra, c.dialError)
	if err != nil {
		return nil, err
	}
	d := &dialed{c: c, ready: make(chan struct{}), reported: make(chan struct{}), over: make(chan struct{})}
	if !c.spawn(func() { c.usage.while(func() { d.listen(reqs) }) }) {
		c.discard(reqs)
		ch.Close()
		return nil, ErrConnectionLost
	}
	select {
	case <-d.ready:
	case <-ctx.Done():
		go ch.Close() // it blocks while the guest reads nothing
		return nil, context.Cause(ctx)
	}
	if d.first == nil {
		go ch.Close()
		return nil, c.lost(nil)
	}
	conn := newConn(ch, endpoint(network, d.first.Local), endpoint(network, d.first.Remote))
	if !c.spawn(func() { d.serve(conn) }) {
		ch.Close()
		return nil, ErrConnectionLost
	}
	return conn, nil
}

// dialed is the state of one connection, as the guest reports it.
type dialed struct {
	c        *Conn
	ready    chan struct{} // closed when first is set, or over
	first    *wire.Dialed
	reported chan struct{} // closed when end is set, or over
	end      *wire.DialEnd
	over     chan struct{} // closed at the end of the channel
}

// listen handles the guest's requests until the channel ends. The guest may be hostile:
// malformed requests are ignored.
func (d *dialed) listen(reqs <-chan *ssh.Request) {
	ready, reported := d.ready, d.reported
	for r := range reqs {
		if r.WantReply {
			r.Reply(false, nil)
		}
		switch {
		case r.Type == wire.RequestDialed && ready != nil:
			var first wire.Dialed
			if json.Unmarshal(r.Payload, &first) == nil {
				d.first = &first
				close(ready)
				ready = nil
			}
		case r.Type == wire.RequestDialEnd && reported != nil:
			var end wire.DialEnd
			if json.Unmarshal(r.Payload, &end) == nil {
				d.end = &end
				close(reported)
				reported = nil
			}
		}
	}
	if ready != nil {
		close(ready)
	}
	if reported != nil {
		close(reported)
	}
	close(d.over)
}

// serve copies the connection's data until it has ended.
func (d *dialed) serve(conn *conn) {
	var copies sync.WaitGroup
	copies.Go(conn.emptyOut)
	copies.Go(func() { conn.fillIn(d.explain) })
	select {
	case <-d.over:
	case <-d.c.closing.Done():
	}
	conn.out.abandon(syscall.ECONNRESET)
	// Data that arrived before the end can still be read, unless c is being closed.
	select {
	case <-conn.inDone:
	case <-d.c.closing.Done():
		conn.in.abandon(errCut)
	}
	copies.Wait()
}

// errCut is the error of a connection whose guest connection ended.
var errCut = fmt.Errorf("%w: %w", syscall.ECONNRESET, ErrConnectionLost)

// explain translates the end of the data from inside.
func (d *dialed) explain(err error) error {
	if !errors.Is(err, io.EOF) {
		return fmt.Errorf("%w: %w", errCut, err)
	}
	<-d.reported
	switch {
	case d.end == nil:
		return errCut
	case d.end.Kind == "":
		return io.EOF
	}
	if errno, ok := dialErrors[d.end.Kind]; ok {
		return os.NewSyscallError("read", errno)
	}
	return syscall.ECONNRESET
}

// PortListens reports whether a process inside accepts connections on a TCP port.
func (c *Conn) PortListens(ctx context.Context, port uint16) (bool, error) {
	extra, err := json.Marshal(wire.Listens{Port: port})
	if err != nil {
		return false, err
	}
	ch, reqs, err := c.openChannel(ctx, wire.ChannelListens, extra, c.dialError)
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		return false, nil
	case err != nil:
		return false, err
	}
	go ch.Close() // it blocks while the guest reads nothing
	c.discard(reqs)
	return true, nil
}

// dialErrors maps kinds to errors.
var dialErrors = map[string]error{
	wire.DialRefused:    syscall.ECONNREFUSED,
	wire.DialReset:      syscall.ECONNRESET,
	wire.DialTimeout:    syscall.ETIMEDOUT,
	wire.DialNoHost:     syscall.EHOSTUNREACH,
	wire.DialNoNetwork:  syscall.ENETUNREACH,
	wire.DialNoAddress:  syscall.EADDRNOTAVAIL,
	wire.DialNotFound:   syscall.ENOENT,
	wire.DialPermission: syscall.EACCES,
}

// dialError translates a failed dial into the errors of package net.
func (c *Conn) dialError(err error) error {
	var refused *ssh.OpenChannelError
	switch {
	case err == nil:
		return nil
	case !errors.As(err, &refused):
		return c.lost(err)
	}
	return decodeDialError(refused.Message)
}

// decodeDialError reads the message of a rejection.
func decodeDialError(message string) error {
	var e wire.DialError
	if err := json.Unmarshal([]byte(message), &e); err != nil || e.Kind == "" {
		return decodeStartError(message)
	}
	e.Message = said(e.Message)
	switch {
	case e.Kind == wire.DialTimeout && e.Name != "": // no DNS server answered
		return &net.DNSError{Err: "i/o timeout", Name: said(e.Name), IsTimeout: true}
	case e.Kind == wire.DialUnknownName:
		return &net.DNSError{Err: "no such host", Name: said(e.Name), IsNotFound: true}
	case e.Kind == wire.DialMalformed:
		return &net.AddrError{Err: e.Message}
	}
	if errno, ok := dialErrors[e.Kind]; ok {
		return os.NewSyscallError("connect", errno)
	}
	return &e
}

// target is the address of a failed dial.
type target struct{ network, address string }

func (t target) Network() string { return t.network }
func (t target) String() string  { return t.address }

// endpoint parses an address that the guest reported into a type of package net.
func endpoint(network, address string) net.Addr {
	address = said(address)
	if network == "unix" {
		return &net.UnixAddr{Net: network, Name: address}
	}
	if ap, err := netip.ParseAddrPort(address); err == nil {
		return net.TCPAddrFromAddrPort(ap)
	}
	return target{network, address}
}
