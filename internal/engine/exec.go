package engine

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"sync"
	"time"

	"github.com/docker/docker/api/types/container"
)

// ExecSpec is a command to run in a running container.
type ExecSpec struct {
	Argv  []string // not interpreted by a shell
	User  string   // empty means the container's
	Dir   string   // empty means the container's
	Stdin bool     // whether the command gets a stdin

	// Check is called before the command is started, on engines where a pause must not meet a
	// start (see pause.go). It returns an error if the container is about to be paused.
	Check func(context.Context) error
}

// Stream is a running exec: reading it reads the command's stdout, writing it
// writes its stdin. One goroutine may read while another writes.
type Stream struct {
	hijacked
	id string

	mu   sync.Mutex
	exit *int
}

// Exec starts a command without a TTY. ctx bounds the start only; the stream lasts until it
// is closed or the command ends. A container that does not run is [ErrConflict]. A missing
// program is no error: the command ends with exit code 126 or 127, and its output is the
// engine's message.
func (e *Engine) Exec(ctx context.Context, containerID string, s ExecSpec) (*Stream, error) {
	if err := checkName("container", containerID); err != nil {
		return nil, err
	}
	if len(s.Argv) == 0 {
		return nil, invalid("exec: no command")
	}
	// The connection is made meanwhile: on a slow link that takes as long.
	dialed := e.dialAhead(ctx)
	defer dialed.close()
	r, err := e.cli.ContainerExecCreate(ctx, containerID, container.ExecOptions{
		Cmd: s.Argv, User: s.User, WorkingDir: s.Dir,
		AttachStdin: s.Stdin, AttachStdout: true, AttachStderr: true,
	})
	if err != nil {
		return nil, e.fail(ctx, err)
	}
	if err := checkName("exec", r.ID); err != nil {
		return nil, unavailable(e.Host(), err)
	}
	if s.Check != nil {
		locks, err := e.PauseLocks(ctx)
		if err == nil && locks {
			err = s.Check(ctx)
		}
		if err != nil {
			return nil, err
		}
	}
	conn, br, err := e.hijackOn(ctx, dialed.take, "/exec/"+r.ID+"/start", nil, container.ExecStartOptions{})
	if err != nil {
		return nil, e.fail(ctx, err)
	}
	st := &Stream{id: r.ID}
	st.init(e, conn, br)
	return st, nil
}

// hijack makes a POST whose connection becomes a raw stream. The client's own method ignores
// ctx while it waits for the reply, and the reply's status.
func (e *Engine) hijack(ctx context.Context, path string, query url.Values, body any) (net.Conn, io.Reader, error) {
	return e.hijackOn(ctx, func() (net.Conn, error) { return e.dialRaw(ctx) }, path, query, body)
}

// hijackOn is hijack on the connection that dial returns.
func (e *Engine) hijackOn(ctx context.Context, dial func() (net.Conn, error), path string, query url.Values, body any) (_ net.Conn, _ io.Reader, err error) {
	// Without a body send nothing, not even "null": the engine does not read the body of an
	// attach, so it could become the beginning of the container's input.
	var b []byte
	if body != nil {
		if b, err = json.Marshal(body); err != nil {
			return nil, nil, err
		}
	}
	req, err := e.request(ctx, http.MethodPost, path, query, bytes.NewReader(b))
	if err != nil {
		return nil, nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Connection", "Upgrade")
	req.Header.Set("Upgrade", "tcp")
	conn, err := dial()
	if err != nil {
		return nil, nil, err
	}
	// Every transport supports Close to interrupt; not all support deadlines.
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer func() {
		if !stop() && err == nil {
			err = ctx.Err()
		}
		if err != nil {
			_ = conn.Close()
		}
	}()
	if err := req.Write(conn); err != nil {
		return nil, nil, &transportError{err: err}
	}
	br := bufio.NewReader(conn)
	resp, err := http.ReadResponse(br, req)
	if err != nil {
		return nil, nil, &transportError{err: err}
	}
	e.clock.learn(resp.Header.Get("Date"), time.Now())
	if err := checkStatus(resp); err != nil {
		return nil, nil, err
	}
	// Older engines stream too, but answer 200 instead of an upgrade.
	if resp.StatusCode != http.StatusSwitchingProtocols && resp.StatusCode != http.StatusOK {
		return nil, nil, &StatusError{Status: http.StatusNotImplemented, Message: "want a stream, got " + resp.Status}
	}
	if br.Buffered() == 0 {
		return conn, conn, nil
	}
	first, _ := br.Peek(br.Buffered())
	return conn, io.MultiReader(bytes.NewReader(bytes.Clone(first)), conn), nil
}

// Read reads stdout, and keeps the end of stderr on the way. It returns io.EOF only when the
// command has ended. If the connection ends while, according to the engine, the command still
// runs, the error is [ErrUnavailable], as for any broken connection; a command that closes
// stdout and stderr and runs on has the same effect.
func (s *Stream) Read(p []byte) (int, error) {
	n, err := s.hijacked.Read(p)
	if errors.Is(err, io.EOF) {
		err = s.ended()
	}
	return n, err
}

const (
	exitDelay   = 2 * time.Second // the engine may notice an exit after the output's end
	exitTimeout = 10 * time.Second
)

// ended returns io.EOF if, according to the engine, the command has ended.
func (s *Stream) ended() error {
	s.mu.Lock()
	known := s.exit != nil
	s.mu.Unlock()
	if known {
		return io.EOF
	}
	ctx, cancel := context.WithTimeout(context.Background(), exitTimeout)
	defer cancel()
	start := time.Now()
	for wait := 2 * time.Millisecond; ; wait *= 2 {
		_, err := s.ExitCode(ctx)
		switch {
		case err == nil, errors.Is(err, ErrNotFound):
			return io.EOF // not found: it was removed with its container
		case ctx.Err() != nil:
			return unavailable(s.e.Host(), &timeoutError{after: exitTimeout})
		case !errors.Is(err, errRunning):
			return err
		case time.Since(start) > exitDelay:
			return unavailable(s.e.Host(), fmt.Errorf("stream ended while its command runs: %w", io.ErrUnexpectedEOF))
		}
		select {
		case <-time.After(wait):
		case <-s.closed:
			return net.ErrClosed
		}
	}
}

// CloseWrite ends the command's stdin.
func (s *Stream) CloseWrite() error {
	if s.isClosed() {
		return net.ErrClosed
	}
	c, ok := s.conn.(interface{ CloseWrite() error })
	if !ok {
		return &classed{class: ErrUnsupported, text: "this transport cannot close stdin alone", err: errors.ErrUnsupported}
	}
	return s.e.fail(context.Background(), c.CloseWrite())
}

var errRunning = errors.New("the command is still running")

// ExitCode returns the exit code of an ended command; after Read has returned io.EOF it has
// ended. While it runs the error is [ErrConflict]. Engines report a command that is about to
// start as ended with 0.
func (s *Stream) ExitCode(ctx context.Context) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.exit != nil {
		return *s.exit, nil
	}
	r, err := s.e.cli.ContainerExecInspect(ctx, s.id)
	if err != nil {
		return 0, s.e.fail(ctx, err)
	}
	if r.Running {
		return 0, &classed{class: ErrConflict, text: errRunning.Error(), err: errRunning}
	}
	s.exit = &r.ExitCode
	return r.ExitCode, nil
}
