//go:build linux

package proc

import (
	"errors"
	"io"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/seed-1a2d6d8f/sandbox/internal/guest/wire"
)

// Command is a running command, with this process's ends of its stdio. Its methods may be
// called concurrently, except that Run and Feed are called once each.
type Command struct {
	req    wire.Exec // without its environment
	reaper *Reaper
	child  *Child
	tag    oomTag
	began  uint64 // ticks: nothing of this command is older

	// stdin is nil without input, stdout and stderr when nobody reads them, and stderr when it
	// is merged into stdout. On a terminal stdin and stdout are its master.
	stdin, stdout, stderr *os.File

	drained  chan struct{} // closed when all the output has been copied
	ended    chan struct{} // closed when Run has all the output, and how the command ended
	killed   atomic.Bool
	timedOut atomic.Bool
	ours     atomic.Bool // this program has sent SIGKILL while the command ran
	hungUp   atomic.Bool // no output is read after the cut
}

// killedDelay is how long output may stay open after Kill: a process that escaped and
// still holds it must not hold the caller up.
const killedDelay = 500 * time.Millisecond

// Start starts a command as a child that r reaps. The caller calls Run.
func Start(r *Reaper, req wire.Exec) (*Command, *wire.StartError) {
	l, refused := prepare(&req)
	if refused != nil {
		return nil, refused
	}
	c := &Command{req: req, reaper: r, drained: make(chan struct{}), ended: make(chan struct{})}
	c.req.Env = nil
	var theirs [3]int
	var err error
	if req.TTY {
		theirs, err = c.openTerminal(l)
	} else {
		theirs, err = c.openPipes(l)
	}
	if err != nil {
		c.closeStdio()
		return nil, StartErrorf(wire.KindResources, "%q: %v", req.Args[0], err)
	}
	if req.TTY {
		l.own(theirs[0])
	}

	attr := &syscall.ProcAttr{
		Dir: l.dir, Env: l.env,
		Files: []uintptr{uintptr(theirs[0]), uintptr(theirs[1]), uintptr(theirs[2])},
		// A session of its own, as by sshd and docker exec: "pkill -s 0" is for this command alone.
		Sys: &syscall.SysProcAttr{Credential: l.credential(), Setsid: true, Setctty: req.TTY},
	}
	if !req.Detached {
		// The command dies with the thread that started it. Go ends no thread, unless a
		// goroutine that is locked to it returns.
		attr.Sys.Pdeathsig = unix.SIGKILL
	}
	c.began = bootTicks()
	c.child, err = r.Start(func() (pid int, err error) {
		fork := func() (int, error) { return syscall.ForkExec(l.path, l.argv, attr) }
		if confined(l.User, &req) {
			unconfined := fork
			fork = func() (int, error) { return onConfinedThread(unconfined) }
		}
		c.tag, pid, err = r.tags.fork(fork)
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

func (c *Command) openTerminal(l *launch) (theirs [3]int, err error) {
	master, slave, path, err := openTerminal(c.req.Size, c.req.Modes)
	if err != nil {
		return theirs, err
	}
	if c.req.TTYVariable != "" {
		l.env = append(l.env, c.req.TTYVariable+"="+path)
	}
	c.stdin, c.stdout = master, master
	return [3]int{slave, slave, slave}, nil
}

func (c *Command) openPipes(l *launch) (theirs [3]int, err error) {
	theirs = [3]int{-1, -1, -1}
	defer func() {
		if err == nil {
			return
		}
		for _, fd := range theirs {
			if fd >= 0 {
				unix.Close(fd)
			}
		}
	}()
	if c.req.Stdin {
		theirs[0], c.stdin, err = l.pipe(1)
	} else {
		theirs[0], err = unix.Open(os.DevNull, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	}
	if err != nil {
		return theirs, err
	}
	if theirs[1], c.stdout, err = l.sink(c.req.Stdout); err != nil {
		return theirs, err
	}
	if c.req.Merge {
		theirs[2], err = unix.FcntlInt(uintptr(theirs[1]), unix.F_DUPFD_CLOEXEC, 0)
	} else {
		theirs[2], c.stderr, err = l.sink(c.req.Stderr)
	}
	return theirs, err
}

// sink opens an output stream. The file is nil if nobody reads it.
func (l *launch) sink(s wire.Sink) (theirs int, file *os.File, err error) {
	if s == wire.SinkNull {
		theirs, err = unix.Open(os.DevNull, unix.O_WRONLY|unix.O_CLOEXEC, 0)
		return theirs, nil, err
	}
	theirs, file, err = l.pipe(0)
	if err == nil && s == wire.SinkClosed {
		file.Close()
		file = nil
	}
	return theirs, file, err
}

// pipe creates a pipe, or a pair of sockets. End number ours (0 reads) is for this process; the other one
// stays blocking, as programs expect of their stdio, and belongs to the command's user.
func (l *launch) pipe(ours int) (theirs int, file *os.File, err error) {
	var fds [2]int
	if l.sockets {
		fds, err = unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	} else {
		err = unix.Pipe2(fds[:], unix.O_CLOEXEC)
	}
	if err != nil {
		return -1, nil, err
	}
	unix.SetNonblock(fds[ours], true)
	l.own(fds[1-ours])
	return fds[1-ours], os.NewFile(uintptr(fds[ours]), "pipe"), nil
}

func (c *Command) closeStdio() {
	for _, f := range [...]*os.File{c.stdin, c.stdout, c.stderr} {
		if f != nil {
			f.Close()
		}
	}
}

// Run copies the command's output until it has ended, and returns how it did.
func (c *Command) Run(stdout, stderr io.Writer) wire.Exit {
	var copies sync.WaitGroup
	var cut atomic.Bool
	if c.stdout != nil {
		copies.Go(func() { c.pump(c.stdout, stdout, &cut) })
	}
	if c.stderr != nil {
		copies.Go(func() { c.pump(c.stderr, stderr, &cut) })
	}
	go func() {
		copies.Wait()
		close(c.drained)
	}()
	if c.req.Timeout > 0 {
		timer := time.AfterFunc(c.req.Timeout, c.timeout)
		defer timer.Stop()
	}

	<-c.child.Done
	if delay := c.req.WaitDelay; delay > 0 {
		timer := time.AfterFunc(delay, c.cut)
		defer timer.Stop()
	}
	<-c.drained
	close(c.ended)
	if c.stdin != nil {
		c.stdin.Close()
	}
	c.reaper.tags.release(c.tag)

	exit := c.Exit()
	exit.WaitDelay = cut.Load()
	return exit
}

// Exited returns a channel that is closed once the command itself has ended.
func (c *Command) Exited() <-chan struct{} { return c.child.Done }

// Exit returns how the command ended, once it has.
func (c *Command) Exit() wire.Exit {
	exit := c.child.Exit()
	exit.OutOfMemory = exit.OutOfMemory && !c.ours.Load()
	if c.timedOut.Load() {
		exit.TimedOut = true
		exit.Signal = int(unix.SIGKILL)
		exit.Code = 128 + exit.Signal
	}
	return exit
}

func (c *Command) timeout() {
	select {
	case <-c.child.Done: // only its output was still open
	default:
		c.timedOut.Store(true)
	}
	c.Kill()
}

// Kill kills the command and its descendants, and soon ends its output.
func (c *Command) Kill() {
	if c.killed.Swap(true) {
		return
	}
	c.noteKill()
	time.AfterFunc(killedDelay, c.cut)
	c.stopGroup()
	Kill(c.processes)
}

// stopGroup stops the command's process group before its processes are looked for, which takes long while they use the CPUs.
func (c *Command) stopGroup() { _ = c.reaper.Signal(c.child, unix.SIGSTOP) } // it may be gone

// noteKill notes that the command is about to be killed by this program.
func (c *Command) noteKill() {
	select {
	case <-c.child.Done: // it has ended by itself
	default:
		c.ours.Store(true)
	}
}

// TidyTime is how long a command that TidiesUp has for it.
const TidyTime = 10 * time.Second

// TidiesUp reports whether the command removes incomplete files when its input breaks off.
func (c *Command) TidiesUp() bool {
	args := c.req.Args
	return c.req.Path == wire.Self && len(args) > 1 && (args[1] == wire.VerbUnpack || args[1] == wire.VerbFiles)
}

// Abandon kills a command whose client is gone, after the time to tidy up if it does.
func (c *Command) Abandon() {
	if c.TidiesUp() {
		select {
		case <-c.ended:
			return
		case <-time.After(TidyTime):
		}
	}
	c.Kill()
}

// cut ends the copying of output that is still open, after what has been written to it.
func (c *Command) cut() {
	for _, f := range [...]*os.File{c.stdout, c.stderr} {
		if f != nil {
			f.SetReadDeadline(time.Unix(1, 0))
		}
	}
}

// CloseOutput closes an output stream that nobody reads any more, for its writers to notice.
func (c *Command) CloseOutput(stream int) bool {
	f := c.stdout
	if stream == wire.StreamStderr {
		f = c.stderr
	}
	return f != nil && f.Close() == nil
}

// processes returns the living processes of the command: its descendants, the members of
// its process group and session, which outlive a parent's death, and orphans with its tag.
func (c *Command) processes() []Process {
	ours := true // the PID, the group and the session of that number
	select {
	case <-c.child.Done:
		ours = false
	default:
	}
	table, err := List()
	if err != nil {
		return nil
	}
	self, pid := os.Getpid(), c.child.PID
	// A number is used again once nobody is left in its group and its session, by a process to begin with.
	ours = ours || !slices.ContainsFunc(table, func(p Process) bool { return p.PID == pid })
	return Tree(table, func(p Process) bool {
		if p.PID == self {
			return false
		}
		// Whose the tag is counts after it was seen: another command may have taken it in between.
		return ours && (p.PID == pid || p.Group == pid || p.Session == pid) ||
			p.Parent == self && p.start >= c.began && c.tag.marks(p.PID) && c.reaper.tags.has(c.tag)
	})
}

// Signal sends n to the command's process group, or to all its processes. It returns false
// when none is left, or n is no signal.
func (c *Command) Signal(n syscall.Signal, tree bool) bool {
	if n < 0 || n > maxSignal {
		return false
	}
	if n == unix.SIGKILL {
		c.noteKill()
	}
	if !tree {
		return c.reaper.Signal(c.child, n) == nil
	}
	if n == unix.SIGKILL {
		c.stopGroup()
		if len(c.processes()) == 0 {
			return false
		}
		Kill(c.processes)
		return true
	}
	all := c.processes()
	for _, p := range all {
		p.Signal(n)
	}
	return len(all) > 0
}

// Resize sets the size of the command's terminal, if it has one.
func (c *Command) Resize(size wire.Size) {
	if !c.req.TTY {
		return
	}
	raw, err := c.stdout.SyscallConn()
	if err != nil {
		return
	}
	raw.Control(func(fd uintptr) { resize(int(fd), size) })
}

// PID returns the process ID of the command itself.
func (c *Command) PID() int { return c.child.PID }

// Done returns a channel that is closed once the command has ended and Run has copied its
// output.
func (c *Command) Done() <-chan struct{} { return c.ended }

// Request returns what the command was started from, without its environment.
func (c *Command) Request() wire.Exec { return c.req }

// CloseInput ends the command's input, in place of Feed. A terminal stays open.
func (c *Command) CloseInput() {
	if c.stdin != nil && !c.req.TTY {
		c.stdin.Close()
	}
}

// Feed copies r to the command's input, until r or the command ends. It reads no faster
// than the command does. It reports whether all of r arrived: the command may read no more.
func (c *Command) Feed(r io.Reader) bool {
	if !c.req.Stdin {
		if c.req.TTY {
			terminalEOF(c.stdin, '\n') // the input is empty
		}
		return false
	}
	buf := buffers.Get().(*[copySize]byte)
	defer buffers.Put(buf)
	var last byte
	for {
		n, err := r.Read(buf[:])
		if n > 0 {
			last = buf[n-1]
			if _, err := c.stdin.Write(buf[:n]); err != nil {
				return false
			}
		}
		if err != nil {
			break
		}
	}
	if c.req.TTY {
		terminalEOF(c.stdin, last)
	} else {
		c.stdin.Close()
	}
	return true
}

const copySize = 64 << 10

var buffers = sync.Pool{New: func() any { return new([copySize]byte) }}

// pump copies f to w until f ends or cut sets its read deadline, and closes it. What is in f at the
// cut is still copied. If f is open then, cut is set, and what comes later is discarded: background
// processes may write on. A terminal is closed, and so is f when w fails: its writers notice. But a
// command that has closed the terminal itself is not yet at its end, and would get a SIGHUP.
func (c *Command) pump(f *os.File, w io.Writer, cut *atomic.Bool) {
	buf := buffers.Get().(*[copySize]byte)
	defer buffers.Put(buf)
	for {
		n, err := f.Read(buf[:wire.PacketData])
		if n > 0 {
			if _, err := w.Write(buf[:n]); err != nil && !c.hungUp.Load() {
				break
			}
		}
		if err == nil {
			continue
		}
		if errors.Is(err, os.ErrDeadlineExceeded) && drain(f, w, buf[:]) {
			cut.Store(true)
			if !c.req.TTY && !c.hungUp.Load() {
				go discard(f)
				return
			}
		}
		if errors.Is(err, unix.EIO) && c.req.TTY { // nobody holds the terminal any more
			<-c.child.Done
		}
		break
	}
	f.Close()
}

// discard reads f until its last writer has closed it.
func discard(f *os.File) {
	defer f.Close()
	f.SetReadDeadline(time.Time{})
	io.Copy(io.Discard, f)
}

// maxDrain is the most that a pipe or terminal can hold.
const maxDrain = 1 << 20

// drain copies what is in f without waiting for more, and reports whether f is still open.
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

// HangUp sends SIGHUP to a command whose client has gone, as sshd does: nohup and daemons
// ignore it.
func (c *Command) HangUp() {
	select {
	case <-c.ended:
		return
	default:
	}
	table, err := List()
	if err != nil {
		_ = c.reaper.Signal(c.child, unix.SIGHUP) // its group, at least
	}
	pid := c.child.PID
	for _, p := range Tree(table, func(p Process) bool { return p.PID == pid || p.Session == pid }) {
		if p.Session == pid {
			p.Signal(unix.SIGHUP)
			p.Signal(unix.SIGCONT)
		}
	}
	// Nobody reads its output any more, and as with sshd a write fails, soon: a shell says which child has got the SIGHUP before it
	// runs its trap.
	c.hungUp.Store(true)
	if c.req.TTY {
		c.cut()
		return
	}
	time.AfterFunc(hangUpDelay, c.cut)
}

// hangUpDelay is how long what a command writes after HangUp is dropped.
const hangUpDelay = 500 * time.Millisecond
