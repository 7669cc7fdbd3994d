//go:build linux

package main

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

const signalInfoSize = int(unsafe.Sizeof(unix.SignalfdSiginfo{}))

// fromOutside says whether a signal is a SIGTERM that came from outside this PID
// namespace. The kernel gives its sender the PID 0 then. A process inside can write
// that too (rt_sigqueueinfo), but not together with the code of a plain kill.
//
// One way stays open: a queued signal whose details no longer fit RLIMIT_SIGPENDING
// arrives without them and looks the same. Then the session stops, gracefully, as
// when its processes kill each other: nothing is gained by it.
func fromOutside(raw *[signalInfoSize]byte) bool {
	info := (*unix.SignalfdSiginfo)(unsafe.Pointer(raw))
	const siUser = 0
	return info.Signo == uint32(unix.SIGTERM) && info.Code == siUser && info.Pid == 0
}
