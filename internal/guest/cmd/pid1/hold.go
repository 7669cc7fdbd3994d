//go:build linux

package pid1

import (
	"bufio"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/seed-1a2d6d8f/sandbox/internal/guest/cmd/proc"
	"github.com/seed-1a2d6d8f/sandbox/internal/guest/wire"
)

const (
	// standTime bounds the wait until every process stands still.
	standTime = 700 * time.Millisecond
	// arrivalTime is how long a process from outside has to become known as the owner's, or to
	// end: until then nobody can tell a server of the owner's from another program. An OCI
	// runtime's process is not stopped within it: the engine waits for that to execute its
	// program, and meanwhile answers nothing about the container.
	arrivalTime = 500 * time.Millisecond
	// verdictTime is arrivalTime for processes that came during a hold, when it is over.
	verdictTime = 2 * time.Second
	// levelTime bounds the wait for parents that are blocked in the kernel before their children
	// are stopped: they may be waiting for a child. maxLevels is how many generations are stopped
	// one by one.
	levelTime = 20 * time.Millisecond
	maxLevels = 16
	// nudgeAfter is when processes that are still blocked may be waiting for a child that we have
	// stopped, and nudgeTime how long it then runs.
	nudgeAfter = 5 * time.Millisecond
	nudgeTime  = 300 * time.Microsecond
	// silenceGrace is added to wire.HoldSilence once: PID 1 itself may have been paused.
	silenceGrace = time.Second
)

// serveHold holds the processes for the client of a connection, until it releases them or is gone.
func (s *session) serveHold(conn controlConn, r *bufio.Reader) {
	released, gone := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(gone)
		if readHold(conn, r) {
			close(released)
		}
	}()
	for !s.turn.TryLock() {
		select {
		case <-gone:
			return
		case <-time.After(time.Millisecond):
		}
	}
	defer s.turn.Unlock()
	answer := func(reply wire.Reply) bool {
		conn.SetWriteDeadline(time.Now().Add(pendingTime))
		return writeLine(conn, reply) == nil
	}
	h, err := s.hold()
	if err != nil {
		answer(wire.Reply{Error: err.Error()})
		return
	}
	if answer(wire.Reply{Held: true}) {
		<-gone
	}
	moved := h.end()
	select {
	case <-released:
		answer(wire.Reply{Moved: moved})
	default:
	}
}

// readHold reads the lines of a client that holds until it releases, which it reports, or is gone
// or silent.
func readHold(conn controlConn, r *bufio.Reader) (released bool) {
	for late := false; ; {
		wait := wire.HoldSilence
		if late {
			wait = silenceGrace
		}
		conn.SetReadDeadline(time.Now().Add(wait))
		line, err := r.ReadSlice('\n')
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded) && !late && len(line) == 0:
			late = true
		case err != nil:
			return false
		case string(line) == wire.HoldRelease:
			return true
		default:
			late = false
		}
	}
}

// hold is a hold of the sandbox's processes.
type hold struct {
	gates   *gates
	own     map[proc.ID]bool // processes of the guest's own, which go on
	known   map[proc.ID]bool // all others
	stopped []proc.Process   // those of them that we have stopped, parents first
	threads map[thread]uint64
	last    int // the last PID given before
}

// thread is a thread of a process. Its value in a map is how often it was switched out.
type thread struct {
	proc.ID
	tid int
}

// hold stops all processes but PID 1 and the owner's servers, or none.
func (s *session) hold() (*hold, error) {
	poll(arrivalTime, func() bool { return !s.arriving() })
	if !s.gates.shut() {
		return nil, errors.New("PID 1 is starting a process")
	}
	h := &hold{gates: &s.gates, own: s.gates.behind(), known: make(map[proc.ID]bool)}
	if err := h.stop(); err != nil {
		h.resume()
		return nil, err
	}
	h.last = proc.LastPID()
	return h, nil
}

// arriving reports whether a process has come from outside just now that is not known to be the
// owner's.
func (s *session) arriving() bool {
	table, _ := proc.List()
	return slices.ContainsFunc(table, func(p proc.Process) bool {
		return p.Foreign() && !p.Dead() && (p.Nascent() || p.Age() < arrivalTime) && !s.gates.known(p.ID())
	})
}

// view is what one look at the process table shows of the processes that a hold is about.
type view struct {
	fresh    []proc.Process // not known yet
	arriving []proc.Process // not known yet, and still the OCI runtime's
	moving   []proc.Process // with a thread that is not stopped
	blocked  []proc.Process // with a thread that no signal stops
	threads  map[thread]uint64
	tids     []int // of PID 1 and its own
}

func (h *hold) look() (v view, err error) {
	table, err := proc.List()
	v.threads = make(map[thread]uint64, len(h.threads))
	for _, p := range table {
		threads := proc.Threads(p.PID)
		switch {
		case len(threads) == 0:
		case p.PID == 1 || h.own[p.ID()]:
			for _, t := range threads {
				v.tids = append(v.tids, t.TID)
			}
		case p.Foreign() && p.Nascent():
			v.arriving = append(v.arriving, p)
		default:
			v.add(p, threads)
			if !h.known[p.ID()] {
				v.fresh = append(v.fresh, p)
			}
		}
	}
	return v, err
}

func (v *view) add(p proc.Process, threads []proc.Thread) {
	for _, t := range threads {
		v.threads[thread{p.ID(), t.TID}] = t.Switches
	}
	if slices.ContainsFunc(threads, func(t proc.Thread) bool { return !t.Stopped() }) {
		v.moving = append(v.moving, p)
	}
	if slices.ContainsFunc(threads, proc.Thread.Blocked) {
		v.blocked = append(v.blocked, p)
	}
}

// stop stops processes until two looks in a row see the same ones stand still.
func (h *hold) stop() error {
	begin, wait := time.Now(), 50*time.Microsecond
	for {
		v, err := h.look()
		if err != nil {
			return err
		}
		if len(v.fresh) == 0 && len(v.moving) == 0 && maps.Equal(v.threads, h.threads) {
			return nil
		}
		h.threads = v.threads
		if time.Since(begin) > standTime {
			return v.refusal()
		}
		if len(v.fresh) > 0 {
			h.signal(v.fresh, v.moving, begin.Add(standTime))
			continue
		}
		if time.Since(begin) > nudgeAfter {
			h.nudge(v.blocked)
		}
		time.Sleep(wait)
		wait = min(2*wait, 2*time.Millisecond)
	}
}

// refusal says why the processes can't be held.
func (v *view) refusal() error {
	switch {
	case len(v.blocked) > 0:
		return fmt.Errorf("process %d is blocked in the kernel", v.blocked[0].PID)
	case len(v.moving) > 0:
		return fmt.Errorf("process %d does not stop", v.moving[0].PID)
	}
	return errors.New("processes keep being created")
}

// signal stops those of the fresh processes that move, parents before their children: a shell that
// saw its job stop would take the terminal back. The others have been stopped by somebody else. It
// stops no children of parents that still run at the deadline.
func (h *hold) signal(fresh, moving []proc.Process, deadline time.Time) {
	for levels := 1; len(fresh) > 0; levels++ {
		pids := make(map[int]bool, len(fresh))
		for _, p := range fresh {
			pids[p.PID] = true
		}
		var level, rest []proc.Process
		for _, p := range fresh {
			if pids[p.Parent] && levels < maxLevels {
				rest = append(rest, p)
			} else {
				level = append(level, p)
			}
		}
		for _, p := range level {
			h.known[p.ID()] = true
			if slices.Contains(moving, p) {
				p.Signal(unix.SIGSTOP)
				h.stopped = append(h.stopped, p)
			}
		}
		if fresh = rest; len(rest) > 0 {
			if !poll(levelTime, func() bool { return !slices.ContainsFunc(level, moves) }) &&
				!poll(time.Until(deadline), func() bool { return !slices.ContainsFunc(level, runs) }) {
				return
			}
			hide(level, rest)
		}
	}
}

// hide keeps the stops of children from parents that stand still and would read of them: script and
// su --pty then stop themselves, and nobody continues them. A SIGCHLD that is pending already is the
// only one that they get, and this one is about no child.
func hide(parents, children []proc.Process) {
	for _, p := range parents {
		hasChild := slices.ContainsFunc(children, func(c proc.Process) bool { return c.Parent == p.PID })
		if hasChild && p.Blocks(unix.SIGCHLD) && !moves(p) {
			p.Signal(unix.SIGCHLD)
		}
	}
}

func moves(p proc.Process) bool {
	return slices.ContainsFunc(proc.Threads(p.PID), func(t proc.Thread) bool { return !t.Stopped() })
}

// runs reports whether a process has a thread that will stop when it gets CPU time.
func runs(p proc.Process) bool {
	return slices.ContainsFunc(proc.Threads(p.PID), func(t proc.Thread) bool { return !t.Stopped() && !t.Blocked() })
}

// nudge lets the children of blocked processes run for a moment: the parent of a child that was
// stopped between vfork and execve is blocked until that executes its program.
func (h *hold) nudge(blocked []proc.Process) {
	var children []proc.Process
	for _, p := range h.stopped {
		if slices.ContainsFunc(blocked, func(parent proc.Process) bool { return parent.PID == p.Parent }) {
			children = append(children, p)
			p.Signal(unix.SIGCONT)
		}
	}
	if len(children) == 0 {
		return
	}
	time.Sleep(nudgeTime)
	for _, p := range children {
		p.Signal(unix.SIGSTOP)
	}
}

// resume lets the processes go on that were stopped, children before their parents, who thus find
// no child of theirs stopped.
func (h *hold) resume() {
	for _, p := range slices.Backward(h.stopped) {
		p.Signal(unix.SIGCONT)
	}
	h.gates.open()
}

// end lets the processes go on, and returns what has run during the hold.
func (h *hold) end() (moved string) {
	last := proc.LastPID()
	v, err := h.look()
	h.resume()
	newcomers := v.arriving
	for _, p := range v.fresh {
		if !p.Foreign() {
			return fmt.Sprintf("process %d was started", p.PID)
		}
		newcomers = append(newcomers, p)
	}
	isNew := func(id proc.ID) bool {
		return slices.ContainsFunc(newcomers, func(p proc.Process) bool { return p.ID() == id })
	}
	v.moving = slices.DeleteFunc(v.moving, func(p proc.Process) bool { return isNew(p.ID()) })
	maps.DeleteFunc(v.threads, func(t thread, _ uint64) bool { return isNew(t.ID) })
	v.tids = slices.DeleteFunc(v.tids, func(tid int) bool { return tid <= h.last || tid > last })
	switch {
	case err != nil:
		return "the process table can't be read"
	case len(v.moving) > 0:
		return fmt.Sprintf("process %d ran", v.moving[0].PID)
	case !maps.Equal(v.threads, h.threads):
		return "a process ran, or was killed"
	case len(newcomers) == 0 && last-h.last != len(v.tids):
		return "a process was started, and ended"
	}
	// A server of the owner's starts nothing before the owner has sent its first request.
	for _, p := range newcomers {
		if !poll(verdictTime, func() bool { return h.gates.known(p.ID()) }) {
			return fmt.Sprintf("process %d was started from outside the sandbox", p.PID)
		}
	}
	return ""
}
