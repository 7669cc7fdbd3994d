//go:build linux

package proc

import (
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/seed-1a2d6d8f/sandbox/internal/guest/wire"
)

// Reaper waits for every child of this process: those that it started, and orphans that
// were reparented to it. One mutex orders reaping and signalling, so that no signal goes to
// a PID that has been reused.
type Reaper struct {
	mu       sync.Mutex
	known    map[int]*Child
	starting int                // starts under way
	early    map[int]waitResult // children that ended before their start had returned
	tags     oomTags
}

type waitResult struct {
	status syscall.WaitStatus
	usage  syscall.Rusage
}

// Child is a started process. Its wait result is set when Done is closed.
type Child struct {
	PID  int
	Done chan struct{}
	waitResult
	reaped bool // guarded by reaper.mu

	oomBefore   uint64 // oomKills before the start
	outOfMemory bool   // the kernel has killed a process for memory while this one ran
}

// NewReaper returns a Reaper without children.
func NewReaper() *Reaper {
	return &Reaper{known: make(map[int]*Child), early: make(map[int]waitResult)}
}

// Start runs f, which forks, and registers the new child, even if it has ended by then.
func (r *Reaper) Start(f func() (pid int, err error)) (*Child, error) {
	r.mu.Lock()
	r.starting++
	r.mu.Unlock()
	killed := ownOOMKills().count()
	pid, err := f()

	r.mu.Lock()
	defer r.mu.Unlock()
	defer func() {
		if r.starting--; r.starting == 0 {
			clear(r.early)
		}
	}()
	if err != nil {
		return nil, err
	}
	c := &Child{PID: pid, Done: make(chan struct{}), oomBefore: killed}
	if e, ok := r.early[pid]; ok {
		delete(r.early, pid)
		c.end(e)
	} else {
		r.known[pid] = c
	}
	return c, nil
}

func (c *Child) end(e waitResult) {
	c.waitResult = e
	c.outOfMemory = e.killed() && ownOOMKills().count() > c.oomBefore
	c.reaped = true
	close(c.Done)
}

// killed reports whether SIGKILL ended the process, or it exited as a shell does whose command SIGKILL
// ended.
func (e waitResult) killed() bool {
	return e.status.Signaled() && e.status.Signal() == unix.SIGKILL || e.status.ExitStatus() == 128+int(unix.SIGKILL)
}

// Reap waits for all children that have ended. The caller calls it after every SIGCHLD.
func (r *Reaper) Reap() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for {
		var e waitResult
		pid, err := syscall.Wait4(-1, &e.status, syscall.WNOHANG, &e.usage)
		if err == syscall.EINTR {
			continue
		}
		if err != nil || pid <= 0 {
			return
		}
		if c, ok := r.known[pid]; ok {
			delete(r.known, pid)
			c.end(e)
		} else if r.starting > 0 {
			r.early[pid] = e
		}
	}
}

// Signal sends n to the child's process group. It is ESRCH once the child was reaped.
func (r *Reaper) Signal(c *Child, n syscall.Signal) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if c.reaped {
		return unix.ESRCH
	}
	return syscall.Kill(-c.PID, n)
}

// Exit returns how the child ended. Done must be closed.
func (c *Child) Exit() wire.Exit {
	exit := wire.Exit{
		Code:        c.status.ExitStatus(),
		OutOfMemory: c.outOfMemory,
		User:        time.Duration(c.usage.Utime.Nano()),
		Sys:         time.Duration(c.usage.Stime.Nano()),
	}
	if c.status.Signaled() {
		exit.Signal = int(c.status.Signal())
		exit.Code = 128 + exit.Signal
	}
	return exit
}
