//go:build linux

package fileserver

import (
	"io"
	"os"

	"golang.org/x/sys/unix"

	"github.com/seed-1a2d6d8f/sandbox/internal/guest/wire"
)

// pathOps are the operations on a path, which has been read of u already.
var pathOps = map[byte]func(s *server, path string, u *wire.Unpack) (wire.Pack, error){
	wire.FileLstat:     statBy(unix.Lstat),
	wire.FileStat:      statBy(unix.Stat),
	wire.FileOpen:      (*server).open,
	wire.FileReadAll:   (*server).readAll,
	wire.FileReplace:   (*server).replace,
	wire.FileBegin:     (*server).begin,
	wire.FileReadDir:   (*server).readDir,
	wire.FileMkdirTemp: mkdirTemp,
	wire.FileReadlink:  readlink,

	wire.FileRemove:    change(os.Remove),
	wire.FileRemoveAll: change(os.RemoveAll),
	wire.FileRename:    changeTwo(os.Rename),
	wire.FileSymlink:   changeTwo(unix.Symlink),
	wire.FileMkdir:     changeBy(func(path string, perm int64) error { return unix.Mkdir(path, uint32(perm)&0o7777) }),
	wire.FileMkdirAll:  changeBy(mkdirAll),
	wire.FileChmod:     changeBy(func(path string, perm int64) error { return unix.Chmod(path, uint32(perm)&0o7777) }),
	wire.FileTruncate:  changeBy(unix.Truncate),
	wire.FileChown:     chownBy(os.Chown),
	wire.FileLchown:    chownBy(os.Lchown),
	wire.FileChtimes:   chtimes,
}

// pathOp is an operation on a path.
type pathOp = func(*server, string, *wire.Unpack) (wire.Pack, error)

// change is an operation that replies with nothing but success.
func change(f func(path string) error) pathOp {
	return func(_ *server, path string, _ *wire.Unpack) (wire.Pack, error) {
		return wire.NewFrame(0), f(path)
	}
}

// changeTwo is a change that takes a second path.
func changeTwo(f func(path, second string) error) pathOp {
	return func(_ *server, path string, u *wire.Unpack) (wire.Pack, error) {
		second, err := pathOf(u)
		if err != nil {
			return nil, err
		}
		return wire.NewFrame(0), retry(func() error { return f(path, second) })
	}
}

// changeBy is a change that takes a number.
func changeBy(f func(path string, n int64) error) pathOp {
	return func(_ *server, path string, u *wire.Unpack) (wire.Pack, error) {
		n := u.Int()
		if u.Err() != nil {
			return nil, u.Err()
		}
		return wire.NewFrame(0), retry(func() error { return f(path, n) })
	}
}

func mkdirAll(path string, perm int64) error {
	mode := os.FileMode(perm & 0o777)
	if perm&unix.S_ISVTX != 0 {
		mode |= os.ModeSticky // the kernel takes no other bit here
	}
	return os.MkdirAll(path, mode)
}

func chownBy(chown func(path string, uid, gid int) error) pathOp {
	return func(_ *server, path string, u *wire.Unpack) (wire.Pack, error) {
		uid, gid := u.Int(), u.Int()
		if u.Err() != nil {
			return nil, u.Err()
		}
		return wire.NewFrame(0), chown(path, int(uid), int(gid))
	}
}

func chtimes(_ *server, path string, u *wire.Unpack) (wire.Pack, error) {
	var times [2]unix.Timespec // of access and modification
	for i := range times {
		set, t := u.Int(), u.Time()
		times[i] = unix.Timespec{Sec: t.Unix(), Nsec: int64(t.Nanosecond())}
		if set == 0 {
			times[i] = unix.Timespec{Nsec: unix.UTIME_OMIT}
		}
	}
	if u.Err() != nil {
		return nil, u.Err()
	}
	return wire.NewFrame(0), retry(func() error { return unix.UtimesNanoAt(unix.AT_FDCWD, path, times[:], 0) })
}

func statBy(stat func(string, *unix.Stat_t) error) pathOp {
	return func(_ *server, path string, _ *wire.Unpack) (wire.Pack, error) {
		var st unix.Stat_t
		if err := retry(func() error { return stat(path, &st) }); err != nil {
			return nil, err
		}
		out := wire.NewFrame(128)
		out.Stat(info("", &st))
		return out, nil
	}
}

func mkdirTemp(_ *server, path string, u *wire.Unpack) (wire.Pack, error) {
	pattern, err := pathOf(u)
	if err != nil {
		return nil, err
	}
	name, err := os.MkdirTemp(path, pattern)
	out := wire.NewFrame(128)
	out.String(name)
	return out, err
}

func readlink(_ *server, path string, _ *wire.Unpack) (wire.Pack, error) {
	target, err := os.Readlink(path)
	out := wire.NewFrame(128)
	out.String(target)
	return out, err
}

// replace puts a file with the data of the request in the place of path.
func (s *server) replace(path string, u *wire.Unpack) (wire.Pack, error) {
	perm, data := u.Int(), u.Bytes()
	if u.Err() != nil {
		return nil, u.Err()
	}
	r, err := newReplacement(path, uint32(perm))
	if err != nil {
		return nil, err
	}
	if _, err := r.f.Write(data); err != nil {
		r.discard()
		return nil, err
	}
	return wire.NewFrame(0), r.commit()
}

// begin opens a replacement of path, for the client to write and commit.
func (s *server) begin(path string, u *wire.Unpack) (wire.Pack, error) {
	perm := u.Int()
	if u.Err() != nil {
		return nil, u.Err()
	}
	r, err := newReplacement(path, uint32(perm))
	if err != nil {
		return nil, err
	}
	id, err := s.add(&handle{f: r.f, pending: r})
	out := wire.NewFrame(16)
	out.Uint(id)
	return out, err
}

func (s *server) open(path string, u *wire.Unpack) (wire.Pack, error) {
	flags, perm := u.Int(), u.Int()
	if u.Err() != nil {
		return nil, u.Err()
	}
	f, st, err := openFile(unix.AT_FDCWD, path, openMode(int(flags)), uint32(perm)&0o7777)
	if err != nil {
		return nil, err
	}
	id, err := s.add(&handle{f: f, stream: isStream(&st)})
	out := wire.NewFrame(128)
	out.Uint(id)
	out.Info(info("", &st))
	return out, err
}

// openMode is what flags of the protocol are to the kernel.
func openMode(flags int) int {
	// Without O_NONBLOCK a pipe that nobody writes to would hold the request for ever.
	mode := unix.O_CLOEXEC | unix.O_NONBLOCK | unix.O_NOCTTY
	switch flags & (wire.FlagRead | wire.FlagWrite) {
	case wire.FlagWrite:
		mode |= unix.O_WRONLY
	case wire.FlagRead | wire.FlagWrite:
		mode |= unix.O_RDWR
	}
	for _, f := range [...]struct{ wire, kernel int }{
		{wire.FlagAppend, unix.O_APPEND}, {wire.FlagCreate, unix.O_CREAT}, {wire.FlagExclusive, unix.O_EXCL},
		{wire.FlagTruncate, unix.O_TRUNC}, {wire.FlagSync, unix.O_SYNC},
	} {
		if flags&f.wire != 0 {
			mode |= f.kernel
		}
	}
	return mode
}

// readAll replies with the whole of a small file, and with a handle for the rest of a
// larger one.
func (s *server) readAll(path string, _ *wire.Unpack) (wire.Pack, error) {
	f, st, err := openFile(unix.AT_FDCWD, path, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, err
	}
	if st.Mode&unix.S_IFMT == unix.S_IFDIR {
		f.Close()
		return nil, unix.EISDIR
	}
	// One byte more than the file seems to have finds the end without another read.
	buf := make([]byte, min(max(st.Size+1, 4096), wire.MaxFileData))
	n, ended, err := readUp(f, buf, isStream(&st))
	if err != nil {
		f.Close()
		return nil, err
	}
	id := uint64(0)
	if ended {
		f.Close()
	} else if id, err = s.add(&handle{f: f, stream: isStream(&st)}); err != nil {
		return nil, err
	}
	out := wire.NewFrame(n + 128)
	out.Uint(id)
	out.Info(info("", &st))
	out.Bytes(buf[:n])
	return out, nil
}

// readUp fills buf, or less at the end of f. Of a stream it reads once.
func readUp(f *os.File, buf []byte, stream bool) (n int, ended bool, err error) {
	for n < len(buf) {
		got, err := f.Read(buf[n:])
		n += got
		switch {
		case err == io.EOF:
			return n, true, nil
		case err != nil:
			return n, false, err
		case stream:
			return n, false, nil
		}
	}
	return n, false, nil
}

func (s *server) readDir(path string, _ *wire.Unpack) (wire.Pack, error) {
	f, _, err := openFile(unix.AT_FDCWD, path, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, err
	}
	h := &handle{f: f, listing: true}
	id, err := s.add(h)
	if err != nil {
		return nil, err
	}
	return s.list(id, h)
}
