//go:build linux

package proc

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"sync"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/seed-1a2d6d8f/sandbox/internal/guest/accounts"

	"github.com/seed-1a2d6d8f/sandbox/internal/guest/wire"
)

// forbidden are the capabilities that no process in a sandbox may have but PID 1:
// NET_ADMIN changes the network policy, NET_RAW forges what passes it, MKNOD creates
// devices.
var forbidden = []uintptr{unix.CAP_NET_ADMIN, unix.CAP_NET_RAW, unix.CAP_MKNOD}

// childOOMScore has the kernel kill commands before PID 1 when memory is short.
const childOOMScore = 500

// DropPrivileges takes from this process, and from all it will start, what only PID 1 may
// have. It comes first in every verb of the program that runs in the sandbox, but init.
//
// Becoming non-dumpable comes before the rest: it keeps processes without CAP_SYS_PTRACE
// from inspecting this one. Until then NET_ADMIN does, which they lack.
func DropPrivileges() error {
	if err := SetUndumpable(); err != nil {
		return err
	}
	if err := dropBounding(forbidden...); err != nil {
		return err
	}
	if err := LimitCaps(func(set uint64) uint64 {
		for _, c := range forbidden {
			set &^= 1 << c
		}
		return set
	}); err != nil {
		return err
	}
	return setOOMScore(childOOMScore)
}

// SetUndumpable keeps processes without CAP_SYS_PTRACE from inspecting this one.
func SetUndumpable() error {
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return fmt.Errorf("become non-dumpable: %w", err)
	}
	return nil
}

// dropBounding takes capabilities out of the bounding set of every thread.
func dropBounding(caps ...uintptr) error {
	for _, c := range caps {
		in, err := unix.PrctlRetInt(unix.PR_CAPBSET_READ, c, 0, 0, 0)
		if err != nil || in == 0 {
			continue // unknown to this kernel, or never ours
		}
		if _, _, errno := syscall.AllThreadsSyscall(unix.SYS_PRCTL, unix.PR_CAPBSET_DROP, c, 0); errno != 0 {
			return fmt.Errorf("drop capability %d: %w", c, errno)
		}
	}
	return nil
}

// LimitCaps replaces the permitted set of every thread by keep(permitted), makes the
// effective set the same, and empties the inheritable and ambient sets.
func LimitCaps(keep func(permitted uint64) uint64) error {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&header, &data[0]); err != nil {
		return fmt.Errorf("read capabilities: %w", err)
	}
	permitted := uint64(data[0].Permitted) | uint64(data[1].Permitted)<<32
	permitted &= keep(permitted)
	low, high := uint32(permitted), uint32(permitted>>32)
	data = [2]unix.CapUserData{{Effective: low, Permitted: low}, {Effective: high, Permitted: high}}
	// Old kernels have no ambient set; then there is nothing to clear.
	syscall.AllThreadsSyscall6(unix.SYS_PRCTL, unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0, 0)
	header = unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	if _, _, errno := syscall.AllThreadsSyscall(unix.SYS_CAPSET,
		uintptr(unsafe.Pointer(&header)), uintptr(unsafe.Pointer(&data[0])), 0); errno != 0 {
		return fmt.Errorf("limit capabilities: %w", errno)
	}
	return nil
}

// confined reports whether a command may gain no privileges by execve: root has them all.
func confined(user accounts.User, req *wire.Exec) bool { return user.UID != 0 && !req.NewPrivileges }

// confineThread keeps this thread, and all that it will start, from gaining privileges by
// setuid programs and file capabilities. The caller has locked its goroutine to the thread.
func confineThread() error {
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("give up new privileges: %w", err)
	}
	return nil
}

// onConfinedThread calls fn on a confined thread. There is one for the whole process, which
// never ends, because commands die with the thread that started them.
func onConfinedThread(fn func() (int, error)) (n int, err error) {
	done := make(chan struct{})
	confinedThread() <- func(failure error) {
		defer close(done)
		if err = failure; err == nil {
			n, err = fn()
		}
	}
	<-done
	return n, err
}

var confinedThread = sync.OnceValue(func() chan<- func(error) {
	calls := make(chan func(error))
	go func() {
		runtime.LockOSThread()
		err := confineThread()
		for call := range calls {
			call(err)
		}
	}()
	return calls
})

func setOOMScore(score int) error {
	f, err := os.OpenFile("/proc/self/oom_score_adj", os.O_WRONLY, 0)
	if err != nil {
		return fmt.Errorf("raise the OOM score: %w", err)
	}
	defer f.Close()
	if _, err := f.WriteString(strconv.Itoa(score)); err != nil {
		return fmt.Errorf("raise the OOM score: %w", err)
	}
	return nil
}
