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

// Dispositions of a signal without a handler.
const (
	byDefault = 0 // SIG_DFL
	ignored   = 1 // SIG_IGN
)

// dispose sets the disposition of signal n. The kernel keeps those of SIGKILL and SIGSTOP.
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

// IgnoreSignals sets all signals to be ignored, except those given and the one that Go's
// runtime reaches its threads by.
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

// HandleSignal installs a handler for signal n, which is no Go function and runs with all
// signals blocked. It returns to restorer.
func HandleSignal(n syscall.Signal, handler, restorer uintptr, flags uint64) error {
	act := kernelSigaction{handler: handler, restorer: restorer, mask: ^uint64(0), flags: flags}
	if _, _, errno := unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(n), uintptr(unsafe.Pointer(&act)), 0, 8, 0, 0); errno != 0 {
		return errno
	}
	return nil
}

// DefaultSignals makes sure that this process started with no signal ignored or blocked,
// for its children, which inherit both: they survive execve, and Go's runtime keeps them.
// If one was, it executes this program again. The caller has locked its thread.
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

// reexec executes this program again. The caller's thread must be locked: the program
// starts with its signal mask.
func reexec(env []string) error {
	self, err := os.Executable()
	if err != nil {
		self = "/proc/self/exe"
	}
	return syscall.Exec(self, os.Args, env)
}
