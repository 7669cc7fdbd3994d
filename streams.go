package sandbox

import (
	"cmp"
	"context"
	"errors"
	"io"
	"iter"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/seed-1a2d6d8f/sandbox/internal/bound"
	"github.com/seed-1a2d6d8f/sandbox/internal/guest"
	"github.com/seed-1a2d6d8f/sandbox/internal/guest/wire"
	"github.com/seed-1a2d6d8f/sandbox/internal/lifecycle"
	"github.com/seed-1a2d6d8f/sandbox/internal/trace"
)

// outputPipe is the reading end of [Cmd.StdoutPipe] or [Cmd.StderrPipe]. Closing it closes the
// stream inside, too.
type outputPipe struct {
	*io.PipeReader
	c      *Cmd
	stream int
	closed atomic.Bool
}

func (p *outputPipe) Read(b []byte) (int, error) {
	n, err := p.PipeReader.Read(b)
	if errors.Is(err, io.ErrClosedPipe) && p.closed.Load() {
		err = os.ErrClosed
	}
	return n, err
}

func (p *outputPipe) Close() error {
	if p.closed.Swap(true) {
		return os.ErrClosed
	}
	p.PipeReader.Close()
	if live := p.c.live.Load(); live != nil {
		p.c.closeOutput(live, p.stream)
	}
	return nil
}

// closeOutputTimeout bounds how long closing a pipe waits for the guest, which may be frozen.
const closeOutputTimeout = 2 * time.Second

// closeOutput closes a stream that nobody reads any more, so that the command's next write fails. A
// detached command goes on: others may read it.
func (c *Cmd) closeOutput(p *guest.Process, stream int) {
	if c.Detached {
		return
	}
	ctx, cancel := bound.Outlive(c.ctx, closeOutputTimeout)
	defer cancel()
	p.CloseOutput(ctx, stream) // an error means that the command is gone or frozen
}

// sink returns where an output stream goes.
func (c *Cmd) sink(to io.Writer, stream int) wire.Sink {
	switch {
	case c.Detached || c.TTY: // others may read it; a terminal has one stream
		return wire.SinkClient
	case to == nil:
		return wire.SinkNull
	}
	for _, p := range c.outs {
		if p.stream == stream && p.closed.Load() {
			return wire.SinkClosed
		}
	}
	return wire.SinkClient
}

// attach gives the pipes the command that has started. One that was closed meanwhile is closed
// inside.
func (c *Cmd) attach() {
	c.live.Store(c.proc)
	for _, p := range c.outs {
		if p.closed.Load() {
			c.closeOutput(c.proc, p.stream)
		}
	}
}

// receiver passes output to a writer of the caller until it is abandoned.
type receiver struct {
	to        io.Writer
	abandoned atomic.Bool
	writing   sync.Mutex // held during a Write
	writes    atomic.Int64
}

// errAbandoned is the error of output that the caller's writer no longer gets.
var errAbandoned = errors.New("nobody waits for the output any more")

func (r *receiver) Write(p []byte) (int, error) {
	r.writing.Lock()
	defer r.writing.Unlock()
	r.writes.Add(1)
	if r.abandoned.Load() {
		return 0, errAbandoned
	}
	return r.to.Write(p)
}

// stuckAfter is how long a Write of a caller may take when output is no longer waited for.
const stuckAfter = 100 * time.Millisecond

// stuck reports whether one Write has not returned for stuckAfter.
func (r *receiver) stuck() bool {
	before := r.writes.Load()
	ctx, cancel := context.WithTimeout(context.Background(), stuckAfter)
	defer cancel()
	return bound.Poll(ctx, stuckAfter/10, func() (returned bool, _ error) {
		if r.writing.TryLock() {
			r.writing.Unlock()
			return true, nil
		}
		return r.writes.Load() != before, nil
	}) != nil
}

func (c *Cmd) copyStreams() {
	if c.merged() && c.attached != nil && !c.attached.Started().Exec.Merge {
		c.copyOut(c.Stdout, c.combined(), wire.StreamStdout) // it was started with a stream for each
	} else {
		c.copyOut(c.Stdout, c.proc.Stdout(), wire.StreamStdout)
		stderr := c.Stderr
		if c.merged() {
			stderr = nil // it is in stdout
		}
		c.copyOut(stderr, c.proc.Stderr(), wire.StreamStderr)
	}
	if c.Stdin != nil {
		c.stdin = make(chan error, 1)
		go func() { c.stdin <- c.copyIn() }()
	}
}

// inputReader keeps the error of the caller's reader.
type inputReader struct {
	io.Reader
	err error
}

func (r *inputReader) Read(p []byte) (int, error) {
	n, err := r.Reader.Read(p)
	if err != nil && err != io.EOF {
		r.err = err
	}
	return n, err
}

// copyIn feeds the command and returns the error of Stdin. That the command does not read all of its
// input is no error.
func (c *Cmd) copyIn() error {
	in, from := c.proc.Stdin(), &inputReader{Reader: c.Stdin}
	n, err := io.Copy(in, from)
	c.in.Add(n)
	if e := in.Close(); err == nil {
		err = e
	}
	if errors.Is(err, guest.ErrConnectionLost) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrClosedPipe) {
		err = nil
	}
	c.closePipes()                            // for a write that comes before Wait
	if from.err != nil && len(c.pipes) == 0 { // a pipe of StdinPipe fails once Wait has closed it
		return from.err
	}
	return err
}

// closePipes makes writes to the pipes of Stdin fail, which nothing reads any more.
func (c *Cmd) closePipes() {
	for _, r := range c.pipes {
		r.CloseWithError(io.ErrClosedPipe)
	}
}

// combined returns both streams of the command in the order in which they arrive. The caller reads
// it to its end or closes it.
func (c *Cmd) combined() *io.PipeReader {
	r, w := io.Pipe()
	ended := make(chan error, 1)
	c.copies.Go(func() {
		_, err := io.Copy(w, c.proc.Stderr())
		ended <- err
	})
	c.copies.Go(func() {
		_, err := io.Copy(w, c.proc.Stdout())
		w.CloseWithError(errors.Join(err, <-ended))
	})
	return r
}

func (c *Cmd) copyOut(to io.Writer, from io.Reader, stream int) {
	if to == nil {
		c.copies.Go(func() { c.discard(from) })
		return
	}
	r := &receiver{to: to}
	c.receivers = append(c.receivers, r)
	c.copies.Go(func() {
		n, err := io.Copy(r, from)
		c.out.Add(n)
		if errors.Is(err, errAbandoned) {
			return
		}
		if errors.Is(err, guest.ErrConnectionLost) {
			c.cut.Store(true)
			err = nil // Wait returns it
		}
		stopped := err != nil
		if p, ok := to.(*io.PipeWriter); ok {
			p.CloseWithError(err) // nil makes the reader return io.EOF
			if errors.Is(err, io.ErrClosedPipe) || errors.Is(err, os.ErrClosed) {
				err = nil // the reader closed the pipe
			}
		}
		if err != nil {
			c.copyMu.Lock()
			c.copyErr = errors.Join(c.copyErr, err)
			c.copyMu.Unlock()
		}
		if !stopped {
			return
		}
		if _, bounded := to.(*boundedOutput); bounded {
			c.release() // it would go on for ever, perhaps
			if p, ok := from.(*io.PipeReader); ok {
				p.Close()
			}
			return
		}
		c.closeOutput(c.proc, stream)
		c.discard(from) // what is on its way, or all of a detached command's
	})
}

// discard reads output that nobody wants: the command must not block on it.
func (c *Cmd) discard(from io.Reader) {
	n, err := io.Copy(io.Discard, from)
	c.out.Add(n)
	if errors.Is(err, guest.ErrConnectionLost) {
		c.cut.Store(true)
	}
}

// waitDelay is [Cmd.WaitDelay] with its default; 0 is no limit.
func (c *Cmd) waitDelay() time.Duration {
	if c.WaitDelay == 0 {
		return DefaultWaitDelay
	}
	return max(c.WaitDelay, 0)
}

// transit is what output may take on its way here after the guest has cut it.
const transit = time.Second

// awaitOutput waits until the command has ended and its output is copied. The result is false if a
// writer of the caller does not return after a command that was killed, or that has a WaitDelay.
// Output that nobody reads from a pipe is dropped after the WaitDelay, as by os/exec.
func (c *Cmd) awaitOutput() (complete bool) {
	<-c.proc.Exited()
	copied := make(chan struct{})
	go func() {
		<-c.proc.Done()
		c.copies.Wait()
		close(copied)
	}()
	var limit, unread <-chan time.Time
	setLimit := func() { limit = cmp.Or(limit, time.After(cmp.Or(c.waitDelay(), DefaultWaitDelay)+transit)) }
	if status := c.proc.Status(); c.WaitDelay > 0 || status.TimedOut || status.Signal == int(syscall.SIGKILL) {
		setLimit()
	}
	if len(c.outs) > 0 && c.waitDelay() > 0 {
		unread = time.After(c.waitDelay())
	}
	killed, cancelled := c.killed, c.ctx.Done()
	for {
		select {
		case <-copied:
			return true
		case <-limit:
			if slices.ContainsFunc(c.receivers, (*receiver).stuck) {
				return false
			}
			limit = time.After(transit)
		case <-unread:
			for _, p := range c.outs {
				p.closed.Store(true)
				p.CloseWithError(os.ErrClosed)
			}
		case <-killed:
			killed = nil
			setLimit()
		case <-cancelled:
			cancelled = nil
			setLimit()
		}
	}
}

// ending returns how the command ended, when awaitOutput has returned so. Output that is not
// complete is cut: no Write begins any more.
func (c *Cmd) ending(complete bool) (exit wire.Exit, err error) {
	if complete {
		return c.proc.Wait()
	}
	for _, r := range c.receivers {
		r.abandoned.Store(true)
	}
	for _, r := range c.receivers {
		r.stuck() // wait for a Write that had begun
	}
	select {
	case <-c.proc.Done():
		exit, err = c.proc.Wait()
	default:
		exit = c.proc.Status()
		c.release()
	}
	exit.WaitDelay = true
	return exit, err
}

// abort closes the pipes of a command that did not start.
func (c *Cmd) abort(err error) error {
	for _, r := range c.pipes {
		r.CloseWithError(err)
	}
	for _, w := range []io.Writer{c.Stdout, c.Stderr} {
		if p, ok := w.(*io.PipeWriter); ok {
			p.CloseWithError(err)
		}
	}
	return c.fail(err)
}

// merged reports whether one writer receives both streams.
func (c *Cmd) merged() bool {
	defer func() { recover() }() // types that can't be compared panic: not the same writer
	return c.Stdout != nil && c.Stdout == c.Stderr
}

// The values of [LogLine.Stream].
const (
	Stdout = "stdout"
	Stderr = "stderr"
)

// LogOptions select the part of a log to read. The zero value selects all that is kept.
type LogOptions struct {
	// Tail is how many of the last lines to start with. 0 is all; negative is none, which
	// is useful with Follow. Without Command each started 16 KiB of a longer line counts as one line,
	// and so do 4 KiB of a detached command's and what it wrote of a line half a second before the rest:
	// then the first line can be the end of one.
	Tail int
	// Follow continues with new lines until the session ends.
	Follow bool
	// Since skips lines written earlier. Zero skips nothing.
	Since time.Time
	// Command selects the lines of one detached command by its ID ([Cmd.ID]), or those of the main
	// process by "", and Tail counts these alone. Nil selects all.
	Command *string
}

// LogLine is one line of a log.
type LogLine struct {
	// Stream is "stdout" or "stderr".
	Stream string `json:"stream"`
	// Time is when the line, or its first 16 KiB, reached the engine.
	Time time.Time `json:"time"`
	// Text is the line without its end. The engine may have replaced bytes that are not
	// UTF-8, and in lines of the main process characters across a multiple of 16 KiB. It
	// keeps back what the main process has written of a line until the line, 16 KiB of it, or
	// the session ends. What a detached command has written of a line comes after half a second, but with
	// Follow when the line or the command ends.
	Text string `json:"text"`
	// Command is the ID of the detached command that wrote the line (see [Cmd.ID]); empty
	// for the main process.
	Command string `json:"command,omitempty"`
}

// Logs reads the output of the main process ([WithCommand]) and of detached commands, of
// this session and earlier ones, oldest first; each stream of each process is in the
// order written. The engine keeps the last 30 MB. A stopped sandbox is not resumed. Lines
// longer than 16 MiB are split, and so are lines that are incomplete while all incomplete
// lines together have 32 MiB. If a detached command writes more than 4 MiB/s for long,
// lines may be missing, and the log says so. Programs inside write the log themselves, so
// do not trust its content.
//
// With [LogOptions.Follow], lines may be missing while a main process writes tens of
// megabytes at once: engines as old as 20.10 lose a follower's position when they rotate
// the log. Reading again returns all that is kept.
//
// The last value of the sequence has the error, if any. With Follow the sequence ends
// without an error when the session ends, and with [ErrEngineUnavailable] if the
// connection to the engine is lost: it is asked for an answer every 10 s, and has 10 s for
// it. ctx bounds the whole sequence. Leaving the loop releases all resources. Ranging over
// the sequence again reads again.
func (s *Sandbox) Logs(ctx context.Context, o LogOptions) iter.Seq2[LogLine, error] {
	return func(yield func(LogLine, error) bool) {
		var err error
		ctx, span := trace.Start(ctx, "sandbox.logs", s.h.Trace()...)
		defer span.End(&err) // also if yield panics
		err = s.h.Logs(ctx, lifecycle.LogOptions(o), func(l lifecycle.LogLine) bool { return yield(LogLine(l), nil) })
		if err != nil {
			yield(LogLine{}, fail("logs", s.Name(), err))
		}
	}
}
