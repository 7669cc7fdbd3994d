package archive

import (
	"io/fs"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// into is a directory to write to, as an [os.Root] is one, except that it need not be readable: to search it is
// enough, as for cp. Its methods follow no link at all, and take no name with a ".." in it.
type into struct{ dir *os.File }

const searched = unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC

func openInto(name string) (*into, error) {
	dir, err := os.OpenFile(name, searched, 0)
	if err != nil {
		return nil, err
	}
	return &into{dir}, nil
}

// openBelow opens a directory of t.
func openBelow(t *into, name string) (*into, error) {
	dir, err := t.OpenFile(name, searched, 0)
	if err != nil {
		return nil, err
	}
	return &into{dir}, nil
}

func (t *into) Close() error { return t.dir.Close() }

// at calls f with the directory of a name and with the name's last element.
func (t *into) at(op, name string, f func(dir int, base string) error) error {
	err := control(t.dir, func(top int) error {
		dir, base := top, name
		for {
			part, rest, more := strings.Cut(base, "/")
			if part == ".." {
				return unix.EXDEV
			}
			if !more {
				err := f(dir, base)
				if dir != top {
					unix.Close(dir)
				}
				return err
			}
			next, err := unix.Openat(dir, part, searched|unix.O_NOFOLLOW, 0)
			if dir != top {
				unix.Close(dir)
			}
			if err != nil {
				return err
			}
			dir, base = next, rest
		}
	})
	if err != nil {
		return &fs.PathError{Op: op, Path: name, Err: err}
	}
	return nil
}

func (t *into) OpenFile(name string, flag int, perm fs.FileMode) (f *os.File, err error) {
	err = t.at("open", name, func(dir int, base string) error {
		fd, err := unix.Openat(dir, base, flag|unix.O_NOFOLLOW|unix.O_CLOEXEC, uint32(perm))
		if err == nil {
			f = os.NewFile(uintptr(fd), name)
		}
		return err
	})
	return f, err
}

// Chmod is for directories that were opened as ".": it would follow a link.
func (t *into) Chmod(name string, mode fs.FileMode) error {
	return t.at("chmod", name, func(dir int, base string) error { return unix.Fchmodat(dir, base, uint32(mode.Perm()), 0) })
}

func (t *into) Lstat(name string) (fs.FileInfo, error) {
	f, err := t.OpenFile(name, unix.O_PATH, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return f.Stat()
}

func (t *into) Mkdir(name string, perm fs.FileMode) error {
	return t.at("mkdir", name, func(dir int, base string) error { return unix.Mkdirat(dir, base, uint32(perm)) })
}

func (t *into) Symlink(to, name string) error {
	return t.at("symlink", name, func(dir int, base string) error { return unix.Symlinkat(to, dir, base) })
}

func (t *into) Link(old, name string) error {
	return t.at("link", old, func(from int, was string) error {
		return t.at("link", name, func(dir int, base string) error { return unix.Linkat(from, was, dir, base, 0) })
	})
}

func (t *into) Rename(old, name string) error {
	return t.at("rename", old, func(from int, was string) error {
		return t.at("rename", name, func(dir int, base string) error { return unix.Renameat(from, was, dir, base) })
	})
}

func (t *into) Remove(name string) error {
	return t.at("remove", name, func(dir int, base string) error {
		err := unix.Unlinkat(dir, base, 0)
		if err != nil {
			if e := unix.Unlinkat(dir, base, unix.AT_REMOVEDIR); e != unix.ENOTDIR {
				err = e
			}
		}
		return err
	})
}
