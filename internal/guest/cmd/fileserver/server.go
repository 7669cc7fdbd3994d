//go:build linux

package fileserver

import (
	"bufio"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"io"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/seed-1a2d6d8f/sandbox/internal/guest/wire"
)

// server carries out file operations for one client, as the user it runs as.
type server struct {
	in     *os.File
	out    sync.Mutex
	failed bool // standard output is gone

	slots     chan struct{}  // one for each request under way
	replacing sync.WaitGroup // those that put a file in its place

	mu    sync.Mutex
	last  uint64
	files map[uint64]*handle
}

// handle is an open file of the client's.
type handle struct {
	f       *os.File
	stream  bool // it has no offsets
	listing bool // opened to be listed, and closed at the end of that
	pending *replacement
	turn    sync.Mutex // of readers of a directory
	left    []string   // names read and not yet told
}

const (
	maxServed   = 4096 // open files of one client
	maxRequests = 1024 // requests at once; one may block, on a pipe say
	// replaceTime is what those get that put a file in its place when nobody asks for it
	// any more. A place that is a pipe may take for ever.
	replaceTime = time.Second
)

// Run serves until standard input ends, or SIGTERM comes. What was begun goes.
func Run() error {
	// Only a descriptor that does not block can be given up in the middle of a read.
	unix.SetNonblock(unix.Stdin, true)
	s := &server{in: os.NewFile(uintptr(unix.Stdin), "requests"), files: map[uint64]*handle{}, slots: make(chan struct{}, maxRequests)}
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGTERM)
	defer stop()
	defer s.abandon()
	context.AfterFunc(ctx, func() { s.in.SetReadDeadline(time.Unix(1, 0)) })
	in := bufio.NewReaderSize(s.in, 64<<10)
	for {
		id, op, message, err := wire.ReadFrame(in)
		if err == io.EOF || ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
		select {
		case s.slots <- struct{}{}:
		default:
			s.reply(id, wire.NewFrame(8), unix.EAGAIN)
			continue
		}
		places := op == wire.FileReplace || op == wire.FileBegin || op == wire.FileCommit
		if places {
			s.replacing.Add(1)
		}
		go func() {
			defer func() { <-s.slots }()
			out, err := s.do(op, wire.NewUnpack(message))
			if places {
				s.replacing.Done()
			}
			s.reply(id, out, err)
		}()
	}
}

// abandon undoes what was begun and not committed, and lets what is being put in its
// place get there.
func (s *server) abandon() {
	placed := make(chan struct{})
	go func() { s.replacing.Wait(); close(placed) }()
	select {
	case <-placed:
	case <-time.After(replaceTime):
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, f := range s.files {
		if f.pending != nil {
			f.pending.discard()
		}
	}
}

func (s *server) reply(id uint32, out wire.Pack, err error) {
	kind := byte(wire.FileOK)
	if err != nil {
		kind = wire.FileFailed
		out = wire.NewFrame(8)
		out.Uint(uint64(errnoOf(err)))
	}
	s.out.Lock()
	defer s.out.Unlock()
	if s.failed {
		return
	}
	if _, err := os.Stdout.Write(out.End(id, kind)); err != nil {
		s.failed = true
		s.in.Close()
	}
}

// errnoOf returns the number of an error. What has none can't be told better.
func errnoOf(err error) syscall.Errno {
	if errno, ok := errors.AsType[syscall.Errno](err); ok && errno != 0 {
		return errno
	}
	switch {
	case errors.Is(err, wire.ErrFrame), errors.Is(err, os.ErrInvalid):
		return unix.EINVAL
	case errors.Is(err, os.ErrClosed):
		return unix.EBADF
	case errors.Is(err, os.ErrExist):
		return unix.EEXIST
	}
	return unix.EIO
}

func (s *server) add(f *handle) (uint64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.files) >= maxServed {
		f.close()
		return 0, unix.EMFILE
	}
	s.last++
	s.files[s.last] = f
	return s.last, nil
}

func (s *server) get(h uint64) (*handle, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if f := s.files[h]; f != nil {
		return f, nil
	}
	return nil, unix.EBADF
}

func (s *server) take(h uint64) (*handle, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f := s.files[h]
	if f == nil {
		return nil, unix.EBADF
	}
	delete(s.files, h)
	return f, nil
}

func (f *handle) close() error {
	if f.pending != nil {
		f.pending.discard()
		return nil
	}
	return f.f.Close()
}

// do carries out one request.
func (s *server) do(op byte, u *wire.Unpack) (wire.Pack, error) {
	switch op {
	case wire.FileRead, wire.FileWrite, wire.FileClose, wire.FileFstat, wire.FileFtruncate, wire.FileSync, wire.FileCommit, wire.FileReadMore:
		return s.doHandle(op, u)
	}
	path := u.String()
	if u.Err() != nil || strings.IndexByte(path, 0) >= 0 {
		return nil, unix.EINVAL
	}
	out := wire.NewFrame(128)
	switch op {
	case wire.FileLstat, wire.FileStat:
		var st unix.Stat_t
		stat := unix.Lstat
		if op == wire.FileStat {
			stat = unix.Stat
		}
		if err := retry(func() error { return stat(path, &st) }); err != nil {
			return nil, err
		}
		out.Info(info("", &st))
		return out, nil
	case wire.FileOpen:
		flags, perm := u.Int(), u.Int()
		if u.Err() != nil {
			return nil, u.Err()
		}
		return s.open(path, int(flags), uint32(perm))
	case wire.FileReadAll:
		return s.readAll(path)
	case wire.FileReplace:
		perm, data := u.Int(), u.Bytes()
		if u.Err() != nil {
			return nil, u.Err()
		}
		r, err := replace(path, uint32(perm))
		if err != nil {
			return nil, err
		}
		if _, err := r.f.Write(data); err != nil {
			r.discard()
			return nil, err
		}
		return out, r.commit()
	case wire.FileBegin:
		perm := u.Int()
		if u.Err() != nil {
			return nil, u.Err()
		}
		r, err := replace(path, uint32(perm))
		if err != nil {
			return nil, err
		}
		h, err := s.add(&handle{f: r.f, pending: r})
		out.Uint(h)
		return out, err
	case wire.FileReadDir:
		return s.readDir(path)
	case wire.FileMkdirTemp:
		pattern := u.String()
		if u.Err() != nil || strings.IndexByte(pattern, 0) >= 0 {
			return nil, unix.EINVAL
		}
		name, err := os.MkdirTemp(path, pattern)
		out.String(name)
		return out, err
	case wire.FileReadlink:
		target, err := os.Readlink(path)
		out.String(target)
		return out, err
	}
	return out, s.change(op, path, u)
}

// change carries out the requests whose reply is only whether it was done.
func (s *server) change(op byte, path string, u *wire.Unpack) error {
	switch op {
	case wire.FileRename, wire.FileSymlink, wire.FileLink:
		second := u.String()
		if u.Err() != nil || strings.IndexByte(second, 0) >= 0 {
			return unix.EINVAL
		}
		return retry(func() error {
			switch op {
			case wire.FileRename:
				return unix.Rename(path, second)
			case wire.FileSymlink:
				return unix.Symlink(path, second)
			}
			return unix.Linkat(unix.AT_FDCWD, path, unix.AT_FDCWD, second, 0)
		})
	case wire.FileRemove:
		return os.Remove(path)
	case wire.FileRemoveAll:
		return os.RemoveAll(path)
	}
	a := u.Int()
	if u.Err() != nil {
		return u.Err()
	}
	switch op {
	case wire.FileMkdir:
		return retry(func() error { return unix.Mkdir(path, uint32(a)&0o7777) })
	case wire.FileMkdirAll:
		return os.MkdirAll(path, os.FileMode(a&0o777))
	case wire.FileChmod:
		return retry(func() error { return unix.Chmod(path, uint32(a)&0o7777) })
	case wire.FileTruncate:
		return retry(func() error { return unix.Truncate(path, a) })
	case wire.FileChown, wire.FileLchown:
		b := u.Int()
		if u.Err() != nil {
			return u.Err()
		}
		if op == wire.FileChown {
			return os.Chown(path, int(a), int(b))
		}
		return os.Lchown(path, int(a), int(b))
	case wire.FileChtimes:
		at, setM, mt := u.Int(), u.Int(), u.Int()
		if u.Err() != nil {
			return u.Err()
		}
		when := func(set, ns int64) time.Time {
			if set == 0 {
				return time.Time{}
			}
			return time.Unix(0, ns)
		}
		return os.Chtimes(path, when(a, at), when(setM, mt))
	}
	return unix.ENOSYS
}

func (s *server) doHandle(op byte, u *wire.Unpack) (wire.Pack, error) {
	h := u.Uint()
	if u.Err() != nil {
		return nil, u.Err()
	}
	if op == wire.FileClose || op == wire.FileCommit {
		f, err := s.take(h)
		if err != nil {
			return nil, err
		}
		if op == wire.FileClose {
			return wire.NewFrame(0), f.close()
		}
		if f.pending == nil {
			f.close()
			return nil, unix.EINVAL
		}
		return wire.NewFrame(0), f.pending.commit()
	}
	f, err := s.get(h)
	if err != nil {
		return nil, err
	}
	switch op {
	case wire.FileRead:
		off, size := u.Int(), u.Int()
		if u.Err() != nil || size < 0 || size > wire.MaxFileData {
			return nil, unix.EINVAL
		}
		buf := make([]byte, size)
		n, err := f.read(buf, off)
		if err != nil && err != io.EOF {
			return nil, err
		}
		out := wire.NewFrame(n + 8)
		out.Bytes(buf[:n])
		return out, nil
	case wire.FileWrite:
		off, data := u.Int(), u.Bytes()
		if u.Err() != nil {
			return nil, u.Err()
		}
		var n int
		if off < 0 {
			n, err = f.f.Write(data)
		} else {
			n, err = f.f.WriteAt(data, off)
		}
		if err != nil && n == 0 {
			return nil, err
		}
		out := wire.NewFrame(8)
		out.Uint(uint64(n))
		return out, nil
	case wire.FileFstat:
		var st unix.Stat_t
		if err := f.fstat(&st); err != nil {
			return nil, err
		}
		out := wire.NewFrame(128)
		out.Info(info("", &st))
		return out, nil
	case wire.FileFtruncate:
		size := u.Int()
		if u.Err() != nil {
			return nil, u.Err()
		}
		return wire.NewFrame(0), f.f.Truncate(size)
	case wire.FileSync:
		return wire.NewFrame(0), f.f.Sync()
	}
	return s.readMore(h, f)
}

func (f *handle) read(buf []byte, off int64) (int, error) {
	if off >= 0 && !f.stream {
		return f.f.ReadAt(buf, off)
	}
	return f.f.Read(buf)
}

func (f *handle) fstat(st *unix.Stat_t) error { return fstat(f.f, st) }

func fstat(f *os.File, st *unix.Stat_t) error {
	raw, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var statErr error
	if err := raw.Control(func(fd uintptr) {
		statErr = retry(func() error { return unix.Fstat(int(fd), st) })
	}); err != nil {
		return err
	}
	return statErr
}

func (s *server) open(path string, flags int, perm uint32) (wire.Pack, error) {
	// Without O_NONBLOCK a pipe that nobody writes to would hold the request for ever.
	mode := unix.O_CLOEXEC | unix.O_NONBLOCK | unix.O_NOCTTY
	switch flags & (wire.FlagRead | wire.FlagWrite) {
	case wire.FlagWrite:
		mode |= unix.O_WRONLY
	case wire.FlagRead | wire.FlagWrite:
		mode |= unix.O_RDWR
	}
	for _, f := range [...]struct{ ours, theirs int }{
		{wire.FlagAppend, unix.O_APPEND}, {wire.FlagCreate, unix.O_CREAT}, {wire.FlagExclusive, unix.O_EXCL},
		{wire.FlagTruncate, unix.O_TRUNC}, {wire.FlagSync, unix.O_SYNC},
	} {
		if flags&f.ours != 0 {
			mode |= f.theirs
		}
	}
	f, st, err := openFile(unix.AT_FDCWD, path, mode, perm&0o7777)
	if err != nil {
		return nil, err
	}
	h, err := s.add(&handle{f: f, stream: isStream(&st)})
	out := wire.NewFrame(128)
	out.Uint(h)
	out.Info(info("", &st))
	return out, err
}

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

// readAll answers with the whole of a small file.
func (s *server) readAll(path string) (wire.Pack, error) {
	f, st, err := openFile(unix.AT_FDCWD, path, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, err
	}
	if st.Mode&unix.S_IFMT == unix.S_IFDIR {
		f.Close()
		return nil, unix.EISDIR
	}
	// One byte more than is known to be there tells the end without another read.
	size := min(max(st.Size+1, 4096), wire.MaxFileData)
	buf := make([]byte, size)
	n, ended := 0, false
	for n < len(buf) && !ended {
		did, err := f.Read(buf[n:])
		n += did
		if err == io.EOF {
			ended = true
		} else if err != nil {
			f.Close()
			return nil, err
		} else if isStream(&st) {
			break
		}
	}
	h := uint64(0)
	if ended {
		f.Close()
	} else if h, err = s.add(&handle{f: f, stream: isStream(&st)}); err != nil {
		return nil, err
	}
	out := wire.NewFrame(n + 128)
	out.Uint(h)
	out.Info(info("", &st))
	out.Bytes(buf[:n])
	return out, nil
}

func (s *server) readDir(path string) (wire.Pack, error) {
	f, _, err := openFile(unix.AT_FDCWD, path, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, err
	}
	d := &handle{f: f, listing: true}
	h, err := s.add(d)
	if err != nil {
		return nil, err
	}
	return s.readMore(h, d)
}

// readMore answers with as many entries as a frame holds.
func (s *server) readMore(h uint64, d *handle) (wire.Pack, error) {
	d.turn.Lock()
	defer d.turn.Unlock()
	entries := wire.NewFrame(8 << 10)
	entries.Uint(h)
	for len(entries) < wire.MaxFileData {
		if len(d.left) == 0 {
			names, err := d.f.Readdirnames(512)
			if err != nil && err != io.EOF {
				return nil, err
			}
			if d.left = names; len(names) == 0 {
				if d.listing {
					s.take(h)
					d.f.Close()
				}
				rest := wire.NewFrame(len(entries))
				rest.Uint(0)
				var was wire.Pack
				was.Uint(h)
				return append(rest, entries[wire.FileHeader+len(was):]...), nil
			}
		}
		name := d.left[0]
		d.left = d.left[1:]
		var st unix.Stat_t
		err := retry(func() error { return unix.Fstatat(int(d.f.Fd()), name, &st, unix.AT_SYMLINK_NOFOLLOW) })
		if err == unix.ENOENT {
			continue // gone since
		}
		if err != nil {
			return nil, err
		}
		entries.Info(info(name, &st))
	}
	return entries, nil
}

func info(name string, st *unix.Stat_t) wire.FileInfo {
	return wire.FileInfo{
		Name: name, Mode: st.Mode, Size: max(st.Size, 0), Mtime: st.Mtim.Nano(), Atime: st.Atim.Nano(),
		UID: st.Uid, GID: st.Gid, Nlink: uint64(st.Nlink), Dev: st.Dev, Ino: st.Ino,
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

// temporaryName is for what will get another name or go.
func temporaryName() string {
	var b [8]byte
	rand.Read(b[:])
	return ".agent-sandbox-" + hex.EncodeToString(b[:])
}
