//go:build linux

package fileserver

import (
	"crypto/rand"
	"encoding/hex"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/seed-1a2d6d8f/sandbox/internal/guest/wire"
)

// isStream reports whether a file has no offsets, and reading it may block.
func isStream(st *unix.Stat_t) bool {
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFIFO, unix.S_IFCHR, unix.S_IFSOCK:
		return true
	}
	return false
}

// openFile opens a file for package os: pipes and terminals without blocking a
// thread, the rest as usual.
func openFile(dir int, path string, flags int, perm uint32) (f *os.File, st unix.Stat_t, err error) {
	var fd int
	if err := retry(func() (err error) {
		fd, err = unix.Openat(dir, path, flags, perm)
		return err
	}); err != nil {
		return nil, st, err
	}
	if err := unix.Fstat(fd, &st); err != nil {
		unix.Close(fd)
		return nil, st, err
	}
	if !isStream(&st) {
		unix.SetNonblock(fd, false)
	}
	return os.NewFile(uintptr(fd), path), st, nil
}

func info(name string, st *unix.Stat_t) wire.FileInfo {
	return wire.FileInfo{
		Name: name, Mode: st.Mode, Size: max(st.Size, 0), Mtime: time.Unix(st.Mtim.Unix()), Atime: time.Unix(st.Atim.Unix()),
		UID: st.Uid, GID: st.Gid, Nlink: uint64(st.Nlink), Dev: st.Dev, Ino: st.Ino, Ctime: time.Unix(st.Ctim.Unix()),
	}
}

// retry repeats what a signal interrupted: network and user-space file systems allow it.
func retry(f func() error) error {
	for {
		if err := f(); err != unix.EINTR {
			return err
		}
	}
}

// temporaryName is for a file that will be renamed or removed.
func temporaryName() string {
	var b [8]byte
	rand.Read(b[:])
	return ".agent-sandbox-" + hex.EncodeToString(b[:])
}
