//go:build linux

package proc

import (
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/seed-1a2d6d8f/sandbox/internal/guest/accounts"
	"github.com/seed-1a2d6d8f/sandbox/internal/guest/wire"
)

// WrongPath returns the first element of a path at which a tree has what must not be there, and what
// that is; nothing if there is none. Nobody changes the tree meanwhile.
func WrongPath(tree string, p wire.PathCheck) (name, is string) {
	for end := 1; end <= len(p.Name); end++ {
		if end < len(p.Name) && p.Name[end] != '/' {
			continue
		}
		var st unix.Stat_t
		err := unix.Lstat(tree+p.Name[:end], &st)
		if err == unix.ENOENT || err == nil && whiteout(&st) {
			if p.Needed {
				return p.Name[:end], "missing"
			}
			return "", ""
		}
		if err != nil {
			return p.Name[:end], err.Error()
		}
		if is = misplaced(tree+p.Name[:end], &st, p.Kind, end == len(p.Name)); is != "" {
			return p.Name[:end], is
		}
	}
	return "", ""
}

// misplaced says what is wrong with a file on the way to a path of that kind, or at its end.
func misplaced(at string, st *unix.Stat_t, kind wire.PathKind, last bool) string {
	mode := st.Mode & unix.S_IFMT
	switch {
	case last && kind == wire.KindLink:
		return typeName(mode) + " in place of the image's symbolic link"
	case last && kind == wire.KindAccount:
		if mode == unix.S_IFREG && st.Size > accounts.MaxSize {
			return fmt.Sprintf("a file of %d bytes", st.Size)
		}
		if mode == unix.S_IFREG {
			return ""
		}
	case last && mode == unix.S_IFREG:
		return ""
	case mode == unix.S_IFDIR && redirected(at):
		return "a directory with the contents of another one"
	case mode == unix.S_IFDIR:
		return ""
	}
	return typeName(mode)
}

// typeName names a file's type for people.
func typeName(mode uint32) string {
	switch mode {
	case unix.S_IFLNK:
		return "a symbolic link"
	case unix.S_IFDIR:
		return "a directory"
	case unix.S_IFREG:
		return "a file"
	case unix.S_IFIFO:
		return "a named pipe"
	case unix.S_IFSOCK:
		return "a socket"
	}
	return "a device"
}

// whiteout reports whether a file says that there is none, in a layer of overlayfs.
func whiteout(st *unix.Stat_t) bool {
	return st.Mode&unix.S_IFMT == unix.S_IFCHR && st.Rdev == 0
}

// redirected reports whether a directory of a layer has the contents of one of another name.
func redirected(dir string) bool {
	for _, name := range []string{"trusted.overlay.redirect", "user.overlay.redirect"} {
		if _, err := unix.Lgetxattr(dir, name, nil); err == nil {
			return true
		}
	}
	return false
}
