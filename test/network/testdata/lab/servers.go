package main

import (
	"bufio"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/net/dns/dnsmessage"
)

func native(n uint32) []byte { return binary.NativeEndian.AppendUint32(nil, n) }

// authority signs a certificate for whatever name is asked for. One for a name that
// begins with "wrong." is for another name.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pem  []byte

	mu   sync.Mutex
	made map[string]*tls.Certificate
}

func newAuthority() (*authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "lab"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, err
	}
	cert, err := x509.ParseCertificate(der)
	return &authority{cert: cert, key: key, pem: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), made: map[string]*tls.Certificate{}}, err
}

func (a *authority) certificate(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
	name := hello.ServerName
	if name == "" {
		name = "no-name.test"
	}
	if strings.HasPrefix(name, "wrong.") {
		name = "another.test"
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if c := a.made[name]; c != nil {
		return c, nil
	}
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: big.NewInt(int64(len(a.made) + 2)), Subject: pkix.Name{CommonName: name}, DNSNames: []string{name},
		NotBefore: a.cert.NotBefore, NotAfter: a.cert.NotAfter, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}, a.cert, a.key.Public(), a.key)
	if err != nil {
		return nil, err
	}
	a.made[name] = &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: a.key}
	return a.made[name], nil
}

// Seen is what the HTTP servers answer: what they saw of the request.
type Seen struct {
	At, SNI, Host, Path, Proto string
	Body                       string // its SHA-256, in hexadecimal
	Header                     http.Header
}

func (l *lab) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	at, _ := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	s := Seen{At: at.String(), Host: r.Host, Path: r.URL.Path, Proto: r.Proto, Header: r.Header}
	if r.TLS != nil {
		s.SNI = r.TLS.ServerName
	}
	hash := sha256.New()
	io.Copy(hash, r.Body)
	s.Body = hex.EncodeToString(hash.Sum(nil))
	from, _ := net.ResolveTCPAddr("tcp", r.RemoteAddr)
	l.hear(from, "http %s host=%s sni=%s %s", s.At, s.Host, s.SNI, s.Path)
	if n, err := strconv.ParseInt(strings.TrimPrefix(r.URL.Path, "/bytes/"), 10, 64); err == nil {
		w.Header().Set("Content-Length", strconv.FormatInt(n, 10))
		io.CopyN(w, zeros{}, n)
		return
	}
	json.NewEncoder(w).Encode(s)
}

type zeros struct{}

func (zeros) Read(b []byte) (int, error) { return len(b), nil }

// tcp opens the servers that listen on every address.
func (l *lab) tcp() error {
	secure := &tls.Config{GetCertificate: l.ca.certificate, NextProtos: []string{"h2", "http/1.1"}}
	plain := &tls.Config{GetCertificate: l.ca.certificate}
	for port, handle := range map[int]func(net.Conn){
		22: func(c net.Conn) { io.WriteString(c, "SSH-2.0-lab\r\n"); io.Copy(io.Discard, c) },
		53: l.dnsTCP,
		// DNS over TLS, and echo over TLS and without.
		853:  func(c net.Conn) { l.dnsTCP(tls.Server(c, plain)) },
		5432: func(c net.Conn) { l.postgres(c, plain) },
		9000: echo,
		9443: func(c net.Conn) { echo(tls.Server(c, plain)) },
	} {
		listener, err := net.Listen("tcp", fmt.Sprint(":", port))
		if err != nil {
			return err
		}
		go func() {
			for {
				c, err := listener.Accept()
				if err != nil {
					continue
				}
				go func() {
					defer c.Close()
					l.hear(c.RemoteAddr(), "tcp %s", c.LocalAddr())
					handle(c)
				}()
			}
		}()
	}
	for _, port := range []int{80, 443, 8443} {
		listener, err := net.Listen("tcp", fmt.Sprint(":", port))
		if err != nil {
			return err
		}
		server := &http.Server{Handler: l, TLSConfig: secure.Clone()}
		if port == 80 {
			go server.Serve(listener)
		} else {
			go server.ServeTLS(listener, "", "")
		}
	}
	return nil
}

func echo(c net.Conn) { io.Copy(c, c) }

// postgres takes TLS as Postgres has it, and echoes.
func (l *lab) postgres(c net.Conn, config *tls.Config) {
	var request [8]byte
	if _, err := io.ReadFull(c, request[:]); err != nil || binary.BigEndian.Uint32(request[4:]) != 80877103 {
		l.hear(c.RemoteAddr(), "postgres %s without TLS", c.LocalAddr())
		return
	}
	io.WriteString(c, "S")
	s := tls.Server(c, config)
	if err := s.Handshake(); err != nil {
		return
	}
	l.hear(c.RemoteAddr(), "postgres %s sni=%s", c.LocalAddr(), s.ConnectionState().ServerName)
	echo(s)
}

// udp answers on every address, also on those that come later: an answer must leave
// from where the question came to.
func (l *lab) udp() {
	open := map[netip.Addr]bool{}
	for {
		for _, a := range own() {
			if open[a] || a.IsLinkLocalUnicast() && a.Is6() {
				continue
			}
			open[a] = true
			for port, answer := range map[uint16]func(net.Addr, []byte) []byte{
				53: l.dnsUDP, 123: same, 443: same, 5353: same, 9000: same,
			} {
				conn, err := net.ListenPacket("udp", netip.AddrPortFrom(a, port).String())
				if err != nil {
					open[a] = false // an address that is not ready
					continue
				}
				go func() {
					buf := make([]byte, 1<<16)
					for {
						n, from, err := conn.ReadFrom(buf)
						if err != nil {
							return
						}
						l.hear(from, "udp %s %q", conn.LocalAddr(), buf[:min(n, 40)])
						if reply := answer(from, buf[:n]); reply != nil {
							conn.WriteTo(reply, from)
						}
					}
				}()
			}
		}
		time.Sleep(50 * time.Millisecond)
	}
}

func same(_ net.Addr, b []byte) []byte { return b }

func (l *lab) dnsUDP(from net.Addr, b []byte) []byte { return l.dns(from, b) }

func (l *lab) dnsTCP(c net.Conn) {
	r := bufio.NewReader(c)
	for {
		var size [2]byte
		if _, err := io.ReadFull(r, size[:]); err != nil {
			return
		}
		b := make([]byte, binary.BigEndian.Uint16(size[:]))
		if _, err := io.ReadFull(r, b); err != nil {
			return
		}
		reply := l.dns(c.RemoteAddr(), b)
		c.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(reply))), reply...))
	}
}

// dns answers for every name there is in the lab. A name that begins with "cname." is
// another name for what follows.
func (l *lab) dns(from net.Addr, b []byte) []byte {
	var p dnsmessage.Parser
	h, err := p.Start(b)
	if err != nil {
		return nil
	}
	q, err := p.Question()
	if err != nil {
		return nil
	}
	name := q.Name.String()
	l.hear(from, "dns %s %s", strings.ToLower(name), q.Type)
	head := dnsmessage.ResourceHeader{Name: q.Name, Class: dnsmessage.ClassINET, TTL: 1}
	reply := dnsmessage.Message{
		Header:    dnsmessage.Header{ID: h.ID, Response: true, Authoritative: true, RecursionDesired: h.RecursionDesired, RecursionAvailable: true},
		Questions: []dnsmessage.Question{q},
	}
	addrs, ok := l.lookUp(name)
	if !ok {
		reply.RCode = dnsmessage.RCodeNameError
	}
	if rest, is := strings.CutPrefix(name, "cname."); is && ok {
		target := dnsmessage.MustNewName(rest)
		reply.Answers = append(reply.Answers, dnsmessage.Resource{Header: head, Body: &dnsmessage.CNAMEResource{CNAME: target}})
		head.Name = target
	}
	for _, a := range addrs {
		switch {
		case q.Type == dnsmessage.TypeA && a.Is4():
			reply.Answers = append(reply.Answers, dnsmessage.Resource{Header: head, Body: &dnsmessage.AResource{A: a.As4()}})
		case q.Type == dnsmessage.TypeAAAA && a.Is6():
			reply.Answers = append(reply.Answers, dnsmessage.Resource{Header: head, Body: &dnsmessage.AAAAResource{AAAA: a.As16()}})
		}
	}
	if q.Type == dnsmessage.TypeTXT && ok {
		reply.Answers = append(reply.Answers, dnsmessage.Resource{Header: head, Body: &dnsmessage.TXTResource{TXT: []string{"lab"}}})
	}
	if q.Type == 65 && ok { // HTTPS, with which keys for hidden names would come
		reply.Answers = append(reply.Answers, dnsmessage.Resource{Header: head, Body: &dnsmessage.UnknownResource{Type: 65, Data: []byte{0, 1, 0}}})
	}
	out, err := reply.Pack()
	if err != nil {
		return nil
	}
	return out
}
