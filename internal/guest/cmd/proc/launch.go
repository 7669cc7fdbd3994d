//go:build linux

package proc

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/seed-1a2d6d8f/sandbox/internal/guest/accounts"
	"github.com/seed-1a2d6d8f/sandbox/internal/guest/wire"
)

// defaultPath is the PATH of a command whose environment has none, the same as Docker's.
const defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// launch is what a request comes to: the arguments of execve, and the user.
type launch struct {
	path string // as execve takes it, relative to dir
	argv []string
	env  []string
	dir  string
	// sockets makes its stdio sockets in place of pipes.
	sockets bool
	accounts.User
}

// StartErrorf returns the error of a command that does not start. An errno among the arguments is
// its Errno.
func StartErrorf(kind, format string, args ...any) *wire.StartError {
	e := &wire.StartError{Kind: kind, Message: fmt.Sprintf(format, args...)}
	for _, a := range args {
		if errno, ok := a.(syscall.Errno); ok {
			e.Errno = int(errno)
		}
	}
	return e
}

// prepare resolves a request. The files may change before the program starts: then explain
// finds the reason.
func prepare(req *wire.Exec) (*launch, *wire.StartError) {
	if len(req.Args) == 0 || req.Program() == "" {
		return nil, StartErrorf(wire.KindArguments, "no program named")
	}
	for _, list := range [...][]string{req.Args, req.Env, {req.Path, req.Dir}} {
		for _, s := range list {
			if strings.IndexByte(s, 0) >= 0 {
				return nil, StartErrorf(wire.KindArguments, "argument, environment or directory contains a NUL byte")
			}
		}
	}
	id, err := LookupUser(req.User)
	if err != nil {
		return nil, StartErrorf(wire.KindUser, "%v", err)
	}
	l := &launch{argv: req.Args, dir: req.Dir, sockets: servesPaths(req), User: id}
	if l.dir == "" {
		l.dir = "/"
	}
	switch st, err := os.Stat(l.dir); {
	case err != nil:
		return nil, StartErrorf(wire.KindDirectory, "directory %q: %v", l.dir, cause(err))
	case !st.IsDir():
		return nil, StartErrorf(wire.KindDirectory, "directory %q: %v", l.dir, unix.ENOTDIR)
	}
	l.env = environment(req.Env, id, req.TTY)
	var refused *wire.StartError
	l.path, refused = l.find(req.Program())
	return l, refused
}

// servesPaths reports whether the command is a file server, of either protocol. It opens what its client
// names, which can be its own stdio: /dev/stdout, or a link to /proc/self/fd/1. Of a pipe it would
// read its own replies. A socket can't be opened: the error is ENXIO.
func servesPaths(req *wire.Exec) bool {
	return req.ServesFiles() || req.Path == wire.Self && len(req.Args) > 1 && req.Args[1] == wire.VerbSFTP
}

// environment adds the defaults to env. Of several values for one name the last one counts.
func environment(env []string, id accounts.User, tty bool) []string {
	out := make([]string, 0, len(env)+5)
	at := make(map[string]int, len(env)+5)
	for _, kv := range env {
		name, _, ok := strings.Cut(kv, "=")
		if !ok {
			continue
		}
		if i, dup := at[name]; dup {
			out[i] = kv
			continue
		}
		at[name] = len(out)
		out = append(out, kv)
	}
	add := func(name, value string) {
		if _, ok := at[name]; !ok {
			out = append(out, name+"="+value)
		}
	}
	add("PATH", defaultPath)
	add("HOME", id.Home)
	if id.Name != "" {
		add("USER", id.Name)
	}
	if host, err := os.Hostname(); err == nil {
		add("HOSTNAME", host)
	}
	if tty {
		add("TERM", "xterm")
	}
	for _, kv := range trustVariables("/") {
		name, file, _ := strings.Cut(kv, "=")
		add(name, file)
	}
	return out
}

func value(env []string, name string) string {
	for _, kv := range env {
		if v, ok := strings.CutPrefix(kv, name+"="); ok {
			return v
		}
	}
	return ""
}

// find looks a program up as execvp would, from the command's own directory and in
// its own PATH.
func (l *launch) find(program string) (string, *wire.StartError) {
	if strings.Contains(program, "/") {
		if err := l.executable(program); err != nil {
			return "", l.unusable(program, err)
		}
		return program, nil
	}
	var blocked error
	for dir := range strings.SplitSeq(value(l.env, "PATH"), ":") {
		if dir == "" {
			dir = "."
		}
		candidate := dir + "/" + program
		err := l.executable(candidate)
		if err == nil {
			return candidate, nil
		}
		if errors.Is(err, fs.ErrPermission) {
			blocked = err
		}
	}
	if blocked != nil {
		return "", l.unusable(program, blocked)
	}
	return "", StartErrorf(wire.KindNotFound, "%q: executable file not found in $PATH", program)
}

func (l *launch) unusable(program string, err error) *wire.StartError {
	switch {
	case errors.Is(err, fs.ErrPermission):
		return StartErrorf(wire.KindPermission, "%q: %v", program, cause(err))
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.ENOTDIR):
		return StartErrorf(wire.KindNotFound, "%q: %v", program, cause(err))
	}
	return StartErrorf(wire.KindOther, "%q: %v", program, cause(err))
}

// executable returns an error if the mode bits keep the command's user from running the
// file.
func (l *launch) executable(name string) error {
	if !path.IsAbs(name) {
		name = l.dir + "/" + name
	}
	var st unix.Stat_t
	if err := unix.Stat(name, &st); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return unix.EACCES
	}
	bit := uint32(0o001)
	switch {
	case l.UID == 0:
		bit = 0o111
	case st.Uid == l.UID:
		bit = 0o100
	case st.Gid == l.GID || slices.Contains(l.Groups, st.Gid):
		bit = 0o010
	}
	if st.Mode&bit == 0 && (l.UID == 0 || !hasACL(name)) {
		return unix.EACCES
	}
	return nil
}

// hasACL reports whether more than the mode bits decides, which only the kernel knows.
func hasACL(name string) bool {
	n, err := unix.Getxattr(name, "system.posix_acl_access", nil)
	return err == nil && n > 0
}

// explain finds the reason for an error of execve.
func (l *launch) explain(err error) *wire.StartError {
	program := l.argv[0]
	errno, _ := errors.AsType[syscall.Errno](err)
	switch errno {
	case unix.E2BIG, unix.EINVAL:
		refused := StartErrorf(wire.KindArguments, "%q: %v", program, errno)
		refused.TooBig = errno == unix.E2BIG
		return refused
	case unix.EAGAIN, unix.ENOMEM, unix.EMFILE, unix.ENFILE:
		return StartErrorf(wire.KindResources, "%q: %v", program, errno)
	case unix.ENOENT, unix.ENOTDIR:
		if err := l.enter(); err != nil {
			return StartErrorf(wire.KindDirectory, "directory %q: %v", l.dir, cause(err))
		}
		if l.executable(l.path) == nil {
			refused := StartErrorf(wire.KindNotFound, "%q: %s", program, l.noInterpreter())
			refused.Errno = int(errno)
			return refused
		}
		return StartErrorf(wire.KindNotFound, "%q: %v", program, errno)
	case unix.EACCES, unix.EPERM:
		if err := l.enter(); err != nil {
			return StartErrorf(wire.KindDirectory, "directory %q: %v", l.dir, cause(err))
		}
		return StartErrorf(wire.KindPermission, "%q: %v", program, errno)
	case unix.ENOEXEC:
		return StartErrorf(wire.KindOther, "%q: %v (a script needs a #! line)", program, errno)
	}
	return StartErrorf(wire.KindOther, "%q: %v", program, cause(err))
}

// noInterpreter says which interpreter of the program, which exists, does not exist.
func (l *launch) noInterpreter() string {
	name := l.path
	if !path.IsAbs(name) {
		name = l.dir + "/" + name
	}
	f, err := os.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if err != nil {
		return "its interpreter does not exist"
	}
	defer f.Close()
	begin := make([]byte, maxShebang)
	n, _ := io.ReadFull(f, begin)
	line, isScript := strings.CutPrefix(string(begin[:n]), "#!")
	if !isScript {
		return "its dynamic linker does not exist"
	}
	line, _, _ = strings.Cut(line, "\n")
	fields := strings.FieldsFunc(line, func(r rune) bool { return r == ' ' || r == '\t' })
	if len(fields) == 0 {
		return "its first line names no interpreter"
	}
	text := fmt.Sprintf("its interpreter %q does not exist", fields[0])
	if strings.HasSuffix(line, "\r") {
		text += ": the line ends with CR LF, not LF"
	}
	return text
}

// maxShebang is the most of a first line that the kernel reads.
const maxShebang = 256

// CanEnter returns an error if the user can't change into the directory.
func CanEnter(dir string, id accounts.User) error {
	if err := (&launch{dir: dir, User: id}).enter(); err != nil {
		return cause(err)
	}
	return nil
}

// enter returns an error if the command's user can't change into its directory. It sets
// the user for file access of this thread alone.
func (l *launch) enter() error {
	var st unix.Stat_t
	if l.UID == 0 {
		return unix.Stat(l.dir+"/.", &st)
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	was, err := unix.Getgroups()
	if err != nil {
		return err
	}
	setThreadGroups(l.Groups)
	unix.SetfsgidRetGid(int(l.GID))
	unix.SetfsuidRetUid(int(l.UID))
	err = unix.Stat(l.dir+"/.", &st)
	unix.SetfsuidRetUid(0)
	unix.SetfsgidRetGid(0)
	back := make([]uint32, len(was))
	for i, g := range was {
		back[i] = uint32(g)
	}
	setThreadGroups(back)
	return err
}

func setThreadGroups(groups []uint32) {
	unix.RawSyscall(unix.SYS_SETGROUPS, uintptr(len(groups)), uintptr(unsafe.Pointer(unsafe.SliceData(groups))), 0)
}

// cause strips what package os says around an errno.
func cause(err error) error {
	if errno, ok := errors.AsType[syscall.Errno](err); ok {
		return errno
	}
	return err
}

// own gives a command's stdio to its user, who may want to open /dev/stdout again.
func (l *launch) own(fds ...int) {
	if l.UID == 0 {
		return
	}
	for _, fd := range fds {
		unix.Fchown(fd, int(l.UID), -1)
	}
}

func (l *launch) credential() *syscall.Credential {
	return &syscall.Credential{Uid: l.UID, Gid: l.GID, Groups: l.Groups}
}
