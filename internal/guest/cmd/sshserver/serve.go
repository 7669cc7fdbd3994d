//go:build linux

package sshserver

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/seed-1a2d6d8f/sandbox/internal/guest/cmd/proc"
	"github.com/seed-1a2d6d8f/sandbox/internal/guest/wire"
)

// Serve serves one client on standard input and output, with a wire.Serve as the argument
// for a client of standard SSH. It returns when the client is gone, killing what runs, or
// when the session stops and nothing runs any more.
func Serve(args []string) error {
	var conf wire.Serve
	if len(args) > 0 {
		if err := json.Unmarshal([]byte(args[0]), &conf); err != nil {
			return fmt.Errorf("serve: read the configuration: %w", err)
		}
	}
	if err := becomeParent(); err != nil {
		return err
	}
	if ending, err := enter(); err != nil {
		return err
	} else if ending != 0 {
		os.Exit(wire.MarkedCode(ending))
	}
	stdio, err := takeStdio()
	if err != nil {
		return err
	}
	conn := &heardConn{Conn: stdio}
	s := newServer()
	s.conf = conf
	if conf.HostKey {
		seed := make([]byte, wire.HostKeySize)
		if _, err := io.ReadFull(conn, seed); err != nil {
			return fmt.Errorf("serve: read the host key: %w", err)
		}
		if err := s.standard(seed); err != nil {
			return err
		}
	}
	s.watchSignals()
	if len(args) == 0 { // through another server PID 1 gets no signed requests
		go s.gate.follow()
	}
	length, err := time.ParseDuration(silenceTick)
	if err != nil {
		return err
	}
	gone, vanished := make(chan error, 1), make(chan error, 1)
	go func() { gone <- s.serve(conn) }()
	go func() {
		if err := conn.awaitSilence(func() <-chan time.Time { return s.tick(length) }, nil, s.client); err != nil {
			vanished <- err
		}
	}()

	select {
	case err = <-gone:
	case <-s.drained:
	case err = <-vanished:
		conn.Close() // commands of standard SSH get their SIGHUP
	}
	s.stop()
	if len(args) > 0 { // a connection of standard SSH
		s.hangUp()
	} else {
		s.killAll()
	}
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	return nil
}

// killAll kills the commands of the server, after the time to tidy up if one does.
func (s *server) killAll() {
	if s.tidying.Load() > 0 {
		select {
		case <-s.drained:
		case <-time.After(proc.TidyTime):
		}
	}
	// A child that is stopped between fork and execve would block Go's runtime, and with
	// it the kill. The lock waits for those that are there and keeps new ones out.
	syscall.ForkLock.RLock()
	proc.Kill(ourCommands)
}

// becomeParent prepares a process that will start commands: with the default signal
// dispositions and without privileges, which its children inherit, and as the parent of
// every orphan of theirs.
func becomeParent() error {
	runtime.LockOSThread()
	if err := proc.DefaultSignals(); err != nil {
		return err
	}
	runtime.UnlockOSThread()
	debug.SetGCPercent(200)
	if err := proc.DropPrivileges(); err != nil {
		return err
	}
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("become subreaper: %w", err)
	}
	return nil
}

// watchSignals reaps on SIGCHLD and stops on SIGTERM, which PID 1 sends to all when the
// session ends.
func (s *server) watchSignals() {
	sigs := make(chan os.Signal, 16)
	signal.Notify(sigs, unix.SIGCHLD, unix.SIGTERM)
	go func() {
		for sig := range sigs {
			if sig == unix.SIGTERM {
				s.stop()
			} else {
				s.reaper.Reap()
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
func ourCommands() []proc.Process {
	table, err := proc.List()
	if err != nil {
		return nil
	}
	keepers.Lock()
	defer keepers.Unlock()
	self := os.Getpid()
	rest := table[:0]
	for _, p := range table {
		if p.PID != self && !keepers.pids[p.PID] {
			rest = append(rest, p)
		}
	}
	return proc.Tree(rest, func(p proc.Process) bool { return p.Parent == self })
}
