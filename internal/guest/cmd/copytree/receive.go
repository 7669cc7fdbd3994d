//go:build linux

package copytree

import (
	"archive/tar"
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/seed-1a2d6d8f/sandbox/internal/guest/trees"
	"github.com/seed-1a2d6d8f/sandbox/internal/guest/wire"
)

// receiver makes trees of what comes on standard input.
type receiver struct {
	*copier
	w       worker
	roots   []int           // the jobs' directories
	mounted map[string]bool // paths of this container that are not its own files
	fresh   map[string]bool // directories of a layer that were not there
	ended   int             // how many of them are whole

	// The directory of the entry before, which most often is the next one's.
	dir  int
	job  int
	path string
}

// receive makes the trees of a stream. One that ends before its end is an error.
func (c *copier) receive(in io.Reader, jobs []wire.CopyJob) error {
	r := &receiver{copier: c, w: worker{copier: c, buf: make([]byte, bufferSize)}, fresh: map[string]bool{}, dir: -1}
	defer r.close()
	if err := c.lookupOwners(jobs); err != nil {
		return err
	}
	c.jobs = jobs
	for i, job := range jobs {
		fd, err := unix.Open(job.To, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			return &pathError{job: i, err: err}
		}
		r.roots = append(r.roots, fd)
	}
	if slices.ContainsFunc(jobs, func(j wire.CopyJob) bool { return j.Layer }) {
		var err error
		if r.mounted, err = mountPoints(); err != nil {
			return err
		}
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
		if id := r.owners[job]; id != nil {
			h.Uid, h.Gid = int(id.UID), int(id.GID)
			if h.Typeflag != tar.TypeDir {
				h.Mode &^= 0o6000
			}
		}
		if r.jobs[job].Layer && r.crossesMount(job, rel) {
			continue
		}
		if err := r.entry(tr, h, job, rel); err != nil {
			return &pathError{job: job, path: rel, err: err}
		}
	}
}

func (r *receiver) close() {
	for _, fd := range append(r.roots, r.dir) {
		if fd >= 0 {
			unix.Close(fd)
		}
	}
}

// splitName takes a name apart: the job, and the path below its directory.
func (r *receiver) splitName(name string) (int, string, error) {
	first, rest, _ := strings.Cut(name, "/")
	job, err := strconv.Atoi(first)
	if err != nil || job < 0 || job >= len(r.roots) {
		return 0, "", fmt.Errorf("the stream: %q is of no job", name)
	}
	return job, strings.TrimPrefix(path.Clean("/"+rest), "/"), nil
}

// open returns the descriptor of a directory below a job's, which stays ours. No link is
// followed on the way.
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

// walk opens a directory below a job's, following no link.
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
	if r.jobs[job].Layer && !r.fresh[path.Dir(rel)] {
		if err := r.remove(parent, base, path.Join(r.jobs[job].To, rel)); err != nil || h.PAXRecords[wire.TreeGone] != "" {
			return err
		}
	}
	if h.PAXRecords[wire.TreeReplace] != "" {
		if err := unix.Unlinkat(parent, base, 0); err != nil {
			return err
		}
	}
	r.files.Add(1)
	switch h.Typeflag {
	case tar.TypeReg:
		return r.regular(in, h, parent, base)
	case tar.TypeSymlink:
		if err := unix.Symlinkat(h.Linkname, parent, base); err != nil {
			return err
		}
	case tar.TypeFifo:
		if err := unix.Mknodat(parent, base, unix.S_IFIFO|uint32(h.Mode), 0); err != nil {
			return err
		}
	case tar.TypeLink:
		from, first, err := r.splitName(h.Linkname)
		if err != nil {
			return err
		}
		dir, err := r.walk(from, path.Dir(first))
		if err != nil {
			return err
		}
		defer unix.Close(dir)
		return unix.Linkat(dir, path.Base(first), parent, base, 0)
	default:
		return fmt.Errorf("the stream: kind %q", h.Typeflag)
	}
	if err := unix.Fchownat(parent, base, h.Uid, h.Gid, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return err
	}
	if h.Typeflag == tar.TypeFifo {
		if err := unix.Fchmodat(parent, base, uint32(h.Mode&0o7777), 0); err != nil {
			return err
		}
	}
	st := stat(h)
	return unix.UtimesNanoAt(parent, base, []unix.Timespec{st.Atim, st.Mtim}, unix.AT_SYMLINK_NOFOLLOW)
}

// directory makes one, and at its end gives it its attributes.
func (r *receiver) directory(h *tar.Header, job int, rel string) error {
	if h.PAXRecords[wire.TreeEnd] == "" {
		if rel == "" { // the volume's own, or the container's root
			if r.jobs[job].Layer {
				return clearDefaultACL(r.jobs[job].To)
			}
			return nil
		}
		parent, err := r.open(job, path.Dir(rel))
		if err != nil {
			return err
		}
		if r.jobs[job].Layer {
			return r.mergeDir(parent, rel, path.Join(r.jobs[job].To, rel), h.PAXRecords[wire.TreeOpaque] != "")
		}
		return unix.Mkdirat(parent, path.Base(rel), 0o700)
	}
	fd, err := r.open(job, rel)
	if err != nil {
		return err
	}
	r.dirs.Add(1)
	if rel == "" {
		r.ended++ // its own end comes after all that is in it
	}
	if r.jobs[job].Layer {
		if err := strip(fd, h); err != nil {
			return err
		}
	}
	return r.setAttributes(fd, h)
}

// mergeDir has a directory be there, without what was in it if it is opaque.
func (r *receiver) mergeDir(parent int, rel, full string, opaque bool) error {
	base := path.Base(full)
	var st unix.Stat_t
	err := unix.Fstatat(parent, base, &st, unix.AT_SYMLINK_NOFOLLOW)
	stays := err == nil && st.Mode&unix.S_IFMT == unix.S_IFDIR && !opaque
	if err == nil && !stays {
		err = r.remove(parent, base, full)
	}
	if err != nil && err != unix.ENOENT {
		return err
	}
	if !stays {
		err = unix.Mkdirat(parent, base, 0o700)
		stays = err == unix.EEXIST && r.mountsBelow(full)
	}
	if stays {
		return clearDefaultACL(fdPath(parent, base))
	}
	r.fresh[rel] = err == nil
	return err
}

// clearDefaultACL takes from a directory what new files in it would inherit. It gets its own back
// at its end.
func clearDefaultACL(dir string) error {
	err := unix.Lremovexattr(dir, "system.posix_acl_default")
	if err == unix.ENODATA || err == unix.ENOTSUP {
		return nil
	}
	return err
}

// remove removes a name of a directory, if it is there, and what is below it, but for what
// something is mounted in.
func (r *receiver) remove(parent int, base, full string) error {
	err := unix.Unlinkat(parent, base, 0)
	if err == nil || err == unix.ENOENT {
		return nil
	}
	if err != unix.EISDIR && err != unix.EPERM {
		return err
	}
	root, err := os.OpenRoot(fdPath(parent, "."))
	if err != nil {
		return err
	}
	defer root.Close()
	return r.clear(root, base, full)
}

// clear removes name, below root, as remove does.
func (r *receiver) clear(root *os.Root, name, full string) error {
	if r.mounted[full] {
		return nil
	}
	if !r.mountsBelow(full) {
		return root.RemoveAll(name)
	}
	dir, err := root.Open(name)
	if err != nil {
		return err
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	for _, n := range names {
		err = errors.Join(err, r.clear(root, path.Join(name, n), path.Join(full, n)))
	}
	return err
}

// mountsBelow reports whether something is mounted below a path.
func (r *receiver) mountsBelow(full string) bool {
	for point := range r.mounted {
		if strings.HasPrefix(point, full+"/") {
			return true
		}
	}
	return false
}

// strip takes the extended attributes of a directory away that a layer's does not have.
func strip(fd int, h *tar.Header) error {
	list := make([]byte, 64<<10)
	n, err := unix.Flistxattr(fd, list)
	if err == unix.ENOTSUP {
		return nil
	}
	if err != nil {
		return err
	}
	for name := range strings.SplitSeq(string(list[:n]), "\x00") {
		if _, has := h.PAXRecords[wire.TreeXattr+name]; has || name == "" || strings.HasPrefix(name, "trusted.") || trees.Driver(name) {
			continue
		}
		if err := unix.Fremovexattr(fd, name); err != nil && err != unix.ENODATA {
			return fmt.Errorf("extended attribute %s: %w", name, err)
		}
	}
	return nil
}

// crossesMount reports whether something is mounted at a path below a job's directory, or on the
// way to it.
func (r *receiver) crossesMount(job int, rel string) bool {
	for ; rel != "" && rel != "."; rel = path.Dir(rel) {
		if r.mounted[path.Join(r.jobs[job].To, rel)] {
			return true
		}
	}
	return false
}

// mountPoints are where something is mounted.
func mountPoints() (map[string]bool, error) {
	text, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	points := map[string]bool{}
	for line := range strings.Lines(string(text)) {
		f := strings.Fields(line) // spaces in a path are escaped
		if len(f) < 5 {
			return nil, fmt.Errorf("mountinfo: %q", line)
		}
		points[unescape(f[4])] = true
	}
	return points, nil
}

// unescape reads a path of mountinfo, in which \ooo is a byte.
func unescape(s string) string {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+3 < len(s) {
			if n, err := strconv.ParseUint(s[i+1:i+4], 8, 8); err == nil {
				b.WriteByte(byte(n))
				i += 3
				continue
			}
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

// regular makes a file of the parts that come.
func (r *receiver) regular(in io.Reader, h *tar.Header, parent int, base string) (err error) {
	fd, err := unix.Openat(parent, base, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, uint32(h.Mode&0o777))
	if err != nil {
		return err
	}
	defer func() {
		if e := unix.Close(fd); err == nil {
			err = e
		}
	}()
	parts := []int64{0, h.Size}
	if sparse := h.PAXRecords[wire.TreeSparse]; sparse != "" {
		var numbers []int64
		for f := range strings.FieldsSeq(sparse) {
			n, err := strconv.ParseInt(f, 10, 64)
			if err != nil || n < 0 {
				return fmt.Errorf("the stream: parts %q", sparse)
			}
			numbers = append(numbers, n)
		}
		if len(numbers)%2 == 0 {
			return fmt.Errorf("the stream: parts %q", sparse)
		}
		if err := unix.Ftruncate(fd, numbers[0]); err != nil {
			return err
		}
		parts = numbers[1:]
	}
	for ; len(parts) > 0; parts = parts[2:] {
		if _, err := unix.Seek(fd, parts[0], io.SeekStart); err != nil {
			return err
		}
		n, err := io.CopyBuffer(fdWriter(fd), struct{ io.Reader }{io.LimitReader(in, parts[1])}, r.w.buf)
		r.bytes.Add(n)
		if err == nil && n < parts[1] {
			err = io.ErrUnexpectedEOF
		}
		if err != nil {
			return err
		}
	}
	return r.setAttributes(fd, h)
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

// setAttributes sets the attributes of an open file or directory.
func (r *receiver) setAttributes(fd int, h *tar.Header) error {
	// To ask costs less than to set, where the file system is a program.
	var is unix.Stat_t
	if err := unix.Fstat(fd, &is); err != nil {
		return err
	}
	owned := int(is.Uid) != h.Uid || int(is.Gid) != h.Gid
	if owned {
		if err := unix.Fchown(fd, h.Uid, h.Gid); err != nil {
			return err
		}
	}
	if mode := uint32(h.Mode & 0o7777); owned || is.Mode&0o7777 != mode {
		if err := unix.Fchmod(fd, mode); err != nil {
			return err
		}
	}
	for key, value := range h.PAXRecords {
		if name, is := strings.CutPrefix(key, wire.TreeXattr); is {
			if err := r.countRefused(name, unix.Fsetxattr(fd, name, []byte(value), 0)); err != nil {
				return err
			}
		}
	}
	st := stat(h)
	return futimens(fd, &st)
}

// stat has the times of a header.
func stat(h *tar.Header) (st unix.Stat_t) {
	st.Mtim = unix.NsecToTimespec(h.ModTime.UnixNano())
	st.Atim = st.Mtim
	if !h.AccessTime.IsZero() {
		st.Atim = unix.NsecToTimespec(h.AccessTime.UnixNano())
	}
	return st
}
