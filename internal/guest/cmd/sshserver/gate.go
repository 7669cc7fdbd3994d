//go:build linux

package sshserver

import (
	"bufio"
	"io"
	"sync"
	"time"

	"github.com/seed-1a2d6d8f/sandbox/internal/guest/wire"
)

// gate keeps this process from starting others while PID 1 holds those of the sandbox.
type gate struct{ starts sync.RWMutex }

// enter waits for the end of a hold. The next one waits until leave is called. A hold is over
// when its owner is silent, so enter is bounded.
func (g *gate) enter() (leave func()) {
	g.starts.RLock()
	return g.starts.RUnlock
}

// follow closes and opens the gate as PID 1 says, for as long as this process lives. PID 1 closes connections of
// those that it does not know yet when they take long or others inside open many. Without one it
// stops this process during a hold, and does not notice at once that it has ended.
func (g *gate) follow() {
	for wait := time.Second; ; wait = min(2*wait, time.Minute) {
		g.obey()
		time.Sleep(wait)
	}
}

// obey is follow until the connection ends.
func (g *gate) obey() {
	conn, err := dialControl()
	if err != nil {
		return
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, wire.GateRequest); err != nil {
		return
	}
	closed := false
	defer func() {
		if closed {
			g.starts.Unlock()
		}
	}()
	r := bufio.NewReader(conn)
	for {
		line, err := r.ReadSlice('\n') // the first is a challenge
		if err != nil {
			return
		}
		switch {
		case string(line) == wire.GateClose && !closed:
			g.starts.Lock()
			closed = true
			if _, err := io.WriteString(conn, wire.GateClosed); err != nil {
				return
			}
		case string(line) == wire.GateOpen && closed:
			g.starts.Unlock()
			closed = false
		}
	}
}
