package guest

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/seed-1a2d6d8f/sandbox/internal/guest/wire"
)

// ErrConnectionLost is what calls and streams end with when the connection to the
// guest, or the guest's side of one command, went away underneath them.
var ErrConnectionLost = errors.New("guest: connection lost")

// Conn is a connection to one `guest serve`. Its methods may be called from any
// number of goroutines.
type Conn struct {
	ssh ssh.Conn
	rw  io.Closer

	silent func(context.Context) // see OnSilence

	done chan struct{} // closed once err is set
	err  error
	// stopped orders the start of goroutines before Close waits for them.
	mu       sync.Mutex
	stopped  bool
	stopping chan struct{} // closed with stopped
	wg       sync.WaitGroup

	parts atomic.Uint64 // the last number given to a request sent in parts

	keepLock chan struct{} // one place: held while keep is looked at or made
	keep     *Conn

	control controlPool
}

// config is the same for every connection. The stdio of an exec that we started
// ourselves is the trust, so there is no key to check and nobody to authenticate;
// what SSH gives here is channels with flow control. One algorithm of each kind
// keeps the handshake short.
func config() *ssh.ClientConfig {
	return &ssh.ClientConfig{
		Config: ssh.Config{
			KeyExchanges: []string{ssh.KeyExchangeCurve25519},
			Ciphers:      []string{ssh.CipherAES128GCM},
		},
		User:              "root",
		HostKeyCallback:   ssh.InsecureIgnoreHostKey(),
		HostKeyAlgorithms: []string{ssh.KeyAlgoED25519},
		ClientVersion:     "SSH-2.0-sandbox",
	}
}

// Dial speaks to the guest over rw, the standard input and output of `guest serve`.
// It owns rw from here on and closes it on failure or when the connection ends, so
// rw.Close must unblock a Read and a Write. ctx bounds the handshake only.
func Dial(ctx context.Context, rw io.ReadWriteCloser) (*Conn, error) {
	if err := ctx.Err(); err != nil {
		rw.Close()
		return nil, fmt.Errorf("guest: connect: %w", context.Cause(ctx))
	}
	closed := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		rw.Close()
		close(closed)
	})
	st := &stream{ReadWriteCloser: rw}
	sc, chans, reqs, err := ssh.NewClientConn(st, "guest", config())
	if err == nil {
		st.carries(sc)
	}
	if !stop() {
		<-closed
		if err == nil {
			go ssh.DiscardRequests(reqs)
			sc.Close()
			sc.Wait()
		}
		return nil, fmt.Errorf("guest: connect: %w", context.Cause(ctx))
	}
	if err != nil {
		rw.Close()
		return nil, fmt.Errorf("guest: connect: %w", err)
	}
	return speak(sc, chans, reqs, rw), nil
}

func speak(sc ssh.Conn, chans <-chan ssh.NewChannel, reqs <-chan *ssh.Request, rw io.Closer) *Conn {
	c := &Conn{ssh: sc, rw: rw, done: make(chan struct{}), stopping: make(chan struct{}), keepLock: make(chan struct{}, 1)}
	c.wg.Add(3)
	go func() {
		defer c.wg.Done()
		ssh.DiscardRequests(reqs)
	}()
	go func() {
		defer c.wg.Done()
		for nc := range chans {
			nc.Reject(ssh.Prohibited, "the client serves nothing")
		}
	}()
	go func() {
		defer c.wg.Done()
		err := sc.Wait()
		rw.Close()
		if err == nil || errors.Is(err, io.EOF) {
			c.err = ErrConnectionLost
		} else {
			c.err = fmt.Errorf("%w: %w", ErrConnectionLost, err)
		}
		close(c.done)
	}()
	return c
}

// Close ends the connection. The guest kills the commands that run on it, detached
// ones excepted. It waits for the connection's goroutines, and may be called twice.
func (c *Conn) Close() error {
	c.mu.Lock()
	if !c.stopped {
		c.stopped = true
		close(c.stopping)
	}
	c.mu.Unlock()
	c.ssh.Close()
	c.rw.Close()
	<-c.done
	c.keepLock <- struct{}{}
	keep := c.keep
	c.keep = nil
	<-c.keepLock
	if keep != nil {
		keep.Close()
	}
	c.control.close()
	c.wg.Wait()
	return nil
}

// Done is closed when the connection is gone, for whatever reason.
func (c *Conn) Done() <-chan struct{} { return c.done }

// Err says why the connection is gone; it wraps ErrConnectionLost. It is nil until
// Done is closed.
func (c *Conn) Err() error {
	select {
	case <-c.done:
		return c.err
	default:
		return nil
	}
}

// spawn starts f as a goroutine that Close waits for, unless Close has begun.
func (c *Conn) spawn(f func()) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stopped {
		return false
	}
	c.wg.Add(1)
	go func() {
		defer c.wg.Done()
		f()
	}()
	return true
}

// OnSilence has fn called by whoever has waited for the guest's answer for a second, and
// then waits on. It is for before the connection is used.
func (c *Conn) OnSilence(fn func(context.Context)) { c.silent = fn }

// silence is how long a guest may take to answer before we wonder why.
const silence = time.Second

// wonder is for whoever has waited for so long.
func (c *Conn) wonder(ctx context.Context) {
	if c.silent != nil {
		c.silent(ctx)
	}
}

// open opens a channel of commands; a rejection is a *wire.StartError.
func (c *Conn) open(ctx context.Context, kind string, extra []byte) (ssh.Channel, <-chan *ssh.Request, error) {
	return c.openChannel(ctx, kind, extra, c.openError)
}

// openChannel opens a channel, sending extra in parts where it is too large for one
// packet. explain says what a failure means that is not the end of ctx.
func (c *Conn) openChannel(ctx context.Context, kind string, extra []byte, explain func(error) error) (ssh.Channel, <-chan *ssh.Request, error) {
	type result struct {
		ch   ssh.Channel
		reqs <-chan *ssh.Request
		err  error
	}
	if err := ctx.Err(); err != nil {
		return nil, nil, context.Cause(ctx)
	}
	if c.Err() != nil {
		return nil, nil, explain(c.Err())
	}
	opened, left := make(chan result), make(chan struct{})
	defer close(left)
	// Nobody waits for it, for it may never return: package ssh has been seen to forget
	// a channel that is opened while the connection ends. See stream.
	go func() {
		var r result
		extra, r.err = c.sendParts(extra)
		if r.err == nil {
			r.ch, r.reqs, r.err = c.ssh.OpenChannel(kind, extra)
		}
		select {
		case opened <- r:
		case <-left:
			if r.err == nil {
				// Closing it is what kills a command that did start.
				r.ch.Close()
				ssh.DiscardRequests(r.reqs)
			}
		}
	}()
	wonder := time.NewTimer(silence)
	defer wonder.Stop()
	done, forgotten := c.done, (<-chan time.Time)(nil)
	for {
		select {
		case r := <-opened:
			return r.ch, r.reqs, explain(r.err)
		case <-ctx.Done():
			return nil, nil, context.Cause(ctx)
		case <-done:
			// What the guest has answered before counts.
			done, forgotten = nil, time.After(time.Second)
		case <-forgotten:
			return nil, nil, explain(c.err)
		case <-wonder.C:
			c.wonder(ctx)
		}
	}
}

func (c *Conn) openError(err error) error {
	var refused *ssh.OpenChannelError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &refused):
		return decodeStartError(refused.Message)
	}
	var start *wire.StartError
	if errors.As(err, &start) {
		return err
	}
	return c.lost(err)
}

// lost describes an operation that the connection's end cut short.
func (c *Conn) lost(err error) error {
	if own := c.Err(); own != nil {
		return own
	}
	if err == nil || errors.Is(err, io.EOF) {
		return ErrConnectionLost
	}
	return fmt.Errorf("%w: %w", ErrConnectionLost, err)
}

// decodeStartError reads the message of a rejection. What is not a StartError comes
// from a guest that does not know the request, or from one gone bad: keep its text.
func decodeStartError(message string) *wire.StartError {
	e := new(wire.StartError)
	if err := json.Unmarshal([]byte(message), e); err != nil || e.Kind == "" {
		if len(message) > 1024 {
			message = message[:1024]
		}
		return &wire.StartError{Kind: wire.KindOther, Message: "the guest refused: " + message}
	}
	return e
}

func (c *Conn) sendParts(extra []byte) ([]byte, error) {
	if len(extra) <= wire.MaxPart {
		return extra, nil
	}
	ref := binary.BigEndian.AppendUint64(nil, c.parts.Add(1))
	for len(extra) > 0 {
		n := min(len(extra), wire.MaxPart)
		ok, _, err := c.ssh.SendRequest(wire.RequestPart, true, append(ref[:8:8], extra[:n]...))
		if err != nil {
			return nil, err
		}
		if !ok {
			return nil, &wire.StartError{Kind: wire.KindArguments, Message: "argument list too long"}
		}
		extra = extra[n:]
	}
	return append([]byte(wire.PartsPrefix), ref...), nil
}

// Exec starts a command and returns once it runs. A *wire.StartError says why it did
// not start. ctx bounds the start only; when it ends first, the command is killed if
// it started after all. Detached commands go through the keeper, on a connection
// that is made at the first need and shared.
func (c *Conn) Exec(ctx context.Context, req wire.Exec) (*Process, error) {
	if !fits(req) {
		return nil, &wire.StartError{Kind: wire.KindArguments, Message: "argument list too long"}
	}
	extra, err := json.Marshal(req)
	if err != nil {
		return nil, fmt.Errorf("guest: exec: %w", err)
	}
	via := c
	if req.Detached {
		if via, err = c.keeper(ctx); err != nil {
			return nil, err
		}
	}
	ch, reqs, err := via.open(ctx, wire.ChannelExec, extra)
	if err != nil {
		return nil, err
	}
	req.Env = nil
	return newProcess(ctx, via, ch, reqs, &req)
}

// fits says whether Linux could take the arguments and environment at all, whatever
// the limits inside: there is no need to send what it can't.
func fits(req wire.Exec) bool {
	const most = 6 << 20
	n := 0
	for _, list := range [...][]string{req.Args, req.Env} {
		for _, s := range list {
			n += len(s) + 1
		}
	}
	return n <= most
}

// Attach follows a detached command by its ID: all of its output that is kept, then
// what it goes on to write, then its exit. Any number may follow one command. An
// unknown ID is a *wire.StartError of kind KindUnknownProcess.
func (c *Conn) Attach(ctx context.Context, id string) (*Process, error) {
	extra, err := json.Marshal(wire.Attach{ID: id})
	if err != nil {
		return nil, fmt.Errorf("guest: attach: %w", err)
	}
	via, err := c.keeper(ctx)
	if err != nil {
		return nil, err
	}
	ch, reqs, err := via.open(ctx, wire.ChannelProcess, extra)
	if err != nil {
		return nil, err
	}
	return newProcess(ctx, via, ch, reqs, nil)
}

// keeper returns the connection to the keeper, inside a channel of this one.
func (c *Conn) keeper(ctx context.Context) (*Conn, error) {
	select {
	case c.keepLock <- struct{}{}:
		defer func() { <-c.keepLock }()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	case <-c.done:
		return nil, c.err
	}
	if c.keep != nil {
		if c.keep.Err() == nil {
			return c.keep, nil
		}
		c.keep.Close()
		c.keep = nil
	}
	ch, reqs, err := c.open(ctx, wire.ChannelKeep, nil)
	if err != nil {
		return nil, err
	}
	if !c.spawn(func() { ssh.DiscardRequests(reqs) }) {
		ch.Close()
		return nil, ErrConnectionLost
	}
	keep, err := Dial(ctx, ch)
	if err != nil {
		return nil, fmt.Errorf("keeper: %w", err)
	}
	// Close may have looked for a keeper while this one was being made.
	c.mu.Lock()
	stopped := c.stopped
	c.mu.Unlock()
	if stopped {
		keep.Close()
		return nil, ErrConnectionLost
	}
	keep.silent = c.silent
	c.keep = keep
	return keep, nil
}

// stream gives a ReadWriteCloser the rest of what package ssh asks of a connection.
//
// At the end of what is read package ssh first wakes everyone who waits for an answer,
// and only then refuses to send anything. A channel that is opened in between is
// forgotten: whoever opens it waits for good. So the stream has it refuse first.
type stream struct {
	io.ReadWriteCloser
	over    atomic.Bool
	carried atomic.Pointer[ssh.Conn]
}

// carries is called with the connection before anybody can open a channel of it.
func (s *stream) carries(conn ssh.Conn) {
	s.carried.Store(&conn)
	if s.over.Load() {
		s.refuse(conn)
	}
}

func (s *stream) Read(b []byte) (int, error) {
	n, err := s.ReadWriteCloser.Read(b)
	if err != nil {
		s.over.Store(true)
		if conn := s.carried.Load(); conn != nil {
			s.refuse(*conn)
		}
	}
	return n, err
}

// refuse returns when nothing more can be sent: package ssh knows that from the first
// packet on that could not be, of which itself it does not tell.
func (s *stream) refuse(conn ssh.Conn) {
	s.Close()
	told := make(chan struct{})
	go func() {
		defer close(told)
		conn.SendRequest("", false, nil)
	}()
	select {
	case <-told:
	case <-time.After(time.Second):
		// It waits for an exchange of keys, which waits for us and will fail.
	}
}

func (*stream) LocalAddr() net.Addr              { return addr{} }
func (*stream) RemoteAddr() net.Addr             { return addr{} }
func (*stream) SetDeadline(time.Time) error      { return nil }
func (*stream) SetReadDeadline(time.Time) error  { return nil }
func (*stream) SetWriteDeadline(time.Time) error { return nil }

type addr struct{}

func (addr) Network() string { return "stdio" }
func (addr) String() string  { return "guest" }
