package engine

import (
	"context"
	"errors"
	"io"
	"net"
	"net/url"
	"sync"
)

// Output is what a container writes from now on, and a way to its input.
type Output struct {
	e      *Engine
	conn   net.Conn
	demux  *Demux
	stderr tail
	close  func() error
}

// Attach returns the output of a container without a TTY, and its input if stdin is
// true. Attached to before it is started, it misses nothing. ctx bounds the call only;
// the caller closes the output.
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

// Read reads stdout, and collects the end of stderr as it meets it. io.EOF is the
// container's end, or that of the connection to the engine: they look the same.
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

// Stderr is the end of what came on stderr, as far as Read has come.
func (o *Output) Stderr() string { return o.stderr.String() }

// Close lets go of the output. The container goes on. It may be called often.
func (o *Output) Close() error { return o.close() }
