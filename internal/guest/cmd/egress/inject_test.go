//go:build linux

package egress

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/seed-1a2d6d8f/sandbox/internal/guest/wire"
)

// client is an HTTP client inside, which trusts the session's authority alone.
func (l *lab) client(h2 bool) *http.Client { return l.clientTo(otherAddr, h2) } // wherever

func (l *lab) clientTo(to string, h2 bool) *http.Client {
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM([]byte(l.enforcer.Network().CA))
	transport := &http.Transport{
		TLSClientConfig:   &tls.Config{RootCAs: pool},
		ForceAttemptHTTP2: h2,
		DialContext: func(_ context.Context, _, addr string) (net.Conn, error) {
			_, port, _ := net.SplitHostPort(addr)
			return l.inside.dial("tcp", net.JoinHostPort(to, port))
		},
	}
	l.t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

func fetch(c *http.Client, req *http.Request) string {
	resp, err := c.Do(req)
	if err != nil {
		return "error"
	}
	defer resp.Body.Close()
	body, _ := io.ReadAll(resp.Body)
	return strings.TrimSpace(string(body))
}

// injected sends a request line as it is, and returns the status line of the answer.
func (l *lab) injected(line string) string {
	transport := l.client(false).Transport.(*http.Transport)
	conn, err := l.inside.dial("tcp", otherAddr+":8444")
	if err != nil {
		return errText(err)
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(5 * time.Minute))
	client := tls.Client(conn, &tls.Config{ServerName: "secret.example.com", RootCAs: transport.TLSClientConfig.RootCAs, NextProtos: []string{"http/1.1"}})
	io.WriteString(client, line+" HTTP/1.1\r\nHost: secret.example.com\r\n\r\n")
	status, err := bufio.NewReader(client).ReadString('\n')
	if err != nil {
		return errText(err)
	}
	return strings.TrimSpace(status)
}

func get(url string, headers ...string) *http.Request {
	req, _ := http.NewRequest(http.MethodGet, url, nil)
	for i := 0; i < len(headers); i += 2 {
		if headers[i] == "Host" {
			req.Host = headers[i+1]
		}
		req.Header.Set(headers[i], headers[i+1])
	}
	return req
}

const token = "Bearer s3cr3t"

func withSecret(l *lab, patterns ...string) func(*wire.Begin) {
	return func(b *wire.Begin) {
		b.Roots = l.roots
		for _, p := range patterns {
			b.Secrets = append(b.Secrets, wire.Secret{Pattern: p, Headers: map[string]string{"Authorization": token}})
		}
	}
}

func TestSecretsAreSetOnTheWay(t *testing.T) {
	l := newLab(t)
	told := ""
	l.enforcer.trust = func(cert string) error { told = cert; return nil }
	p := parse(t, "allow=a.example.com transform=secret.example.com")
	l.begin(1, p) // without the secret
	l.took()
	url := "https://secret.example.com:8444/x"
	if got := fetch(l.client(false), get(url)); got != "error" || len(l.took()) > 0 {
		t.Errorf("without its secret: %q", got)
	}
	if got := l.enforcer.Network().Missing; !slices.Equal(got, []string{"secret.example.com"}) {
		t.Errorf("missing %q", got)
	}
	l.begin(1, p, withSecret(l, "secret.example.com"))
	if n := l.enforcer.Network(); len(n.Missing) > 0 || n.CA == "" || n.CA != told {
		t.Errorf("%+v, told %q", n, told)
	}
	for _, tt := range []struct {
		h2        bool
		req       *http.Request
		want, hit string
	}{
		{false, get(url), "HTTP/2.0 secret.example.com:8444 /x", token},
		{true, get(url), "HTTP/2.0 secret.example.com:8444 /x", token},
		{false, get(url, "Authorization", "Bearer mine"), "HTTP/2.0 secret.example.com:8444 /x", token},
		{false, get(url, "Connection", "Authorization"), "HTTP/2.0 secret.example.com:8444 /x", token},
		{true, get(url, "Host", "evil.test"), "HTTP/2.0 secret.example.com:8444 /x", token},
	} {
		l.took()
		got := fetch(l.client(tt.h2), tt.req)
		hits := slices.DeleteFunc(l.took(), func(h string) bool { return !strings.HasPrefix(h, "https ") })
		want := []string{"https " + alphaAddr + ":8444 secret.example.com:8444 " + tt.hit}
		if diff := cmp.Diff(want, hits); got != tt.want || diff != "" {
			t.Errorf("%v: %q, want %q; hits: %s", tt.req.Header, got, tt.want, diff)
		}
	}
	// What would show the secret, or is not for it.
	l.took()
	for _, line := range []string{
		"TRACE /x", "trace /x", "TraCe /x", "TRACK /x", "track /x", "CONNECT secret.example.com:8444", "connect /x", "CONNECT /x",
		"OPTIONS *", "GET https://secret.example.com:8444", "GET https:opaque",
	} {
		if got := l.injected(line); got != "HTTP/1.1 405 Method Not Allowed" && got != "HTTP/1.1 400 Bad Request" {
			t.Errorf("%s: %q", line, got)
		}
	}
	for _, method := range []string{"TRACE", "trace", "TRACK", "Connect"} {
		req := get(url)
		req.Method = method
		if got := fetch(l.client(true), req); !strings.Contains(got, "not forwarded") {
			t.Errorf("%s by HTTP/2: %q", method, got)
		}
	}
	plain := l.http(alphaAddr+":80", "GET / HTTP/1.1\r\nHost: secret.example.com\r\n\r\n")
	if plain != refusedText {
		t.Errorf("without TLS: %q", plain)
	}
	if hits := l.took(); len(hits) > 0 {
		t.Errorf("reached: %q", hits)
	}
	// Other names keep their own TLS.
	if got := l.secure(alphaAddr+":443", "a.example.com"); got != toAlpha {
		t.Errorf("a name that is not transformed: %q", got)
	}
	// And the server is verified, with roots that the owner knows.
	l.begin(2, p, withSecret(l, "secret.example.com"), func(b *wire.Begin) { b.Roots = "" })
	if got := fetch(l.client(false), get(url)); !strings.Contains(got, "can't be reached") || strings.Contains(got, "s3cr3t") {
		t.Errorf("a server that nobody vouches for: %q", got)
	}
	for _, e := range l.enforcer.log.entries().Entries {
		if strings.Contains(e.Name+e.Rule, "s3cr3t") {
			t.Errorf("the record has the secret: %+v", e)
		}
	}
}

// serveTLS serves HTTP over TLS at an address of the world.
func (l *lab) serveTLS(addr string, server *http.Server) {
	l.t.Helper()
	var listener net.Listener
	var err error
	l.outside.do(func() { listener, err = net.Listen("tcp", addr) })
	if err != nil {
		l.t.Fatal(err)
	}
	server.TLSConfig, server.ErrorLog = l.tls.Clone(), log.New(io.Discard, "", 0)
	l.t.Cleanup(func() { server.Close() })
	go server.ServeTLS(listener, "", "")
}

func onlyHTTP1() *http.Protocols {
	p := new(http.Protocols)
	p.SetHTTP1(true)
	return p
}

// tlsTo connects to a name, by TLS that PID 1 ends.
func (l *lab) tlsTo(port, name string) *tls.Conn {
	l.t.Helper()
	pool := l.client(false).Transport.(*http.Transport).TLSClientConfig.RootCAs
	conn, err := l.inside.dial("tcp", otherAddr+":"+port)
	if err != nil {
		l.t.Fatal(err)
	}
	l.t.Cleanup(func() { conn.Close() })
	conn.SetDeadline(time.Now().Add(5 * time.Minute))
	return tls.Client(conn, &tls.Config{ServerName: name, RootCAs: pool, NextProtos: []string{"http/1.1"}})
}

// What is not said to change arrives as it was sent.
func TestOnlyTheHeadersThatAreSetChange(t *testing.T) {
	l := newLab(t)
	type seen struct {
		uri, body, trailer string
		header             http.Header
	}
	announced := map[string]string{"7443": "Trailer: Sum\r\n"} // HTTP/2 has no others
	for port, protocols := range map[string]*http.Protocols{"7443": nil, "7444": onlyHTTP1()} {
		requests := make(chan seen, 1)
		l.serveTLS(alphaAddr+":"+port, &http.Server{Protocols: protocols, Handler: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			body, _ := io.ReadAll(r.Body)
			requests <- seen{r.RequestURI, string(body), r.Trailer.Get("Sum"), r.Header}
		})})
		l.begin(1, parse(t, "transform=secret.example.com"), withSecret(l, "secret.example.com"))
		targets := map[string]string{} // as they are sent, and as they arrive
		for _, query := range queries(rand.New(rand.NewPCG(34, 4)), 60) {
			targets["/a%2Fb//c;d"+query] = "/a%2Fb//c;d" + query
		}
		for path, want := range paths {
			targets[path] = want
		}
		for target, want := range targets {
			conn := l.tlsTo(port, "secret.example.com")
			io.WriteString(conn, "POST "+target+" HTTP/1.1\r\nHost: secret.example.com\r\nX-Raw: caf\xe9\r\nForwarded: for=me\r\nX-Forwarded-For: 192.0.2.1\r\nX-Forwarded-Host: h\r\n"+
				announced[port]+"Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n4\r\nbody\r\n0\r\nSum: 7\r\n\r\n")
			if answer, err := io.ReadAll(conn); err != nil || !strings.HasPrefix(string(answer), "HTTP/1.1 200 OK") {
				t.Fatalf("%s: %s, %v", target, answer, err)
			}
			got := <-requests
			if got.uri != want || got.body != "body" || got.trailer != "7" {
				t.Errorf("%q arrives as %+v, want %q", target, got, want)
			}
			for name, want := range map[string]string{"X-Raw": "caf\xe9", "Forwarded": "for=me", "X-Forwarded-For": "192.0.2.1", "X-Forwarded-Host": "h", "X-Forwarded-Proto": "", "Authorization": token} {
				if got := got.header.Get(name); got != want {
					t.Errorf("%s arrives as %q, want %q", name, got, want)
				}
			}
			conn.Close()
		}
	}
}

// paths are paths of URLs, and how they arrive: bytes that a URL can't have are percent-encoded, and
// nothing else is encoded or decoded.
var paths = map[string]string{
	"/group%2Fproject/x":           "/group%2Fproject/x",
	"/group%2fproject/x|y":         "/group%2fproject/x%7Cy",
	"/group%2Fproject/{id}^\"q\"":  "/group%2Fproject/%7Bid%7D%5E%22q%22",
	"/a%2Bb%26c%3Bd%40e%3De%24/x`": "/a%2Bb%26c%3Bd%40e%3De%24/x%60",
	"/%2e%2e%2Fetc<|>":             "/%2e%2e%2Fetc%3C%7C%3E",
	"/%41%7e|!$&'()*+,;=:@[]-._~":  "/%41%7e%7C!$&'()*+,;=:@[]-._~",
	"/a%25b%3Fc%5C\\#d":            "/a%25b%3Fc%5C%5C%23d",
	"//a%2Fb//../c\xc3\xbc\xff/*":  "//a%2Fb//../c%C3%BC%FF/*",
}

// raw serves bytes over TLS at an address: what answer returns for the head of a request.
func (l *lab) raw(addr string, answer func(head string) string) {
	l.listen(addr, func(conn *net.TCPConn) {
		server := tls.Server(conn, l.tls)
		head, err := http.ReadRequest(bufio.NewReader(server))
		if err == nil {
			io.WriteString(server, answer(head.URL.Path))
			server.Close()
		}
	})
}

// An answer gets no header that its server did not send, and loses that of another way to it.
func TestAnswersGetNoHeaders(t *testing.T) {
	l := newLab(t)
	answers := map[string]string{
		"/end":    "HTTP/1.0 200 OK\r\n\r\n<html></html>",
		"/length": "HTTP/1.1 200 OK\r\nContent-Length: 13\r\n\r\n<html></html>",
		"/early":  "HTTP/1.1 103 Early Hints\r\nLink: </a>\r\nAlt-Svc: h3=\":443\"\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 13\r\n\r\n<html></html>",
		"/other":  "HTTP/1.1 200 OK\r\nAlt-Svc: h3=\":443\"; ma=86400\r\nAlt-Svc: h3=\":8443\"\r\nContent-Length: 13\r\n\r\n<html></html>",
		"/typed":  "HTTP/1.1 404 Not Found\r\nContent-Type: a/b\r\nDate: today\r\nContent-Length: 13\r\n\r\n<html></html>",
	}
	l.raw(alphaAddr+":7443", func(path string) string { return answers[path] })
	l.begin(1, parse(t, "transform=secret.example.com"), withSecret(l, "secret.example.com"))
	for path, answer := range answers {
		for _, h2 := range []bool{false, true} {
			request := get("https://secret.example.com:7443" + path)
			early := http.Header{}
			hints := &httptrace.ClientTrace{Got1xxResponse: func(_ int, h textproto.MIMEHeader) error {
				early = http.Header(h)
				return nil
			}}
			resp, err := l.client(h2).Do(request.WithContext(httptrace.WithClientTrace(request.Context(), hints)))
			if err != nil {
				t.Fatal(err)
			}
			if path == "/early" != (early.Get("Link") == "</a>") || early.Get("Alt-Svc") != "" {
				t.Errorf("%s: early hints %v", path, early)
			}
			body, err := io.ReadAll(resp.Body)
			resp.Body.Close()
			if string(body) != "<html></html>" || err != nil {
				t.Errorf("%s: %q, %v", path, body, err)
			}
			want := http.Header{}
			if path == "/typed" {
				want = http.Header{"Content-Type": {"a/b"}, "Date": {"today"}}
			}
			resp.Header.Del("Content-Length")
			resp.Header.Del("Connection")
			if diff := cmp.Diff(want, resp.Header); diff != "" {
				t.Errorf("%q, HTTP/2 %t (-want +got):\n%s", answer, h2, diff)
			}
		}
	}
}

// Who expects a 100 (Continue) gets it from the server, or the server's refusal.
func TestServersAnswerExpectations(t *testing.T) {
	l := newLab(t)
	l.raw(alphaAddr+":7443", func(string) string {
		return "HTTP/1.1 417 Expectation Failed\r\nContent-Length: 0\r\n\r\n"
	})
	l.serveTLS(alphaAddr+":7444", &http.Server{Protocols: onlyHTTP1(), Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		io.Copy(w, r.Body) // the first Read sends 100
	})})
	l.begin(1, parse(t, "transform=secret.example.com"), withSecret(l, "secret.example.com"))
	for port, status := range map[string]string{"7443": "HTTP/1.1 417 Expectation Failed\r\n", "7444": "HTTP/1.1 100 Continue\r\n"} {
		conn := l.tlsTo(port, "secret.example.com")
		io.WriteString(conn, "PUT / HTTP/1.1\r\nHost: secret.example.com\r\nExpect: 100-continue\r\nContent-Length: 4\r\nConnection: close\r\n\r\n")
		r := bufio.NewReader(conn)
		if got, err := r.ReadString('\n'); got != status {
			t.Errorf("%q, %v, want %q", got, err, status)
		}
		if port == "7443" {
			continue
		}
		io.WriteString(conn, "body")
		if got, err := io.ReadAll(r); !strings.Contains(string(got), "HTTP/1.1 200 OK\r\n") || !strings.HasSuffix(string(got), "body") {
			t.Errorf("after the body: %q, %v", got, err)
		}
	}
}

// queries returns queries of URLs, among them those that are not of the form of HTML's forms.
func queries(random *rand.Rand, n int) []string {
	list := []string{
		"", "?", "?a=1;b=2", "?fields=items(id;name)&z=1&a=2", "?q=50%&x=1", "?X-Amz-Signature=ab&X-Amz-Date=1&partNumber=1;x",
		"?z=1&a=2", "?a=&b", "?a=%2F&b=%zz", "?;", "?&&", "?a=b=c", "?%", "?a=\xc3\xa9", "?a=\xff", "?a#b",
	}
	parts := []string{"a", "b", "=", "&", ";", "%", "%2", "%41", "+", "?", "/", "\xe9", "é", ",", "'", "(", "[", "|", "{"}
	for len(list) < n {
		q := "?"
		for range random.IntN(8) {
			q += parts[random.IntN(len(parts))]
		}
		list = append(list, q)
	}
	return list
}

// A request that can't be repeated never fails by a connection that another one left.
func TestAPostTakesNoConnectionThatMayBeClosed(t *testing.T) {
	l := newLab(t)
	// A server that closes a kept connection when the next request comes.
	served := func(conn net.Conn) {
		server := tls.Server(conn, l.tls)
		r := bufio.NewReader(server)
		req, err := http.ReadRequest(r)
		if err != nil {
			return
		}
		io.Copy(io.Discard, req.Body)
		io.WriteString(server, "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\ndone")
		r.Peek(1)
	}
	l.listen(alphaAddr+":7443", func(conn *net.TCPConn) { served(conn) })
	l.begin(1, parse(t, "transform=secret.example.com"), withSecret(l, "secret.example.com"))
	kept := l.client(false) // on one connection
	defer kept.CloseIdleConnections()
	post := func(c *http.Client, method, body string) string {
		req, _ := http.NewRequest(method, "https://secret.example.com:7443/", strings.NewReader(body))
		return fetch(c, req)
	}
	for i := range 40 {
		c, method := kept, []string{"POST", "PUT", "DELETE", "PATCH", "GET"}[i%5]
		if i%2 == 0 {
			c = l.client(false) // on a connection of its own
		}
		if got := post(c, method, strings.Repeat("x", i*7000)); got != "done" {
			t.Errorf("%d, %s: %s", i, method, got)
		}
		c.CloseIdleConnections()
		kept.CloseIdleConnections()
		kept = l.client(false)
		// Twice on one connection, whose first request left one to the server.
		for range 2 {
			if got := post(kept, method, "x"); got != "done" {
				t.Errorf("%d, %s on a kept connection: %s", i, method, got)
			}
		}
	}
}

// Upgrades work as they would without PID 1, to a server that has HTTP/2, too. That to HTTP/2 in
// clear text, whose requests would pass unseen, is not offered.
func TestUpgradesReachServersThatHaveHTTP2(t *testing.T) {
	l := newLab(t)
	waiting, goOn := make(chan struct{}), make(chan struct{})
	l.serveTLS(alphaAddr+":7443", &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		kind := r.Header.Get("Upgrade")
		if kind == "" {
			io.WriteString(w, "none")
			return
		}
		if r.URL.Path == "/chooses" {
			kind = "websocket"
			waiting <- struct{}{}
			<-goOn
		}
		conn, rw, err := http.NewResponseController(w).Hijack()
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		defer conn.Close()
		fmt.Fprintf(rw, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: %s\r\n\r\n%s", kind, r.Header.Get("Authorization"))
		rw.Flush()
		io.Copy(conn, rw)
	})})
	l.begin(1, parse(t, "transform=secret.example.com"), withSecret(l, "secret.example.com"))
	for _, kind := range []string{"SPDY/3.1", "tcp", "websocket", "WebSocket", "x/1"} {
		conn := l.tlsTo("7443", "secret.example.com")
		fmt.Fprintf(conn, "POST / HTTP/1.1\r\nHost: secret.example.com\r\nConnection: Upgrade\r\nUpgrade: %s\r\n\r\n", kind)
		r := bufio.NewReader(conn)
		resp, err := http.ReadResponse(r, nil)
		if err != nil || resp.StatusCode != 101 || resp.Header.Get("Upgrade") != kind {
			t.Errorf("%s: %v, %v", kind, resp, err)
			continue
		}
		io.WriteString(conn, "ping")
		got := make([]byte, len(token)+4)
		if _, err := io.ReadFull(r, got); err != nil || string(got) != token+"ping" {
			t.Errorf("%s: %q, %v", kind, got, err)
		}
	}
	// Several offers, of which the server chooses one, and what the client sends before the answer.
	for offers, early := range map[string]string{"Upgrade: foo, websocket": "", "Upgrade: websocket, foo": "early", "Upgrade: foo\r\nUpgrade: websocket": "early and late"} {
		conn := l.tlsTo("7443", "secret.example.com")
		fmt.Fprintf(conn, "GET /chooses HTTP/1.1\r\nHost: secret.example.com\r\nConnection: Upgrade\r\n%s\r\n\r\n%s", offers, strings.TrimSuffix(early, " and late"))
		<-waiting
		if strings.HasSuffix(early, "late") {
			io.WriteString(conn, " and late")
		}
		goOn <- struct{}{}
		r := bufio.NewReader(conn)
		resp, err := http.ReadResponse(r, nil)
		if err != nil || resp.StatusCode != 101 || resp.Header.Get("Upgrade") != "websocket" {
			t.Errorf("%s: %v, %v", offers, resp, err)
			continue
		}
		conn.CloseWrite()
		if got, err := io.ReadAll(r); err != nil || string(got) != token+early {
			t.Errorf("%s: %q, %v, want %q", offers, got, err, token+early)
		}
	}
	conn := l.tlsTo("7443", "secret.example.com")
	io.WriteString(conn, "GET / HTTP/1.1\r\nHost: secret.example.com\r\nConnection: Upgrade, HTTP2-Settings, close\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n\r\n")
	if got, err := io.ReadAll(conn); err != nil || !strings.HasPrefix(string(got), "HTTP/1.1 200 OK") || !strings.HasSuffix(string(got), "none") {
		t.Errorf("h2c: %q, %v", got, err)
	}
}

// rawH2 serves HTTP/2 at an address: end ends each stream whose request is complete.
func (l *lab) rawH2(addr string, end func(f *http2.Framer, id uint32, path string)) {
	config := l.tls.Clone()
	config.NextProtos = []string{"h2"}
	l.listen(addr, func(conn *net.TCPConn) {
		server := tls.Server(conn, config)
		if _, err := io.ReadFull(server, make([]byte, len(http2.ClientPreface))); err != nil {
			return
		}
		f := http2.NewFramer(server, server)
		f.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
		f.WriteSettings()
		paths := map[uint32]string{}
		for {
			frame, err := f.ReadFrame()
			if err != nil {
				return
			}
			switch frame := frame.(type) {
			case *http2.SettingsFrame:
				if !frame.IsAck() {
					f.WriteSettingsAck()
				}
			case *http2.MetaHeadersFrame:
				if paths[frame.StreamID] = frame.PseudoValue("path"); frame.StreamEnded() {
					end(f, frame.StreamID, paths[frame.StreamID])
				}
			case *http2.DataFrame:
				if frame.StreamEnded() {
					end(f, frame.StreamID, paths[frame.StreamID])
				}
			}
		}
	})
}

// A request that an HTTP/2 server ends without an answer is sent once more at most, whatever package http would do.
func TestRequestsThatAServerDeclinesEnd(t *testing.T) {
	l := newLab(t)
	var sent atomic.Int32
	l.rawH2(alphaAddr+":7443", func(f *http2.Framer, id uint32, path string) {
		sent.Add(1)
		if path == "/goaway" {
			f.WriteGoAway(0, http2.ErrCodeNo, nil)
		} else {
			f.WriteRSTStream(id, http2.ErrCodeProtocol)
		}
	})
	l.begin(1, parse(t, "transform=secret.example.com"), withSecret(l, "secret.example.com"))
	for _, path := range []string{"/goaway", "/reset"} {
		for _, body := range []string{"", "body"} {
			sent.Store(0)
			req, err := http.NewRequest(http.MethodPost, "https://secret.example.com:7443"+path, strings.NewReader(body))
			if err != nil {
				t.Fatal(err)
			}
			got := fetch(l.client(false), req)
			if n := sent.Load(); n < 1 || n > maxDials || !strings.Contains(got, "declined") {
				t.Errorf("%s with %q is sent %d times, then %q", path, body, n, got)
			}
		}
	}
}

// Answers that have no body may have the length of one, by HTTP/1.1 and HTTP/2.
func TestAnswersWithoutABodyMayHaveALength(t *testing.T) {
	l := newLab(t)
	l.rawH2(alphaAddr+":7443", func(f *http2.Framer, id uint32, path string) {
		var block bytes.Buffer
		headers := hpack.NewEncoder(&block)
		headers.WriteField(hpack.HeaderField{Name: ":status", Value: strings.Trim(path, "/")})
		headers.WriteField(hpack.HeaderField{Name: "content-length", Value: "1234"})
		headers.WriteField(hpack.HeaderField{Name: "etag", Value: "e"})
		f.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: block.Bytes(), EndHeaders: true, EndStream: true})
	})
	l.raw(alphaAddr+":7444", func(path string) string {
		return "HTTP/1.1 " + strings.Trim(path, "/") + " x\r\nContent-Length: 1234\r\nETag: e\r\n\r\n"
	})
	l.begin(1, parse(t, "transform=secret.example.com"), withSecret(l, "secret.example.com"))
	for _, port := range []string{"7443", "7444"} {
		for _, h2 := range []bool{false, true} {
			for _, status := range []int{http.StatusNoContent, http.StatusNotModified} {
				resp, err := l.client(h2).Do(get(fmt.Sprintf("https://secret.example.com:%s/%d", port, status)))
				if err != nil {
					t.Errorf("%d at port %s, HTTP/2 %t: %v", status, port, h2, err)
					continue
				}
				body, err := io.ReadAll(resp.Body)
				resp.Body.Close()
				if resp.StatusCode != status || resp.Header.Get("ETag") != "e" || len(body) > 0 || err != nil {
					t.Errorf("%d at port %s, HTTP/2 %t: %s %v, %q, %v", status, port, h2, resp.Status, resp.Header, body, err)
				}
			}
		}
	}
	resp, err := l.client(false).Head("https://secret.example.com:7444/200")
	if err != nil || resp.ContentLength != 1234 {
		t.Errorf("HEAD: %v, %v", resp, err)
	}
}

// An answer that ends with its headers does so for the client: gRPC takes them for trailers then.
func TestEmptyAnswersEndWithTheirHeaders(t *testing.T) {
	l := newLab(t)
	l.rawH2(alphaAddr+":7443", func(f *http2.Framer, id uint32, _ string) {
		var block bytes.Buffer
		headers := hpack.NewEncoder(&block)
		headers.WriteField(hpack.HeaderField{Name: ":status", Value: "200"})
		headers.WriteField(hpack.HeaderField{Name: "grpc-status", Value: "5"})
		f.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: block.Bytes(), EndHeaders: true, EndStream: true})
	})
	l.begin(1, parse(t, "transform=secret.example.com"), withSecret(l, "secret.example.com"))
	client := l.client(true)
	for i := range 300 {
		resp, err := client.Do(get("https://secret.example.com:7443/"))
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.ContentLength != 0 || resp.Header.Get("Grpc-Status") != "5" { // -1 if there was no end
			t.Fatalf("answer %d: length %d, %v", i, resp.ContentLength, resp.Header)
		}
	}
}

// The head of an answer that breaks off arrives, trailers have their own values, and what servers send in between is not logged.
func TestOddAnswersArriveAsTheyAre(t *testing.T) {
	l := newLab(t)
	var logged bytes.Buffer
	log.SetOutput(&logged)
	t.Cleanup(func() { log.SetOutput(os.Stderr) })
	l.listen(alphaAddr+":7443", func(conn *net.TCPConn) {
		server := tls.Server(conn, l.tls)
		defer server.Close()
		requests := bufio.NewReader(server)
		for {
			r, err := http.ReadRequest(requests)
			if err != nil {
				return
			}
			switch r.URL.Path {
			case "/breaks":
				io.WriteString(server, "HTTP/1.1 201 Created\r\nX-A: b\r\nContent-Length: 20\r\n\r\n")
				return
			case "/trailer":
				io.WriteString(server, "HTTP/1.1 200 OK\r\nState: header\r\nTrailer: State\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\nState: trailer\r\n\r\n")
			default:
				io.WriteString(server, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nokmore than was announced")
			}
		}
	})
	l.begin(1, parse(t, "transform=secret.example.com"), withSecret(l, "secret.example.com"))
	url := "https://secret.example.com:7443"
	for range 20 {
		for _, h2 := range []bool{false, true} {
			resp, err := l.client(h2).Do(get(url + "/breaks"))
			if err != nil {
				t.Fatalf("HTTP/2 %t: %v", h2, err)
			}
			_, err = io.ReadAll(resp.Body)
			resp.Body.Close()
			if resp.StatusCode != http.StatusCreated || resp.Header.Get("X-A") != "b" || err == nil {
				t.Errorf("HTTP/2 %t: %s %v, %v", h2, resp.Status, resp.Header, err)
			}
		}
	}
	for _, h2 := range []bool{false, true} {
		resp, err := l.client(h2).Do(get(url + "/trailer"))
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if got := resp.Trailer["State"]; string(body) != "ok" || err != nil || resp.Header.Get("State") != "header" || !slices.Equal(got, []string{"trailer"}) {
			t.Errorf("HTTP/2 %t: %v, %q, %v, trailer %q", h2, resp.Header, body, err, got)
		}
	}
	// The next request has an answer of its own. It fails if package net/http sends it before it sees that there is more.
	client := l.client(false)
	for i := range 3 {
		if got := fetch(client, get(url+"/more")); got != "ok" && (i == 0 || !strings.Contains(got, "connection broken")) {
			t.Errorf("answer %d with more behind it: %q", i, got)
		}
	}
	if logged.Len() > 0 {
		t.Errorf("logged: %s", &logged)
	}
}

// Connections beyond the bound wait, and those that are idle make room for them.
func TestTransformedConnectionsWaitForTheirTurn(t *testing.T) {
	l := newLab(t)
	l.enforcer.injector.slots = make(chan struct{}, 4)
	l.begin(1, parse(t, "transform=secret.example.com"), withSecret(l, "secret.example.com"))
	const url = "https://secret.example.com:8444/x"
	for _, h2 := range []bool{false, true} {
		var idle []*http.Client
		for range 4 {
			c := l.client(h2)
			if got := fetch(c, get(url)); got == "error" {
				t.Fatal(got)
			}
			idle = append(idle, c) // and keeps its connection
		}
		var all sync.WaitGroup
		for range 40 {
			all.Go(func() {
				c := l.client(h2)
				if got := fetch(c, get(url)); got != "HTTP/2.0 secret.example.com:8444 /x" {
					t.Errorf("HTTP/2 %t: %s", h2, got)
				}
			})
		}
		all.Wait()
		for _, c := range idle {
			if got := fetch(c, get(url)); got == "error" {
				t.Error("a client whose connection was closed can't connect again")
			}
			c.CloseIdleConnections()
		}
	}
	for _, e := range l.enforcer.log.entries().Entries {
		if e.Rule == ruleBusy {
			t.Errorf("the log says %+v", e)
		}
	}
}

// One for which there is no room is reset, and the log says that there was none.
func TestTransformedConnectionsWithoutRoomAreBusy(t *testing.T) {
	l := newLab(t)
	l.enforcer.injector.slots = make(chan struct{}, 1)
	l.enforcer.patience = 5 * time.Second // also of the first one's dial
	arrived, goOn := make(chan struct{}), make(chan struct{})
	l.serveTLS(alphaAddr+":7443", &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		arrived <- struct{}{}
		<-goOn
		io.WriteString(w, "done")
	})})
	l.begin(1, parse(t, "transform=secret.example.com"), withSecret(l, "secret.example.com"))
	const url = "https://secret.example.com:7443/"
	first := make(chan string)
	go func() { first <- fetch(l.client(false), get(url)) }()
	<-arrived
	if got := fetch(l.client(false), get(url)); got != "error" {
		t.Errorf("without room: %q", got)
	}
	close(goOn)
	if got := <-first; got != "done" {
		t.Errorf("the first: %q", got)
	}
	want := []string{"secret.example.com 203.0.113.2 7443 tcp busy false ", "secret.example.com invalid IP 7443 tcp secret.example.com true "}
	if diff := cmp.Diff(want, l.decisions()); diff != "" {
		t.Errorf("the log (-want +got):\n%s", diff)
	}
}

// A client that leaves a server that never answers gives its place back.
func TestTransformedConnectionsEndWithTheirClients(t *testing.T) {
	l := newLab(t)
	l.enforcer.injector.slots = make(chan struct{}, 1)
	arrived := make(chan struct{})
	l.serveTLS(alphaAddr+":7443", &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/hangs" {
			arrived <- struct{}{}
			<-r.Context().Done()
			return
		}
		io.WriteString(w, "done")
	})})
	l.begin(1, parse(t, "transform=secret.example.com"), withSecret(l, "secret.example.com"))
	const url = "https://secret.example.com:7443/"
	for _, h2 := range []bool{false, true} {
		ctx, leave := context.WithCancel(t.Context())
		first := make(chan string)
		go func() { first <- fetch(l.client(h2), get(url+"hangs").WithContext(ctx)) }()
		<-arrived
		leave()
		if got := <-first; got != "error" {
			t.Errorf("HTTP/2 %t: the one that left: %q", h2, got)
		}
		if got := fetch(l.client(false), get(url)); got != "done" {
			t.Errorf("HTTP/2 %t: the next: %q", h2, got)
		}
	}
}

// Who decides on requests sees the target, the headers and the body that the server gets.
func TestDecisionsAreOnWhatIsSent(t *testing.T) {
	l := newLab(t)
	type seen struct {
		target, body string
		header       http.Header
	}
	atServer, decided := make(chan seen, 1), make(chan seen, 1)
	l.serveTLS(alphaAddr+":7443", &http.Server{Protocols: onlyHTTP1(), Handler: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		atServer <- seen{r.RequestURI, string(body), r.Header}
	})})
	l.begin(1, parse(t, "transform=secret.example.com"), withSecret(l, "secret.example.com"), func(b *wire.Begin) { b.Secrets[0].Hook = true })
	program, pid1 := net.Pipe()
	var both sync.WaitGroup
	both.Go(func() {
		l.enforcer.Hook(pid1, bufio.NewReader(pid1), &wire.Hook{Version: 1, Patterns: []string{"secret.example.com"}})
	})
	both.Go(func() {
		lines := bufio.NewReader(program)
		for {
			line, err := lines.ReadBytes('\n')
			if err != nil {
				return
			}
			var req wire.HookRequest
			if err := json.Unmarshal(line, &req); err != nil {
				t.Error(err)
			}
			decided <- seen{strings.TrimPrefix(req.URL, "https://secret.example.com:7443"), string(req.Body), req.Header}
			reply, _ := json.Marshal(wire.HookReply{ID: req.ID, Header: map[string][]string{"X-Signature": {"s\xe9"}}})
			program.Write(append(reply, '\n'))
		}
	})
	t.Cleanup(func() { program.Close(); pid1.Close(); both.Wait() })
	l.eventually("someone decides", func() bool { return l.enforcer.hooks.find(1, "secret.example.com", nil) != nil })
	var targets []string
	for _, query := range queries(rand.New(rand.NewPCG(34, 7)), 60) {
		targets = append(targets, "/a%2Fb//c;d"+query)
	}
	for path := range paths {
		targets = append(targets, path)
	}
	for _, target := range targets {
		conn := l.tlsTo("7443", "secret.example.com")
		io.WriteString(conn, "POST "+target+" HTTP/1.1\r\nHost: secret.example.com\r\nX-Raw: caf\xe9\r\nX-Raw: 2\r\nContent-Length: 4\r\nConnection: close\r\n\r\nbody")
		if answer, err := io.ReadAll(conn); err != nil || !strings.HasPrefix(string(answer), "HTTP/1.1 200 OK") {
			t.Fatalf("%s: %s, %v", target, answer, err)
		}
		was, is := <-decided, <-atServer
		if got := is.header.Get("X-Signature"); got != "s\xe9" {
			t.Errorf("%q: the signature is %q", target, got)
		}
		for _, name := range []string{"X-Signature", "Content-Length", "Connection"} { // what is set, and what is the connection's
			delete(was.header, name)
			delete(is.header, name)
		}
		if diff := cmp.Diff(was, is, cmp.AllowUnexported(seen{})); diff != "" {
			t.Errorf("%q (-decided +sent):\n%s", target, diff)
		}
		conn.Close()
	}
}

// A server may answer while it reads.
func TestAnswersComeWhileTheServerReads(t *testing.T) {
	l := newLab(t)
	l.serveTLS(alphaAddr+":7443", &http.Server{Protocols: onlyHTTP1(), Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		control := http.NewResponseController(w)
		control.EnableFullDuplex()
		for buf := make([]byte, 32<<10); ; {
			n, err := r.Body.Read(buf)
			if w.Write(buf[:n]); err != nil {
				return
			}
			control.Flush()
		}
	})})
	l.begin(1, parse(t, "transform=secret.example.com"), withSecret(l, "secret.example.com"))
	for _, h2 := range []bool{false, true} {
		r, w := io.Pipe()
		req, _ := http.NewRequest("POST", "https://secret.example.com:7443/", r)
		go func() {
			w.Write([]byte("one")) // the rest waits for the answer
		}()
		resp, err := l.client(h2).Do(req)
		if err != nil {
			t.Fatal(err)
		}
		got := make([]byte, 3)
		if _, err := io.ReadFull(resp.Body, got); err != nil || string(got) != "one" {
			t.Errorf("HTTP/2 %t: %q, %v", h2, got, err)
		}
		const size = 5 << 20
		go func() {
			w.Write(make([]byte, size))
			w.Close()
		}()
		if n, err := io.Copy(io.Discard, resp.Body); n != size || err != nil {
			t.Errorf("HTTP/2 %t: %d of %d bytes, %v", h2, n, size, err)
		}
		resp.Body.Close()
	}
}
