//go:build linux

package copytree

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/seed-1a2d6d8f/sandbox/internal/archive"
	"github.com/seed-1a2d6d8f/sandbox/internal/guest/wire"
)

// Run carries out a wire.Copy, its only argument, and reports on standard output.
func Run(args []string) error {
	if len(args) != 1 {
		return errors.New("copy: takes one argument")
	}
	var spec wire.Copy
	if err := json.Unmarshal([]byte(args[0]), &spec); err != nil {
		return fmt.Errorf("copy: read the request: %w", err)
	}
	unix.Umask(0)
	debug.SetGCPercent(400)

	if spec.Send {
		return send(&spec, os.Stdout)
	}
	out := json.NewEncoder(os.Stdout)
	c := newCopier()
	if err := openLayers(&spec); err != nil {
		return out.Encode(wire.Copied{Done: true, Error: &wire.CopyError{Message: "find layers: " + err.Error(), NoLayer: true}})
	}
	// What takes long and can be done before, is.
	for i, job := range spec.Jobs {
		if err := c.clear(job); err != nil {
			return out.Encode(wire.Copied{Done: true, Error: toCopyError(&pathError{job: i, err: err})})
		}
	}
	var orders orders
	var held *holder
	if spec.Wait {
		orders = readOrders()
		var err error
		if held, err = orders.await(spec.Hold, out); err != nil {
			return err
		}
	}
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		c.report(stop, out)
	}()
	var err error
	if spec.Stream {
		err = c.receive(os.Stdin, spec.Jobs)
	} else {
		err = c.run(spec)
	}
	moved := ""
	if held != nil && !spec.Linger {
		moved = held.release()
	}
	close(stop)
	<-stopped
	if spec.Linger && err == nil {
		if err := out.Encode(wire.Copied{Lingers: true}); err != nil {
			return err
		}
		<-orders
	}
	if held != nil && spec.Linger {
		moved = held.release()
	}
	last := c.copied()
	last.Losses = c.losses
	last.Done, last.Elsewhere, last.Boot, last.Roots, last.Moved = true, c.elsewhere, bootID(), c.roots, moved
	if err != nil {
		last.Error = toCopyError(err)
	}
	return out.Encode(last)
}

// clear does what can come before a job, and before the processes that write to its tree are held.
func (c *copier) clear(job wire.CopyJob) error {
	if job.Again || job.Layer {
		if err := empty(job.To, job.ToMark); err != nil {
			return err
		}
	}
	return syncFileSystem(job.Sync)
}

// report prints the progress of the copy until stop is closed.
func (c *copier) report(stop <-chan struct{}, out *json.Encoder) {
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-stop:
			return
		case <-tick.C:
			out.Encode(c.copied())
		}
	}
}

// A copier copies trees with several workers. Work that is found is put on a stack, so
// that a deep tree is finished from below and few directories are open at once.
type copier struct {
	files, dirs, bytes atomic.Int64
	noReflink          atomic.Bool
	jobs               []wire.CopyJob

	mu        sync.Mutex
	changed   sync.Cond // of the three below
	stack     []task
	working   int // tasks taken and not done
	err       error
	losses    wire.Losses
	links     map[linkKey]*link
	targets   map[inode]bool
	elsewhere []int
	roots     []wire.Root
}

type inode struct{ dev, ino uint64 }

// linkKey is a file of one job: a link can't lead into another's target.
type linkKey struct {
	job int
	inode
}

// A link is a file with more than one name. The first name is copied; done is closed when
// the others can be linked to it.
type link struct {
	done chan struct{}
	root int    // the target it is in
	path string // below root; empty when it could not be made
}

func newCopier() *copier {
	c := &copier{links: map[linkKey]*link{}, targets: map[inode]bool{}}
	c.changed.L = &c.mu
	return c
}

func (c *copier) copied() wire.Copied {
	return wire.Copied{Files: c.files.Load(), Dirs: c.dirs.Load(), Bytes: c.bytes.Load()}
}

// reown changes the attributes of a file for the owner of its job, if it has one. The new
// owner must not get the old one's rights by set-user-ID: reown returns which bits are lost.
func (c *copier) reown(job int, st *unix.Stat_t) (lost string) {
	o := c.jobs[job].Owner
	if o == nil {
		return ""
	}
	st.Uid, st.Gid = o.UID, o.GID
	if st.Mode&unix.S_IFMT != unix.S_IFDIR {
		lost = archive.PrivilegedBits(int64(st.Mode))
		st.Mode &^= unix.S_ISUID | unix.S_ISGID
	}
	return lost
}

// run copies everything, or stops at the first failure.
func (c *copier) run(spec wire.Copy) error {
	c.jobs, c.roots = spec.Jobs, make([]wire.Root, len(spec.Jobs))
	for i, job := range c.jobs {
		if err := syncFileSystem(job.Sync); err != nil {
			return &pathError{job: i, err: err}
		}
		if err := c.begin(i, job); err != nil {
			return err
		}
	}
	var wg sync.WaitGroup
	for range max(2, runtime.NumCPU()) {
		wg.Go(func() {
			w := &worker{copier: c, buf: make([]byte, bufferSize)}
			for {
				t, ok := c.take()
				if !ok {
					return
				}
				c.done(w.do(t))
			}
		})
	}
	wg.Wait()
	for i, job := range c.jobs {
		c.roots[i].Plain = c.err == nil && job.Layer && plain(job.To, job.Check)
	}
	return c.err
}

// begin opens a job's two directories and puts its root on the stack.
func (c *copier) begin(i int, job wire.CopyJob) error {
	b := &branch{job: i}
	var err error
	if job.To == "" && job.Is != nil {
		if err := unix.Stat(job.From, &b.stat); err != nil {
			return b.fail("", err)
		}
		b.stat.Uid, b.stat.Gid = job.Is.UID, job.Is.GID
		if *job.Is != identify(&b.stat) {
			c.elsewhere = append(c.elsewhere, i)
		}
		return nil
	}
	b.src, err = unix.Open(job.From, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return b.fail("", err)
	}
	if err := unix.Fstat(b.src, &b.stat); err != nil {
		return b.fail("", err)
	}
	if job.Is != nil && *job.Is != identify(&b.stat) {
		c.elsewhere = append(c.elsewhere, i)
		return unix.Close(b.src)
	}
	c.reown(i, &b.stat)
	c.roots[i] = wire.Root{Mode: b.stat.Mode & 0o7777, UID: b.stat.Uid, GID: b.stat.Gid, Mtime: b.stat.Mtim.Nano()}
	if !job.Layer {
		names, err := ownXattrs(b.src)
		if err != nil {
			return b.fail("", err)
		}
		c.roots[i].Xattrs = len(names) > 0
	} else {
		if c.roots[i].Bare, err = bare(b.src, &b.stat, slices.Concat(job.Mounts, job.Omit)); err != nil {
			return b.fail("", err)
		}
	}
	if b.dst, err = unix.Open(job.To, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0); err != nil {
		return b.fail("", err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(b.dst, &st); err != nil {
		return b.fail("", err)
	}
	c.targets[inode{st.Dev, st.Ino}] = true
	// Hard links are made below this one for as long as the job lasts.
	if b.root, err = unix.Dup(b.dst); err != nil {
		return b.fail("", err)
	}
	if job.Root {
		b.left.Store(1)
		return errors.Join(c.leave(b), unix.Close(b.root))
	}
	return c.list(b)
}

// empty removes what an earlier copy left in a directory, except the file called keep, and from the
// directory itself what new files in it would inherit: its group and its ACLs.
func empty(target, keep string) error {
	root, err := os.OpenRoot(target)
	if err != nil {
		return err
	}
	defer root.Close()
	dir, err := root.Open(".")
	if err != nil {
		return err
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	for _, name := range names {
		if name != keep {
			err = errors.Join(err, root.RemoveAll(name))
		}
	}
	fd := int(dir.Fd())
	return errors.Join(err, unix.Fchown(fd, 0, 0), unix.Fchmod(fd, 0o700), dropXattrs(fd))
}

// syncFileSystem writes the file system of dir to its device.
func syncFileSystem(dir string) error {
	if dir == "" {
		return nil
	}
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return unix.Syncfs(fd)
}

func identify(st *unix.Stat_t) wire.Identity {
	return wire.Identity{Boot: bootID(), Dev: st.Dev, Ino: st.Ino, UID: st.Uid, GID: st.Gid}
}

// bootID identifies the running kernel; empty when it is unknown.
func bootID() string {
	id, _ := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(id))
}

// copy copies one entry of a branch, or pushes it when it is a directory.
func (w *worker) copy(b *branch, e entry) error {
	if e.kind == unix.DT_REG {
		return w.file(b, e.name)
	}
	var st unix.Stat_t
	if e.kind != unix.DT_DIR {
		if err := unix.Fstatat(b.src, e.name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
			return err
		}
		w.reown(b.job, &st)
		e.kind = byte(st.Mode & unix.S_IFMT >> 12) // IFTODT of dirent.h
	}
	switch e.kind {
	case unix.DT_DIR:
		if err := unix.Mkdirat(b.dst, e.name, 0o700); err != nil {
			return err
		}
		b.left.Add(1)
		w.push(task{b: b, name: e.name})
		return nil
	case unix.DT_REG:
		return w.file(b, e.name)
	case unix.DT_LNK, unix.DT_FIFO:
		w.files.Add(1)
		return w.linked(b, e.name, &st, func() error { return w.special(b, e, &st) })
	}
	if e.kind == unix.DT_CHR && st.Rdev == 0 && w.jobs[b.job].Layer {
		return unix.Mknodat(b.dst, e.name, st.Mode, 0) // a whiteout: the image's file is deleted
	}
	kind := "a device"
	if e.kind == unix.DT_SOCK {
		kind = "a socket"
	}
	w.lose(b.job, path.Join(b.path(), e.name), kind)
	return nil
}

// special copies a symbolic link or a named pipe.
func (w *worker) special(b *branch, e entry, st *unix.Stat_t) (err error) {
	if e.kind == unix.DT_FIFO {
		err = unix.Mknodat(b.dst, e.name, st.Mode, 0)
	} else {
		err = symlink(b, e.name, st.Size)
	}
	if err != nil {
		return err
	}
	return w.attributesAt(b, e.name, st)
}

// lose reports what is not copied of a file.
func (c *copier) lose(job int, file, reason string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.losses.Add(job, file, reason)
}

// linked creates a name, as a hard link when the file has been copied under another name.
func (w *worker) linked(b *branch, name string, st *unix.Stat_t, create func() error) error {
	if st.Nlink < 2 {
		return create()
	}
	key := linkKey{b.job, inode{st.Dev, st.Ino}}
	w.mu.Lock()
	l := w.links[key]
	first := l == nil
	if first {
		l = &link{done: make(chan struct{}), root: b.root}
		w.links[key] = l
	}
	w.mu.Unlock()
	if first {
		// The other names wait until the file is complete. This one waits for none of
		// them, so there is no cycle.
		defer close(l.done)
		if err := create(); err != nil {
			return err
		}
		l.path = path.Join(b.path(), name)
		return nil
	}
	<-l.done
	if l.path == "" {
		return nil // the first name's failure is reported
	}
	err := unix.Linkat(l.root, l.path, b.dst, name, 0)
	if err == unix.EXDEV || err == unix.EMLINK || err == unix.ENAMETOOLONG {
		return create() // two volumes, or too long a path
	}
	return err
}
