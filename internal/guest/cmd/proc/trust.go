//go:build linux

package proc

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/seed-1a2d6d8f/sandbox/internal/guest/wire"
)

// VerbTrust makes the sandbox trust the certificate on standard input, or none.
const VerbTrust = "trust"

const (
	// TrustAuthority is a file with the certificate of the session's own authority. It exists
	// while a policy transforms names, and is written after all else that trusts it.
	TrustAuthority = "/etc/agent-sandbox-authority.pem"
	// TrustBundle is a file with the certificates that the system trusts and the authority. It exists
	// while TrustAuthority does and the system has a bundle.
	TrustBundle = "/etc/agent-sandbox-ca.pem"
)

// systemBundles are the files with the certificates that systems trust. What one leads to that is a
// link is read, and written only if it is another one of these.
var systemBundles = []string{
	"/etc/ssl/certs/ca-certificates.crt",                // Debian, Alpine
	"/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem", // Fedora, RHEL
	"/etc/pki/tls/certs/ca-bundle.crt",
	"/etc/ssl/ca-bundle.pem", // SUSE
	"/var/lib/ca-certificates/ca-bundle.pem",
	"/etc/ca-certificates/extracted/tls-ca-bundle.pem", // Arch
	"/etc/ssl/cert.pem",
}

// anchors are the files from which the update tools of systems add to these bundles. They are written
// where their directories exist.
var anchors = []string{
	"/usr/local/share/ca-certificates/agent-sandbox.crt",          // Debian, Alpine
	"/etc/pki/ca-trust/source/anchors/agent-sandbox.crt",          // Fedora, RHEL
	"/etc/pki/trust/anchors/agent-sandbox.crt",                    // SUSE
	"/etc/ca-certificates/trust-source/anchors/agent-sandbox.crt", // Arch
}

// anchorLinks are made of the first anchor by the tools of Debian and Alpine.
var anchorLinks = []string{"/etc/ssl/certs/agent-sandbox.pem", "/etc/ssl/certs/ca-cert-agent-sandbox.pem"}

// addedBy and replacedBy are variables that name certificates to programs that don't use the
// system's: in addition to those that the program has, and in their place.
var (
	addedBy    = []string{"NODE_EXTRA_CA_CERTS", "DENO_CERT"}
	replacedBy = []string{
		"SSL_CERT_FILE", "CURL_CA_BUNDLE", "GIT_SSL_CAINFO", "REQUESTS_CA_BUNDLE", "PIP_CERT",
		"AWS_CA_BUNDLE", "CARGO_HTTP_CAINFO", "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH",
	}
)

const (
	trustBegin = "# begin of agent-sandbox\n"
	trustEnd   = "# end of agent-sandbox\n"
	maxBundle  = 8 << 20
)

// RunTrust carries out VerbTrust, with the privileges of root inside.
func RunTrust() error {
	if err := DropPrivileges(); err != nil {
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
	before, _ := readBundle(filepath.Join(root, TrustAuthority))
	for _, name := range systemBundles {
		name = filepath.Join(root, name)
		text, err := readBundle(name)
		if err != nil {
			continue // no such system
		}
		own := withoutOurs(text, before)
		if len(own) > len(all) {
			all = own
		}
		if st, err := os.Lstat(name); err != nil || !st.Mode().IsRegular() {
			continue
		}
		if len(cert) > 0 {
			own = joinBundle(own, cert)
		}
		if !bytes.Equal(own, text) {
			problems = append(problems, replaceBundle(name, own))
		}
	}
	put := func(name string, text []byte) {
		name = filepath.Join(root, name)
		if len(text) > 0 {
			problems = append(problems, replaceBundle(name, text))
		} else if err := os.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			problems = append(problems, err)
		}
	}
	var bundle []byte
	if len(cert) > 0 && len(all) > 0 {
		bundle = joinBundle(all, cert)
	}
	put(TrustBundle, bundle)
	for _, name := range anchors {
		if ownDirectory(root, filepath.Dir(name)) {
			put(name, cert)
		}
	}
	if len(cert) == 0 {
		for _, name := range anchorLinks {
			put(name, nil)
		}
	}
	put(TrustAuthority, cert)
	return errors.Join(problems...)
}

// ownDirectory reports whether a directory is there and of the image's file system. A mount there is somebody else's, too.
func ownDirectory(root, name string) bool {
	var st, etc unix.Stat_t
	return unix.Stat(filepath.Join(root, name), &st) == nil && unix.Stat(filepath.Join(root, "/etc"), &etc) == nil && st.Dev == etc.Dev
}

// trustVariables returns the variables of commands below root, none if there is no authority to trust.
func trustVariables(root string) (env []string) {
	if _, err := os.Lstat(filepath.Join(root, TrustAuthority)); err != nil {
		return nil
	}
	for _, name := range addedBy {
		env = append(env, name+"="+TrustAuthority)
	}
	if _, err := os.Lstat(filepath.Join(root, TrustBundle)); err == nil {
		for _, name := range replacedBy {
			env = append(env, name+"="+TrustBundle)
		}
	}
	return env
}

func joinBundle(own, cert []byte) []byte {
	out := bytes.Clone(own)
	if len(out) > 0 && out[len(out)-1] != '\n' {
		out = append(out, '\n')
	}
	return append(append(append(out, trustBegin...), cert...), trustEnd...)
}

// withoutOurs returns a bundle without what joinBundle added, and without the certificate of the authority
// before, which an update tool may have added.
func withoutOurs(text, authority []byte) []byte {
	if before, rest, found := bytes.Cut(text, []byte(trustBegin)); found {
		_, after, _ := bytes.Cut(rest, []byte(trustEnd))
		text = append(bytes.Clone(before), after...)
	}
	if len(authority) > 0 {
		text = bytes.ReplaceAll(text, authority, nil)
	}
	return text
}

// readBundle reads a regular file, or one that a link leads to.
func readBundle(name string) ([]byte, error) {
	if st, err := os.Stat(name); err != nil || !st.Mode().IsRegular() {
		return nil, errors.New("not a bundle") // opening a device can have effects
	}
	file, err := os.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
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
