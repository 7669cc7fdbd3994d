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
	// maxEnded is how many detached commands are remembered after their end, and
	// keptMemory what their output may take together; the oldest go first.
	maxEnded       = 64
	maxEndedMemory = 64 << 20
)

// readyFD is where a keeper tells the one who started it that it listens.
const readyFD = 3

// keepLogs as its argument tells a keeper that its stdout and stderr are the container's.
const keepLogs = "log"

// Keep holds detached commands for all who connect, until the session stops.
func Keep(args []string) error {
	if err := becomeParent(); err != nil {
		return err
	}
	unix.CloseOnExec(readyFD)
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: wire.KeepSocket})
	if errors.Is(err, unix.EADDRINUSE) {
		return nil // another keeper was faster
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

// keeper remembers detached commands by ID.
type keeper struct {
	logs     bool // stdout and stderr are the container's
	mu       sync.Mutex
	commands map[string]*detached
	ended    []*detached // oldest first
}

// detached is a detached command with its output. exit is set when ring is closed.
type detached struct {
	*proc.Command
	ring *ring
	exit wire.Exit
}

// start starts a detached command and follows it on the channel that asked for it.
func (k *keeper) start(s *server, nc ssh.NewChannel, req wire.Exec) {
	if req.ID == "" {
		req.ID = rand.Text()
	}
	k.mu.Lock()
	_, taken := k.commands[req.ID]
	if !taken {
		k.commands[req.ID] = nil // until it has started
	}
	k.mu.Unlock()
	if taken {
		s.leave()
		reject(nc, proc.StartErrorf(wire.KindArguments, "a command with the ID %q exists", req.ID))
		return
	}

	c, refused := proc.Start(s.reaper, req)
	k.mu.Lock()
	if refused != nil {
		delete(k.commands, req.ID)
		k.mu.Unlock()
		s.leave()
		reject(nc, refused)
		return
	}
	p := &detached{Command: c, ring: newRing()}
	k.commands[req.ID] = p
	k.mu.Unlock()

	logged := k.log(p)
	go func() {
		defer s.leave()
		p.exit = c.Run(p.ring.to(streamOut), p.ring.to(streamErr))
		p.ring.close()
		k.end(p)
		select {
		case <-logged:
		case <-time.After(logPatience):
		}
	}()
	ch, reqs, err := nc.Accept()
	if err != nil {
		c.CloseInput()
		return
	}
	go c.Feed(ch)
	p.follow(ch, reqs, wire.Exec{ID: req.ID})
}

// end moves a command to those that are remembered for a while.
func (k *keeper) end(p *detached) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.ended = append(k.ended, p)
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
		reject(nc, proc.StartErrorf(wire.KindArguments, "the request makes no sense: %v", err))
		return
	}
	k.mu.Lock()
	p := k.commands[req.ID]
	k.mu.Unlock()
	if p == nil {
		reject(nc, proc.StartErrorf(wire.KindUnknownProcess, "no detached command with the ID %q", req.ID))
		return
	}
	ch, reqs, err := nc.Accept()
	if err != nil {
		return
	}
	p.follow(ch, reqs, p.Request())
}

// follow sends kept and live output, then the exit.
func (p *detached) follow(ch ssh.Channel, reqs <-chan *ssh.Request, req wire.Exec) {
	defer ch.Close()
	f := p.ring.follow()
	var answering sync.Mutex
	go func() {
		obey(p.Command, reqs, &answering)
		f.cancel()
	}()
	if sendRequest(ch, wire.RequestStarted, wire.Started{Pid: p.PID(), Exec: req}) != nil {
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
	if !p.ring.ended() {
		return
	}
	exit := p.exit
	exit.Dropped = f.dropped
	answering.Lock()
	defer answering.Unlock()
	sendRequest(ch, wire.RequestExit, exit)
}

// keepChannel connects the client with the keeper, starting it when there is none.
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
				return nil, errors.New("someone else has taken its socket")
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

// startKeeper starts a keeper and waits until it listens, or has found another.
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
		// Never as an os.File, which would change the mode of what is not ours alone.
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
	r.Read(make([]byte, 1)) // ends when it is ready or dead
	return nil
}
