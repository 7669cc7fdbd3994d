//go:build linux

package pid1

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/seed-1a2d6d8f/sandbox/internal/guest/cmd/proc"
	"github.com/seed-1a2d6d8f/sandbox/internal/guest/wire"
)

// deadlines are the times at which the session ends by itself, since boot; 0 is never.
type deadlines struct {
	passed chan int // receives the exit code, once

	fd         int
	mu         sync.Mutex
	began      time.Duration
	over       bool
	lease      time.Duration
	renewal    time.Duration // of the last renewal
	lastChance bool          // the lease has expired once, and was extended by a third
	timeout    time.Duration
	grace      time.Duration // between SIGTERM and SIGKILL when a deadline has passed
	corrected  bool          // setTimeout has been called

	extended   time.Duration // sum of the extensions
	extensions []string      // IDs of the latest ones, oldest first
}

// keptExtensions is how many extensions are recognized when they are repeated. Clients
// repeat one at once or never.
const keptExtensions = 64

func newDeadlines(lease, timeout, grace time.Duration) (*deadlines, error) {
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
	d := &deadlines{
		passed: make(chan int, 1), fd: fd, began: proc.BootTime(),
		lease: after(lease), renewal: lease, grace: grace,
	}
	if timeout > 0 {
		d.timeout = d.began + min(timeout, maxWait)
	}
	d.arm()
	go d.watch()
	return d, nil
}

// maxWait keeps sums of times from overflowing.
const maxWait = 100 * 365 * 24 * time.Hour

// after returns the time d from now, or never.
func after(d time.Duration) time.Duration {
	if d <= 0 {
		return 0
	}
	return proc.BootTime() + min(d, maxWait)
}

// arm sets the timer to the earlier deadline. The caller holds mu, or nobody else has d.
func (d *deadlines) arm() {
	next := d.lease
	if next == 0 || d.timeout != 0 && d.timeout < next {
		next = d.timeout
	}
	spec := unix.ItimerSpec{Value: unix.NsecToTimespec(int64(next))}
	unix.TimerfdSettime(d.fd, unix.TFD_TIMER_ABSTIME, &spec, nil)
}

// watch waits for the timer by a plain read, which needs no other descriptor: it works
// when none is free.
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
	now := proc.BootTime()
	switch {
	case d.timeout != 0 && now >= d.timeout:
		d.over = true
		return wire.CodeTimeout
	case d.lease != 0 && now >= d.lease && d.lastChance:
		d.over = true
		return wire.CodeLease
	case d.lease != 0 && now >= d.lease:
		// The sandbox may have been paused, and the lease renewal with it.
		d.lastChance = true
		d.lease = after(max(d.renewal/3, 1))
	}
	d.arm() // renewed since the timer was set
	return 0
}

// renew has the lease last for at least that long from now.
func (d *deadlines) renew(lease time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.lease, d.renewal, d.lastChance = max(d.lease, after(lease)), lease, false
	d.arm()
}

// setTimeout replaces the timeout that the session was started with, at the first call
// only. Extensions stay added.
func (d *deadlines) setTimeout(timeout, grace time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.corrected {
		return
	}
	d.corrected = true
	d.grace = grace
	d.timeout = 0
	if timeout > 0 {
		d.timeout = d.began + min(min(timeout, maxWait)+d.extended, maxWait)
	}
	d.arm()
}

// extend adds to the timeout, if there is one, unless an extension of that ID did before.
func (d *deadlines) extend(by time.Duration, id string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.over {
		return errors.New("the session is ending")
	}
	if d.timeout == 0 || slices.Contains(d.extensions, id) {
		return nil
	}
	if d.extensions = append(d.extensions, id); len(d.extensions) > keptExtensions {
		d.extensions = slices.Delete(d.extensions, 0, 1)
	}
	by = min(by, maxWait-(d.timeout-d.began))
	d.timeout += by
	d.extended += by
	d.arm()
	return nil
}

// gracePeriod is the time between SIGTERM and SIGKILL once a deadline has passed.
func (d *deadlines) gracePeriod() time.Duration {
	d.mu.Lock()
	defer d.mu.Unlock()
	return max(d.grace, time.Millisecond)
}

// release removes the lease.
func (d *deadlines) release() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.lease = 0
	d.arm()
}

// report sets in reply how long the lease and the timeout have left.
func (d *deadlines) report(reply *wire.Reply) {
	d.mu.Lock()
	defer d.mu.Unlock()
	now := proc.BootTime()
	if d.lease != 0 {
		reply.LeaseLeft = max(d.lease-now, 1)
	}
	if d.timeout != 0 {
		reply.TimeLeft = max(d.timeout-now, 1)
		reply.Timeout = d.timeout - d.began
	}
}
