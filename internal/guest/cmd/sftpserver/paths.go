//go:build linux

package sftpserver

import (
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// change is an operation on a path that replies with nothing but success.
func change(f func(path string) error) operation {
	return func(_ *session, u *unpack) (*reply, error) {
		path := u.string()
		if u.err != nil {
			return nil, u.err
		}
		return nil, f(path)
	}
}

// changeTwo is a change that takes two paths.
func changeTwo(f func(first, second string) error) operation {
	return func(_ *session, u *unpack) (*reply, error) {
		first, second := u.string(), u.string()
		if u.err != nil {
			return nil, u.err
		}
		return nil, f(first, second)
	}
}

func statReply(stat func(*unix.Stat_t) error) (*reply, error) {
	var st unix.Stat_t
	if err := stat(&st); err != nil {
		return nil, err
	}
	r := newReply(typeAttrs)
	r.stat(&st)
	return r, nil
}

func statBy(stat func(string, *unix.Stat_t) error) operation {
	return func(_ *session, u *unpack) (*reply, error) {
		path := u.string()
		return statReply(func(st *unix.Stat_t) error { return stat(path, st) })
	}
}

// set sets what a request has of the attributes. One that fails keeps none of the others from being set, and the last error counts.
func (a attributes) set(truncate func(int64) error, chmod func(uint32) error, chtimes func([]unix.Timespec) error, chown func(uid, gid int) error) error {
	var last error
	note := func(err error) {
		if err != nil {
			last = err
		}
	}
	if a.flags&attrSize != 0 {
		note(truncate(int64(a.size)))
	}
	if a.flags&attrPerm != 0 {
		note(chmod(a.perm & 0o7777))
	}
	if a.flags&attrTimes != 0 {
		note(chtimes(a.times()))
	}
	if a.flags&attrOwner != 0 {
		note(chown(int(a.uid), int(a.gid)))
	}
	return last
}

func setstat(_ *session, u *unpack) (*reply, error) {
	path, a := u.string(), u.attributes()
	if u.err != nil {
		return nil, u.err
	}
	return nil, a.set(
		func(size int64) error { return unix.Truncate(path, size) },
		func(mode uint32) error { return unix.Chmod(path, mode) },
		func(times []unix.Timespec) error { return unix.UtimesNanoAt(unix.AT_FDCWD, path, times, 0) },
		func(uid, gid int) error { return unix.Chown(path, uid, gid) })
}

// lsetstat is setstat that does not follow a link at the end.
func lsetstat(_ *session, u *unpack) (*reply, error) {
	path, a := u.string(), u.attributes()
	if u.err != nil {
		return nil, u.err
	}
	if a.flags&attrSize != 0 {
		return nil, statusBadMessage
	}
	return nil, a.set(
		nil,
		func(mode uint32) error { return lchmod(path, mode) },
		func(times []unix.Timespec) error {
			return unix.UtimesNanoAt(unix.AT_FDCWD, path, times, unix.AT_SYMLINK_NOFOLLOW)
		},
		func(uid, gid int) error { return unix.Lchown(path, uid, gid) })
}

// lchmod changes the mode of a file that is no link, which has none: older kernels have no call for that.
func lchmod(path string, mode uint32) error {
	fd, err := unix.Open(path, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT == unix.S_IFLNK {
		return unix.EOPNOTSUPP
	}
	return unix.Chmod(procPath(fd), mode)
}

func mkdir(_ *session, u *unpack) (*reply, error) {
	path, a := u.string(), u.attributes()
	if u.err != nil {
		return nil, u.err
	}
	return nil, unix.Mkdir(path, a.mode(0o777))
}

func readlink(_ *session, u *unpack) (*reply, error) {
	path := u.string()
	if u.err != nil {
		return nil, u.err
	}
	target, err := readLink(path)
	if err != nil {
		return nil, err
	}
	return nameReply(target), nil
}

func readLink(path string) (string, error) {
	buf := make([]byte, unix.PathMax)
	n, err := unix.Readlink(path, buf)
	return string(buf[:max(n, 0)]), err
}

// rename does not replace what is there, except that anything but a file takes the place of a link that leads nowhere.
func rename(from, to string) error {
	err := unix.Renameat2(unix.AT_FDCWD, from, unix.AT_FDCWD, to, unix.RENAME_NOREPLACE)
	if err != unix.EEXIST && err != unix.EINVAL && err != unix.ENOSYS {
		return err
	}
	var st unix.Stat_t
	if err := unix.Lstat(from, &st); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		if unix.Stat(to, &st) == nil {
			return unix.EEXIST
		}
		return unix.Rename(from, to)
	}
	if err == unix.EEXIST {
		return err
	}
	// The file system has no such rename: the file gets its second name before it loses the first.
	if err := unix.Link(from, to); err != nil {
		return err
	}
	return unix.Unlink(from)
}

func realpath(_ *session, u *unpack) (*reply, error) {
	path := u.string()
	if u.err != nil {
		return nil, u.err
	}
	return resolvedReply(path)
}

func resolvedReply(path string) (*reply, error) {
	resolved, err := resolve(path)
	if err != nil {
		return nil, err
	}
	return nameReply(resolved), nil
}

// maxLinks is how many links resolve follows.
const maxLinks = 32

// resolve returns the absolute path of a file without links on the way. Its last part need not exist.
func resolve(path string) (string, error) {
	if len(path) >= unix.PathMax {
		return "", unix.ENAMETOOLONG
	}
	resolved, links := "", 0
	if !strings.HasPrefix(path, "/") {
		dir, err := os.Getwd()
		if err != nil {
			return "", err
		}
		resolved = strings.TrimSuffix(dir, "/")
	}
	for path != "" {
		name, rest, more := strings.Cut(path, "/")
		path = rest
		switch name {
		case "", ".":
			continue
		case "..":
			resolved = resolved[:max(strings.LastIndexByte(resolved, '/'), 0)]
			continue
		}
		next := resolved + "/" + name
		var st unix.Stat_t
		if err := unix.Lstat(next, &st); err != nil {
			if err == unix.ENOENT && !more {
				return next, nil
			}
			return "", err
		}
		if st.Mode&unix.S_IFMT != unix.S_IFLNK {
			resolved = next
			continue
		}
		if links++; links > maxLinks {
			return "", unix.ELOOP
		}
		target, err := readLink(next)
		if err != nil {
			return "", err
		}
		if strings.HasPrefix(target, "/") {
			resolved = ""
		}
		if path = target; more {
			path += "/" + rest
		}
		if len(path) >= unix.PathMax {
			return "", unix.ENAMETOOLONG
		}
	}
	if resolved == "" {
		return "/", nil
	}
	return resolved, nil
}
