//go:build linux

package main

import (
	"crypto/ed25519"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"

	"golang.org/x/crypto/ssh"

	"github.com/seed-1a2d6d8f/sandbox/internal/guest/wire"
)

// maxRunning bounds the commands of one server.
const maxRunning = 4096

// server serves commands on SSH connections: one for serve, any number for keep.
type server struct {
	config *ssh.ServerConfig
	conf   wire.Serve // of standard sessions
	reaper *reaper
	keeper *keeper // nil in serve, which takes no detached commands

	tidying atomic.Int32 // commands that clean up when their client is gone

	mu       sync.Mutex
	running  int
	stopping bool
	drained  chan struct{} // closed when stopping and nothing runs
}

// newServer makes a server with the host key of that seed. Without one it is a new
// key: this package's client checks none.
func newServer(seed []byte) (*server, error) {
	if seed == nil {
		seed = make([]byte, ed25519.SeedSize)
		rand.Read(seed)
	}
	signer, err := ssh.NewSignerFromSigner(ed25519.NewKeyFromSeed(seed))
	if err != nil {
		return nil, err
	}
	config := &ssh.ServerConfig{
		Config: ssh.Config{
			// The first is for OpenSSH, which warns where it is missing.
			KeyExchanges: []string{ssh.KeyExchangeMLKEM768X25519, ssh.KeyExchangeCurve25519},
			Ciphers:      []string{ssh.CipherAES128GCM},
		},
		NoClientAuth:  true,
		ServerVersion: "SSH-2.0-sandbox",
	}
	config.AddHostKey(signer)
	return &server{config: config, reaper: newReaper(), drained: make(chan struct{})}, nil
}

// admit counts a command in, or says why not.
func (s *server) admit() *wire.StartError {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopping {
		return refuse(wire.KindStopping, "the session is ending")
	}
	if s.running >= maxRunning {
		return refuse(wire.KindResources, "%d commands are running", s.running)
	}
	s.running++
	return nil
}

func (s *server) leave() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.running--; s.stopping && s.running == 0 {
		close(s.drained)
	}
}

// stop takes no new commands; drained tells when the last one has ended.
func (s *server) stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopping {
		return
	}
	s.stopping = true
	if s.running == 0 {
		close(s.drained)
	}
}

// serve speaks SSH on conn until it ends.
func (s *server) serve(conn net.Conn) error {
	sc, chans, reqs, err := ssh.NewServerConn(conn, s.config)
	if err != nil {
		return fmt.Errorf("handshake: %w", err)
	}
	parts := &parts{held: make(map[string][]byte)}
	go parts.receive(reqs)
	for nc := range chans {
		go s.channel(nc, parts)
	}
	return sc.Wait()
}

func (s *server) channel(nc ssh.NewChannel, parts *parts) {
	switch kind := nc.ChannelType(); {
	case kind == wire.ChannelExec:
		s.exec(nc, parts)
	case kind == wire.ChannelProcess && s.keeper != nil:
		s.keeper.attach(nc)
	case kind == wire.ChannelControl && s.keeper == nil:
		controlChannel(nc)
	case kind == wire.ChannelKeep && s.keeper == nil:
		keepChannel(nc)
	case kind == wire.ChannelDial && s.keeper == nil:
		s.dial(nc)
	case kind == wire.ChannelListens && s.keeper == nil:
		listens(nc)
	case (kind == channelDirectTCP || kind == channelDirectUnix) && s.keeper == nil:
		s.direct(nc)
	case kind == channelSession && s.keeper == nil:
		s.session(nc)
	default:
		nc.Reject(ssh.UnknownChannelType, fmt.Sprintf("unknown channel type %q", kind))
	}
}

func reject(nc ssh.NewChannel, why *wire.StartError) {
	text, _ := json.Marshal(why)
	nc.Reject(ssh.ConnectionFailed, string(text))
}

// exec starts a command before it accepts the channel, so that a client has its
// answer in one round trip.
func (s *server) exec(nc ssh.NewChannel, parts *parts) {
	req, refused := decodeExec(nc.ExtraData(), parts)
	if refused == nil && req.Detached != (s.keeper != nil) {
		refused = refuse(wire.KindOther, "detached commands belong to the keeper, others don't")
	}
	if refused == nil {
		refused = s.admit()
	}
	if refused != nil {
		reject(nc, refused)
		return
	}
	if s.keeper != nil {
		s.keeper.start(s, nc, req) // leaves when the command has ended
		return
	}
	defer s.leave()
	c, refused := startCommand(s.reaper, req)
	if refused != nil {
		reject(nc, refused)
		return
	}
	ch, reqs, err := nc.Accept()
	if err != nil {
		c.kill()
		c.run(io.Discard, io.Discard)
		return
	}
	send(ch, wire.RequestStarted, wire.Started{Pid: c.child.pid, Exec: wire.Exec{ID: req.ID}})
	var answering sync.Mutex
	go func() {
		c.obey(reqs, &answering)
		// The client gave up, or is gone. After the command's end this finds nothing
		// that is to be killed.
		select {
		case <-c.over:
		default:
			c.abandon()
		}
	}()
	if c.tidies() {
		s.tidying.Add(1)
		defer s.tidying.Add(-1)
	}
	go c.feed(ch)
	exit := c.run(ch, ch.Stderr())
	answering.Lock()
	defer answering.Unlock()
	send(ch, wire.RequestExit, exit)
	ch.Close()
}

func decodeExec(extra []byte, parts *parts) (req wire.Exec, refused *wire.StartError) {
	if ref, ok := strings.CutPrefix(string(extra), wire.PartsPrefix); ok {
		extra = parts.take(ref)
	}
	if err := json.Unmarshal(extra, &req); err != nil {
		return req, refuse(wire.KindArguments, "the request makes no sense: %v", err)
	}
	if req.Timeout < 0 || req.WaitDelay < 0 {
		return req, refuse(wire.KindArguments, "negative timeout or wait delay")
	}
	return req, nil
}

// obey carries out the client's requests until the channel ends. It holds answering
// from the deed to the answer: a signal that ends the command must not lose its answer
// to the command's end.
func (c *command) obey(reqs <-chan *ssh.Request, answering *sync.Mutex) {
	for r := range reqs {
		ok := false
		answering.Lock()
		switch r.Type {
		case wire.RequestSignal:
			var sig wire.Signal
			if json.Unmarshal(r.Payload, &sig) == nil {
				ok = c.signal(syscall.Signal(sig.Number), sig.Tree)
			}
		case wire.RequestResize:
			var size wire.Size
			if ok = json.Unmarshal(r.Payload, &size) == nil; ok {
				c.resize(size)
			}
		}
		if r.WantReply {
			r.Reply(ok, nil)
		}
		answering.Unlock()
	}
}

// send makes a request of the client, in parts where it is large.
func send(ch ssh.Channel, kind string, v any) error {
	payload, err := json.Marshal(v)
	if err != nil {
		return err
	}
	for len(payload) > wire.MaxPart {
		if _, err := ch.SendRequest(wire.RequestPart, false, payload[:wire.MaxPart]); err != nil {
			return err
		}
		payload = payload[wire.MaxPart:]
	}
	_, err = ch.SendRequest(kind, false, payload)
	return err
}

// parts holds the pieces of open requests that are too large for a packet.
type parts struct {
	mu   sync.Mutex
	size int
	held map[string][]byte
}

func (p *parts) receive(reqs <-chan *ssh.Request) {
	for r := range reqs {
		ok := r.Type == wire.RequestPart && p.add(r.Payload)
		if r.WantReply {
			r.Reply(ok, nil)
		}
	}
}

const refSize = 8 // a big-endian uint64

func (p *parts) add(payload []byte) bool {
	if len(payload) < refSize {
		return false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	ref, part := string(payload[:refSize]), payload[refSize:]
	if p.size+len(part) > wire.MaxParts {
		p.size -= len(p.held[ref])
		delete(p.held, ref)
		return false
	}
	p.size += len(part)
	p.held[ref] = append(p.held[ref], part...)
	return true
}

func (p *parts) take(ref string) []byte {
	p.mu.Lock()
	defer p.mu.Unlock()
	whole := p.held[ref]
	p.size -= len(whole)
	delete(p.held, ref)
	return whole
}
