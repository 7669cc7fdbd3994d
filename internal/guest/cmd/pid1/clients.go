//go:build linux

package pid1

import (
	"os"
	"slices"
	"sync"
	"time"

	"github.com/seed-1a2d6d8f/sandbox/internal/guest/cmd/proc"
)

const (
	// maxPending bounds the control connections that are not authenticated yet,
	// maxPendingPerProcess those of one process, and pendingTime how long each may take.
	maxPending           = 64
	maxPendingPerProcess = 8
	pendingTime          = 5 * time.Second
	// maxAuthenticated bounds those that are.
	maxAuthenticated = 32
)

// clients are the open control connections.
//
// Any process inside may connect. So pending connections are few, one process gets only
// some of them, and when there are many processes a new connection evicts the oldest
// pending one. The owner's comes from a process of its own and is pending for one round
// trip; an authenticated connection stays.
type clients struct {
	mu            sync.Mutex
	pending       []*client // oldest first
	authenticated []*client
}

type client struct {
	conn *os.File
	pid  int32
	id   proc.ID // zero for a process from outside of the PID namespace
}

// full reports whether a process has as many pending connections as it may.
func (c *clients) full(pid int32) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := 0
	for _, s := range c.pending {
		if s.pid == pid {
			n++
		}
	}
	return n >= maxPendingPerProcess
}

func (c *clients) add(one *client) {
	c.mu.Lock()
	full := len(c.pending) >= maxPending
	c.mu.Unlock()
	if full {
		c.evict()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.pending = append(c.pending, one)
}

// evict closes the oldest pending connection, and returns false when there is none.
func (c *clients) evict() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.pending) == 0 {
		return false
	}
	c.pending[0].conn.Close()
	c.pending = c.pending[1:]
	return true
}

// promote registers a connection as authenticated. One too many closes the oldest of them.
func (c *clients) promote(one *client) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.pending = slices.DeleteFunc(c.pending, func(other *client) bool { return other == one })
	if len(c.authenticated) >= maxAuthenticated {
		c.authenticated[0].conn.Close()
		c.authenticated = c.authenticated[1:]
	}
	c.authenticated = append(c.authenticated, one)
}

// keep takes a connection off those that can be evicted.
func (c *clients) keep(one *client) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.pending = slices.DeleteFunc(c.pending, func(other *client) bool { return other == one })
}

func (c *clients) remove(one *client) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.pending = slices.DeleteFunc(c.pending, func(other *client) bool { return other == one })
	c.authenticated = slices.DeleteFunc(c.authenticated, func(other *client) bool { return other == one })
}
