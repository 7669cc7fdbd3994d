//go:build linux

package main

import (
	"bufio"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/json"
	"errors"
	"net"
	"sync"
	"time"

	"github.com/seed-1a2d6d8f/sandbox/internal/guest/wire"
)

const (
	// maxStrangers bounds control connections that have proved nothing yet, and
	// strangerTime how long each has to do so.
	maxStrangers = 64
	strangerTime = 5 * time.Second
	// maxFriends bounds those that have.
	maxFriends = 32
)

// acceptPause is for a listener that can't accept: no descriptor is free, mostly.
func acceptPause() { time.Sleep(20 * time.Millisecond) }

// guests are the open control connections.
//
// Anyone inside may connect, so those who have proved nothing are few and lose their
// place to newcomers: first the process that holds the most. A flood then crowds
// itself out, and the owner, who comes from a process of his own, gets his turn.
type guests struct {
	mu        sync.Mutex
	strangers []*guest // oldest first
	friends   []*guest
}

type guest struct {
	conn net.Conn
	pid  int32
}

func (g *guests) add(new *guest) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.strangers) >= maxStrangers {
		of := make(map[int32]int)
		for _, s := range g.strangers {
			of[s.pid]++
		}
		of[new.pid]++
		victim := 0
		for i, s := range g.strangers {
			if of[s.pid] > of[g.strangers[victim].pid] {
				victim = i
			}
		}
		g.strangers[victim].conn.Close()
		g.strangers = append(g.strangers[:victim], g.strangers[victim+1:]...)
	}
	g.strangers = append(g.strangers, new)
}

// befriend moves one that has proved who it is, at the cost of the oldest such.
func (g *guests) befriend(one *guest) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.strangers = without(g.strangers, one)
	if len(g.friends) >= maxFriends {
		g.friends[0].conn.Close()
		g.friends = g.friends[1:]
	}
	g.friends = append(g.friends, one)
}

func (g *guests) remove(one *guest) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.strangers = without(g.strangers, one)
	g.friends = without(g.friends, one)
}

func without(list []*guest, one *guest) []*guest {
	for i, g := range list {
		if g == one {
			return append(list[:i:i], list[i+1:]...)
		}
	}
	return list
}

// serveControl accepts control connections for as long as PID 1 lives.
func (s *session) serveControl() {
	var all guests
	for {
		conn, err := s.listener.AcceptUnix()
		if err != nil {
			acceptPause()
			continue
		}
		peer, err := peerOf(conn)
		if err != nil {
			conn.Close()
			continue
		}
		one := &guest{conn: conn, pid: peer.Pid}
		all.add(one)
		go func() {
			defer conn.Close()
			defer all.remove(one)
			s.control(conn, func() { all.befriend(one) })
		}()
	}
}

var errLine = errors.New("line too long")

// control answers one connection; proved is called at its first valid signature.
func (s *session) control(conn net.Conn, proved func()) {
	conn.SetDeadline(time.Now().Add(strangerTime))
	nonce := make([]byte, wire.NonceSize)
	rand.Read(nonce)
	if writeLine(conn, wire.Challenge{Nonce: nonce}) != nil {
		return
	}
	r := bufio.NewReaderSize(conn, 1024)
	for friend := false; ; {
		line, err := readLine(r)
		if err != nil {
			return
		}
		req, err := verify(s.conf.ControlKey, nonce, line)
		if err != nil {
			writeLine(conn, wire.Reply{Error: err.Error()})
			return
		}
		if !friend {
			friend = true
			conn.SetDeadline(time.Time{})
			proved()
		}
		reply := s.answer(req)
		rand.Read(nonce)
		reply.Nonce = nonce
		conn.SetWriteDeadline(time.Now().Add(strangerTime))
		if writeLine(conn, reply) != nil {
			return
		}
	}
}

// readLine reads one line of at most wire.MaxControlLine bytes.
func readLine(r *bufio.Reader) ([]byte, error) {
	var line []byte
	for {
		part, err := r.ReadSlice('\n')
		if len(line)+len(part) > wire.MaxControlLine {
			return nil, errLine
		}
		line = append(line, part...)
		if err != bufio.ErrBufferFull {
			return line, err
		}
	}
}

func writeLine(conn net.Conn, v any) error {
	line, err := json.Marshal(v)
	if err != nil {
		return err
	}
	_, err = conn.Write(append(line, '\n'))
	return err
}

// verify reads a signed request. nonce is what the signature must begin with.
func verify(key ed25519.PublicKey, nonce, line []byte) (req wire.Control, err error) {
	var signed wire.Signed
	if err := json.Unmarshal(line, &signed); err != nil {
		return req, errors.New("the request makes no sense")
	}
	if len(key) != ed25519.PublicKeySize {
		return req, errors.New("this session has no control key")
	}
	message := append(nonce[:len(nonce):len(nonce)], signed.Payload...)
	if !ed25519.Verify(key, message, signed.Signature) {
		return req, errors.New("wrong signature")
	}
	if err := json.Unmarshal(signed.Payload, &req); err != nil {
		return req, errors.New("the request makes no sense")
	}
	return req, nil
}

// answer carries out a request.
func (s *session) answer(req wire.Control) (reply wire.Reply) {
	switch req.Op {
	case wire.OpStatus:
		reply.Main = s.mainStatus()
	case wire.OpLease:
		if req.Lease <= 0 {
			reply.Error = "a lease must be positive"
			break
		}
		s.deadline.renew(req.Lease)
	case wire.OpRelease:
		s.deadline.release()
	default:
		reply.Error = "unknown operation"
	}
	reply.LeaseLeft, reply.TimeLeft = s.deadline.left()
	return reply
}
