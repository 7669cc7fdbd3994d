//go:build linux

package sshserver

import (
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"runtime"
	"sync"
	"syscall"
	"time"

	"golang.org/x/crypto/ssh"
	"golang.org/x/sys/unix"

	"github.com/seed-1a2d6d8f/sandbox/internal/guest/cmd/proc"
	"github.com/seed-1a2d6d8f/sandbox/internal/guest/wire"
)

const (
	// maxEnded is how many detached commands are kept after their end, and maxEndedMemory
	// bounds their output together; the oldest go first.
	maxEnded       = 64
	maxEndedMemory = 64 << 20
)

// Descriptors of a keeper, beside the container's stdout and stderr: a pipe that it closes
// once it listens, and the keeper's socket. A keeper locks the socket, so that there is one
// at a time, and so that others see whether it lives: the socket itself outlives it, since
// PID 1 holds it. The lock would end if the keeper closed any descriptor of the socket.
const (
	readyFD = 3
	keepFD  = 4
)

// Keep runs detached commands and holds their output, for every client that connects,
// until the session stops. Its stdout and stderr are the container's.
func Keep([]string) error {
	if err := becomeParent(); err != nil {
		return err
	}
	unix.CloseOnExec(readyFD)
	unix.CloseOnExec(keepFD)
	switch err := unix.FcntlFlock(keepFD, unix.F_SETLK, &unix.Flock_t{Type: unix.F_WRLCK}); {
	case errors.Is(err, unix.EAGAIN), errors.Is(err, unix.EACCES):
		return nil // another keeper serves
	case err != nil:
		return fmt.Errorf("lock the socket: %w", err)
	}
	if err := unix.Listen(keepFD, unix.SOMAXCONN); err != nil {
		return err
	}
	socket := os.NewFile(keepFD, "keep")
	defer runtime.KeepAlive(socket) // its finalizer would close it
	listener, err := net.FileListener(socket)
	if err != nil {
		return err
	}
	s := newServer()
	s.use.request = wire.UseDetachedRequest
	s.keeper = &keeper{commands: make(map[string]*detached)}
	s.watchSignals()
	unix.Close(readyFD)

	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				proc.AcceptPause()
				continue
			}
			if peer, err := peerOf(conn.(*net.UnixConn)); err != nil || peer.Uid != 0 {
				conn.Close()
				continue
			}
			go func() {
				defer conn.Close()
				s.serve(conn)
			}()
		}
	}()
	<-s.drained
	return nil
}

// keeper holds detached commands by ID.
type keeper struct {
	mu       sync.Mutex
	commands map[string]*detached
	ended    []*detached // oldest first
	history  history
}

// detached is a command with the end of its output. command is set when started is closed, unless
// the command did not start, and exit when ring is closed.
type detached struct {
	command *proc.Command
	started chan struct{}
	ring    *ring
	exit    wire.Exit
}

// start starts a detached command and follows it on the channel that requested it.
func (k *keeper) start(s *server, nc ssh.NewChannel, req wire.Exec) {
	if req.ID == "" {
		req.ID = rand.Text()
	}
	d, refused := k.launch(s.reaper, req)
	if refused != nil {
		s.use.end()
		s.leave()
		reject(nc, refused)
		return
	}
	logged := k.log(d)
	ended := k.history.add(d.command.Request())
	go func() {
		defer s.leave()
		defer s.use.end()
		d.exit = d.command.Run(d.ring.to(streamOut), d.ring.to(streamErr))
		d.exit.Ending = s.endsDuring(d.exit)
		ended(d.exit)
		d.ring.close()
		k.end(d)
		select {
		case <-logged:
		case <-time.After(logPatience):
		}
	}()
	ch, reqs, err := nc.Accept()
	if err != nil {
		d.command.CloseInput()
		return
	}
	go d.command.Feed(ch)
	d.follow(ch, reqs, wire.Exec{ID: req.ID})
}

// launch starts a command whose ID no other one has.
func (k *keeper) launch(r *proc.Reaper, req wire.Exec) (*detached, *wire.StartError) {
	d := k.reserve(req.ID)
	if d == nil {
		return nil, proc.StartErrorf(wire.KindArguments, "a command with the ID %q exists", req.ID)
	}
	c, refused := proc.Start(r, req)
	k.finishStart(req.ID, d, c)
	return d, refused
}

// reserve returns a command of that ID that is about to start, or nil if the ID is taken.
func (k *keeper) reserve(id string) *detached {
	k.mu.Lock()
	defer k.mu.Unlock()
	if _, taken := k.commands[id]; taken {
		return nil
	}
	d := &detached{started: make(chan struct{}), ring: newRing()}
	k.commands[id] = d
	return d
}

// finishStart ends the start of a command, as c, or nil if it did not start.
func (k *keeper) finishStart(id string, d *detached, c *proc.Command) {
	if c == nil {
		k.mu.Lock()
		delete(k.commands, id)
		k.mu.Unlock()
	}
	d.command = c
	close(d.started)
}

// find returns the command of that ID, after its start, or nil if there is none.
func (k *keeper) find(id string) *detached {
	k.mu.Lock()
	d := k.commands[id]
	k.mu.Unlock()
	if d == nil {
		return nil
	}
	if <-d.started; d.command == nil {
		return nil
	}
	return d
}

// end registers that a command has ended, and forgets the oldest ones beyond the bounds.
func (k *keeper) end(d *detached) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.ended = append(k.ended, d)
	memory := 0
	for _, e := range k.ended {
		memory += e.ring.size()
	}
	for len(k.ended) > 1 && (len(k.ended) > maxEnded || memory > maxEndedMemory) {
		memory -= k.ended[0].ring.size()
		delete(k.commands, k.ended[0].command.Request().ID)
		k.ended = k.ended[1:]
	}
}

func (k *keeper) attach(nc ssh.NewChannel) {
	var req wire.Attach
	if err := json.Unmarshal(nc.ExtraData(), &req); err != nil {
		reject(nc, proc.StartErrorf(wire.KindArguments, "malformed request: %v", err))
		return
	}
	d := k.find(req.ID)
	if d == nil {
		reject(nc, proc.StartErrorf(wire.KindUnknownProcess, "no detached command with the ID %q", req.ID))
		return
	}
	ch, reqs, err := nc.Accept()
	if err != nil {
		return
	}
	if req.Quiet {
		defer ch.Close()
		if sendRequest(ch, wire.RequestStarted, wire.Started{Pid: d.command.PID(), Exec: d.command.Request()}) == nil {
			obey(d.command, reqs, new(sync.Mutex))
		}
		return
	}
	d.follow(ch, reqs, d.command.Request())
}

// follow sends the output so far and from now on, then the exit.
func (d *detached) follow(ch ssh.Channel, reqs <-chan *ssh.Request, req wire.Exec) {
	defer ch.Close()
	f := d.ring.follow()
	var answering sync.Mutex
	go func() {
		obey(d.command, reqs, &answering)
		f.cancel()
	}()
	if sendRequest(ch, wire.RequestStarted, wire.Started{Pid: d.command.PID(), Exec: req}) != nil {
		return
	}
	done := make(chan struct{})
	defer close(done)
	go announceExit(d.command, ch, done)
	for {
		stream, data, ok := f.next()
		if !ok {
			break
		}
		var err error
		if stream == streamErr {
			_, err = ch.Stderr().Write(data)
		} else {
			_, err = ch.Write(data)
		}
		if err != nil {
			return
		}
	}
	if !d.ring.ended() {
		return
	}
	exit := d.exit
	exit.Dropped = f.dropped
	answering.Lock()
	defer answering.Unlock()
	sendRequest(ch, wire.RequestExit, exit)
}

// keepChannel connects the client to the keeper, which it starts when there is none. What the
// client sends is a use, whatever the keeper's commands are.
func (s *server) keepChannel(nc ssh.NewChannel) {
	conn, err := s.dialKeeper()
	if err != nil {
		reject(nc, proc.StartErrorf(wire.KindOther, "keeper: %v", err))
		return
	}
	join(nc, conn, s.use.touch)
}

// given are the descriptors for a keeper, once PID 1 has been asked.
var given struct {
	sync.Mutex
	fds *fromPID1
}

// dialKeeper connects to the keeper, and starts one if none lives.
func (s *server) dialKeeper() (*net.UnixConn, error) {
	defer s.gate.enter()()
	given.Lock()
	defer given.Unlock()
	if given.fds == nil {
		fds, err := askStdio()
		if err != nil {
			return nil, err
		}
		given.fds = fds
	}
	for range 3 {
		if lives, err := keeperLives(given.fds.keep); err != nil {
			return nil, err
		} else if !lives {
			if err := startKeeper(given.fds); err != nil {
				return nil, err
			}
		}
		conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Net: "unix", Name: wire.KeepSocket})
		if err != nil {
			return nil, err
		}
		// Nobody accepts a connection that was made after the keeper's death.
		if lives, err := keeperLives(given.fds.keep); err == nil && lives {
			return conn, nil
		}
		conn.Close()
	}
	return nil, errors.New("it ends as soon as it is started")
}

// keeperLives reports whether a process holds the lock of the keeper's socket.
func keeperLives(socket int) (bool, error) {
	lock := unix.Flock_t{Type: unix.F_WRLCK}
	err := unix.FcntlFlock(uintptr(socket), unix.F_GETLK, &lock)
	return lock.Type != unix.F_UNLCK, err
}

// startKeeper starts a keeper and waits until it, or another one, listens.
func startKeeper(from *fromPID1) error {
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	defer r.Close()
	defer w.Close()
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer null.Close()
	keepers.Lock() // whoever kills commands must not take it for one
	pid, err := syscall.ForkExec(wire.Self, []string{wire.Program, wire.VerbKeep}, &syscall.ProcAttr{
		Dir: "/", Env: []string{},
		Files: []uintptr{null.Fd(), uintptr(from.out), uintptr(from.err), w.Fd(), uintptr(from.keep)},
		Sys:   &syscall.SysProcAttr{Setsid: true},
	})
	if err == nil {
		if keepers.pids == nil {
			keepers.pids = make(map[int]bool)
		}
		keepers.pids[pid] = true
	}
	keepers.Unlock()
	if err != nil {
		return fmt.Errorf("start: %w", err)
	}
	w.Close()
	r.Read(make([]byte, 1)) // ends when it listens or is dead
	return nil
}
