//go:build linux

package main

import (
	"bytes"
	"os"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// proc is one line of the process table.
type proc struct {
	pid, ppid, pgrp, sid int
	state                byte
	start                uint64 // clock ticks since boot
}

func (p proc) dead() bool { return p.state == 'Z' || p.state == 'X' }

// processes reads the table of this PID namespace.
func processes() ([]proc, error) {
	dir, err := os.Open("/proc")
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return nil, err
	}
	table := make([]proc, 0, len(names))
	for _, name := range names {
		if name[0] < '1' || name[0] > '9' {
			continue
		}
		if pid, err := strconv.Atoi(name); err == nil {
			if p, ok := process(pid); ok {
				table = append(table, p)
			}
		}
	}
	return table, nil
}

func process(pid int) (proc, bool) {
	fd, err := unix.Open("/proc/"+strconv.Itoa(pid)+"/stat", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return proc{}, false
	}
	defer unix.Close(fd)
	var buf [1024]byte
	n, err := unix.Read(fd, buf[:])
	if err != nil || n <= 0 {
		return proc{}, false
	}
	return parseStat(pid, buf[:n])
}

// parseStat reads /proc/PID/stat. The name in it is the process's own choice and may
// hold spaces and parentheses: what counts comes after the last one.
func parseStat(pid int, line []byte) (proc, bool) {
	end := bytes.LastIndexByte(line, ')')
	if end < 0 {
		return proc{}, false
	}
	f := bytes.Fields(line[end+1:])
	if len(f) < 20 || len(f[0]) != 1 {
		return proc{}, false
	}
	p := proc{pid: pid, state: f[0][0]}
	p.ppid, _ = strconv.Atoi(string(f[1]))
	p.pgrp, _ = strconv.Atoi(string(f[2]))
	p.sid, _ = strconv.Atoi(string(f[3]))
	p.start, _ = strconv.ParseUint(string(f[19]), 10, 64)
	return p, true
}

// closure returns the processes of the table that belong (as roots) or descend from
// one that does. Dead ones pass their children on but are not returned.
func closure(table []proc, root func(proc) bool) []proc {
	in := make(map[int]bool)
	for _, p := range table {
		if root(p) {
			in[p.pid] = true
		}
	}
	for grew := true; grew; {
		grew = false
		for _, p := range table {
			if !in[p.pid] && in[p.ppid] {
				in[p.pid] = true
				grew = true
			}
		}
	}
	var out []proc
	for _, p := range table {
		if in[p.pid] && !p.dead() {
			out = append(out, p)
		}
	}
	return out
}

// killDeadline bounds how long a tree that keeps growing is fought.
const killDeadline = 5 * time.Second

// killTree kills every process that find returns, as often as it returns any. They
// are stopped first, until none is new, so that none can fork while others die.
func killTree(find func() []proc) {
	deadline := time.Now().Add(killDeadline)
	for wait := 200 * time.Microsecond; ; wait = min(2*wait, 20*time.Millisecond) {
		stopped := make(map[proc]bool)
		var tree []proc
		for {
			tree = find()
			fresh := false
			for _, p := range tree {
				key := proc{pid: p.pid, start: p.start}
				if !stopped[key] {
					stopped[key] = true
					fresh = true
					signalProcess(p, unix.SIGSTOP)
				}
			}
			if !fresh || time.Now().After(deadline) {
				break
			}
		}
		for _, p := range tree {
			signalProcess(p, unix.SIGKILL)
		}
		if len(tree) == 0 || time.Now().After(deadline) {
			return
		}
		time.Sleep(wait)
	}
}

// signalProcess signals p and not another process that got its PID meanwhile.
func signalProcess(p proc, n syscall.Signal) {
	fd, err := unix.PidfdOpen(p.pid, 0)
	if err == nil {
		defer unix.Close(fd)
	} else if err == unix.ESRCH {
		return
	}
	if now, ok := process(p.pid); !ok || now.start != p.start {
		return
	}
	// Without pidfds (an old kernel, a strict seccomp profile) the moment between
	// the look and the signal is left open.
	if err != nil || unix.PidfdSendSignal(fd, n, nil, 0) == unix.ENOSYS {
		unix.Kill(p.pid, n)
	}
}
