//go:build linux

package egress

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/seed-1a2d6d8f/sandbox/internal/guest/cmd/proc"
	"github.com/seed-1a2d6d8f/sandbox/internal/guest/wire"
)

// VerbTrust makes the sandbox trust the certificate on standard input, or none.
const VerbTrust = "trust"

// systemBundles are the files with the certificates that systems trust. One that is a link
// leads to another one of these.
var systemBundles = []string{
	"/etc/ssl/certs/ca-certificates.crt",                // Debian, Alpine
	"/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem", // Fedora, RHEL
	"/etc/pki/tls/certs/ca-bundle.crt",
	"/etc/ssl/ca-bundle.pem", // SUSE
	"/etc/ssl/cert.pem",
}

const (
	trustBegin = "# begin of agent-sandbox\n"
	trustEnd   = "# end of agent-sandbox\n"
	maxBundle  = 8 << 20
)

// RunTrust carries out VerbTrust, with the privileges of root inside.
func RunTrust() error {
	if err := proc.DropPrivileges(); err != nil {
		return err
	}
	cert, err := io.ReadAll(io.LimitReader(os.Stdin, wire.MaxControlLine))
	if err != nil {
		return err
	}
	return trustIn("/", cert)
}

// trustIn makes the system below root trust cert instead of the one before, or none.
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
		if err := os.Remove(filepath.Join(root, proc.TrustBundle)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			problems = append(problems, err)
		}
		return errors.Join(problems...)
	}
	problems = append(problems, replaceBundle(filepath.Join(root, proc.TrustBundle), joinBundle(all, cert)))
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

// replaceBundle renames a new file over the old one, which is not written to.
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
