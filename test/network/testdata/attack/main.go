//go:build linux

// Command attack is what root inside a sandbox tries on PID 1 and on the network
// policy. pid1_test.go builds it, puts it into a sandbox and reads what it says: one
// line for each attempt, "name: done" or "name: refused (why)".
package main

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

func main() {
	runtime.LockOSThread() // capabilities are the thread's
	switch os.Args[1] {
	case "signals": // pid: every signal, in every way
		signals(number(os.Args[2]))
	case "pry": // pid: look into it, take it over
		pry(number(os.Args[2]))
	case "gain": // capabilities and what they would be for
		gain()
	case "control": // socket name: talk PID 1 into something
		control(os.Args[2])
	case "wait": // to be the victim
		fmt.Println("waiting")
		time.Sleep(time.Hour)
	case "caps":
		status, err := os.ReadFile("/proc/self/status")
		say("read", err)
		for line := range strings.Lines(string(status)) {
			if strings.HasPrefix(line, "Cap") {
				fmt.Print(line)
			}
		}
	}
}

func number(s string) int {
	n, err := strconv.Atoi(s)
	if err != nil {
		fmt.Println(err)
		os.Exit(2)
	}
	return n
}

func say(what string, err error) {
	if err == nil {
		fmt.Printf("%s: done\n", what)
	} else {
		fmt.Printf("%s: refused (%s)\n", what, strings.ReplaceAll(err.Error(), "\n", "; "))
	}
}

// siginfo is struct siginfo as rt_sigqueueinfo takes it.
type siginfo struct {
	signo, errno, code, _ int32
	pid, uid              int32
	_                     [128 - 24]byte
}

func signals(pid int) {
	threads := []int{pid}
	if dir, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid)); err == nil {
		threads = nil
		for _, e := range dir {
			threads = append(threads, number(e.Name()))
		}
	}
	fd, _ := unix.PidfdOpen(pid, 0)
	sent := 0
	count := func(errs ...error) {
		for _, err := range errs {
			if err == nil {
				sent++
			}
		}
	}
	for n := 1; n <= 64; n++ {
		sig := syscall.Signal(n)
		// A queued one may say that it comes from the kernel or from outside (PID 0).
		info := &siginfo{signo: int32(n), code: -1}
		queue := func(trap uintptr, args ...uintptr) error {
			args = append(args, uintptr(n), uintptr(unsafe.Pointer(info)), 0, 0, 0)
			if _, _, errno := unix.RawSyscall6(trap, args[0], args[1], args[2], args[3], 0, 0); errno != 0 {
				return errno
			}
			return nil
		}
		count(unix.Kill(pid, sig), queue(unix.SYS_RT_SIGQUEUEINFO, uintptr(pid)))
		if fd >= 0 {
			count(unix.PidfdSendSignal(fd, sig, nil, 0))
		}
		for _, tid := range threads {
			count(unix.Tgkill(pid, tid, sig), queue(unix.SYS_RT_TGSIGQUEUEINFO, uintptr(pid), uintptr(tid)))
		}
	}
	fmt.Println("sent", sent)
}

func pry(pid int) {
	proc := fmt.Sprintf("/proc/%d/", pid)
	for _, name := range []string{"environ", "auxv", "maps", "smaps", "io", "personality", "stack", "syscall", "pagemap", "numa_maps", "timers", "map_files"} {
		f, err := os.Open(proc + name)
		if err == nil {
			if name == "map_files" {
				_, err = f.Readdirnames(-1)
			} else if _, err = f.Read(make([]byte, 8)); err != nil && name == "timers" {
				err = nil // an empty file: there are none
			}
			f.Close()
		}
		say("proc-"+name, err)
	}
	// Reading at an address that surely is there: where a Go program's text begins.
	mem, err := os.OpenFile(proc+"mem", os.O_RDWR, 0)
	if err == nil {
		mem.Close()
	}
	say("proc-mem", err)
	for _, name := range []string{"exe", "cwd", "root"} {
		_, err := os.Readlink(proc + name)
		say("link-"+name, err)
	}
	_, err = os.Open(proc + "root/etc/passwd")
	say("through-root", err)
	_, err = os.Open(proc + "exe")
	say("through-exe", err)
	fds, err := os.ReadDir(proc + "fd")
	if err == nil && len(fds) > 0 {
		_, err = os.Readlink(proc + "fd/" + fds[0].Name())
	}
	say("proc-fd", err)
	_, err = os.ReadDir(proc + "fdinfo")
	say("proc-fdinfo", err)
	for _, ns := range []string{"net", "mnt", "pid", "user"} {
		f, err := os.Open(proc + "ns/" + ns)
		if err == nil {
			f.Close()
		}
		say("open-ns-"+ns, err)
	}

	letGo := func() {
		var ws unix.WaitStatus
		unix.Wait4(pid, &ws, unix.WALL, nil)
		unix.PtraceDetach(pid)
	}
	if err = unix.PtraceSeize(pid); err == nil {
		unix.PtraceInterrupt(pid)
		letGo()
	}
	say("ptrace-seize", err)
	if err = unix.PtraceAttach(pid); err == nil {
		letGo()
	}
	say("ptrace-attach", err)
	buf := make([]byte, 8)
	local := []unix.Iovec{{Base: &buf[0]}}
	local[0].SetLen(len(buf))
	// Our own text's address: the victim of the positive control is this program, too.
	remote := []unix.RemoteIovec{{Base: textAddress(), Len: len(buf)}}
	_, err = unix.ProcessVMReadv(pid, local, remote, 0)
	say("process_vm_readv", err)
	fd, err := unix.PidfdOpen(pid, 0)
	if err == nil {
		_, err = unix.PidfdGetfd(fd, 0, 0)
	}
	say("pidfd_getfd", err)
	for name, resource := range map[string]int{"nofile": unix.RLIMIT_NOFILE, "cpu": unix.RLIMIT_CPU, "as": unix.RLIMIT_AS, "data": unix.RLIMIT_DATA, "nproc": unix.RLIMIT_NPROC, "stack": unix.RLIMIT_STACK} {
		var limit unix.Rlimit
		if err = unix.Prlimit(pid, resource, nil, &limit); err == nil {
			err = unix.Prlimit(pid, resource, &limit, nil) // the same again: nobody is hurt
		}
		say("prlimit-"+name, err)
	}
	_, _, errno := unix.Syscall6(unix.SYS_KCMP, uintptr(os.Getpid()), uintptr(pid), 1, 0, 0, 0)
	say("kcmp", number0(errno))
}

func number0(e syscall.Errno) error {
	if e == 0 {
		return nil
	}
	return e
}

var text = [8]byte{1, 2, 3}

func textAddress() uintptr { return uintptr(unsafe.Pointer(&text)) }

// gain tries to get at what the sandbox must not have: NET_ADMIN, NET_RAW, MKNOD and
// what follows from them.
func gain() {
	sock := func(what string, domain, kind, proto int) {
		fd, err := unix.Socket(domain, kind, proto)
		if err == nil {
			unix.Close(fd)
		}
		say(what, err)
	}
	sock("packet", unix.AF_PACKET, unix.SOCK_RAW, 0x0300)
	sock("packet-dgram", unix.AF_PACKET, unix.SOCK_DGRAM, 0x0300)
	sock("raw-icmp", unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_ICMP)
	sock("raw-tcp", unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_TCP)
	sock("raw-ip", unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_RAW)
	sock("raw6", unix.AF_INET6, unix.SOCK_RAW, unix.IPPROTO_ICMPV6)
	if fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0); err == nil {
		say("SO_MARK", unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_MARK, 1))
		say("SO_PRIORITY-7", unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PRIORITY, 7))
		say("IP_TRANSPARENT", unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_TRANSPARENT, 1))
		unix.Close(fd)
	}
	say("nftables", netfilter())
	say("link-down", linkDown())
	say("capset", capset())
	for name, flag := range map[string]uintptr{
		"user": unix.CLONE_NEWUSER, "net": unix.CLONE_NEWNET, "mnt": unix.CLONE_NEWNS, "pid": unix.CLONE_NEWPID,
		"user-net": unix.CLONE_NEWUSER | unix.CLONE_NEWNET, "user-mnt": unix.CLONE_NEWUSER | unix.CLONE_NEWNS,
	} {
		child := exec.Command("true")
		child.SysProcAttr = &syscall.SysProcAttr{Cloneflags: flag}
		say("namespace-"+name, child.Run())
	}
	say("mount-proc", unix.Mount("proc", "/mnt", "proc", 0, ""))
	say("mount-tmpfs", unix.Mount("tmpfs", "/mnt", "tmpfs", 0, ""))
	say("mount-bind", unix.Mount("/etc", "/mnt", "", unix.MS_BIND, ""))
	say("mknod-mem", unix.Mknod("/tmp/attack-mem", unix.S_IFCHR|0o600, 1<<8|1))
	say("inheritable", inherit())
	say("ambient", unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_RAISE, unix.CAP_NET_ADMIN, 0, 0))
	ns, err := os.Open("/proc/1/ns/net")
	if err == nil {
		err = unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET)
	}
	say("setns-net", err)
	// The guest's own program, and the rest of PID 1's belongings.
	guest, err := filepath.Glob("/.agent-sandbox*")
	if err != nil || len(guest) != 1 {
		fmt.Println("the guest's directory:", guest, err)
		os.Exit(2)
	}
	say("overwrite-guest", write(guest[0]+"/guest"))
	say("add-to-guest", os.WriteFile(guest[0]+"/x", nil, 0o755))
	say("remount-guest", unix.Mount("", guest[0], "", unix.MS_REMOUNT|unix.MS_BIND, ""))
	say("umount-guest", unix.Unmount(guest[0], unix.MNT_DETACH))
	say("move-guest", os.Rename(guest[0], "/moved"))
	say("sysrq", write("/proc/sysrq-trigger"))
	say("ip_forward", write("/proc/sys/net/ipv4/ip_forward"))
	say("core_pattern", write("/proc/sys/kernel/core_pattern"))
	// As a file: with NET_ADMIN in its capabilities, and as set-user-ID root.
	self, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		fmt.Println(err)
		os.Exit(2)
	}
	os.MkdirAll("/tmp/attack.d", 0o777)
	setuid := filepath.Join("/tmp/attack.d", "setuid")
	os.Remove(setuid)
	os.WriteFile(setuid, self, 0o755)
	say("make-setuid", unix.Chmod(setuid, 0o4755))
	for name, bits := range map[string]uint32{"filecap": 1 << unix.CAP_NET_ADMIN, "filecap-allowed": 1 << unix.CAP_KILL} {
		path := filepath.Join("/tmp/attack.d", name)
		os.Remove(path)
		os.WriteFile(path, self, 0o755)
		attr := make([]byte, 20)
		binary.LittleEndian.PutUint32(attr, 0x02000000|1) // revision 2, effective
		binary.LittleEndian.PutUint32(attr[4:], bits)
		say("make-"+name, unix.Setxattr(path, "security.capability", attr, 0))
	}
}

func write(path string) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err == nil {
		f.Close()
	}
	return err
}

// netfilter asks to make a table, and takes it away again.
func netfilter() error {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_NETFILTER)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	name := append([]byte{11, 0, 1, 0}, append([]byte("attack"), 0, 0)...)
	msg := func(kind, flags uint16, seq uint32, family byte, resID uint16, body []byte) []byte {
		b := make([]byte, 20, 20+len(body))
		binary.NativeEndian.PutUint32(b, uint32(20+len(body)))
		binary.NativeEndian.PutUint16(b[4:], kind)
		binary.NativeEndian.PutUint16(b[6:], flags)
		binary.NativeEndian.PutUint32(b[8:], seq)
		b[16] = family
		binary.BigEndian.PutUint16(b[18:], resID)
		return append(b, body...)
	}
	const nftables = 10
	batch := bytes.Join([][]byte{
		msg(0x10, unix.NLM_F_REQUEST, 1, 0, nftables, nil),
		msg(nftables<<8, unix.NLM_F_REQUEST|unix.NLM_F_ACK|unix.NLM_F_CREATE, 2, unix.AF_INET, 0, name),
		msg(nftables<<8|2, unix.NLM_F_REQUEST, 3, unix.AF_INET, 0, name),
		msg(0x11, unix.NLM_F_REQUEST, 4, 0, nftables, nil),
	}, nil)
	if err := unix.Sendto(fd, batch, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return err
	}
	return answer(fd)
}

// linkDown asks to set the loopback interface up, which it is.
func linkDown() error {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_ROUTE)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	b := make([]byte, 32)
	binary.NativeEndian.PutUint32(b, 32)
	binary.NativeEndian.PutUint16(b[4:], unix.RTM_NEWLINK)
	binary.NativeEndian.PutUint16(b[6:], unix.NLM_F_REQUEST|unix.NLM_F_ACK)
	binary.NativeEndian.PutUint32(b[20:], 1)           // the first interface
	binary.NativeEndian.PutUint32(b[24:], unix.IFF_UP) // as it is
	binary.NativeEndian.PutUint32(b[28:], unix.IFF_UP)
	if err := unix.Sendto(fd, b, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return err
	}
	return answer(fd)
}

func answer(fd int) error {
	buf := make([]byte, 8192)
	n, _, err := unix.Recvfrom(fd, buf, 0)
	if err != nil {
		return err
	}
	if n >= 20 && binary.NativeEndian.Uint16(buf[4:]) == unix.NLMSG_ERROR {
		if code := int32(binary.NativeEndian.Uint32(buf[16:])); code != 0 {
			return syscall.Errno(-code)
		}
	}
	return nil
}

func inherit() error {
	return change(func(data *unix.CapUserData) { data.Inheritable |= 1 << unix.CAP_NET_ADMIN })
}

func capset() error {
	return change(func(data *unix.CapUserData) {
		data.Permitted |= 1 << unix.CAP_NET_ADMIN
		data.Effective |= 1 << unix.CAP_NET_ADMIN
	})
}

func change(set func(*unix.CapUserData)) error {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&header, &data[0]); err != nil {
		return err
	}
	set(&data[0])
	return unix.Capset(&header, &data[0])
}

// control says everything but the right thing to PID 1's socket.
func control(name string) {
	for _, line := range []string{
		"", "\n", "{}\n", "null\n", "[]\n", "\x00\n",
		`{"payload":"eyJvcCI6InJlbGVhc2UifQ==","signature":""}` + "\n",
		`{"payload":"eyJvcCI6ImxlYXNlIiwibGVhc2UiOjF9","signature":"` + strings.Repeat("A", 86) + `=="}` + "\n",
		strings.Repeat("x", 1<<20),
	} {
		conn, err := net.Dial("unix", name)
		if err != nil {
			say("dial", err)
			continue
		}
		_, werr := conn.Write([]byte(line))
		if c, ok := conn.(*net.UnixConn); ok {
			c.CloseWrite()
		}
		var all bytes.Buffer
		_, rerr := all.ReadFrom(conn)
		conn.Close()
		lines := strings.Split(strings.TrimSpace(all.String()), "\n")
		last := lines[len(lines)-1]
		err = errors.Join(errors.New("not obeyed"), werr, rerr)
		if len(lines) > 1 && !strings.Contains(last, `"error"`) {
			err = nil
		}
		say(fmt.Sprintf("control-%.20q", line), err)
	}
	// To be in its place.
	l, err := net.Listen("unix", name)
	if err == nil {
		l.Close()
	}
	say("impersonate", err)
}
