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
	"syscall"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/seed-1a2d6d8f/sandbox/internal/errdefs"
	"github.com/seed-1a2d6d8f/sandbox/internal/guest/wire"
)

// ErrConnectionLost is the error of calls and streams when the connection to the guest, or
// the guest's side of one command, ended before them.
var ErrConnectionLost = errors.New("guest: connection lost")

// Conn is a connection to one `guest serve`. Its methods may be called from any
// number of goroutines.
type Conn struct {
	ssh ssh.Conn
	rw  io.Closer
	st  *stream

	slow    chan struct{} // see KeepAlive; nil without
	usage   *usage
	pinging atomic.Bool

	done    chan struct{} // closed once err is set
	err     error
	mu      sync.Mutex // orders the start of goroutines before Close waits for them
	why     error      // giveUp's
	wg      sync.WaitGroup
	closing context.Context // ends as Close begins, with mu held
	close   context.CancelFunc
	life    context.Context // ends then, or with the connection
	end     context.CancelFunc

	parts atomic.Uint64 // the last number given to a request sent in parts

	keepLock chan struct{} // a mutex for keep that a context can give up on
	keep     *Conn

	control controlPool
}

// Dial connects to the guest over rw, the standard input and output of `guest serve`. It
// takes ownership of rw and closes it on failure or when the connection ends, so rw.Close
// must unblock a Read and a Write. ctx bounds the handshake only.
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
	st := &stream{ReadWriteCloser: rw, began: time.Now()}
	sc, chans, reqs, err := wire.ClientConn(st)
	st.greeted.Store(err == nil)
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
		err = st.explain(err)
		rw.Close()
		return nil, fmt.Errorf("guest: connect: %w", err)
	}
	return newClient(sc, chans, reqs, rw, st), nil
}

func newClient(sc ssh.Conn, chans <-chan ssh.NewChannel, reqs <-chan *ssh.Request, rw io.Closer, st *stream) *Conn {
	c := &Conn{ssh: sc, rw: rw, st: st, usage: newUsage(), done: make(chan struct{}), keepLock: make(chan struct{}, 1)}
	c.closing, c.close = context.WithCancel(context.Background())
	c.life, c.end = context.WithCancel(c.closing)
	c.wg.Add(3)
	go func() {
		defer c.wg.Done()
		ssh.DiscardRequests(reqs)
	}()
	go func() {
		defer c.wg.Done()
		for nc := range chans {
			nc.Reject(ssh.Prohibited, "the client accepts no channels")
		}
	}()
	go func() {
		defer c.wg.Done()
		err := sc.Wait()
		rw.Close()
		c.mu.Lock()
		why := c.why
		c.mu.Unlock()
		switch {
		case why != nil:
			c.err = fmt.Errorf("%w: %w", ErrConnectionLost, why)
		case err == nil || errors.Is(err, io.EOF):
			c.err = ErrConnectionLost
		default:
			c.err = fmt.Errorf("%w: %w", ErrConnectionLost, err)
		}
		close(c.done)
		c.end()
	}()
	return c
}

// Close ends the connection. The guest kills the commands that run on it, except detached
// ones. Close waits for the connection's goroutines, and may be called more than once.
func (c *Conn) Close() error {
	c.mu.Lock()
	c.close()
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

// Transport returns what was given to [Dial].
func (c *Conn) Transport() io.Closer { return c.rw }

// Done is closed when the connection has ended, for whatever reason.
func (c *Conn) Done() <-chan struct{} { return c.done }

// Useless reports whether the connection has ended, or was given up and is about to: calls learn
// of that before Done is closed.
func (c *Conn) Useless() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.why != nil || c.Err() != nil
}

// Err returns why the connection ended; it wraps ErrConnectionLost. It is nil until Done is
// closed.
func (c *Conn) Err() error {
	select {
	case <-c.done:
		return c.err
	default:
		return nil
	}
}

// spawn starts f as a goroutine that Close waits for, unless Close has begun. It reports whether it did.
func (c *Conn) spawn(f func()) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closing.Err() != nil {
		return false
	}
	c.wg.Add(1)
	go func() {
		defer c.wg.Done()
		f()
	}()
	return true
}

// discard refuses the requests of a channel. The connection can't end while some are waiting, so Close comes after
// their end even if it has begun.
func (c *Conn) discard(reqs <-chan *ssh.Request) {
	if !c.spawn(func() { ssh.DiscardRequests(reqs) }) {
		go ssh.DiscardRequests(reqs)
	}
}

// open opens a channel for a command; a rejection is a *wire.StartError.
func (c *Conn) open(ctx context.Context, kind string, extra []byte) (ssh.Channel, <-chan *ssh.Request, error) {
	return c.openChannel(ctx, kind, extra, c.openError)
}

// openChannel opens a channel, and sends extra in parts if it is too large for one packet.
// explain translates errors other than the end of ctx.
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
	// Don't wait for it, it may never return: package ssh can forget a channel that is
	// opened while the connection ends.
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
				// A command may have started: closing the channel kills it.
				r.ch.Close()
				ssh.DiscardRequests(r.reqs)
			}
		}
	}()
	slow := time.NewTimer(slowAnswer)
	defer slow.Stop()
	done, forgotten := c.done, (<-chan time.Time)(nil)
	for {
		select {
		case r := <-opened:
			return r.ch, r.reqs, explain(r.err)
		case <-ctx.Done():
			return nil, nil, context.Cause(ctx)
		case <-done:
			// An answer may have arrived just before the end.
			done, forgotten = nil, time.After(time.Second)
		case <-forgotten:
			return nil, nil, explain(c.err)
		case <-slow.C:
			c.reportSlow()
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

// lost returns the error of an operation that the end of the connection interrupted.
func (c *Conn) lost(err error) error {
	if own := c.Err(); own != nil {
		return own
	}
	c.mu.Lock()
	why := c.why
	c.mu.Unlock()
	if why != nil {
		return fmt.Errorf("%w: %w", ErrConnectionLost, why)
	}
	if err == nil || errors.Is(err, io.EOF) {
		return ErrConnectionLost
	}
	return fmt.Errorf("%w: %w", ErrConnectionLost, err)
}

// decodeStartError reads the message of a rejection. Anything but a StartError is from a
// guest that does not know the request or is hostile: keep its text.
func decodeStartError(message string) *wire.StartError {
	e := new(wire.StartError)
	if err := json.Unmarshal([]byte(message), e); err != nil || e.Kind == "" {
		return &wire.StartError{Kind: wire.KindOther, Message: "the guest refused: " + said(message)}
	}
	e.Kind, e.Message = said(e.Kind), said(e.Message)
	return e
}

// maxSaid bounds a text of the guest in an error, in bytes.
const maxSaid = 1024

// said returns a text of the guest, which root inside can write, for an error.
func said(text string) string { return errdefs.Printable(errdefs.Cut(text, maxSaid)) }

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
			return nil, &wire.StartError{Kind: wire.KindArguments, Message: "argument list too long", TooBig: true}
		}
		extra = extra[n:]
	}
	return append([]byte(wire.PartsPrefix), ref...), nil
}

// Exec starts a command and returns once it runs. A *wire.StartError says why it did
// not start. ctx bounds the start only; when it ends first, a command that did start is
// killed, for which Exec waits a moment if it is detached. Detached commands go through the
// keeper, on a connection that the first one opens and all share.
func (c *Conn) Exec(ctx context.Context, req wire.Exec) (*Process, error) {
	if !fits(req) {
		return nil, &wire.StartError{Kind: wire.KindArguments, Message: "argument list too long", TooBig: true}
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
	req.Env = nil
	start := func(ctx context.Context) (*Process, error) {
		ch, reqs, err := via.open(ctx, wire.ChannelExec, extra)
		if err != nil {
			return nil, err
		}
		return newProcess(ctx, via, ch, reqs, &req)
	}
	if req.Detached {
		return c.startOrKill(ctx, start)
	}
	return start(ctx)
}

const (
	// revokeTimeout bounds how long a detached command whose start was given up is waited for, to kill it,
	// and revokeWait how long of that the caller waits, who may be about to close the connection.
	revokeTimeout = 10 * time.Second
	revokeWait    = 800 * time.Millisecond
)

// startOrKill starts a detached command, which the end of its channel does not kill. If ctx ends first, the command
// is killed as soon as it runs.
func (c *Conn) startOrKill(ctx context.Context, start func(context.Context) (*Process, error)) (*Process, error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	own, cancel := context.WithCancel(context.WithoutCancel(ctx))
	var p *Process
	var err error
	started, killed := make(chan struct{}), make(chan struct{})
	given := make(chan bool, 1)
	if !c.spawn(func() {
		defer close(killed)
		defer cancel()
		p, err = start(own)
		close(started)
		if <-given || err != nil {
			return
		}
		p.Signal(own, int(syscall.SIGKILL), true)
		p.Close()
	}) {
		cancel()
		return nil, ErrConnectionLost
	}
	select {
	case <-started:
		given <- true
		return p, err
	case <-ctx.Done():
	}
	given <- false
	time.AfterFunc(revokeTimeout, cancel)
	select {
	case <-killed:
	case <-time.After(revokeWait):
	}
	return nil, context.Cause(ctx)
}

// fits reports whether arguments and environment are within Linux's largest limit. The
// limits inside may be lower.
func fits(req wire.Exec) bool {
	const limit = 6 << 20
	n := 0
	for _, list := range [...][]string{req.Args, req.Env} {
		for _, s := range list {
			n += len(s) + 1
		}
	}
	return n <= limit
}

// Attach follows a detached command by its ID: the output kept so far, new output, then its
// exit. Any number of callers may follow one command. An unknown ID is a *wire.StartError of
// kind KindUnknownProcess.
func (c *Conn) Attach(ctx context.Context, id string) (*Process, error) {
	return c.attach(ctx, wire.Attach{ID: id})
}

// AttachQuietly is like Attach, but for signals alone, without the output and the exit. They reach
// what is left of a command that has ended, too. The caller closes the Process.
func (c *Conn) AttachQuietly(ctx context.Context, id string) (*Process, error) {
	return c.attach(ctx, wire.Attach{ID: id, Quiet: true})
}

func (c *Conn) attach(ctx context.Context, req wire.Attach) (*Process, error) {
	extra, err := json.Marshal(req)
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

// Processes lists the detached commands that the keeper knows of. The result is bounded, but its
// contents are the guest's.
func (c *Conn) Processes(ctx context.Context) ([]wire.Process, error) {
	via, err := c.keeper(ctx)
	if err != nil {
		return nil, err
	}
	ch, reqs, err := via.open(ctx, wire.ChannelProcesses, nil)
	if err != nil {
		return nil, err
	}
	defer c.spawn(func() { ch.Close() }) // it blocks while the guest reads nothing
	c.discard(reqs)
	type result struct {
		all []wire.Process
		err error
	}
	read := make(chan result, 1)
	if !c.spawn(func() {
		all, err := ReadProcesses(ch)
		read <- result{all, err}
	}) {
		return nil, ErrConnectionLost
	}
	select {
	case r := <-read:
		return r.all, r.err
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// ReadProcesses reads a list of processes that code in a sandbox may have written. It keeps at
// most wire.MaxProcesses, and cuts their texts.
func ReadProcesses(r io.Reader) ([]wire.Process, error) {
	text, err := io.ReadAll(io.LimitReader(r, wire.MaxProcessesSize+1))
	if err != nil {
		return nil, err
	}
	var all []wire.Process
	if len(text) > wire.MaxProcessesSize {
		return nil, fmt.Errorf("the list of processes has more than %d bytes", wire.MaxProcessesSize)
	} else if err := json.Unmarshal(text, &all); err != nil {
		return nil, fmt.Errorf("the list of processes: %w", err)
	}
	all = all[max(0, len(all)-wire.MaxProcesses):]
	for i := range all {
		p := &all[i]
		p.Args = p.Args[:min(len(p.Args), wire.MaxProcessArgs)]
		for j := range p.Args {
			p.Args[j] = errdefs.Cut(p.Args[j], wire.MaxProcessText)
		}
		for _, text := range []*string{&p.ID, &p.Sandbox, &p.Path, &p.Dir, &p.User} {
			*text = errdefs.Cut(*text, wire.MaxProcessText)
		}
	}
	return all, nil
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
	c.discard(reqs)
	keep, err := dialKeeper(ctx, ch)
	if err != nil {
		return nil, fmt.Errorf("keeper: %w", err)
	}
	// Close may have checked for a keeper while this one was connecting.
	c.mu.Lock()
	stopped := c.closing.Err() != nil
	c.mu.Unlock()
	if stopped {
		keep.Close()
		return nil, ErrConnectionLost
	}
	keep.slow, keep.usage = c.slow, c.usage
	c.keep = keep
	return keep, nil
}

// dialKeeper is Dial over a channel. Closing a channel unblocks nothing until the other side
// closes it too, so after the end of ctx a goroutine waits for that, or for the end of the
// connection that has the channel.
func dialKeeper(ctx context.Context, ch ssh.Channel) (*Conn, error) {
	type result struct {
		keep *Conn
		err  error
	}
	dialed := make(chan result, 1)
	go func() {
		keep, err := Dial(ctx, ch)
		dialed <- result{keep, err}
	}()
	select {
	case r := <-dialed:
		return r.keep, r.err
	case <-ctx.Done():
		go func() {
			if r := <-dialed; r.keep != nil {
				r.keep.Close()
			}
		}()
		return nil, fmt.Errorf("guest: connect: %w", context.Cause(ctx))
	}
}

// stream makes a ReadWriteCloser a net.Conn, as package ssh requires.
type stream struct {
	io.ReadWriteCloser
	greeted atomic.Bool
	greeting
	began time.Time
	heard atomic.Int64 // the time from began to the latest byte read
}

func (s *stream) Read(b []byte) (int, error) {
	n, err := s.ReadWriteCloser.Read(b)
	if !s.greeted.Load() {
		s.greeting.add(b[:n])
	}
	if n > 0 {
		s.heard.Store(int64(time.Since(s.began)))
	}
	return n, err
}

func (*stream) LocalAddr() net.Addr              { return addr{} }
func (*stream) RemoteAddr() net.Addr             { return addr{} }
func (*stream) SetDeadline(time.Time) error      { return nil }
func (*stream) SetReadDeadline(time.Time) error  { return nil }
func (*stream) SetWriteDeadline(time.Time) error { return nil }

type addr struct{}

func (addr) Network() string { return "stdio" }
func (addr) String() string  { return "guest" }
