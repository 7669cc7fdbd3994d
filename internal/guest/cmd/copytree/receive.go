//go:build linux

package copytree

import (
	"archive/tar"
	"bufio"
	"fmt"
	"io"
	"path"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/seed-1a2d6d8f/sandbox/internal/archive"
	"github.com/seed-1a2d6d8f/sandbox/internal/guest/wire"
)

// receiver makes the trees of a stream, as package trees writes it.
type receiver struct {
	*copier
	w     worker
	roots []int // the jobs' directories
	ended int   // how many trees are complete

	// The directory of the last entry, most often of the next one too.
	dir  int
	job  int
	path string
}

// receive makes the trees of a stream. A stream without the end of every tree is an error.
func (c *copier) receive(in io.Reader, jobs []wire.CopyJob) error {
	r := &receiver{copier: c, w: worker{copier: c, buf: make([]byte, bufferSize)}, dir: -1}
	defer r.close()
	if err := r.prepare(jobs); err != nil {
		return err
	}
	tr := tar.NewReader(bufio.NewReaderSize(in, bufferSize))
	for {
		h, err := tr.Next()
		if err == io.EOF && r.ended < len(jobs) {
			err = io.ErrUnexpectedEOF // a cut between two headers looks like the end
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return fmt.Errorf("the stream: %w", err)
		}
		job, rel, err := r.splitName(h.Name)
		if err != nil {
			return err
		}
		if o := r.jobs[job].Owner; o != nil {
			h.Uid, h.Gid = int(o.UID), int(o.GID)
			if h.Typeflag != tar.TypeDir {
				if lost := archive.PrivilegedBits(h.Mode); lost != "" {
					r.lose(job, rel, lost)
				}
				h.Mode &^= 0o6000
			}
		}
		if err := r.entry(tr, h, job, rel); err != nil {
			return &pathError{job: job, path: rel, err: err}
		}
	}
}

// prepare opens the targets of the jobs.
func (r *receiver) prepare(jobs []wire.CopyJob) error {
	r.jobs = jobs
	for i, job := range jobs {
		fd, err := unix.Open(job.To, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			return &pathError{job: i, err: err}
		}
		r.roots = append(r.roots, fd)
	}
	return nil
}

func (r *receiver) close() {
	for _, fd := range append(r.roots, r.dir) {
		if fd >= 0 {
			unix.Close(fd)
		}
	}
}

// splitName returns the job of a name in the stream, and the path below its directory.
func (r *receiver) splitName(name string) (int, string, error) {
	first, rest, _ := strings.Cut(name, "/")
	job, err := strconv.Atoi(first)
	if err != nil || job < 0 || job >= len(r.roots) {
		return 0, "", fmt.Errorf("the stream: %q is of no job", name)
	}
	return job, strings.TrimPrefix(path.Clean("/"+rest), "/"), nil
}

// open returns the descriptor of a directory below a job's, following no link. It stays
// the receiver's.
func (r *receiver) open(job int, dir string) (int, error) {
	if dir == "." || dir == "" {
		return r.roots[job], nil
	}
	if r.dir >= 0 && r.job == job && r.path == dir {
		return r.dir, nil
	}
	fd, err := r.walk(job, dir)
	if err != nil {
		return -1, err
	}
	if r.dir >= 0 {
		unix.Close(r.dir)
	}
	r.dir, r.job, r.path = fd, job, dir
	return fd, nil
}

// walk opens a directory below a job's, following no link. The caller closes it.
func (r *receiver) walk(job int, dir string) (int, error) {
	fd := r.roots[job]
	for part := range strings.SplitSeq(dir, "/") {
		next, err := unix.Openat(fd, part, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		if fd != r.roots[job] {
			unix.Close(fd)
		}
		if err != nil {
			return -1, err
		}
		fd = next
	}
	return fd, nil
}

func (r *receiver) entry(in io.Reader, h *tar.Header, job int, rel string) error {
	if h.Typeflag == tar.TypeDir {
		return r.directory(h, job, rel)
	}
	parent, err := r.open(job, path.Dir(rel))
	if err != nil {
		return err
	}
	base := path.Base(rel)
	if h.PAXRecords[wire.TreeReplace] != "" {
		if err := unix.Unlinkat(parent, base, 0); err != nil {
			return err
		}
	}
	if h.Typeflag == tar.TypeChar && h.Devmajor == 0 && h.Devminor == 0 && r.jobs[job].Layer {
		return unix.Mknodat(parent, base, unix.S_IFCHR|uint32(h.Mode&0o7777), 0) // a whiteout: the image's file is deleted
	}
	r.files.Add(1)
	switch h.Typeflag {
	case tar.TypeReg:
		return r.regular(in, h, parent, job, rel)
	case tar.TypeSymlink, tar.TypeFifo:
		return r.special(h, parent, job, rel)
	case tar.TypeLink:
		return r.hardLink(h, parent, base)
	}
	return fmt.Errorf("the stream: kind %q", h.Typeflag)
}

// special creates a symbolic link or a named pipe.
func (r *receiver) special(h *tar.Header, parent, job int, rel string) (err error) {
	base, mode := path.Base(rel), uint32(h.Mode&0o7777)
	if h.Typeflag == tar.TypeFifo {
		err = unix.Mknodat(parent, base, unix.S_IFIFO|uint32(h.Mode), 0)
	} else {
		err = unix.Symlinkat(h.Linkname, parent, base)
	}
	if err != nil {
		return err
	}
	err = unix.Fchownat(parent, base, h.Uid, h.Gid, unix.AT_SYMLINK_NOFOLLOW)
	if err := r.owned(job, func() string { return rel }, uint32(h.Uid), uint32(h.Gid), &mode, err); err != nil {
		return err
	}
	if h.Typeflag == tar.TypeFifo {
		if err := unix.Fchmodat(parent, base, mode, 0); err != nil {
			return err
		}
	}
	st := stat(h)
	return unix.UtimesNanoAt(parent, base, []unix.Timespec{st.Atim, st.Mtim}, unix.AT_SYMLINK_NOFOLLOW)
}

// hardLink gives a file of the stream another name.
func (r *receiver) hardLink(h *tar.Header, parent int, base string) error {
	job, first, err := r.splitName(h.Linkname)
	if err != nil {
		return err
	}
	dir, err := r.walk(job, path.Dir(first))
	if err != nil {
		return err
	}
	defer unix.Close(dir)
	return unix.Linkat(dir, path.Base(first), parent, base, 0)
}

// directory creates a directory at its first header, and sets its attributes at its
// last one, which follows what is in it.
func (r *receiver) directory(h *tar.Header, job int, rel string) error {
	if h.PAXRecords[wire.TreeEnd] == "" {
		if rel == "" { // the target itself
			return nil
		}
		parent, err := r.open(job, path.Dir(rel))
		if err != nil {
			return err
		}
		return unix.Mkdirat(parent, path.Base(rel), 0o700)
	}
	fd, err := r.open(job, rel)
	if err != nil {
		return err
	}
	r.dirs.Add(1)
	if rel == "" {
		r.ended++
	}
	return r.setAttributes(fd, h, job, rel)
}

// regular creates a file with the data of the stream.
func (r *receiver) regular(in io.Reader, h *tar.Header, parent, job int, rel string) (err error) {
	fd, err := unix.Openat(parent, path.Base(rel), unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, uint32(h.Mode&0o777))
	if err != nil {
		return err
	}
	defer func() {
		if e := unix.Close(fd); err == nil {
			err = e
		}
	}()
	pieces := []archive.Piece{{Length: h.Size}}
	if record := h.PAXRecords[wire.TreeSparse]; record != "" {
		var size int64
		if size, pieces, err = archive.ParseSparse(record, h.Size); err != nil {
			return fmt.Errorf("the stream: %w", err)
		}
		if err := unix.Ftruncate(fd, size); err != nil {
			return err
		}
	}
	for _, p := range pieces {
		if _, err := unix.Seek(fd, p.Offset, io.SeekStart); err != nil {
			return err
		}
		n, err := io.CopyBuffer(fdWriter(fd), struct{ io.Reader }{io.LimitReader(in, p.Length)}, r.w.buf)
		r.bytes.Add(n)
		if err == nil && n < p.Length {
			err = io.ErrUnexpectedEOF
		}
		if err != nil {
			return err
		}
	}
	return r.setAttributes(fd, h, job, rel)
}

type fdWriter int

func (fd fdWriter) Write(p []byte) (n int, err error) {
	for n < len(p) {
		put, err := unix.Write(int(fd), p[n:])
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return n, err
		}
		n += put
	}
	return n, nil
}
