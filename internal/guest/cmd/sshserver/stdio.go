//go:build linux

package sshserver

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/seed-1a2d6d8f/sandbox/internal/guest/wire"
)

// stdioTimeout bounds how long the start of a keeper waits for PID 1.
const stdioTimeout = 2 * time.Second

// fromPID1 are the descriptors that PID 1 gives for a keeper. They are not os.Files, which
// would make descriptors non-blocking that others share.
type fromPID1 struct{ out, err, keep int }

// askStdio requests the descriptors for a keeper from PID 1.
func askStdio() (*fromPID1, error) {
	conn, err := dialControl()
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	fds, err := askPID1(conn, wire.StdioRequest, 3)
	if err != nil {
		return nil, err
	}
	return &fromPID1{fds[0], fds[1], fds[2]}, nil
}

// askPID1 sends a request on a new connection to the control socket, and returns the n
// descriptors that PID 1 sends.
func askPID1(conn *net.UnixConn, request string, n int) ([]int, error) {
	conn.SetDeadline(time.Now().Add(stdioTimeout))
	if _, err := io.WriteString(conn, request); err != nil {
		return nil, err
	}
	// The challenge comes first, a line of text, and then a byte with the rights. The
	// kernel ends a read before or after bytes with rights.
	data, rights := make([]byte, 1024), make([]byte, unix.CmsgSpace(n*4))
	for {
		got, rn, _, _, err := conn.ReadMsgUnix(data, rights)
		if err != nil {
			return nil, err
		}
		if got == 0 {
			return nil, errors.New("PID 1 sent no descriptors")
		}
		if rn > 0 {
			return parseRights(rights[:rn], n)
		}
	}
}

func parseRights(rights []byte, n int) ([]int, error) {
	msgs, err := unix.ParseSocketControlMessage(rights)
	if err != nil || len(msgs) != 1 {
		return nil, errors.Join(err, errors.New("malformed control message of PID 1"))
	}
	fds, err := unix.ParseUnixRights(&msgs[0])
	if err != nil {
		return nil, err
	}
	if len(fds) != n {
		for _, fd := range fds {
			unix.Close(fd)
		}
		return nil, fmt.Errorf("PID 1 sent %d descriptors", len(fds))
	}
	return fds, nil
}

// stdio is a connection made of standard input and output.
type stdio struct {
	in, out *os.File
	fds     []unix.PollFd // of in, and of the end of a pipe that Close closes
	closing int           // the other end
	closed  sync.Once
}

// takeStdio moves standard input and output to other descriptors and puts /dev/null
// in their place, so that nothing else writes there by accident and a closed pipe is
// an error rather than a signal.
func takeStdio() (*stdio, error) {
	null, err := unix.Open(os.DevNull, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(null)
	var files [2]*os.File
	ins := -1
	for fd := range files {
		dup, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 3)
		if err != nil {
			return nil, fmt.Errorf("standard input and output: %w", err)
		}
		files[fd] = os.NewFile(uintptr(dup), "stdio")
		if fd == 0 {
			ins = dup
		}
		if err := unix.Dup3(null, fd, 0); err != nil {
			return nil, err
		}
	}
	var pipe [2]int
	if err := unix.Pipe2(pipe[:], unix.O_CLOEXEC); err != nil {
		return nil, err
	}
	return &stdio{
		in: files[0], out: files[1], closing: pipe[1],
		fds: []unix.PollFd{{Fd: int32(ins), Events: unix.POLLIN}, {Fd: int32(pipe[0])}},
	}, nil
}

// Read waits for input or Close before it reads: closing a pipe does not end a read of it. One
// goroutine reads.
func (s *stdio) Read(b []byte) (int, error) {
	for {
		_, err := unix.Poll(s.fds, -1)
		switch {
		case err == unix.EINTR:
		case err != nil:
			return 0, err
		case s.fds[1].Revents != 0:
			return 0, os.ErrClosed
		default:
			return s.in.Read(b)
		}
	}
}

func (s *stdio) Write(b []byte) (int, error) { return s.out.Write(b) }

// Close leaves the input open, which a Read may be waiting for. The process ends soon.
func (s *stdio) Close() error {
	s.closed.Do(func() {
		unix.Close(s.closing)
		s.out.Close()
	})
	return nil
}

func (s *stdio) LocalAddr() net.Addr              { return &net.UnixAddr{} }
func (s *stdio) RemoteAddr() net.Addr             { return &net.UnixAddr{} }
func (s *stdio) SetDeadline(time.Time) error      { return nil }
func (s *stdio) SetReadDeadline(time.Time) error  { return nil }
func (s *stdio) SetWriteDeadline(time.Time) error { return nil }
