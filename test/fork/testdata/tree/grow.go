package main

import (
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"
)

// A garden makes files in one directory.
type garden struct {
	*rand.Rand
	dirs  []string
	names []string // of all that is no directory, to link to
	n     int
}

// grow makes files of every kind in each directory: grow SEED DIR...
func grow(args []string) error {
	var errs []error
	for _, dir := range args[1:] {
		r, err := random(args[0], dir)
		if err != nil {
			return err
		}
		g := &garden{Rand: r, dirs: []string{dir}, n: len(args[0]) * 1000} // other names for spoil's
		errs = append(errs, os.MkdirAll(dir, 0o755))
		for i := range 60 {
			errs = append(errs, g.plant(i%10))
		}
		// Directories last, the deepest first: what is made in them changes their times.
		for _, d := range slices.Backward(g.dirs) {
			errs = append(errs, g.adorn(d, true))
		}
	}
	return errors.Join(errs...)
}

// name returns a new path.
func (g *garden) name() string {
	g.n++
	odd := []string{"plain", "sp ace", "new\nline", "ünï", "not utf8 \xff", "-dash", ".hidden", ".wh.white", ".wh..wh..opq", "back\\slash", "tab\t", "..."}
	return filepath.Join(g.dirs[g.IntN(len(g.dirs))], fmt.Sprint(odd[g.IntN(len(odd))], g.n))
}

// plant makes one file.
func (g *garden) plant(kind int) error {
	name := g.name()
	if kind == 0 {
		g.dirs = append(g.dirs, name)
		return os.Mkdir(name, 0o755)
	}
	defer func() { g.names = append(g.names, name) }()
	switch kind {
	case 1:
		if len(g.names) > 0 {
			return os.Link(g.names[g.IntN(len(g.names))], name)
		}
		fallthrough
	case 2:
		to := []string{"plain1", "../x", "/etc/passwd", "nowhere/at/all", "/workspace", "not utf8 \xff", "."}
		if err := os.Symlink(to[g.IntN(len(to))], name); err != nil {
			return err
		}
		return g.adorn(name, false)
	case 3:
		if err := syscall.Mkfifo(name, 0o600); err != nil {
			return err
		}
		return g.adorn(name, true)
	case 4:
		if err := bind(name); err != nil {
			return err
		}
		return g.adorn(name, true)
	case 5:
		return g.sparse(name)
	}
	if err := os.WriteFile(name, bytesOf(g.Rand, g.IntN(1<<g.IntN(19))), 0o600); err != nil {
		return err
	}
	return g.adorn(name, true)
}

// bind makes a socket, whose path may be longer than an address may be.
func bind(name string) error {
	dir, err := os.Open(filepath.Dir(name))
	if err != nil {
		return err
	}
	defer dir.Close()
	s, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	if err != nil {
		return err
	}
	defer unix.Close(s)
	return unix.Bind(s, &unix.SockaddrUnix{Name: fmt.Sprintf("/proc/self/fd/%d/%s", dir.Fd(), filepath.Base(name))})
}

// sparse makes a file with data between holes.
func (g *garden) sparse(name string) error {
	f, err := os.Create(name)
	if err != nil {
		return err
	}
	for range g.IntN(3) {
		_, e := f.WriteAt(bytesOf(g.Rand, 1+g.IntN(9000)), g.Int64N(1<<24))
		err = errors.Join(err, e)
	}
	err = errors.Join(err, f.Truncate(g.Int64N(1<<25)), f.Close())
	if err != nil {
		return err
	}
	return g.adorn(name, true)
}

// adorn gives a file an owner, a mode, attributes and times. Without follows it is a symbolic link.
func (g *garden) adorn(name string, follows bool) error {
	var errs []error
	if g.IntN(2) == 0 {
		errs = append(errs, os.Lchown(name, g.IntN(70000), g.IntN(70000)))
	}
	if follows {
		mode := fs.FileMode(g.IntN(0o1000))
		for _, special := range []fs.FileMode{fs.ModeSetuid, fs.ModeSetgid, fs.ModeSticky} {
			if g.IntN(4) == 0 {
				mode |= special
			}
		}
		errs = append(errs, os.Chmod(name, mode))
	}
	st, err := os.Lstat(name)
	errs = append(errs, err)
	if err == nil && (st.Mode().IsRegular() || st.IsDir()) {
		for i := range g.IntN(3) {
			err := unix.Lsetxattr(name, fmt.Sprint("user.a", i), bytesOf(g.Rand, g.IntN(200)), 0)
			if !errors.Is(err, unix.EOPNOTSUPP) {
				errs = append(errs, err)
			}
		}
	}
	at := unix.NsecToTimespec(g.Int64N(1<<62) - 1<<60) // 1933 to 2079
	errs = append(errs, unix.UtimesNanoAt(unix.AT_FDCWD, name, []unix.Timespec{at, at}, unix.AT_SYMLINK_NOFOLLOW))
	return errors.Join(errs...)
}

// spoil removes and changes files at random, and makes others: spoil SEED DIR...
func spoil(args []string) error {
	var errs []error
	for _, dir := range args[1:] {
		r, err := random(args[0], dir)
		if err != nil {
			return err
		}
		entries, err := os.ReadDir(dir)
		errs = append(errs, err)
		for _, e := range entries {
			name := filepath.Join(dir, e.Name())
			switch {
			case r.IntN(3) == 0:
				if err := os.RemoveAll(name); !errors.Is(err, unix.EBUSY) { // a mount point
					errs = append(errs, err)
				}
			case e.Type().IsRegular():
				errs = append(errs, os.WriteFile(name, bytesOf(r, 100), 0o600))
			case r.IntN(2) == 0:
				errs = append(errs, os.Lchown(name, 3, 4))
			case e.IsDir():
				// Overlayfs may not rename a directory of an image.
				if err := os.Rename(name, name+"-moved"); !errors.Is(err, unix.EXDEV) && !errors.Is(err, unix.EBUSY) {
					errs = append(errs, err)
				}
			}
		}
	}
	return errors.Join(append(errs, grow(append([]string{args[0] + "1"}, args[1:]...)))...)
}
