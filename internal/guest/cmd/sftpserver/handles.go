//go:build linux

package sftpserver

import (
	"encoding/binary"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"github.com/seed-1a2d6d8f/sandbox/internal/guest/cmd/proc"
)

// handle is an open file or directory.
type handle struct {
	*os.File
	path      string
	directory bool
	appending bool // the offsets of writes don't count
	listed    bool // the first names have been sent
}

// add returns the reply with a new handle. None is used again.
func (s *session) add(h *handle) (*reply, error) {
	s.last++
	id := string(binary.BigEndian.AppendUint32(nil, s.last))
	s.handles[id] = h
	r := newReply(typeHandle)
	r.string(id)
	return r, nil
}

// file returns the handle that a request names, or nil if that is none of an open file.
func (s *session) file(u *unpack) *handle {
	if h := s.handles[string(u.bytes())]; h != nil && !h.directory {
		return h
	}
	return nil
}

func openFlags(flags uint32) int {
	mode := unix.O_CLOEXEC
	switch flags & (openRead | openWrite) {
	case openWrite:
		mode |= unix.O_WRONLY
	case openRead | openWrite:
		mode |= unix.O_RDWR
	}
	for _, f := range [...]struct {
		asked  uint32
		kernel int
	}{{openAppend, unix.O_APPEND}, {openCreate, unix.O_CREAT}, {openTruncate, unix.O_TRUNC}, {openExclusive, unix.O_EXCL}} {
		if flags&f.asked != 0 {
			mode |= f.kernel
		}
	}
	return mode
}

func (s *session) open(u *unpack) (*reply, error) {
	path, flags, a := u.string(), openFlags(u.uint32()), u.attributes()
	if u.err != nil {
		return nil, u.err
	}
	fd, err := unix.Open(path, flags, a.mode(0o666))
	if err != nil {
		return nil, err
	}
	return s.add(&handle{File: os.NewFile(uintptr(fd), path), path: path, appending: flags&unix.O_APPEND != 0})
}

func (s *session) close(u *unpack) (*reply, error) {
	id := string(u.bytes())
	h := s.handles[id]
	if h == nil {
		return nil, statusNoFile
	}
	delete(s.handles, id)
	return nil, h.Close()
}

func (s *session) read(u *unpack) (*reply, error) {
	h, off, size := s.file(u), u.uint64(), min(u.uint32(), maxData)
	if h == nil || u.err != nil {
		return nil, statusFailure
	}
	if _, err := unix.Seek(h.fd(), int64(off), io.SeekStart); err != nil {
		return nil, err
	}
	r := &reply{kind: typeData, pack: s.data[:4+size]}
	n := 0
	if size > 0 {
		var err error
		switch n, err = retry(func() (int, error) { return unix.Read(h.fd(), r.pack[4:]) }); {
		case err != nil:
			return nil, err
		case n == 0:
			return nil, statusEOF
		}
	}
	binary.BigEndian.PutUint32(r.pack, uint32(n))
	r.pack = r.pack[:4+n]
	return r, nil
}

func (s *session) write(u *unpack) (*reply, error) {
	h, off, data := s.file(u), u.uint64(), u.bytes()
	if h == nil || u.err != nil {
		return nil, statusFailure
	}
	if !h.appending {
		if _, err := unix.Seek(h.fd(), int64(off), io.SeekStart); err != nil {
			return nil, err
		}
	}
	n, err := retry(func() (int, error) { return unix.Write(h.fd(), data) })
	if err == nil && n != len(data) {
		err = statusFailure
	}
	return nil, err
}

// fd is the handle's descriptor, which it has left blocking.
func (h *handle) fd() int { return int(h.Fd()) }

// retry repeats what a signal interrupted.
func retry(f func() (int, error)) (int, error) {
	for {
		if n, err := f(); err != unix.EINTR {
			return n, err
		}
	}
}

func (s *session) fstat(u *unpack) (*reply, error) {
	h := s.file(u)
	if h == nil {
		return nil, statusFailure
	}
	return statReply(func(st *unix.Stat_t) error { return unix.Fstat(h.fd(), st) })
}

func (s *session) fsetstat(u *unpack) (*reply, error) {
	h, a := s.file(u), u.attributes()
	if h == nil || u.err != nil {
		return nil, statusFailure
	}
	return nil, a.set(
		func(size int64) error { return unix.Ftruncate(h.fd(), size) },
		func(mode uint32) error { return unix.Fchmod(h.fd(), mode) },
		func(times []unix.Timespec) error { return futimens(h.fd(), times) },
		func(uid, gid int) error { return unix.Fchown(h.fd(), uid, gid) })
}

func (s *session) opendir(u *unpack) (*reply, error) {
	path := u.string()
	if u.err != nil {
		return nil, u.err
	}
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	return s.add(&handle{File: os.NewFile(uintptr(fd), path), path: path, directory: true})
}

// maxNames is how many names of a directory are in one reply.
const maxNames = 100

// readdir replies with the next names of a directory, each with its attributes and a line as of ls.
func (s *session) readdir(u *unpack) (*reply, error) {
	h := s.handles[string(u.bytes())]
	if h == nil || !h.directory {
		return nil, statusFailure
	}
	r, n := newReply(typeName), uint32(0)
	r.uint32(0)
	users, groups := proc.UserNames(), proc.GroupNames()
	for n == 0 {
		names, err := h.Readdirnames(maxNames)
		if !h.listed {
			h.listed = true
			names = append([]string{".", ".."}, names...)
		}
		if len(names) == 0 {
			if err == io.EOF {
				return nil, statusEOF
			}
			return nil, err
		}
		for _, name := range names {
			var st unix.Stat_t
			if unix.Fstatat(h.fd(), name, &st, unix.AT_SYMLINK_NOFOLLOW) != nil {
				continue // gone since
			}
			n++
			r.string(name)
			r.string(longName(name, &st, users, groups))
			r.stat(&st)
		}
	}
	binary.BigEndian.PutUint32(r.pack, n)
	return r, nil
}
