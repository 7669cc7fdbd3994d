//go:build linux

package egress

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"time"
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
	errIdentified = errors.New("host identified")
)

// sniff reads from a connection until the client has named its host. It writes nothing but
// the answer that a Postgres client waits for.
func sniff(conn net.Conn) (h hello, err error) {
	for range 3 {
		r := &recorder{from: conn}
		first, err := r.peek(1)
		if err != nil {
			return h, err
		}
		switch {
		case first[0] == 0x16: // a TLS record with a handshake
			h.tls = true
			h.name, err = sniffTLS(r)
			h.said = r.heard
			return h, named(h.name, err)
		case first[0] == 0 && !h.postgres:
			yes, err := sniffPostgres(r)
			if err != nil {
				return h, err
			}
			h.postgres = yes
			answer := "N" // no encryption of that kind
			if yes {
				answer = "S"
			}
			if _, err := io.WriteString(conn, answer); err != nil {
				return h, err
			}
		case 'A' <= first[0] && first[0] <= 'Z' && !h.postgres:
			h.name, err = sniffHTTP(r)
			h.said = r.heard
			return h, named(h.name, err)
		default:
			return h, errProtocol
		}
	}
	return h, errProtocol
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
// servers do. A request with two Host headers is refused, and so is CONNECT.
func sniffHTTP(r *recorder) (string, error) {
	req, err := http.ReadRequest(bufio.NewReader(io.LimitReader(r, maxHello)))
	if err != nil {
		return "", err
	}
	if req.Method == http.MethodConnect || req.Method == "PRI" {
		return "", errProtocol
	}
	host := req.Host
	if at := strings.LastIndexByte(host, ':'); at >= 0 && strings.Trim(host[at+1:], "0123456789") == "" {
		host = host[:at]
	}
	if _, err := netip.ParseAddr(strings.Trim(host, "[]")); err == nil {
		return "", errNoName
	}
	return host, nil
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
