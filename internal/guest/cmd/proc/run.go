//go:build linux

package proc

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

// Exit codes when the program could not be executed, the same as a shell's.
const (
	exitFailed        = 125
	ExitNotExecutable = 126
	ExitNotFound      = 127
)

// Run replaces this process by a program, after DropPrivileges. Its arguments are an Exec
// as JSON and, when PID 1 is its parent, the descriptor on which it reports a StartError;
// the descriptor closes on success.
func Run(args []string) (int, error) {
	runtime.LockOSThread()
	if len(args) < 1 {
		return exitFailed, errors.New("run: no request")
	}
	report := -1
	if len(args) > 1 {
		fd, err := strconv.Atoi(args[1])
		if err != nil || fd < 3 {
			return exitFailed, fmt.Errorf("run: bad descriptor %q", args[1])
		}
		unix.CloseOnExec(fd)
		report = fd
	}
	refused := execute([]byte(args[0]))
	if report >= 0 {
		text, _ := json.Marshal(refused)
		unix.Write(report, text)
		os.Exit(exitFailed)
	}
	switch refused.Kind {
	case wire.KindNotFound:
		return ExitNotFound, refused
	case wire.KindPermission:
		return ExitNotExecutable, refused
	}
	return exitFailed, refused
}

// execute returns only when it failed.
func execute(request []byte) *wire.StartError {
	var req wire.Exec
	if err := json.Unmarshal(request, &req); err != nil {
		return StartErrorf(wire.KindArguments, "malformed request: %v", err)
	}
	if err := DropPrivileges(); err != nil {
		return StartErrorf(wire.KindOther, "%v", err)
	}
	if req.Env == nil {
		req.Env = os.Environ()
	}
	l, refused := prepare(&req)
	if refused != nil {
		return refused
	}
	l.own(1, 2)
	if confined(l.User, &req) {
		if err := confineThread(); err != nil {
			return StartErrorf(wire.KindOther, "%v", err)
		}
	}
	if err := l.become(); err != nil {
		return StartErrorf(wire.KindUser, "become user %d: %v", l.UID, err)
	}
	if err := unix.Chdir(l.dir); err != nil {
		return StartErrorf(wire.KindDirectory, "directory %q: %v", l.dir, err)
	}
	// PID 1 ignores most signals and has no huge pages, and its children inherit that.
	resetSignals()
	AllowHugePages(true)
	return l.explain(syscall.Exec(l.path, l.argv, l.env))
}

// AllowHugePages says whether the kernel may give this process, and what it starts, huge pages that were not asked for. It has no
// effect on a kernel that has none.
func AllowHugePages(allow bool) {
	var disable uintptr
	if !allow {
		disable = 1
	}
	_ = unix.Prctl(unix.PR_SET_THP_DISABLE, disable, 0, 0, 0)
}

func (l *launch) become() error {
	groups := make([]int, len(l.Groups))
	for i, g := range l.Groups {
		groups[i] = int(g)
	}
	if err := syscall.Setgroups(groups); err != nil {
		return err
	}
	if err := syscall.Setresgid(int(l.GID), int(l.GID), int(l.GID)); err != nil {
		return err
	}
	return syscall.Setresuid(int(l.UID), int(l.UID), int(l.UID))
}
