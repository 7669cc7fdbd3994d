package archive

import (
	"errors"
	"io/fs"
	"os"
	"strings"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// openNonblock keeps open from blocking if a named pipe has replaced the file.
const openNonblock = unix.O_NONBLOCK | unix.O_NOFOLLOW | unix.O_NOCTTY

// Identify returns a file's identity, and whether it has hard links.
func Identify(info fs.FileInfo) (FileID, bool) {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok || st.Nlink < 2 {
		return FileID{}, false
	}
	return FileID{uint64(st.Dev), st.Ino}, true
}

func control(f *os.File, do func(fd int) error) error {
	raw, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var doErr error
	err = raw.Control(func(fd uintptr) {
		for {
			if doErr = do(int(fd)); doErr != unix.EINTR {
				return
			}
		}
	})
	return errors.Join(err, doErr)
}

// getXattrs returns the user.* extended attributes, and the names of others to report.
func getXattrs(f *os.File) (kept map[string]string, odd []string) {
	var small [1024]byte
	var names string
	control(f, func(fd int) error {
		n, err := unix.Flistxattr(fd, small[:])
		if err == unix.ERANGE {
			large := make([]byte, 64<<10)
			n, err = unix.Flistxattr(fd, large)
			names = string(large[:max(n, 0)])
			return err
		}
		names = string(small[:max(n, 0)])
		return err
	})
	for name := range strings.SplitSeq(names, "\x00") {
		switch {
		case strings.HasPrefix(name, "user.") && !strings.HasPrefix(name, "user.overlay.") && !strings.HasPrefix(name, "user.fuseoverlayfs."):
			value := make([]byte, 64<<10)
			err := control(f, func(fd int) error {
				n, err := unix.Fgetxattr(fd, name, value)
				value = value[:max(n, 0)]
				return err
			})
			if err != nil || strings.ContainsAny(name, "=\x00") {
				odd = append(odd, name)
				continue
			}
			if kept == nil {
				kept = map[string]string{}
			}
			kept[name] = string(value)
		case name == "security.capability", strings.HasPrefix(name, "system.posix_acl_"):
			odd = append(odd, name)
		}
	}
	return kept, odd
}

func setXattr(f *os.File, name, value string) error {
	return control(f, func(fd int) error { return unix.Fsetxattr(fd, name, []byte(value), 0) })
}

func setTimes(f *os.File, _ *into, _ string, t time.Time) error {
	ts, err := times(t)
	if err != nil {
		return err
	}
	return control(f, func(fd int) error {
		_, _, errno := unix.Syscall6(unix.SYS_UTIMENSAT, uintptr(fd), 0, uintptr(unsafe.Pointer(&ts[0])), 0, 0, 0)
		if errno != 0 {
			return errno
		}
		return nil
	})
}

func setLinkTimes(root *into, name string, t time.Time) error {
	ts, err := times(t)
	if err != nil {
		return err
	}
	return root.at("chtimes", name, func(dir int, base string) error { return unix.UtimesNanoAt(dir, base, ts[:], unix.AT_SYMLINK_NOFOLLOW) })
}

// times is for utimensat: it sets the modification time and leaves the access time.
func times(t time.Time) ([2]unix.Timespec, error) {
	mtime, err := unix.TimeToTimespec(t) // nanoseconds since 1970 reach from 1678 to 2262 only
	return [2]unix.Timespec{{Nsec: unix.UTIME_OMIT}, mtime}, err
}

// ReadUnsized reads a file whose size the kernel does not know, from where it is open at to its end. One with
// nothing to read now, such as /proc/kmsg, ends there. Beyond [Unsized] the error is [ErrEndless].
func ReadUnsized(f *os.File) (data []byte, err error) {
	buf := make([]byte, 64<<10)
	for len(data) <= Unsized {
		n := 0
		err := control(f, func(fd int) (err error) {
			n, err = unix.Read(fd, buf)
			return err
		})
		if err == unix.EAGAIN || err == nil && n == 0 {
			return data, nil
		}
		if err != nil {
			return nil, err
		}
		data = append(data, buf[:n]...)
	}
	return nil, ErrEndless
}

// Pieces returns where a file has data: a file without holes is one piece, and so is one whose
// holes can't be listed. It moves the file's offset.
func Pieces(f *os.File, info fs.FileInfo) (pieces []Piece) {
	whole := []Piece{{0, info.Size()}}
	if st, is := info.Sys().(*syscall.Stat_t); !is || st.Blocks*512 >= info.Size() {
		return whole
	}
	err := control(f, func(fd int) error {
		pieces = nil
		for at := int64(0); at < info.Size(); {
			start, err := unix.Seek(fd, at, unix.SEEK_DATA)
			if err == unix.ENXIO {
				return nil
			}
			if err != nil {
				return err
			}
			end, err := unix.Seek(fd, start, unix.SEEK_HOLE)
			if err != nil {
				return err
			}
			start, end = min(start, info.Size()), min(end, info.Size())
			if start == end {
				return nil // data behind what was the end
			}
			if len(pieces) == maxPieces || end < start {
				return unix.E2BIG
			}
			pieces = append(pieces, Piece{start, end - start})
			at = end
		}
		return nil
	})
	if err != nil {
		return whole
	}
	return pieces
}
