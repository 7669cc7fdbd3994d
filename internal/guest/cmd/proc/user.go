//go:build linux

package proc

import (
	"io"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/seed-1a2d6d8f/sandbox/internal/guest/accounts"
)

// LookupUser resolves name|uid[:group|gid] against the container's own files.
func LookupUser(spec string) (accounts.User, error) {
	return accounts.Resolve(spec, func() io.ReadCloser { return openAccounts("/etc/passwd") }, func() io.ReadCloser { return openAccounts("/etc/group") })
}

// UserNames returns the names of the container's users by their numbers.
func UserNames() map[uint32]string {
	return accounts.Names(func() io.ReadCloser { return openAccounts("/etc/passwd") })
}

// GroupNames returns the names of the container's groups by their numbers.
func GroupNames() map[uint32]string {
	return accounts.Names(func() io.ReadCloser { return openAccounts("/etc/group") })
}

// openAccounts opens an account file. Anything but a regular file counts as empty: it must not
// block or fill memory.
func openAccounts(path string) io.ReadCloser {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if err != nil {
		return io.NopCloser(strings.NewReader(""))
	}
	if st, err := f.Stat(); err != nil || !st.Mode().IsRegular() {
		f.Close()
		return io.NopCloser(strings.NewReader(""))
	}
	return f
}
