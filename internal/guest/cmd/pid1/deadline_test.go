//go:build linux

package pid1

import (
	"testing"
	"time"

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
	d.renew(time.Minute) // never shortens
	if lease, _ := left(); lease < 59*time.Minute {
		t.Errorf("a renewal shortened the lease to %v", lease)
	}
	d.renew(1<<63 - 1)
	if lease, timeout := left(); lease < maxWait-time.Hour || timeout < time.Hour {
		t.Errorf("left %v and %v", lease, timeout)
	}
	d.release()
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
