// Package files reads and writes the files of a sandbox: through its guest when it runs,
// through the engine when it does not.
package files

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/seed-1a2d6d8f/sandbox/internal/archive"
	"github.com/seed-1a2d6d8f/sandbox/internal/bound"
	"github.com/seed-1a2d6d8f/sandbox/internal/engine"
	"github.com/seed-1a2d6d8f/sandbox/internal/errdefs"
	"github.com/seed-1a2d6d8f/sandbox/internal/guest"
	"github.com/seed-1a2d6d8f/sandbox/internal/guest/wire"
	"github.com/seed-1a2d6d8f/sandbox/internal/lifecycle"
	"github.com/seed-1a2d6d8f/sandbox/internal/store"
)

// A View is the file system of a sandbox as one of its users sees it. The root package
// documents its methods. Their errors are of type *[Failure].
type View struct {
	h      *lifecycle.Handle
	user   string
	sys    func(*Stat) any
	limits lifecycle.Limits
}

// NewView returns the view of a user. sys returns the value of Sys for a file's info.
func NewView(h *lifecycle.Handle, user string, sys func(*Stat) any) *View {
	return &View{h: h, user: user, sys: sys, limits: h.Client().Limits}
}

// A Failure is the error of a call. Its cause is an *[fs.PathError] or an *[os.LinkError].
type Failure struct {
	Op  string
	Err error
}

func (e *Failure) Error() string { return e.Err.Error() }
func (e *Failure) Unwrap() error { return e.Err }

// Stat is the part of a file's info that package fs does not define. The root package
// documents its fields.
type Stat struct {
	UID, GID   uint32
	Nlink      uint64
	Dev, Inode uint64
	Atime      time.Time
	Ctime      time.Time
}

// change runs a call that changes a file.
func (f *View) change(ctx context.Context, op, name string, fn func(srv *guest.Files, path string) error) error {
	path, err := f.abs(name)
	if err == nil {
		err = f.serve(ctx, func(srv *guest.Files) error { return fn(srv, path) })
	}
	return f.fail(ctx, op, name, err)
}

// serve runs fn with the user's file server, and resumes a stopped sandbox for it.
func (f *View) serve(ctx context.Context, fn func(*guest.Files) error) error {
	srv, err := f.h.FileServer(ctx, f.user, true)
	if err != nil {
		return err
	}
	return fn(srv)
}

// read runs a call that only reads: fn with the guest, or without on a sandbox that has no
// session.
func (f *View) read(ctx context.Context, op, name string, fn func(srv *guest.Files, path string) error, without func(st *stopped, path string) error) error {
	path, err := f.abs(name)
	if err == nil {
		var srv *guest.Files
		switch srv, err = f.h.FileServer(ctx, f.user, false); {
		case err == nil:
			err = fn(srv, path)
		case errors.Is(err, lifecycle.ErrNoSession):
			var st *stopped
			if st, err = f.stopped(ctx); err == nil {
				path, err = st.withoutDots(ctx, path)
			}
			if err == nil {
				err = without(st, path)
			}
		}
	}
	return f.fail(ctx, op, name, err)
}

// abs makes a path absolute. It does not clean it: a/../b is not b when a is a link.
func (f *View) abs(name string) (string, error) {
	switch {
	case strings.IndexByte(name, 0) >= 0:
		return "", errdefs.Invalid("the path contains a NUL byte")
	case name == "":
		return "", syscall.ENOENT
	case strings.HasPrefix(name, "/"):
		return name, nil
	}
	return f.h.Workdir() + "/" + name, nil
}

// cause returns the error of a call in the terms of the root package.
func (f *View) cause(ctx context.Context, err error) error {
	var start *wire.StartError
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil && (errors.Is(err, ctx.Err()) || errors.Is(err, context.Cause(ctx))):
		return errdefs.Cancelled(ctx)
	case errors.As(err, &start):
		return lifecycle.StartError(wire.Program, "/", start)
	case errors.Is(err, guest.ErrConnectionLost):
		return f.h.ExplainLost(ctx, err)
	case errors.Is(err, archive.ErrSpecial) && !errors.Is(err, errdefs.InvalidArgument):
		return errdefs.Classify(errdefs.InvalidArgument, err)
	}
	return err
}

func (f *View) fail(ctx context.Context, op, name string, err error) error {
	if err == nil {
		return nil
	}
	return &Failure{op, &fs.PathError{Op: op, Path: name, Err: store.Classify(f.cause(ctx, err))}}
}

func (f *View) failLink(ctx context.Context, op, from, to string, err error) error {
	if err == nil {
		return nil
	}
	return &Failure{op, &os.LinkError{Op: op, Old: from, New: to, Err: store.Classify(f.cause(ctx, err))}}
}

// ReadFile is [Sandbox.ReadFile] as the user.
func (f *View) ReadFile(ctx context.Context, name string) ([]byte, error) {
	var data []byte
	err := f.read(ctx, "read", name, func(srv *guest.Files, path string) (err error) {
		data, err = readAll(ctx, srv, path, f.limits.ReadFile)
		return err
	}, func(st *stopped, path string) (err error) {
		data, err = st.readFile(ctx, path)
		return err
	})
	return data, err
}

func tooLargeToRead(size, limit int64) error {
	return fmt.Errorf("%w: it has at least %d bytes, more than the %d of Limits.ReadFile", errdefs.TooLarge, size, limit)
}

func tooManyEntries(limit int) error {
	return fmt.Errorf("%w: it has more than the %d entries of Limits.ReadDir", errdefs.TooLarge, limit)
}

// readAll reads a file of at most limit bytes.
func readAll(ctx context.Context, srv *guest.Files, path string, limit int64) ([]byte, error) {
	data, h, info, err := srv.ReadAll(ctx, path)
	if err != nil {
		return nil, err
	}
	if h != 0 {
		defer closeLater(ctx, srv, h)
	}
	stream := isStream(info.Mode)
	for at, end := int64(guest.Stream), h == 0; ; {
		size := int64(len(data))
		if size > limit || !stream && !end && info.Size > limit {
			return nil, tooLargeToRead(max(size, info.Size), limit)
		}
		if end {
			return data, nil
		}
		// The size may be wrong, as in /proc, so it is only a hint for the first buffer. One
		// byte more than expected, or allowed, shows whether there is more.
		grow := max(size/4, wire.MaxFileData)
		if !stream {
			grow, at = max(grow, info.Size-size+1), size
		}
		grow = min(grow, 64<<20, limit-size+1)
		data = slices.Grow(data, int(grow))
		n, err := srv.ReadAt(ctx, h, data[size:size+grow], at)
		data = data[:size+int64(n)]
		if end = err == io.EOF; err != nil && !end {
			return nil, err
		}
	}
}

func isStream(mode uint32) bool {
	return guest.GoMode(mode)&(fs.ModeNamedPipe|fs.ModeCharDevice|fs.ModeSocket) != 0
}

// closeLater closes a file that was only read, and waits at most 5 s for that.
func closeLater(ctx context.Context, srv *guest.Files, h guest.Handle) {
	ctx, cancel := bound.Outlive(ctx, 5*time.Second)
	defer cancel()
	srv.CloseHandle(ctx, h)
}

// WriteFile is [Sandbox.WriteFile] as the user.
func (f *View) WriteFile(ctx context.Context, name string, data []byte, perm fs.FileMode) error {
	return f.change(ctx, "write", name, func(srv *guest.Files, path string) error {
		return srv.Replace(ctx, path, data, perm)
	})
}

// WriteFrom is [Sandbox.WriteFrom] as the user.
func (f *View) WriteFrom(ctx context.Context, name string, r io.Reader, perm fs.FileMode) (n int64, err error) {
	err = f.change(ctx, "write", name, func(srv *guest.Files, path string) (err error) {
		n, err = srv.ReplaceFrom(ctx, path, r, perm)
		return err
	})
	return n, err
}

// Mkdir is [Sandbox.Mkdir] as the user.
func (f *View) Mkdir(ctx context.Context, name string, perm fs.FileMode) error {
	return f.change(ctx, "mkdir", name, func(srv *guest.Files, path string) error { return srv.Mkdir(ctx, path, perm) })
}

// MkdirAll is [Sandbox.MkdirAll] as the user.
func (f *View) MkdirAll(ctx context.Context, name string, perm fs.FileMode) error {
	return f.change(ctx, "mkdir", name, func(srv *guest.Files, path string) error { return srv.MkdirAll(ctx, path, perm) })
}

// MkdirTemp is [Sandbox.MkdirTemp] as the user.
func (f *View) MkdirTemp(ctx context.Context, dir, pattern string) (string, error) {
	if dir == "" {
		dir = "/tmp"
	}
	if strings.ContainsAny(pattern, "/\x00") {
		return "", f.fail(ctx, "mkdirtemp", pattern, errdefs.Invalid("the pattern contains a slash or a NUL byte"))
	}
	var name string
	err := f.change(ctx, "mkdirtemp", dir, func(srv *guest.Files, path string) (err error) {
		name, err = srv.MkdirTemp(ctx, path, pattern)
		return err
	})
	return name, err
}

// Remove is [Sandbox.Remove] as the user.
func (f *View) Remove(ctx context.Context, name string) error {
	return f.change(ctx, "remove", name, func(srv *guest.Files, path string) error { return srv.Remove(ctx, path) })
}

// RemoveAll is [Sandbox.RemoveAll] as the user.
func (f *View) RemoveAll(ctx context.Context, name string) error {
	return f.change(ctx, "removeall", name, func(srv *guest.Files, path string) error { return srv.RemoveAll(ctx, path) })
}

// Rename is [Sandbox.Rename] as the user.
func (f *View) Rename(ctx context.Context, oldname, newname string) error {
	from, err := f.abs(oldname)
	to, err2 := f.abs(newname)
	if err = errors.Join(err, err2); err == nil {
		err = f.serve(ctx, func(srv *guest.Files) error { return srv.Rename(ctx, from, to) })
	}
	return f.failLink(ctx, "rename", oldname, newname, err)
}

// Symlink is [Sandbox.Symlink] as the user.
func (f *View) Symlink(ctx context.Context, target, name string) error {
	path, err := f.abs(name)
	if err == nil && strings.IndexByte(target, 0) >= 0 {
		err = errdefs.Invalid("the target contains a NUL byte")
	}
	if err == nil {
		err = f.serve(ctx, func(srv *guest.Files) error { return srv.Symlink(ctx, target, path) })
	}
	return f.failLink(ctx, "symlink", target, name, err)
}

// Readlink is [Sandbox.Readlink] as the user.
func (f *View) Readlink(ctx context.Context, name string) (string, error) {
	var target string
	err := f.read(ctx, "readlink", name, func(srv *guest.Files, path string) (err error) {
		target, err = srv.Readlink(ctx, path)
		return err
	}, func(st *stopped, path string) (err error) {
		target, err = st.readlink(ctx, path)
		return err
	})
	return target, err
}

// Chmod is [Sandbox.Chmod] as the user.
func (f *View) Chmod(ctx context.Context, name string, mode fs.FileMode) error {
	return f.change(ctx, "chmod", name, func(srv *guest.Files, path string) error { return srv.Chmod(ctx, path, mode) })
}

// Chown is [Sandbox.Chown] as the user.
func (f *View) Chown(ctx context.Context, name string, uid, gid int) error {
	return f.change(ctx, "chown", name, func(srv *guest.Files, path string) error { return srv.Chown(ctx, path, uid, gid, true) })
}

// Lchown is [Sandbox.Lchown] as the user.
func (f *View) Lchown(ctx context.Context, name string, uid, gid int) error {
	return f.change(ctx, "lchown", name, func(srv *guest.Files, path string) error { return srv.Chown(ctx, path, uid, gid, false) })
}

// Chtimes is [Sandbox.Chtimes] as the user.
func (f *View) Chtimes(ctx context.Context, name string, atime, mtime time.Time) error {
	return f.change(ctx, "chtimes", name, func(srv *guest.Files, path string) error { return srv.Chtimes(ctx, path, atime, mtime) })
}

// Truncate is [Sandbox.Truncate] as the user.
func (f *View) Truncate(ctx context.Context, name string, size int64) error {
	return f.change(ctx, "truncate", name, func(srv *guest.Files, path string) error { return srv.Truncate(ctx, path, size) })
}

// Stat is [Sandbox.Stat] as the user.
func (f *View) Stat(ctx context.Context, name string) (fs.FileInfo, error) {
	return f.stat(ctx, "stat", name, true)
}

// Lstat is [Sandbox.Lstat] as the user.
func (f *View) Lstat(ctx context.Context, name string) (fs.FileInfo, error) {
	return f.stat(ctx, "lstat", name, false)
}

func (f *View) stat(ctx context.Context, op, name string, follow bool) (fs.FileInfo, error) {
	var info *fileInfo
	err := f.read(ctx, op, name, func(srv *guest.Files, path string) error {
		got, err := srv.Info(ctx, path, follow)
		info = f.liveInfo(baseName(name), got)
		return err
	}, func(st *stopped, path string) (err error) {
		info, err = st.stat(ctx, path, follow)
		return err
	})
	if err != nil {
		return nil, err
	}
	info.name = baseName(name)
	return info, nil
}

// ReadDir is [Sandbox.ReadDir] as the user.
func (f *View) ReadDir(ctx context.Context, name string) ([]fs.DirEntry, error) {
	list := []fs.DirEntry{} // not nil if there are none, as of package os
	err := f.read(ctx, "readdir", name, func(srv *guest.Files, path string) error {
		return eachEntry(ctx, srv, path, f.limits.ReadDir, func(i wire.FileInfo) { list = append(list, f.entry(i)) })
	}, func(st *stopped, path string) (err error) {
		list, err = st.readDir(ctx, path)
		return err
	})
	if err != nil {
		return nil, err
	}
	slices.SortFunc(list, func(a, b fs.DirEntry) int { return strings.Compare(a.Name(), b.Name()) })
	return list, nil
}

// eachEntry calls fn with the entries of a directory of at most limit entries.
func eachEntry(ctx context.Context, srv *guest.Files, path string, limit int, fn func(wire.FileInfo)) error {
	infos, h, err := srv.ReadDir(ctx, path)
	for seen := 0; err == nil; {
		if seen += len(infos); seen > limit {
			if h != 0 {
				closeLater(ctx, srv, h)
			}
			return tooManyEntries(limit)
		}
		for _, i := range infos {
			fn(i)
		}
		if h == 0 {
			return nil
		}
		open := h
		if infos, h, err = srv.ReadMore(ctx, open); err != nil {
			closeLater(ctx, srv, open)
		}
	}
	return err
}

// Open is [Sandbox.Open] as the user.
func (f *View) Open(ctx context.Context, name string) (*File, error) {
	file := &File{f: f, name: name}
	err := f.read(ctx, "open", name, func(srv *guest.Files, path string) error {
		return file.open(ctx, srv, path, wire.FlagRead, 0)
	}, func(st *stopped, path string) (err error) {
		file.stopped, err = st.open(ctx, path)
		if err == nil {
			file.info = file.stopped.info
			file.info.name = baseName(name)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return file, nil
}

// Create is [Sandbox.Create] as the user.
func (f *View) Create(ctx context.Context, name string) (*File, error) {
	return f.OpenFile(ctx, name, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o666)
}

// OpenFile is [Sandbox.OpenFile] as the user.
func (f *View) OpenFile(ctx context.Context, name string, flag int, perm fs.FileMode) (*File, error) {
	flags, err := openFlags(flag)
	if err != nil {
		return nil, f.fail(ctx, "open", name, err)
	}
	if flags == wire.FlagRead {
		return f.Open(ctx, name)
	}
	file := &File{f: f, name: name, appends: flag&os.O_APPEND != 0}
	if err := f.change(ctx, "open", name, func(srv *guest.Files, path string) error {
		return file.open(ctx, srv, path, flags, perm)
	}); err != nil {
		return nil, err
	}
	return file, nil
}

// moot are flags of package syscall that make no difference: an open file belongs to no program that could pass it on, and
// the file server never waits and never takes a terminal.
const moot = syscall.O_CLOEXEC | syscall.O_NONBLOCK | syscall.O_NOCTTY

// openFlags converts flags of package os to those of package wire.
func openFlags(flag int) (flags int, err error) {
	known := os.O_WRONLY | os.O_RDWR | moot
	for _, m := range [...]struct{ theirs, ours int }{
		{os.O_APPEND, wire.FlagAppend}, {os.O_CREATE, wire.FlagCreate}, {os.O_EXCL, wire.FlagExclusive},
		{os.O_TRUNC, wire.FlagTruncate}, {os.O_SYNC, wire.FlagSync}, // on Linux O_DSYNC is a part of O_SYNC
	} {
		known |= m.theirs
		if flag&m.theirs != 0 {
			flags |= m.ours
		}
	}
	if other := flag &^ known; other != 0 {
		return 0, errdefs.Invalid("the flags %#x are none of package os", other)
	}
	switch flag & (os.O_WRONLY | os.O_RDWR) {
	case os.O_RDONLY:
		return flags | wire.FlagRead, nil
	case os.O_WRONLY:
		return flags | wire.FlagWrite, nil
	case os.O_RDWR:
		return flags | wire.FlagRead | wire.FlagWrite, nil
	}
	return 0, errdefs.Invalid("O_WRONLY and O_RDWR exclude each other")
}

// baseName is path.Base for callers with a variable of that name.
func baseName(name string) string { return path.Base(name) }

// fileInfo is a file's FileInfo and its DirEntry.
type fileInfo struct {
	name  string
	size  int64
	mode  fs.FileMode
	mtime time.Time
	stat  Stat
	sys   func(*Stat) any
}

func (f *View) liveInfo(name string, i wire.FileInfo) *fileInfo {
	return &fileInfo{
		sys:  f.sys,
		name: name, size: i.Size, mode: guest.GoMode(i.Mode), mtime: i.Mtime,
		stat: Stat{UID: i.UID, GID: i.GID, Nlink: i.Nlink, Dev: i.Dev, Inode: i.Ino, Atime: i.Atime, Ctime: i.Ctime},
	}
}

// entry is an entry of a directory.
func (f *View) entry(i wire.FileInfo) fs.DirEntry {
	info := f.liveInfo(i.Name, i)
	if i.Ino == 0 && i.Nlink == 0 {
		why := error(fs.ErrPermission)
		if i.Size > 0 && i.Size < 4096 {
			why = guest.Errno(int(i.Size))
		}
		info.size = 0
		return listed{info, why}
	}
	return info
}

// listed is an entry of a directory that stat failed for, and why.
type listed struct {
	*fileInfo
	why error
}

func (l listed) Info() (fs.FileInfo, error) {
	return nil, &fs.PathError{Op: "lstat", Path: l.name, Err: l.why}
}

func (f *View) stoppedInfo(st engine.PathStat) *fileInfo {
	if st.Mode.IsDir() {
		st.Size = 0 // as in listings, which come from archives
	}
	return &fileInfo{sys: f.sys, name: st.Name, size: st.Size, mode: st.Mode, mtime: st.Mtime}
}

func (i *fileInfo) Name() string { return i.name }

func (i *fileInfo) Size() int64 { return i.size }

func (i *fileInfo) Mode() fs.FileMode { return i.mode }

func (i *fileInfo) Type() fs.FileMode { return i.mode.Type() }

func (i *fileInfo) ModTime() time.Time { return i.mtime }

func (i *fileInfo) IsDir() bool { return i.mode.IsDir() }

func (i *fileInfo) Sys() any { return i.sys(&i.stat) }

func (i *fileInfo) Info() (fs.FileInfo, error) { return i, nil }

func (i *fileInfo) String() string { return fs.FormatFileInfo(i) }
