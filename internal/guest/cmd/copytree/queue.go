//go:build linux

package copytree

import (
	"errors"
	"slices"

	"golang.org/x/sys/unix"
)

// A task copies entries of a branch. Without entries it opens the directory called name.
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

func (c *copier) push(ts ...task) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stack = append(c.stack, ts...)
	c.changed.Broadcast()
}

// take returns the next task. It waits while a running task may push more, and returns
// false when all are done or one has failed.
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
	if omit := c.jobs[b.job].Omit; b.parent == nil && len(omit) > 0 {
		entries = slices.DeleteFunc(entries, func(e entry) bool { return slices.Contains(omit, e.name) })
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

// leave releases a task's reference to a branch. The last one sets the directory's
// attributes: its times change with every entry that is created in it.
func (c *copier) leave(b *branch) error {
	if b.left.Add(-1) > 0 {
		return nil
	}
	err := c.attributes(b, "", b.src, b.dst, &b.stat)
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
		return b.fail(name, errors.New("the target of the copy is below its source"))
	}
	if child.dst, err = unix.Openat(b.dst, name, flags, 0); err != nil {
		return b.fail(name, err)
	}
	if err := w.list(child); err != nil {
		return err
	}
	return w.leave(b)
}
