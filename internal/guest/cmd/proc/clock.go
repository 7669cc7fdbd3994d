//go:build linux

package proc

import (
	"time"

	"golang.org/x/sys/unix"
)

// bootTicks is now, as the start times of processes are counted.
func bootTicks() uint64 {
	const perSecond = 100 // USER_HZ, on every architecture of ours
	return uint64(BootTime() / (time.Second / perSecond))
}

// AcceptPause is for a listener that can't accept: no descriptor is free, mostly.
func AcceptPause() { time.Sleep(20 * time.Millisecond) }

// BootTime is a clock that nobody sets and that goes on while the machine sleeps.
func BootTime() time.Duration {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &now); err != nil {
		unix.ClockGettime(unix.CLOCK_MONOTONIC, &now)
	}
	return time.Duration(now.Nano())
}
