//go:build linux

package guest_test

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/seed-1a2d6d8f/sandbox/internal/guest"
	"github.com/seed-1a2d6d8f/sandbox/internal/guest/wire"
	"github.com/seed-1a2d6d8f/sandbox/internal/policy"
)

// helperVerb makes the test binary do a part in a test instead of running tests:
// prepare a process as the engine would, or be the enemy inside.
const helperVerb = "guest-test-helper"

// engineCaps is what the engine gives our container, and what our CapDrop is meant to
// take, which the guest takes itself too.
var engineCaps = []uintptr{
	unix.CAP_CHOWN, unix.CAP_DAC_OVERRIDE, unix.CAP_FSETID, unix.CAP_FOWNER, unix.CAP_SETGID, unix.CAP_SETUID,
	unix.CAP_SETFCAP, unix.CAP_SETPCAP, unix.CAP_NET_BIND_SERVICE, unix.CAP_SYS_CHROOT, unix.CAP_KILL,
	unix.CAP_AUDIT_WRITE, unix.CAP_NET_ADMIN, unix.CAP_NET_RAW, unix.CAP_MKNOD,
}

// guestDir is the mount point of the guest for PID 1. Its root directory is this machine's, so
// the mount point is a directory that every Linux system has.
const guestDir = "/mnt"

func helper(args []string) {
	runtime.LockOSThread()
	fail := func(err error) {
		if err != nil {
			fmt.Println("helper:", args, err)
			os.Exit(99)
		}
	}
	switch args[0] {
	case "enter":
		fail(enter(args[1], strings.Split(args[2], ","), args[3:]))
	case "init": // first process of new namespaces
		fail(unix.Mount("none", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""))
		fail(unix.Mount("proc", "/proc", "proc", 0, ""))
		fail(loopbackUp())
		// PID 1 checks that it runs from a read-only mount in the root.
		fail(unix.Mount(filepath.Dir(args[1]), guestDir, "", unix.MS_BIND, ""))
		fail(unix.Mount("", guestDir, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, ""))
		args[1] = filepath.Join(guestDir, filepath.Base(args[1]))
		fallthrough
	case "capped":
		if n := atoiOr0(os.Getenv(nofileEnv)); n > 0 {
			fail(unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: n, Max: n}))
		}
		if os.Getenv(deviceEnv) != "" {
			fail(addDevice())
		}
		for c := uintptr(0); c <= unix.CAP_LAST_CAP; c++ {
			if !slices.Contains(engineCaps, c) || c == unix.CAP_NET_ADMIN && os.Getenv(weakEnv) != "" {
				fail(unix.Prctl(unix.PR_CAPBSET_DROP, c, 0, 0, 0))
			}
		}
		if os.Getenv(noTmpfileEnv) != "" {
			fail(denyTmpfile())
		}
		fail(syscall.Exec(args[1], args[1:], os.Environ()))
	case "signals":
		sendSignals()
	case "flood":
		flood()
	case "impostor":
		fail(impostor(args[1:]))
	case "claim":
		fail(claimUse(args[1]))
	case "pry":
		pry()
	case "write":
		fail(write(args[1]))
	case "vfork":
		vfork()
	case "starved":
		fail(starved(int(atoiOr0(args[1])), args[2]))
	case "gatecrasher":
		fail(gatecrasher())
	}
	os.Exit(0)
}

// enter runs args in namespaces of a process, given by their names in /proc, and ends as args do. nsenter would stop itself
// whenever its child is stopped, as a hold does, and go on only if somebody continues it.
func enter(pid string, namespaces, args []string) error {
	fds := make([]int, len(namespaces))
	for i, name := range namespaces { // all of them first: the mounts of the process have another /proc
		var err error
		if fds[i], err = unix.Open("/proc/"+pid+"/ns/"+name, unix.O_RDONLY|unix.O_CLOEXEC, 0); err != nil {
			return err
		}
	}
	if err := unix.Unshare(unix.CLONE_FS); err != nil { // a thread that shares its directory can't enter other mounts
		return err
	}
	for _, fd := range fds {
		if err := unix.Setns(fd, 0); err != nil {
			return err
		}
	}
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	err := cmd.Run()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		os.Exit(exit.ExitCode())
	}
	return err
}

// noTmpfileEnv has every file system refuse files without a name, as some do.
const noTmpfileEnv = "GUEST_TEST_NO_TMPFILE"

// denyTmpfile has O_TMPFILE fail in this thread, and in what it becomes.
func denyTmpfile() error {
	const tmpfile = unix.O_TMPFILE &^ unix.O_DIRECTORY
	filter := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: 0}, // the number of the call
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.SYS_OPENAT, Jf: 3},
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: 16 + 2*8}, // the flags
		{Code: unix.BPF_JMP | unix.BPF_JSET | unix.BPF_K, K: tmpfile, Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ERRNO | uint32(unix.EOPNOTSUPP)},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
	}
	prog := &unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	return unix.Prctl(unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_FILTER, uintptr(unsafe.Pointer(prog)), 0, 0)
}

// loopbackUp does what the engine does with every new network namespace.
func loopbackUp() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	req, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	req.SetUint16(unix.IFF_UP)
	return unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, req)
}

// weakEnv makes PID 1 one that can't enforce anything.
const weakEnv = "GUEST_TEST_WEAK"

// deviceEnv gives PID 1 a network device beside loopback.
const deviceEnv = "GUEST_TEST_DEVICE"

// addDevice adds a bridge without ports, which engines need, too.
func addDevice() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	name := [unix.IFNAMSIZ]byte{'x', '0'}
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCBRADDBR, uintptr(unsafe.Pointer(&name))); errno != 0 {
		return errno
	}
	return nil
}

// nofileEnv sets the limit of descriptors that PID 1 starts with.
const nofileEnv = "GUEST_TEST_NOFILE"

func atoiOr0(s string) uint64 {
	n, _ := strconv.ParseUint(s, 10, 64)
	return n
}

// box is a sandbox without an engine: PID 1 in namespaces of its own.
type box struct {
	t   testing.TB
	cmd *exec.Cmd // PID 1, seen from outside
	out *lockedBuffer
	end chan struct{}
}

type lockedBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

func newBox(t testing.TB, conf wire.Init, env ...string) *box {
	t.Helper()
	told, err := json.Marshal(conf)
	if err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	b := &box{t: t, out: new(lockedBuffer), end: make(chan struct{})}
	b.cmd = exec.Command(self, helperVerb, "init", binary, wire.VerbInit, string(told))
	b.cmd.Env = append(os.Environ(), env...)
	b.cmd.Stdout, b.cmd.Stderr = b.out, b.out
	b.cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWPID | unix.CLONE_NEWNS | unix.CLONE_NEWNET | unix.CLONE_NEWIPC}
	if err := b.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		b.cmd.Wait()
		close(b.end)
	}()
	t.Cleanup(func() {
		b.cmd.Process.Kill()
		<-b.end
		if t.Failed() && b.out.String() != "" {
			t.Logf("PID 1 said: %s", b.out)
		}
	})
	// Not before it is in its final form: signals blocked, socket open.
	eventually(t, "PID 1 is set up", func() bool {
		sockets, _ := os.ReadFile(fmt.Sprintf("/proc/%d/net/unix", b.cmd.Process.Pid))
		select {
		case <-b.end:
			t.Fatalf("PID 1 ended: %v\n%s", b.cmd.ProcessState, b.out)
		default:
		}
		return bytes.Contains(sockets, []byte(wire.ControlSocket))
	})
	return b
}

// in is an argv that runs args inside, with the engine's capabilities.
func (b *box) in(args ...string) []string {
	self, _ := os.Executable()
	return b.enter("pid,mnt,net,ipc", append([]string{self, helperVerb, "capped"}, args...)...)
}

// enter is an argv that runs args in these namespaces of PID 1.
func (b *box) enter(namespaces string, args ...string) []string {
	self, _ := os.Executable()
	return append([]string{self, helperVerb, "enter", strconv.Itoa(b.cmd.Process.Pid), namespaces}, args...)
}

func (b *box) serve() *guest.Conn {
	b.t.Helper()
	conn, _ := serve(b.t, b.in(binary, wire.VerbServe)...)
	return conn
}

// controlled returns how many connections PID 1's control socket has.
func (b *box) controlled() (n int) {
	b.t.Helper()
	sockets, err := os.ReadFile(fmt.Sprintf("/proc/%d/net/unix", b.cmd.Process.Pid))
	if err != nil {
		b.t.Fatal(err)
	}
	for line := range strings.Lines(string(sockets)) {
		if f := strings.Fields(line); len(f) == 8 && f[5] == "03" && f[7] == wire.ControlSocket { // SS_CONNECTED
			n++
		}
	}
	return n
}

// begin begins a session with a policy without lists.
func begin(t testing.TB, conn *guest.Conn, key ed25519.PrivateKey, mode policy.Mode) {
	t.Helper()
	reply, err := conn.Control(t.Context(), key, wire.Control{Op: wire.OpBegin, Begin: &wire.Begin{Version: 1, Policy: policy.Policy{Mode: mode}}})
	if err != nil || reply.Network == nil || reply.Network.Version != 1 {
		t.Fatalf("begin: %+v, %v", reply, err)
	}
}

func (b *box) alive() bool {
	select {
	case <-b.end:
		return false
	default:
		return true
	}
}

// code waits for the end of the session and returns PID 1's exit code.
func (b *box) code() int {
	b.t.Helper()
	select {
	case <-b.end:
		code, _ := wire.EndCode(b.cmd.ProcessState.ExitCode())
		return code
	case <-time.After(5 * time.Minute):
		b.t.Fatal("the session did not end")
		return 0
	}
}

func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(5 * time.Minute)
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatalf("did not happen: %s", what)
		}
		time.Sleep(2 * time.Millisecond)
	}
}

type result struct {
	stdout, stderr string
	exit           wire.Exit
	started        wire.Started
}

// run runs a command to its end.
func run(t testing.TB, conn *guest.Conn, req wire.Exec) result {
	t.Helper()
	p, err := conn.Exec(context.Background(), req)
	if err != nil {
		t.Fatalf("Exec(%q): %v", req.Args, err)
	}
	return finish(t, p)
}

func finish(t testing.TB, p *guest.Process) result {
	t.Helper()
	r := result{started: p.Started()}
	var wg sync.WaitGroup
	read := func(s *string, from io.Reader) {
		wg.Go(func() {
			b, err := io.ReadAll(from)
			if err != nil {
				t.Errorf("read output: %v", err)
			}
			*s = string(b)
		})
	}
	read(&r.stdout, p.Stdout())
	read(&r.stderr, p.Stderr())
	wg.Wait()
	var err error
	if r.exit, err = p.Wait(); err != nil {
		t.Errorf("Wait: %v", err)
	}
	return r
}

// self runs the test binary's helper inside.
func self(args ...string) []string {
	exe, _ := os.Executable()
	return append([]string{exe, helperVerb}, args...)
}

func sh(script string) []string { return []string{"sh", "-c", script} }

// kindOf is the kind of a refusal, or a text that no kind equals.
func kindOf(err error) string {
	if e, ok := errors.AsType[*wire.StartError](err); ok {
		return e.Kind
	}
	return fmt.Sprintf("not a StartError: %v", err)
}

// alivePid says whether a process lives, as seen from outside.
func alivePid(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	rest := stat[bytes.LastIndexByte(stat, ')')+2:]
	return rest[0] != 'Z' && rest[0] != 'X'
}

// children are those of every thread of a process, as seen from outside.
func children(t testing.TB, pid int) []int {
	t.Helper()
	if _, err := os.Stat(fmt.Sprintf("/proc/%d/task", pid)); err != nil {
		t.Fatalf("the children of process %d: %v", pid, err)
	}
	return childrenOf(pid)
}

// childrenOf is children of a process that may end meanwhile.
func childrenOf(pid int) (pids []int) {
	tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	for _, name := range tasks {
		text, _ := os.ReadFile(name) // a thread may have ended
		for _, child := range strings.Fields(string(text)) {
			n, _ := strconv.Atoi(child)
			pids = append(pids, n)
		}
	}
	return pids
}

func atoi(t testing.TB, s string) int {
	t.Helper()
	n, err := strconv.Atoi(strings.TrimSpace(s))
	if err != nil {
		t.Fatal(err)
	}
	return n
}
