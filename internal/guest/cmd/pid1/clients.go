//go:build linux

package pid1

import (
	"os"
	"slices"
	"sync"
	"time"
)

const (
	// maxPending bounds control connections that have proved nothing yet,
	// maxOfOne those that one process may have of them, and strangerTime how long
	// each has to prove something.
	maxPending           = 64
	maxPendingPerProcess = 8
	pendingTime          = 5 * time.Second
	// maxAuthenticated bounds those that have.
	maxAuthenticated = 32
)

// clients are the open control connections.
//
// Anyone inside may connect. So those who have proved nothing are few; one process
// gets only some of their places; and when processes are many, a newcomer takes the
// place of the oldest stranger. The owner comes from a process of his own and needs
// his for a round trip, once: a connection that has proved who it is, stays.
type clients struct {
	mu            sync.Mutex
	pending       []*client // oldest first
	authenticated []*client
}

type client struct {
	conn *os.File
	pid  int32
}

// full says that a process has all the places it can get.
func (g *clients) full(pid int32) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	n := 0
	for _, s := range g.pending {
		if s.pid == pid {
			n++
		}
	}
	return n >= maxPendingPerProcess
}

func (g *clients) add(one *client) {
	g.mu.Lock()
	full := len(g.pending) >= maxPending
	g.mu.Unlock()
	if full {
		g.evict()
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.pending = append(g.pending, one)
}

// evict drops the oldest stranger, if there is one.
func (g *clients) evict() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.pending) == 0 {
		return false
	}
	g.pending[0].conn.Close()
	g.pending = g.pending[1:]
	return true
}

// promote moves one that has proved who it is, at the cost of the oldest such.
func (g *clients) promote(one *client) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.pending = slices.DeleteFunc(g.pending, func(s *client) bool { return s == one })
	if len(g.authenticated) >= maxAuthenticated {
		g.authenticated[0].conn.Close()
		g.authenticated = g.authenticated[1:]
	}
	g.authenticated = append(g.authenticated, one)
}

func (g *clients) remove(one *client) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.pending = slices.DeleteFunc(g.pending, func(s *client) bool { return s == one })
	g.authenticated = slices.DeleteFunc(g.authenticated, func(s *client) bool { return s == one })
}
