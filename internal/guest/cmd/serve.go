//go:build linux

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"sync"
	"syscall"
	"time"

	"golang.org/x/crypto/ssh"
	"golang.org/x/sys/unix"

	"github.com/seed-1a2d6d8f/sandbox/internal/guest/wire"
)

// runServe serves one client on standard input and output. It ends when the client
// is gone, killing what runs, or when the session stops and nothing runs any more.
func runServe(args []string) error {
	var conf wire.Serve
	if len(args) > 0 {
		if err := json.Unmarshal([]byte(args[0]), &conf); err != nil {
			return fmt.Errorf("serve: read the configuration: %w", err)
		}
	}
	runtime.LockOSThread()
	if err := defaultSignals(); err != nil {
		return err
	}
	runtime.UnlockOSThread()
	if err := becomeParent(); err != nil {
		return err
	}
	conn, err := takeStdio()
	if err != nil {
		return err
	}
	var seed []byte
	if conf.HostKey {
		seed = make([]byte, wire.HostKeySize)
		if _, err := io.ReadFull(conn, seed); err != nil {
			return fmt.Errorf("serve: read the host key: %w", err)
		}
	}
	s, err := newServer(seed)
	if err != nil {
		return err
	}
	s.conf = conf
	s.watchSignals()
	gone := make(chan error, 1)
	go func() { gone <- s.serve(conn) }()

	select {
	case err = <-gone:
	case <-s.drained:
	}
	s.stop()
	if len(args) > 0 { // a connection of standard SSH
		s.hangUp()
	} else {
		if s.tidying.Load() > 0 {
			select {
			case <-s.drained:
			case <-time.After(tidyTime):
			}
		}
		// A child that is stopped before it has become its program keeps the runtime's
		// locks, and we would never come to kill it. So there is none, nor a new one.
		syscall.ForkLock.RLock()
		killTree(ourCommands)
	}
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	return nil
}

// becomeParent prepares a process that will start commands: without privileges to
// hand on, and with every orphan of theirs falling to it.
func becomeParent() error {
	debug.SetGCPercent(200)
	if err := shed(); err != nil {
		return err
	}
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("become subreaper: %w", err)
	}
	return nil
}

// watchSignals reaps, and stops on SIGTERM, which PID 1 sends to all when the
// session ends.
func (s *server) watchSignals() {
	sigs := make(chan os.Signal, 16)
	signal.Notify(sigs, unix.SIGCHLD, unix.SIGTERM)
	go func() {
		for sig := range sigs {
			if sig == unix.SIGTERM {
				s.stop()
			} else {
				s.reaper.reap()
			}
		}
	}()
}

// keepers are the keepers that this process started: its descendants, but not its
// commands.
var keepers struct {
	sync.Mutex
	pids map[int]bool
}

// ourCommands finds every process that descends from this one, keepers excepted.
func ourCommands() []proc {
	table, err := processes()
	if err != nil {
		return nil
	}
	keepers.Lock()
	defer keepers.Unlock()
	self := os.Getpid()
	rest := table[:0]
	for _, p := range table {
		if p.pid != self && !keepers.pids[p.pid] {
			rest = append(rest, p)
		}
	}
	return closure(rest, func(p proc) bool { return p.ppid == self })
}

// stdio is a connection made of standard input and output.
type stdio struct {
	in, out *os.File
	once    sync.Once
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
	for fd := range files {
		dup, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 3)
		if err != nil {
			return nil, fmt.Errorf("standard input and output: %w", err)
		}
		files[fd] = os.NewFile(uintptr(dup), "stdio")
		if err := unix.Dup3(null, fd, 0); err != nil {
			return nil, err
		}
	}
	return &stdio{in: files[0], out: files[1]}, nil
}

func (s *stdio) Read(b []byte) (int, error)  { return s.in.Read(b) }
func (s *stdio) Write(b []byte) (int, error) { return s.out.Write(b) }

func (s *stdio) Close() error {
	s.once.Do(func() {
		s.out.Close()
		s.in.Close()
	})
	return nil
}

func (s *stdio) LocalAddr() net.Addr              { return &net.UnixAddr{} }
func (s *stdio) RemoteAddr() net.Addr             { return &net.UnixAddr{} }
func (s *stdio) SetDeadline(time.Time) error      { return nil }
func (s *stdio) SetReadDeadline(time.Time) error  { return nil }
func (s *stdio) SetWriteDeadline(time.Time) error { return nil }

// controlChannel connects the client with PID 1.
func controlChannel(nc ssh.NewChannel) {
	conn, err := dialControl()
	if err == nil {
		// Anyone may take the name once PID 1 has lost it; nobody can take its PID.
		var peer *unix.Ucred
		if peer, err = peerOf(conn); err == nil && peer.Pid != 1 {
			err = fmt.Errorf("process %d has taken the control socket", peer.Pid)
		}
		if err != nil {
			conn.Close()
		}
	}
	if err != nil {
		reject(nc, refuse(wire.KindOther, "PID 1: %v", err))
		return
	}
	join(nc, conn)
}

// controlPatience is how long PID 1 of a session that has just started may take, on a
// busy machine, to listen.
const controlPatience = 5 * time.Second

func dialControl() (conn *net.UnixConn, err error) {
	for begin := time.Now(); ; time.Sleep(5 * time.Millisecond) {
		conn, err = connectControl()
		if !errors.Is(err, unix.ECONNREFUSED) || time.Since(begin) > controlPatience {
			return conn, err
		}
	}
}

// connectControl waits its turn when the control socket's queue is full, which only a
// plain blocking connect does.
func connectControl() (*net.UnixConn, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	file := os.NewFile(uintptr(fd), "control")
	defer file.Close()
	patience := unix.Timeval{Sec: 10}
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &patience); err != nil {
		return nil, err
	}
	for {
		err = unix.Connect(fd, &unix.SockaddrUnix{Name: wire.ControlSocket})
		if err != unix.EINTR {
			break
		}
	}
	if err != nil {
		return nil, err
	}
	conn, err := net.FileConn(file)
	if err != nil {
		return nil, err
	}
	return conn.(*net.UnixConn), nil
}

// join carries bytes between a new channel and a connection until both are done.
func join(nc ssh.NewChannel, conn *net.UnixConn) {
	defer conn.Close()
	ch, reqs, err := nc.Accept()
	if err != nil {
		return
	}
	defer ch.Close()
	var in sync.WaitGroup
	in.Go(func() {
		io.Copy(struct{ io.Writer }{conn}, ch)
		conn.CloseWrite()
	})
	go func() {
		ssh.DiscardRequests(reqs)
		conn.Close() // the client closed the channel
	}()
	buf := buffers.Get().(*[copySize]byte)
	defer buffers.Put(buf)
	io.CopyBuffer(struct{ io.Writer }{ch}, struct{ io.Reader }{conn}, buf[:])
	ch.Close()
	in.Wait()
}

// peerOf tells who is at the other end: for a client, who listens.
func peerOf(conn syscall.Conn) (*unix.Ucred, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return nil, err
	}
	var cred *unix.Ucred
	if ctlErr := raw.Control(func(fd uintptr) {
		cred, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); ctlErr != nil {
		return nil, ctlErr
	}
	return cred, err
}
