//go:build linux

package pid1

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"runtime/debug"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/seed-1a2d6d8f/sandbox/internal/guest/cmd/egress"
	"github.com/seed-1a2d6d8f/sandbox/internal/guest/cmd/proc"
	"github.com/seed-1a2d6d8f/sandbox/internal/guest/wire"
)

// session is one run of a sandbox, as PID 1 sees it.
type session struct {
	conf     wire.Init
	environ  []string // the container's, for the main process
	reaper   *proc.Reaper
	deadline *deadlines
	uses     *uses
	egress   enforcer
	listener int             // the control socket
	keep     int             // the keeper's socket, for the keeper to listen on
	stop     <-chan struct{} // closed when the session is to end
	ending   sync.Once
	code     atomic.Int32 // the exit code, once the session is ending
	gates    gates
	turn     sync.Mutex // of holds, one at a time

	mainKnown chan struct{} // closed when main's start or its failure is known
	main      *proc.Child
	mainError *wire.StartError
}

// enforcer is the network policy of a session: an egress.Enforcer.
type enforcer interface {
	Begin(*wire.Begin) *egress.Refusal
	InForce() <-chan struct{}
	Network() *wire.Network
	Log() *wire.EgressLog
	Changed() <-chan error
	Connections() int64
	Hook(egress.HookConn, *bufio.Reader, *wire.Hook)
	Cut()
}

// startFD is where the verb run reports why the main process did not start.
const startFD = 3

// memoryLimit is the soft limit of the garbage collector. An idle session takes a tenth of
// it, a thousand connections through the proxy about half.
const memoryLimit = 64 << 20

// Run is PID 1 of a sandbox, configured by a wire.Init as its argument. It returns only when
// the session can't be set up.
//
// Processes inside can reach it by little more than its sockets. Signals: the kernel drops
// those at their default disposition, and SIGTERM counts only from outside. Memory and
// /proc: it is not dumpable and has a capability that nobody inside has. Resource limits:
// see guardLimits.
func Run(args []string) error {
	// In the wrong namespace kill(-1), below, would be a catastrophe.
	if os.Getpid() != 1 {
		return errors.New("init: not PID 1")
	}
	// The engine started it in the directory of commands, which it thereby creates. Such a
	// directory would stay in use, and it may be anything.
	if err := os.Chdir("/"); err != nil {
		return fmt.Errorf("init: %w", err)
	}
	if len(args) == 1 {
		all, err := proc.Mounts()
		if err != nil {
			return fmt.Errorf("init: read the mounts: %w", err)
		}
		mounts := mountTable(all)
		if err := checkSelf(os.Args[0], mounts); err != nil {
			return fmt.Errorf("init: not started from the mount of the guest: %w", err)
		}
		if err := mounts.checkConfig(args[0]); err != nil {
			return fmt.Errorf("init: the session would not have its own mounts: %w", err)
		}
		// Go's runtime obeys its environment, and this one is the image's. So execute
		// again with our own, and keep the image's for the main process.
		fd, err := stash(os.Environ())
		if err != nil {
			return fmt.Errorf("init: keep the environment: %w", err)
		}
		proc.AllowHugePages(false) // which would double the memory of an idle session
		err = syscall.Exec(wire.Self, append(os.Args, strconv.Itoa(fd)), []string{"GOTRACEBACK=none"})
		return fmt.Errorf("init: start again: %w", err)
	}
	if len(args) != 2 {
		return errors.New("init: takes one argument")
	}
	environ, err := unstash(args[1])
	if err != nil {
		return fmt.Errorf("init: the environment: %w", err)
	}
	debug.SetGCPercent(50)
	debug.SetMemoryLimit(memoryLimit)

	s := &session{reaper: proc.NewReaper(), environ: environ, mainKnown: make(chan struct{})}
	if err := json.Unmarshal([]byte(args[0]), &s.conf); err != nil {
		return fmt.Errorf("init: read the configuration: %w", err)
	}
	if err := s.setUp(); err != nil {
		return fmt.Errorf("init: %w", err)
	}
	go s.startMain()
	return s.loop()
}

// setUp sets up every defence and acquires every resource, while no other process exists.
func (s *session) setUp() error {
	if err := proc.SetUndumpable(); err != nil {
		return err
	}
	// Until here SIGTERM ends this program, which stops the sandbox as well.
	var err error
	if s.stop, err = stopRequests(); err != nil {
		return err
	}
	// The kernel drops signals to PID 1 that are at their default, but not while its first
	// thread blocks them, as Go's runtime does for moments: then another thread gets them,
	// and dies. Ignored ones are always dropped. SIGCHLD goes through Go's runtime.
	proc.IgnoreSignals(unix.SIGTERM, unix.SIGCHLD)
	// No child exists yet, and none can be requested before the network is locked.
	s.egress = egress.New(s.conf.Ports, s.trust)
	if err := s.openSockets(); err != nil {
		return err
	}
	s.uses = newUses(s.conf.Ports, s.egress.Connections)
	if s.deadline, err = newDeadlines(s.conf.Lease, s.conf.Timeout, s.conf.Grace, s.conf.Idle, s.uses); err != nil {
		return err
	}
	if err := chownWorkspace(s.conf.Workspace); err != nil {
		return err
	}
	guardLimits()
	// CAP_KILL is for processes of any user when the session ends. Children are not
	// affected: root's execve gives them the bounding set, which run and serve limit.
	return proc.LimitCaps(func(uint64) uint64 { return 1<<unix.CAP_NET_ADMIN | 1<<unix.CAP_KILL })
}

// guardLimits keeps root inside from changing the resource limits of PID 1, which RLIMIT_CPU
// or RLIMIT_AS could kill. The kernel permits that to a process whose user and group IDs
// equal all of the target's: here two group IDs differ, and no caller equals both.
func guardLimits() {
	const nogroup = 65534
	syscall.AllThreadsSyscall(unix.SYS_SETRESGID, ^uintptr(0), ^uintptr(0), nogroup)
}

// loop reaps and serves until the session ends.
func (s *session) loop() error {
	chld := make(chan os.Signal, 1)
	signal.Notify(chld, unix.SIGCHLD)
	go func() {
		for range chld {
			s.reaper.Reap()
		}
	}()
	go s.serveControl(s.listener)
	select {
	case <-s.stop:
		s.end(wire.CodeStopped, 0)
	case code := <-s.deadline.passed:
		s.end(code, s.deadline.gracePeriod())
	case what := <-s.egress.Changed():
		s.compromised(what)
	}
	return nil
}

// compromised ends the session because another process has changed what. Nobody gets time
// to end: whoever did it could use it.
func (s *session) compromised(what error) {
	s.code.Store(wire.CodeChanged)
	go s.egress.Cut()
	said := make(chan struct{})
	go func() {
		defer close(said)
		fmt.Fprintf(os.Stderr, "sandbox: the session ends: another process has changed %v, outside of the network policy\n", what)
	}()
	terminate(unix.SIGKILL)
	select {
	case <-said:
	case <-time.After(100 * time.Millisecond): // nobody reads the container's log
	}
	s.end(wire.CodeChanged, time.Millisecond)
}

// terminate signals every other process of the sandbox.
func terminate(n syscall.Signal) error { return syscall.Kill(-1, n) }

// end ends the session: SIGTERM to all, and SIGKILL once grace has passed. Without grace
// the engine that stops the container has its own limit. The kernel kills whatever is left
// when PID 1 exits, so it exits once no other process is.
func (s *session) end(code int, grace time.Duration) {
	s.ending.Do(func() {
		s.code.Store(int32(code)) // before anybody ends by that
		begin := proc.BootTime()
		terminate(unix.SIGTERM)
		terminate(unix.SIGCONT) // a stopped process can't die of the first one
		wait := 500 * time.Microsecond
		for !alone() {
			if grace > 0 && proc.BootTime()-begin >= grace {
				terminate(unix.SIGKILL)
			}
			time.Sleep(wait)
			wait = min(2*wait, 5*time.Millisecond)
			s.reaper.Reap()
		}
		if code != wire.CodeChanged && s.last() && s.plain() {
			code = wire.MarkedCode(code)
		}
		os.Exit(code)
	})
}

// reapTime bounds the wait for others to reap what they started in the sandbox.
const reapTime = time.Second

// last reports whether no process can change the sandbox's files any more: PID 1 starts none, none
// lives, and a server that the owner starts now is refused (see wire.EnterRequest).
func (s *session) last() bool {
	return s.gates.starts.TryLock() && poll(reapTime, func() bool {
		s.reaper.Reap()
		return terminate(0) == unix.ESRCH // exact, while a list of processes is not of one moment
	})
}

// plain reports whether the sandbox's files lead a start to where this one led: each mount is still
// where it was made, so that only directories are on the way to it, and the files that the engine
// opens or mounts are what they may be.
func (s *session) plain() bool {
	all, err := proc.Mounts()
	if err != nil || mountTable(all).check(s.conf.Mounts) != nil {
		return false
	}
	for _, p := range wire.EnginePaths() {
		if _, is := proc.WrongPath("", p); is != "" {
			return false
		}
	}
	return true
}

// alone reports whether no other process lives in the sandbox. Zombies whose parents are
// outside may linger, and don't count.
func alone() bool {
	if terminate(0) == unix.ESRCH {
		return true
	}
	table, err := proc.List()
	if err != nil {
		return false
	}
	for _, p := range table {
		if p.PID != 1 && !p.Dead() {
			return false
		}
	}
	return true
}
