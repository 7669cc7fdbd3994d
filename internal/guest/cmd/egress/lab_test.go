//go:build linux

package egress

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"
	"golang.org/x/sys/unix"

	"github.com/seed-1a2d6d8f/sandbox/internal/guest/wire"
	"github.com/seed-1a2d6d8f/sandbox/internal/policy"
)

// netns is a network namespace, and a thread that lives in it.
type netns struct {
	t    testing.TB
	jobs chan func()
	tid  int

	using sync.RWMutex // held by those who have jobs
	ended bool
}

func newNetns(t testing.TB) *netns {
	ns := enterNetns(t, func() error { return unix.Unshare(unix.CLONE_NEWNET) })
	ns.ip("link set lo up")
	return ns
}

// again is another thread in the same namespace.
func (ns *netns) again() *netns {
	return enterNetns(ns.t, func() error {
		fd, err := unix.Open(fmt.Sprintf("/proc/self/task/%d/ns/net", ns.tid), unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		return unix.Setns(fd, unix.CLONE_NEWNET)
	})
}

func enterNetns(t testing.TB, enter func() error) *netns {
	ns := &netns{t: t, jobs: make(chan func())}
	ready := make(chan error)
	go func() {
		// Never unlocked: the thread ends with the goroutine, and the namespace with it.
		runtime.LockOSThread()
		err := enter()
		ns.tid = unix.Gettid()
		ready <- err
		for job := range ns.jobs {
			job()
		}
	}()
	if err := <-ready; err != nil {
		t.Fatalf("a network namespace (these tests need root): %v", err)
	}
	t.Cleanup(func() {
		ns.using.Lock()
		defer ns.using.Unlock()
		ns.ended = true
		close(ns.jobs)
	})
	return ns
}

// do runs f in the namespace, unless the test is over. What it opens stays there.
func (ns *netns) do(f func()) {
	ns.using.RLock()
	defer ns.using.RUnlock()
	if ns.ended {
		return
	}
	done := make(chan struct{})
	ns.jobs <- func() { defer close(done); f() }
	<-done
}

// aside runs f in the namespace as do does, but waits for no other.
func (ns *netns) aside(f func()) {
	ns.using.RLock()
	defer ns.using.RUnlock()
	if ns.ended {
		return
	}
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // for good: the thread ends with the goroutine
		fd, err := unix.Open(fmt.Sprintf("/proc/self/task/%d/ns/net", ns.tid), unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err == nil {
			err = unix.Setns(fd, unix.CLONE_NEWNET)
			unix.Close(fd)
		}
		if err == nil {
			f()
		}
		done <- err
	}()
	if err := <-done; err != nil {
		ns.t.Errorf("enter the namespace: %v", err)
	}
}

func (ns *netns) ip(args string) {
	ns.t.Helper()
	ns.do(func() {
		if out, err := exec.Command("ip", strings.Fields(args)...).CombinedOutput(); err != nil {
			ns.t.Errorf("ip %s: %v: %s", args, err, out)
		}
	})
}

func (ns *netns) dial(network, addr string) (net.Conn, error) {
	return ns.dialFrom(network, addr, nil)
}

func (ns *netns) dialFrom(network, addr string, d *net.Dialer) (conn net.Conn, err error) {
	if d == nil {
		d = &net.Dialer{Timeout: 20 * time.Second}
	}
	ns.do(func() { conn, err = d.Dial(network, addr) })
	return conn, err
}

// Addresses of the lab: the world outside, and the sandbox's gateway.
const (
	insideAddr  = "10.99.0.2"
	gatewayAddr = "10.99.0.1"
	alphaAddr   = "203.0.113.1" // a.example.com, and all other names below it
	otherAddr   = "203.0.113.2" // evil.test
	privateAddr = "192.168.77.1"
	metaAddr    = "169.254.169.254"
	alpha6      = "2001:db8:1::1"
	inside6     = "fd99::2"
	gateway6    = "fd99::1"
	resolverIP  = "10.99.0.53"
)

// lab is a sandbox's network, and a world that writes down everything that reaches it.
type lab struct {
	t        testing.TB
	inside   *netns
	outside  *netns
	enforcer *Enforcer
	pool     *x509.CertPool
	roots    string // the same as PEM
	tls      *tls.Config
	fences   byte // that frames used

	mu    sync.Mutex
	hits  []string
	names map[string][]string // what the DNS server says: addresses and texts, or "-> " and the name that it is an alias of
}

func newLab(t testing.TB, ports ...uint16) *lab {
	t.Helper()
	l := &lab{t: t, inside: newNetns(t), outside: newNetns(t), names: map[string][]string{
		"a.example.com":      {alphaAddr, alpha6},
		"b.c.example.com":    {alphaAddr},
		"example.com":        {otherAddr},
		"evil.test":          {otherAddr},
		"meta.example.com":   {metaAddr},
		"gate.example.com":   {gatewayAddr},
		"lo.example.com":     {"127.0.0.1"},
		"intra.example.com":  {privateAddr},
		"mixed.example.com":  {privateAddr, alphaAddr},
		"secret.example.com": {alphaAddr},
	}}
	l.outside.do(func() {
		out, err := exec.Command("ip", "link", "add", "out0", "type", "veth", "peer", "name", "eth0", "netns", fmt.Sprint(l.inside.tid)).CombinedOutput()
		if err != nil {
			t.Fatalf("ip link add: %v: %s", err, out)
		}
	})
	l.outside.ip("link set out0 up")
	for _, a := range []string{gatewayAddr + "/24", resolverIP + "/32", alphaAddr + "/32", otherAddr + "/32", privateAddr + "/32", metaAddr + "/32"} {
		l.outside.ip("addr add " + a + " dev out0")
	}
	for _, a := range []string{"fd99::1/64", alpha6 + "/128"} {
		l.outside.ip("addr add " + a + " dev out0 nodad")
	}
	l.inside.ip("link set eth0 up")
	l.inside.ip("addr add " + insideAddr + "/24 dev eth0")
	l.inside.ip("addr add " + inside6 + "/64 dev eth0 nodad")
	l.inside.ip("route add default via " + gatewayAddr)
	l.inside.ip("-6 route add default via fd99::1")
	// A device that has just come up may still drop what it is given.
	for deadline := time.Now().Add(5 * time.Minute); ; {
		_, err := l.outside.dialFrom("tcp", insideAddr+":9", &net.Dialer{Timeout: 100 * time.Millisecond})
		if errors.Is(err, unix.ECONNREFUSED) {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("the devices of the lab: %v", err)
		}
	}
	l.serve()
	l.inside.do(func() { l.enforcer = New(ports, nil) })
	if l.enforcer.noFilter != nil || l.enforcer.noRedirect != nil {
		t.Fatalf("the enforcer: %v, %v", l.enforcer.noFilter, l.enforcer.noRedirect)
	}
	t.Cleanup(func() {
		for _, c := range l.enforcer.open {
			c.Close()
		}
		close(l.enforcer.injector.conns)
	})
	l.enforcer.dialer = func(ctx context.Context, d net.Dialer, network, addr string) (conn net.Conn, err error) {
		err = net.ErrClosed // what the enforcer still does at the test's end
		l.inside.aside(func() { conn, err = d.DialContext(ctx, network, addr) })
		return conn, err
	}
	return l
}

// begin puts a policy in force.
func (l *lab) begin(version int64, p policy.Policy, more ...func(*wire.Begin)) {
	l.t.Helper()
	b := &wire.Begin{Version: version, Policy: p, Upstream: []netip.Addr{netip.MustParseAddr(resolverIP)}}
	for _, f := range more {
		f(b)
	}
	var refused *Refusal
	l.inside.do(func() { refused = l.enforcer.Begin(b) })
	if refused != nil {
		l.t.Fatalf("begin %s: %v", p, refused)
	}
}

func parse(t testing.TB, text string) policy.Policy {
	t.Helper()
	p, err := policy.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func (l *lab) hit(format string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.hits = append(l.hits, fmt.Sprintf(format, args...))
}

// took returns what has reached the world since it was asked last.
func (l *lab) took() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	hits := l.hits
	l.hits = nil
	return hits
}

// serve opens the world's servers, on every address.
func (l *lab) serve() {
	key, _ := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true,
		DNSNames: []string{"*.example.com", "*.c.example.com", "evil.test"}, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		l.t.Fatal(err)
	}
	cert, _ := x509.ParseCertificate(der)
	l.pool = x509.NewCertPool()
	l.pool.AddCert(cert)
	l.roots = string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
	config := &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}}
	l.tls = config

	handle := func(port string, f func(net.Conn)) {
		for _, host := range []string{"0.0.0.0", "::"} {
			var listener net.Listener
			l.outside.do(func() {
				listener, err = net.Listen(map[string]string{"0.0.0.0": "tcp4", "::": "tcp6"}[host], net.JoinHostPort(host, port))
			})
			if err != nil {
				l.t.Fatal(err)
			}
			l.t.Cleanup(func() { listener.Close() })
			go func() {
				for {
					conn, err := listener.Accept()
					if err != nil {
						return
					}
					l.hit("tcp %s", conn.LocalAddr())
					l.t.Cleanup(func() { conn.Close() })
					go func() { defer conn.Close(); f(conn) }()
				}
			}()
		}
	}
	// Every server tells where it was reached, and by what name.
	secure := func(conn net.Conn) {
		server := tls.Server(conn, config)
		if server.Handshake() != nil {
			return
		}
		line, _ := bufio.NewReader(server).ReadString('\n')
		fmt.Fprintf(server, "tls %s %s %s", conn.LocalAddr(), server.ConnectionState().ServerName, line)
		server.CloseWrite()
		io.Copy(io.Discard, server)
	}
	handle("443", secure)
	handle("8443", secure)
	handle("5432", func(conn net.Conn) {
		head := make([]byte, 8)
		if _, err := io.ReadFull(conn, head); err == nil && string(head) == string(postgresSSLRequest) {
			io.WriteString(conn, "S")
			secure(conn)
		}
	})
	handle("22", func(conn net.Conn) {
		io.WriteString(conn, "SSH-2.0-lab\r\n")
		io.Copy(io.Discard, conn)
	})
	handle("7", func(conn net.Conn) { io.Copy(conn, conn) })
	web := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "http %s %s", r.Context().Value(http.LocalAddrContextKey), r.Host)
	}), ErrorLog: nil}
	handle("80", func(conn net.Conn) {
		done := make(chan struct{})
		web.Serve(&oneConn{conn: conn, done: done})
		<-done
	})
	var echo net.Listener
	l.outside.do(func() { echo, err = net.Listen("tcp4", "0.0.0.0:8444") })
	if err != nil {
		l.t.Fatal(err)
	}
	echoes := &http.Server{TLSConfig: config.Clone(), ErrorLog: log.New(io.Discard, "", 0), Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		l.hit("https %s %s %s", r.Context().Value(http.LocalAddrContextKey), r.Host, r.Header.Get("Authorization"))
		fmt.Fprintf(w, "%s %s %s", r.Proto, r.Host, r.URL.Path)
	})}
	l.t.Cleanup(func() { echoes.Close() })
	go echoes.ServeTLS(echo, "", "")
	for _, addr := range []string{alphaAddr + ":9000", otherAddr + ":9000", "[" + alpha6 + "]:9000", metaAddr + ":123"} {
		var conn net.PacketConn
		l.outside.do(func() {
			conn, err = net.ListenPacket(map[bool]string{true: "udp6", false: "udp4"}[addr[0] == '['], addr)
		})
		if err != nil {
			l.t.Fatal(err)
		}
		l.t.Cleanup(func() { conn.Close() })
		go func() {
			buf := make([]byte, 2048)
			for {
				n, from, err := conn.ReadFrom(buf)
				if err != nil {
					return
				}
				l.hit("udp %s %s", addr, buf[:n])
				conn.WriteTo(buf[:n], from)
			}
		}()
	}
	l.serveDNS()
}

// oneConn is a listener of one connection.
type oneConn struct {
	conn net.Conn
	done chan struct{}
	once sync.Once
}

func (o *oneConn) Accept() (net.Conn, error) {
	if conn := o.conn; conn != nil {
		o.conn = nil
		return &closing{conn, o}, nil
	}
	<-o.done
	return nil, io.EOF
}

func (o *oneConn) Close() error   { return nil }
func (o *oneConn) Addr() net.Addr { return &net.TCPAddr{} }

type closing struct {
	net.Conn
	o *oneConn
}

func (c *closing) Close() error {
	c.o.once.Do(func() { close(c.o.done) })
	return c.Conn.Close()
}

func (l *lab) serveDNS() {
	var udp, all net.PacketConn
	var tcp net.Listener
	var err error
	l.outside.do(func() {
		udp, err = net.ListenPacket("udp4", resolverIP+":53")
		if err == nil {
			tcp, err = net.Listen("tcp4", resolverIP+":53")
		}
		if err == nil {
			all, err = net.ListenPacket("udp4", otherAddr+":53") // the enemy's
		}
	})
	if err != nil {
		l.t.Fatal(err)
	}
	l.t.Cleanup(func() { udp.Close(); tcp.Close(); all.Close() })
	go func() {
		buf := make([]byte, 4096)
		for {
			n, from, err := all.ReadFrom(buf)
			if err != nil {
				return
			}
			l.hit("evil dns")
			all.WriteTo(buf[:n], from)
		}
	}()
	go l.answerUDP(udp)
	go l.answerTCP(tcp)
}

func (l *lab) answerUDP(conn net.PacketConn) {
	buf := make([]byte, 4096)
	for {
		n, from, err := conn.ReadFrom(buf)
		if err != nil {
			return
		}
		message := slices.Clone(buf[:n])
		go func() { conn.WriteTo(l.resolve(message, false), from) }()
	}
}

func (l *lab) answerTCP(listener net.Listener) {
	for {
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		go func() {
			defer conn.Close()
			for {
				message, err := readDNS(conn)
				if err != nil {
					return
				}
				writeDNS(conn, l.resolve(message, true))
			}
		}()
	}
}

func (l *lab) resolve(message []byte, tcp bool) []byte {
	var p dnsmessage.Parser
	h, err := p.Start(message)
	if err != nil {
		return nil
	}
	q, err := p.Question()
	if err != nil {
		return nil
	}
	name := strings.TrimSuffix(q.Name.String(), ".")
	l.hit("dns %s", name)
	h.Response, h.RecursionAvailable = true, true
	if name == "late.example.com" && q.Type == dnsmessage.TypeA {
		time.Sleep(3 * attemptDelay)
	}
	l.mu.Lock()
	addrs, known := l.names[name]
	alias := ""
	if known && len(addrs) == 1 && strings.HasPrefix(addrs[0], "-> ") {
		alias = addrs[0][3:]
		addrs, known = l.names[alias]
	}
	l.mu.Unlock()
	everything := name == "types.example.com" // has records of each type
	if !known && !everything {
		h.RCode = dnsmessage.RCodeNameError
	}
	h.Truncated = name == "large.example.com" && !tcp
	b := dnsmessage.NewBuilder(nil, h)
	b.StartQuestions()
	b.Question(q)
	b.StartAnswers()
	head := dnsmessage.ResourceHeader{Name: q.Name, Class: q.Class, TTL: 30}
	if strings.HasPrefix(name, "rebind.") {
		head.TTL = 0
	}
	if alias != "" {
		to := dnsmessage.MustNewName(alias + ".")
		b.CNAMEResource(head, dnsmessage.CNAMEResource{CNAME: to})
		head.Name = to
	}
	if everything {
		switch q.Type {
		case dnsmessage.TypeNS:
			b.NSResource(head, dnsmessage.NSResource{NS: q.Name})
		case dnsmessage.TypePTR:
			b.PTRResource(head, dnsmessage.PTRResource{PTR: q.Name})
		case dnsmessage.TypeSOA:
			b.SOAResource(head, dnsmessage.SOAResource{NS: q.Name, MBox: q.Name, Serial: 7})
		default:
			b.UnknownResource(head, dnsmessage.UnknownResource{Type: q.Type, Data: []byte("\x00\x05issueca")})
		}
	} else if !h.Truncated {
		for _, text := range addrs {
			addr, err := netip.ParseAddr(text)
			switch {
			case err != nil && q.Type == dnsmessage.TypeTXT:
				b.TXTResource(head, dnsmessage.TXTResource{TXT: []string{text}})
			case err != nil:
			case addr.Is4() && q.Type == dnsmessage.TypeA:
				b.AResource(head, dnsmessage.AResource{A: addr.As4()})
			case addr.Is6() && q.Type == dnsmessage.TypeAAAA:
				b.AAAAResource(head, dnsmessage.AAAAResource{AAAA: addr.As16()})
			}
		}
	}
	out, _ := b.Finish()
	return out
}

// secure opens a TLS connection and returns what the server says, or why there is none.
func (l *lab) secure(addr, name string) string {
	conn, err := l.inside.dial("tcp", addr)
	if err != nil {
		return errText(err)
	}
	defer conn.Close()
	return l.handshake(conn, name)
}

func (l *lab) handshake(conn net.Conn, name string) string {
	conn.SetDeadline(time.Now().Add(5 * time.Minute))
	client := tls.Client(conn, &tls.Config{ServerName: name, RootCAs: l.pool, InsecureSkipVerify: name == ""})
	if err := client.Handshake(); err != nil {
		return errText(err)
	}
	fmt.Fprintf(client, "hello\n")
	said, err := io.ReadAll(client)
	if err != nil {
		return errText(err)
	}
	return string(said)
}

func (l *lab) http(addr, request string) string {
	conn, err := l.inside.dial("tcp", addr)
	if err != nil {
		return errText(err)
	}
	defer conn.Close()
	return ask(conn, request)
}

// ask sends a request and returns the body of the answer, or why there is none.
func ask(conn net.Conn, request string) string {
	conn.SetDeadline(time.Now().Add(5 * time.Minute))
	io.WriteString(conn, request)
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return errText(err)
	}
	body, _ := io.ReadAll(resp.Body)
	return string(body)
}

func (l *lab) udp(addr string) string {
	conn, err := l.inside.dial("udp", addr)
	if err != nil {
		return errText(err)
	}
	defer conn.Close()
	buf := make([]byte, 16)
	for range 5 { // what is refused fails at once
		conn.SetDeadline(time.Now().Add(300 * time.Millisecond))
		if _, err = io.WriteString(conn, "ping"); err == nil {
			_, err = conn.Read(buf)
		}
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			break
		}
	}
	if err != nil {
		return errText(err)
	}
	return "ping"
}

// lookup asks a DNS server from inside.
func (l *lab) lookup(server, name string, kind dnsmessage.Type) string {
	return l.lookupBy("udp", server, name, kind)
}

func (l *lab) lookupBy(network, server, name string, kind dnsmessage.Type) string {
	conn, err := l.inside.dial(network, net.JoinHostPort(server, "53"))
	if err != nil {
		return errText(err)
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(5 * time.Minute))
	b := dnsmessage.NewBuilder(nil, dnsmessage.Header{ID: 7, RecursionDesired: true})
	b.StartQuestions()
	b.Question(dnsmessage.Question{Name: dnsmessage.MustNewName(name + "."), Type: kind, Class: dnsmessage.ClassINET})
	message, _ := b.Finish()
	buf := make([]byte, 4096)
	if network == "tcp" {
		if err := writeDNS(conn, message); err != nil {
			return errText(err)
		}
		if buf, err = readDNS(conn); err != nil {
			return errText(err)
		}
	} else {
		if _, err := conn.Write(message); err != nil {
			return errText(err)
		}
		n, err := conn.Read(buf)
		if err != nil {
			return errText(err)
		}
		buf = buf[:n]
	}
	var m dnsmessage.Message
	if err := m.Unpack(buf); err != nil {
		return err.Error()
	}
	if m.RCode != dnsmessage.RCodeSuccess {
		return m.RCode.String()
	}
	var all []string
	for _, r := range m.Answers {
		if a := addrOf(r); a.IsValid() {
			all = append(all, a.String())
		} else {
			all = append(all, r.Header.Type.String())
		}
	}
	return strings.Join(all, " ")
}

func errText(err error) string {
	switch {
	case errors.Is(err, unix.ECONNREFUSED), errors.Is(err, unix.ECONNRESET), errors.Is(err, unix.EPERM), errors.Is(err, unix.EACCES), errors.Is(err, unix.EPIPE), errors.Is(err, io.EOF):
		return "refused"
	case isTimeout(err):
		return "timeout"
	}
	return err.Error()
}

func isTimeout(err error) bool {
	t, ok := errors.AsType[net.Error](err)
	return ok && t.Timeout()
}
