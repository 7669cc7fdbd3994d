// Package engine is the one room that speaks the Docker Engine API. It turns
// the API's calls, quirks and errors into plain Go: no Docker type leaves it,
// every name is checked before a call is made, and every error says which of
// six classes it belongs to (see [ErrNotFound] and its neighbours).
//
// An [Engine] is safe for concurrent use. It holds no state of its own but
// idle connections.
package engine

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"net/url"
	"path"
	"sync/atomic"
	"time"

	"github.com/docker/docker/client"
)

const defaultOpenTimeout = 30 * time.Second

// Options say which engine [Open] connects to. The zero value means the one
// the docker command would use.
type Options struct {
	// Host is the engine's address: unix://, npipe://, tcp://, http://,
	// https:// or ssh://. Empty means DOCKER_HOST, then the current Docker
	// context, then the platform's default socket.
	Host string
	// DialTimeout bounds each new connection, and the first exchange with the
	// engine. Zero means 30 s.
	DialTimeout time.Duration
}

// Engine is a connection to one Docker Engine.
type Engine struct {
	cli   *client.Client
	tr    *http.Transport
	http  *http.Client
	dial  func(context.Context) (net.Conn, error)
	ep    endpoint
	clock *clock
	arch  atomic.Pointer[string]

	seccomp atomic.Pointer[seccompOptions]
}

// Open connects to the engine o names, and agrees on an API version with it.
// When no engine answers, the error matches [ErrUnavailable] and is an
// [*UnreachableError] that names every place tried and what to do. ctx bounds
// Open only.
func Open(ctx context.Context, o Options) (*Engine, error) {
	if o.DialTimeout <= 0 {
		o.DialTimeout = defaultOpenTimeout
	}
	places, err := places(o.Host)
	if err != nil {
		return nil, err
	}
	last := places[len(places)-1]
	if last.err != nil {
		return nil, unreachable(places)
	}
	e, err := newEngine(last.endpoint, o)
	if err != nil {
		places[len(places)-1].err = err
		return nil, unreachable(places)
	}
	pingCtx, cancel := context.WithTimeout(ctx, o.DialTimeout)
	defer cancel()
	if err := e.negotiate(pingCtx); err != nil {
		_ = e.Close()
		if ctxErr := done(ctx); ctxErr != nil {
			return nil, e.fail(ctx, ctxErr)
		}
		if done(pingCtx) != nil {
			err = &silentError{after: o.DialTimeout}
		}
		places[len(places)-1].err = e.fail(ctx, err)
		return nil, unreachable(places)
	}
	return e, nil
}

func newEngine(ep endpoint, o Options) (*Engine, error) {
	dial, err := dialer(ep, o.DialTimeout)
	if err != nil {
		return nil, err
	}
	e := &Engine{dial: dial, ep: ep, clock: new(clock)}
	e.tr = &http.Transport{
		DialContext:         func(ctx context.Context, _, _ string) (net.Conn, error) { return dial(ctx) },
		DisableCompression:  true,
		MaxIdleConns:        ep.idle(),
		MaxIdleConnsPerHost: ep.idle(),
		IdleConnTimeout:     30 * time.Second,
		TLSHandshakeTimeout: o.DialTimeout,
		TLSClientConfig:     ep.tls,
	}
	e.http = &http.Client{
		Transport:     &roundTripper{base: e.tr, clock: e.clock},
		CheckRedirect: client.CheckRedirect,
	}
	// WithHost configures a transport we throw away: it is WithHTTPClient
	// that decides how connections are made, and it copies nothing.
	e.cli, err = client.NewClientWithOpts(
		client.WithHost(ep.clientHost()),
		client.WithHTTPClient(&http.Client{Transport: e.http.Transport, CheckRedirect: client.CheckRedirect}),
		client.WithScheme(ep.httpScheme()),
		client.WithVersionFromEnv(),
	)
	if err != nil {
		return nil, err
	}
	return e, nil
}

func (e *Engine) negotiate(ctx context.Context) error {
	ping, err := e.cli.Ping(ctx)
	if err != nil {
		return err
	}
	if ping.APIVersion == "" {
		return errNotAnEngine
	}
	e.cli.NegotiateAPIVersionPing(ping)
	return nil
}

var errNotAnEngine = errors.New("something answers there, but it does not speak the Docker API")

// Close lets go of idle connections. Streams and calls under way keep theirs
// until they end.
func (e *Engine) Close() error {
	e.tr.CloseIdleConnections()
	return nil
}

// Ping asks whether the engine answers.
func (e *Engine) Ping(ctx context.Context) error {
	_, err := e.cli.Ping(ctx)
	return e.fail(ctx, err)
}

// Host is the engine's address, without credentials.
func (e *Engine) Host() string { return e.ep.display() }

// Location says where the engine is in a word: "local" behind a socket of
// this machine, else the host (and port) it was reached at.
func (e *Engine) Location() string { return e.ep.location() }

// APIVersion is the version of the API spoken with the engine, such as "1.41".
func (e *Engine) APIVersion() string { return e.cli.ClientVersion() }

// Now is the engine's clock, to within about two seconds: local time, moved
// by what the engine's own replies said when that is two seconds or more.
func (e *Engine) Now() time.Time { return e.clock.now() }

// call makes a request that the Docker client has no method for, or one
// whose method loses the reply's status. A refusal is a [*StatusError].
func (e *Engine) call(ctx context.Context, method, p string, query url.Values, contentType string, body bodyReader) (*http.Response, error) {
	req, err := e.request(ctx, method, p, query, body)
	if err != nil {
		return nil, err
	}
	if contentType != "" {
		req.Header.Set("Content-Type", contentType)
	}
	resp, err := e.http.Do(req)
	if err != nil {
		return nil, err
	}
	return resp, checkStatus(resp)
}

// get decodes the reply to a GET.
func (e *Engine) get(ctx context.Context, p string, v any) error {
	resp, err := e.call(ctx, http.MethodGet, p, nil, "", nil)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	return json.NewDecoder(resp.Body).Decode(v)
}

func (e *Engine) request(ctx context.Context, method, p string, query url.Values, body bodyReader) (*http.Request, error) {
	u := url.URL{
		Scheme:   e.ep.httpScheme(),
		Host:     e.ep.httpHost(),
		Path:     path.Join(e.ep.path(), "/v"+e.cli.ClientVersion(), p),
		RawQuery: query.Encode(),
	}
	return http.NewRequestWithContext(ctx, method, u.String(), body)
}

// clientTLS is the TLS configuration for a connection dialled outside the
// HTTP transport.
func (e *Engine) clientTLS() *tls.Config {
	if e.ep.tls == nil {
		return nil
	}
	c := e.ep.tls.Clone()
	if c.ServerName == "" {
		c.ServerName = e.ep.hostname()
	}
	c.NextProtos = []string{"http/1.1"}
	return c
}
