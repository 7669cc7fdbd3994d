package engine

import (
	"context"
	"errors"
	"io"
	"net"
	"net/url"
	"sync"
)

// hijacked is a connection that has become the raw stream of a container's main process, or of
// an exec.
type hijacked struct {
	e      *Engine
	conn   net.Conn
	demux  *demux
	stderr tail

	once     sync.Once
	closeErr error
	closed   chan struct{}
}

func (h *hijacked) init(e *Engine, conn net.Conn, r io.Reader) {
	h.e, h.conn, h.closed = e, conn, make(chan struct{})
	h.demux = newDemux(r, &h.stderr)
}

// Read reads stdout, and keeps the end of stderr on the way. io.EOF means the end of the
// container or of the connection: the engine does not tell them apart.
func (h *hijacked) Read(p []byte) (int, error) {
	n, err := h.demux.Read(p)
	switch {
	case err == nil:
		return n, nil
	case h.isClosed():
		return n, net.ErrClosed
	case errors.Is(err, io.EOF):
		return n, err
	}
	return n, h.e.fail(context.Background(), err)
}

// Write writes to the standard input.
func (h *hijacked) Write(p []byte) (int, error) {
	n, err := h.conn.Write(p)
	if err != nil {
		if h.isClosed() {
			return n, net.ErrClosed
		}
		err = h.e.fail(context.Background(), err)
	}
	return n, err
}

// Close closes the stream. Its process is not killed: it gets the end of its standard input,
// and its output is discarded. Later calls do nothing.
func (h *hijacked) Close() error {
	h.once.Do(func() {
		close(h.closed)
		if err := h.conn.Close(); err != nil && !isBroken(err) {
			h.closeErr = err
		}
	})
	return h.closeErr
}

func (h *hijacked) isClosed() bool {
	select {
	case <-h.closed:
		return true
	default:
		return false
	}
}

// Stderr returns the end of stderr, at most 4 KiB, as far as Read has got.
func (h *hijacked) Stderr() string { return h.stderr.String() }

// Output is a container's output from now on, and its input.
type Output struct{ hijacked }

// Attach returns the output of a container without a TTY, and its input if stdin is true.
// Attach before the start to get all output. ctx bounds the call only; the caller closes the
// output.
func (e *Engine) Attach(ctx context.Context, id string, stdin bool) (*Output, error) {
	if err := checkName("container", id); err != nil {
		return nil, err
	}
	query := url.Values{"stream": {"1"}, "stdout": {"1"}, "stderr": {"1"}}
	if stdin {
		query.Set("stdin", "1")
	}
	conn, r, err := e.hijack(ctx, "/containers/"+id+"/attach", query, nil)
	if err != nil {
		return nil, e.fail(ctx, err)
	}
	o := &Output{}
	o.init(e, conn, r)
	return o, nil
}
