//go:build linux

package pid1

import (
	"bufio"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/seed-1a2d6d8f/sandbox/internal/guest/cmd/proc"
	"github.com/seed-1a2d6d8f/sandbox/internal/guest/wire"
)

// bindSocket returns a stream socket with a name in the abstract namespace.
func bindSocket(name string) (int, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err == nil {
		err = unix.Bind(fd, &unix.SockaddrUnix{Name: name})
	}
	if err != nil {
		return -1, fmt.Errorf("socket %s: %w", name, err)
	}
	return fd, nil
}

// openSockets opens the control socket, and binds the keeper's, so that no other process can
// take its name.
func (s *session) openSockets() (err error) {
	if s.keep, err = bindSocket(wire.KeepSocket); err != nil {
		return err
	}
	if s.listener, err = bindSocket(wire.ControlSocket); err != nil {
		return err
	}
	return unix.Listen(s.listener, unix.SOMAXCONN)
}

// serveControl accepts control connections for as long as PID 1 lives, by plain system
// calls: refusing a connection must cost less than making one, or a flood would keep the
// queue full.
func (s *session) serveControl(listener int) {
	var all clients
	for {
		fd, _, err := unix.Accept4(listener, unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK)
		if err != nil {
			switch err {
			case unix.EINTR, unix.ECONNABORTED:
			case unix.EMFILE:
				// This frees a descriptor once the connection's goroutine has closed it.
				all.evict()
				time.Sleep(time.Millisecond)
			default:
				proc.AcceptPause()
			}
			continue
		}
		peer, err := unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
		if err != nil || all.full(peer.Pid) {
			unix.Close(fd)
			continue
		}
		one := &client{conn: os.NewFile(uintptr(fd), "control"), pid: peer.Pid}
		all.add(one)
		go func() {
			defer one.conn.Close()
			defer all.remove(one)
			// Before the process is sent anything: it may end, and its PID be another's.
			if p, ok := proc.Find(int(peer.Pid)); ok {
				one.id = p.ID()
				defer s.deadline.ended(one.id)
			}
			if serve := s.control(one.conn, one.id, func() { all.promote(one) }, func() { all.keep(one) }); serve != nil {
				all.remove(one) // it has bounds of its own
				serve(one.conn)
			}
		}()
	}
}

// controlConn is a connected socket.
type controlConn interface {
	io.ReadWriter
	SetDeadline(time.Time) error
	SetReadDeadline(time.Time) error
	SetWriteDeadline(time.Time) error
}

// control answers the requests of one connection of a process. It calls authenticated at the first
// valid signature, and keep for a connection of the owner's that carries no signatures. If a request
// takes over the connection, control returns what serves it.
func (s *session) control(conn controlConn, from proc.ID, authenticated, keep func()) (serve func(*os.File)) {
	conn.SetDeadline(time.Now().Add(pendingTime))
	nonce := make([]byte, wire.NonceSize)
	rand.Read(nonce)
	if writeLine(conn, wire.Challenge{Nonce: nonce}) != nil {
		return nil
	}
	r := bufio.NewReaderSize(conn, 1024)
	for known := false; ; {
		limit := wire.MaxControlLine
		if known {
			limit = wire.MaxFriendLine
		}
		line, err := wire.ReadLine(r, limit)
		if err != nil {
			return nil
		}
		switch said := string(line); said {
		case wire.StdioRequest:
			if conn, ok := conn.(*os.File); ok {
				giveStdio(conn, s.keep)
			}
			return nil
		case wire.EnterRequest:
			answer := wire.EnterYes
			if code := s.code.Load(); code != 0 {
				answer = fmt.Sprintf("%d\n", code)
			}
			io.WriteString(conn, answer)
			return nil
		case wire.UseRequest, wire.UseDetachedRequest:
			return func(conn *os.File) { s.uses.follow(conn, said == wire.UseDetachedRequest) }
		}
		if string(line) == wire.GateRequest {
			s.gates.serve(conn, r, from, keep)
			return
		}
		req, err := verify(s.conf.ControlKey, nonce, line)
		if err != nil {
			writeLine(conn, wire.Reply{Error: err.Error()})
			return nil
		}
		if !known {
			known = true
			conn.SetDeadline(time.Time{})
			authenticated()
			s.gates.authenticated(from)
		}
		if req.Op == wire.OpHold {
			s.serveHold(conn, r)
			return
		}
		reply := s.answer(req, from)
		rand.Read(nonce)
		reply.Nonce = nonce
		conn.SetWriteDeadline(time.Now().Add(pendingTime))
		if writeLine(conn, reply) != nil {
			return nil
		}
		if req.Op == wire.OpHook && reply.Error == "" {
			return func(conn *os.File) { s.egress.Hook(conn, r, req.Hook) }
		}
	}
}

func writeLine(conn io.Writer, v any) error {
	line, err := json.Marshal(v)
	if err != nil {
		return err
	}
	_, err = conn.Write(append(line, '\n'))
	return err
}

// verify reads a request whose signature covers nonce and payload.
func verify(key ed25519.PublicKey, nonce, line []byte) (req wire.Control, err error) {
	var signed wire.Signed
	if err := json.Unmarshal(line, &signed); err != nil {
		return req, errors.New("malformed request")
	}
	if len(key) != ed25519.PublicKeySize {
		return req, errors.New("this session has no control key")
	}
	message := append(nonce[:len(nonce):len(nonce)], signed.Payload...)
	if !ed25519.Verify(key, message, signed.Signature) {
		return req, errors.New("wrong signature")
	}
	if err := json.Unmarshal(signed.Payload, &req); err != nil {
		return req, errors.New("malformed request")
	}
	return req, nil
}

// answer carries out a request that came through a process.
func (s *session) answer(req wire.Control, through proc.ID) (reply wire.Reply) {
	switch req.Op {
	case wire.OpStatus:
		reply.Main = s.mainStatus()
	case wire.OpExtend:
		if req.Timeout <= 0 || req.ID == "" {
			reply.Error = "an extension must be positive and have an ID"
			break
		}
		if err := s.deadline.extend(req.Timeout, req.ID); err != nil {
			reply.Error = err.Error()
		}
	case wire.OpLease:
		if req.Lease <= 0 {
			reply.Error = "a lease must be positive"
			break
		}
		reply.Renewed = s.deadline.renew(req.Lease, req.Alone, req.ID, through)
	case wire.OpRelease:
		s.deadline.release(req.ID)
	case wire.OpIdle:
		if req.Idle == nil || req.Idle.Timeout < 0 || req.Idle.Version < 1 {
			reply.Error = "an idle timeout must not be negative, and have a version"
			break
		}
		if err := s.deadline.setIdle(*req.Idle); err != nil {
			reply.Error = err.Error()
		}
	case wire.OpTimeouts:
		if t := req.Timeouts; t == nil || t.Timeout < 0 || t.Grace < 0 {
			reply.Error = "timeouts must not be negative"
			break
		}
		if err := s.deadline.restart(*req.Timeouts); err != nil {
			reply.Error = err.Error()
		}
	case wire.OpHook:
		if h := req.Hook; h == nil || h.Version < 1 || len(h.Patterns) > wire.MaxHookPatterns {
			reply.Error = "a hook has a version, and not too many names"
		}
	case wire.OpNetwork:
	case wire.OpEgress:
		reply.Egress = s.egress.Log()
	case wire.OpBegin:
		if refused := s.egress.Begin(req.Begin); refused != nil {
			reply.Error, reply.Refused = refused.Error(), refused.Kind
			break
		}
		if req.Begin.Timeout >= 0 && req.Begin.Grace >= 0 {
			s.deadline.setTimeout(req.Begin.Timeout, req.Begin.Grace)
		}
	default:
		reply.Error = "unknown operation"
	}
	s.deadline.report(&reply)
	reply.Ending = int(s.code.Load())
	reply.Network = s.egress.Network()
	return reply
}
