//go:build linux

package fileserver

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/seed-1a2d6d8f/sandbox/internal/guest/wire"
)

// handle is an open file of the client's.
type handle struct {
	f       *os.File
	stream  bool // it has no offsets
	listing bool // opened to be listed, and closed at the end of that
	pending *replacement
	turn    sync.Mutex    // of readers of a directory
	left    []fs.DirEntry // read and not yet sent
}

// handleOps are the operations on a handle, whose number has been read of u already.
var handleOps = map[byte]func(s *server, id uint64, u *wire.Unpack) (wire.Pack, error){
	wire.FileClose:     (*server).close,
	wire.FileCommit:    (*server).commit,
	wire.FileReadMore:  (*server).readMore,
	wire.FileRead:      onHandle((*handle).read),
	wire.FileWrite:     onHandle((*handle).write),
	wire.FileFstat:     onHandle((*handle).stat),
	wire.FileFtruncate: onHandle((*handle).truncate),
	wire.FileSync:      onHandle((*handle).sync),
}

// onHandle is an operation that leaves its handle open.
func onHandle(f func(*handle, *wire.Unpack) (wire.Pack, error)) func(*server, uint64, *wire.Unpack) (wire.Pack, error) {
	return func(s *server, id uint64, u *wire.Unpack) (wire.Pack, error) {
		h, err := s.get(id)
		if err != nil {
			return nil, err
		}
		return f(h, u)
	}
}

func (s *server) add(h *handle) (uint64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.handles) >= maxHandles {
		h.close()
		return 0, unix.EMFILE
	}
	s.last++
	s.handles[s.last] = h
	return s.last, nil
}

func (s *server) get(id uint64) (*handle, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if h := s.handles[id]; h != nil {
		return h, nil
	}
	return nil, unix.EBADF
}

// take returns a handle, which is the caller's alone from then on.
func (s *server) take(id uint64) (*handle, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	h := s.handles[id]
	if h == nil {
		return nil, unix.EBADF
	}
	delete(s.handles, id)
	return h, nil
}

func (s *server) close(id uint64, _ *wire.Unpack) (wire.Pack, error) {
	h, err := s.take(id)
	if err != nil {
		return nil, err
	}
	return wire.NewFrame(0), h.close()
}

func (s *server) commit(id uint64, _ *wire.Unpack) (wire.Pack, error) {
	h, err := s.take(id)
	if err != nil {
		return nil, err
	}
	if h.pending == nil {
		h.close()
		return nil, unix.EINVAL
	}
	return wire.NewFrame(0), h.pending.commit()
}

func (s *server) readMore(id uint64, _ *wire.Unpack) (wire.Pack, error) {
	h, err := s.get(id)
	if err != nil {
		return nil, err
	}
	return s.list(id, h)
}

func (h *handle) close() error {
	if h.pending != nil {
		h.pending.discard()
		return nil
	}
	return h.f.Close()
}

func (h *handle) read(u *wire.Unpack) (wire.Pack, error) {
	off, size := u.Int(), u.Int()
	if u.Err() != nil || size < 0 || size > wire.MaxFileData {
		return nil, unix.EINVAL
	}
	buf := make([]byte, size)
	var n int
	var err error
	if off >= 0 && !h.stream {
		n, err = h.f.ReadAt(buf, off)
	} else {
		n, err = h.f.Read(buf)
	}
	if err != nil && err != io.EOF {
		return nil, err
	}
	out := wire.NewFrame(n + 8)
	out.Bytes(buf[:n])
	return out, nil
}

func (h *handle) write(u *wire.Unpack) (wire.Pack, error) {
	off, data := u.Int(), u.Bytes()
	if u.Err() != nil {
		return nil, u.Err()
	}
	var n int
	var err error
	if off < 0 {
		n, err = h.f.Write(data)
	} else {
		n, err = h.f.WriteAt(data, off)
		if errors.Is(err, unix.ESPIPE) { // a file of /proc may take no offsets
			n, err = h.f.Write(data)
		}
	}
	if err != nil && n == 0 {
		return nil, err
	}
	out := wire.NewFrame(16)
	out.Uint(uint64(n))
	if off < 0 && !h.stream {
		if at, err := h.f.Seek(0, io.SeekCurrent); err == nil {
			out.Int(at)
		}
	}
	return out, nil
}

func (h *handle) stat(*wire.Unpack) (wire.Pack, error) {
	raw, err := h.f.SyscallConn()
	if err != nil {
		return nil, err
	}
	var st unix.Stat_t
	var statErr error
	if err := raw.Control(func(fd uintptr) {
		statErr = retry(func() error { return unix.Fstat(int(fd), &st) })
	}); err != nil {
		return nil, err
	}
	if statErr != nil {
		return nil, statErr
	}
	out := wire.NewFrame(128)
	out.Stat(info("", &st))
	return out, nil
}

func (h *handle) truncate(u *wire.Unpack) (wire.Pack, error) {
	size := u.Int()
	if u.Err() != nil {
		return nil, u.Err()
	}
	return wire.NewFrame(0), h.f.Truncate(size)
}

func (h *handle) sync(*wire.Unpack) (wire.Pack, error) { return wire.NewFrame(0), h.f.Sync() }

// list replies with as many entries of a directory as a frame holds.
func (s *server) list(id uint64, h *handle) (wire.Pack, error) {
	h.turn.Lock()
	defer h.turn.Unlock()
	entries := wire.NewFrame(8 << 10)
	entries.Uint(id)
	for len(entries) < wire.MaxFileData {
		if len(h.left) == 0 {
			next, err := h.f.ReadDir(512)
			if err != nil && err != io.EOF {
				return nil, err
			}
			if h.left = next; len(next) == 0 {
				return s.listEnd(id, h, entries), nil
			}
		}
		name, kind := h.left[0].Name(), h.left[0].Type()
		h.left = h.left[1:]
		var st unix.Stat_t
		err := retry(func() error { return unix.Fstatat(int(h.f.Fd()), name, &st, unix.AT_SYMLINK_NOFOLLOW) })
		if err == unix.ENOENT {
			continue // gone since
		}
		if errno, is := err.(unix.Errno); is { // as EACCES, if the directory may be listed and not searched, or ENOTCONN
			entries.Info(wire.FileInfo{Name: name, Mode: fileType(kind), Size: int64(errno)})
			continue
		}
		entries.Info(info(name, &st))
	}
	return entries, nil
}

// fileType converts a type to that of stat.
func fileType(kind fs.FileMode) uint32 {
	switch kind {
	case fs.ModeDir:
		return unix.S_IFDIR
	case fs.ModeSymlink:
		return unix.S_IFLNK
	case fs.ModeNamedPipe:
		return unix.S_IFIFO
	case fs.ModeSocket:
		return unix.S_IFSOCK
	case fs.ModeDevice:
		return unix.S_IFBLK
	case fs.ModeDevice | fs.ModeCharDevice:
		return unix.S_IFCHR
	}
	return unix.S_IFREG
}

// listEnd is the last reply of a listing: the same entries after a 0 in place of the
// handle, which is closed if it was opened for the listing.
func (s *server) listEnd(id uint64, h *handle, entries wire.Pack) wire.Pack {
	if h.listing {
		s.take(id)
		h.f.Close()
	}
	last := wire.NewFrame(len(entries))
	last.Uint(0)
	var head wire.Pack
	head.Uint(id)
	return append(last, entries[wire.FileHeader+len(head):]...)
}
