//go:build linux

package main

import (
	"errors"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/seed-1a2d6d8f/sandbox/internal/guest/wire"
)

// command is one that runs, and the ends of its stdio that are ours.
type command struct {
	req    wire.Exec // without its environment
	reaper *reaper
	child  *child
	badge  badge
	began  uint64 // ticks: nothing of this command is older

	// stdin is nil without input, and stderr when stdout has it too. On a terminal
	// stdin and stdout are its master.
	stdin, stdout, stderr *os.File

	over     chan struct{} // closed when run has all the output
	killed   atomic.Bool
	timedOut atomic.Bool
}

// killedDelay is how long output may stay open once we killed the command: whoever
// still holds it then has got away and must not hold the caller too.
const killedDelay = 500 * time.Millisecond

// startCommand starts what is asked for.
func startCommand(r *reaper, req wire.Exec) (*command, *wire.StartError) {
	l, refused := prepare(&req)
	if refused != nil {
		return nil, refused
	}
	c := &command{req: req, reaper: r, over: make(chan struct{})}
	c.req.Env = nil
	var theirs [3]int
	var err error
	if req.TTY {
		theirs, err = c.openTerminal(req.Size)
	} else {
		theirs, err = c.openPipes(req.Stdin, req.Merge)
	}
	if err != nil {
		c.closeStdio()
		return nil, refuse(wire.KindResources, "%q: %v", req.Args[0], err)
	}
	if req.TTY || req.Stdin {
		l.own(theirs[:]...)
	} else {
		l.own(theirs[1:]...) // the first is /dev/null, everybody's
	}

	attr := &syscall.ProcAttr{
		Dir: l.dir, Env: l.env,
		Files: []uintptr{uintptr(theirs[0]), uintptr(theirs[1]), uintptr(theirs[2])},
		Sys:   &syscall.SysProcAttr{Credential: l.credential(), Setpgid: !req.TTY, Setsid: req.TTY, Setctty: req.TTY},
	}
	if !req.Detached {
		// The command's own end should this process be killed. It counts on no thread
		// of ours ever ending, which Go promises unless a locked goroutine returns.
		attr.Sys.Pdeathsig = unix.SIGKILL
	}
	c.began = ticks()
	c.child, err = r.start(func() (pid int, err error) {
		c.badge, pid, err = r.badges.stamp(func() (int, error) { return syscall.ForkExec(l.path, l.argv, attr) })
		return pid, err
	})
	unix.Close(theirs[0])
	if !req.TTY {
		unix.Close(theirs[1])
		unix.Close(theirs[2])
	}
	if err != nil {
		c.closeStdio()
		return nil, l.explain(err)
	}
	return c, nil
}

func (c *command) openTerminal(size wire.Size) (theirs [3]int, err error) {
	master, slave, err := openTerminal(size)
	if err != nil {
		return theirs, err
	}
	c.stdin, c.stdout = master, master
	return [3]int{slave, slave, slave}, nil
}

func (c *command) openPipes(input, merge bool) (theirs [3]int, err error) {
	theirs = [3]int{-1, -1, -1}
	fail := func(err error) ([3]int, error) {
		for _, fd := range theirs {
			if fd >= 0 {
				unix.Close(fd)
			}
		}
		return theirs, err
	}
	if input {
		if theirs[0], c.stdin, err = pipe(1); err != nil {
			return fail(err)
		}
	} else if theirs[0], err = unix.Open(os.DevNull, unix.O_RDONLY|unix.O_CLOEXEC, 0); err != nil {
		return fail(err)
	}
	if theirs[1], c.stdout, err = pipe(0); err != nil {
		return fail(err)
	}
	if merge {
		theirs[2], err = unix.FcntlInt(uintptr(theirs[1]), unix.F_DUPFD_CLOEXEC, 0)
	} else {
		theirs[2], c.stderr, err = pipe(0)
	}
	if err != nil {
		return fail(err)
	}
	return theirs, nil
}

// pipe makes a pipe of which end number ours (0 reads) is for this process; the other
// one is left blocking, as programs expect their stdio to be.
func pipe(ours int) (theirs int, file *os.File, err error) {
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC); err != nil {
		return -1, nil, err
	}
	unix.SetNonblock(fds[ours], true)
	return fds[1-ours], os.NewFile(uintptr(fds[ours]), "pipe"), nil
}

func (c *command) closeStdio() {
	for _, f := range [...]*os.File{c.stdin, c.stdout, c.stderr} {
		if f != nil {
			f.Close()
		}
	}
}

// run copies the command's output until it has ended and tells how. It is called
// once.
func (c *command) run(stdout, stderr io.Writer) wire.Exit {
	var copies sync.WaitGroup
	var cut atomic.Bool
	copies.Go(func() { pump(c.stdout, stdout, &cut) })
	if c.stderr != nil {
		copies.Go(func() { pump(c.stderr, stderr, &cut) })
	}
	if c.req.Timeout > 0 {
		timer := time.AfterFunc(c.req.Timeout, c.timeout)
		defer timer.Stop()
	}

	<-c.child.done
	if delay := c.req.WaitDelay; delay > 0 {
		timer := time.AfterFunc(delay, c.cut)
		defer timer.Stop()
	}
	copies.Wait()
	close(c.over)
	c.closeStdio()
	c.reaper.badges.release(c.badge)

	exit := c.child.exit()
	exit.WaitDelay = cut.Load()
	if c.timedOut.Load() {
		exit.TimedOut = true
		exit.Signal = int(unix.SIGKILL)
		exit.Code = 128 + exit.Signal
	}
	return exit
}

func (c *command) timeout() {
	select {
	case <-c.child.done: // only its output was still open
	default:
		c.timedOut.Store(true)
	}
	c.kill()
}

// kill kills the command and all that descends from it, and soon ends its output.
func (c *command) kill() {
	if c.killed.Swap(true) {
		return
	}
	time.AfterFunc(killedDelay, c.cut)
	killTree(c.tree)
}

// tidyTime is what a command gets that removes what it has half made.
const tidyTime = 10 * time.Second

// tidies says whether the command cleans up when its input breaks off.
func (c *command) tidies() bool {
	args := c.req.Args
	return len(args) > 1 && args[0] == wire.Path && (args[1] == wire.VerbUnpack || args[1] == wire.VerbFiles)
}

// abandon kills the command of a client that is gone, once it had time to tidy up.
func (c *command) abandon() {
	if c.tidies() {
		select {
		case <-c.over:
			return
		case <-time.After(tidyTime):
		}
	}
	c.kill()
}

// cut ends the copying of output that is still open, after what is already written.
func (c *command) cut() {
	c.stdout.SetReadDeadline(time.Unix(1, 0))
	if c.stderr != nil {
		c.stderr.SetReadDeadline(time.Unix(1, 0))
	}
}

// tree returns the living processes of the command: its descendants, whoever is in
// its process group or session, which outlive a parent's death, and orphans that wear
// its badge.
func (c *command) tree() []proc {
	table, err := processes()
	if err != nil {
		return nil
	}
	self := os.Getpid()
	alive := false
	select {
	case <-c.child.done:
	default:
		alive = true
	}
	pid := c.child.pid
	return closure(table, func(p proc) bool {
		if p.pid == self {
			return false
		}
		return p.pgrp == pid || p.sid == pid || alive && p.pid == pid ||
			p.ppid == self && p.start >= c.began && c.badge.worn(p.pid)
	})
}

// signal sends n to the process group or the tree; false when none is left.
func (c *command) signal(n syscall.Signal, tree bool) bool {
	if n < 0 || n > signals {
		return false
	}
	if !tree {
		return c.reaper.signal(c.child, n) == nil
	}
	if n == unix.SIGKILL {
		if len(c.tree()) == 0 {
			return false
		}
		killTree(c.tree)
		return true
	}
	found := c.tree()
	for _, p := range found {
		signalProcess(p, n)
	}
	return len(found) > 0
}

func (c *command) resize(size wire.Size) {
	if !c.req.TTY {
		return
	}
	raw, err := c.stdout.SyscallConn()
	if err != nil {
		return
	}
	raw.Control(func(fd uintptr) { resize(int(fd), size) })
}

// feed copies the client's input to the command. A command that stops reading stops
// the client by the channel's window, until the command ends.
func (c *command) feed(r io.Reader) {
	if !c.req.Stdin {
		return
	}
	buf := buffers.Get().(*[copySize]byte)
	defer buffers.Put(buf)
	var last byte
	for {
		n, err := r.Read(buf[:])
		if n > 0 {
			last = buf[n-1]
			if _, err := c.stdin.Write(buf[:n]); err != nil {
				return
			}
		}
		if err != nil {
			break
		}
	}
	if c.req.TTY {
		terminalEOF(c.stdin, last)
		return
	}
	c.stdin.Close()
}

const copySize = 64 << 10

var buffers = sync.Pool{New: func() any { return new([copySize]byte) }}

// pump copies f to w until f ends or the reading is cut, which it notes; what was
// written before the cut still goes over. A w that fails ends f, so that its writers
// learn of it.
func pump(f *os.File, w io.Writer, cut *atomic.Bool) {
	buf := buffers.Get().(*[copySize]byte)
	defer buffers.Put(buf)
	for {
		n, err := f.Read(buf[:])
		if n > 0 {
			if _, err := w.Write(buf[:n]); err != nil {
				f.Close()
				return
			}
		}
		switch {
		case err == nil:
			continue
		case errors.Is(err, os.ErrDeadlineExceeded):
			cut.Store(drain(f, w, buf[:]))
		}
		return // the end, or EIO: a terminal that nobody holds any more
	}
}

// maxDrain is the most that a pipe or terminal can hold.
const maxDrain = 1 << 20

// drain copies what is in f without waiting for more, and says whether it is open
// still.
func drain(f *os.File, w io.Writer, buf []byte) (open bool) {
	raw, err := f.SyscallConn()
	if err != nil {
		return false
	}
	for left := maxDrain; left > 0; {
		n := 0
		var readErr error
		if err := raw.Control(func(fd uintptr) { n, readErr = unix.Read(int(fd), buf) }); err != nil {
			return false
		}
		if readErr == unix.EINTR {
			continue
		}
		if readErr == unix.EAGAIN {
			return true
		}
		if readErr != nil || n <= 0 {
			return false
		}
		if _, err := w.Write(buf[:n]); err != nil {
			return false
		}
		left -= n
	}
	return true
}
