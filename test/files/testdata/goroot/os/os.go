// Package os has the names of package os that its tests use, for files in a sandbox.
package os

import (
	"cmp"
	"context"
	"errors"
	"io/fs"
	"math/rand/v2"
	"os"
	"path"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/seed-1a2d6d8f/sandbox"
)

// Files are those of a sandbox whose working directory is its workspace, as the user node.
var Files *sandbox.Files

type (
	FileInfo     = fs.FileInfo
	FileMode     = fs.FileMode
	DirEntry     = fs.DirEntry
	PathError    = fs.PathError
	LinkError    = os.LinkError
	SyscallError = os.SyscallError
)

const (
	O_RDONLY = os.O_RDONLY
	O_WRONLY = os.O_WRONLY
	O_RDWR   = os.O_RDWR
	O_APPEND = os.O_APPEND
	O_CREATE = os.O_CREATE
	O_EXCL   = os.O_EXCL
	O_TRUNC  = os.O_TRUNC

	ModeSymlink    = fs.ModeSymlink
	ModeDevice     = fs.ModeDevice
	ModeCharDevice = fs.ModeCharDevice
	ModePerm       = fs.ModePerm

	PathSeparator = '/'
	DevNull       = "/dev/null"
)

var (
	ErrClosed     = fs.ErrClosed
	ErrExist      = fs.ErrExist
	ErrInvalid    = fs.ErrInvalid
	ErrNotExist   = fs.ErrNotExist
	ErrPermission = fs.ErrPermission

	IsExist      = os.IsExist
	IsNotExist   = os.IsNotExist
	IsPermission = os.IsPermission

	ErrPatternHasSeparator = sandbox.ErrInvalidArgument
	Getenv                 = os.Getenv
)

// Root is never made: it has the names that tests use if they are given one.
type Root struct {
	Create, Open func(string) (*File, error)
	OpenFile     func(string, int, FileMode) (*File, error)
	MkdirAll     func(string, FileMode) error
	Symlink      func(string, string) error
	Stat, Lstat  func(string) (FileInfo, error)
	Readlink     func(string) (string, error)
	Remove       func(string) error
	Close        func() error
}

func OpenRoot(string) (*Root, error) { return nil, errors.ErrUnsupported }

func Getuid() int               { return 1000 }
func Getgid() int               { return 1000 }
func Getgroups() ([]int, error) { return []int{1000, 4}, nil }
func TempDir() string           { return "/tmp" }

// workdir is where Chdir went, "" for the sandbox's own working directory. It is without a lock:
// tests that change it are not parallel.
var workdir string

// in returns the name with the directory that a relative one is relative to.
func in(name string) string {
	if workdir == "" || name == "" || path.IsAbs(name) {
		return name
	}
	return workdir + "/" + name
}

func Getwd() (string, error) {
	return cmp.Or(workdir, sandbox.Workspace), nil
}

// Chdir changes what relative names are relative to.
func Chdir(name string) error {
	info, err := Stat(name)
	switch {
	case err != nil:
		return err
	case !info.IsDir():
		return &PathError{Op: "chdir", Path: name, Err: syscall.ENOTDIR}
	}
	if workdir = path.Clean(in(name)); workdir == sandbox.Workspace {
		workdir = ""
	}
	return nil
}

// plain returns the error of package os in a sandbox's error, with the name as it was given.
func plain(err error) error {
	given := func(name string) string {
		if workdir == "" {
			return name
		}
		return strings.TrimPrefix(name, workdir+"/")
	}
	if e, ok := errors.AsType[*PathError](err); ok {
		return &PathError{Op: e.Op, Path: given(e.Path), Err: e.Err}
	}
	if e, ok := errors.AsType[*LinkError](err); ok {
		return &LinkError{Op: e.Op, Old: given(e.Old), New: given(e.New), Err: e.Err}
	}
	return err
}

// info has a Sys as package os has on Linux.
type info struct{ fs.FileInfo }

func (i info) Sys() any {
	s := i.FileInfo.Sys().(*sandbox.FileStat)
	return &syscall.Stat_t{Uid: s.UID, Gid: s.GID, Dev: s.Dev, Ino: s.Inode}
}

func described(i fs.FileInfo, err error) (FileInfo, error) {
	if err != nil {
		return nil, plain(err)
	}
	return info{i}, nil
}

func SameFile(a, b FileInfo) bool {
	x, y := a.Sys().(*syscall.Stat_t), b.Sys().(*syscall.Stat_t)
	return x.Dev == y.Dev && x.Ino == y.Ino
}

func Atime(i FileInfo) time.Time { return i.(info).FileInfo.Sys().(*sandbox.FileStat).Atime }

type entry struct{ fs.DirEntry }

func (e entry) Info() (FileInfo, error) { return described(e.DirEntry.Info()) }

func entries(list []fs.DirEntry, err error) ([]DirEntry, error) {
	for i := range list {
		list[i] = entry{list[i]}
	}
	return list, plain(err)
}

var ctx = context.Background()

func Open(name string) (*File, error)   { return opened(name)(Files.Open(ctx, in(name))) }
func Create(name string) (*File, error) { return opened(name)(Files.Create(ctx, in(name))) }
func OpenFile(name string, flag int, perm FileMode) (*File, error) {
	return opened(name)(Files.OpenFile(ctx, in(name), flag, perm))
}

func opened(name string) func(*sandbox.File, error) (*File, error) {
	return func(f *sandbox.File, err error) (*File, error) {
		if err != nil {
			return nil, plain(err)
		}
		return &File{f, name}, nil
	}
}

// CreateTemp makes a file by OpenFile: a sandbox's files have no CreateTemp.
func CreateTemp(dir, pattern string) (*File, error) {
	if dir == "" {
		dir = TempDir()
	}
	name := strings.ReplaceAll(pattern, "/", "_") + strconv.FormatUint(rand.Uint64(), 36)
	return OpenFile(path.Join(dir, name), O_RDWR|O_CREATE|O_EXCL, 0o600)
}

func MkdirTemp(dir, pattern string) (string, error) {
	name, err := Files.MkdirTemp(ctx, in(dir), pattern)
	return name, plain(err)
}

func ReadFile(name string) ([]byte, error) {
	b, err := Files.ReadFile(ctx, in(name))
	return b, plain(err)
}

func WriteFile(name string, data []byte, perm FileMode) error {
	return plain(Files.WriteFile(ctx, in(name), data, perm))
}

func ReadDir(name string) ([]DirEntry, error)   { return entries(Files.ReadDir(ctx, in(name))) }
func Stat(name string) (FileInfo, error)        { return described(Files.Stat(ctx, in(name))) }
func Lstat(name string) (FileInfo, error)       { return described(Files.Lstat(ctx, in(name))) }
func Mkdir(name string, perm FileMode) error    { return plain(Files.Mkdir(ctx, in(name), perm)) }
func MkdirAll(name string, perm FileMode) error { return plain(Files.MkdirAll(ctx, in(name), perm)) }
func Remove(name string) error                  { return plain(Files.Remove(ctx, in(name))) }
func Rename(from, to string) error              { return plain(Files.Rename(ctx, in(from), in(to))) }
func Symlink(target, name string) error         { return plain(Files.Symlink(ctx, target, in(name))) }
func Chmod(name string, mode FileMode) error    { return plain(Files.Chmod(ctx, in(name), mode)) }
func Lchown(name string, uid, gid int) error    { return plain(Files.Lchown(ctx, in(name), uid, gid)) }
func Chown(name string, uid, gid int) error     { return plain(Files.Chown(ctx, in(name), uid, gid)) }
func Truncate(name string, size int64) error    { return plain(Files.Truncate(ctx, in(name), size)) }
func Chtimes(name string, at, mt time.Time) error {
	return plain(Files.Chtimes(ctx, in(name), at, mt))
}

// RemoveAll does nothing without a name: a sandbox's fails, see docs/differences.md.
func RemoveAll(name string) error {
	if name == "" {
		return nil
	}
	return plain(Files.RemoveAll(ctx, in(name)))
}

// Link fails: a sandbox's files have no Link.
func Link(from, to string) error {
	return &LinkError{Op: "link", Old: from, New: to, Err: errors.ErrUnsupported}
}

func Readlink(name string) (string, error) {
	target, err := Files.Readlink(ctx, in(name))
	return target, plain(err)
}

// DirFS is a part of the sandbox's FS.
func DirFS(dir string) fs.FS {
	wd, _ := Getwd()
	if !path.IsAbs(dir) {
		dir = path.Join(wd, dir)
	}
	sub := strings.TrimPrefix(path.Clean(dir), "/")
	if sub == "" {
		return Files.FS()
	}
	fsys, err := fs.Sub(Files.FS(), sub)
	if err != nil {
		panic(err)
	}
	return fsys
}
