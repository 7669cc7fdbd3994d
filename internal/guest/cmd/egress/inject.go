//go:build linux

package egress

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/crypto/x509roots/fallback/bundle"
	"golang.org/x/net/http/httpguts"

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

	mu      sync.Mutex
	ca      *authority
	roots   string // beyond the usual ones, as PEM
	servers *tls.Config
	idle    map[net.Conn]time.Time // of its connections those without a request, since when
	waiting int                    // connections for a slot
}

func newInjector(e *Enforcer) *injector {
	return &injector{enforcer: e, conns: make(chan *tls.Conn), slots: make(chan struct{}, maxInjected), idle: make(map[net.Conn]time.Time)}
}

const (
	maxInjected = 128
	maxStreams  = 32 // requests of one connection at a time
	headerBytes = 64 << 10
	replyBytes  = 256 << 10 // of a server's headers
	idleTime    = 2 * time.Minute
	// busyIdle is how long a connection may be idle while another waits for its slot.
	busyIdle = time.Second
	// serverIdle is how long a connection to a server is kept for the next request: less than
	// the 5 s that Node, Apache and others keep theirs.
	serverIdle = 4 * time.Second
	// expectTime is how long a body waits for the server's 100 (Continue) if the client expects one.
	expectTime = time.Second
	// maxRepeat bounds the body of a request that is sent again if the server has declined it.
	maxRepeat = 64 << 10
	// maxDials bounds the new connections for one request. Package http takes another one each time that an HTTP/2 server ends the
	// last one, or the request by a PROTOCOL_ERROR, which need not mean that it has not processed the request.
	maxDials = 2
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
	if i.servers != nil && i.roots == roots {
		i.servers = i.servers.Clone() // for new connections
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
	i.roots = roots
	i.servers = &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}
	return i.ca.pem, nil
}

// transports are the connections to servers for the requests of one client connection. The client
// gets what it would get without this process in between: a new connection of its own is a new one
// to the server, too, which nobody could have used before.
type transports struct {
	config *tls.Config
	kept   *http.Transport
	// single has a new HTTP/1.1 connection for each request.
	single *http.Transport
	// old is set once a server has answered by HTTP/1.1.
	old atomic.Bool
}

// out returns the connections for the requests of a client's: new ones if the policy has changed.
func (i *injector) out(r *replay) *transports {
	i.mu.Lock()
	defer i.mu.Unlock()
	if r.out == nil || r.out.config != i.servers {
		r.closeIdle()
		r.out = i.newTransports(r, i.servers)
	}
	return r.out
}

func (r *replay) closeIdle() {
	if r.out != nil {
		r.out.kept.CloseIdleConnections()
	}
}

func (i *injector) newTransports(r *replay, config *tls.Config) *transports {
	base := func() *http.Transport {
		return &http.Transport{
			DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				if dials, ok := ctx.Value(dialsKey{}).(*atomic.Int32); ok && dials.Add(1) > maxDials {
					return nil, errTooManyDials
				}
				return i.dial(ctx, r.name, r.to)
			},
			TLSClientConfig:        config.Clone(),
			DisableCompression:     true, // the client chose its own encoding
			TLSHandshakeTimeout:    helloTime,
			MaxIdleConnsPerHost:    8,
			IdleConnTimeout:        serverIdle,
			MaxResponseHeaderBytes: replyBytes,
			ExpectContinueTimeout:  expectTime,
		}
	}
	t := &transports{config: config, kept: base(), single: base()}
	t.kept.ForceAttemptHTTP2 = true
	t.single.MaxIdleConnsPerHost = -1
	t.single.Protocols = new(http.Protocols)
	t.single.Protocols.SetHTTP1(true)
	return t
}

// dialsKey is the key of the number of connections that were begun for a request.
type dialsKey struct{}

var errTooManyDials = fmt.Errorf("it has declined the request on %d connections", maxDials)

// roundTrip sends a request. One that can't be repeated never takes a connection that an HTTP/1.1
// server may be closing, and an upgrade is possible by HTTP/1.1 alone.
func (t *transports) roundTrip(r *http.Request) (*http.Response, error) {
	r = r.WithContext(context.WithValue(r.Context(), dialsKey{}, new(atomic.Int32)))
	if r.Header.Get("Upgrade") != "" || t.old.Load() && !repeatable(r) {
		return t.single.RoundTrip(r)
	}
	answer, err := t.kept.RoundTrip(r)
	if err == nil && answer.ProtoMajor == 1 {
		t.old.Store(true)
	}
	return answer, err
}

// repeatable reports whether the transport sends a request again if a server has closed the
// connection before its answer.
func repeatable(r *http.Request) bool {
	if r.Body != nil && r.Body != http.NoBody {
		return false // a part of it may have been written
	}
	return r.Method == http.MethodGet || r.Method == http.MethodHead || r.Method == http.MethodOptions
}

// makeRewindable lets the transport send a small body again, if a server has said that it did not
// process the request. It reads the body, which the client of a request with Expect sends only once
// the server asks for it.
func makeRewindable(r *http.Request) error {
	if r.Header.Get("Expect") != "" {
		return nil
	}
	if r.Body == nil || r.Body == http.NoBody || r.GetBody != nil || r.ContentLength < 0 || r.ContentLength > maxRepeat {
		return nil
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return errBody
	}
	r.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(body)), nil }
	r.Body, err = r.GetBody()
	return err
}

// dial connects to a server whose name is allowed, for a client that connected to an address.
func (i *injector) dial(ctx context.Context, name string, to netip.AddrPort) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, i.enforcer.patience)
	defer cancel()
	s := i.enforcer.active.Load()
	rule, _ := s.rules.Name(name)
	d := decision{name: name, port: to.Port(), protocol: "tcp", rule: rule.Pattern, allowed: true}
	conn, err := i.enforcer.dialName(ctx, s, to.Addr(), &d)
	if err == nil {
		return conn, nil
	}
	i.enforcer.log.add(d)
	if errors.Is(err, errNoAddress) {
		return nil, err
	}
	return nil, fmt.Errorf("the server does not answer: %s", d.failure)
}

// replay is a client's connection that is read from its beginning again.
type replay struct {
	*net.TCPConn
	said []byte
	name string
	to   netip.AddrPort
	out  *transports // guarded by injector.mu
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

// serve serves a client until it closes the connection. It returns false if there was no room.
func (i *injector) serve(f *flow, h hello) bool {
	if !i.enter(min(busyTime, i.enforcer.patience)) {
		return false
	}
	defer func() { <-i.slots }()
	i.start.Do(i.listen)
	r := &replay{TCPConn: f.client, said: h.said, name: f.name, to: f.to, done: make(chan struct{})}
	i.mu.Lock()
	ca := i.ca
	i.mu.Unlock()
	leaf, err := ca.leafFor(f.name)
	if err != nil {
		reset(f.client)
		return true
	}
	i.conns <- tls.Server(r, &tls.Config{
		Certificates: []tls.Certificate{*leaf},
		MinVersion:   tls.VersionTLS12,
		NextProtos:   []string{"h2", "http/1.1"},
	})
	<-r.done
	i.mu.Lock()
	defer i.mu.Unlock()
	r.closeIdle()
	return true
}

// enter waits for a slot. Meanwhile connections end with the answer that they get, and those that
// are idle make room.
func (i *injector) enter(limit time.Duration) bool {
	select {
	case i.slots <- struct{}{}:
		return true
	default:
	}
	i.wait(1)
	defer i.wait(-1)
	for deadline := time.Now().Add(limit); time.Now().Before(deadline); {
		i.closeIdle()
		select {
		case i.slots <- struct{}{}:
			return true
		case <-time.After(100 * time.Millisecond):
		}
	}
	return false
}

func (i *injector) wait(n int) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.waiting += n
}

func (i *injector) crowded() bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.waiting > 0
}

// closeIdle closes the connection that has been idle for longest, unless all are just so.
func (i *injector) closeIdle() {
	i.mu.Lock()
	defer i.mu.Unlock()
	var oldest net.Conn
	for c, since := range i.idle {
		if oldest == nil || since.Before(i.idle[oldest]) {
			oldest = c
		}
	}
	if oldest != nil && time.Since(i.idle[oldest]) > busyIdle {
		delete(i.idle, oldest)
		oldest.(*tls.Conn).NetConn().Close()
	}
}

// follow notes which connections have no request.
func (i *injector) follow(c net.Conn, state http.ConnState) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if state == http.StateIdle {
		i.idle[c] = time.Now()
	} else {
		delete(i.idle, c)
	}
}

type replayKey struct{}

// listen starts the HTTP server for the clients.
func (i *injector) listen() {
	quiet := log.New(io.Discard, "", 0)
	log.SetOutput(io.Discard) // where package http writes what servers send: it is the container's log
	forward := &httputil.ReverseProxy{
		Rewrite:   i.rewrite,
		Transport: roundTripper(i.roundTrip),
		ErrorLog:  quiet,
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
			// Some servers answer while they still read.
			_ = http.NewResponseController(w).EnableFullDuplex() // HTTP/2 always has it
			if r.Header.Get("Upgrade") == "" && i.crowded() {
				w.Header().Set("Connection", "close")
			}
			defer func() { // the head of an answer that breaks off reaches the client, too
				if failed := recover(); failed != nil {
					if failed == http.ErrAbortHandler {
						_ = http.NewResponseController(w).Flush()
					}
					panic(failed)
				}
			}()
			forward.ServeHTTP(plainWriter{w}, r)
		}),
		ConnState: i.follow,
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

// plainWriter writes answers as they are: package http would add a Content-Type, which it takes from
// the body, and a Date. It leaves out other ways to the server, such as by HTTP/3: there nobody would
// set headers.
type plainWriter struct{ http.ResponseWriter }

func (w plainWriter) WriteHeader(status int) {
	w.Header().Del("Alt-Svc")
	for _, name := range []string{"Content-Type", "Date"} {
		if _, has := w.Header()[name]; !has && status >= 200 {
			w.Header()[name] = nil
		}
	}
	w.ResponseWriter.WriteHeader(status)
	if status >= 200 { // else a trailer would have the values of a header with its name, too
		for _, announced := range w.Header()["Trailer"] {
			for name := range strings.SplitSeq(announced, ",") {
				delete(w.Header(), http.CanonicalHeaderKey(strings.TrimSpace(name)))
			}
		}
	}
}

// Hijack is for ReverseProxy, which would lose what the server has read already of a client that asks for an upgrade.
func (w plainWriter) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, buffered, err := http.NewResponseController(w.ResponseWriter).Hijack()
	if err != nil {
		return nil, nil, err
	}
	said, err := buffered.Peek(buffered.Reader.Buffered())
	return &upgraded{conn.(*tls.Conn), io.MultiReader(bytes.NewReader(said), conn)}, buffered, err
}

// upgraded is a client's connection that is read from what came first.
type upgraded struct {
	*tls.Conn
	from io.Reader
}

func (u *upgraded) Read(b []byte) (int, error) { return u.from.Read(b) }

// Unwrap is for [http.ResponseController].
func (w plainWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

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
	if strings.Contains(r.URL.RawQuery, " ") { // possible by HTTP/2; by HTTP/1.1 it would end the address
		return "a request with a space in its query is not forwarded"
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

// forwarded are headers that ReverseProxy removes, and that are the client's here.
var forwarded = []string{"Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto"}

// rewrite sends a request to the name of its connection, whatever host it names.
func (i *injector) rewrite(p *httputil.ProxyRequest) {
	r := p.In.Context().Value(replayKey{}).(*replay)
	p.Out.URL.Scheme = "https"
	p.Out.URL.Host = net.JoinHostPort(r.name, strconv.Itoa(int(r.to.Port())))
	p.Out.URL.RawPath = escapeInvalid(p.In.URL.RawPath)
	p.Out.URL.RawQuery = p.In.URL.RawQuery // without it parameters that Go can't parse are missing
	// On a connection that goes on, a refused body would have to be sent all the same.
	p.Out.Close = p.In.Header.Get("Expect") != ""
	if p.In.ContentLength < 0 && p.In.Trailer == nil {
		p.In.Trailer = make(http.Header) // for those that are not announced
	}
	p.Out.Trailer = p.In.Trailer // which has its values once the body is read
	if offers := p.In.Header["Upgrade"]; len(offers) > 1 && p.Out.Header["Upgrade"] != nil {
		p.Out.Header["Upgrade"] = offers
	}
	for _, name := range forwarded {
		if values, have := p.In.Header[name]; have {
			p.Out.Header[name] = values
		}
	}
	if httpguts.HeaderValuesContainsToken(p.Out.Header["Upgrade"], "h2c") {
		// Its further requests would pass unseen.
		p.Out.Header.Del("Upgrade")
		p.Out.Header.Del("Connection")
	}
	p.Out.Host = r.name
	if r.to.Port() != 443 {
		p.Out.Host = p.Out.URL.Host
	}
	if _, secret := i.secret(p.In.Context()); secret != nil {
		for name, value := range secret.Headers {
			p.Out.Header.Set(name, value)
		}
	}
}

// escapeInvalid percent-encodes those bytes of a path that a URL can't have. With one of them package
// url would ignore the RawPath and encode the Path, where %2F has become a slash.
func escapeInvalid(rawPath string) string {
	var valid strings.Builder
	for i := range len(rawPath) {
		c := rawPath[i : i+1]
		if c != "%" {
			c = (&url.URL{Path: c, RawPath: c}).EscapedPath()
		}
		valid.WriteString(c)
	}
	return valid.String()
}

func (i *injector) roundTrip(r *http.Request) (*http.Response, error) {
	asked := r
	s, secret := i.secret(r.Context())
	if secret == nil {
		return nil, &hookError{http.StatusForbidden, "the network policy does not allow this name"}
	}
	to := r.Context().Value(replayKey{}).(*replay)
	if secret.Hook {
		var err error
		if r, err = i.enforcer.hooks.decide(r, s.version, secret.Pattern); err != nil {
			i.enforcer.log.add(decision{name: to.name, port: to.to.Port(), protocol: "tcp", rule: "transform"})
			return nil, err
		}
	}
	if err := makeRewindable(r); err != nil {
		return nil, err
	}
	answer, err := i.out(to).roundTrip(r)
	if err != nil {
		return nil, err
	}
	switch answer.StatusCode {
	case http.StatusSwitchingProtocols:
		answer.Header.Del("Alt-Svc") // which plainWriter does not see
		// ReverseProxy takes the only one that was offered.
		if chosen := answer.Header.Get("Upgrade"); httpguts.HeaderValuesContainsToken(asked.Header["Upgrade"], chosen) {
			asked.Header.Set("Upgrade", chosen)
		}
	case http.StatusNoContent, http.StatusNotModified: // a length is that of another answer
		answer.Body.Close()
		answer.Body, answer.ContentLength = http.NoBody, 0
		answer.Header.Del("Content-Length")
	}
	if answer.ContentLength > 0 {
		// So that ReverseProxy passes it on as it comes. An empty one it must not flush: by HTTP/2
		// the end would come after the headers, and for gRPC these would not be the trailers.
		answer.ContentLength = -1
	}
	return answer, nil
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
