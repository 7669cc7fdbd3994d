// Package outside replaces the internet, so that the examples run offline: a container that
// is DNS server and web server for one name.
package outside

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"math/big"
	"net/netip"
	"strings"
	"time"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/internal/engine"
)

// A Server is a running server.
type Server struct {
	Addr      netip.Addr
	Authority []byte // the certificate authority, in PEM

	eng *engine.Engine
	id  string
}

// program answers every DNS question for the name with its own address, and HTTP and
// HTTPS with the handler.
const program = `
const { name, key, cert } = JSON.parse(process.argv[1]);
const handler = (req, res) => { HANDLER };
const own = Object.values(require('os').networkInterfaces()).flat().find(a => !a.internal && a.family === 'IPv4').address;
const dns = require('dgram').createSocket('udp4');
dns.on('message', (ask, from) => {
  let at = 12, labels = [];
  while (ask[at]) { labels.push(ask.toString('latin1', at + 1, at + 1 + ask[at])); at += ask[at] + 1 }
  const question = ask.subarray(12, at + 5), known = labels.join('.').toLowerCase() === name, a = known && ask.readUInt16BE(at + 1) === 1;
  const head = Buffer.from([ask[0], ask[1], 0x81, known ? 0x80 : 0x83, 0, 1, 0, a ? 1 : 0, 0, 0, 0, 0]);
  const answer = a ? Buffer.from([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4, ...own.split('.').map(Number)]) : Buffer.alloc(0);
  dns.send(Buffer.concat([head, question, answer]), from.port, from.address);
});
dns.bind(53, () => require('http').createServer(handler).listen(80, () =>
  require('https').createServer({ key, cert }, handler).listen(443, () => console.log('ready'))));
`

// Start starts a server for name. handler is the body of a function (req, res) of Node's
// http package. The caller closes the server.
func Start(ctx context.Context, name, handler string) (s *Server, err error) {
	s = &Server{}
	key, cert, err := s.certificate(name)
	if err != nil {
		return nil, err
	}
	config, err := json.Marshal(map[string]string{"name": name, "key": string(key), "cert": string(cert)})
	if err != nil {
		return nil, err
	}
	if s.eng, err = engine.Open(ctx, engine.Options{}); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			s.Close()
		}
	}()
	s.id, err = s.eng.CreateContainer(ctx, engine.ContainerSpec{
		Name: "example-outside-" + strings.ToLower(rand.Text()[:10]), Image: sandbox.DefaultImage, NetworkMode: "bridge",
		Entrypoint: []string{"node", "-e", strings.Replace(program, "HANDLER", handler, 1), string(config)},
	})
	if err != nil {
		return nil, err
	}
	if err := s.eng.StartContainer(ctx, s.id); err != nil {
		return nil, err
	}
	got, err := s.eng.InspectContainer(ctx, s.id)
	if err != nil {
		return nil, err
	}
	s.Addr = got.IP
	logs, err := s.eng.ReadLog(ctx, s.id, engine.LogSpec{Follow: true})
	if err != nil {
		return nil, err
	}
	defer logs.Close()
	line, err := logs.Next()
	if err == nil && string(line.Text) != "ready" {
		err = fmt.Errorf("unexpected output %q", line.Text)
	}
	if err != nil {
		return nil, fmt.Errorf("start server for %s: %w", name, err)
	}
	return s, nil
}

// certificate creates an authority, and a key and certificate signed by it.
func (s *Server) certificate(name string) (key, cert []byte, err error) {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	authority := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "the outside's authority"}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
	}
	leaf := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: name}, DNSNames: []string{name}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		NotBefore: authority.NotBefore, NotAfter: authority.NotAfter,
	}
	root, err := x509.CreateCertificate(rand.Reader, authority, authority, private.Public(), private)
	if err != nil {
		return nil, nil, err
	}
	signed, err := x509.CreateCertificate(rand.Reader, leaf, authority, private.Public(), private)
	if err != nil {
		return nil, nil, err
	}
	der, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		return nil, nil, err
	}
	s.Authority = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: root})
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: signed}), nil
}

// Close removes the server.
func (s *Server) Close() error {
	defer s.eng.Close()
	if s.id == "" {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	return s.eng.RemoveContainer(ctx, s.id, true)
}
