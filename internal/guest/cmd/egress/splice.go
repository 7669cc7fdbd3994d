//go:build linux

package egress

import (
	"io"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// relay copies both ways until both sides have ended, each end by itself, or the client has closed
// the connection altogether. clientEnded is called when it has closed its side.
func relay(client, server *net.TCPConn, clientEnded func()) {
	var ended atomic.Int32
	var both sync.WaitGroup
	both.Go(func() {
		if !pass(server, client) {
			return
		}
		clientEnded()
		// A server may never answer, and never close.
		if ended.Add(1) == 1 && waitGone(client) {
			// By itself the kernel sends what the server has not received yet, as the
			// client's would.
			client.Close()
			server.Close()
		}
	})
	if pass(client, server) && ended.Add(1) == 2 {
		client.Close()
	}
	both.Wait()
}

// pass copies until from has ended, and then ends to. After an error it resets both and returns
// false.
func pass(to, from *net.TCPConn) bool {
	if err := splice(to, from); err != nil {
		reset(to)
		reset(from)
		return false
	}
	to.CloseWrite()
	return true
}

// goneTime is how often the kernel of a client that has closed its side is asked whether the
// connection is still there: it forgets a closed one after a minute.
const goneTime = 5 * time.Second

// waitGone waits until a connection from which all was read is gone, and returns false if it is
// closed here.
func waitGone(conn *net.TCPConn) bool {
	const closed = 7 // TCP_CLOSE of linux/tcp_states.h
	conn.SetKeepAliveConfig(net.KeepAliveConfig{Enable: true, Idle: goneTime, Interval: goneTime, Count: 3})
	raw, err := conn.SyscallConn()
	if err != nil {
		return false
	}
	err = raw.Read(func(fd uintptr) bool {
		info, err := unix.GetsockoptTCPInfo(int(fd), unix.SOL_TCP, unix.TCP_INFO)
		return err != nil || info.State == closed
	})
	return err == nil
}

// The room of a pipe: that of a new one, and that of one through which much goes, of which more at a time would not be faster
// (measured on loopback). All that the pipes of a user hold on a machine is limited (pipe-user-pages-soft, 64 MiB), and root of
// most sandboxes is one user. Beyond the limit a new pipe has room for two pages, and is slower than a copy by user space.
const (
	usualRoom = 64 << 10
	mostRoom  = 256 << 10
	much      = 16 << 10 // at a time, which many small packets are, too
)

// newPipe makes a pipe with the usual room, if it can be had.
func newPipe() (pipe [2]int, ok bool) {
	if unix.Pipe2(pipe[:], unix.O_CLOEXEC|unix.O_NONBLOCK) != nil {
		return pipe, false
	}
	if room, err := unix.FcntlInt(uintptr(pipe[0]), unix.F_GETPIPE_SZ, 0); err != nil || room < usualRoom {
		closePipe(pipe)
		return pipe, false
	}
	return pipe, true
}

func closePipe(pipe [2]int) {
	unix.Close(pipe[0])
	unix.Close(pipe[1])
}

// splice moves bytes within the kernel until from has ended. io.Copy does that, too, but by
// system calls that Go's scheduler expects to block: after 20 µs, which these take, it
// hands the processor to another thread.
func splice(to, from *net.TCPConn) error {
	pipe, ok := newPipe()
	if !ok {
		_, err := io.Copy(struct{ io.Writer }{to}, struct{ io.Reader }{from}) // which would use a pipe for connections
		return err
	}
	defer closePipe(pipe)
	in, err := from.SyscallConn()
	if err != nil {
		return err
	}
	out, err := to.SyscallConn()
	if err != nil {
		return err
	}
	for grown := false; ; {
		n, err := move(in.Read, func(fd uintptr) (uintptr, syscall.Errno) { return spliceOnce(fd, uintptr(pipe[1]), 1<<20) })
		if n == 0 || err != nil {
			return err
		}
		if n >= much && !grown {
			unix.FcntlInt(uintptr(pipe[0]), unix.F_SETPIPE_SZ, mostRoom) // which may be refused
			grown = true
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
