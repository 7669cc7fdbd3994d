//go:build linux

package copytree

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/seed-1a2d6d8f/sandbox/internal/guest/cmd/proc"
	"github.com/seed-1a2d6d8f/sandbox/internal/guest/trees"
	"github.com/seed-1a2d6d8f/sandbox/internal/guest/wire"
)

// Run copies trees as wire.Copy says.
func Run(args []string) error {
	if len(args) != 1 {
		return errors.New("copy: wants one argument")
	}
	var told wire.Copy
	if err := json.Unmarshal([]byte(args[0]), &told); err != nil {
		return fmt.Errorf("copy: read what to do: %w", err)
	}
	unix.Umask(0)
	debug.SetGCPercent(400)

	out := json.NewEncoder(os.Stdout)
	c := newCopier()
	if told.Wait {
		if err := out.Encode(wire.Copied{Ready: true}); err != nil {
			return err
		}
		if _, err := io.ReadFull(os.Stdin, make([]byte, 1)); err != nil {
			return fmt.Errorf("copy: not told to begin: %w", err)
		}
	}
	stop, stopped := make(chan struct{}), make(chan struct{})
	layers := false
	go func() {
		defer close(stopped)
		layers = c.report(stop, out)
	}()
	var err error
	if told.Stream {
		err = c.receive(os.Stdin, told.Jobs)
	} else {
		err = c.run(told)
	}
	close(stop)
	<-stopped
	last := c.copied()
	if err == nil && !layers && !told.Stream {
		if err := out.Encode(c.atLayers); err != nil {
			return err
		}
	}
	last.Done, last.Elsewhere, last.Boot, last.Roots = true, c.elsewhere, bootID(), c.roots
	if err != nil {
		last.Error = toCopyError(err)
	}
	return out.Encode(last)
}

// report prints how far the copy is until stop is closed, and reports whether it has told of
// the layers.
func (c *copier) report(stop <-chan struct{}, out *json.Encoder) (told bool) {
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	layers := c.layers
	for {
		select {
		case <-stop:
			return layers == nil
		case <-layers:
			layers = nil
			out.Encode(c.atLayers)
		case <-tick.C:
			out.Encode(c.copied())
		}
	}
}

// A copier copies trees with several workers. Work that is found is put on a stack, so
// that a deep tree is finished from below and few directories are open at once.
type copier struct {
	files, dirs, bytes, skipped, xattrs atomic.Int64
	noReflink                           atomic.Bool
	owners                              []*proc.User // of the jobs; nil keeps what there is
	jobs                                []wire.CopyJob
	layers                              chan struct{} // closed when those jobs are done
	packed                              layerBuffer   // what one of them was packed into
	atLayers                            wire.Copied   // what is said of them

	mu        sync.Mutex
	changed   sync.Cond // of the three below
	stack     []task
	working   int // tasks taken and not done
	err       error
	names     [][]byte
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

// A link is a file with more than one name. The first name is copied; made is closed
// when it is there to be linked to.
type link struct {
	done chan struct{}
	root int    // the target it is in
	path string // below root; empty when it could not be made
}

// A branch is one directory that is being copied.
type branch struct {
	job      int
	root     int     // the job's target
	parent   *branch // for the path; nil at the root
	name     string
	src, dst int
	stat     unix.Stat_t
	left     atomic.Int64 // tasks that need src and dst
}

// path is where the branch is below its job's directory.
func (b *branch) path() string {
	if b.parent == nil {
		return ""
	}
	var parts []string
	for ; b.parent != nil; b = b.parent {
		parts = append(parts, b.name)
	}
	for i, j := 0, len(parts)-1; i < j; i, j = i+1, j-1 {
		parts[i], parts[j] = parts[j], parts[i]
	}
	return strings.Join(parts, "/")
}

// A task copies entries of a branch. Without entries it opens the branch's directory
// called name.
type task struct {
	b       *branch
	name    string
	entries []entry
}

// entry is one name in a directory.
type entry struct {
	name string
	kind byte // unix.DT_…
}

// entriesPerTask is how many entries of a directory one task takes.
const entriesPerTask = 32

// pathError says where a copy failed.
type pathError struct {
	job     int
	path    string
	err     error
	changed bool
}

func (e *pathError) Error() string { return e.err.Error() }

func (e *pathError) Unwrap() error { return e.err }

func toCopyError(err error) *wire.CopyError {
	told := &wire.CopyError{Message: err.Error(), Unfit: errors.Is(err, trees.ErrUnfit) || errors.Is(err, errTooLarge)}
	var p *pathError
	if errors.As(err, &p) {
		told.Job, told.Path, told.Message, told.Changed = p.job, []byte(p.path), p.err.Error(), p.changed
	}
	return told
}

var errChanged = errors.New("it was changed while it was copied")

func (b *branch) fail(name string, err error) error {
	changed := errors.Is(err, errChanged) || errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ESTALE)
	return &pathError{job: b.job, path: path.Join(b.path(), name), err: err, changed: changed}
}

func newCopier() *copier {
	c := &copier{links: map[linkKey]*link{}, targets: map[inode]bool{}, layers: make(chan struct{})}
	c.changed.L = &c.mu
	return c
}

func (c *copier) copied() wire.Copied {
	c.mu.Lock()
	defer c.mu.Unlock()
	return wire.Copied{
		Files: c.files.Load(), Dirs: c.dirs.Load(), Bytes: c.bytes.Load(),
		Skipped: c.skipped.Load(), Names: c.names, Xattrs: c.xattrs.Load(),
	}
}

// lookupOwners looks up who the jobs' trees are for.
func (c *copier) lookupOwners(jobs []wire.CopyJob) error {
	c.owners = make([]*proc.User, len(jobs))
	for i, job := range jobs {
		if job.Owner == "" {
			continue
		}
		id, err := proc.LookupUser(job.Owner)
		if err != nil {
			return &pathError{job: i, err: err}
		}
		c.owners[i] = &id
	}
	return nil
}

// reown changes what a file of a job is to be when the job is for somebody. Who gets
// another's file does not get the other's rights with it.
func (c *copier) reown(job int, st *unix.Stat_t) {
	if id := c.owners[job]; id != nil {
		st.Uid, st.Gid = id.UID, id.GID
		if st.Mode&unix.S_IFMT != unix.S_IFDIR {
			st.Mode &^= unix.S_ISUID | unix.S_ISGID
		}
	}
}

// run copies everything, or stops at the first failure.
func (c *copier) run(told wire.Copy) error {
	if err := c.lookupOwners(told.Jobs); err != nil {
		return err
	}
	c.jobs, c.roots = told.Jobs, make([]wire.Root, len(told.Jobs))
	workers := told.Workers
	if workers <= 0 {
		workers = max(2, runtime.NumCPU())
	}
	if err := c.copyJobs(true, workers); err != nil {
		return err
	}
	c.atLayers = c.copied()
	c.atLayers.Layers, c.atLayers.Layer = true, c.packed.Bytes()
	close(c.layers)
	return c.copyJobs(false, workers)
}

// copyJobs copies every job that is one of a layer or a root, or every other one.
func (c *copier) copyJobs(layers bool, workers int) error {
	for i, job := range c.jobs {
		if (job.Layer || job.Root) != layers {
			continue
		}
		if err := writeOut(job.Sync); err != nil {
			return &pathError{job: i, err: err}
		}
		if job.Pack {
			if err := c.pack(job); err != nil {
				return &pathError{job: i, err: err}
			}
			continue
		}
		if err := empty(job); err != nil {
			return &pathError{job: i, err: err}
		}
		if err := c.begin(i, job); err != nil {
			return err
		}
	}
	var wg sync.WaitGroup
	for range workers {
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
	return c.err
}

// errTooLarge says that a layer is larger than what is packed.
var errTooLarge = errors.New("too large to be packed")

// layerBuffer is a buffer that takes no more than wire.MaxLayer.
type layerBuffer struct{ bytes.Buffer }

func (l *layerBuffer) Write(p []byte) (int, error) {
	if l.Len()+len(p) > wire.MaxLayer {
		return 0, errTooLarge
	}
	return l.Buffer.Write(p)
}

// pack keeps a layer as a stream of one job.
func (c *copier) pack(job wire.CopyJob) error {
	w := trees.New(context.Background(), &c.packed)
	if err := w.Layer(0, job.From); err != nil {
		return err
	}
	c.skipped.Add(w.Skipped)
	for _, name := range w.Names {
		c.names = append(c.names, []byte(name))
	}
	c.bytes.Add(int64(c.packed.Len()))
	return w.Close()
}

// begin opens a job's two directories and puts its root on the stack.
func (c *copier) begin(i int, job wire.CopyJob) error {
	b := &branch{job: i}
	var err error
	if b.src, err = unix.Open(job.From, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0); err != nil {
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
	if job.Layer {
		if c.roots[i].Bare, err = bare(b.src, &b.stat, job.Mounts); err != nil {
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
	// The root's descriptor is also what hard links are made below, to the end.
	if b.root, err = unix.Dup(b.dst); err != nil {
		return b.fail("", err)
	}
	if job.Root {
		b.left.Store(1)
		return errors.Join(c.leave(b), unix.Close(b.root))
	}
	return c.list(b)
}

// empty removes what an earlier copy left.
func empty(job wire.CopyJob) error {
	if !job.Again {
		return nil
	}
	root, err := os.OpenRoot(job.To)
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
		err = errors.Join(err, root.RemoveAll(name))
	}
	return err
}

// writeOut writes out the file system that dir is on.
func writeOut(dir string) error {
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

// bootID tells this kernel from every other one; empty when it does not say.
func bootID() string {
	id, _ := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(id))
}

func (c *copier) push(ts ...task) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stack = append(c.stack, ts...)
	c.changed.Broadcast()
}

// take returns the next task, or false when there are none and none can come.
func (c *copier) take() (task, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for {
		if c.err != nil || len(c.stack) == 0 && c.working == 0 {
			return task{}, false
		}
		if n := len(c.stack); n > 0 {
			t := c.stack[n-1]
			c.stack = c.stack[:n-1]
			c.working++
			return t, true
		}
		c.changed.Wait()
	}
}

func (c *copier) done(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.working--
	if err != nil && c.err == nil {
		c.err = err
	}
	if c.err != nil || c.working == 0 {
		c.changed.Broadcast()
	}
}

// list reads a branch's directory and puts its entries on the stack.
func (c *copier) list(b *branch) error {
	entries, err := readDir(b.src)
	if err != nil {
		return b.fail("", err)
	}
	b.left.Store(1) // our own, until all are on the stack
	var ts []task
	for len(entries) > 0 {
		n := min(len(entries), entriesPerTask)
		ts = append(ts, task{b: b, entries: entries[:n]})
		entries = entries[n:]
	}
	b.left.Add(int64(len(ts)))
	c.push(ts...)
	return c.leave(b)
}

// leave ends a task's need of a branch. The last one completes the directory, whose
// times would change with everything that is put into it.
func (c *copier) leave(b *branch) error {
	if b.left.Add(-1) > 0 {
		return nil
	}
	err := c.attributes(b.src, b.dst, &b.stat, true)
	if e := errors.Join(unix.Close(b.src), unix.Close(b.dst)); err == nil {
		err = e
	}
	if err != nil {
		return b.fail("", err)
	}
	c.dirs.Add(1)
	return nil
}

type worker struct {
	*copier
	buf []byte
}

func (w *worker) do(t task) error {
	if t.entries == nil {
		return w.enter(t.b, t.name)
	}
	for _, e := range t.entries {
		if err := w.copy(t.b, e); err != nil {
			return t.b.fail(e.name, err)
		}
	}
	return w.leave(t.b)
}

// enter opens a directory of b and lists it.
func (w *worker) enter(b *branch, name string) error {
	child := &branch{job: b.job, root: b.root, parent: b, name: name}
	const flags = unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC
	var err error
	if child.src, err = unix.Openat(b.src, name, flags, 0); err != nil {
		return b.fail(name, err)
	}
	if err := unix.Fstat(child.src, &child.stat); err != nil {
		return b.fail(name, err)
	}
	w.reown(b.job, &child.stat)
	if w.targets[inode{child.stat.Dev, child.stat.Ino}] {
		return b.fail(name, errors.New("it is what is copied into"))
	}
	if child.dst, err = unix.Openat(b.dst, name, flags, 0); err != nil {
		return b.fail(name, err)
	}
	if err := w.list(child); err != nil {
		return err
	}
	return w.leave(b)
}

// copy copies one entry, or puts it on the stack when it is a directory.
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
		e.kind = byte(st.Mode & unix.S_IFMT >> 12) // as the kernel makes the one of the other
	}
	switch e.kind {
	case unix.DT_DIR:
		if err := unix.Mkdirat(b.dst, e.name, 0o700); err != nil && !(err == unix.EEXIST && w.jobs[b.job].Layer) {
			return err
		}
		b.left.Add(1)
		w.push(task{b: b, name: e.name})
		return nil
	case unix.DT_REG:
		return w.file(b, e.name)
	case unix.DT_LNK, unix.DT_FIFO:
		w.files.Add(1)
		return w.linked(b, e.name, &st, func() error {
			if e.kind == unix.DT_FIFO {
				if err := unix.Mknodat(b.dst, e.name, st.Mode, 0); err != nil {
					return err
				}
			} else if err := symlink(b, e.name, st.Size); err != nil {
				return err
			}
			return w.attributesAt(b, e.name, &st)
		})
	}
	if e.kind == unix.DT_CHR && st.Rdev == 0 && w.jobs[b.job].Layer {
		err := unix.Mknodat(b.dst, e.name, st.Mode, 0) // the file of the image is gone
		if err == unix.EEXIST {
			return nil // something is mounted there
		}
		return err
	}
	w.skipped.Add(1)
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.names) < wire.MaxNames {
		w.names = append(w.names, []byte(path.Join(b.path(), e.name)))
	}
	return nil
}

// linked makes a name with its first maker, and as a hard link when the source's has
// been made under another name.
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
		// Whoever waits for it does so while it is filled, too: it waits for nobody.
		defer close(l.done)
		if err := create(); err != nil {
			return err
		}
		l.path = path.Join(b.path(), name)
		return nil
	}
	<-l.done
	if l.path == "" {
		return nil // its own failure is what is reported
	}
	err := unix.Linkat(l.root, l.path, b.dst, name, 0)
	if err == unix.EXDEV || err == unix.EMLINK || err == unix.ENAMETOOLONG {
		return create() // between two volumes, or too long a way to the first name
	}
	return err
}
