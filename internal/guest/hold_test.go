//go:build linux

package guest_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/ed25519"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/seed-1a2d6d8f/sandbox/internal/guest"
	"github.com/seed-1a2d6d8f/sandbox/internal/guest/wire"
)

// inNamespace calls f on a thread of its own in a namespace of the box, which ends with it.
func (b *box) inNamespace(kind string, flag int, f func() error) error {
	result := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlocked
		result <- func() error {
			ns, err := os.Open(fmt.Sprintf("/proc/%d/ns/%s", b.cmd.Process.Pid, kind))
			if err != nil {
				return err
			}
			defer ns.Close()
			if err := unix.Setns(int(ns.Fd()), flag); err != nil {
				return err
			}
			return f()
		}()
	}()
	return <-result
}

// holding is a connection to PID 1 from outside, as a copier has one.
type holding struct {
	net.Conn
	r    *bufio.Reader
	live context.Context // the holder says that it lives until hush is called
	hush context.CancelFunc
}

func (b *box) dialControl() *holding {
	b.t.Helper()
	var conn net.Conn
	err := b.inNamespace("net", unix.CLONE_NEWNET, func() (err error) {
		fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		file := os.NewFile(uintptr(fd), "control")
		defer file.Close()
		if err := unix.Connect(fd, &unix.SockaddrUnix{Name: wire.ControlSocket}); err != nil {
			return err
		}
		conn, err = net.FileConn(file)
		return err
	})
	if err != nil {
		b.t.Fatalf("connect to PID 1: %v", err)
	}
	b.t.Cleanup(func() { conn.Close() })
	conn.SetDeadline(time.Now().Add(5 * time.Minute))
	h := &holding{Conn: conn, r: bufio.NewReader(conn)}
	h.live, h.hush = context.WithCancel(b.t.Context())
	b.t.Cleanup(h.hush)
	return h
}

func (h *holding) line(v any) error {
	line, err := h.r.ReadSlice('\n')
	if err != nil {
		return err
	}
	return json.Unmarshal(line, v)
}

// request asks for a hold without waiting for the answer, and says from then on that the holder lives.
func (h *holding) request(key ed25519.PrivateKey) error {
	var hello wire.Challenge
	if err := h.line(&hello); err != nil {
		return err
	}
	request, err := guest.SignHold(key, hello.Nonce)
	if err == nil {
		_, err = h.Write(request)
	}
	go func() {
		for err := error(nil); err == nil; _, err = io.WriteString(h, wire.HoldBeat) {
			select {
			case <-h.live.Done():
				return
			case <-time.After(wire.HoldSilence / 5):
			}
		}
	}()
	return err
}

// hold begins a hold. PID 1 refuses one if a busy machine lets processes stand too late.
func (b *box) hold(key ed25519.PrivateKey) *holding {
	b.t.Helper()
	for deadline := time.Now().Add(5 * time.Minute); ; {
		h := b.dialControl()
		var reply wire.Reply
		err := errors.Join(h.request(key), h.line(&reply))
		if err == nil && reply.Held {
			return h
		}
		if err != nil || time.Now().After(deadline) {
			b.t.Fatalf("hold: %+v, %v", reply, err)
		}
		h.Close()
	}
}

// release returns what has run during the hold.
func (h *holding) release(t *testing.T) string {
	t.Helper()
	var reply wire.Reply
	_, err := io.WriteString(h, wire.HoldRelease)
	if err := errors.Join(err, h.line(&reply)); err != nil {
		t.Fatalf("release: %v", err)
	}
	return reply.Moved
}

// descendants are the processes below one, as seen from outside, without zombies.
func descendants(t testing.TB, pid int) (pids []int) {
	t.Helper()
	for _, child := range childrenOf(pid) {
		if alivePid(child) {
			pids = append(pids, child)
		}
		pids = append(pids, descendants(t, child)...)
	}
	return pids
}

// states are those of all threads of a process: "RST".
func states(pid int) (all string) {
	threads, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
	for _, file := range threads {
		text, err := os.ReadFile(file)
		if i := bytes.LastIndexByte(text, ')'); err == nil && i > 0 {
			all += string(text[i+2])
		}
	}
	return all
}

func stopped(pid int) bool { return strings.Trim(states(pid), "TtZX") == "" }

// heldBox is a box with a server of its owner's, which PID 1 knows as such.
func heldBox(t *testing.T) (b *box, conn *guest.Conn, server int, key ed25519.PrivateKey) {
	t.Helper()
	public, private := newKey(t)
	b = newBox(t, wire.Init{ControlKey: public})
	conn, cmd := serve(t, b.in(binary, wire.VerbServe)...)
	if _, err := conn.Control(t.Context(), private, wire.Control{Op: wire.OpStatus}); err != nil {
		t.Fatal(err)
	}
	entered := children(t, cmd.Process.Pid)
	if len(entered) != 1 {
		t.Fatalf("what entered: %v", entered)
	}
	t.Cleanup(func() { unix.Kill(entered[0], unix.SIGCONT) })
	return b, conn, entered[0], private
}

// start starts a command that prints a line once it is under way, and returns that.
func start(t *testing.T, conn *guest.Conn, args ...string) (line string, p *guest.Process) {
	t.Helper()
	p, err := conn.Exec(t.Context(), wire.Exec{Args: args})
	if err != nil {
		t.Fatal(err)
	}
	line, err = bufio.NewReader(p.Stdout()).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	go io.Copy(io.Discard, p.Stdout())
	go io.Copy(io.Discard, p.Stderr())
	return strings.TrimSpace(line), p
}

// write keeps threads of this process, and children, writing and starting others.
func write(dir string) error {
	for i := range 4 {
		f, err := os.Create(filepath.Join(dir, strconv.Itoa(i)))
		if err != nil {
			return err
		}
		go func() {
			runtime.LockOSThread()
			for ; ; time.Sleep(100 * time.Microsecond) {
				f.WriteString("x")
			}
		}()
	}
	fmt.Println("on")
	for i := 0; ; i++ { // by vfork
		if err := exec.Command("sh", "-c", `echo x >>"$0"`, filepath.Join(dir, "child")).Run(); err != nil {
			return err
		}
	}
}

// sizes are those of the files in a directory.
func sizes(t *testing.T, dir string) string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, e := range entries {
		info, err := e.Info()
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, fmt.Sprint(e.Name(), " ", info.Size()))
	}
	return strings.Join(all, ", ")
}

// Threads, children, and what they have just started stand still for as long as a hold lasts; PID 1
// answers, and a new command waits.
func TestHold(t *testing.T) {
	t.Parallel()
	dir := t.TempDir() // removed after the processes that write in it
	b, conn, server, key := heldBox(t)
	start(t, conn, self("write", dir)...)
	for range 10 {
		h := b.hold(key)
		before := sizes(t, dir)
		for _, pid := range descendants(t, server) {
			if !stopped(pid) {
				t.Errorf("process %d is in state %q", pid, states(pid))
			}
		}
		if _, err := conn.Control(t.Context(), key, wire.Control{Op: wire.OpLease, Lease: time.Hour}); err != nil {
			t.Errorf("Control during a hold: %v", err)
		}
		started := make(chan error, 1)
		go func() {
			p, err := conn.Exec(t.Context(), wire.Exec{Args: []string{"sh", "-c", "echo x >>" + dir + "/exec"}})
			if err == nil {
				_, err = p.Wait()
			}
			started <- err
		}()
		time.Sleep(30 * time.Millisecond) // for them to write, if they could
		if after := sizes(t, dir); before != after {
			t.Errorf("files change during a hold, from %s to %s", before, after)
		}
		if moved := h.release(t); moved != "" {
			t.Errorf("moved: %q", moved)
		}
		if err := <-started; err != nil {
			t.Errorf("a command that was started during a hold: %v", err)
		}
		eventually(t, "they go on", func() bool { return sizes(t, dir) != before })
	}
}

// What was stopped before stays so, as a job of a shell.
func TestHoldLeavesWhatWasStopped(t *testing.T) {
	t.Parallel()
	b, conn, server, key := heldBox(t)
	start(t, conn, sh("sleep 1000 & kill -STOP $!; echo on; wait; sleep 1000")...)
	var job int
	eventually(t, "the job is stopped", func() bool {
		for _, pid := range descendants(t, server) {
			if stopped(pid) {
				job = pid
			}
		}
		return job != 0
	})
	if moved := b.hold(key).release(t); moved != "" {
		t.Errorf("moved: %q", moved)
	}
	for _, pid := range descendants(t, server) {
		if stopped(pid) != (pid == job) {
			t.Errorf("process %d is in state %q, and the job is process %d", pid, states(pid), job)
		}
	}
}

// A hold ends with its connection, and when nothing comes on that.
func TestHoldEndsWithItsHolder(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(h *holding){
		"gone":     func(h *holding) { h.Close() },
		"silent":   func(h *holding) { h.hush() },
		"babbling": func(h *holding) { h.Write(make([]byte, 1<<20)) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b, conn, server, key := heldBox(t)
			start(t, conn, sh("echo on; while :; do sleep 0.02; done")...)
			h := b.hold(key)
			began := time.Now()
			end(h)
			eventually(t, "they go on", func() bool {
				for _, pid := range descendants(t, server) {
					if stopped(pid) {
						return false
					}
				}
				return true
			})
			if took := time.Since(began); name == "silent" && took < wire.HoldSilence {
				t.Errorf("it took %v, too early", took)
			}
		})
	}
}

// copyHeld runs a copy of nothing during a hold, up to where it waits for the order to end that.
func (b *box) copyHeld(key ed25519.PrivateKey) (in io.WriteCloser, out *bufio.Reader) {
	b.t.Helper()
	spec, err := json.Marshal(wire.Copy{Wait: true, Hold: true, Linger: true})
	if err != nil {
		b.t.Fatal(err)
	}
	for deadline := time.Now().Add(5 * time.Minute); ; {
		argv := b.enter("net", binary, wire.VerbCopy, string(spec))
		cmd := exec.Command(argv[0], argv[1:]...)
		in, err := cmd.StdinPipe()
		if err != nil {
			b.t.Fatal(err)
		}
		pipe, err := cmd.StdoutPipe()
		if err != nil {
			b.t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			b.t.Fatal(err)
		}
		b.t.Cleanup(func() { in.Close(); cmd.Wait() })
		out := bufio.NewReader(pipe)
		var got wire.Copied
		for err == nil && !got.Lingers && got.Unheld == "" {
			var line []byte
			if line, err = out.ReadBytes('\n'); err == nil {
				got = wire.Copied{}
				err = json.Unmarshal(line, &got)
			}
			if err == nil && len(got.Challenge) > 0 {
				var request []byte
				if request, err = guest.SignHold(key, got.Challenge); err == nil {
					_, err = in.Write(request)
				}
			}
		}
		if got.Lingers {
			return in, out
		}
		if err != nil || time.Now().After(deadline) { // a busy machine lets processes stand too late
			b.t.Fatalf("copy during a hold: %+v, %v", got, err)
		}
		in.Close()
	}
}

// What copies during a hold keeps it for as long as its caller says that it lives, and no longer,
// although it could.
func TestHoldOfACopyEndsWithItsCaller(t *testing.T) {
	t.Parallel()
	for _, silent := range []bool{true, false} {
		t.Run(fmt.Sprintf("silent %t", silent), func(t *testing.T) {
			t.Parallel()
			b, conn, server, key := heldBox(t)
			start(t, conn, sh("echo on; while :; do sleep 0.02; done")...)
			goesOn := func() bool { return !slices.ContainsFunc(descendants(t, server), stopped) }
			in, out := b.copyHeld(key)
			began := time.Now()
			if silent {
				eventually(t, "they go on", goesOn)
				if took := time.Since(began); took < wire.HoldSilence/2 {
					t.Errorf("they go on after %v, want %v", took, wire.HoldSilence)
				}
				return
			}
			for time.Since(began) < wire.HoldSilence+2*time.Second { // longer than PID 1, too, waits
				if _, err := io.WriteString(in, wire.CopyBeat); err != nil || goesOn() {
					t.Fatalf("the hold ended after %v: %v", time.Since(began), err)
				}
				time.Sleep(wire.HoldSilence / 10)
			}
			if _, err := io.WriteString(in, "\n"); err != nil {
				t.Fatal(err)
			}
			var last wire.Copied
			line, err := out.ReadBytes('\n')
			if err := errors.Join(err, json.Unmarshal(line, &last)); err != nil || !last.Done || last.Moved != "" {
				t.Errorf("after the order to end: %s, %v, want the last line", line, err)
			}
			eventually(t, "they go on", goesOn)
		})
	}
}

// One hold at a time: the second begins when the first is over, and not at all if nobody waits for
// it any more.
func TestHoldsComeOneByOne(t *testing.T) {
	t.Parallel()
	b, conn, server, key := heldBox(t)
	start(t, conn, sh("echo on; while :; do sleep 0.02; done")...)
	first, gone, second := b.hold(key), b.dialControl(), b.dialControl()
	if err := errors.Join(gone.request(key), second.request(key)); err != nil {
		t.Fatal(err)
	}
	gone.Close()
	if moved := first.release(t); moved != "" {
		t.Errorf("moved: %q", moved)
	}
	var reply wire.Reply
	if err := second.line(&reply); err != nil {
		t.Fatalf("the second hold: %+v, %v", reply, err)
	}
	if !reply.Held {
		second = b.hold(key) // it had its turn, and processes stood too late
	}
	for _, pid := range descendants(t, server) {
		if !stopped(pid) {
			t.Errorf("process %d is in state %q in the second hold", pid, states(pid))
		}
	}
	if moved := second.release(t); moved != "" {
		t.Errorf("moved: %q", moved)
	}
}

// What runs although it is held, or comes from outside, is noticed.
func TestHoldNoticesWhatRuns(t *testing.T) {
	t.Parallel()
	b, conn, server, key := heldBox(t)
	_, p := start(t, conn, sh("echo on; while :; do sleep 0.02; done")...)
	loop := childrenOf(server)[0]
	for name, do := range map[string]func(){
		"continued": func() { unix.Kill(loop, unix.SIGCONT) },
		"continued and stopped": func() {
			thaw(t, loop)
			eventually(t, "it runs", func() bool { return !stopped(loop) })
			freeze(t, loop)
		},
		"came and went": func() {
			if out, err := exec.Command(b.in("/bin/true")[0], b.in("/bin/true")[1:]...).CombinedOutput(); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
		},
		"came": func() {
			cmd := exec.Command(b.in("/bin/sleep", "1000")[0], b.in("/bin/sleep", "1000")[1:]...)
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				for _, pid := range childrenOf(cmd.Process.Pid) {
					unix.Kill(pid, unix.SIGKILL)
				}
				cmd.Process.Kill() // what entered the namespaces stops when its child does
				cmd.Wait()
			})
			eventually(t, "it is inside", func() bool { return len(childrenOf(cmd.Process.Pid)) > 0 })
		},
	} {
		h := b.hold(key)
		do()
		moved := h.release(t)
		t.Logf("%s: %q", name, moved)
		if moved == "" {
			t.Errorf("%s: nothing was noticed", name)
		}
	}
	if moved := b.hold(key).release(t); moved != "" {
		t.Errorf("a hold in which nothing runs: %q", moved)
	}
	p.Close()
}

// A connection of the owner's that is made during a hold is none that has to be noticed.
func TestOwnerConnectsDuringAHold(t *testing.T) {
	t.Parallel()
	dir := t.TempDir() // removed after the processes that write in it
	b, conn, _, key := heldBox(t)
	start(t, conn, sh("echo on; while :; do sleep 0.02; done")...)
	h := b.hold(key)
	another := b.serve()
	if _, err := another.Control(t.Context(), key, wire.Control{Op: wire.OpStatus}); err != nil {
		t.Fatalf("Control by a connection that is made during a hold: %v", err)
	}
	started := make(chan error, 1)
	go func() {
		p, err := another.Exec(t.Context(), wire.Exec{Args: []string{"touch", dir + "/exec"}})
		if err == nil {
			_, err = p.Wait()
		}
		started <- err
	}()
	time.Sleep(30 * time.Millisecond) // for it to start, if it could
	if files := sizes(t, dir); files != "" {
		t.Errorf("a command started during a hold: %s", files)
	}
	if moved := h.release(t); moved != "" {
		t.Errorf("moved: %q", moved)
	}
	if err := <-started; err != nil {
		t.Error(err)
	}
}

// Whoever asks for holds to be announced is stopped like any other, unless the owner has sent
// requests through it.
func TestHoldStopsWhoClaimsToBeTheGuests(t *testing.T) {
	t.Parallel()
	b, conn, server, key := heldBox(t)
	start(t, conn, self("gatecrasher")...)
	h := b.hold(key)
	for _, pid := range descendants(t, server) {
		if !stopped(pid) {
			t.Errorf("process %d is in state %q", pid, states(pid))
		}
	}
	if moved := h.release(t); moved != "" {
		t.Errorf("moved: %q", moved)
	}
}

// gatecrasher behaves as a server of the owner's does.
func gatecrasher() error {
	conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Net: "unix", Name: wire.ControlSocket})
	if err != nil {
		return err
	}
	if _, err := io.WriteString(conn, wire.GateRequest); err != nil {
		return err
	}
	fmt.Println("on")
	for r := bufio.NewReader(conn); ; {
		line, err := r.ReadString('\n')
		if err != nil {
			for { // PID 1 does not keep it
				time.Sleep(time.Millisecond)
			}
		}
		if line == wire.GateClose {
			io.WriteString(conn, wire.GateClosed)
		}
	}
}

// A process that is still the OCI runtime's is not stopped: the engine waits for it, and would
// answer nothing more about the container.
func TestHoldLeavesTheRuntimeAlone(t *testing.T) {
	t.Parallel()
	b, _, _, key := heldBox(t)
	var pipe [2]int
	if err := unix.Pipe2(pipe[:], unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	nascent := 0
	if err := b.inNamespace("pid", unix.CLONE_NEWPID, func() (err error) {
		nascent, err = forkWithoutExec(pipe[0])
		return err
	}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		unix.Kill(nascent, unix.SIGKILL)
		unix.Wait4(nascent, nil, 0, nil)
		unix.Close(pipe[0])
		unix.Close(pipe[1])
	})
	h := b.hold(key)
	if s := states(nascent); s != "S" {
		t.Errorf("a process that has executed nothing is in state %q during a hold", s)
	}
	if moved := h.release(t); moved == "" {
		t.Error("nobody noticed a process that was not stopped")
	}
}

// forkWithoutExec forks a process that reads fd and executes nothing, by raw system calls: it has
// none of Go's threads.
func forkWithoutExec(fd int) (int, error) {
	var buf byte
	pid, _, errno := syscall.RawSyscall6(syscall.SYS_CLONE, uintptr(unix.SIGCHLD), 0, 0, 0, 0, 0)
	if errno != 0 {
		return 0, errno
	}
	if pid == 0 {
		for {
			syscall.RawSyscall(syscall.SYS_READ, uintptr(fd), uintptr(unsafe.Pointer(&buf)), 1)
		}
	}
	return int(pid), nil
}

// A parent waits in the kernel, where no signal stops it, for a child that is stopped between vfork
// and execve. It stands still all the same, once the child has been let go on.
func TestHoldOfAParentThatWaitsForVfork(t *testing.T) {
	t.Parallel()
	b, conn, server, key := heldBox(t)
	start(t, conn, self("vfork")...)
	for range 5 {
		h := b.hold(key)
		for _, pid := range descendants(t, server) {
			if !stopped(pid) {
				t.Errorf("process %d is in state %q", pid, states(pid))
			}
		}
		if moved := h.release(t); moved != "" {
			t.Errorf("moved: %q", moved)
		}
	}
}

// vfork has children, one after the other, that take a while before they end.
func vfork() {
	fmt.Println("on")
	for {
		pid, _, errno := syscall.RawSyscall6(syscall.SYS_CLONE, unix.CLONE_VFORK|uintptr(unix.SIGCHLD), 0, 0, 0, 0, 0)
		if errno == 0 && pid == 0 {
			for range 20000 { // some milliseconds
				syscall.RawSyscall(syscall.SYS_GETPPID, 0, 0, 0)
			}
			syscall.RawSyscall(syscall.SYS_EXIT_GROUP, 0, 0, 0)
		}
		unix.Wait4(int(pid), nil, 0, nil)
	}
}

// A parent that gets no CPU time does not see that its child was stopped: that happens after it
// stands still itself.
func TestHoldOfAParentWithoutCPUTime(t *testing.T) {
	t.Parallel()
	b, conn, _, key := heldBox(t)
	var cpus unix.CPUSet
	if err := unix.SchedGetaffinity(0, &cpus); err != nil {
		t.Fatal(err)
	}
	cpu := 0
	for !cpus.IsSet(cpu) {
		cpu++
	}
	noticed := filepath.Join(t.TempDir(), "noticed")
	start(t, conn, self("starved", strconv.Itoa(cpu), noticed)...)
	for range 3 {
		go func() { // takes that CPU
			runtime.LockOSThread() // and never unlocked
			var one unix.CPUSet
			one.Set(cpu)
			realTime := unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_FIFO, Priority: 1}
			if err := errors.Join(unix.SchedSetaffinity(0, &one), unix.SchedSetAttr(0, &realTime, 0)); err != nil {
				t.Error(err)
			}
			for begin := time.Now(); time.Since(begin) < 100*time.Millisecond; {
			}
		}()
		time.Sleep(10 * time.Millisecond) // it has the CPU
		if moved := b.hold(key).release(t); moved != "" {
			t.Errorf("moved: %q", moved)
		}
	}
	if text, err := os.ReadFile(noticed); err == nil {
		t.Errorf("the parent has seen %s", text)
	}
}

// starved waits for a child to end or to stop, on one CPU.
func starved(cpu int, noticed string) error {
	runtime.LockOSThread()
	child := exec.Command("sleep", "1000")
	if err := child.Start(); err != nil {
		return err
	}
	var one unix.CPUSet
	one.Set(cpu)
	if err := unix.SchedSetaffinity(0, &one); err != nil {
		return err
	}
	fmt.Println("on")
	var status unix.WaitStatus
	if _, err := unix.Wait4(child.Process.Pid, &status, unix.WUNTRACED, nil); err != nil {
		return err
	}
	return os.WriteFile(noticed, fmt.Appendf(nil, "that its child is stopped: %t", status.Stopped()), 0o600)
}

// However fast they fork, either all stand still or none is stopped.
func TestHoldOfAForkBomb(t *testing.T) {
	t.Parallel()
	b, conn, server, key := heldBox(t)
	for range 3 {
		start(t, conn, sh("echo on; while :; do (sh -c 'sleep 0.02' &); sleep 0.001; done")...)
	}
	for range 5 {
		h := b.dialControl()
		var reply wire.Reply
		if err := errors.Join(h.request(key), h.line(&reply)); err != nil {
			t.Fatalf("hold: %v", err)
		}
		if reply.Held {
			for _, pid := range descendants(t, server) {
				if !stopped(pid) {
					t.Errorf("process %d is in state %q", pid, states(pid))
				}
			}
			if moved := h.release(t); moved != "" {
				t.Errorf("moved: %q", moved)
			}
		} else {
			t.Logf("not held: %s", reply.Error)
		}
	}
	wantNoneStopped(t, b)
}

// wantNoneStopped fails if a process of the box stays stopped.
func wantNoneStopped(t *testing.T, b *box) {
	t.Helper()
	mine, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/pid", b.cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "nothing is stopped", func() bool {
		all, _ := filepath.Glob("/proc/[0-9]*")
		for _, dir := range all {
			if ns, err := os.Readlink(dir + "/ns/pid"); err == nil && ns == mine {
				if pid, _ := strconv.Atoi(filepath.Base(dir)); strings.Contains(states(pid), "T") {
					return false
				}
			}
		}
		return true
	})
}

// Holders, the owner's servers and other processes die at any step. A hold in which PID 1 has seen
// nothing run was one, and in the end nothing is stopped and the gates are open.
func TestHoldsAmongDeaths(t *testing.T) {
	t.Parallel()
	dir := t.TempDir() // removed after the processes that write in it
	b, conn, server, key := heldBox(t)
	start(t, conn, self("write", dir)...)
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	var all sync.WaitGroup
	part := func(rounds int, f func(r *rand.Rand)) {
		r := rand.New(rand.NewPCG(random.Uint64(), 0))
		all.Go(func() {
			for range rounds {
				f(r)
			}
		})
	}
	nap := func(r *rand.Rand) { time.Sleep(time.Duration(r.IntN(3000)) * time.Microsecond) }
	var still, moved atomic.Int64
	for range 4 {
		part(20, func(r *rand.Rand) {
			h := b.dialControl()
			defer h.Close()
			var held, released wire.Reply
			var before, after string
			verdict := false
			steps := []func() error{
				func() error { return h.request(key) },
				func() error { return h.line(&held) },
				func() error { before = sizes(t, dir); return nil },
				func() error { _, err := io.WriteString(h, wire.HoldBeat); return err },
				func() error { after = sizes(t, dir); return nil },
				func() error { _, err := io.WriteString(h, wire.HoldRelease); return err },
				func() error { err := h.line(&released); verdict = err == nil; return err },
			}
			for _, step := range steps[:r.IntN(len(steps)+1)] {
				if step() != nil {
					return
				}
				nap(r)
			}
			switch {
			case !held.Held || !verdict:
			case released.Moved != "":
				moved.Add(1)
			default:
				still.Add(1)
				if before != after {
					t.Errorf("files change during a hold in which nothing ran, from %s to %s", before, after)
				}
			}
		})
	}
	part(20, func(r *rand.Rand) { // servers
		conn, cmd := serve(t, b.in(binary, wire.VerbServe)...)
		entered := children(t, cmd.Process.Pid)
		known, ended := r.IntN(4) > 0, make(chan struct{})
		go func() {
			defer close(ended)
			if known {
				_, _ = conn.Control(t.Context(), key, wire.Control{Op: wire.OpStatus})
			}
			if p, err := conn.Exec(t.Context(), wire.Exec{Args: sh("echo x >>" + dir + "/exec")}); err == nil {
				_, _ = p.Wait()
			}
		}()
		nap(r)
		for _, pid := range entered {
			unix.Kill(pid, unix.SIGKILL)
		}
		cmd.Process.Kill() // what entered the namespaces stops when its child does
		<-ended
	})
	part(20, func(*rand.Rand) { // processes, some of which never get to their first line
		if _, err := conn.Exec(t.Context(), wire.Exec{Args: sh("while :; do echo x >>" + dir + "/loop; sleep 0.05; done")}); err != nil {
			t.Errorf("Exec: %v", err)
		}
	})
	part(200, func(r *rand.Rand) {
		nap(r)
		if running := descendants(t, server); len(running) > 0 && r.IntN(8) == 0 {
			unix.Kill(running[r.IntN(len(running))], unix.SIGKILL)
		}
	})
	all.Wait()
	t.Logf("%d holds in which nothing ran, %d in which something did", still.Load(), moved.Load())
	wantNoneStopped(t, b)
	run(t, conn, wire.Exec{Args: []string{"true"}})
	eventually(t, "a hold in which nothing runs", func() bool { return b.hold(key).release(t) == "" })
}
