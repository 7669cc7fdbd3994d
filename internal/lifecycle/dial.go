package lifecycle

import (
	"context"
	"crypto/hkdf"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os/user"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/seed-1a2d6d8f/sandbox/internal/bound"
	"github.com/seed-1a2d6d8f/sandbox/internal/engine"
	"github.com/seed-1a2d6d8f/sandbox/internal/errdefs"
	"github.com/seed-1a2d6d8f/sandbox/internal/guest"
	"github.com/seed-1a2d6d8f/sandbox/internal/guest/wire"
	"github.com/seed-1a2d6d8f/sandbox/internal/machine"
	"github.com/seed-1a2d6d8f/sandbox/internal/store"
)

// Dial connects to a server inside.
func (h *Handle) Dial(ctx context.Context, network, address string) (net.Conn, error) {
	if err := h.CheckUsable(); err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, errdefs.Cancelled(ctx)
	}
	link, err := h.Connect(ctx)
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
		return nil, h.ExplainLost(ctx, err)
	case errors.As(err, &unknown), errors.As(err, &malformed):
		return nil, errdefs.Classify(errdefs.InvalidArgument, err)
	}
	return nil, err
}

// Port returns the host address of a published port.
func (h *Handle) Port(ctx context.Context, port int) (netip.AddrPort, error) {
	if err := h.CheckUsable(); err != nil {
		return netip.AddrPort{}, err
	}
	if port < 1 || port > 65535 {
		return netip.AddrPort{}, errdefs.Invalid("%d is not a port", port)
	}
	got, err := h.Current(ctx)
	if err != nil {
		return netip.AddrPort{}, err
	}
	if published := h.settings().Ports; !slices.Contains(published, uint16(port)) {
		return netip.AddrPort{}, errdefs.Invalid("port %d is not published; of this sandbox %v are: see WithPorts, or use DialContext", port, published)
	}
	if got.State != engine.StateRunning && got.State != engine.StatePaused {
		return netip.AddrPort{}, fmt.Errorf("%w: it is %s, and port %d has no address", errdefs.NotRunning, store.StateOf(got.State), port)
	}
	at, ok := got.Ports[uint16(port)]
	if !ok {
		return netip.AddrPort{}, fmt.Errorf("%w: the engine publishes nothing for port %d", errdefs.Unsupported, port)
	}
	return at, nil
}

const (
	portWaitMin = 5 * time.Millisecond
	portWaitMax = 100 * time.Millisecond
)

// WaitPort waits until a server inside listens on a port. If the main process fails meanwhile
// the error is a *[MainFailedError].
func (h *Handle) WaitPort(ctx context.Context, port int) error {
	if err := h.CheckUsable(); err != nil {
		return err
	}
	if port < 1 || port > 65535 {
		return errdefs.Invalid("%d is not a port: use 1 to 65535", port)
	}
	// All requests go to one session: after its end nothing would start the server.
	conn, err := h.Connect(ctx)
	if err != nil {
		return fmt.Errorf("port %d: %w", port, err)
	}
	var failure error // of the main process, when last checked
	for wait := portWaitMin; ; wait = min(2*wait, portWaitMax) {
		open, err := conn.PortListens(ctx, uint16(port))
		switch {
		case ctx.Err() != nil:
			return fmt.Errorf("nothing listens on port %d: %w", port, errdefs.Cancelled(ctx))
		case errors.Is(err, guest.ErrConnectionLost):
			return h.ExplainLost(ctx, err)
		case err != nil:
			return err
		case open:
			return nil
		case failure != nil:
			return fmt.Errorf("nothing listens on port %d: %w", port, failure)
		}
		if failure, err = h.mainFailure(ctx, conn); err != nil {
			return err
		}
		if failure != nil {
			continue // it may have left a child that listens: check once more
		}
		if bound.Sleep(ctx, wait) != nil {
			return fmt.Errorf("nothing listens on port %d: %w", port, errdefs.Cancelled(ctx))
		}
	}
}

// SSH connects to an SSH server inside.
func (h *Handle) SSH(ctx context.Context) (net.Conn, error) {
	if err := h.CheckUsable(); err != nil {
		return nil, err
	}
	// The handle's own connection resumes the sandbox, finds its container and begins the
	// session.
	if _, err := h.Connect(ctx); err != nil {
		return nil, err
	}
	stream, err := h.serveSSH(ctx)
	if err != nil && ctx.Err() == nil && !errors.Is(err, engine.ErrUnavailable) {
		// The session ended just now.
		if _, err := h.Connect(ctx); err != nil {
			return nil, err
		}
		stream, err = h.serveSSH(ctx)
	}
	if err != nil {
		return nil, err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.released {
		stream.Close()
		return nil, errdefs.Closed
	}
	h.work.Add(1)
	at := sshAddr(h.Record().Name)
	conn := &sshConn{Conn: guest.NetConn(stream, at, at)}
	conn.done = sync.OnceFunc(h.work.Done)
	// The end of the handle is the end of the connection.
	conn.forget = context.AfterFunc(h.life, func() { conn.Close() })
	return conn, nil
}

// serveSSH starts the guest's SSH server for standard clients, and sends it the seed of its
// host key.
func (h *Handle) serveSSH(ctx context.Context) (*engine.Stream, error) {
	h.mu.Lock()
	container, env, path := h.container, h.env, machine.GuestPath(h.made.Settings)
	h.mu.Unlock()
	conf := wire.Serve{
		User: h.Record().Settings.User, Dir: h.Record().Settings.Workdir, HostKey: true, NewPrivileges: h.Record().Settings.NewPrivileges,
		Caller: caller(),
		Home:   slices.ContainsFunc(env, func(kv string) bool { return strings.HasPrefix(kv, "HOME=") }),
	}
	config, err := json.Marshal(conf)
	if err != nil {
		return nil, err
	}
	seed, err := hkdf.Key(sha256.New, h.Record().ControlKey, nil, "agent-sandbox ssh host key", wire.HostKeySize)
	if err != nil {
		return nil, err
	}
	stream, err := h.c.Engine.Exec(ctx, container, engine.ExecSpec{
		Argv: []string{path, wire.VerbServe, string(config)}, User: "0:0", Dir: "/", Stdin: true, Check: h.checkCopied,
	})
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { stream.Close() })
	_, err = stream.Write(seed)
	if !stop() && err == nil {
		err = errdefs.Cancelled(ctx)
	}
	if err != nil {
		stream.Close()
		return nil, fmt.Errorf("connect to the guest: %w", err)
	}
	return stream, nil
}

// caller returns the name of the user that this program runs as, without its domain.
func caller() string {
	me, err := user.Current()
	if err != nil {
		return ""
	}
	return me.Username[strings.LastIndexByte(me.Username, '\\')+1:]
}

// sshConn is a connection that the release of its handle waits for.
type sshConn struct {
	net.Conn
	forget func() bool
	done   func()
}

func (c *sshConn) Close() error {
	defer c.done()
	c.forget()
	return c.Conn.Close()
}

// CloseWrite ends the server's input; the server ends the connection after its answer.
func (c *sshConn) CloseWrite() error {
	return c.Conn.(interface{ CloseWrite() error }).CloseWrite()
}

// sshAddr is the address of both ends of a connection without an address.
type sshAddr string

func (sshAddr) Network() string { return "sandbox" }

func (a sshAddr) String() string { return string(a) }
