//go:build linux

package sshserver

import (
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
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

// readyFD is a pipe that a keeper closes once it listens.
const readyFD = 3

// keepLogs is the argument of a keeper whose stdout and stderr are the container's.
const keepLogs = "log"

// Keep runs detached commands and holds their output, for every client that connects,
// until the session stops.
func Keep(args []string) error {
	if err := becomeParent(); err != nil {
		return err
	}
	unix.CloseOnExec(readyFD)
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: wire.KeepSocket})
	if errors.Is(err, unix.EADDRINUSE) {
		return nil // another keeper listens
	}
	if err != nil {
		return err
	}
	s, err := newServer(nil)
	if err != nil {
		return err
	}
	s.keeper = &keeper{commands: make(map[string]*detached), logs: slices.Contains(args, keepLogs)}
	s.watchSignals()
	unix.Close(readyFD)

	go func() {
		for {
			conn, err := listener.AcceptUnix()
			if err != nil {
				proc.AcceptPause()
				continue
			}
			if peer, err := peerOf(conn); err != nil || peer.Uid != 0 {
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
	logs     bool // stdout and stderr are the container's
	mu       sync.Mutex
	commands map[string]*detached
	ended    []*detached // oldest first
}

// detached is a command with the end of its output. exit is set when ring is closed.
type detached struct {
	*proc.Command
	ring *ring
	exit wire.Exit
}

// start starts a detached command and follows it on the channel that requested it.
func (k *keeper) start(s *server, nc ssh.NewChannel, req wire.Exec) {
	if req.ID == "" {
		req.ID = rand.Text()
	}
	d, refused := k.launch(s.reaper, req)
	if refused != nil {
		s.leave()
		reject(nc, refused)
		return
	}
	logged := k.log(d)
	go func() {
		defer s.leave()
		d.exit = d.Run(d.ring.to(streamOut), d.ring.to(streamErr))
		d.ring.close()
		k.end(d)
		select {
		case <-logged:
		case <-time.After(logPatience):
		}
	}()
	ch, reqs, err := nc.Accept()
	if err != nil {
		d.CloseInput()
		return
	}
	go d.Feed(ch)
	d.follow(ch, reqs, wire.Exec{ID: req.ID})
}

// launch starts a command whose ID no other one has.
func (k *keeper) launch(r *proc.Reaper, req wire.Exec) (*detached, *wire.StartError) {
	k.mu.Lock()
	_, taken := k.commands[req.ID]
	if !taken {
		k.commands[req.ID] = nil // until it has started
	}
	k.mu.Unlock()
	if taken {
		return nil, proc.StartErrorf(wire.KindArguments, "a command with the ID %q exists", req.ID)
	}
	c, refused := proc.Start(r, req)
	k.mu.Lock()
	defer k.mu.Unlock()
	if refused != nil {
		delete(k.commands, req.ID)
		return nil, refused
	}
	d := &detached{Command: c, ring: newRing()}
	k.commands[req.ID] = d
	return d, nil
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
		delete(k.commands, k.ended[0].Request().ID)
		k.ended = k.ended[1:]
	}
}

func (k *keeper) attach(nc ssh.NewChannel) {
	var req wire.Attach
	if err := json.Unmarshal(nc.ExtraData(), &req); err != nil {
		reject(nc, proc.StartErrorf(wire.KindArguments, "malformed request: %v", err))
		return
	}
	k.mu.Lock()
	d := k.commands[req.ID]
	k.mu.Unlock()
	if d == nil {
		reject(nc, proc.StartErrorf(wire.KindUnknownProcess, "no detached command with the ID %q", req.ID))
		return
	}
	ch, reqs, err := nc.Accept()
	if err != nil {
		return
	}
	d.follow(ch, reqs, d.Request())
}

// follow sends the output so far and from now on, then the exit.
func (d *detached) follow(ch ssh.Channel, reqs <-chan *ssh.Request, req wire.Exec) {
	defer ch.Close()
	f := d.ring.follow()
	var answering sync.Mutex
	go func() {
		obey(d.Command, reqs, &answering)
		f.cancel()
	}()
	if sendRequest(ch, wire.RequestStarted, wire.Started{Pid: d.PID(), Exec: req}) != nil {
		return
	}
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

// keepChannel connects the client to the keeper, which it starts when there is none.
func keepChannel(nc ssh.NewChannel) {
	conn, err := dialKeeper()
	if err != nil {
		reject(nc, proc.StartErrorf(wire.KindOther, "keeper: %v", err))
		return
	}
	join(nc, conn)
}

func dialKeeper() (*net.UnixConn, error) {
	for try := 0; ; try++ {
		conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Net: "unix", Name: wire.KeepSocket})
		if err == nil {
			if peer, err := peerOf(conn); err != nil || peer.Uid != 0 {
				conn.Close()
				return nil, errors.New("its socket is another process's")
			}
			return conn, nil
		}
		if !errors.Is(err, unix.ECONNREFUSED) || try == 3 {
			return nil, err
		}
		if err := startKeeper(); err != nil {
			return nil, err
		}
	}
}

// startKeeper starts a keeper and waits until it, or another one, listens.
func startKeeper() error {
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
	argv, out := []string{wire.Path, wire.VerbKeep}, [2]int{int(null.Fd()), int(null.Fd())}
	if log, err := askStdio(); err == nil {
		// Not as an os.File, which would make descriptors non-blocking that others share.
		defer unix.Close(log[0])
		defer unix.Close(log[1])
		argv, out = append(argv, keepLogs), log
	}
	keepers.Lock()
	pid, err := syscall.ForkExec(proc.SelfPath, argv, &syscall.ProcAttr{
		Dir: "/", Env: []string{},
		Files: []uintptr{null.Fd(), uintptr(out[0]), uintptr(out[1]), w.Fd()},
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
