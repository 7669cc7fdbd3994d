package eino

import (
	"context"
	"io"
	"sync"
	"time"

	"github.com/cloudwego/eino/adk/filesystem"
	"github.com/cloudwego/eino/schema"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/sandboxtools"
)

// Shell is a [Backend] with a shell: a [filesystem.ShellBackend]. The working directory, variables and
// functions stay for the next command; one command runs at a time.
type Shell struct{ *Backend }

// StreamingShell is a [Shell] whose output arrives as it is written: a [filesystem.StreamingShellBackend].
type StreamingShell struct{ *Backend }

var (
	_ filesystem.ShellBackend          = Shell{}
	_ filesystem.StreamingShellBackend = StreamingShell{}
)

// NewShell returns a backend with a shell.
func NewShell(sb *sandbox.Sandbox, o Options) Shell { return Shell{NewBackend(sb, o)} }

// NewStreamingShell returns a backend with a shell whose output is streamed.
func NewStreamingShell(sb *sandbox.Sandbox, o Options) StreamingShell {
	return StreamingShell{NewBackend(sb, o)}
}

const timedOut = "\n[timed out: the command was killed]"

// Execute runs a command. Its output is stdout and stderr, in the order written, and without the middle
// if it is longer than Options.Output. A command that takes too long is killed and has exit code 137.
func (s Shell) Execute(ctx context.Context, in *filesystem.ExecuteRequest) (*filesystem.ExecuteResponse, error) {
	c, err := s.run(ctx, in)
	if err != nil {
		return nil, err
	}
	out := &filesystem.ExecuteResponse{Output: c.Output, ExitCode: c.ExitCode, Truncated: c.OmittedBytes > 0}
	if c.Status == sandboxtools.TimedOut {
		out.Output += timedOut
	}
	return out, nil
}

func (b *Backend) run(ctx context.Context, in *filesystem.ExecuteRequest) (*sandboxtools.Command, error) {
	r, err := b.call(ctx, "bash", map[string]any{"command": in.Command})
	switch {
	case err != nil:
		return nil, err
	case r.Command.Status == sandboxtools.SessionLost:
		return nil, lost(r.Command)
	}
	return r.Command, nil
}

// ExecuteStreaming runs a command like [Shell.Execute]. The stream has its output, without the end if it
// is longer than Options.Output, and at last the exit code, or the error. Closing the stream ends the
// command, within a second.
func (s StreamingShell) ExecuteStreaming(ctx context.Context, in *filesystem.ExecuteRequest) (*schema.StreamReader[*filesystem.ExecuteResponse], error) {
	ctx, cancel := context.WithCancel(ctx)
	out := &queue{free: s.o.Output, more: make(chan struct{}, 1)}
	last := &filesystem.ExecuteResponse{}
	go func() {
		c, err := s.run(context.WithValue(ctx, queueKey{}, out), in)
		if err == nil {
			last.ExitCode = c.ExitCode
			if c.Status == sandboxtools.TimedOut {
				last.Output = timedOut
			}
		}
		out.close(err)
	}()
	sr, sw := schema.Pipe[*filesystem.ExecuteResponse](1)
	go func() {
		defer sw.Close()
		defer cancel()
		for {
			text, truncated, err := out.next()
			switch {
			case err == nil:
				if sw.Send(&filesystem.ExecuteResponse{Output: text}, nil) {
					return
				}
			case err == io.EOF:
				last.Truncated = truncated
				sw.Send(last, nil)
				return
			default:
				sw.Send(nil, err)
				return
			}
		}
	}()
	return sr, nil
}

type queueKey struct{}

// report passes output on to the queue of its call.
func report(ctx context.Context, output []byte) {
	if q, ok := ctx.Value(queueKey{}).(*queue); ok {
		q.write(output)
	}
}

// queue is output between the command, which it does not hold up, and the reader.
type queue struct {
	more chan struct{} // has an element if there may be something new

	mu        sync.Mutex
	text      []byte
	free      int // bytes
	truncated bool
	end       error // of the output
}

func (q *queue) write(p []byte) {
	q.mu.Lock()
	defer q.mu.Unlock()
	n := min(len(p), q.free)
	q.text, q.free, q.truncated = append(q.text, p[:n]...), q.free-n, q.truncated || n < len(p)
	q.signal()
}

func (q *queue) close(err error) {
	if err == nil {
		err = io.EOF
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.end = err
	q.signal()
}

func (q *queue) signal() {
	select {
	case q.more <- struct{}{}:
	default:
	}
}

// alive is how often a stream without output gets an empty chunk: only so does the command learn that
// the stream was closed.
const alive = time.Second

// next waits for output, for its end, or a short time.
func (q *queue) next() (text string, truncated bool, err error) {
	select {
	case <-q.more:
	case <-time.After(alive):
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	text, q.text = string(q.text), nil
	if text != "" {
		q.signal() // the end may be next
		return text, false, nil
	}
	return "", q.truncated, q.end
}
