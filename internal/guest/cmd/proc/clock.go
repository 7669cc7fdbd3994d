//go:build linux

package proc

import (
	"time"

	"golang.org/x/sys/unix"
)

// tick is the unit of a process's start time: USER_HZ, on every architecture of ours.
const tick = time.Second / 100

// bootTicks is the time since boot in ticks.
func bootTicks() uint64 { return uint64(BootTime() / tick) }

// AcceptPause waits before another try to accept, after an error that may last: mostly
// that no descriptor is free.
func AcceptPause() { time.Sleep(20 * time.Millisecond) }

// BootTime returns the time since boot. Nobody can set that clock, and it goes on while
// the machine sleeps.
func BootTime() time.Duration {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &now); err != nil {
		unix.ClockGettime(unix.CLOCK_MONOTONIC, &now)
	}
	return time.Duration(now.Nano())
}
