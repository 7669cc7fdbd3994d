//go:build linux

package main

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/seed-1a2d6d8f/sandbox/internal/guest/wire"
)

// boottime is a clock that nobody sets and that goes on while the machine sleeps.
func boottime() time.Duration {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &now); err != nil {
		unix.ClockGettime(unix.CLOCK_MONOTONIC, &now)
	}
	return time.Duration(now.Nano())
}

// deadlines are the times at which the session ends by itself, on boottime's clock;
// 0 is never.
type deadlines struct {
	passed chan int // gets the exit code, once

	fd      int
	mu      sync.Mutex
	lease   time.Duration
	timeout time.Duration
}

func newDeadlines(lease, timeout time.Duration) (*deadlines, error) {
	if lease < 0 || timeout < 0 {
		return nil, errors.New("negative lease or timeout")
	}
	fd, err := unix.TimerfdCreate(unix.CLOCK_BOOTTIME, unix.TFD_CLOEXEC)
	if err != nil {
		fd, err = unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_CLOEXEC)
	}
	if err != nil {
		return nil, fmt.Errorf("timerfd: %w", err)
	}
	d := &deadlines{passed: make(chan int, 1), fd: fd, lease: after(lease), timeout: after(timeout)}
	d.arm()
	go d.watch()
	return d, nil
}

// maxWait keeps sums of times within their type.
const maxWait = 100 * 365 * 24 * time.Hour

// after is the time so long from now, or never.
func after(d time.Duration) time.Duration {
	if d <= 0 {
		return 0
	}
	return boottime() + min(d, maxWait)
}

// arm sets the timer to the earlier deadline. The caller holds mu or is alone.
func (d *deadlines) arm() {
	next := d.lease
	if next == 0 || d.timeout != 0 && d.timeout < next {
		next = d.timeout
	}
	spec := unix.ItimerSpec{Value: unix.NsecToTimespec(int64(next))}
	unix.TimerfdSettime(d.fd, unix.TFD_TIMER_ABSTIME, &spec, nil)
}

// watch waits for the timer. A goroutine in a plain read needs no other descriptor,
// so running out of them changes nothing.
func (d *deadlines) watch() {
	var buf [8]byte
	for {
		if _, err := unix.Read(d.fd, buf[:]); err != nil && err != unix.EINTR {
			time.Sleep(10 * time.Millisecond)
		}
		if code := d.check(); code != 0 {
			d.passed <- code
			return
		}
	}
}

func (d *deadlines) check() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	now := boottime()
	switch {
	case d.timeout != 0 && now >= d.timeout:
		return wire.CodeTimeout
	case d.lease != 0 && now >= d.lease:
		return wire.CodeLease
	}
	d.arm() // renewed since the timer was set
	return 0
}

// renew makes the session live at least lease from now, as far as leases go.
func (d *deadlines) renew(lease time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.lease = max(d.lease, after(lease))
	d.arm()
}

// release takes the lease away.
func (d *deadlines) release() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.lease = 0
	d.arm()
}

// left tells how long the lease and the timeout have to go.
func (d *deadlines) left() (lease, timeout time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	now := boottime()
	if d.lease != 0 {
		lease = max(d.lease-now, 1)
	}
	if d.timeout != 0 {
		timeout = max(d.timeout-now, 1)
	}
	return lease, timeout
}
