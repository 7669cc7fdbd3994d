package guest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"

	"golang.org/x/crypto/ssh"

	"github.com/seed-1a2d6d8f/sandbox/internal/guest/wire"
)

// Process is a command that started, or a follower of a detached one. Its methods
// may be called from any number of goroutines; each stream has one reader or writer.
//
// Output is not buffered beyond a window that stdout and stderr share (2 MiB): a
// stream that nobody reads stops the other one and, in the end, the command. Read
// both, or Close.
type Process struct {
	conn    *Conn
	ch      ssh.Channel
	started wire.Started
	exec    *wire.Exec // the request, when this side made it

	ready   chan struct{} // closed when started is set, or ended
	ended   chan struct{} // closed when exit or err is set
	exit    wire.Exit
	err     error
	closing sync.Once
	noInput sync.Once
}

// newProcess waits for the guest's first word, which comes with the acceptance.
func newProcess(ctx context.Context, conn *Conn, ch ssh.Channel, reqs <-chan *ssh.Request, exec *wire.Exec) (*Process, error) {
	p := &Process{conn: conn, ch: ch, exec: exec, ready: make(chan struct{}), ended: make(chan struct{})}
	if !conn.spawn(func() { p.listen(reqs) }) {
		ch.Close()
		return nil, ErrConnectionLost
	}
	select {
	case <-p.ready:
	case <-ctx.Done():
		p.Close()
		return nil, context.Cause(ctx)
	}
	if p.started.Pid == 0 {
		p.Close()
		return nil, p.err
	}
	return p, nil
}

// listen takes the guest's requests until the channel ends. Exit ends the process
// for Wait; the channel's own end follows it.
func (p *Process) listen(reqs <-chan *ssh.Request) {
	var in inbox
	ready, ended := p.ready, p.ended
	for r := range reqs {
		if r.WantReply {
			r.Reply(false, nil)
		}
		if ended == nil {
			continue
		}
		msg, err := in.take(r.Type, r.Payload)
		if err != nil {
			p.err = err
			close(ended)
			ended = nil
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
		case *wire.Exit:
			if ready == nil {
				p.exit = *msg
				close(ended)
				ended = nil
			}
		}
	}
	if ended != nil {
		p.err = p.conn.lost(nil)
		close(ended)
	}
	if ready != nil {
		close(ready)
	}
}

// inbox decodes the guest's requests on one channel. The guest is inside the
// sandbox, so nothing it says is taken on trust.
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
			return nil, fmt.Errorf("%w: the guest's start message makes no sense", ErrConnectionLost)
		}
		return started, nil
	case wire.RequestExit:
		exit := new(wire.Exit)
		if err := json.Unmarshal(payload, exit); err != nil || exit.Code < 0 || exit.Code > 255 {
			return nil, fmt.Errorf("%w: the guest's exit message makes no sense", ErrConnectionLost)
		}
		return exit, nil
	}
	return nil, nil
}

// Started tells what runs: the request, without its environment, and its PID inside
// the sandbox.
func (p *Process) Started() wire.Started { return p.started }

// Stdin is the command's input; closing it is the command's end of file and leaves
// its output open. A write fails with io.ErrClosedPipe once the command has ended.
// Without Exec.Stdin nothing reads it. For a detached command only the process that
// started it feeds it.
func (p *Process) Stdin() io.WriteCloser { return (*stdin)(p) }

type stdin Process

func (s *stdin) Write(b []byte) (int, error) {
	n, err := s.ch.Write(b)
	if err == io.EOF {
		err = io.ErrClosedPipe
	}
	return n, err
}

func (s *stdin) Close() (err error) {
	s.noInput.Do(func() {
		if err = s.ch.CloseWrite(); err == io.EOF {
			err = nil // the command has ended
		}
	})
	return err
}

// Stdout is the command's output. Its end is io.EOF only after the command's own
// end is known; a connection that goes away is ErrConnectionLost.
func (p *Process) Stdout() io.Reader { return &output{p, p.ch} }

// Stderr is as Stdout. It is empty on a terminal.
func (p *Process) Stderr() io.Reader { return &output{p, p.ch.Stderr()} }

type output struct {
	p *Process
	r io.Reader
}

func (o *output) Read(b []byte) (int, error) {
	n, err := o.r.Read(b)
	if err == io.EOF {
		<-o.p.ended
		if o.p.err != nil {
			err = o.p.err
		}
	}
	return n, err
}

// Signal sends signal n, in Linux numbering, to the command's process group or,
// with tree, to every process that descends from it. It returns os.ErrProcessDone
// when nothing is left to signal.
func (p *Process) Signal(n int, tree bool) error {
	payload, err := json.Marshal(wire.Signal{Number: n, Tree: tree})
	if err != nil {
		return err
	}
	ok, err := p.ch.SendRequest(wire.RequestSignal, true, payload)
	switch {
	case err == nil && ok:
		return nil
	case err == nil || errors.Is(err, io.EOF):
		if lost := p.conn.Err(); lost != nil {
			return lost
		}
		return os.ErrProcessDone
	}
	return p.conn.lost(err)
}

// Resize changes the size of the command's terminal; without one it does nothing.
func (p *Process) Resize(size wire.Size) error {
	payload, err := json.Marshal(size)
	if err != nil {
		return err
	}
	if _, err := p.ch.SendRequest(wire.RequestResize, false, payload); err != nil && !errors.Is(err, io.EOF) {
		return p.conn.lost(err)
	}
	return nil
}

// Wait returns how the command ended. It does not wait for the streams to be read.
// When the connection or the guest's side of the command went away first, the error
// wraps ErrConnectionLost.
func (p *Process) Wait() (wire.Exit, error) {
	<-p.ended
	return p.exit, p.err
}

// Done is closed when Wait will not block.
func (p *Process) Done() <-chan struct{} { return p.ended }

// Close lets go of the command: the guest kills it and all that descends from it,
// unless it is detached or has ended. It does not wait for that. It may be called
// more than once, and need not be after Wait has returned without an error.
func (p *Process) Close() error {
	p.closing.Do(func() { p.ch.Close() })
	return nil
}
