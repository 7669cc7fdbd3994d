package guest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/seed-1a2d6d8f/sandbox/internal/guest/wire"
)

// Process is a running command, or a follower of a detached one. Its methods may be called
// from any number of goroutines; each stream has one reader or writer.
//
// Output is buffered only in a window that stdout and stderr share (about 2 MiB): a stream that
// nobody reads blocks the other one and, in the end, the command. Read both, or Close.
type Process struct {
	conn    *Conn
	ch      ssh.Channel
	started wire.Started
	exec    *wire.Exec // the request, nil for Attach

	ready   chan struct{} // closed when started is set, or ended
	exited  chan struct{} // closed when status is set, or ended
	status  wire.Exit     // of the command itself, whose output may not have ended
	ended   chan struct{} // closed when exit or err is set
	exit    wire.Exit
	err     error
	ending  sync.Once
	over    chan struct{} // closed at the end of the channel
	gone    chan struct{} // closed when Close gave up on the guest
	closing sync.Once
	noInput sync.Once
	exiting sync.Once

	stdout, stderr output
	input          []byte // the copy of Write's argument that is being sent
}

// closeTimeout bounds the wait for a guest, which may be frozen, to answer Close.
const closeTimeout = 2 * time.Second

// end sets the result of Wait, once.
func (p *Process) end(exit wire.Exit, err error) {
	p.ending.Do(func() {
		p.exit, p.err = exit, err
		close(p.ended)
	})
	p.exiting.Do(func() {
		p.status = exit
		close(p.exited)
	})
}

// with calls f, which may block on the guest, and returns false if Close gave up on the
// guest: f may then still run, so the caller must not touch what f uses.
func (p *Process) with(f func()) bool {
	select {
	case <-p.gone:
		return false
	default:
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	select {
	case <-done:
		return true
	case <-p.gone:
		return false
	}
}

// newProcess waits for the guest's first message, that the command has started.
func newProcess(ctx context.Context, conn *Conn, ch ssh.Channel, reqs <-chan *ssh.Request, exec *wire.Exec) (*Process, error) {
	p := &Process{conn: conn, ch: ch, exec: exec, ready: make(chan struct{}), exited: make(chan struct{}), ended: make(chan struct{}), over: make(chan struct{}), gone: make(chan struct{})}
	p.stdout, p.stderr = output{p: p, r: ch}, output{p: p, r: ch.Stderr()}
	listen := func() { p.listen(reqs) }
	if exec == nil || !exec.ServesFiles() { // nobody waits for a file server that does nothing
		listen = func() { conn.usage.while(func() { p.listen(reqs) }) }
	}
	if !conn.spawn(listen) {
		conn.discard(reqs)
		ch.Close()
		return nil, ErrConnectionLost
	}
	slow := time.NewTimer(slowAnswer)
	defer slow.Stop()
	for {
		select {
		case <-p.ready:
			if p.started.Pid == 0 {
				p.Close()
				_, err := p.Wait()
				return nil, err
			}
			return p, nil
		case <-ctx.Done():
			p.Close()
			return nil, context.Cause(ctx)
		case <-slow.C:
			conn.reportSlow()
		}
	}
}

// listen handles the guest's requests until the channel ends. wire.Exit sets the result of
// Wait; the end of the channel follows it.
func (p *Process) listen(reqs <-chan *ssh.Request) {
	defer close(p.over)
	var in inbox
	ready, ended := p.ready, false
	for r := range reqs {
		if r.WantReply {
			r.Reply(false, nil)
		}
		if ended {
			continue
		}
		msg, err := in.take(r.Type, r.Payload)
		if err != nil {
			ended = true
			p.end(wire.Exit{}, err)
			if ready != nil {
				close(ready)
				ready = nil
			}
			p.Close()
			continue
		}
		switch msg := msg.(type) {
		case *wire.Started:
			if ready != nil {
				p.started = *msg
				if p.exec != nil {
					id := msg.Exec.ID
					p.started.Exec = *p.exec
					p.started.Exec.ID = id
				}
				close(ready)
				ready = nil
			}
		case *exited:
			if ready == nil {
				p.exiting.Do(func() {
					p.status = wire.Exit(*msg)
					close(p.exited)
				})
			}
		case *wire.Exit:
			if ready == nil {
				ended = true
				p.end(*msg, nil)
			}
		}
	}
	if !ended {
		p.end(wire.Exit{}, p.conn.lost(nil))
	}
	if ready != nil {
		close(ready)
	}
}

// maxSignal is the highest signal of Linux.
const maxSignal = 64

// exited is the message of wire.RequestExited.
type exited wire.Exit

// inbox decodes the guest's requests on one channel, and validates them: the guest may be
// hostile.
type inbox struct{ parts []byte }

func (in *inbox) take(kind string, payload []byte) (any, error) {
	switch kind {
	case wire.RequestPart:
		if len(in.parts)+len(payload) > wire.MaxParts {
			return nil, fmt.Errorf("%w: the guest's message is too long", ErrConnectionLost)
		}
		in.parts = append(in.parts, payload...)
		return nil, nil
	case wire.RequestStarted:
		if in.parts != nil {
			payload = append(in.parts, payload...)
			in.parts = nil
		}
		started := new(wire.Started)
		if err := json.Unmarshal(payload, started); err != nil || started.Pid <= 0 {
			return nil, fmt.Errorf("%w: malformed start message", ErrConnectionLost)
		}
		return started, nil
	case wire.RequestExit, wire.RequestExited:
		exit := new(wire.Exit)
		err := json.Unmarshal(payload, exit)
		if err != nil || exit.Code < 0 || exit.Code > 255 || exit.Signal < 0 || exit.Signal > maxSignal || exit.Dropped < 0 {
			return nil, fmt.Errorf("%w: malformed exit message", ErrConnectionLost)
		}
		if kind == wire.RequestExited {
			return (*exited)(exit), nil
		}
		return exit, nil
	}
	return nil, nil
}

// Started returns the request, without its environment, and the PID inside the sandbox.
func (p *Process) Started() wire.Started { return p.started }

// Stdin is the command's input. Closing it is the command's end of file and leaves its
// output open. A write fails with io.ErrClosedPipe once the command has ended. Without
// Exec.Stdin nothing reads it. A detached command reads input only from the Process that
// started it.
func (p *Process) Stdin() io.WriteCloser { return (*stdin)(p) }

type stdin Process

// inputPart is the most input, in bytes, that one write sends.
const inputPart = 256 << 10

func (s *stdin) Write(b []byte) (n int, err error) {
	p := (*Process)(s)
	for n < len(b) && err == nil {
		part := b[n:min(len(b), n+inputPart)]
		// Send a copy: the write may outlast this call, and the caller owns b after it.
		p.input = append(p.input[:0], part...)
		input := p.input
		var written int
		var failed error
		if !p.with(func() {
			for packet := range slices.Chunk(input, wire.PacketData) {
				var n int
				n, failed = p.ch.Write(packet)
				if written += n; failed != nil {
					return
				}
			}
		}) {
			p.input = nil // it may still be sent
			return n, io.ErrClosedPipe
		}
		n, err = n+written, failed
	}
	if err == io.EOF {
		err = io.ErrClosedPipe
	}
	return n, err
}

func (s *stdin) Close() error {
	p := (*Process)(s)
	var err error
	p.noInput.Do(func() {
		var closed error
		if p.with(func() { closed = p.ch.CloseWrite() }) && closed != io.EOF {
			err = closed // else the command has ended
		}
	})
	return err
}

// Stdout is the command's output. It returns io.EOF only once the command has ended, and
// ErrConnectionLost if the connection ended first.
func (p *Process) Stdout() io.Reader { return &p.stdout }

// Stderr is like Stdout. On a terminal it is empty.
func (p *Process) Stderr() io.Reader { return &p.stderr }

type output struct {
	p         *Process
	r         io.Reader
	buf, rest []byte // what was read last, and the part of it not returned yet
	full      bool   // it filled buf
	err       error  // to return after rest
}

func (o *output) Read(b []byte) (int, error) {
	if len(o.rest) == 0 && o.err == nil {
		o.fill()
	}
	n := copy(b, o.rest)
	o.rest = o.rest[n:]
	if n > 0 || len(o.rest) > 0 || o.err == nil {
		return n, nil
	}
	if o.err == io.EOF {
		if _, err := o.p.Wait(); err != nil {
			return 0, err
		}
	}
	return 0, o.err
}

// WriteTo is for io.Copy, which then needs no buffer of its own.
func (o *output) WriteTo(w io.Writer) (sum int64, err error) {
	for {
		for len(o.rest) == 0 && o.err == nil {
			o.fill()
		}
		if len(o.rest) == 0 {
			if _, err = o.Read(nil); err == io.EOF {
				err = nil
			}
			return sum, err
		}
		part := o.rest[:min(len(o.rest), outputPart)]
		n, err := w.Write(part)
		o.rest = o.rest[n:]
		if sum += int64(n); err == nil && n < len(part) {
			err = io.ErrShortWrite
		}
		if err != nil {
			return sum, err
		}
	}
}

// Output is read by packets, or by up to four of them if it comes faster than it is read.
const (
	outputPart = 32 << 10
	outputMost = 4 * outputPart
)

// fill reads one packet or several. One that was given up may still read into its buffer, and what it
// reads belongs to nobody.
func (o *output) fill() {
	switch {
	case o.buf == nil:
		o.buf = make([]byte, outputPart)
	case o.full && len(o.buf) < outputMost:
		o.buf = make([]byte, outputMost)
	}
	buf := o.buf
	var n int
	var err error
	if !o.p.with(func() { n, err = o.r.Read(buf) }) {
		o.buf, o.err = nil, ErrConnectionLost
		return
	}
	o.rest, o.err, o.full = buf[:n], err, n == len(buf)
}

// Signal sends signal n, in Linux numbering, to the command's process group or, with tree,
// to all of its descendants. It returns os.ErrProcessDone if there is no process left. ctx
// and Close bound the wait for the guest; the signal may be sent later. A goroutine waits on until
// the guest answers, or the command's channel or the connection ends: a guest that is frozen for
// good keeps it until then.
func (p *Process) Signal(ctx context.Context, n int, tree bool) error {
	ok, err := p.request(ctx, wire.RequestSignal, true, wire.Signal{Number: n, Tree: tree})
	switch {
	case errors.Is(err, io.EOF):
		// The channel ended with the command or with the connection.
		select {
		case <-p.ended:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		if p.err != nil {
			return p.err
		}
		return os.ErrProcessDone
	case err == nil && !ok:
		return os.ErrProcessDone
	}
	return err
}

// Resize changes the size of the command's terminal; without one it does nothing. ctx and
// Close bound the wait for the guest.
func (p *Process) Resize(ctx context.Context, size wire.Size) error {
	if _, err := p.request(ctx, wire.RequestResize, false, size); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	return nil
}

// request sends a request about the command. The error is io.EOF if the command's channel has
// ended.
func (p *Process) request(ctx context.Context, kind string, reply bool, body any) (bool, error) {
	payload, err := json.Marshal(body)
	if err != nil {
		return false, err
	}
	if ctx.Err() != nil {
		return false, context.Cause(ctx)
	}
	type answer struct {
		ok  bool
		err error
	}
	answers := make(chan answer, 1)
	go func() {
		ok, err := p.ch.SendRequest(kind, reply, payload)
		answers <- answer{ok, err}
	}()
	select {
	case a := <-answers:
		if a.err != nil && !errors.Is(a.err, io.EOF) {
			a.err = p.conn.lost(a.err)
		}
		return a.ok, a.err
	case <-p.gone:
		return false, ErrConnectionLost
	case <-ctx.Done():
		return false, context.Cause(ctx)
	}
}

// CloseOutput closes an output stream of the command, which this client must not read any more: a
// write to it fails from now on. It is for a command that is not detached. ctx and Close bound the
// wait for the guest.
func (p *Process) CloseOutput(ctx context.Context, stream int) error {
	_, err := p.request(ctx, wire.RequestClose, true, wire.Close{Stream: stream})
	return err
}

// Exited is closed when the command itself has ended, or Done is. Then Status returns how the
// command ended, which is of no use if Wait returns an error. A guest reports an end only if the
// output does not end soon after it, and an old guest never does.
func (p *Process) Exited() <-chan struct{} { return p.exited }

// Status returns how the command ended, once Exited is closed.
func (p *Process) Status() wire.Exit { return p.status }

// Wait waits for the command's exit, but not for its streams to be read. The error wraps
// ErrConnectionLost if the connection or the guest's side of the command ended first.
func (p *Process) Wait() (wire.Exit, error) {
	<-p.ended
	return p.exit, p.err
}

// Done is closed when Wait no longer blocks.
func (p *Process) Done() <-chan struct{} { return p.ended }

// Close releases the command: the guest kills it and its descendants, unless it is detached
// or has ended. Close does not wait for that. If the guest does not answer within
// closeTimeout, Wait, Read and Write return an error. Close may be called more than once. It
// is not needed after Wait has returned without an error.
func (p *Process) Close() error {
	p.closing.Do(func() {
		giveUp := time.AfterFunc(closeTimeout, func() {
			select {
			case <-p.over:
				return
			default:
			}
			close(p.gone)
			p.end(wire.Exit{}, ErrConnectionLost)
		})
		select {
		case <-p.over:
			giveUp.Stop()
		default:
			// It blocks while a frozen guest reads nothing.
			go p.ch.Close()
		}
	})
	return nil
}
