package engine

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/docker/go-connections/sockets"
)

func quote(s string) string { return strconv.Quote(s) }

// bodyReader is a request's body. If it is an io.Closer it is closed once the engine has
// read it, or stopped reading.
type bodyReader = io.Reader

// roundTripper marks transport errors, updates the engine's clock, and notices Podman.
type roundTripper struct {
	base   *http.Transport
	clock  *clock
	podman *atomic.Bool
	queue  *atomic.Int64 // requests that wait for a connection; may be nil
}

// await makes a request, which counts in the queue while it waits for a connection.
func (t *roundTripper) await(req *http.Request) (*http.Response, error) {
	if t.queue == nil {
		return t.base.RoundTrip(req)
	}
	waits := false
	leave := func() {
		if waits {
			waits = false
			t.queue.Add(-1)
		}
	}
	defer leave()
	return t.base.RoundTrip(req.WithContext(httptrace.WithClientTrace(req.Context(), &httptrace.ClientTrace{
		GetConn: func(string) { waits = true; t.queue.Add(1) },
		GotConn: func(httptrace.GotConnInfo) { leave() },
	})))
}

func (t *roundTripper) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := t.await(req)
	if err != nil {
		return nil, &transportError{err: err}
	}
	t.clock.learn(resp.Header.Get("Date"), time.Now())
	if strings.HasPrefix(resp.Header.Get("Server"), "Libpod/") {
		t.podman.Store(true)
		describeDangling(req, resp)
	}
	return resp, nil
}

// A call on a connection that has died fails within 30 s, although the HTTP transport repeats a
// GET on a new connection. These bounds are of TCP, sshTarget.argv has those of ssh.
const (
	deadAfter      = 20 * time.Second // without a sign of life
	connectTimeout = 8 * time.Second
)

var errNoPipes = errors.New("named pipes exist on Windows only")

// dialer returns a function that makes connections to ep, without TLS or ssh.
func dialer(ep endpoint, timeout time.Duration) (func(context.Context) (net.Conn, error), error) {
	if ep.scheme == "npipe" {
		// go-connections implements named pipes, on Windows only.
		tr := new(http.Transport)
		if err := sockets.ConfigureTransport(tr, "npipe", ep.addr); err != nil {
			return nil, fmt.Errorf("%w: %w", errNoPipes, err)
		}
		return func(ctx context.Context) (net.Conn, error) {
			ctx, cancel := context.WithTimeout(ctx, timeout)
			defer cancel()
			return tr.DialContext(ctx, "", "")
		}, nil
	}
	network := "tcp"
	if ep.scheme == "unix" {
		network = "unix"
	}
	d := &net.Dialer{
		Timeout:         min(timeout, connectTimeout),
		KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: deadAfter / 2, Interval: deadAfter / 4, Count: 2},
		Control:         limitSilence,
	}
	return func(ctx context.Context) (net.Conn, error) {
		return d.DialContext(ctx, network, ep.addr)
	}, nil
}

// An aheadConn is a connection that is being made. The caller takes it, or it is closed.
type aheadConn struct {
	done chan struct{} // closed when conn and err are set
	conn net.Conn
	err  error
}

// dialAhead begins to connect as dialRaw does.
func (e *Engine) dialAhead(ctx context.Context) *aheadConn {
	a := &aheadConn{done: make(chan struct{})}
	go func() {
		defer close(a.done)
		a.conn, a.err = e.dialRaw(ctx)
	}()
	return a
}

func (a *aheadConn) take() (net.Conn, error) {
	<-a.done
	conn := a.conn
	a.conn = nil
	return conn, a.err
}

// close closes the connection unless it was taken.
func (a *aheadConn) close() {
	<-a.done
	if a.conn != nil {
		_ = a.conn.Close()
	}
}

// dialRaw connects as the HTTP transport would, TLS included.
func (e *Engine) dialRaw(ctx context.Context) (net.Conn, error) {
	conn, err := e.dial(ctx)
	if err != nil {
		return nil, &transportError{err: err}
	}
	cfg := e.clientTLS()
	if cfg == nil {
		return conn, nil
	}
	tc := tls.Client(conn, cfg)
	if err := tc.HandshakeContext(ctx); err != nil {
		_ = conn.Close()
		return nil, &transportError{err: err}
	}
	return tc, nil
}
