package archive

import (
	"errors"
	"io/fs"
	"os"
	"syscall"
)

// A FileID identifies a file on this machine.
type FileID struct{ dev, ino uint64 }

// ErrChanged means that a file was changed or replaced between two looks at it.
var ErrChanged = errors.New("it was changed while it was copied")

// openRoot opens a directory. OpenRoot itself opens whatever name is, and blocks if that is a
// named pipe; all elements but the last are opened as directories.
func openRoot(root *os.Root, name string) (*os.Root, error) { return root.OpenRoot(name + "/.") }

// OpenDir opens the directory that was is of. If something has replaced it, a link for
// example, the error is ErrChanged.
func OpenDir(root *os.Root, name string, was fs.FileInfo) (*os.Root, error) {
	sub, err := openRoot(root, name)
	for range 3 { // a link may have been there for a moment, and its error be any
		if err == nil {
			break
		}
		now, e := root.Lstat(name)
		if e != nil {
			return nil, e
		}
		if !os.SameFile(was, now) {
			return nil, errors.Join(ErrChanged, err)
		}
		sub, err = openRoot(root, name)
	}
	if _, kernels := errors.AsType[syscall.Errno](err); err != nil && !kernels { // of package os: a link that leads out of root, each time
		err = errors.Join(ErrChanged, err)
	}
	if err != nil {
		return nil, err
	}
	now, err := sub.Stat(".")
	if err != nil || !os.SameFile(was, now) {
		return nil, errors.Join(ErrChanged, err, sub.Close())
	}
	return sub, nil
}

// OpenFile opens the regular file or directory that was is of, by [os.OpenFile] or that of a directory, and returns what it is now. If
// something has replaced it, the error is ErrChanged. A named pipe in its place does not block.
func OpenFile(open func(string, int, fs.FileMode) (*os.File, error), name string, flag int, was fs.FileInfo) (*os.File, fs.FileInfo, error) {
	f, err := open(name, flag|openNonblock, 0)
	if err != nil {
		return nil, nil, err
	}
	now, err := f.Stat()
	if err == nil && !os.SameFile(was, now) {
		err = ErrChanged
	}
	if err != nil {
		return nil, nil, errors.Join(err, f.Close())
	}
	return f, now, nil
}

// ModeBits returns the permissions of a file with setuid, setgid and sticky, as tar and Linux
// have them.
func ModeBits(mode fs.FileMode) int64 {
	bits := int64(mode.Perm())
	if mode&fs.ModeSetuid != 0 {
		bits |= 0o4000
	}
	if mode&fs.ModeSetgid != 0 {
		bits |= 0o2000
	}
	if mode&fs.ModeSticky != 0 {
		bits |= 0o1000
	}
	return bits
}
