//go:build linux

package egress

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/seed-1a2d6d8f/sandbox/internal/policy"
)

// script is a client that says what it says and then no more.
type script struct {
	net.Conn
	in  io.Reader
	out bytes.Buffer
}

func (s *script) Read(b []byte) (int, error)  { return s.in.Read(b) }
func (s *script) Write(b []byte) (int, error) { return s.out.Write(b) }
func (s *script) Close() error                { return nil }

// clientHello is what a TLS client says first.
func clientHello(t testing.TB, config *tls.Config) []byte {
	t.Helper()
	s := &script{in: strings.NewReader("")}
	tls.Client(s, config).Handshake()
	return s.out.Bytes()
}

// records cuts a handshake message into TLS records of n bytes.
func records(hello []byte, n int) []byte {
	var out []byte
	for body := hello[5:]; len(body) > 0; {
		part := body[:min(n, len(body))]
		body = body[len(part):]
		out = append(out, 0x16, 3, 1)
		out = binary.BigEndian.AppendUint16(out, uint16(len(part)))
		out = append(out, part...)
	}
	return out
}

func TestSniff(t *testing.T) {
	t.Parallel()
	hello := clientHello(t, &tls.Config{ServerName: "a.example.com"})
	if len(hello) < 1200 {
		t.Errorf("a hello of %d bytes is not a post-quantum one", len(hello))
	}
	nameless := clientHello(t, &tls.Config{InsecureSkipVerify: true})
	ssl := string(postgresSSLRequest)
	gss := "\x00\x00\x00\x08" + string(binary.BigEndian.AppendUint32(nil, postgresGSSAPI))
	for _, tt := range []struct {
		name, in, want, wrote string
		pg                    bool
	}{
		{"tls", string(hello), "a.example.com", "", false},
		{"tls in small records", string(records(hello, 7)), "a.example.com", "", false},
		{"tls without a name", string(nameless), "", "", false},
		{"tls that ends early", string(hello[:len(hello)-1]), "", "", false},
		{"postgres", ssl + string(hello), "a.example.com", "S", true},
		{"postgres with GSSAPI first", gss + ssl + string(hello), "a.example.com", "NS", true},
		{"postgres without TLS", "\x00\x00\x00\x08\x00\x03\x00\x00", "", "", false},
		{"postgres, then http", ssl + "GET / HTTP/1.1\r\nHost: a\r\n\r\n", "", "S", true},
		{"postgres for ever", strings.Repeat(gss, 10), "", "NNN", false},
		{"http", "GET / HTTP/1.1\r\nHost: a.example.com\r\n\r\n", "a.example.com", "", false},
		{"http with a port", "POST / HTTP/1.1\r\nHost: a.example.com:8080\r\n\r\n", "a.example.com", "", false},
		{"http, absolute", "GET http://b.example.com/ HTTP/1.1\r\nHost: a.example.com\r\n\r\n", "b.example.com", "", false},
		{"http with two hosts", "GET / HTTP/1.1\r\nHost: a.example.com\r\nHost: b.example.com\r\n\r\n", "", "", false},
		{"http without a host", "GET / HTTP/1.0\r\n\r\n", "", "", false},
		{"http to an address", "GET / HTTP/1.1\r\nHost: 203.0.113.1:80\r\n\r\n", "", "", false},
		{"http to an IPv6 address", "GET / HTTP/1.1\r\nHost: [2001:db8::1]\r\n\r\n", "", "", false},
		{"http connect", "CONNECT a.example.com:443 HTTP/1.1\r\nHost: a.example.com\r\n\r\n", "", "", false},
		{"http/2 without TLS", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "", "", false},
		{"http, absolute without a host", "GET http:///x HTTP/1.1\r\nHost: a.example.com\r\n\r\n", "", "", false},
		{"http, absolute with a user", "GET http://evil.test@b.example.com:80?x HTTP/1.0\r\n\r\n", "b.example.com", "", false},
		{"http, absolute with a backslash", "GET http://evil.test\\@b.example.com/ HTTP/1.1\r\nHost: a.example.com\r\n\r\n", "", "", false},
		{"http, opaque", "GET a.example.com HTTP/1.1\r\nHost: a.example.com\r\n\r\n", "", "", false},
		{"http with a space", "GET /a b HTTP/1.1\r\nHost: a.example.com\r\n\r\n", "", "", false},
		{"http, a path that is no URL's", "GET /100% HTTP/1.1\r\nHost: a.example.com\r\n\r\n", "a.example.com", "", false},
		{"http, absolute, a path that is no URL's", "GET http://b.example.com/%zz HTTP/1.1\r\nHost: a\r\n\r\n", "b.example.com", "", false},
		{"http, a path of two slashes", "GET //b.example.com/ HTTP/1.1\r\nHost: a.example.com\r\n\r\n", "a.example.com", "", false},
		{"http, a method in lower case", "get / HTTP/1.1\r\nhost: a.example.com\r\n\r\n", "a.example.com", "", false},
		{"http, connect in lower case", "connect a.example.com:443 HTTP/1.1\r\nHost: a.example.com\r\n\r\n", "", "", false},
		{"http after an empty line", "\r\nGET / HTTP/1.1\r\nHost: a.example.com\r\n\r\n", "a.example.com", "", false},
		{"http after two empty lines", "\r\n\r\nGET / HTTP/1.1\r\nHost: a.example.com\r\n\r\n", "", "", false},
		{"http, names that are no headers'", "GET / HTTP/1.1\r\nX@y: 1\r\n(z): 2\r\nX-Sp : 3\r\nnocolon\r\nHost: a.example.com\r\n\r\n", "a.example.com", "", false},
		{"http, no length", "POST / HTTP/1.1\r\nHost: a.example.com\r\nContent-Length: x\r\nTransfer-Encoding: y\r\n\r\n", "a.example.com", "", false},
		{"http, a continued line", "GET / HTTP/1.1\r\nX: y\r\n z\r\n\tz\r\nHost:\ta.example.com \r\n\r\n", "a.example.com", "", false},
		{"http with a continued host", "GET / HTTP/1.1\r\nHost: a.example.com\r\n .evil.test\r\n\r\n", "", "", false},
		{"http with a host that is empty and continued", "GET / HTTP/1.1\r\nHost:\r\n a.example.com\r\n\r\n", "", "", false},
		{"http with a host in a continued line", "GET / HTTP/1.1\r\nX: y\r\n Host: a.example.com\r\n\r\n", "", "", false},
		{"http with another host in a continued line", "GET / HTTP/1.1\r\nHost: a.example.com\r\nX: y\r\n\tHost: evil.test\r\n\r\n", "", "", false},
		{"http with a continued request line", "GET / HTTP/1.1\r\n X: y\r\nHost: a.example.com\r\n\r\n", "", "", false},
		{"http with a space after the name", "GET / HTTP/1.1\r\nHost: a.example.com\r\nHost : evil.test\r\n\r\n", "", "", false},
		{"http with a NUL in the name", "GET / HTTP/1.1\r\nHost: a.example.com\r\nHo\x00st: evil.test\r\n\r\n", "", "", false},
		{"http with a host without a colon", "GET / HTTP/1.1\r\nHost: a.example.com\r\nhost\r\n\r\n", "", "", false},
		{"http with a carriage return", "GET / HTTP/1.1\r\nHost: a.example.com\r\nX: y\rHost: evil.test\r\n\r\n", "", "", false},
		{"http with a line feed", "GET / HTTP/1.1\r\nHost: a.example.com\r\nX: y\nHost: evil.test\r\n\r\n", "", "", false},
		{"http, absolute with two hosts", "GET http://b.example.com/ HTTP/1.1\r\nHost: a.example.com\r\nHost: a.example.com\r\n\r\n", "", "", false},
		{"http whose headers do not end", "GET / HTTP/1.1\r\nHost: a.example.com\r\n", "", "", false},
		{"http, a large header", "GET / HTTP/1.1\r\nHost: a.example.com\r\nX: " + strings.Repeat("y", 60<<10) + "\r\n\r\n", "a.example.com", "", false},
		{"http, too large a header", "GET / HTTP/1.1\r\nHost: a.example.com\r\nX: " + strings.Repeat("y", 70<<10) + "\r\n\r\n", "", "", false},
		{"http header bomb", "GET / HTTP/1.1\r\nHost: a.example.com\r\n" + strings.Repeat("X: y\r\n", 100_000), "", "", false},
		{"a host of 1 MB", "GET / HTTP/1.1\r\nHost: " + strings.Repeat("a", 1<<20), "", "", false},
		{"ssh", "SSH-2.0-x\r\n", "", "", false},
		{"nothing", "", "", "", false},
	} {
		for _, n := range []int{1, 1 << 20} { // in one piece, and byte by byte
			s := &script{in: &slow{strings.NewReader(tt.in), n}}
			h, err := sniff(s)
			if h.name != tt.want || (err == nil) != (tt.want != "") || s.out.String() != tt.wrote || h.postgres != tt.pg {
				t.Errorf("%s: %+.40v, %v, wrote %q; want %q", tt.name, h, err, s.out.String(), tt.want)
			}
			if err == nil && !strings.HasSuffix(tt.in, string(h.said)) {
				t.Errorf("%s: what was said is not passed on", tt.name)
			}
		}
	}
}

// slow reads at most n bytes at a time.
type slow struct {
	io.Reader
	n int
}

func (s *slow) Read(b []byte) (int, error) { return s.Reader.Read(b[:min(len(b), s.n)]) }

func FuzzSniff(f *testing.F) {
	hello := clientHello(f, &tls.Config{ServerName: "a.example.com"})
	for _, seed := range [][]byte{
		hello, records(hello, 9), append(bytes.Clone(postgresSSLRequest), hello...),
		[]byte("GET / HTTP/1.1\r\nHost: a.example.com\r\n\r\n"), []byte("GET http://b/ HTTP/1.1\r\nHost: a\r\n\r\n"),
		[]byte("\r\nget /100% HTTP/1.1\r\nX@y : z\r\n z\r\nHost: a.example.com\r\n\r\n"), {0x16, 3, 1, 0xff, 0xff},
	} {
		f.Add(seed)
	}
	rules, _ := policy.Policy{Mode: policy.PublicOnly}.Compile()
	f.Fuzz(func(t *testing.T, in []byte) {
		s := &script{in: bytes.NewReader(in)}
		h, err := sniff(s)
		if (err == nil) == (h.name == "") {
			t.Errorf("%q, %v", h.name, err)
		}
		if len(h.said) > maxHello || err == nil && !bytes.Contains(in, h.said) {
			t.Errorf("%d bytes were read, which are not what was said", len(h.said))
		}
		// Package http takes the same host, where it takes the request.
		if !h.tls && !h.postgres && err == nil {
			req, e := http.ReadRequest(bufio.NewReader(bytes.NewReader(bytes.TrimPrefix(in, []byte("\r\n")))))
			if e == nil && req.Host != h.name && !strings.HasPrefix(req.Host, h.name+":") {
				t.Errorf("the host is %q, and for package http %q", h.name, req.Host)
			}
		}
		if _, e := netip.ParseAddr(h.name); e == nil {
			if _, ok := rules.Name(h.name); ok {
				t.Errorf("an address passes as a name: %q", h.name)
			}
		}
	})
}

func FuzzQuery(f *testing.F) {
	b := dnsmessage.NewBuilder(nil, dnsmessage.Header{ID: 7, RecursionDesired: true})
	b.StartQuestions()
	b.Question(dnsmessage.Question{Name: dnsmessage.MustNewName("a.example.com."), Type: dnsmessage.TypeA, Class: dnsmessage.ClassINET})
	message, _ := b.Finish()
	f.Add(message)
	rules, _ := policy.Policy{Mode: policy.PublicOnly}.Compile()
	s := &activePolicy{version: 1, rules: rules}
	f.Fuzz(func(t *testing.T, message []byte) {
		q, refused := readQuery(message)
		if q == nil {
			if len(refused) > 0 {
				var m dnsmessage.Message
				if err := m.Unpack(refused); err != nil || !m.Response {
					t.Errorf("a refusal that makes no sense: %v", err)
				}
			}
			return
		}
		a := answer{records: []dnsmessage.Resource{{
			Header: dnsmessage.ResourceHeader{Name: q.question.Name, Type: dnsmessage.TypeA, Class: dnsmessage.ClassINET},
			Body:   &dnsmessage.AResource{A: [4]byte{203, 0, 113, 1}},
		}}}
		reply := q.reply(s, a, q.datagram)
		var m dnsmessage.Message
		if err := m.Unpack(reply); err != nil || !m.Response || m.ID != q.head.ID || len(reply) > maxDatagram {
			t.Errorf("an answer of %d bytes: %v", len(reply), err)
		}
	})
}

func FuzzAnswer(f *testing.F) {
	q := dnsmessage.Question{Name: dnsmessage.MustNewName("a.example.com."), Type: dnsmessage.TypeA, Class: dnsmessage.ClassINET}
	b := dnsmessage.NewBuilder(nil, dnsmessage.Header{ID: 7, Response: true})
	b.StartQuestions()
	b.Question(q)
	b.StartAnswers()
	b.AResource(dnsmessage.ResourceHeader{Name: q.Name, Class: q.Class, TTL: 9}, dnsmessage.AResource{A: [4]byte{203, 0, 113, 1}})
	message, _ := b.Finish()
	f.Add(message)
	rules, _ := policy.Policy{Mode: policy.PublicOnly}.Compile()
	s := &activePolicy{version: 1, rules: rules}
	f.Fuzz(func(t *testing.T, message []byte) {
		a, more, err := readAnswer(message, q)
		if err != nil || more {
			return
		}
		reply := (&query{question: q}).reply(s, a, maxDatagram)
		var m dnsmessage.Message
		if err := m.Unpack(reply); err != nil {
			t.Fatal(err)
		}
		for _, r := range m.Answers {
			if addr := addrOf(r); addr.IsValid() && !rules.Into(addr) {
				t.Errorf("%v passed", addr)
			}
		}
	})
}

func FuzzPacket(f *testing.F) {
	f.Add([]byte{0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 203, 0, 113, 1, 0, 1, 0, 2, 0, 0, 0, 0})
	f.Fuzz(func(t *testing.T, p []byte) {
		if d, ok := readPacket(p); ok && !d.addr.IsValid() {
			t.Errorf("%+v", d)
		}
	})
}

// Where only the names that are transformed take a connection from its client, all others get to
// their servers as they are, whatever protocol they speak. What is not clear is logged as that.
func TestProtocolsWithoutNames(t *testing.T) {
	l := newLab(t)
	says := []string{"\x10\x00mqtt", "\x00\x00\x00\x07", "\x00\x01", "get key\r\n", "\r\n\r\n", "USER x\r\n", "*1\r\n", "GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n"}
	echo := func(say string) string {
		conn, err := l.inside.dial("tcp", otherAddr+":7")
		if err != nil {
			return errText(err)
		}
		defer conn.Close()
		conn.SetDeadline(time.Now().Add(5 * time.Minute))
		io.WriteString(conn, say)
		got := make([]byte, len(say))
		n, err := io.ReadFull(conn, got)
		if err != nil {
			return errText(err)
		}
		return string(got[:n])
	}
	l.begin(1, parse(t, "allow=* transform=secret.example.com"), withSecret(l, "secret.example.com"))
	for _, say := range says {
		if got := echo(say); got != say {
			t.Errorf("%q arrives as %q", say, got)
		}
	}
	l.begin(2, parse(t, "allow=*.example.com"))
	for say, rule := range map[string]string{
		"get key\r\n": string(policy.ByName), "GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n": ruleUnclear,
		"GET / HTTP/1.1\r\n\r\n": string(policy.ByName), "GET / HTTP/1.1\r\nX: " + strings.Repeat("y", 70<<10) + "\r\n\r\n": ruleUnclear,
	} {
		if got := echo(say); got != refusedText {
			t.Errorf("%.40q: %q, want a refusal", say, got)
		}
		if e := l.enforcer.log.entries().Entries[0]; e.Rule != rule || e.Allowed {
			t.Errorf("%.40q is logged as %+v, want the rule %q", say, e, rule)
		}
	}
}

func TestDNSFilter(t *testing.T) {
	l := newLab(t)
	l.mu.Lock()
	l.names["text.example.com"] = []string{"a text"}
	l.names["large.example.com"] = nil
	for i := range 200 {
		l.names["large.example.com"] = append(l.names["large.example.com"], fmt.Sprintf("203.0.113.%d", i))
	}
	l.mu.Unlock()
	l.begin(1, parse(t, "allow=*.example.com"))
	l.took()
	for _, tt := range []struct {
		network, name string
		kind          dnsmessage.Type
		want          string
	}{
		{"udp", "a.example.com", dnsmessage.TypeA, alphaAddr},
		{"udp", "A.eXample.com", dnsmessage.TypeA, alphaAddr},
		{"tcp", "a.example.com", dnsmessage.TypeAAAA, alpha6},
		{"udp", "text.example.com", dnsmessage.TypeTXT, "TypeTXT"},
		{"udp", "mixed.example.com", dnsmessage.TypeA, alphaAddr},
		{"udp", "lo.example.com", dnsmessage.TypeA, ""},
		{"udp", "gate.example.com", dnsmessage.TypeA, ""},
		{"udp", "none.example.com", dnsmessage.TypeA, "RCodeNameError"},
		{"udp", "a.example.com", 65, ""},
		{"udp", "a.example.com", dnsmessage.TypeSVCB, ""},
		{"udp", "types.example.com", dnsmessage.TypeNS, "RCodeNotImplemented"},
		{"udp", "types.example.com", dnsmessage.TypePTR, "RCodeNotImplemented"},
		{"tcp", "types.example.com", dnsmessage.TypeALL, "RCodeNotImplemented"},
		{"tcp", "types.example.com", dnsmessage.TypeAXFR, "RCodeNotImplemented"},
		{"udp", "x-.example.com", dnsmessage.TypeA, "RCodeNameError"},
		{"udp", "", dnsmessage.TypeA, "RCodeNameError"},
		{"udp", "example.com", dnsmessage.TypeA, "RCodeNameError"},
		{"udp", "c2VjcmV0.evil.test", dnsmessage.TypeTXT, "RCodeNameError"},
		{"tcp", "c2VjcmV0.evil.test", dnsmessage.TypeTXT, "RCodeNameError"},
	} {
		if got := l.lookupBy(tt.network, otherAddr, tt.name, tt.kind); got != tt.want {
			t.Errorf("%s %s %v: %q, want %q", tt.network, tt.name, tt.kind, got, tt.want)
		}
	}
	for _, h := range l.took() {
		if strings.Contains(h, "evil") || h == "dns example.com" || h == "dns types.example.com" || h == "dns " {
			t.Errorf("reached: %s", h)
		}
	}
	if got := strings.Fields(l.lookupBy("tcp", otherAddr, "large.example.com", dnsmessage.TypeA)); len(got) != 200 {
		t.Errorf("a large answer over TCP has %d addresses", len(got))
	}
	if got := strings.Fields(l.lookup(otherAddr, "large.example.com", dnsmessage.TypeA)); len(got) != 29 { // what 512 bytes hold
		t.Errorf("a large answer over UDP has %d addresses", len(got))
	}
}

// Where all names are allowed, so are all types of records, and names that are no host's.
func TestAllRecordsAreResolvedUnderAnOpenPolicy(t *testing.T) {
	l := newLab(t)
	odd := []string{"", "x-.example.com", "-x.example.com", "*.example.com", "a/b.example.com", "a b.example.com", "a.123", "\xff\xfe.example.com", "1.2.0.192.in-addr.arpa"}
	l.mu.Lock()
	for _, name := range odd {
		l.names[name] = []string{alphaAddr}
	}
	l.mu.Unlock()
	for version, text := range []string{"", "public-only", "allow=*", "allow=* transform=secret.example.com"} {
		if text == "" {
			continue
		}
		l.begin(int64(version), parse(t, text), withSecret(l, "secret.example.com"))
		for _, name := range odd {
			if got := l.lookup(otherAddr, name, dnsmessage.TypeA); got != alphaAddr {
				t.Errorf("%s: %q: %q, want %s", text, name, got, alphaAddr)
			}
		}
		for kind, want := range map[dnsmessage.Type]string{
			dnsmessage.TypeNS: "TypeNS", dnsmessage.TypePTR: "TypePTR", dnsmessage.TypeSOA: "TypeSOA", dnsmessage.TypeHINFO: "TypeHINFO",
			29: "29", 35: "35", 43: "43", 257: "257", 65280: "65280", // LOC, NAPTR, DS, CAA, one of private use
		} {
			if got := l.lookup(otherAddr, "types.example.com", kind); got != want {
				t.Errorf("%s: %v: %q, want %s", text, kind, got, want)
			}
		}
		l.took()
		for kind, want := range map[dnsmessage.Type]string{
			dnsmessage.TypeHTTPS: "", dnsmessage.TypeSVCB: "", 0: "RCodeNotImplemented", 3: "RCodeNotImplemented", dnsmessage.TypeOPT: "RCodeNotImplemented",
			250: "RCodeNotImplemented", 251: "RCodeNotImplemented", dnsmessage.TypeAXFR: "RCodeNotImplemented", dnsmessage.TypeALL: "RCodeNotImplemented",
		} {
			if got := l.lookupBy("tcp", otherAddr, "types.example.com", kind); got != want {
				t.Errorf("%s: %v: %q, want %q", text, kind, got, want)
			}
		}
		if hits := l.took(); len(hits) > 0 {
			t.Errorf("%s: reached: %q", text, hits)
		}
	}
}

// A flood of connections that say nothing, too much, or the wrong thing, and of lookups:
// what is allowed goes on, what is not arrives nowhere, and memory stays bounded.
func TestFloodsOpenNothing(t *testing.T) {
	l := newLab(t)
	l.begin(1, parse(t, "allow=a.example.com"))
	l.took()
	stop := make(chan struct{})
	var attack sync.WaitGroup
	enemy := l.inside.again()
	hellos := []string{"", "\x16\x03\x01\xff\xff", "GET / HTTP/1.1\r\nX: " + strings.Repeat("y", 100), strings.Repeat("Z", 1<<20)}
	for _, say := range slices.Repeat(hellos, 4) { // on a busy machine one dials too slowly for a crowd
		enemy := l.inside.again() // dials of each wait for no other's
		attack.Go(func() {
			var open []net.Conn
			defer func() {
				for _, c := range open {
					c.Close()
				}
			}()
			for range 125 {
				select {
				case <-stop:
					return
				default:
				}
				conn, err := enemy.dialFrom("tcp", otherAddr+":443", &net.Dialer{Timeout: time.Second})
				if err != nil {
					continue
				}
				conn.SetWriteDeadline(time.Now().Add(20 * time.Millisecond))
				io.WriteString(conn, say)
				open = append(open, conn)
			}
			<-stop
		})
	}
	attack.Go(func() {
		conn, err := enemy.dial("udp", otherAddr+":53")
		if err != nil {
			return
		}
		defer conn.Close()
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			b := dnsmessage.NewBuilder(nil, dnsmessage.Header{ID: 7})
			b.StartQuestions()
			b.Question(dnsmessage.Question{Name: dnsmessage.MustNewName(fmt.Sprintf("%d.evil.test.", i)), Type: dnsmessage.TypeA, Class: dnsmessage.ClassINET})
			message, _ := b.Finish()
			conn.Write(message)
			if i%100 == 0 {
				time.Sleep(time.Millisecond)
			}
		}
	})
	end := sync.OnceFunc(func() {
		close(stop)
		attack.Wait()
	})
	t.Cleanup(end)
	crowd := func() int {
		l.enforcer.proxy.mu.Lock()
		defer l.enforcer.proxy.mu.Unlock()
		return len(l.enforcer.proxy.hellos)
	}
	for deadline := time.Now().Add(5 * time.Minute); crowd() < maxFlows/2; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("the attack itself failed: %d wait", crowd())
		}
	}
	worst := time.Duration(0)
	for range 20 {
		begin := time.Now()
		// On a busy machine the name's other address may be quicker.
		if got := l.secure(alphaAddr+":443", "a.example.com"); got != toAlpha && got != "tls ["+alpha6+"]:443 a.example.com hello\n" {
			t.Errorf("under the flood: %q", got)
		}
		worst = max(worst, time.Since(begin))
	}
	l.enforcer.proxy.mu.Lock()
	flows, waiting := len(l.enforcer.proxy.flows), len(l.enforcer.proxy.hellos)
	l.enforcer.proxy.mu.Unlock()
	var mem runtime.MemStats
	runtime.ReadMemStats(&mem)
	t.Logf("slowest allowed connection %v; %d flows, %d hellos, heap %d MiB", worst, flows, waiting, mem.HeapInuse>>20)
	if flows > maxFlows || waiting > maxFlows {
		t.Errorf("%d flows, %d hellos", flows, waiting)
	}
	end()
	for _, h := range l.took() {
		if h != "dns a.example.com" && !strings.HasPrefix(h, "tcp "+alphaAddr+":443") && !strings.HasPrefix(h, "tcp ["+alpha6+"]:443") {
			t.Errorf("reached: %s", h)
		}
	}
}

func TestWithoutDescriptorsNothingIsCarried(t *testing.T) {
	t.Parallel()
	p := &proxy{max: 0, flows: map[*flow]struct{}{}}
	if p.admit(&flow{}) {
		t.Error("a connection was admitted")
	}
}
