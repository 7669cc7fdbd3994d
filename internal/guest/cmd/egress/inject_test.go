//go:build linux

package egress

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/seed-1a2d6d8f/sandbox/internal/guest/cmd/proc"
	"github.com/seed-1a2d6d8f/sandbox/internal/guest/wire"
)

// client is an HTTP client inside, which trusts the session's authority alone.
func (l *lab) client(h2 bool) *http.Client {
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM([]byte(l.enforcer.Network().CA))
	transport := &http.Transport{
		TLSClientConfig:   &tls.Config{RootCAs: pool},
		ForceAttemptHTTP2: h2,
		DialContext: func(_ context.Context, _, addr string) (net.Conn, error) {
			_, port, _ := net.SplitHostPort(addr)
			return l.inside.dial("tcp", net.JoinHostPort(otherAddr, port)) // wherever
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
	conn.SetDeadline(time.Now().Add(time.Minute))
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

func TestTrustComesAndGoes(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	system := filepath.Join(root, systemBundles[0])
	if err := os.MkdirAll(filepath.Dir(system), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(root, "etc/pki/tls/certs"), 0o755); err != nil {
		t.Fatal(err)
	}
	const before = "the system's own\n"
	victim := filepath.Join(root, "victim")
	for name, text := range map[string]string{system: before, victim: before} {
		if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, link := range []string{"etc/pki/tls/certs/ca-bundle.crt", proc.TrustBundle} {
		if err := os.Symlink(victim, filepath.Join(root, link)); err != nil {
			t.Fatal(err)
		}
	}
	read := func(name string) string {
		text, err := os.ReadFile(name)
		if err != nil {
			return "none"
		}
		return string(text)
	}
	for _, tt := range []struct{ cert, system, bundle string }{
		{"one\n", before + trustBegin + "one\n" + trustEnd, before + trustBegin + "one\n" + trustEnd},
		{"two\n", before + trustBegin + "two\n" + trustEnd, before + trustBegin + "two\n" + trustEnd},
		{"", before, "none"},
		{"", before, "none"},
	} {
		if err := trustIn(root, []byte(tt.cert)); err != nil {
			t.Fatal(err)
		}
		if got := read(system); got != tt.system {
			t.Errorf("with %q the system's: %q, want %q", tt.cert, got, tt.system)
		}
		if got := read(filepath.Join(root, proc.TrustBundle)); got != tt.bundle {
			t.Errorf("with %q: %q, want %q", tt.cert, got, tt.bundle)
		}
		if got := read(victim); got != before {
			t.Errorf("with %q what links lead to: %q", tt.cert, got)
		}
	}
}
