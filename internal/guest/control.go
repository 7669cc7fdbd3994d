package guest

import (
	"bufio"
	"context"
	"crypto/ed25519"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/seed-1a2d6d8f/sandbox/internal/guest/wire"
)

// controlPool keeps one idle connection to PID 1. It is authenticated and has its next
// nonce: the next request is one round trip, and a flood of new clients can't displace it.
type controlPool struct {
	mu     sync.Mutex
	closed bool
	idle   *controlConn
}

type controlConn struct {
	ch    ssh.Channel
	r     *bufio.Reader
	nonce []byte
}

func (p *controlPool) take() *controlConn {
	p.mu.Lock()
	defer p.mu.Unlock()
	c := p.idle
	p.idle = nil
	return c
}

func (p *controlPool) give(c *controlConn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed || p.idle != nil {
		go c.ch.Close() // it blocks while the guest reads nothing
		return
	}
	p.idle = c
}

func (p *controlPool) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	if p.idle != nil {
		p.idle.ch.Close()
		p.idle = nil
	}
}

// Control performs one request to PID 1, signed with key, the private half of
// Init.ControlKey. ctx bounds all of it. A refusal is an error, with its Reply. All
// operations are idempotent, so a request whose connection to PID 1 ended (it was idle, or
// a flood of clients displaced it) is retried on a new one.
func (c *Conn) Control(ctx context.Context, key ed25519.PrivateKey, req wire.Control) (wire.Reply, error) {
	if len(key) != ed25519.PrivateKeySize {
		return wire.Reply{}, fmt.Errorf("guest: control: the key has %d bytes", len(key))
	}
	payload, err := json.Marshal(req)
	if err != nil {
		return wire.Reply{}, fmt.Errorf("guest: control: %w", err)
	}
	const tries = 8
	conn := c.control.take()
	for try := 1; ; try++ {
		var reply wire.Reply
		if conn == nil {
			conn, err = c.connectControl(ctx)
		}
		if conn != nil {
			reply, err = c.exchange(ctx, conn, key, payload)
		}
		if err == nil && reply.Error != "" {
			err = errors.New(reply.Error)
		}
		again := errors.Is(err, ErrConnectionLost) && c.Err() == nil && ctx.Err() == nil && try < tries
		switch {
		case err == nil:
			return reply, nil
		case !again:
			return reply, fmt.Errorf("guest: control %q: %w", req.Op, err)
		}
		conn = nil
	}
}

// OpenControl makes a connection to PID 1 for the next Control, which then takes one round trip
// less. If that fails, Control says why.
func (c *Conn) OpenControl(ctx context.Context) {
	if conn, err := c.connectControl(ctx); err == nil {
		c.control.give(conn)
	}
}

func (c *Conn) connectControl(ctx context.Context) (*controlConn, error) {
	ch, reqs, err := c.open(ctx, wire.ChannelControl, nil)
	if err != nil {
		return nil, err
	}
	c.discard(reqs)
	return &controlConn{ch: ch, r: bufio.NewReader(ch)}, nil
}

// exchange sends one request, and returns the connection to the pool if it can be reused.
func (c *Conn) exchange(ctx context.Context, conn *controlConn, key ed25519.PrivateKey, payload []byte) (wire.Reply, error) {
	reply, err := c.request(ctx, conn, key, payload)
	if err == nil && len(conn.nonce) > 0 {
		c.control.give(conn)
	}
	return reply, err
}

// request sends one request. It closes the connection if it can't be used again. If the guest is
// frozen, the goroutine waits for it; the caller only as long as ctx.
func (c *Conn) request(ctx context.Context, conn *controlConn, key ed25519.PrivateKey, payload []byte) (wire.Reply, error) {
	type answer struct {
		reply wire.Reply
		err   error
	}
	answers := make(chan answer, 1)
	spawned := c.spawn(func() {
		reply, err := c.converse(conn, key, payload)
		answers <- answer{reply, err}
	})
	if !spawned {
		return wire.Reply{}, ErrConnectionLost
	}
	slow := time.NewTimer(slowAnswer)
	defer slow.Stop()
	for {
		select {
		case a := <-answers:
			if a.err != nil || len(a.reply.Nonce) == 0 {
				conn.nonce = nil
				go conn.ch.Close()
				return a.reply, a.err
			}
			conn.nonce = a.reply.Nonce
			return a.reply, nil
		case <-ctx.Done():
			go conn.ch.Close()
			return wire.Reply{}, context.Cause(ctx)
		case <-slow.C:
			c.reportSlow()
		}
	}
}

func (c *Conn) converse(conn *controlConn, key ed25519.PrivateKey, payload []byte) (wire.Reply, error) {
	if len(payload) > maxFirstPayload && conn.nonce == nil {
		// PID 1 accepts a line of this length from authenticated clients only.
		reply, err := c.ask(conn, key, noop)
		if err != nil {
			return reply, err
		}
		conn.nonce = reply.Nonce
	}
	return c.ask(conn, key, payload)
}

// maxFirstPayload certainly fits into wire.MaxControlLine once it is encoded and signed.
const maxFirstPayload = wire.MaxControlLine / 2

// noop is a request that changes nothing, to authenticate with.
var noop = []byte(`{"op":"` + wire.OpNetwork + `"}`)

// ask sends one request and reads its answer.
func (c *Conn) ask(conn *controlConn, key ed25519.PrivateKey, payload []byte) (reply wire.Reply, err error) {
	if conn.nonce == nil {
		var hello wire.Challenge
		if err := readControl(conn.r, &hello); err != nil {
			return reply, c.lost(err)
		}
		conn.nonce = hello.Nonce
	}
	line, err := sign(key, conn.nonce, payload)
	if err != nil {
		return reply, err
	}
	if len(line) > wire.MaxFriendLine {
		return reply, errors.New("the request is too large")
	}
	if _, err := conn.ch.Write(line); err != nil {
		return reply, c.lost(err)
	}
	if err := readControl(conn.r, &reply); err != nil {
		return wire.Reply{}, c.lost(err)
	}
	reply.Error, reply.Refused = said(reply.Error), said(reply.Refused)
	if reply.Main != nil && reply.Main.Start != nil {
		reply.Main.Start.Kind, reply.Main.Start.Message = said(reply.Main.Start.Kind), said(reply.Main.Start.Message)
	}
	return reply, nil
}

// SignHold returns the line that asks PID 1 for a hold, in answer to its challenge. key is the
// private half of Init.ControlKey.
func SignHold(key ed25519.PrivateKey, challenge []byte) ([]byte, error) {
	if len(key) != ed25519.PrivateKeySize {
		return nil, fmt.Errorf("guest: hold: the key has %d bytes", len(key))
	}
	return sign(key, challenge, []byte(`{"op":"`+wire.OpHold+`"}`))
}

// sign returns the line of a request. A nonce of any length would let the other side collect
// signatures over texts of its choice.
func sign(key ed25519.PrivateKey, nonce, payload []byte) ([]byte, error) {
	if len(nonce) != wire.NonceSize {
		return nil, fmt.Errorf("the challenge has %d bytes, not %d", len(nonce), wire.NonceSize)
	}
	line, err := json.Marshal(wire.Signed{
		Payload:   payload,
		Signature: ed25519.Sign(key, append(nonce[:wire.NonceSize:wire.NonceSize], payload...)),
	})
	return append(line, '\n'), err
}

// readControl reads one line of at most wire.MaxFriendLine bytes into v.
func readControl(r *bufio.Reader, v any) error {
	line, err := wire.ReadLine(r, wire.MaxFriendLine)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(line, v); err != nil {
		return errors.New("malformed answer")
	}
	return nil
}
