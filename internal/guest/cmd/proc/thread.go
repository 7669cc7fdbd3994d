//go:build linux

package proc

import (
	"bytes"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// Thread is a thread of a process.
type Thread struct {
	TID      int
	state    byte
	Switches uint64 // how often it was switched out: unchanged, it has not run since
}

// Dead reports whether the thread has ended.
func (t Thread) Dead() bool { return t.state == 'Z' || t.state == 'X' }

// Stopped reports whether the thread is stopped, by a signal or by its tracer.
func (t Thread) Stopped() bool { return t.state == 'T' || t.state == 't' }

// Blocked reports whether the thread waits in the kernel and no signal stops it: for a disk, or
// for a child that has not executed its program yet.
func (t Thread) Blocked() bool { return t.state == 'D' }

// Threads returns the threads of a process that have not ended.
func Threads(pid int) []Thread {
	name := "/proc/" + strconv.Itoa(pid) + "/task"
	dir, err := os.Open(name)
	if err != nil {
		return nil
	}
	defer dir.Close()
	names, _ := dir.Readdirnames(-1)
	threads := make([]Thread, 0, len(names))
	var buf [4096]byte
	for _, tid := range names {
		n, err := strconv.Atoi(tid)
		if err != nil {
			continue
		}
		if t, ok := parseStatus(n, readUpTo(name+"/"+tid+"/status", buf[:])); ok && !t.Dead() {
			threads = append(threads, t)
		}
	}
	return threads
}

// readUpTo reads a file of /proc. buf is for most; a list of groups may be long.
func readUpTo(name string, buf []byte) []byte {
	const most = 64 << 10
	fd, err := unix.Open(name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil
	}
	defer unix.Close(fd)
	for n := 0; ; {
		got, err := unix.Read(fd, buf[n:])
		if err == unix.EINTR {
			continue
		}
		if n += max(got, 0); err != nil || got == 0 || n == most {
			return buf[:n]
		}
		if n == len(buf) {
			buf = append(make([]byte, 0, most), buf...)[:most]
		}
	}
}

// parseStatus reads /proc/PID/task/TID/status. A thread whose text was cut short counts as one
// that runs. The kernel escapes line feeds in the name, which a thread can choose.
func parseStatus(tid int, text []byte) (t Thread, ok bool) {
	t = Thread{TID: tid, state: '?'}
	complete := false
	for line := range bytes.Lines(text) {
		key, value, _ := bytes.Cut(line, []byte(":"))
		value = bytes.TrimSpace(value)
		switch string(key) {
		case "State":
			if len(value) > 0 {
				t.state = value[0]
			}
		case "voluntary_ctxt_switches", "nonvoluntary_ctxt_switches":
			n, _ := strconv.ParseUint(string(value), 10, 64)
			t.Switches += n
			complete = key[0] == 'n' // the last line
		}
	}
	if !complete && !t.Dead() {
		t.state = '?'
	}
	return t, len(text) > 0
}

// LastPID returns the PID or TID that was given last in this PID namespace, 0 if that is
// unknown.
func LastPID() int {
	var buf [128]byte
	fields := bytes.Fields(readUpTo("/proc/loadavg", buf[:]))
	if len(fields) < 5 {
		return 0
	}
	n, _ := strconv.Atoi(string(fields[4]))
	return n
}
