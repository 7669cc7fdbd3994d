//go:build linux

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/seed-1a2d6d8f/sandbox/internal/guest/wire"
)

// Exit codes of run when it could not execute the program, as a shell would have it.
const (
	runFailed        = 125
	runNotExecutable = 126
	runNotFound      = 127
)

// runRun executes a program in its own place, without the privileges that belong to
// PID 1 alone. Its arguments are an Exec as JSON and, when PID 1 is its parent, the
// descriptor on which a StartError is reported; the descriptor closes on success.
func runRun(args []string) (int, error) {
	runtime.LockOSThread()
	if len(args) < 1 {
		return runFailed, errors.New("run: no request")
	}
	report := -1
	if len(args) > 1 {
		fd, err := strconv.Atoi(args[1])
		if err != nil || fd < 3 {
			return runFailed, fmt.Errorf("run: bad descriptor %q", args[1])
		}
		unix.CloseOnExec(fd)
		report = fd
	}
	refused := execute([]byte(args[0]))
	if report >= 0 {
		text, _ := json.Marshal(refused)
		unix.Write(report, text)
		os.Exit(runFailed)
	}
	switch refused.Kind {
	case wire.KindNotFound:
		return runNotFound, refused
	case wire.KindPermission:
		return runNotExecutable, refused
	}
	return runFailed, refused
}

// execute returns only when it failed.
func execute(request []byte) *wire.StartError {
	var req wire.Exec
	if err := json.Unmarshal(request, &req); err != nil {
		return refuse(wire.KindArguments, "the request makes no sense: %v", err)
	}
	if err := shed(); err != nil {
		return refuse(wire.KindOther, "%v", err)
	}
	if req.Env == nil {
		req.Env = os.Environ()
	}
	l, refused := prepare(&req)
	if refused != nil {
		return refused
	}
	l.own(1, 2)
	if err := l.become(); err != nil {
		return refuse(wire.KindUser, "become user %d: %v", l.uid, err)
	}
	if err := unix.Chdir(l.dir); err != nil {
		return refuse(wire.KindDirectory, "directory %q: %v", l.dir, err)
	}
	// PID 1 ignores most signals, and its children start that way.
	for n := 1; n <= signals; n++ {
		if n != perThread {
			dispose(n, byDefault)
		}
	}
	setMask(0)
	return l.explain(syscall.Exec(l.path, l.argv, l.env))
}

func (l *launch) become() error {
	groups := make([]int, len(l.groups))
	for i, g := range l.groups {
		groups[i] = int(g)
	}
	if err := syscall.Setgroups(groups); err != nil {
		return err
	}
	if err := syscall.Setresgid(int(l.gid), int(l.gid), int(l.gid)); err != nil {
		return err
	}
	return syscall.Setresuid(int(l.uid), int(l.uid), int(l.uid))
}
