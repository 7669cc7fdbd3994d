//go:build linux

package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/seed-1a2d6d8f/sandbox/internal/guest/wire"
)

// verbTrust makes the sandbox trust the certificate on standard input, or none.
const verbTrust = "trust"

// trustBundle holds what the sandbox trusts, with the session's own authority. It is
// there while names are transformed.
const trustBundle = "/etc/agent-sandbox-ca.pem"

// systemBundles are where systems keep the certificates they trust, in one file. What is
// a link in a system is the same file as another one here.
var systemBundles = []string{
	"/etc/ssl/certs/ca-certificates.crt",                // Debian, Alpine
	"/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem", // Fedora, RHEL
	"/etc/pki/tls/certs/ca-bundle.crt",
	"/etc/ssl/ca-bundle.pem", // SUSE
	"/etc/ssl/cert.pem",
}

// trustVariables name a bundle to programs that don't ask the system.
var trustVariables = []string{
	"SSL_CERT_FILE", "NODE_EXTRA_CA_CERTS", "CURL_CA_BUNDLE", "GIT_SSL_CAINFO", "REQUESTS_CA_BUNDLE", "PIP_CERT",
}

const (
	trustBegin = "# begin of agent-sandbox\n"
	trustEnd   = "# end of agent-sandbox\n"
	maxBundle  = 8 << 20
)

// trust has a child write the certificate, with what root inside may and no more: what
// is written to is root's, and may be anything.
func (s *session) trust(cert string) error {
	if cert == "" {
		if _, err := os.Lstat(trustBundle); errors.Is(err, fs.ErrNotExist) {
			return nil
		}
	}
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	defer w.Close()
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		r.Close()
		return err
	}
	defer null.Close()
	c, err := s.reaper.start(func() (int, error) {
		return syscall.ForkExec(selfPath, []string{wire.Path, verbTrust}, &syscall.ProcAttr{
			Dir: "/", Env: []string{}, Files: []uintptr{r.Fd(), null.Fd(), null.Fd()},
			Sys: &syscall.SysProcAttr{Setsid: true},
		})
	})
	r.Close()
	if err != nil {
		return err
	}
	io.WriteString(w, cert)
	w.Close()
	select {
	case <-c.done:
	case <-time.After(10 * time.Second):
		s.reaper.signal(c, unix.SIGKILL)
		return errors.New("it takes too long")
	}
	if exit := c.exit(); exit.Code != 0 {
		return fmt.Errorf("exit %d", exit.Code)
	}
	return nil
}

func runTrust() error {
	if err := shed(); err != nil {
		return err
	}
	cert, err := io.ReadAll(io.LimitReader(os.Stdin, wire.MaxControlLine))
	if err != nil {
		return err
	}
	return trustIn("/", cert)
}

// trustIn makes the system below root trust cert, or no longer what it was made to.
func trustIn(root string, cert []byte) error {
	var problems []error
	var all []byte
	for _, name := range systemBundles {
		text, err := readBundle(filepath.Join(root, name))
		if err != nil {
			continue // no such system
		}
		own := withoutOurs(text)
		if len(own) > len(all) {
			all = own
		}
		if len(cert) > 0 {
			own = joinBundle(own, cert)
		}
		if !bytes.Equal(own, text) {
			problems = append(problems, replaceBundle(filepath.Join(root, name), own))
		}
	}
	if len(cert) == 0 {
		if err := os.Remove(filepath.Join(root, trustBundle)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			problems = append(problems, err)
		}
		return errors.Join(problems...)
	}
	problems = append(problems, replaceBundle(filepath.Join(root, trustBundle), joinBundle(all, cert)))
	return errors.Join(problems...)
}

func joinBundle(own, cert []byte) []byte {
	out := bytes.Clone(own)
	if len(out) > 0 && out[len(out)-1] != '\n' {
		out = append(out, '\n')
	}
	return append(append(append(out, trustBegin...), cert...), trustEnd...)
}

func withoutOurs(text []byte) []byte {
	before, rest, found := bytes.Cut(text, []byte(trustBegin))
	if !found {
		return text
	}
	_, after, _ := bytes.Cut(rest, []byte(trustEnd))
	return append(bytes.Clone(before), after...)
}

// readBundle reads a regular file that is not a link.
func readBundle(name string) ([]byte, error) {
	file, err := os.OpenFile(name, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	if st, err := file.Stat(); err != nil || !st.Mode().IsRegular() || st.Size() > maxBundle {
		return nil, errors.New("not a bundle")
	}
	return io.ReadAll(io.LimitReader(file, maxBundle))
}

// replaceBundle puts a new file in the place of the old one, which is not written to.
func replaceBundle(name string, text []byte) error {
	file, err := os.CreateTemp(filepath.Dir(name), ".agent-sandbox-")
	if err != nil {
		return err
	}
	defer os.Remove(file.Name())
	_, err = file.Write(text)
	if err := errors.Join(err, file.Chmod(0o644), file.Close()); err != nil {
		return err
	}
	return os.Rename(file.Name(), name)
}
