//go:build linux

package egress

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"sync"
	"time"
)

// authority is a certificate authority that the sandbox trusts for one session. Its key is
// in this process's memory alone.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pem  string

	mu     sync.Mutex
	leaf   *ecdsa.PrivateKey
	leaves map[string]*tls.Certificate
}

// maxLeaves bounds the cached certificates.
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

// certificate returns a template, valid with some margin for clocks that differ.
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
