//go:build linux

package pid1

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/seed-1a2d6d8f/sandbox/internal/guest/cmd/proc"
	"github.com/seed-1a2d6d8f/sandbox/internal/guest/wire"
)

func TestDeadlinesComeFromTheEarlier(t *testing.T) {
	t.Parallel()
	d := &deadlines{fd: -1, lease: after(time.Hour), timeout: after(2 * time.Hour)}
	left := func() (lease, timeout time.Duration) {
		var reply wire.Reply
		d.report(&reply)
		return reply.LeaseLeft, reply.TimeLeft
	}
	d.renew(time.Minute, 0, "", proc.ID{}) // never shortens
	if lease, _ := left(); lease < 59*time.Minute {
		t.Errorf("a renewal shortened the lease to %v", lease)
	}
	d.renew(1<<63-1, 0, "a", proc.ID{})
	if lease, timeout := left(); lease < maxWait-time.Hour || timeout < time.Hour {
		t.Errorf("left %v and %v", lease, timeout)
	}
	d.release("a")
	d.renew(time.Minute, 0, "a", proc.ID{}) // which was on its way
	if lease, timeout := left(); lease != 0 || timeout == 0 || d.check() != 0 {
		t.Errorf("left %v and %v, check %d", lease, timeout, d.check())
	}
	d.timeout = 1
	if code := d.check(); code != wire.CodeTimeout {
		t.Errorf("check: %d", code)
	}
	d.timeout, d.lease = 0, 1
	if code := d.check(); code != 0 {
		t.Errorf("check: %d, without a last chance", code)
	}
	d.lease = 1
	if code := d.check(); code != wire.CodeLease {
		t.Errorf("check: %d", code)
	}
}

// A lease that came through a process ends soon after it, whatever other connections of it end before, and others
// last on.
func TestLeasesEndSoonAfterTheirProcesses(t *testing.T) {
	t.Parallel()
	start := func() (*exec.Cmd, proc.ID) {
		cmd := exec.Command("sleep", "1000")
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		p, ok := proc.Find(cmd.Process.Pid)
		if !ok {
			t.Fatal("the process is not found")
		}
		return cmd, p.ID()
	}
	first, one := start()
	second, other := start()
	defer second.Wait()
	defer second.Process.Kill()
	d := &deadlines{fd: -1, lease: after(time.Second)}
	left := func() time.Duration {
		var reply wire.Reply
		d.report(&reply)
		return reply.LeaseLeft
	}
	between := func(when string, low, high time.Duration) {
		t.Helper()
		if got := left(); got <= low || got > high {
			t.Errorf("%s: %v left, want more than %v and at most %v", when, got, low, high)
		}
	}
	for _, known := range []bool{false, true} {
		if d.renew(time.Hour, time.Minute, "a", one) != known {
			t.Errorf("a renewal says that there was a lease of its process: %t, want %t", !known, known)
		}
	}
	d.ended(one)
	d.ended(other) // which holds none
	between("while its process lives", 59*time.Minute, time.Hour)
	d.renew(10*time.Minute, 2*time.Minute, "b", other)
	first.Process.Kill()
	first.Wait()
	d.ended(one)
	between("after the first process", 9*time.Minute, 10*time.Minute)
	second.Process.Kill()
	for p, _ := proc.Find(other.PID); !p.Exits(); p, _ = proc.Find(other.PID) {
		time.Sleep(time.Millisecond)
	}
	d.ended(other) // whose parent has not waited for it
	between("after both processes", time.Minute, 2*time.Minute)
	if d.renewal != 2*time.Minute {
		t.Errorf("the last chance is a third of %v, want of 2 min", d.renewal)
	}
	d.release("b")
	if d.renew(time.Hour, time.Minute, "b", other) || d.renew(time.Hour, time.Minute, "c", one) {
		t.Error("a lease was renewed that had been released, or whose process had ended")
	}
	d.ended(one)
	between("of a process that had ended", 0, time.Minute)
	d.renew(time.Hour, time.Minute, "d", proc.ID{}) // of a process that is not known
	between("of an unknown process", 59*time.Minute, time.Hour)
}

func TestOnlyTheFirstTimeoutOfASessionCounts(t *testing.T) {
	t.Parallel()
	d := &deadlines{fd: -1, timeout: after(3 * time.Hour)}
	d.setTimeout(0, time.Second)
	d.setTimeout(9*time.Hour, time.Minute)
	if d.timeout != 0 || d.grace != time.Second {
		t.Errorf("after a timeout of 0 and one of 9 hours: timeout %v, grace %v, want none and 1s", d.timeout, d.grace)
	}
}

func TestRestartedTimeoutsCountFromNow(t *testing.T) {
	t.Parallel()
	now := proc.BootTime()
	d := &deadlines{fd: -1, began: now - time.Hour, timeout: 1, idle: wire.Idle{Timeout: time.Minute}, look: 1, uses: used{}}
	if err := d.restart(wire.Timeouts{Suspended: true}); err != nil || d.check() != 0 {
		t.Errorf("suspended: %v; check: %d, want 0", err, d.check())
	}
	if err := d.restart(wire.Timeouts{Timeout: time.Hour, Grace: time.Second}); err != nil {
		t.Fatal(err)
	}
	d.setTimeout(time.Second, time.Minute) // of a client that begins the session once more
	var reply wire.Reply
	d.report(&reply)
	if reply.TimeLeft < 59*time.Minute || reply.TimeLeft > time.Hour || reply.Timeout < 119*time.Minute || d.grace != time.Second {
		t.Errorf("an hour after the start, with a timeout of an hour: left %v, %v after the start, grace %v", reply.TimeLeft, reply.Timeout, d.grace)
	}
	if reply.Idle.Left < 59*time.Second || d.check() != 0 {
		t.Errorf("the idle timeout of a minute has %v left; check: %d", reply.Idle.Left, d.check())
	}
	d.over = true
	if err := d.restart(wire.Timeouts{}); err == nil {
		t.Error("a session that is ending got timeouts")
	}
}

// used are the uses of a session that nobody has used.
type used struct{}

func (used) latest(bool, bool) (time.Duration, bool) { return 0, false }

// The timer counts by a clock that nobody can set, and that goes on while the machine sleeps.
func TestDeadlinesFollowNoClockThatIsSet(t *testing.T) {
	t.Parallel()
	d, err := newDeadlines(0, time.Hour, time.Second, wire.Idle{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	info, err := os.ReadFile(fmt.Sprintf("/proc/self/fdinfo/%d", d.fd))
	if err != nil {
		t.Fatal(err)
	}
	if want := fmt.Sprintf("clockid: %d\n", unix.CLOCK_BOOTTIME); !strings.Contains(string(info), want) {
		t.Errorf("the timer is\n%swant %s", info, want)
	}
	// What is left is judged by the same clock as the timer: it was set to an absolute time of it.
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &now); err != nil {
		t.Fatal(err)
	}
	var left unix.ItimerSpec
	if _, _, errno := unix.Syscall(unix.SYS_TIMERFD_GETTIME, uintptr(d.fd), uintptr(unsafe.Pointer(&left)), 0); errno != 0 {
		t.Fatal(errno)
	}
	if got := time.Duration(left.Value.Nano()); got < 59*time.Minute || got > time.Hour {
		t.Errorf("the timer expires in %v, want an hour", got)
	}
	if got := d.timeout - time.Duration(now.Nano()); got < 59*time.Minute || got > time.Hour {
		t.Errorf("the timeout is %v from now, want an hour", got)
	}
	d.setTimeout(time.Nanosecond, time.Second) // ends its goroutine
	if code := <-d.passed; code != wire.CodeTimeout {
		t.Errorf("it ended with %d", code)
	}
}
