//go:build linux

package egress

import (
	"io"
	"net"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// relay copies both ways until both sides have ended, each end by itself.
func relay(a, b *net.TCPConn) {
	var both sync.WaitGroup
	one := func(to, from *net.TCPConn) {
		if err := splice(to, from); err != nil {
			reset(to)
			reset(from)
			return
		}
		to.CloseWrite()
	}
	both.Go(func() { one(a, b) })
	one(b, a)
	both.Wait()
}

// splice moves bytes within the kernel until from has ended. io.Copy does that, too, but by
// system calls that Go's scheduler expects to block: after 20 µs, which these take, it
// hands the processor to another thread.
func splice(to, from *net.TCPConn) error {
	var pipe [2]int
	if err := unix.Pipe2(pipe[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
		_, err := io.Copy(to, from)
		return err
	}
	defer unix.Close(pipe[0])
	defer unix.Close(pipe[1])
	const size = 1 << 20
	unix.FcntlInt(uintptr(pipe[0]), unix.F_SETPIPE_SZ, size)
	in, err := from.SyscallConn()
	if err != nil {
		return err
	}
	out, err := to.SyscallConn()
	if err != nil {
		return err
	}
	for {
		n, err := move(in.Read, func(fd uintptr) (uintptr, syscall.Errno) { return spliceOnce(fd, uintptr(pipe[1]), size) })
		if n == 0 || err != nil {
			return err
		}
		for n > 0 {
			m, err := move(out.Write, func(fd uintptr) (uintptr, syscall.Errno) { return spliceOnce(uintptr(pipe[0]), fd, n) })
			if err != nil {
				return err
			}
			n -= m
		}
	}
}

func spliceOnce(from, to uintptr, n int) (uintptr, syscall.Errno) {
	m, _, errno := unix.RawSyscall6(unix.SYS_SPLICE, from, 0, to, 0, uintptr(n), unix.SPLICE_F_NONBLOCK|unix.SPLICE_F_MOVE)
	return m, errno
}

// move makes a system call once the connection is ready for it.
func move(ready func(func(uintptr) bool) error, call func(fd uintptr) (uintptr, syscall.Errno)) (int, error) {
	var n uintptr
	var errno syscall.Errno
	err := ready(func(fd uintptr) bool {
		for {
			if n, errno = call(fd); errno != unix.EINTR {
				return errno != unix.EAGAIN
			}
		}
	})
	if err == nil && errno != 0 {
		err = errno
	}
	return int(n), err
}
