//go:build linux

package proc

import (
	"bytes"
	"os"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Process is an entry of the process table.
type Process struct {
	PID, Parent, Group, Session int
	state                       byte
	flags                       uint64 // PF_… of the kernel
	blocked                     uint64 // signals, by its first thread
	start                       uint64 // clock ticks since boot
}

// ID tells a process from others that get its PID later.
type ID struct {
	PID   int
	start uint64
}

// ID returns the identity of p.
func (p Process) ID() ID { return ID{p.PID, p.start} }

// Find returns the process with that PID, if there is one.
func Find(pid int) (Process, bool) { return lookup(pid) }

// Foreign reports whether the process comes from outside of this PID namespace, as what the
// engine executes does.
func (p Process) Foreign() bool { return p.Parent == 0 && p.PID != 1 }

// Nascent reports whether the process has executed no program since its fork: a foreign one is
// the OCI runtime's until then.
func (p Process) Nascent() bool {
	const forkNoExec = 0x40 // PF_FORKNOEXEC
	return p.flags&forkNoExec != 0
}

// Age returns the time since the start of p.
func (p Process) Age() time.Duration {
	return time.Duration(bootTicks()-min(p.start, bootTicks())) * tick
}

// Dead reports whether the process has ended, and at most its parent has not waited for it.
func (p Process) Dead() bool { return p.state == 'Z' || p.state == 'X' }

// Exits reports whether the process has begun to exit, or has ended.
func (p Process) Exits() bool {
	const exiting = 0x4 // PF_EXITING
	return p.flags&exiting != 0 || p.Dead()
}

// Blocks reports whether the process blocks the signal, as those do that read it with signalfd or
// sigwaitinfo.
func (p Process) Blocks(n syscall.Signal) bool { return p.blocked&(1<<(n-1)) != 0 }

// List returns the process table of this PID namespace.
func List() ([]Process, error) {
	dir, err := os.Open("/proc")
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return nil, err
	}
	table := make([]Process, 0, len(names))
	for _, name := range names {
		if name[0] < '1' || name[0] > '9' {
			continue
		}
		if pid, err := strconv.Atoi(name); err == nil {
			if p, ok := lookup(pid); ok {
				table = append(table, p)
			}
		}
	}
	return table, nil
}

func lookup(pid int) (Process, bool) {
	fd, err := unix.Open("/proc/"+strconv.Itoa(pid)+"/stat", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return Process{}, false
	}
	defer unix.Close(fd)
	var buf [1024]byte
	n, err := unix.Read(fd, buf[:])
	if err != nil || n <= 0 {
		return Process{}, false
	}
	return parseStat(pid, buf[:n])
}

// parseStat reads /proc/PID/stat. The name in it, which a process can choose, may hold
// spaces and parentheses: the fields start after the last one.
func parseStat(pid int, line []byte) (Process, bool) {
	end := bytes.LastIndexByte(line, ')')
	if end < 0 {
		return Process{}, false
	}
	f := bytes.Fields(line[end+1:])
	if len(f) < 20 || len(f[0]) != 1 {
		return Process{}, false
	}
	p := Process{PID: pid, state: f[0][0]}
	p.Parent, _ = strconv.Atoi(string(f[1]))
	p.Group, _ = strconv.Atoi(string(f[2]))
	p.Session, _ = strconv.Atoi(string(f[3]))
	p.flags, _ = strconv.ParseUint(string(f[6]), 10, 64)
	p.start, _ = strconv.ParseUint(string(f[19]), 10, 64)
	if len(f) > 29 {
		p.blocked, _ = strconv.ParseUint(string(f[29]), 10, 64)
	}
	return p, true
}

// Tree returns the processes of the table that are roots or descend from one. A dead one
// is not returned, but its children are.
func Tree(table []Process, root func(Process) bool) []Process {
	in := make(map[int]bool)
	for _, p := range table {
		if root(p) {
			in[p.PID] = true
		}
	}
	for grew := true; grew; {
		grew = false
		for _, p := range table {
			if !in[p.PID] && in[p.Parent] {
				in[p.PID] = true
				grew = true
			}
		}
	}
	var out []Process
	for _, p := range table {
		if in[p.PID] && !p.Dead() {
			out = append(out, p)
		}
	}
	return out
}

// killDeadline bounds Kill for a tree that keeps growing.
const killDeadline = 5 * time.Second

// Kill kills every process that find returns, until it returns none. They are stopped
// first, until none is new, so that none can fork while others die. A process group is stopped at
// once: what forks in it leaves too little of the CPUs to look at one process after the other.
func Kill(find func() []Process) {
	deadline := time.Now().Add(killDeadline)
	own, _ := unix.Getsid(0) // can't fail
	for wait := 200 * time.Microsecond; ; wait = min(2*wait, 20*time.Millisecond) {
		stopped, groups := make(map[ID]bool), make(map[int]bool)
		var tree []Process
		for pass := 1; ; pass++ {
			tree = find()
			fresh := false
			for _, p := range tree {
				if stopped[p.ID()] {
					continue
				}
				stopped[p.ID()] = true
				fresh = true
				p.Signal(unix.SIGSTOP)
				// All of its session descend from what this program started, unless it is our own.
				if p.Session > 0 && p.Session != own && !groups[p.Group] {
					groups[p.Group] = p.stopGroup()
				}
			}
			// The first pass may take longer than the deadline, since all that it finds runs.
			if !fresh || pass > 2 && time.Now().After(deadline) {
				break
			}
		}
		for _, p := range tree {
			p.Signal(unix.SIGKILL)
		}
		if len(tree) == 0 || time.Now().After(deadline) {
			return
		}
		time.Sleep(wait)
	}
}

// stopGroup stops the process group of p, which is stopped itself, and so keeps its group. It returns false if p is gone.
func (p Process) stopGroup() bool {
	now, ok := lookup(p.PID)
	if !ok || now.ID() != p.ID() || now.Group != p.Group || p.Group <= 1 {
		return false
	}
	return unix.Kill(-p.Group, unix.SIGSTOP) == nil
}

// Signal signals p, not another process that reuses its PID.
func (p Process) Signal(n syscall.Signal) {
	fd, err := unix.PidfdOpen(p.PID, 0)
	if err == nil {
		defer unix.Close(fd)
	} else if err == unix.ESRCH {
		return
	}
	if now, ok := lookup(p.PID); !ok || now.start != p.start {
		return
	}
	// Without pidfds (an old kernel, a strict seccomp profile) the PID may be reused
	// between the check and the signal.
	if err != nil || unix.PidfdSendSignal(fd, n, nil, 0) == unix.ENOSYS {
		unix.Kill(p.PID, n)
	}
}
