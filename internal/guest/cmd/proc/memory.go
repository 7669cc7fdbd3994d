//go:build linux

package proc

import (
	"bytes"
	"os"
	"path"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// oomKills counts the processes of the sandbox that the kernel has killed for memory, by the counter
// of its own memory cgroup. Engines mount cgroups read-only, so nobody inside can set the counter. The
// kernel counts a process before it kills the process, so that whoever has reaped it reads a higher count.
// The zero value is of a sandbox without such a counter, as with gVisor: it always reads 0.
type oomKills struct{ file *os.File }

// ownOOMKills is the counter of this process's cgroup.
var ownOOMKills = sync.OnceValue(func() oomKills {
	own, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return oomKills{}
	}
	return findOOMKills("/sys/fs/cgroup", own)
})

// findOOMKills finds the counter in the cgroup file systems that are mounted below root. own is
// /proc/self/cgroup: lines of "id:controllers:path", with an empty list of controllers in version 2.
// The path is the machine's if the container has no cgroup namespace, while the mount begins with
// the container's own cgroup: then the path does not exist, and the mount's root is meant.
func findOOMKills(root string, own []byte) oomKills {
	for line := range strings.Lines(string(own)) {
		f := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(f) != 3 {
			continue
		}
		mount, name := root, "memory.events"
		switch {
		case f[1] == "":
		case strings.Contains(","+f[1]+",", ",memory,"):
			mount, name = path.Join(root, "memory"), "memory.oom_control"
		default:
			continue
		}
		for _, dir := range []string{path.Join(mount, path.Join("/", f[2])), mount} {
			fd, err := unix.Open(path.Join(dir, name), unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
			if err != nil {
				continue
			}
			kills := oomKills{os.NewFile(uintptr(fd), name)}
			if kills.known() {
				return kills
			}
			kills.file.Close()
		}
	}
	return oomKills{}
}

// count returns the number of processes that were killed.
func (o oomKills) count() uint64 {
	n, _ := o.read()
	return n
}

// known reports whether there is a count: kernels before 4.13 have none.
func (o oomKills) known() bool {
	_, ok := o.read()
	return ok
}

func (o oomKills) read() (n uint64, ok bool) {
	if o.file == nil {
		return 0, false
	}
	var buf [4096]byte
	size, _ := o.file.ReadAt(buf[:], 0)
	for line := range bytes.Lines(buf[:size]) {
		if value, is := bytes.CutPrefix(line, []byte("oom_kill ")); is {
			n, err := strconv.ParseUint(string(bytes.TrimSpace(value)), 10, 64)
			return n, err == nil
		}
	}
	return 0, false
}
