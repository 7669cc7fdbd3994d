// Command surface tries calls of the kernel that a sandbox has no use for, and prints a line for each:
// what was tried, a tab, and the error, or "allowed". With an argument it tries nothing: that it runs is
// all there is to see.
package main

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"
)

// families is more than the families of sockets that Linux has: 46 in 2026.
const families = 64

// x32 marks a call of the ABI with 32-bit pointers of x86-64.
const x32 = 0x40000000

func main() {
	if len(os.Args) > 1 {
		return
	}
	for family := range families {
		for kind, name := range kinds {
			fd, err := syscall.Socket(family, kind, 0)
			report(fmt.Sprintf("socket %d %s", family, name), err)
			if err == nil {
				syscall.Close(fd)
			}
			_, _, errno := syscall.RawSyscall(unix.SYS_SOCKET, uintptr(family), uintptr(kind), 0)
			report(fmt.Sprintf("direct socket %d %s", family, name), errno) // syscall.Socket of 32-bit x86 is socketcall
			if runtime.GOARCH == "amd64" {
				_, _, errno = syscall.RawSyscall(unix.SYS_SOCKET|x32, uintptr(family), uintptr(kind), 0)
				report(fmt.Sprintf("x32 socket %d %s", family, name), errno)
				_, _, errno = syscall.RawSyscall(unix.SYS_SOCKET, uintptr(int64(family)|1<<32), uintptr(kind), 0) // whose upper half the kernel ignores
				report(fmt.Sprintf("wide socket %d %s", family, name), errno)
			}
			pair, err := syscall.Socketpair(family, kind, 0)
			report(fmt.Sprintf("socketpair %d %s", family, name), err)
			if err == nil {
				syscall.Close(pair[0])
				syscall.Close(pair[1])
			}
		}
	}
	for name, flag := range namespaces {
		if flag != unix.CLONE_NEWTIME { // of unshare and clone3 only
			report("clone "+name, clone(flag))
		}
		_, _, errno := syscall.RawSyscall(unix.SYS_UNSHARE, flag, 0, 0)
		report("unshare "+name, errno)
	}
	for name, call := range calls {
		_, _, errno := syscall.RawSyscall6(call.number, call.args[0], call.args[1], call.args[2], call.args[3], call.args[4], 0)
		report(name, errno)
	}
	fmt.Println("that is all")
}

func report(what string, err error) {
	var errno syscall.Errno
	if errors.As(err, &errno) && errno != 0 {
		fmt.Printf("%s\t%v\n", what, unix.ErrnoName(errno))
		return
	}
	fmt.Printf("%s\tallowed\n", what)
}

// clone makes a process in a namespace of its own, which ends at once.
func clone(flag uintptr) error {
	pid, _, errno := syscall.RawSyscall6(unix.SYS_CLONE, flag|uintptr(unix.SIGCHLD), 0, 0, 0, 0, 0)
	if errno != 0 {
		return errno
	}
	if pid == 0 {
		for {
			syscall.RawSyscall(unix.SYS_EXIT_GROUP, 0, 0, 0)
		}
	}
	syscall.Wait4(int(pid), nil, 0, nil)
	return nil
}

var kinds = map[int]string{syscall.SOCK_STREAM: "stream", syscall.SOCK_DGRAM: "dgram", syscall.SOCK_RAW: "raw", syscall.SOCK_SEQPACKET: "seqpacket"}

var namespaces = map[string]uintptr{
	"user": unix.CLONE_NEWUSER, "mount": unix.CLONE_NEWNS, "network": unix.CLONE_NEWNET, "pid": unix.CLONE_NEWPID, "ipc": unix.CLONE_NEWIPC,
	"uts": unix.CLONE_NEWUTS, "cgroup": unix.CLONE_NEWCGROUP, "time": unix.CLONE_NEWTIME,
	"user and network": unix.CLONE_NEWUSER | unix.CLONE_NEWNET,
}

// none is an argument that no call takes: allowed, they fail by it.
const none = ^uintptr(0)

var calls = map[string]struct {
	number uintptr
	args   [5]uintptr
}{
	"clone3":            {unix.SYS_CLONE3, [5]uintptr{none, 88}},
	"setns":             {unix.SYS_SETNS, [5]uintptr{none, 0}},
	"io_uring_setup":    {unix.SYS_IO_URING_SETUP, [5]uintptr{1, none}},
	"io_uring_enter":    {unix.SYS_IO_URING_ENTER, [5]uintptr{none}},
	"io_uring_register": {unix.SYS_IO_URING_REGISTER, [5]uintptr{none}},
	"userfaultfd":       {unix.SYS_USERFAULTFD, [5]uintptr{1}}, // UFFD_USER_MODE_ONLY
	"bpf":               {unix.SYS_BPF, [5]uintptr{none}},
	"keyctl":            {unix.SYS_KEYCTL, [5]uintptr{none}},
	"add_key":           {unix.SYS_ADD_KEY, [5]uintptr{none, none}},
	"request_key":       {unix.SYS_REQUEST_KEY, [5]uintptr{none, none}},
	"perf_event_open":   {unix.SYS_PERF_EVENT_OPEN, [5]uintptr{none}},
	"mount":             {unix.SYS_MOUNT, [5]uintptr{none, none, none}},
	"umount2":           {unix.SYS_UMOUNT2, [5]uintptr{none, 0}},
	"pivot_root":        {unix.SYS_PIVOT_ROOT, [5]uintptr{none, none}},
	"fsopen":            {unix.SYS_FSOPEN, [5]uintptr{none}},
	"fsmount":           {unix.SYS_FSMOUNT, [5]uintptr{none}},
	"open_tree":         {unix.SYS_OPEN_TREE, [5]uintptr{none, none, none}},
	"move_mount":        {unix.SYS_MOVE_MOUNT, [5]uintptr{none, none}},
	"mount_setattr":     {unix.SYS_MOUNT_SETATTR, [5]uintptr{none, none}},
	"open_by_handle_at": {unix.SYS_OPEN_BY_HANDLE_AT, [5]uintptr{none, none}},
	"init_module":       {unix.SYS_INIT_MODULE, [5]uintptr{none, none}},
	"finit_module":      {unix.SYS_FINIT_MODULE, [5]uintptr{none}},
	"kexec_load":        {unix.SYS_KEXEC_LOAD, [5]uintptr{0, 1, none}},
	"fanotify_init":     {unix.SYS_FANOTIFY_INIT, [5]uintptr{none}},
	"kcmp":              {unix.SYS_KCMP, [5]uintptr{1, 1, none}},
	"pidfd_getfd":       {unix.SYS_PIDFD_GETFD, [5]uintptr{none}},
	"process_madvise":   {unix.SYS_PROCESS_MADVISE, [5]uintptr{none}},
	"move_pages":        {unix.SYS_MOVE_PAGES, [5]uintptr{0, 1, none}},
	"mbind":             {unix.SYS_MBIND, [5]uintptr{1}},
	"syslog":            {unix.SYS_SYSLOG, [5]uintptr{none}},
	"quotactl":          {unix.SYS_QUOTACTL, [5]uintptr{none}},
	"swapon":            {unix.SYS_SWAPON, [5]uintptr{none}},
	"acct":              {unix.SYS_ACCT, [5]uintptr{none}},
	"settimeofday":      {unix.SYS_SETTIMEOFDAY, [5]uintptr{none}},
	"lookup_dcookie":    {unix.SYS_LOOKUP_DCOOKIE, [5]uintptr{none}},
	"vhangup":           {unix.SYS_VHANGUP, [5]uintptr{}},
	"personality":       {unix.SYS_PERSONALITY, [5]uintptr{0x0040000}}, // ADDR_NO_RANDOMIZE
}
