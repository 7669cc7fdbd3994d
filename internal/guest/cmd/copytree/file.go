//go:build linux

package copytree

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"slices"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/seed-1a2d6d8f/sandbox/internal/guest/trees"
	"github.com/seed-1a2d6d8f/sandbox/internal/guest/wire"
)

const (
	bufferSize = 256 << 10
	// A reflink or a copy in the kernel is worth its own call from here on.
	smallFile = 64 << 10
	// attempts is how often a file that is being written to is tried.
	attempts = 3
)

// bare reports whether a layer is as the engine made it: a root of its own making, with
// no more in it than directories to mount something on, which are empty. In doubt it is
// not: a root with an attribute that storage drivers don't set, or a name in it that we
// don't know.
func bare(fd int, st *unix.Stat_t, mounts []string) (bool, error) {
	if st.Mode&0o7777 != 0o755 || st.Uid != 0 || st.Gid != 0 {
		return false, nil
	}
	attrs := make([]byte, 64<<10)
	n, err := unix.Flistxattr(fd, attrs)
	if err != nil && err != unix.ENOTSUP {
		return false, err
	}
	for name := range strings.SplitSeq(string(attrs[:max(n, 0)]), "\x00") {
		if name != "" && !trees.Driver(name) {
			return false, nil
		}
	}
	entries, err := readDir(fd)
	if err != nil {
		return false, err
	}
	if _, err := unix.Seek(fd, 0, io.SeekStart); err != nil { // it is read again
		return false, err
	}
	for _, e := range entries {
		if !slices.Contains(mounts, e.name) {
			return false, nil
		}
		dir, err := unix.Openat(fd, e.name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		if err == unix.ENOTDIR || err == unix.ELOOP {
			return false, nil // a file's mount point, or a file in its place
		}
		if err != nil {
			return false, err
		}
		inside, err := readDir(dir)
		if e := unix.Close(dir); err == nil {
			err = e
		}
		if err != nil {
			return false, err
		}
		// Directories that the engine mounts something on are marked when they are made.
		if slices.ContainsFunc(inside, func(e entry) bool { return e.name != trees.Opaque && e.name != trees.OpaqueDevice }) {
			return false, nil
		}
	}
	return true, nil
}

// file copies a regular file of b.
func (w *worker) file(b *branch, name string) error {
	const flags = unix.O_RDONLY | unix.O_NOFOLLOW | unix.O_NONBLOCK | unix.O_CLOEXEC
	src, err := unix.Openat(b.src, name, flags|unix.O_NOATIME, 0)
	if err == unix.EPERM {
		src, err = unix.Openat(b.src, name, flags, 0)
	}
	if err == unix.ELOOP {
		return errChanged
	}
	if err != nil {
		return err
	}
	defer unix.Close(src)
	var st unix.Stat_t
	if err := unix.Fstat(src, &st); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return errChanged
	}
	w.files.Add(1)
	return w.linked(b, name, &st, func() error {
		dst, err := unix.Openat(b.dst, name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, st.Mode&0o777)
		if err == unix.EEXIST && w.jobs != nil && w.jobs[b.job].Layer && name == trees.Opaque {
			return nil
		}
		if err != nil {
			return err
		}
		if err = w.contents(src, dst, &st); err == nil {
			w.reown(b.job, &st)
			err = w.attributes(src, dst, &st, false)
		}
		if e := unix.Close(dst); err == nil {
			err = e
		}
		return err
	})
}

// contents copies what src holds, as it was at one moment: when it was changed
// meanwhile, again. What only ever grows is copied as long as it was when begun.
func (w *worker) contents(src, dst int, st *unix.Stat_t) error {
	for try := 1; ; try++ {
		n, err := w.fill(src, dst, st)
		if err != nil && err != errChanged {
			return err
		}
		var now unix.Stat_t
		if e := unix.Fstat(src, &now); e != nil {
			return e
		}
		same := now.Size == st.Size && now.Mtim == st.Mtim
		if err == nil && (same || try == attempts && now.Size > st.Size) {
			w.bytes.Add(n)
			return nil
		}
		if try == attempts {
			return errChanged
		}
		if err := unix.Ftruncate(dst, 0); err != nil {
			return err
		}
		if _, err := unix.Seek(src, 0, io.SeekStart); err != nil {
			return err
		}
		if _, err := unix.Seek(dst, 0, io.SeekStart); err != nil {
			return err
		}
		*st = now
	}
}

// fill copies st.Size bytes and returns how many of them were not holes.
func (w *worker) fill(src, dst int, st *unix.Stat_t) (int64, error) {
	switch {
	case st.Size == 0:
		return 0, nil
	case st.Size < smallFile && st.Blocks > 0:
		return st.Size, w.through(src, dst, st.Size)
	}
	if !w.noReflink.Load() {
		if unix.IoctlFileClone(dst, src) == nil {
			// It may have cloned more or less than was there before.
			return st.Size, unix.Ftruncate(dst, st.Size)
		}
		// Two file systems, or one that can't. Others in this tree may, but then the
		// copy in the kernel does it for them.
		w.noReflink.Store(true)
	}
	if st.Blocks*512 >= st.Size {
		return st.Size, w.kernel(src, dst, st.Size)
	}
	return w.sparse(src, dst, st.Size)
}

// sparse copies a file's data and leaves its holes.
func (w *worker) sparse(src, dst int, size int64) (copied int64, err error) {
	if err := unix.Ftruncate(dst, size); err != nil {
		return 0, err
	}
	for at := int64(0); at < size; {
		data, err := unix.Seek(src, at, unix.SEEK_DATA)
		if err == unix.ENXIO {
			return copied, nil // nothing but a hole
		}
		if err != nil {
			return copied, err
		}
		if data >= size {
			return copied, nil
		}
		hole, err := unix.Seek(src, data, unix.SEEK_HOLE)
		if err != nil {
			return copied, err
		}
		hole = min(hole, size)
		for _, fd := range []int{src, dst} {
			if _, err := unix.Seek(fd, data, io.SeekStart); err != nil {
				return copied, err
			}
		}
		if err := w.kernel(src, dst, hole-data); err != nil {
			return copied, err
		}
		copied += hole - data
		at = hole
	}
	return copied, nil
}

// kernel copies n bytes without bringing them here, where the kernel can.
func (w *worker) kernel(src, dst int, n int64) error {
	for n > 0 {
		got, err := unix.CopyFileRange(src, nil, dst, nil, int(min(n, 64<<20)), 0)
		switch {
		case err == unix.EINTR:
			continue
		case err != nil:
			// EXDEV, ENOSYS, EINVAL, EOPNOTSUPP, EPERM: each kernel has its own way to
			// say that it can't. A true failure will be met again.
			return w.through(src, dst, n)
		case got == 0:
			// The end, or one of the file systems that say so when they can't.
			return w.through(src, dst, n)
		}
		n -= int64(got)
	}
	return nil
}

// through copies n bytes through the buffer.
func (w *worker) through(src, dst int, n int64) error {
	for n > 0 {
		got, err := unix.Read(src, w.buf[:min(n, int64(len(w.buf)))])
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return err
		}
		if got == 0 {
			return errChanged // it shrank
		}
		for p := w.buf[:got]; len(p) > 0; {
			put, err := unix.Write(dst, p)
			if err == unix.EINTR {
				continue
			}
			if err != nil {
				return err
			}
			p = p[put:]
		}
		n -= int64(got)
	}
	return nil
}

// attributes gives dst what src has beside its contents. The order matters: a change
// of owner takes set-user-ID and capabilities away, and everything changes times.
func (c *copier) attributes(src, dst int, st *unix.Stat_t, dir bool) error {
	owned := st.Uid != 0 || st.Gid != 0
	// The volume's own root may have had another owner.
	if owned || dir {
		if err := unix.Fchown(dst, int(st.Uid), int(st.Gid)); err != nil {
			return err
		}
	}
	if owned || dir || st.Mode&0o7000 != 0 {
		if err := unix.Fchmod(dst, st.Mode&0o7777); err != nil {
			return err
		}
	}
	if err := c.xattrsOf(
		func(p []byte) (int, error) { return unix.Flistxattr(src, p) },
		func(name string, p []byte) (int, error) { return unix.Fgetxattr(src, name, p) },
		func(name string, p []byte) error { return unix.Fsetxattr(dst, name, p, 0) },
	); err != nil {
		return err
	}
	return futimens(dst, st)
}

// attributesAt is attributes for what can't be opened.
func (c *copier) attributesAt(b *branch, name string, st *unix.Stat_t) error {
	if st.Uid != 0 || st.Gid != 0 {
		if err := unix.Fchownat(b.dst, name, int(st.Uid), int(st.Gid), unix.AT_SYMLINK_NOFOLLOW); err != nil {
			return err
		}
	}
	src, dst := fdPath(b.src, name), fdPath(b.dst, name)
	if st.Mode&unix.S_IFMT == unix.S_IFIFO {
		if err := unix.Fchmodat(b.dst, name, st.Mode&0o7777, 0); err != nil {
			return err
		}
	}
	if err := c.xattrsOf(
		func(p []byte) (int, error) { return unix.Llistxattr(src, p) },
		func(name string, p []byte) (int, error) { return unix.Lgetxattr(src, name, p) },
		func(name string, p []byte) error { return unix.Lsetxattr(dst, name, p, 0) },
	); err != nil {
		return err
	}
	times := []unix.Timespec{st.Atim, st.Mtim}
	return unix.UtimesNanoAt(b.dst, name, times, unix.AT_SYMLINK_NOFOLLOW)
}

// fdPath is a path to a name in an open directory.
func fdPath(dir int, name string) string { return fmt.Sprintf("/proc/self/fd/%d/%s", dir, name) }

// xattrsOf copies extended attributes, ACLs and capabilities among them. What the target
// does not take is counted.
func (c *copier) xattrsOf(list func([]byte) (int, error), get func(string, []byte) (int, error), set func(string, []byte) error) error {
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
		value := make([]byte, 64<<10) // the most there may be
		n, err := get(name, value)
		if err == unix.ENODATA {
			continue
		}
		if err == nil {
			err = set(name, value[:n])
		}
		if err := c.countRefused(name, err); err != nil {
			return err
		}
	}
	return nil
}

// countRefused counts an extended attribute that the target does not take.
func (c *copier) countRefused(name string, err error) error {
	if err != nil && strings.HasPrefix(name, "trusted.overlay.") && slices.ContainsFunc(c.jobs, func(j wire.CopyJob) bool { return j.Layer }) {
		return fmt.Errorf("extended attribute %s: %w", name, err)
	}
	switch err {
	case nil:
	case unix.ENOTSUP, unix.EPERM, unix.EACCES, unix.EINVAL, unix.ENOSPC, unix.E2BIG, unix.ERANGE:
		c.xattrs.Add(1)
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

// symlink copies a symbolic link as it is, wherever it leads.
func symlink(b *branch, name string, size int64) error {
	for room := size + 1; ; room *= 2 {
		to := make([]byte, max(room, 64))
		n, err := unix.Readlinkat(b.src, name, to)
		if err != nil {
			return err
		}
		if n < len(to) {
			return unix.Symlinkat(string(to[:n]), b.dst, name)
		}
	}
}

// readDir lists an open directory, without its own two names.
func readDir(fd int) ([]entry, error) {
	var entries []entry
	buf := make([]byte, 64<<10)
	for {
		n, err := unix.Getdents(fd, buf)
		if err == unix.EINTR {
			continue
		}
		if err != nil || n <= 0 {
			return entries, err
		}
		// struct linux_dirent64: inode 8, offset 8, length 2, kind 1, name with a NUL.
		for p := buf[:n]; len(p) >= 19; {
			length := int(binary.NativeEndian.Uint16(p[16:]))
			kind, name := p[18], p[19:length]
			p = p[length:]
			if end := bytes.IndexByte(name, 0); end >= 0 {
				name = name[:end]
			}
			if s := string(name); s != "." && s != ".." {
				entries = append(entries, entry{s, kind})
			}
		}
	}
}
