//go:build linux

package copytree

import (
	"archive/tar"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/seed-1a2d6d8f/sandbox/internal/guest/wire"
)

// attributes copies owner, mode, extended attributes and times of a file of b, or of b itself if
// name is empty. The order matters: a change of owner clears set-user-ID and capabilities, and
// everything changes times.
func (c *copier) attributes(b *branch, name string, src, dst int, st *unix.Stat_t) error {
	owned, dir := st.Uid != 0 || st.Gid != 0, name == ""
	// A new file is root's already. A directory may be the volume's root, of another owner.
	if owned || dir {
		file := func() string { return path.Join(b.path(), name) }
		if err := c.owned(b.job, file, st.Uid, st.Gid, &st.Mode, unix.Fchown(dst, int(st.Uid), int(st.Gid))); err != nil {
			return err
		}
	}
	if owned || dir || st.Mode&0o7000 != 0 {
		if err := unix.Fchmod(dst, st.Mode&0o7777); err != nil {
			return err
		}
	}
	if err := c.xattrsOf(b.job, func() string { return path.Join(b.path(), name) },
		func(p []byte) (int, error) { return unix.Flistxattr(src, p) },
		func(name string, p []byte) (int, error) { return unix.Fgetxattr(src, name, p) },
		func(name string, p []byte) error { return unix.Fsetxattr(dst, name, p, 0) },
	); err != nil {
		return err
	}
	return futimens(dst, st)
}

// attributesAt is attributes for links and named pipes, which are not opened.
func (c *copier) attributesAt(b *branch, name string, st *unix.Stat_t) error {
	if st.Uid != 0 || st.Gid != 0 {
		file := func() string { return path.Join(b.path(), name) }
		err := unix.Fchownat(b.dst, name, int(st.Uid), int(st.Gid), unix.AT_SYMLINK_NOFOLLOW)
		if err := c.owned(b.job, file, st.Uid, st.Gid, &st.Mode, err); err != nil {
			return err
		}
	}
	src, dst := fdPath(b.src, name), fdPath(b.dst, name)
	if st.Mode&unix.S_IFMT == unix.S_IFIFO {
		if err := unix.Fchmodat(b.dst, name, st.Mode&0o7777, 0); err != nil {
			return err
		}
	}
	if err := c.xattrsOf(b.job, func() string { return path.Join(b.path(), name) },
		func(p []byte) (int, error) { return unix.Llistxattr(src, p) },
		func(name string, p []byte) (int, error) { return unix.Lgetxattr(src, name, p) },
		func(name string, p []byte) error { return unix.Lsetxattr(dst, name, p, 0) },
	); err != nil {
		return err
	}
	times := []unix.Timespec{st.Atim, st.Mtim}
	return unix.UtimesNanoAt(b.dst, name, times, unix.AT_SYMLINK_NOFOLLOW)
}

// owned takes the error of a change of owner. EINVAL is about a number that the user namespace of the target has no ID
// for: the file stays root's, without the owner's rights by set-user-ID, and is reported.
func (c *copier) owned(job int, file func() string, uid, gid uint32, mode *uint32, err error) error {
	if err != unix.EINVAL {
		return err
	}
	*mode &^= unix.S_ISUID | unix.S_ISGID
	c.lose(job, file(), fmt.Sprintf("its owner %d:%d", uid, gid))
	return nil
}

// fdPath is a path to a name in an open directory.
func fdPath(dir int, name string) string { return fmt.Sprintf("/proc/self/fd/%d/%s", dir, name) }

// xattrsOf copies extended attributes, ACLs and capabilities among them. It reports those
// that the target refuses.
func (c *copier) xattrsOf(job int, file func() string, list func([]byte) (int, error), get func(string, []byte) (int, error), set func(string, []byte) error) error {
	n, err := list(nil)
	if err == unix.ENOTSUP || n == 0 && err == nil {
		return nil
	}
	if err != nil {
		return err
	}
	buf := make([]byte, n)
	if n, err = list(buf); err != nil {
		return err
	}
	for name := range strings.SplitSeq(strings.TrimRight(string(buf[:n]), "\x00"), "\x00") {
		if name == "" {
			continue // an overlay has promised its own, and lists none
		}
		value := make([]byte, 64<<10) // XATTR_SIZE_MAX
		n, err := get(name, value)
		if err == unix.ENODATA {
			continue
		}
		if err == nil {
			err = set(name, value[:n])
		}
		if err := c.refused(job, file, name, err); err != nil {
			return err
		}
	}
	return nil
}

// ownXattrs lists the extended attributes of a file but those of storage drivers.
func ownXattrs(fd int) (names []string, err error) {
	list := make([]byte, 64<<10) // XATTR_LIST_MAX
	n, err := unix.Flistxattr(fd, list)
	if err == unix.ENOTSUP {
		return nil, nil
	}
	for name := range strings.SplitSeq(string(list[:max(n, 0)]), "\x00") {
		if name != "" && !driver(name) {
			names = append(names, name)
		}
	}
	return names, err
}

// dropXattrs removes the attributes of ownXattrs. Those that it may not remove it leaves.
func dropXattrs(fd int) error {
	names, err := ownXattrs(fd)
	for _, name := range names {
		switch e := unix.Fremovexattr(fd, name); e {
		case nil, unix.ENODATA, unix.ENOTSUP, unix.EPERM, unix.EACCES:
		default:
			err = errors.Join(err, fmt.Errorf("extended attribute %s: %w", name, e))
		}
	}
	return err
}

// refused reports an extended attribute that the target refused for what it is. Other errors are
// returned, and every one of an overlay's own attributes in a layer.
func (c *copier) refused(job int, file func() string, name string, err error) error {
	if err != nil && strings.HasPrefix(name, "trusted.overlay.") && slices.ContainsFunc(c.jobs, func(j wire.CopyJob) bool { return j.Layer }) {
		return fmt.Errorf("extended attribute %s: %w", name, err)
	}
	switch err {
	case nil:
	case unix.ENOTSUP, unix.EPERM, unix.EACCES, unix.EINVAL, unix.ENOSPC, unix.E2BIG, unix.ERANGE:
		c.lose(job, file(), "extended attribute "+name)
	default:
		return fmt.Errorf("extended attribute %s: %w", name, err)
	}
	return nil
}

// futimens sets the times of an open file.
func futimens(fd int, st *unix.Stat_t) error {
	times := [2]unix.Timespec{st.Atim, st.Mtim}
	_, _, errno := unix.Syscall6(unix.SYS_UTIMENSAT, uintptr(fd), 0, uintptr(unsafe.Pointer(&times)), 0, 0, 0)
	if errno != 0 {
		return errno
	}
	return nil
}

// setAttributes sets the attributes of an open file or directory.
func (r *receiver) setAttributes(fd int, h *tar.Header, job int, rel string) error {
	// To ask costs less than to set, where the file system is a program.
	var is unix.Stat_t
	if err := unix.Fstat(fd, &is); err != nil {
		return err
	}
	owned, mode := int(is.Uid) != h.Uid || int(is.Gid) != h.Gid, uint32(h.Mode&0o7777)
	if owned {
		if err := r.owned(job, func() string { return rel }, uint32(h.Uid), uint32(h.Gid), &mode, unix.Fchown(fd, h.Uid, h.Gid)); err != nil {
			return err
		}
	}
	if owned || is.Mode&0o7777 != mode {
		if err := unix.Fchmod(fd, mode); err != nil {
			return err
		}
	}
	for key, value := range h.PAXRecords {
		if name, is := strings.CutPrefix(key, wire.TreeXattr); is {
			if err := r.refused(job, func() string { return rel }, name, unix.Fsetxattr(fd, name, []byte(value), 0)); err != nil {
				return err
			}
		}
	}
	st := stat(h)
	return futimens(fd, &st)
}

// stat has the times of a header.
func stat(h *tar.Header) (st unix.Stat_t) {
	st.Mtim = timespec(h.ModTime)
	st.Atim = st.Mtim
	if !h.AccessTime.IsZero() {
		st.Atim = timespec(h.AccessTime)
	}
	return st
}

// timespec is a time of any year: nanoseconds since 1970 reach from 1678 to 2262 only.
func timespec(t time.Time) unix.Timespec {
	return unix.Timespec{Sec: t.Unix(), Nsec: int64(t.Nanosecond())}
}
