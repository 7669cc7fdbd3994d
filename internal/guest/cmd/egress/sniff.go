//go:build linux

package egress

import (
	"bufio"
	"bytes"
	"cmp"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"time"

	"golang.org/x/net/http/httpguts"
)

// maxHello bounds what a client may send before it has named a host.
const maxHello = 64 << 10

// hello is what a client sent first.
type hello struct {
	name string // of the host
	tls  bool
	// postgres reports that the client requested TLS in Postgres's way and got a yes; the
	// same request to the server is pending.
	postgres bool
	said     []byte // all that was read: the server is to get it
}

var (
	errNoName     = errors.New("the client names no host")
	errProtocol   = errors.New("not a protocol that names hosts")
	errTooMuch    = errors.New("the client sends too much before it names a host")
	errUnclear    = errors.New("the client names no host clearly")
	errIdentified = errors.New("host identified")
)

// sniff reads from a connection until the client has named its host. It writes nothing but
// the answer that a Postgres client waits for.
func sniff(conn net.Conn) (h hello, err error) {
	for range 3 {
		r := &recorder{from: conn}
		if again, err := h.hear(conn, r); !again || err != nil {
			h.said = r.heard
			return h, named(h.name, err)
		}
	}
	return h, errProtocol
}

// hear reads what a client sends first, and reports whether it sends that again after an answer.
func (h *hello) hear(conn net.Conn, r *recorder) (again bool, err error) {
	first, err := r.peek(1)
	if err != nil {
		return false, err
	}
	switch c := first[0]; {
	case c == 0x16: // a TLS record with a handshake
		h.tls = true
		h.name, err = sniffTLS(r)
		return false, err
	case c == 0 && !h.postgres:
		if h.postgres, err = sniffPostgres(r); err != nil {
			return false, err
		}
		answer := "N" // no encryption of that kind
		if h.postgres {
			answer = "S"
		}
		_, err = io.WriteString(conn, answer)
		return true, err
	case ('A' <= c && c <= 'Z' || 'a' <= c && c <= 'z' || c == '\r') && !h.postgres:
		h.name, err = sniffHTTP(r)
		return false, err
	}
	return false, errProtocol
}

func named(name string, err error) error {
	if err == nil && name == "" {
		err = errNoName
	}
	return err
}

// sniffTLS returns the server name of a ClientHello, in however many records.
func sniffTLS(r *recorder) (string, error) {
	name := ""
	err := tls.Server(r, &tls.Config{
		GetConfigForClient: func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
			name = hello.ServerName
			return nil, errIdentified
		},
	}).Handshake()
	if errors.Is(err, errIdentified) {
		return name, nil
	}
	return "", err
}

// sniffHTTP returns the host of a request, in an absolute URL before the Host header, as
// servers do. CONNECT is refused. The rest of the request is the server's to judge, unless it
// could take it for another Host.
func sniffHTTP(r *recorder) (string, error) {
	lines := bufio.NewReader(r)
	line, err := readLine(lines)
	if err == nil && line == "" { // servers ignore one
		line, err = readLine(lines)
	}
	if err != nil {
		return "", err
	}
	method, rest, _ := strings.Cut(line, " ")
	target, version, _ := strings.Cut(rest, " ")
	if _, _, ok := http.ParseHTTPVersion(version); !ok || !httpguts.ValidHeaderFieldName(method) ||
		strings.EqualFold(method, http.MethodConnect) || strings.EqualFold(method, "PRI") {
		return "", errProtocol
	}
	host, err := targetHost(target)
	if err != nil {
		return "", err
	}
	header, err := readHost(lines)
	if err != nil {
		return "", err
	}
	host = cmp.Or(host, header)
	if at := strings.LastIndexByte(host, ':'); at >= 0 && strings.Trim(host[at+1:], "0123456789") == "" {
		host = host[:at]
	}
	if _, err := netip.ParseAddr(strings.Trim(host, "[]")); err == nil {
		return "", errNoName
	}
	return host, nil
}

// readLine reads a line, without its end. Some servers take a single CR for an end.
func readLine(lines *bufio.Reader) (string, error) {
	line, err := lines.ReadString('\n')
	if err != nil {
		return "", err
	}
	line = strings.TrimSuffix(strings.TrimSuffix(line, "\n"), "\r")
	if strings.Contains(line, "\r") {
		return "", errUnclear
	}
	return line, nil
}

// targetHost returns the host of an absolute URL, and none of a path.
func targetHost(target string) (string, error) {
	if strings.HasPrefix(target, "/") || target == "*" {
		return "", nil
	}
	scheme, rest, _ := strings.Cut(target, "://")
	if end := strings.IndexAny(rest, "/?#"); end >= 0 {
		rest = rest[:end]
	}
	u, err := url.ParseRequestURI(scheme + "://" + rest) // what follows may be anything
	if err != nil || u.Host == "" {
		return "", errUnclear
	}
	return u.Host, nil
}

// readHost reads headers, and returns the Host. A request with two is refused, and one with a
// line that some servers could take for another: continued, or with other bytes around the name.
func readHost(lines *bufio.Reader) (host string, err error) {
	for n, last := 0, ""; ; {
		line, err := readLine(lines)
		if err != nil || line == "" {
			return host, err
		}
		name, value, _ := strings.Cut(line, ":")
		folded := line[0] == ' ' || line[0] == '\t'
		if is := strings.EqualFold(name, "Host"); is && n == 0 && strings.Contains(line, ":") {
			host = strings.Trim(value, " \t")
			n++
		} else if is || looksLikeHost(name) || folded && (last == "" || strings.EqualFold(last, "Host")) {
			return "", errUnclear
		}
		if !folded {
			last = name
		}
	}
}

// looksLikeHost reports whether the letters of a header's name are those of Host.
func looksLikeHost(name string) bool {
	return strings.EqualFold("Host", strings.Map(func(c rune) rune {
		if c < 0x80 && httpguts.IsTokenRune(c) {
			return c
		}
		return -1
	}, name))
}

// Postgres's requests for encryption: messages of eight bytes, with these for a version.
const (
	postgresTLS    = 80877103
	postgresGSSAPI = 80877104
)

var postgresSSLRequest = binary.BigEndian.AppendUint32([]byte{0, 0, 0, 8}, postgresTLS)

// sniffPostgres reads a Postgres client's request for TLS, or for GSSAPI: after a refusal of
// that it goes on without.
func sniffPostgres(r *recorder) (tls bool, err error) {
	head, err := r.peek(8)
	if err != nil {
		return false, err
	}
	switch code := binary.BigEndian.Uint32(head[4:]); {
	case !bytes.Equal(head[:4], postgresSSLRequest[:4]):
	case code == postgresTLS:
		return true, nil
	case code == postgresGSSAPI:
		return false, nil
	}
	return false, errProtocol
}

// recorder is a read-only connection that records what is read. What was peeked at is read
// again.
type recorder struct {
	from  io.Reader
	heard []byte
	next  int // in heard
}

func (r *recorder) peek(n int) ([]byte, error) {
	for len(r.heard) < n {
		part := make([]byte, n-len(r.heard)) // no more, it may not be ours
		got, err := r.from.Read(part)
		r.heard = append(r.heard, part[:got]...)
		if err != nil {
			return nil, err
		}
	}
	return r.heard[:n], nil
}

func (r *recorder) Read(b []byte) (int, error) {
	if r.next < len(r.heard) {
		n := copy(b, r.heard[r.next:])
		r.next += n
		return n, nil
	}
	room := maxHello - len(r.heard)
	if room <= 0 {
		return 0, errTooMuch
	}
	n, err := r.from.Read(b[:min(len(b), room)])
	r.heard = append(r.heard, b[:n]...)
	r.next += n
	return n, err
}

// The rest of net.Conn, for package tls.
func (r *recorder) Write(b []byte) (int, error)      { return len(b), nil }
func (r *recorder) Close() error                     { return nil }
func (r *recorder) LocalAddr() net.Addr              { return &net.TCPAddr{} }
func (r *recorder) RemoteAddr() net.Addr             { return &net.TCPAddr{} }
func (r *recorder) SetDeadline(time.Time) error      { return nil }
func (r *recorder) SetReadDeadline(time.Time) error  { return nil }
func (r *recorder) SetWriteDeadline(time.Time) error { return nil }
