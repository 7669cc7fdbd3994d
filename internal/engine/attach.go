package engine

import (
	"context"
	"errors"
	"io"
	"net"
	"net/url"
	"sync"
)

// Output is a container's output from now on, and its input.
type Output struct {
	e      *Engine
	conn   net.Conn
	demux  *Demux
	stderr tail
	close  func() error
}

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
	o := &Output{e: e, conn: conn, close: sync.OnceValue(conn.Close)}
	o.demux = NewDemux(r, &o.stderr)
	return o, nil
}

// Read reads stdout, and keeps the end of stderr on the way. io.EOF means the end of the
// container or of the connection: the engine does not tell them apart.
func (o *Output) Read(p []byte) (int, error) {
	n, err := o.demux.Read(p)
	if err == nil || errors.Is(err, io.EOF) {
		return n, err
	}
	return n, o.e.fail(context.Background(), err)
}

// Write writes to the container's standard input.
func (o *Output) Write(p []byte) (int, error) {
	n, err := o.conn.Write(p)
	return n, o.e.fail(context.Background(), err)
}

// Stderr returns the end of stderr, at most 4 KiB, as far as Read has got.
func (o *Output) Stderr() string { return o.stderr.String() }

// Close closes the output; the container runs on. It may be called more than once.
func (o *Output) Close() error { return o.close() }
