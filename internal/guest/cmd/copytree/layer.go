//go:build linux

package copytree

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/seed-1a2d6d8f/sandbox/internal/guest/trees"
	"github.com/seed-1a2d6d8f/sandbox/internal/guest/wire"
)

// mergeDir creates a directory or keeps the one that exists, emptied if it is opaque.
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

// clearDefaultACL removes a directory's default ACL, which new files in it would inherit.
// It gets the layer's own at its end.
func clearDefaultACL(dir string) error {
	err := unix.Lremovexattr(dir, "system.posix_acl_default")
	if err == unix.ENODATA || err == unix.ENOTSUP {
		return nil
	}
	return err
}

// remove removes a name of a directory and what is below it, if it exists. Mount points
// and the directories that hold them stay.
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

// strip removes the extended attributes of a directory that the layer's does not have.
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

// crossesMount reports whether a path below a job's directory is a mount point or below
// one.
func (r *receiver) crossesMount(job int, rel string) bool {
	for ; rel != "" && rel != "."; rel = path.Dir(rel) {
		if r.mounted[path.Join(r.jobs[job].To, rel)] {
			return true
		}
	}
	return false
}

// mountinfoPath reads a path of mountinfo, in which the kernel escapes these four.
var mountinfoPath = strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)

// mountPoints returns the mount points of this container.
func mountPoints() (map[string]bool, error) {
	text, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	points := map[string]bool{}
	for line := range strings.Lines(string(text)) {
		f := strings.Fields(line)
		if len(f) < 5 {
			return nil, fmt.Errorf("mountinfo: %q", line)
		}
		points[mountinfoPath.Replace(f[4])] = true
	}
	return points, nil
}

// bare reports whether a layer is as the engine made it: a root with the engine's mode and
// owner, which holds nothing but empty directories to mount something on. In doubt it is
// not: a root with an attribute that storage drivers don't set, or with an unknown name.
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

// errTooLarge says that a layer does not fit a layerBuffer.
var errTooLarge = errors.New("too large to be packed")

// layerBuffer is a buffer that takes no more than wire.MaxLayer.
type layerBuffer struct{ bytes.Buffer }

func (l *layerBuffer) Write(p []byte) (int, error) {
	if l.Len()+len(p) > wire.MaxLayer {
		return 0, errTooLarge
	}
	return l.Buffer.Write(p)
}

// pack writes a layer into c.packed, as a stream of one job.
func (c *copier) pack(job wire.CopyJob) error {
	w := trees.New(context.Background(), &c.packed)
	if err := w.Layer(0, job.From); err != nil {
		return err
	}
	c.skipped.Add(w.Skipped)
	c.mu.Lock()
	for _, name := range w.Names {
		c.names = append(c.names, []byte(name))
	}
	c.mu.Unlock()
	c.bytes.Add(int64(c.packed.Len()))
	return w.Close()
}
