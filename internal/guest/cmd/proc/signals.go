//go:build linux

package proc

import (
	"os"
	"slices"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

const maxSignal = 64

// perThread is the signal with which Go's runtime makes a system call on every
// thread (syscall.AllThreadsSyscall).
const perThread = 33

// kernelSigaction is struct sigaction as the system call takes it.
type kernelSigaction struct {
	handler  uintptr
	flags    uint64
	restorer uintptr
	mask     uint64
}

// What becomes of a signal without a handler, as the kernel numbers it.
const (
	byDefault = 0 // SIG_DFL
	ignored   = 1 // SIG_IGN
)

// dispose sets what becomes of signal n. SIGKILL and SIGSTOP stay as they are.
func dispose(n int, handler uintptr) {
	act := kernelSigaction{handler: handler}
	unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(n), uintptr(unsafe.Pointer(&act)), 0, 8, 0, 0)
}

// setMask replaces the signal mask of this thread and returns the old one.
func setMask(mask uint64) (old uint64) {
	unix.RawSyscall6(unix.SYS_RT_SIGPROCMASK, unix.SIG_SETMASK,
		uintptr(unsafe.Pointer(&mask)), uintptr(unsafe.Pointer(&old)), 8, 0, 0)
	return old
}

func mask() (now uint64) {
	unix.RawSyscall6(unix.SYS_RT_SIGPROCMASK, unix.SIG_BLOCK, 0, uintptr(unsafe.Pointer(&now)), 8, 0, 0)
	return now
}

// IgnoreSignals has this process ignore all signals but those given, and but the one
// with which Go's runtime reaches its threads.
func IgnoreSignals(but ...syscall.Signal) {
	for n := 1; n <= maxSignal; n++ {
		if n != perThread && !slices.Contains(but, syscall.Signal(n)) {
			dispose(n, ignored)
		}
	}
}

// resetSignals gives every signal its default action and unblocks all of them for this
// thread, whose program is about to be replaced.
func resetSignals() {
	for n := 1; n <= maxSignal; n++ {
		if n != perThread {
			dispose(n, byDefault)
		}
	}
	setMask(0)
}

// HandleSignal has the kernel call handler, which is no Go function, for signal n with all
// signals blocked. The handler returns to restorer.
func HandleSignal(n syscall.Signal, handler, restorer uintptr, flags uint64) error {
	act := kernelSigaction{handler: handler, restorer: restorer, mask: ^uint64(0), flags: flags}
	if _, _, errno := unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(n), uintptr(unsafe.Pointer(&act)), 0, 8, 0, 0); errno != 0 {
		return errno
	}
	return nil
}

// DefaultSignals undoes what whoever started this process did to its signals, so
// that nothing of it reaches our own children: no signal ignored, none blocked. Both
// survive execve, and Go's runtime keeps them for children too. When there is
// something to undo, this process starts itself anew.
func DefaultSignals() error {
	undone := false
	for n := 1; n <= maxSignal; n++ {
		var act kernelSigaction
		unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(n), 0, uintptr(unsafe.Pointer(&act)), 8, 0, 0)
		if act.handler == ignored {
			undone = true
			dispose(n, byDefault)
		}
	}
	if !undone && mask() == 0 {
		return nil
	}
	setMask(0)
	return reexec(os.Environ())
}

// reexec replaces this process by a fresh start of the same program. The caller's
// thread must be locked: its signal mask is what the new one starts with.
func reexec(env []string) error {
	self, err := os.Executable()
	if err != nil {
		self = "/proc/self/exe"
	}
	return syscall.Exec(self, os.Args, env)
}
