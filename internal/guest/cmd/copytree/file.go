//go:build linux

package copytree

import (
	"bytes"
	"encoding/binary"
	"io"
	"path"

	"golang.org/x/sys/unix"

	"github.com/seed-1a2d6d8f/sandbox/internal/archive"
)

const (
	bufferSize = 256 << 10
	// smallFile is the size from which a reflink or a copy in the kernel pays.
	smallFile = 64 << 10
	// attempts is how often a file is copied that is written to meanwhile.
	attempts = 3
)

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
		if err != nil {
			return err
		}
		if err = w.contents(src, dst, &st); err == nil {
			if lost := w.reown(b.job, &st); lost != "" {
				w.lose(b.job, path.Join(b.path(), name), lost)
			}
			err = w.attributes(b, name, src, dst, &st)
		}
		if e := unix.Close(dst); err == nil {
			err = e
		}
		return err
	})
}

// contents copies a file as it was at one moment: again, when it has changed meanwhile. Of
// one that only grows it copies the size that it had at the last attempt.
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
		if err == errChanged && same {
			// It ends before its size, as files in /sys do.
			if n, err = unix.Seek(dst, 0, io.SeekCurrent); err == nil {
				err = unix.Ftruncate(dst, n)
			}
			if err != nil {
				return err
			}
		}
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
		return w.unsized(src, dst)
	case st.Size < smallFile && st.Blocks > 0:
		return st.Size, w.through(src, dst, st.Size)
	}
	if !w.noReflink.Load() {
		if unix.IoctlFileClone(dst, src) == nil {
			// It may have cloned more or less than was there before.
			return st.Size, unix.Ftruncate(dst, st.Size)
		}
		// Two file systems, or one without reflinks. Where others in this tree have
		// them, copy_file_range uses them.
		w.noReflink.Store(true)
	}
	if st.Blocks*512 >= st.Size {
		return st.Size, w.kernel(src, dst, st.Size)
	}
	return w.sparse(src, dst, st.Size)
}

// unsized copies a file without a size, as those in /proc are, to its end, or to where there is nothing to read now.
func (w *worker) unsized(src, dst int) (copied int64, err error) {
	for copied <= archive.Unsized {
		n, err := unix.Read(src, w.buf)
		switch {
		case err == unix.EINTR:
			continue
		case err == unix.EAGAIN, err == nil && n == 0:
			return copied, nil
		case err != nil:
			return copied, err
		}
		if _, err := fdWriter(dst).Write(w.buf[:n]); err != nil {
			return copied, err
		}
		copied += int64(n)
	}
	return copied, archive.ErrEndless
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

// kernel copies n bytes by copy_file_range, if the kernel can.
func (w *worker) kernel(src, dst int, n int64) error {
	for n > 0 {
		got, err := unix.CopyFileRange(src, nil, dst, nil, int(min(n, 64<<20)), 0)
		switch {
		case err == unix.EINTR:
			continue
		case err != nil:
			// EXDEV, ENOSYS, EINVAL, EOPNOTSUPP, EPERM: kernels differ in how they refuse.
			// A failure of the file itself will come again.
			return w.through(src, dst, n)
		case got == 0:
			// The end, or a file system that reports one where it can't copy.
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
		if _, err := fdWriter(dst).Write(w.buf[:got]); err != nil {
			return err
		}
		n -= int64(got)
	}
	return nil
}

// symlink copies a symbolic link as it is, wherever it leads.
func symlink(b *branch, name string, size int64) error {
	for length := size + 1; ; length *= 2 {
		target := make([]byte, max(length, 64))
		n, err := unix.Readlinkat(b.src, name, target)
		if err != nil {
			return err
		}
		if n < len(target) {
			return unix.Symlinkat(string(target[:n]), b.dst, name)
		}
	}
}

// readDir lists an open directory, without its own two names.
func readDir(fd int) ([]entry, error) {
	var entries []entry
	buf := make([]byte, 64<<10)
	for {
		some, err := readSome(fd, buf)
		if err != nil || len(some) == 0 {
			return entries, err
		}
		entries = append(entries, some...)
	}
}

// readSome lists the next entries of an open directory, as many as buf holds; at the end none.
func readSome(fd int, buf []byte) (entries []entry, err error) {
	for len(entries) == 0 {
		n, err := unix.Getdents(fd, buf)
		if err == unix.EINTR {
			continue
		}
		if err != nil || n <= 0 {
			return nil, err
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
	return entries, nil
}
