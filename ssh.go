package sandbox

import (
	"context"
	"crypto/hkdf"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"

	"github.com/seed-1a2d6d8f/sandbox/internal/engine"
	"github.com/seed-1a2d6d8f/sandbox/internal/guest"
	"github.com/seed-1a2d6d8f/sandbox/internal/guest/wire"
)

// SSH returns a raw connection to an SSH server in the sandbox, for any SSH client:
// OpenSSH's by way of the command "sandbox proxy" as its ProxyCommand, or
// golang.org/x/crypto/ssh. Sessions are the sandbox's user's, in its directory and
// with its environment; whoever has the connection is let in without a key or a
// password. The host key stays the same for as long as the sandbox exists.
//
// Commands, shells, terminals, sftp and forwarding to TCP ports and unix sockets
// inside are served; forwarding from the sandbox is refused. When the connection ends
// its commands get SIGHUP; what has gone into the background lives on until the
// session ends.
//
// ctx bounds the connecting only. The caller closes the connection; the end of the
// handle closes it, too. A persistent sandbox that was stopped is resumed.
func (s *Sandbox) SSH(ctx context.Context) (net.Conn, error) {
	conn, err := s.ssh(ctx)
	return conn, fail("ssh", s.rec.Name, err)
}

func (s *Sandbox) ssh(ctx context.Context) (net.Conn, error) {
	if err := s.usable(); err != nil {
		return nil, err
	}
	// The handle's own connection resumes the sandbox, finds its container and has the
	// session begin.
	if _, err := s.connect(ctx); err != nil {
		return nil, err
	}
	stream, err := s.serveSSH(ctx)
	if err != nil && ctx.Err() == nil && !errors.Is(err, engine.ErrUnavailable) {
		// The session ended just now.
		if _, err := s.connect(ctx); err != nil {
			return nil, err
		}
		stream, err = s.serveSSH(ctx)
	}
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.released {
		stream.Close()
		return nil, ErrClosed
	}
	s.work.Add(1)
	at := sshAddr(s.rec.Name)
	conn := &sshConn{Conn: guest.NetConn(stream, at, at)}
	conn.done = sync.OnceFunc(s.work.Done)
	// The end of the handle is the end of the connection.
	conn.forget = context.AfterFunc(s.life, func() { conn.Close() })
	return conn, nil
}

// serveSSH starts the guest's server for standard clients and gives it its host key.
func (s *Sandbox) serveSSH(ctx context.Context) (*engine.Stream, error) {
	s.mu.Lock()
	container, env := s.container, s.env
	s.mu.Unlock()
	conf := wire.Serve{
		User: s.rec.Settings.User, Dir: s.rec.Settings.Workdir, HostKey: true,
		Home: slices.ContainsFunc(env, func(kv string) bool { return strings.HasPrefix(kv, "HOME=") }),
	}
	told, err := json.Marshal(conf)
	if err != nil {
		return nil, err
	}
	seed, err := hkdf.Key(sha256.New, s.rec.ControlKey, nil, "agent-sandbox ssh host key", wire.HostKeySize)
	if err != nil {
		return nil, err
	}
	stream, err := s.eng.Exec(ctx, container, engine.ExecSpec{
		Argv: []string{wire.Path, wire.VerbServe, string(told)}, User: "0:0", Dir: "/", Stdin: true,
	})
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { stream.Close() })
	_, err = stream.Write(seed)
	if !stop() && err == nil {
		err = cancelled(ctx)
	}
	if err != nil {
		stream.Close()
		return nil, fmt.Errorf("connect to the guest: %w", err)
	}
	return stream, nil
}

// sshConn is a connection that its handle waits for.
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

// CloseWrite ends what the server reads; it ends the connection when it has answered.
func (c *sshConn) CloseWrite() error {
	return c.Conn.(interface{ CloseWrite() error }).CloseWrite()
}

// sshAddr is both ends of a connection that has no address.
type sshAddr string

func (sshAddr) Network() string  { return "sandbox" }
func (a sshAddr) String() string { return string(a) }
