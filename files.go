package sandbox

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/seed-1a2d6d8f/sandbox/internal/archive"
	"github.com/seed-1a2d6d8f/sandbox/internal/engine"
	"github.com/seed-1a2d6d8f/sandbox/internal/guest"
	"github.com/seed-1a2d6d8f/sandbox/internal/guest/wire"
)

// Files is the file system of a sandbox as one of its users sees it; the kernel
// inside decides what that user may do. [Sandbox] has the same methods, for the
// sandbox's own user (see [WithUser]); [Sandbox.FilesAs] is for another one.
//
// Names are paths inside, relative ones against [WithWorkdir], and are left as they
// are: links in them are followed there, never on this side. Every failure wraps an
// [*fs.PathError] (of two names an [*os.LinkError]) that holds the path and, when
// the kernel refused, what [fs.ErrNotExist], [fs.ErrExist] and [fs.ErrPermission]
// test for. Contexts bound the call; a change given up in the middle may have been
// made.
//
// A stopped persistent sandbox is resumed by what changes files. What only reads them
// does so without starting it, through the engine: as root, and slowly.
//
// It is safe for concurrent use.
type Files struct {
	s    *Sandbox
	user string
}

// FilesAs returns the sandbox's file system as a user sees it, given as [WithUser]
// takes it. One the sandbox does not know is the first call's [ErrInvalidArgument].
func (s *Sandbox) FilesAs(user string) *Files { return &Files{s: s, user: user} }

func (s *Sandbox) files() *Files { return &Files{s: s, user: s.rec.Settings.User} }

// fileServers are the handle's file servers inside, by user.
type fileServers struct {
	mu     sync.Mutex
	byUser map[string]fileServer
}

type fileServer struct {
	conn  *guest.Conn
	files *guest.Files
}

func (c *fileServers) get(user string, conn *guest.Conn) *guest.Files {
	c.mu.Lock()
	defer c.mu.Unlock()
	have := c.byUser[user]
	if have.files == nil || have.conn != conn {
		return nil
	}
	select {
	case <-have.files.Done():
		return nil
	default:
		return have.files
	}
}

func (c *fileServers) put(user string, conn *guest.Conn, files *guest.Files) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.byUser == nil {
		c.byUser = map[string]fileServer{}
	}
	c.byUser[user] = fileServer{conn, files}
}

// server returns the user's file server, started by the first who needs it. resume
// says whether a stopped sandbox is started for it; without, it is errNoSession.
func (f *Files) server(ctx context.Context, resume bool) (*guest.Files, error) {
	if err := f.s.usable(); err != nil {
		return nil, err
	}
	connect := f.s.linked
	if resume {
		connect = f.s.connect
	}
	conn, err := connect(ctx)
	if err != nil {
		return nil, err
	}
	if have := f.s.servers.get(f.user, conn); have != nil {
		return have, nil
	}
	got, err := f.s.share(ctx, "files "+f.user, connectTimeout, func(ctx context.Context) (any, error) {
		if have := f.s.servers.get(f.user, conn); have != nil {
			return have, nil
		}
		files, err := conn.Files(ctx, f.user)
		if err != nil {
			return nil, err
		}
		f.s.servers.put(f.user, conn, files)
		return files, nil
	})
	if err != nil {
		return nil, err
	}
	return got.(*guest.Files), nil
}

// do makes a call that changes something.
func (f *Files) do(ctx context.Context, op, name string, fn func(srv *guest.Files, path string) error) error {
	path, err := f.abs(name)
	if err == nil {
		var srv *guest.Files
		if srv, err = f.server(ctx, true); err == nil {
			err = fn(srv, path)
		}
	}
	return f.fail(ctx, op, name, err)
}

// look makes a call that only reads, of a sandbox without a session through the
// engine.
func (f *Files) look(ctx context.Context, op, name string, fn func(srv *guest.Files, path string) error, stopped func(st *still, path string) error) error {
	path, err := f.abs(name)
	if err == nil {
		var srv *guest.Files
		switch srv, err = f.server(ctx, false); {
		case err == nil:
			err = fn(srv, path)
		case errors.Is(err, errNoSession):
			var st *still
			if st, err = f.s.still(ctx); err == nil {
				err = stopped(st, path)
			}
		}
	}
	return f.fail(ctx, op, name, err)
}

// abs makes a path absolute, and leaves it to the kernel otherwise: a/../b is not b
// when a is a link.
func (f *Files) abs(name string) (string, error) {
	switch {
	case strings.IndexByte(name, 0) >= 0:
		return "", invalid("the path contains a NUL byte")
	case name == "":
		return "", fs.ErrNotExist
	case strings.HasPrefix(name, "/"):
		return name, nil
	}
	return f.s.workdir() + "/" + name, nil
}

func (s *Sandbox) workdir() string {
	if dir := s.rec.Settings.Workdir; dir != "" {
		return dir
	}
	return Workspace
}

// cause says why a call failed.
func (f *Files) cause(ctx context.Context, err error) error {
	var start *wire.StartError
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil && (errors.Is(err, ctx.Err()) || errors.Is(err, context.Cause(ctx))):
		return cancelled(ctx)
	case errors.As(err, &start):
		return startError(wire.Path, "/", start)
	case errors.Is(err, guest.ErrConnectionLost):
		return f.s.lost(ctx, err)
	case errors.Is(err, archive.ErrSpecial) && !errors.Is(err, ErrInvalidArgument):
		return classify(ErrInvalidArgument, err)
	}
	return err
}

func (f *Files) fail(ctx context.Context, op, name string, err error) error {
	if err == nil {
		return nil
	}
	return fail(op, f.s.rec.Name, &fs.PathError{Op: op, Path: name, Err: translate(f.cause(ctx, err))})
}

func (f *Files) failTwo(ctx context.Context, op, from, to string, err error) error {
	if err == nil {
		return nil
	}
	return fail(op, f.s.rec.Name, &os.LinkError{Op: op, Old: from, New: to, Err: translate(f.cause(ctx, err))})
}

// ReadFile is [Sandbox.ReadFile] as the user.
func (f *Files) ReadFile(ctx context.Context, name string) ([]byte, error) {
	var data []byte
	err := f.look(ctx, "read", name, func(srv *guest.Files, path string) (err error) {
		data, err = readAll(ctx, srv, path)
		return err
	}, func(st *still, path string) (err error) {
		data, err = st.readFile(ctx, path)
		return err
	})
	return data, err
}

func readAll(ctx context.Context, srv *guest.Files, path string) ([]byte, error) {
	data, h, info, err := srv.ReadAll(ctx, path)
	if err != nil || h == 0 {
		return data, err
	}
	defer closeLater(ctx, srv, h)
	if isStream(info.Mode) {
		buf := make([]byte, wire.MaxFileData)
		for {
			n, err := srv.ReadAt(ctx, h, buf, guest.Stream)
			data = append(data, buf[:n]...)
			if err == io.EOF {
				return data, nil
			}
			if err != nil {
				return nil, err
			}
		}
	}
	// The size may be a lie, as in /proc, and is never trusted with more than is here.
	for grow := min(max(info.Size-int64(len(data))+1, wire.MaxFileData), 64<<20); ; {
		data = slices.Grow(data, int(grow))
		n, err := srv.ReadAt(ctx, h, data[len(data):cap(data)], int64(len(data)))
		data = data[:len(data)+n]
		if err == io.EOF {
			return data, nil
		}
		if err != nil {
			return nil, err
		}
		grow = min(max(int64(len(data))/4, wire.MaxFileData), 64<<20)
	}
}

func isStream(mode uint32) bool {
	return guest.GoMode(mode)&(fs.ModeNamedPipe|fs.ModeCharDevice|fs.ModeSocket) != 0
}

// closeLater closes a file that was only read, without waiting longer than need be.
func closeLater(ctx context.Context, srv *guest.Files, h guest.Handle) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	srv.CloseHandle(ctx, h)
}

// WriteFile is [Sandbox.WriteFile] as the user.
func (f *Files) WriteFile(ctx context.Context, name string, data []byte, perm fs.FileMode) error {
	return f.do(ctx, "write", name, func(srv *guest.Files, path string) error {
		return srv.Replace(ctx, path, data, perm)
	})
}

// Mkdir is [Sandbox.Mkdir] as the user.
func (f *Files) Mkdir(ctx context.Context, name string, perm fs.FileMode) error {
	return f.do(ctx, "mkdir", name, func(srv *guest.Files, path string) error { return srv.Mkdir(ctx, path, perm) })
}

// MkdirAll is [Sandbox.MkdirAll] as the user.
func (f *Files) MkdirAll(ctx context.Context, name string, perm fs.FileMode) error {
	return f.do(ctx, "mkdir", name, func(srv *guest.Files, path string) error { return srv.MkdirAll(ctx, path, perm) })
}

// MkdirTemp is [Sandbox.MkdirTemp] as the user.
func (f *Files) MkdirTemp(ctx context.Context, dir, pattern string) (string, error) {
	if dir == "" {
		dir = "/tmp"
	}
	if strings.ContainsAny(pattern, "/\x00") {
		return "", f.fail(ctx, "mkdirtemp", pattern, invalid("the pattern contains a slash or a NUL byte"))
	}
	var name string
	err := f.do(ctx, "mkdirtemp", dir, func(srv *guest.Files, path string) (err error) {
		name, err = srv.MkdirTemp(ctx, path, pattern)
		return err
	})
	return name, err
}

// Remove is [Sandbox.Remove] as the user.
func (f *Files) Remove(ctx context.Context, name string) error {
	return f.do(ctx, "remove", name, func(srv *guest.Files, path string) error { return srv.Remove(ctx, path) })
}

// RemoveAll is [Sandbox.RemoveAll] as the user.
func (f *Files) RemoveAll(ctx context.Context, name string) error {
	return f.do(ctx, "removeall", name, func(srv *guest.Files, path string) error { return srv.RemoveAll(ctx, path) })
}

// Rename is [Sandbox.Rename] as the user.
func (f *Files) Rename(ctx context.Context, oldname, newname string) error {
	from, err := f.abs(oldname)
	to, err2 := f.abs(newname)
	if err = errors.Join(err, err2); err == nil {
		var srv *guest.Files
		if srv, err = f.server(ctx, true); err == nil {
			err = srv.Rename(ctx, from, to)
		}
	}
	return f.failTwo(ctx, "rename", oldname, newname, err)
}

// Symlink is [Sandbox.Symlink] as the user.
func (f *Files) Symlink(ctx context.Context, target, name string) error {
	path, err := f.abs(name)
	if err == nil && strings.IndexByte(target, 0) >= 0 {
		err = invalid("the target contains a NUL byte")
	}
	if err == nil {
		var srv *guest.Files
		if srv, err = f.server(ctx, true); err == nil {
			err = srv.Symlink(ctx, target, path)
		}
	}
	return f.failTwo(ctx, "symlink", target, name, err)
}

// Readlink is [Sandbox.Readlink] as the user.
func (f *Files) Readlink(ctx context.Context, name string) (string, error) {
	var target string
	err := f.look(ctx, "readlink", name, func(srv *guest.Files, path string) (err error) {
		target, err = srv.Readlink(ctx, path)
		return err
	}, func(st *still, path string) (err error) {
		target, err = st.readlink(ctx, path)
		return err
	})
	return target, err
}

// Chmod is [Sandbox.Chmod] as the user.
func (f *Files) Chmod(ctx context.Context, name string, mode fs.FileMode) error {
	return f.do(ctx, "chmod", name, func(srv *guest.Files, path string) error { return srv.Chmod(ctx, path, mode) })
}

// Chown is [Sandbox.Chown] as the user.
func (f *Files) Chown(ctx context.Context, name string, uid, gid int) error {
	return f.do(ctx, "chown", name, func(srv *guest.Files, path string) error { return srv.Chown(ctx, path, uid, gid, true) })
}

// Lchown is [Sandbox.Lchown] as the user.
func (f *Files) Lchown(ctx context.Context, name string, uid, gid int) error {
	return f.do(ctx, "lchown", name, func(srv *guest.Files, path string) error { return srv.Chown(ctx, path, uid, gid, false) })
}

// Chtimes is [Sandbox.Chtimes] as the user.
func (f *Files) Chtimes(ctx context.Context, name string, atime, mtime time.Time) error {
	return f.do(ctx, "chtimes", name, func(srv *guest.Files, path string) error { return srv.Chtimes(ctx, path, atime, mtime) })
}

// Truncate is [Sandbox.Truncate] as the user.
func (f *Files) Truncate(ctx context.Context, name string, size int64) error {
	return f.do(ctx, "truncate", name, func(srv *guest.Files, path string) error { return srv.Truncate(ctx, path, size) })
}

// Stat is [Sandbox.Stat] as the user.
func (f *Files) Stat(ctx context.Context, name string) (fs.FileInfo, error) {
	return f.stat(ctx, "stat", name, true)
}

// Lstat is [Sandbox.Lstat] as the user.
func (f *Files) Lstat(ctx context.Context, name string) (fs.FileInfo, error) {
	return f.stat(ctx, "lstat", name, false)
}

func (f *Files) stat(ctx context.Context, op, name string, follow bool) (fs.FileInfo, error) {
	var info *fileInfo
	err := f.look(ctx, op, name, func(srv *guest.Files, path string) error {
		got, err := srv.Info(ctx, path, follow)
		info = liveInfo(baseName(name), got)
		return err
	}, func(st *still, path string) (err error) {
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
func (f *Files) ReadDir(ctx context.Context, name string) ([]fs.DirEntry, error) {
	var list []fs.DirEntry
	err := f.look(ctx, "readdir", name, func(srv *guest.Files, path string) error {
		infos, h, err := srv.ReadDir(ctx, path)
		for {
			for _, i := range infos {
				list = append(list, liveInfo(i.Name, i))
			}
			if err != nil || h == 0 {
				return err
			}
			if infos, h, err = srv.ReadMore(ctx, h); err != nil && h != 0 {
				closeLater(ctx, srv, h)
			}
		}
	}, func(st *still, path string) (err error) {
		list, err = st.readDir(ctx, path)
		return err
	})
	if err != nil {
		return nil, err
	}
	slices.SortFunc(list, func(a, b fs.DirEntry) int { return strings.Compare(a.Name(), b.Name()) })
	return list, nil
}

// Open is [Sandbox.Open] as the user.
func (f *Files) Open(ctx context.Context, name string) (*File, error) {
	file := &File{f: f, name: name}
	err := f.look(ctx, "open", name, func(srv *guest.Files, path string) error {
		return file.open(ctx, srv, path, wire.FlagRead, 0)
	}, func(st *still, path string) (err error) {
		file.still, err = st.open(ctx, path)
		if err == nil {
			file.info = file.still.info
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return file, nil
}

// Create is [Sandbox.Create] as the user.
func (f *Files) Create(ctx context.Context, name string) (*File, error) {
	return f.OpenFile(ctx, name, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o666)
}

// OpenFile is [Sandbox.OpenFile] as the user.
func (f *Files) OpenFile(ctx context.Context, name string, flag int, perm fs.FileMode) (*File, error) {
	if flag == os.O_RDONLY {
		return f.Open(ctx, name)
	}
	flags := 0
	switch flag & (os.O_RDONLY | os.O_WRONLY | os.O_RDWR) {
	case os.O_RDONLY:
		flags = wire.FlagRead
	case os.O_WRONLY:
		flags = wire.FlagWrite
	case os.O_RDWR:
		flags = wire.FlagRead | wire.FlagWrite
	}
	for _, m := range [...]struct{ theirs, ours int }{
		{os.O_APPEND, wire.FlagAppend}, {os.O_CREATE, wire.FlagCreate}, {os.O_EXCL, wire.FlagExclusive},
		{os.O_TRUNC, wire.FlagTruncate}, {os.O_SYNC, wire.FlagSync},
	} {
		if flag&m.theirs == m.theirs {
			flags |= m.ours
		}
	}
	file := &File{f: f, name: name, appends: flag&os.O_APPEND != 0}
	if err := f.do(ctx, "open", name, func(srv *guest.Files, path string) error {
		return file.open(ctx, srv, path, flags, perm)
	}); err != nil {
		return nil, err
	}
	return file, nil
}

// baseName is the last element of a path, as [os.FileInfo] has it.
func baseName(name string) string { return path.Base(name) }

// FileStat is what the Sys method of a file's [fs.FileInfo] returns, as a pointer.
type FileStat struct {
	UID, GID   uint32 // numbers of the sandbox's own users
	Nlink      uint64 // hard links; 0 when the sandbox was stopped
	Dev, Inode uint64 // identify the file within the session; 0 when it was stopped
	Atime      time.Time
}

// fileInfo is both a file's FileInfo and its DirEntry.
type fileInfo struct {
	name  string
	size  int64
	mode  fs.FileMode
	mtime time.Time
	sys   FileStat
}

func liveInfo(name string, i wire.FileInfo) *fileInfo {
	return &fileInfo{
		name: name, size: i.Size, mode: guest.GoMode(i.Mode), mtime: time.Unix(0, i.Mtime),
		sys: FileStat{UID: i.UID, GID: i.GID, Nlink: i.Nlink, Dev: i.Dev, Inode: i.Ino, Atime: time.Unix(0, i.Atime)},
	}
}

func stillInfo(st engine.PathStat) *fileInfo {
	return &fileInfo{name: st.Name, size: st.Size, mode: st.Mode, mtime: st.Mtime}
}

func (i *fileInfo) Name() string               { return i.name }
func (i *fileInfo) Size() int64                { return i.size }
func (i *fileInfo) Mode() fs.FileMode          { return i.mode }
func (i *fileInfo) Type() fs.FileMode          { return i.mode.Type() }
func (i *fileInfo) ModTime() time.Time         { return i.mtime }
func (i *fileInfo) IsDir() bool                { return i.mode.IsDir() }
func (i *fileInfo) Sys() any                   { return &i.sys }
func (i *fileInfo) Info() (fs.FileInfo, error) { return i, nil }
func (i *fileInfo) String() string             { return fs.FormatFileInfo(i) }
