//go:build linux

package egress

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/crypto/x509roots/fallback/bundle"

	"github.com/seed-1a2d6d8f/sandbox/internal/guest/wire"
)

// injector ends TLS for servers whose requests get headers that the sandbox must not see,
// and forwards the requests to these servers.
type injector struct {
	enforcer *Enforcer
	start    sync.Once
	conns    chan *tls.Conn
	// slots bounds its connections: each may have several requests pending.
	slots chan struct{}

	mu        sync.Mutex
	ca        *authority
	roots     string // beyond the usual ones, as PEM
	transport *http.Transport
}

func newInjector(e *Enforcer) *injector {
	return &injector{enforcer: e, conns: make(chan *tls.Conn), slots: make(chan struct{}, maxInjected)}
}

const (
	maxInjected = 128
	maxStreams  = 32 // requests of one connection at a time
	headerBytes = 64 << 10
	replyBytes  = 256 << 10 // of a server's headers
	idleTime    = 2 * time.Minute
)

// configure prepares for a policy that transforms names, with additional roots for their
// servers, and returns the certificate that clients must trust.
func (i *injector) configure(roots string) (string, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.ca == nil {
		ca, err := newAuthority()
		if err != nil {
			return "", err
		}
		i.ca = ca
	}
	if i.transport != nil && i.roots == roots {
		i.transport.CloseIdleConnections()
		return i.ca.pem, nil
	}
	// Root inside can change the sandbox's own trust store, so it does not count.
	pool := x509.NewCertPool()
	for root := range bundle.Roots() {
		cert, err := x509.ParseCertificate(root.Certificate)
		switch {
		case err != nil:
		case root.Constraint != nil:
			pool.AddCertWithConstraint(cert, root.Constraint)
		default:
			pool.AddCert(cert)
		}
	}
	if roots != "" && !pool.AppendCertsFromPEM([]byte(roots)) {
		return "", errors.New("the roots are not certificates in PEM")
	}
	if i.transport != nil {
		i.transport.CloseIdleConnections()
	}
	i.roots = roots
	i.transport = &http.Transport{
		DialContext:            i.dial,
		TLSClientConfig:        &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12},
		ForceAttemptHTTP2:      true,
		DisableCompression:     true, // the client chose its own encoding
		TLSHandshakeTimeout:    helloTime,
		MaxIdleConns:           64,
		MaxIdleConnsPerHost:    8,
		IdleConnTimeout:        30 * time.Second,
		MaxResponseHeaderBytes: replyBytes,
	}
	return i.ca.pem, nil
}

// dial connects to a server whose name is allowed, for the transport.
func (i *injector) dial(ctx context.Context, _, addr string) (net.Conn, error) {
	name, text, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, err
	}
	port, err := strconv.ParseUint(text, 10, 16)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, dialTime)
	defer cancel()
	s := i.enforcer.active.Load()
	addrs, refused, err := i.enforcer.resolver.addrs(ctx, s, name, false)
	if len(addrs) == 0 {
		if refused.IsValid() {
			i.enforcer.log.add(decision{name: name, addr: refused, port: uint16(port), protocol: "tcp", rule: string(s.rules.Addr(refused))})
		}
		return nil, errors.Join(err, errors.New("no allowed address"))
	}
	conn, _ := i.enforcer.dialAny(ctx, addrs[:min(len(addrs), maxDials)], uint16(port))
	if conn == nil {
		return nil, errors.New("the server does not answer")
	}
	return conn, nil
}

// replay is a client's connection that is read from its beginning again.
type replay struct {
	*net.TCPConn
	said []byte
	name string
	port uint16
	once sync.Once
	done chan struct{} // closed with it
}

func (r *replay) Read(b []byte) (int, error) {
	if len(r.said) > 0 {
		n := copy(b, r.said)
		r.said = r.said[n:]
		return n, nil
	}
	return r.TCPConn.Read(b)
}

func (r *replay) Close() error {
	r.once.Do(func() { close(r.done) })
	return r.TCPConn.Close()
}

// serve serves a client until it closes the connection.
func (i *injector) serve(f *flow, h hello) {
	select {
	case i.slots <- struct{}{}:
		defer func() { <-i.slots }()
	default:
		reset(f.client)
		return
	}
	i.start.Do(i.listen)
	r := &replay{TCPConn: f.client, said: h.said, name: f.name, port: f.to.Port(), done: make(chan struct{})}
	i.mu.Lock()
	ca := i.ca
	i.mu.Unlock()
	leaf, err := ca.leafFor(f.name)
	if err != nil {
		reset(f.client)
		return
	}
	i.conns <- tls.Server(r, &tls.Config{
		Certificates: []tls.Certificate{*leaf},
		MinVersion:   tls.VersionTLS12,
		NextProtos:   []string{"h2", "http/1.1"},
	})
	<-r.done
}

type replayKey struct{}

// listen starts the HTTP server for the clients.
func (i *injector) listen() {
	quiet := log.New(io.Discard, "", 0)
	forward := &httputil.ReverseProxy{
		Rewrite:       i.rewrite,
		Transport:     roundTripper(i.roundTrip),
		FlushInterval: -1,
		ErrorLog:      quiet,
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, err error) {
			if refused, ok := errors.AsType[*hookError](err); ok {
				http.Error(w, "sandbox: "+refused.Error(), refused.status)
				return
			}
			http.Error(w, "sandbox: the server can't be reached: "+err.Error(), http.StatusBadGateway)
		},
	}
	server := &http.Server{
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if why := unforwardable(r); why != "" {
				http.Error(w, "sandbox: "+why, http.StatusMethodNotAllowed)
				return
			}
			if _, secret := i.secret(r.Context()); secret == nil {
				http.Error(w, "sandbox: the network policy does not allow this name", http.StatusForbidden)
				return
			}
			forward.ServeHTTP(w, r)
		}),
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			return context.WithValue(ctx, replayKey{}, c.(*tls.Conn).NetConn())
		},
		ReadHeaderTimeout: 30 * time.Second,
		IdleTimeout:       idleTime,
		MaxHeaderBytes:    headerBytes,
		ErrorLog:          quiet,
		// So that "OPTIONS *" is refused like every request without a path.
		DisableGeneralOptionsHandler: true,
		HTTP2:                        &http.HTTP2Config{MaxConcurrentStreams: maxStreams, MaxReceiveBufferPerConnection: 256 << 10, MaxReceiveBufferPerStream: 64 << 10},
	}
	go server.Serve(&connListener{i.conns})
}

// unforwardable returns why a request must not get headers, "" if it may.
func unforwardable(r *http.Request) string {
	switch method := strings.ToUpper(r.Method); method { // servers may not distinguish case
	case http.MethodTrace, "TRACK": // answered with the request, headers and all
		return method + " is not forwarded"
	case http.MethodConnect: // what follows is not HTTP
		return method + " is not forwarded"
	}
	if !strings.HasPrefix(r.URL.Path, "/") {
		return "a request without a path is not forwarded"
	}
	return ""
}

// secret returns what to set in requests of a connection, with the policy in force; nil if they
// must not be forwarded.
func (i *injector) secret(ctx context.Context) (*activePolicy, *wire.Secret) {
	s := i.enforcer.active.Load()
	if rule, ok := s.rules.Name(ctx.Value(replayKey{}).(*replay).name); ok && rule.Transform {
		return s, s.secrets[rule.Pattern]
	}
	return s, nil
}

// rewrite sends a request to the name of its connection, whatever host it names.
func (i *injector) rewrite(p *httputil.ProxyRequest) {
	r := p.In.Context().Value(replayKey{}).(*replay)
	p.Out.URL.Scheme = "https"
	p.Out.URL.Host = net.JoinHostPort(r.name, strconv.Itoa(int(r.port)))
	p.Out.Host = r.name
	if r.port != 443 {
		p.Out.Host = p.Out.URL.Host
	}
	if _, secret := i.secret(p.In.Context()); secret != nil {
		for name, value := range secret.Headers {
			p.Out.Header.Set(name, value)
		}
	}
}

func (i *injector) roundTrip(r *http.Request) (*http.Response, error) {
	s, secret := i.secret(r.Context())
	if secret == nil {
		return nil, &hookError{http.StatusForbidden, "the network policy does not allow this name"}
	}
	if secret.Hook {
		var err error
		if r, err = i.enforcer.hooks.decide(r, s.version, secret.Pattern); err != nil {
			to := r.Context().Value(replayKey{}).(*replay)
			i.enforcer.log.add(decision{name: to.name, port: to.port, protocol: "tcp", rule: "transform"})
			return nil, err
		}
	}
	i.mu.Lock()
	t := i.transport
	i.mu.Unlock()
	return t.RoundTrip(r)
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// connListener is a listener of connections that were accepted elsewhere.
type connListener struct{ conns <-chan *tls.Conn }

func (h *connListener) Accept() (net.Conn, error) {
	if conn, ok := <-h.conns; ok {
		return conn, nil
	}
	return nil, net.ErrClosed
}

func (h *connListener) Close() error   { return nil }
func (h *connListener) Addr() net.Addr { return &net.TCPAddr{} }
