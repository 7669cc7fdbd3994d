//go:build linux

package proc

import (
	"fmt"
	"os"
	"strconv"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// forbidden is what no process in a sandbox may ever have, but for PID 1 itself:
// NET_ADMIN changes the network policy, NET_RAW forges what passes it, MKNOD makes
// devices.
var forbidden = []uintptr{unix.CAP_NET_ADMIN, unix.CAP_NET_RAW, unix.CAP_MKNOD}

// childOOMScore makes memory pressure take commands before PID 1.
const childOOMScore = 500

// DropPrivileges gives up, for this process and all it will ever start, what a child of the
// sandbox must not have. It comes before anything else in every verb but init.
//
// Non-dumpable comes first: from then on only CAP_SYS_PTRACE could look inside or
// take over this process, and until then it has NET_ADMIN, which its peers lack, and
// the kernel refuses them for that.
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
