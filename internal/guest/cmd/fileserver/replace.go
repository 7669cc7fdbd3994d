//go:build linux

package fileserver

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// replacement is a file that will take another's place, whole or not at all.
type replacement struct {
	f    *os.File
	dir  *os.File     // where it goes
	name string       // what it will be called there
	temp string       // what it is called until then; "" while it has no name
	old  *unix.Stat_t // what it replaces; nil when that does not exist
	// direct says that f is the target itself: a device, a pipe, a file of the kernel's.
	direct bool
}

// maxLinks is what the kernel follows.
const maxLinks = 40

// newReplacement begins to replace path. A link at its end is followed, so that the link
// stays; a file keeps its owner and its permissions; the directory must be writable.
func newReplacement(path string, perm uint32) (_ *replacement, err error) {
	for range maxLinks {
		i := strings.LastIndexByte(strings.TrimRight(path, "/"), '/')
		dirName, name := path[:i+1], path[i+1:]
		if dirName == "" {
			dirName = "."
		}
		dir, _, err := openFile(unix.AT_FDCWD, dirName, unix.O_RDONLY|unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			return nil, err
		}
		if name == "" || name == "." || name == ".." || strings.HasSuffix(name, "/") {
			// It is a directory, or has to be one, if it can be reached.
			err := cmp.Or[error](unix.Faccessat(int(dir.Fd()), ".", unix.F_OK, unix.AT_EACCESS), unix.EISDIR)
			return nil, errors.Join(err, dir.Close())
		}
		r := &replacement{dir: dir, name: name}
		next, err := r.begin(perm)
		if next == "" && err == nil {
			return r, nil
		}
		dir.Close()
		if err != nil {
			return nil, err
		}
		if path = next; !strings.HasPrefix(next, "/") {
			path = dirName + next
		}
	}
	return nil, unix.ELOOP
}

// begin looks at what is there and opens what will replace it. It returns a link's
// target instead when that is what is there.
func (r *replacement) begin(perm uint32) (link string, err error) {
	dir := int(r.dir.Fd())
	var st unix.Stat_t
	switch err := retry(func() error { return unix.Fstatat(dir, r.name, &st, unix.AT_SYMLINK_NOFOLLOW) }); {
	case err == unix.ENOENT:
		return "", r.open(perm & 0o7777)
	case err != nil:
		return "", err
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFLNK:
		buf := make([]byte, unix.PathMax)
		n, err := unix.Readlinkat(dir, r.name, buf)
		return string(buf[:max(n, 0)]), err
	case unix.S_IFDIR:
		return "", unix.EISDIR
	case unix.S_IFREG:
		if r.made() {
			break
		}
		if err := unix.Faccessat(dir, r.name, unix.W_OK, unix.AT_EACCESS); err != nil {
			return "", err // a rename would not ask
		}
		r.old = &st
		if err := r.open(0o600); err != nil {
			return "", err
		}
		if err := r.inherit(); err != nil {
			r.discard()
			return "", err
		}
		return "", nil
	}
	r.direct = true
	r.f, _, err = openFile(dir, r.name, unix.O_WRONLY|unix.O_CLOEXEC|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	return "", err
}

// made reports whether the kernel makes up the directory: nothing can be created there.
func (r *replacement) made() bool {
	var st unix.Statfs_t
	if retry(func() error { return unix.Fstatfs(int(r.dir.Fd()), &st) }) != nil {
		return false
	}
	switch int64(st.Type) {
	case unix.PROC_SUPER_MAGIC, unix.SYSFS_MAGIC, unix.CGROUP_SUPER_MAGIC, unix.CGROUP2_SUPER_MAGIC:
		return true
	}
	return false
}

// inherit gives the new file owner and permissions of the old one. What is written comes later: as in
// place, the kernel then takes setuid and setgid bits off unless the writer is root.
func (r *replacement) inherit() error {
	fd := int(r.f.Fd())
	// Who may write a file need not be allowed to give one away: then it becomes
	// the writer's. It keeps its group if the writer is a member, and others of the group keep their access.
	if unix.Fchown(fd, int(r.old.Uid), int(r.old.Gid)) != nil {
		unix.Fchown(fd, -1, int(r.old.Gid))
	}
	if err := unix.Fchmod(fd, r.old.Mode&0o7777); err != nil {
		return err
	}
	return retry(func() error { return unix.Ftruncate(fd, 0) }) // where nothing will be written
}

// open makes the file without a name, which leaves nothing behind whatever happens,
// or under a temporary one where the file system can't.
func (r *replacement) open(perm uint32) (err error) {
	dir := int(r.dir.Fd())
	r.f, _, err = openFile(dir, ".", unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC, perm)
	if !errors.Is(err, unix.EOPNOTSUPP) && !errors.Is(err, unix.EISDIR) && !errors.Is(err, unix.ENOSYS) && !errors.Is(err, unix.EINVAL) {
		return err
	}
	r.temp = temporaryName()
	r.f, _, err = openFile(dir, r.temp, unix.O_RDWR|unix.O_CREAT|unix.O_EXCL|unix.O_CLOEXEC, perm)
	return err
}

// discard leaves everything as it was.
func (r *replacement) discard() {
	if r.temp != "" {
		unix.Unlinkat(int(r.dir.Fd()), r.temp, 0)
	}
	r.f.Close()
	r.dir.Close()
}

// commit gives the file its name.
func (r *replacement) commit() error {
	if r.direct {
		r.dir.Close()
		return r.f.Close()
	}
	err := r.install()
	if err != nil {
		r.discard()
		return err
	}
	r.dir.Close()
	return r.f.Close()
}

func (r *replacement) install() error {
	fd, dir := int(r.f.Fd()), int(r.dir.Fd())
	if r.temp == "" {
		self := fmt.Sprintf("/proc/self/fd/%d", fd)
		if r.old == nil {
			err := unix.Linkat(unix.AT_FDCWD, self, dir, r.name, unix.AT_SYMLINK_FOLLOW)
			if err != unix.EEXIST {
				return err
			}
		}
		temp := temporaryName()
		if err := unix.Linkat(unix.AT_FDCWD, self, dir, temp, unix.AT_SYMLINK_FOLLOW); err != nil {
			return err
		}
		r.temp = temp
	}
	err := retry(func() error { return unix.Renameat(dir, r.temp, dir, r.name) })
	if err == unix.EBUSY || err == unix.EPERM {
		// A mount point, as /etc/hosts is one, or a file of another user in a directory with the sticky bit, such as
		// /tmp. It can only be written in place.
		if err = r.overwrite(); err == nil {
			unix.Unlinkat(dir, r.temp, 0)
		}
	}
	if err == nil {
		r.temp = ""
	}
	return err
}

func (r *replacement) overwrite() error {
	to, _, err := openFile(int(r.dir.Fd()), r.name, unix.O_WRONLY|unix.O_TRUNC|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	if _, err = r.f.Seek(0, io.SeekStart); err == nil {
		_, err = io.Copy(to, r.f)
	}
	return errors.Join(err, to.Close())
}
