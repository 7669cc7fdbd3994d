// Package engine is the only package that uses the Docker Engine API. It hides the API's
// calls, quirks and errors: it exports no Docker type, checks every name before a call, and
// gives every error one of seven classes (see [ErrNotFound] and the following).
//
// An [Engine] is safe for concurrent use. Its only state are idle connections and answers of
// the engine that do not change.
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

	"github.com/docker/docker/api/types"
	"github.com/docker/docker/client"
)

const defaultOpenTimeout = 30 * time.Second

// Options select the engine that [Open] connects to. The zero value selects the one
// that the docker command would use.
type Options struct {
	// Host is the engine's address: unix://, npipe://, tcp://, http://,
	// https:// or ssh://. Empty means DOCKER_HOST, then the current Docker
	// context, then the platform's default socket.
	Host string
	// DialTimeout bounds each new connection, and the first exchange with the
	// engine. Zero means 30 s.
	DialTimeout time.Duration
	// RegistryAuth returns the credentials for a registry, such as "ghcr.io"; Docker Hub is
	// "docker.io". For the zero value those of the docker command are used. It may be nil.
	RegistryAuth func(ctx context.Context, host string) (RegistryAuth, error)
}

// Engine is a connection to one Docker Engine.
type Engine struct {
	cli     *client.Client
	tr      *http.Transport
	http    *http.Client
	dial    func(context.Context) (net.Conn, error)
	ssh     *sshDialer // nil unless connections are made by ssh
	ep      endpoint
	clock   *clock
	podman  *atomic.Bool // the engine is Podman, as a reply has told
	version atomic.Pointer[types.Version]

	limits atomic.Pointer[limits]
	driver atomic.Pointer[string] // of the storage

	registryAuth func(context.Context, string) (RegistryAuth, error) // may be nil

	seccomp atomic.Pointer[seccompOptions]
}

// Open connects to the engine that o selects and negotiates an API version. If no engine
// answers, the error is an [*UnreachableError], which matches [ErrUnavailable], names every
// address tried and says what to do. ctx bounds Open only.
func Open(ctx context.Context, o Options) (*Engine, error) {
	places, err := places(o.Host)
	if err != nil {
		return nil, err
	}
	return open(ctx, places, o)
}

// open connects to the last one of places.
func open(ctx context.Context, places []place, o Options) (*Engine, error) {
	if o.DialTimeout <= 0 {
		o.DialTimeout = defaultOpenTimeout
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
			err = &timeoutError{after: o.DialTimeout}
		}
		places[len(places)-1].err = e.fail(ctx, err)
		return nil, unreachable(places)
	}
	return e, nil
}

func newEngine(ep endpoint, o Options) (*Engine, error) {
	e := &Engine{ep: ep, clock: new(clock), podman: new(atomic.Bool), registryAuth: o.RegistryAuth}
	var (
		err      error
		dialCall func(context.Context) (net.Conn, error)
		queue    *atomic.Int64
	)
	if ep.scheme == "ssh" {
		if e.ssh, err = newSSHDialer(ep.url, o.DialTimeout); err != nil {
			return nil, err
		}
		e.dial, queue = e.ssh.dial, new(atomic.Int64)
		dialCall = pooled(e.dial, queue)
	} else {
		if e.dial, err = dialer(ep, o.DialTimeout); err != nil {
			return nil, err
		}
		dialCall = e.dial
	}
	e.tr = &http.Transport{
		DialContext:         func(ctx context.Context, _, _ string) (net.Conn, error) { return dialCall(ctx) },
		DisableCompression:  true,
		MaxIdleConns:        idleConns,
		MaxIdleConnsPerHost: idleConns,
		IdleConnTimeout:     30 * time.Second,
		TLSHandshakeTimeout: o.DialTimeout,
		TLSClientConfig:     ep.tls,
	}
	e.http = &http.Client{
		Transport:     &roundTripper{base: e.tr, clock: e.clock, podman: e.podman, queue: queue},
		CheckRedirect: client.CheckRedirect,
	}
	// WithHost would configure its own transport. WithHTTPClient replaces it with ours.
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

// Ping fails unless the engine answers. It waits for no container that the engine is busy with.
func (e *Engine) Ping(ctx context.Context) error {
	_, err := e.cli.Ping(ctx)
	return e.fail(ctx, err)
}

var errNotAnEngine = errors.New("the server there does not speak the Docker API")

// Close closes idle connections. Streams and calls in progress keep theirs until they end.
func (e *Engine) Close() error {
	e.DropIdle()
	return nil
}

// DropIdle closes idle connections, for when the way to the engine turned out to be dead: the
// next calls would wait on them. Over ssh the next connections have a new master.
func (e *Engine) DropIdle() {
	if e.ssh != nil {
		e.ssh.retire()
	}
	e.tr.CloseIdleConnections()
}

// Host is the engine's address, without credentials.
func (e *Engine) Host() string { return e.ep.display() }

// Key tells engines apart within a program, those of two users of one machine, too. It may contain a password: no message
// has it.
func (e *Engine) Key() string { return e.ep.url.String() }

// Location is "local" for an engine behind a socket of this machine, else its host and port.
func (e *Engine) Location() string { return e.ep.location() }

// APIVersion is the negotiated version of the API, such as "1.41".
func (e *Engine) APIVersion() string { return e.cli.ClientVersion() }

// Now is the time of the engine's clock, to within about two seconds: local time, corrected
// by the Date of the engine's replies if they differ by two seconds or more.
func (e *Engine) Now() time.Time { return e.clock.now() }

// call makes a request for which the Docker client has no method, or one that loses the
// reply's status. An error reply is a [*StatusError].
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
