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
	held       map[proc.ID]held // leases that end soon after these processes
	renewal    time.Duration    // of the last renewal
	lastChance bool             // the lease has expired once, and was extended by a third
	released   []string         // IDs of the latest leases that were released, oldest first
	timeout    time.Duration
	grace      time.Duration // between SIGTERM and SIGKILL when a deadline has passed
	corrected  bool          // setTimeout or restart has been called

	extended   time.Duration // sum of the extensions
	extensions []string      // IDs of the latest ones, oldest first

	idle     wire.Idle
	uses     usage
	idleFrom time.Duration // the time without uses counts from then
	look     time.Duration // when to look for uses again, never without an idle timeout
}

// held is a lease that came through a process.
type held struct {
	until time.Duration
	alone time.Duration // how much longer it lasts, at most, once the process has ended
}

// usage tells of the uses of a session.
type usage interface {
	// latest returns the time of the last use, and whether the session is in use. thorough
	// includes the uses that take longer to find.
	latest(detached, thorough bool) (last time.Duration, now bool)
}

// A session with an idle timeout is looked at that often before its end, but no more often than
// minLook: the time at which PID 1 was frozen or the machine slept is known to be no longer
// than that.
const (
	idleLooks = 8
	minLook   = time.Second
)

const (
	// keptExtensions is how many extensions are recognized when they are repeated. Clients
	// repeat one at once or never.
	keptExtensions = 64
	// keptReleases is how many releases are remembered. A renewal that is later than the release
	// was on its way when that was sent.
	keptReleases = 64
	// maxHeld bounds the processes whose end the session knows of. The lease of one more lasts as long as it says.
	maxHeld = 256
)

func newDeadlines(lease, timeout, grace time.Duration, idle wire.Idle, uses usage) (*deadlines, error) {
	if lease < 0 || timeout < 0 || idle.Timeout < 0 {
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
		lease: after(lease), renewal: lease, grace: grace, uses: uses,
	}
	if timeout > 0 {
		d.timeout = d.began + min(timeout, maxWait)
	}
	d.startIdle(idle)
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

// arm sets the timer to the earliest deadline. The caller holds mu, or nobody else has d.
func (d *deadlines) arm() {
	next := time.Duration(0)
	for _, at := range [...]time.Duration{d.leased(), d.timeout, d.look} {
		if at != 0 && (next == 0 || at < next) {
			next = at
		}
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
	now, lease := proc.BootTime(), d.leased()
	switch {
	case d.timeout != 0 && now >= d.timeout:
		d.over = true
		return wire.CodeTimeout
	case lease != 0 && now >= lease && d.lastChance:
		d.over = true
		return wire.CodeLease
	case lease != 0 && now >= lease:
		// The sandbox may have been paused, and the lease renewal with it.
		d.lastChance = true
		d.lease = after(max(d.renewal/3, 1))
	case d.look != 0 && now >= d.look && d.isIdle(now):
		d.over = true
		return wire.CodeIdle
	}
	d.arm() // renewed since the timer was set
	return 0
}

// isIdle reports whether nobody has used the session for the idle timeout, and plans the next look.
func (d *deadlines) isIdle(now time.Duration) bool {
	d.leaveOutFrozen(now)
	d.noteUses(now, true)
	if now-d.idleFrom >= d.idle.Timeout {
		return true
	}
	d.look = min(d.idleFrom+d.idle.Timeout, now+max(d.idle.Timeout/idleLooks, minLook))
	return false
}

// leaveOutFrozen leaves out of the time without uses that by which a look is late: while PID 1 was
// frozen, or the machine slept, nobody could use the session.
func (d *deadlines) leaveOutFrozen(now time.Duration) {
	if late := now - d.look; late > 0 {
		d.idleFrom += late
		d.look = now
	}
}

// noteUses counts the time without uses from the last one, and reports whether one goes on.
func (d *deadlines) noteUses(now time.Duration, thorough bool) bool {
	last, inUse := d.uses.latest(!d.idle.IgnoreDetached, thorough)
	if inUse {
		last = now
	}
	d.idleFrom = max(d.idleFrom, min(last, now)) // whoever writes it down may lie
	return inUse
}

// startIdle makes the time without uses count from now, with that timeout.
func (d *deadlines) startIdle(idle wire.Idle) {
	idle.Timeout = min(idle.Timeout, maxWait)
	d.idle, d.idleFrom, d.look = idle, proc.BootTime(), 0
	if idle.Timeout > 0 {
		d.look = d.idleFrom + min(idle.Timeout, max(idle.Timeout/idleLooks, minLook))
	}
}

// setIdle replaces the idle timeout by a newer one. It begins anew.
func (d *deadlines) setIdle(idle wire.Idle) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.over {
		return errEnding
	}
	if idle.Version > d.idle.Version {
		d.startIdle(idle)
		d.arm()
	}
	return nil
}

var errEnding = errors.New("the session is ending")

// leased returns when the last of the leases is over, 0 without one. The caller holds mu, or nobody else
// has d.
func (d *deadlines) leased() time.Duration {
	last := d.lease
	for _, h := range d.held {
		last = max(last, h.until)
	}
	return last
}

// renew has the lease that came through a process last for at least that long from now, and no longer than
// alone once that process has ended, unless alone is 0. If that lease was released, its handle has given up
// waiting for this renewal, and it changes nothing. renew reports whether that process had a lease, which nobody
// has released.
func (d *deadlines) renew(lease, alone time.Duration, id string, through proc.ID) (renewed bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if id != "" && slices.Contains(d.released, id) {
		return false
	}
	d.renewal, d.lastChance = lease, false
	h, renewed := d.held[through]
	if alone <= 0 || through == (proc.ID{}) || len(d.held) >= maxHeld && !renewed {
		d.lease = max(d.lease, after(lease))
	} else {
		if d.held == nil {
			d.held = make(map[proc.ID]held)
		}
		d.held[through] = held{max(h.until, after(lease)), alone}
	}
	d.arm()
	return renewed
}

// ended is called when a connection of a process has ended, be it because the process has: of a lease that came
// through it nobody may know any more.
func (d *deadlines) ended(id proc.ID) {
	d.mu.Lock()
	defer d.mu.Unlock()
	h, ok := d.held[id]
	if !ok {
		return
	}
	if p, lives := proc.Find(id.PID); lives && p.ID() == id && !p.Exits() {
		return
	}
	delete(d.held, id)
	if d.lease = max(d.lease, min(h.until, after(h.alone))); d.lease == d.leased() {
		d.renewal = h.alone
	}
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

// restart makes the timeouts count from now, or suspends them until the next call. An extension from
// before does not count any more.
func (d *deadlines) restart(t wire.Timeouts) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.over {
		return errEnding
	}
	d.corrected, d.extended, d.timeout, d.look = true, 0, 0, 0
	if !t.Suspended {
		d.grace = t.Grace
		if t.Timeout > 0 {
			d.timeout = min(after(t.Timeout), d.began+maxWait)
		}
		d.startIdle(d.idle)
	}
	d.arm()
	return nil
}

// extend adds to the timeout, if there is one, unless an extension of that ID did before.
func (d *deadlines) extend(by time.Duration, id string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.over {
		return errEnding
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

// release removes the lease, for good if it has an ID.
func (d *deadlines) release(id string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if id != "" && !slices.Contains(d.released, id) {
		if d.released = append(d.released, id); len(d.released) > keptReleases {
			d.released = slices.Delete(d.released, 0, 1)
		}
	}
	d.lease = 0
	clear(d.held)
	d.arm()
}

// report sets in reply how long the lease and the timeouts have left.
func (d *deadlines) report(reply *wire.Reply) {
	d.mu.Lock()
	defer d.mu.Unlock()
	now := proc.BootTime()
	if lease := d.leased(); lease != 0 {
		reply.LeaseLeft = max(lease-now, 1)
	}
	if d.timeout != 0 {
		reply.TimeLeft = max(d.timeout-now, 1)
		reply.Timeout = d.timeout - d.began
	}
	reply.Idle = &wire.IdleStatus{Version: d.idle.Version}
	if d.look != 0 {
		d.leaveOutFrozen(now)
	}
	if d.look != 0 && !d.noteUses(now, false) {
		reply.Idle.Left = max(d.idleFrom+d.idle.Timeout-now, 1)
	}
}
