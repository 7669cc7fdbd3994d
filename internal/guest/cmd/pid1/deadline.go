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

// deadlines are the times at which the session ends by itself, on boottime's clock;
// 0 is never.
type deadlines struct {
	passed chan int // gets the exit code, once

	fd         int
	mu         sync.Mutex
	began      time.Duration
	over       bool
	lease      time.Duration
	renewal    time.Duration // what the lease was last renewed by
	lastChance bool          // the lease is over and its last chance runs
	timeout    time.Duration
	grace      time.Duration // between SIGTERM and SIGKILL when a deadline has passed
	corrected  bool          // setTimeout has been called

	extended   time.Duration // all that was added to the timeout
	extensions []string      // the latest of who added, oldest first
}

// keptExtensions is how many extensions are known again when they are repeated, which
// they are at once or never.
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

// maxWait keeps sums of times within their type.
const maxWait = 100 * 365 * 24 * time.Hour

// after is the time so long from now, or never.
func after(d time.Duration) time.Duration {
	if d <= 0 {
		return 0
	}
	return proc.BootTime() + min(d, maxWait)
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
	now := proc.BootTime()
	switch {
	case d.timeout != 0 && now >= d.timeout:
		d.over = true
		return wire.CodeTimeout
	case d.lease != 0 && now >= d.lease && d.lastChance:
		d.over = true
		return wire.CodeLease
	case d.lease != 0 && now >= d.lease:
		// All of us may have been frozen, and the owner unable to renew.
		d.lastChance = true
		d.lease = after(max(d.renewal/3, 1))
	}
	d.arm() // renewed since the timer was set
	return 0
}

// renew makes the session live at least lease from now, as far as leases go.
func (d *deadlines) renew(lease time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.lease, d.renewal, d.lastChance = max(d.lease, after(lease)), lease, false
	d.arm()
}

// setTimeout corrects what the session was started with, once. What was added to it
// stays added.
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

// extend adds to the timeout, if there is one, unless who did so before.
func (d *deadlines) extend(by time.Duration, who string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.over {
		return errors.New("the session is ending")
	}
	if d.timeout == 0 || slices.Contains(d.extensions, who) {
		return nil
	}
	if d.extensions = append(d.extensions, who); len(d.extensions) > keptExtensions {
		d.extensions = slices.Delete(d.extensions, 0, 1)
	}
	by = min(by, maxWait-(d.timeout-d.began))
	d.timeout += by
	d.extended += by
	d.arm()
	return nil
}

// gracePeriod is what processes get once a deadline has passed.
func (d *deadlines) gracePeriod() time.Duration {
	d.mu.Lock()
	defer d.mu.Unlock()
	return max(d.grace, time.Millisecond)
}

// release takes the lease away.
func (d *deadlines) release() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.lease = 0
	d.arm()
}

// report says in reply how long the lease and the timeout have to go.
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
