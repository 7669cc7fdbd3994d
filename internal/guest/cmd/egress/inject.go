//go:build linux

package egress

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/http/httputil"
	"strconv"
	"sync"
	"time"

	"golang.org/x/crypto/x509roots/fallback/bundle"
)

// injector speaks TLS with clients in the place of servers whose requests get headers
// that the sandbox must not see, and with these servers.
type injector struct {
	enforcer *Enforcer
	start    sync.Once
	conns    chan *tls.Conn
	// places bounds its connections: each may have several requests under way.
	places chan struct{}

	mu        sync.Mutex
	ca        *authority
	roots     string // beyond the usual ones, as PEM
	transport *http.Transport
}

func newInjector(g *Enforcer) *injector {
	return &injector{enforcer: g, conns: make(chan *tls.Conn), places: make(chan struct{}, maxInjected)}
}

const (
	maxInjected = 128
	maxStreams  = 32 // requests of one connection at a time
	headerBytes = 64 << 10
	replyBytes  = 256 << 10 // of a server's headers
	idleTime    = 2 * time.Minute
)

// authority signs the certificates that a session's sandbox is made to trust. Its key is
// in this process's memory alone.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pem  string

	mu     sync.Mutex
	leaf   *ecdsa.PrivateKey
	leaves map[string]*tls.Certificate
}

// maxLeaves bounds the certificates that are kept.
const maxLeaves = 64

func newAuthority() (*authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	leaf, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	a := &authority{key: key, leaf: leaf, leaves: make(map[string]*tls.Certificate)}
	template := certificate("Sandbox " + rand.Text()[:8])
	template.IsCA, template.BasicConstraintsValid, template.MaxPathLenZero = true, true, true
	template.KeyUsage = x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, err
	}
	a.pem = string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
	a.cert, err = x509.ParseCertificate(der)
	return a, err
}

// certificate is the start of one, with some room for clocks that differ.
func certificate(name string) *x509.Certificate {
	serial, _ := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	return &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-24 * time.Hour), NotAfter: time.Now().AddDate(2, 0, 0),
	}
}

// leafFor returns a certificate for a name.
func (a *authority) leafFor(name string) (*tls.Certificate, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if c, ok := a.leaves[name]; ok {
		return c, nil
	}
	template := certificate("")
	template.DNSNames = []string{name}
	template.KeyUsage = x509.KeyUsageDigitalSignature
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, a.leaf.Public(), a.key)
	if err != nil {
		return nil, err
	}
	if len(a.leaves) >= maxLeaves {
		clear(a.leaves)
	}
	c := &tls.Certificate{Certificate: [][]byte{der, a.cert.Raw}, PrivateKey: a.leaf}
	a.leaves[name] = c
	return c, nil
}

// configure makes ready for a policy that transforms names, with further roots for their
// servers, and returns the certificate that clients have to trust.
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
	// The sandbox's own trust store is root's inside, and says nothing here.
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
		DisableCompression:     true, // what the client asked for is its own business
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
		return nil, errors.Join(err, errors.New("the name leads nowhere"))
	}
	conn, _ := i.enforcer.dialAny(ctx, addrs[:min(len(addrs), maxDials)], uint16(port))
	if conn == nil {
		return nil, errors.New("the server does not answer")
	}
	return conn, nil
}

// replay is a client's connection from its beginning, of which some was read already.
type replay struct {
	*net.TCPConn
	said []byte
	name string
	port uint16
	once sync.Once
	done chan struct{} // closed when it is
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

// serve speaks with a client until it goes.
func (i *injector) serve(f *flow, h hello) {
	select {
	case i.places <- struct{}{}:
		defer func() { <-i.places }()
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

// listen starts the server that speaks with clients.
func (i *injector) listen() {
	quiet := log.New(io.Discard, "", 0)
	forward := &httputil.ReverseProxy{
		Rewrite:       i.rewrite,
		Transport:     roundTripper(i.roundTrip),
		FlushInterval: -1,
		ErrorLog:      quiet,
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, err error) {
			http.Error(w, "sandbox: the server can't be reached: "+err.Error(), http.StatusBadGateway)
		},
	}
	server := &http.Server{
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			// A server answers TRACE with the request, headers and all.
			if r.Method == http.MethodTrace {
				http.Error(w, "sandbox: TRACE is not forwarded", http.StatusMethodNotAllowed)
				return
			}
			if i.headers(r.Context()) == nil {
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
		HTTP2:             &http.HTTP2Config{MaxConcurrentStreams: maxStreams, MaxReceiveBufferPerConnection: 256 << 10, MaxReceiveBufferPerStream: 64 << 10},
	}
	go server.Serve(&connListener{i.conns})
}

// headers are what requests of a connection get, or nil when they go nowhere.
func (i *injector) headers(ctx context.Context) map[string]string {
	s := i.enforcer.active.Load()
	if rule, ok := s.rules.Name(ctx.Value(replayKey{}).(*replay).name); ok && rule.Transform {
		return s.secrets[rule.Pattern]
	}
	return nil
}

// rewrite sends a request to the name of its connection, whatever name it has itself.
func (i *injector) rewrite(p *httputil.ProxyRequest) {
	r := p.In.Context().Value(replayKey{}).(*replay)
	p.Out.URL.Scheme = "https"
	p.Out.URL.Host = net.JoinHostPort(r.name, strconv.Itoa(int(r.port)))
	p.Out.Host = r.name
	if r.port != 443 {
		p.Out.Host = p.Out.URL.Host
	}
	for name, value := range i.headers(p.In.Context()) {
		p.Out.Header.Set(name, value)
	}
}

func (i *injector) roundTrip(r *http.Request) (*http.Response, error) {
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

func (h *connListener) Close() error { return nil }

func (h *connListener) Addr() net.Addr { return &net.TCPAddr{} }
