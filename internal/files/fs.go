package files

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"strings"
	"sync"

	"github.com/seed-1a2d6d8f/sandbox/internal/archive"
)

// sandboxFS is a directory of the sandbox as an fs.FS.
type sandboxFS struct {
	ctx  context.Context // of the calls, which take none
	f    *View
	root string // absolute, without a slash at its end; "" is the root itself
	all  bool   // names that are not UTF-8 are opened, too, other than package fs has it
}

// anyFS is a sandboxFS for copies: it opens files whose names are not UTF-8, too.
type anyFS struct{ *sandboxFS }

// AnyNames implements [archive.AnyNames].
func (anyFS) AnyNames() {}

func (x sandboxFS) anyNames() fs.FS {
	x.all = true
	return anyFS{&x}
}

// FS is [Sandbox.FS] as the user.
func (f *View) FS() fs.FS { return &sandboxFS{ctx: context.Background(), f: f} }

func (x *sandboxFS) path(op, name string) (string, error) {
	if !fs.ValidPath(name) && !(x.all && archive.ValidPath(name)) {
		return "", &fs.PathError{Op: op, Path: name, Err: fs.ErrInvalid}
	}
	if name == "." {
		return x.root + "/", nil
	}
	return x.root + "/" + name, nil
}

// fsError returns err as the *fs.PathError that package fs promises.
func fsError(op, name string, err error) error {
	var p *fs.PathError
	if err == nil {
		return nil
	}
	if errors.As(err, &p) {
		err = p.Err
	}
	return &fs.PathError{Op: op, Path: name, Err: err}
}

func (x *sandboxFS) Open(name string) (fs.File, error) {
	path, err := x.path("open", name)
	if err != nil {
		return nil, err
	}
	f, err := x.f.Open(x.ctx, path)
	if err != nil {
		return nil, fsError("open", name, err)
	}
	f.name = name
	f.info.name = baseName(name)
	return &fsFile{File: f}, nil
}

// fsFile is a File that reads ahead, because callers of package fs may read little at once,
// and whose errors are as package fs promises.
type fsFile struct {
	*File
	mu    sync.Mutex
	off   int64
	ahead []byte // of the file from off
}

// readAhead is the least that is read at once.
const readAhead = 64 << 10

func (f *fsFile) fix(op string, err error) error {
	if err == nil || err == io.EOF {
		return err
	}
	return fsError(op, f.name, err)
}

func (f *fsFile) Read(b []byte) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.stream() || f.info.mode.IsDir() || len(b) == 0 {
		n, err := f.File.Read(b)
		return n, f.fix("read", err)
	}
	if err := f.checkOpen("read"); err != nil {
		return 0, f.fix("read", err)
	}
	if len(f.ahead) == 0 {
		into := b
		if len(b) < readAhead {
			into = make([]byte, readAhead)
		}
		n, err := f.File.ReadAt(into, f.off)
		if n == 0 || err != nil && err != io.EOF {
			return 0, f.fix("read", err)
		}
		if len(b) >= readAhead {
			f.off += int64(n)
			return n, nil
		}
		f.ahead = into[:n]
	}
	n := copy(b, f.ahead)
	f.ahead = f.ahead[n:]
	f.off += int64(n)
	return n, nil
}

func (f *fsFile) WriteTo(w io.Writer) (int64, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.stream() {
		f.ahead = nil
		f.seek.Lock()
		f.File.off = f.off
		f.seek.Unlock()
	}
	n, err := f.File.WriteTo(w)
	f.off += n
	return n, f.fix("read", err)
}

func (f *fsFile) ReadAt(b []byte, off int64) (int, error) {
	n, err := f.File.ReadAt(b, off)
	return n, f.fix("read", err)
}

func (f *fsFile) Seek(offset int64, whence int) (int64, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if whence == io.SeekCurrent {
		offset, whence = offset+f.off, io.SeekStart
	}
	n, err := f.File.Seek(offset, whence)
	if err == nil {
		f.off, f.ahead = n, nil
	}
	return n, f.fix("seek", err)
}

func (f *fsFile) Stat() (fs.FileInfo, error) {
	info, err := f.File.Stat()
	return info, f.fix("stat", err)
}

func (f *fsFile) ReadDir(n int) ([]fs.DirEntry, error) {
	list, err := f.File.ReadDir(n)
	return list, f.fix("readdir", err)
}

func (f *fsFile) Close() error { return f.fix("close", f.File.Close()) }

func (x *sandboxFS) ReadFile(name string) ([]byte, error) {
	path, err := x.path("open", name)
	if err != nil {
		return nil, err
	}
	data, err := x.f.ReadFile(x.ctx, path)
	return data, fsError("open", name, err)
}

func (x *sandboxFS) Stat(name string) (fs.FileInfo, error) {
	path, err := x.path("stat", name)
	if err != nil {
		return nil, err
	}
	info, err := x.f.Stat(x.ctx, path)
	return named(info, "stat", name, err)
}

func (x *sandboxFS) Lstat(name string) (fs.FileInfo, error) {
	path, err := x.path("lstat", name)
	if err != nil {
		return nil, err
	}
	info, err := x.f.Lstat(x.ctx, path)
	return named(info, "lstat", name, err)
}

// named gives an info the base of the name it was asked for: that of "." is ".".
func named(info fs.FileInfo, op, name string, err error) (fs.FileInfo, error) {
	if err != nil {
		return nil, fsError(op, name, err)
	}
	info.(*fileInfo).name = baseName(name)
	return info, nil
}

func (x *sandboxFS) ReadLink(name string) (string, error) {
	path, err := x.path("readlink", name)
	if err != nil {
		return "", err
	}
	target, err := x.f.Readlink(x.ctx, path)
	return target, fsError("readlink", name, err)
}

func (x *sandboxFS) ReadDir(name string) ([]fs.DirEntry, error) {
	path, err := x.path("open", name)
	if err != nil {
		return nil, err
	}
	list, err := x.f.ReadDir(x.ctx, path)
	return list, fsError("open", name, err)
}

func (x *sandboxFS) Sub(dir string) (fs.FS, error) {
	path, err := x.path("sub", dir)
	if err != nil {
		return nil, err
	}
	return &sandboxFS{ctx: x.ctx, f: x.f, root: strings.TrimSuffix(path, "/")}, nil
}
