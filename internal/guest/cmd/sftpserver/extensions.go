//go:build linux

package sftpserver

import (
	"fmt"
	"io"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/seed-1a2d6d8f/sandbox/internal/guest/cmd/proc"
)

// extension is an operation that the protocol does not have. Those here are OpenSSH's.
type extension struct {
	version string
	do      operation
}

var extensions map[string]extension

func init() { // the greeting, which lists them, is an operation, too
	extensions = map[string]extension{
		"posix-rename@openssh.com":       {"1", changeTwo(unix.Rename)},
		"hardlink@openssh.com":           {"1", changeTwo(unix.Link)},
		"statvfs@openssh.com":            {"2", statvfs},
		"fstatvfs@openssh.com":           {"2", (*session).fstatvfs},
		"fsync@openssh.com":              {"1", (*session).fsync},
		"lsetstat@openssh.com":           {"1", lsetstat},
		"limits@openssh.com":             {"1", limits},
		"expand-path@openssh.com":        {"1", expandPath},
		"copy-data":                      {"1", (*session).copyData},
		"home-directory":                 {"1", homeDirectory},
		"users-groups-by-id@openssh.com": {"1", namesOfIDs},
	}
}

func (s *session) extended(u *unpack) (*reply, error) {
	e, known := extensions[u.string()]
	if !known {
		return nil, statusUnsupported
	}
	return e.do(s, u)
}

func statvfs(_ *session, u *unpack) (*reply, error) {
	path := u.string()
	return statvfsReply(func(st *unix.Statfs_t) error { return unix.Statfs(path, st) })
}

func (s *session) fstatvfs(u *unpack) (*reply, error) {
	h := s.file(u)
	if h == nil {
		return nil, statusFailure
	}
	return statvfsReply(func(st *unix.Statfs_t) error { return unix.Fstatfs(h.fd(), st) })
}

func statvfsReply(stat func(*unix.Statfs_t) error) (*reply, error) {
	var st unix.Statfs_t
	if err := stat(&st); err != nil {
		return nil, err
	}
	id := uint64(uint32(st.Fsid.Val[0])) | uint64(uint32(st.Fsid.Val[1]))<<32
	flags := uint64(st.Flags) & (unix.ST_RDONLY | unix.ST_NOSUID)
	r := newReply(typeExtendedReply)
	for _, n := range [...]uint64{
		uint64(st.Bsize), uint64(st.Frsize), st.Blocks, st.Bfree, st.Bavail, st.Files, st.Ffree, st.Ffree, id, flags, uint64(st.Namelen),
	} {
		r.uint64(n)
	}
	return r, nil
}

func (s *session) fsync(u *unpack) (*reply, error) {
	h := s.file(u)
	if h == nil {
		return nil, statusNoFile
	}
	return nil, unix.Fsync(h.fd())
}

// spareHandles are descriptors that are open beside those of handles.
const spareHandles = 8

func limits(*session, *unpack) (*reply, error) {
	var files unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &files); err != nil {
		return nil, err
	}
	r := newReply(typeExtendedReply)
	for _, n := range [...]uint64{maxPacket, maxData, maxData, max(files.Cur, spareHandles) - spareHandles} {
		r.uint64(n)
	}
	return r, nil
}

// expandPath is realpath with home directories as a shell writes them.
func expandPath(_ *session, u *unpack) (*reply, error) {
	path := u.string()
	if u.err != nil {
		return nil, u.err
	}
	if name, ok := strings.CutPrefix(path, "~"); ok {
		name, rest, _ := strings.Cut(name, "/")
		home := os.Getenv("HOME")
		if name != "" {
			user, err := proc.LookupUser(name)
			if err != nil || user.Name != name {
				return nil, refusal{statusNoFile, "no such user"}
			}
			home = user.Home
		}
		path = home + "/" + rest
	}
	return resolvedReply(path)
}

func homeDirectory(_ *session, u *unpack) (*reply, error) {
	name := u.string()
	if u.err != nil {
		return nil, u.err
	}
	user, err := proc.LookupUser(name)
	if err != nil || user.Name != name {
		return nil, statusFailure
	}
	return nameReply(user.Home), nil
}

// namesOfIDs replies with the names of users and groups, empty ones for those that have none.
func namesOfIDs(_ *session, u *unpack) (*reply, error) {
	r := newReply(typeExtendedReply)
	for _, names := range [...]map[uint32]string{proc.UserNames(), proc.GroupNames()} {
		var p pack
		for ids := (&unpack{rest: u.bytes()}); len(ids.rest) > 0; {
			id := ids.uint32()
			if ids.err != nil {
				return nil, statusBadMessage
			}
			p.string(names[id])
		}
		r.string(string(p))
	}
	return r, nil
}

// copyData copies from one open file to another, to the end if the request gives no size.
func (s *session) copyData(u *unpack) (*reply, error) {
	from, off, size := s.file(u), u.uint64(), u.uint64()
	to, at := s.file(u), u.uint64()
	if from == nil || to == nil || from.path == to.path || u.err != nil {
		return nil, statusFailure
	}
	if _, err := unix.Seek(from.fd(), int64(off), io.SeekStart); err != nil {
		return nil, err
	}
	if !to.appending {
		if _, err := unix.Seek(to.fd(), int64(at), io.SeekStart); err != nil {
			return nil, err
		}
	}
	toEnd := size == 0
	buf := make([]byte, 64<<10)
	for toEnd || size > 0 {
		part := buf
		if !toEnd {
			part = buf[:min(size, uint64(len(buf)))]
		}
		n, err := retry(func() (int, error) { return unix.Read(from.fd(), part) })
		switch {
		case err != nil:
			return nil, err
		case n == 0 && toEnd:
			return nil, nil
		case n == 0:
			return nil, statusEOF
		}
		if _, err := to.File.Write(part[:n]); err != nil {
			return nil, err
		}
		size -= uint64(n)
	}
	return nil, nil
}

func futimens(fd int, times []unix.Timespec) error {
	return unix.UtimesNanoAt(unix.AT_FDCWD, procPath(fd), times, 0)
}

func procPath(fd int) string { return fmt.Sprintf("/proc/self/fd/%d", fd) }
