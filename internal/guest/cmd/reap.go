//go:build linux

package main

import (
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/seed-1a2d6d8f/sandbox/internal/guest/wire"
)

// reaper waits for every child of this process: the ones it started, and orphans of
// theirs that fell to it. One mutex orders reaping and signalling, so that no signal
// ever goes to a PID that has been given to someone else.
type reaper struct {
	mu       sync.Mutex
	known    map[int]*child
	starting int           // starts under way
	early    map[int]ended // children that ended while starts were under way
	badges   badges
}

type ended struct {
	status syscall.WaitStatus
	usage  syscall.Rusage
}

// child is one started process. status and usage are set when done is closed.
type child struct {
	pid  int
	done chan struct{}
	ended
	reaped bool // guarded by reaper.mu
}

func newReaper() *reaper {
	return &reaper{known: make(map[int]*child), early: make(map[int]ended)}
}

// start runs f, which forks, and takes the new child into the table, even when it
// has ended by then.
func (r *reaper) start(f func() (pid int, err error)) (*child, error) {
	r.mu.Lock()
	r.starting++
	r.mu.Unlock()
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
	c := &child{pid: pid, done: make(chan struct{})}
	if e, ok := r.early[pid]; ok {
		delete(r.early, pid)
		c.end(e)
	} else {
		r.known[pid] = c
	}
	return c, nil
}

func (c *child) end(e ended) {
	c.ended = e
	c.reaped = true
	close(c.done)
}

// reap collects all children that have ended. It is called after every SIGCHLD.
func (r *reaper) reap() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for {
		var e ended
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

// signal sends n to the child's process group, as long as the child itself lives.
func (r *reaper) signal(c *child, n syscall.Signal) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if c.reaped {
		return unix.ESRCH
	}
	return syscall.Kill(-c.pid, n)
}

// exit tells how the child ended, which it must have.
func (c *child) exit() wire.Exit {
	exit := wire.Exit{
		Code: c.status.ExitStatus(),
		User: time.Duration(c.usage.Utime.Nano()),
		Sys:  time.Duration(c.usage.Stime.Nano()),
	}
	if c.status.Signaled() {
		exit.Signal = int(c.status.Signal())
		exit.Code = 128 + exit.Signal
	}
	return exit
}
