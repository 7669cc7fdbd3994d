//go:build linux

package guest_test

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strconv"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/seed-1a2d6d8f/sandbox/internal/guest/wire"
)

// What root inside tries on PID 1. Each part runs in the box as a helper process.

// sendSignals sends every signal in every way there is.
func sendSignals() {
	threads := []int{1}
	if dir, err := os.ReadDir("/proc/1/task"); err == nil {
		threads = nil
		for _, e := range dir {
			n, _ := strconv.Atoi(e.Name())
			threads = append(threads, n)
		}
	}
	fd, _ := unix.PidfdOpen(1, 0)
	sent := 0
	count := func(err error) {
		if err == nil {
			sent++
		}
	}
	for range 3 {
		for n := 1; n <= 64; n++ {
			sig := syscall.Signal(n)
			count(unix.Kill(1, sig))
			// A queued signal looks to Go's runtime like a real fault, and may say
			// that it comes from outside (PID 0).
			info := siginfo{signo: int32(n), code: -1}
			_, _, errno := unix.RawSyscall(unix.SYS_RT_SIGQUEUEINFO, 1, uintptr(n), uintptr(unsafe.Pointer(&info)))
			if errno == 0 {
				sent++
			}
			if fd >= 0 {
				count(unix.PidfdSendSignal(fd, sig, nil, 0))
			}
			for _, tid := range threads {
				count(unix.Tgkill(1, tid, sig))
				unix.RawSyscall6(unix.SYS_RT_TGSIGQUEUEINFO, 1, uintptr(tid), uintptr(n), uintptr(unsafe.Pointer(&info)), 0, 0)
			}
		}
	}
	fmt.Println("sent", sent)
}

type siginfo struct {
	signo, errno, code, _ int32
	pid, uid              int32
	_                     [128 - 24]byte
}

// pry tries to look into PID 1 and serve and to take them over, and then does the same to a
// process of its own. It prints one line for each attempt.
func pry() {
	attempts("1", 1)
	attempts("serve", os.Getppid())
	victim := exec.Command("sleep", "1000")
	if err := victim.Start(); err != nil {
		fmt.Println(err)
		return
	}
	// Start returns in the middle of execve, before the kernel knows where the environment is.
	for range 1000 {
		if environ, _ := os.ReadFile(fmt.Sprintf("/proc/%d/environ", victim.Process.Pid)); len(environ) > 0 {
			break
		}
		time.Sleep(time.Millisecond)
	}
	attempts("own", victim.Process.Pid)
	victim.Process.Kill()
	victim.Wait()
}

func attempts(who string, pid int) {
	say := func(what string, err error) {
		verdict := "refused"
		if err == nil {
			verdict = "done"
		}
		fmt.Println(who, what, verdict)
	}
	for _, name := range []string{"mem", "environ", "maps", "auxv"} {
		f, err := os.Open(fmt.Sprintf("/proc/%d/%s", pid, name))
		if err == nil {
			_, err = f.Read(make([]byte, 1))
			if name == "mem" { // offset 0 is nobody's
				err = nil
			}
			f.Close()
		}
		say(name, err)
	}
	for _, name := range []string{"exe", "cwd", "root"} {
		_, err := os.Readlink(fmt.Sprintf("/proc/%d/%s", pid, name))
		say(name, err)
	}
	_, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if err == nil {
		_, err = os.Readlink(fmt.Sprintf("/proc/%d/fd/0", pid))
	}
	say("fd", err)
	if err = unix.PtraceSeize(pid); err == nil {
		unix.PtraceDetach(pid)
	}
	say("ptrace", err)
	fd, err := unix.PidfdOpen(pid, 0)
	if err == nil {
		_, err = unix.PidfdGetfd(fd, 0, 0)
		unix.Close(fd)
	}
	say("pidfd_getfd", err)
	var limit unix.Rlimit
	for _, l := range []struct {
		name     string
		resource int
	}{{"nofile", unix.RLIMIT_NOFILE}, {"cpu", unix.RLIMIT_CPU}, {"as", unix.RLIMIT_AS}} {
		if err = unix.Prlimit(pid, l.resource, nil, &limit); err == nil {
			err = unix.Prlimit(pid, l.resource, &limit, nil)
		}
		say("prlimit-"+l.name, err)
	}
}

// flood keeps the control socket as busy as it can, from one process.
func flood() {
	addr := &net.UnixAddr{Net: "unix", Name: wire.ControlSocket}
	long := bytes.Repeat([]byte("x"), 2*wire.MaxControlLine)
	for worker := range 8 {
		go func() {
			var held []net.Conn
			for i := worker; ; i++ {
				conn, err := net.DialUnix("unix", nil, addr)
				if err != nil {
					time.Sleep(time.Millisecond)
					continue
				}
				switch i % 4 {
				case 0:
					conn.SetWriteDeadline(time.Now().Add(time.Millisecond))
					conn.Write(long)
				case 1:
					conn.Write([]byte("{}\n{\"payload\":\"e30=\",\"signature\":\"AAAA\"}\n\x00"))
				}
				if held = append(held, conn); len(held) > 100 {
					held[0].Close()
					held = held[1:]
				}
			}
		}()
	}
	fmt.Println("flooding")
	select {}
}
