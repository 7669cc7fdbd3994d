//go:build linux

package sshserver

import (
	"errors"
	"net"
	"sync/atomic"
	"time"

	"github.com/seed-1a2d6d8f/sandbox/internal/guest/wire"
)

// A client that has vanished, with its machine or its network, closes nothing. It is asked for
// a sign of life after requestAfter without a byte, and again as often, and its connection
// ends after vanishedAfter. Both are counted in ticks: however long this process is frozen,
// that is one tick. While nothing runs for the client, a tick is idleTicks times as long.
var silenceTick = "5s" // a time.Duration, which the linker shortens for tests

const (
	requestAfter  = 5  // ticks
	vanishedAfter = 16 // ticks
	idleTicks     = 6
)

// tick returns a channel that gets the next tick, of silenceTick while something runs for the client.
func (s *server) tick(length time.Duration) <-chan time.Time {
	if s.config == nil && !s.use.goesOn() {
		length *= idleTicks
	}
	return time.After(length)
}

var errVanished = errors.New("the client sends nothing, and answers nothing")

// heardConn notes that something has arrived.
type heardConn struct {
	net.Conn
	heard atomic.Bool
}

func (c *heardConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if n > 0 {
		c.heard.Store(true)
	}
	return n, err
}

// requester sends global requests, as an ssh.Conn does.
type requester interface {
	SendRequest(name string, wantReply bool, payload []byte) (bool, []byte, error)
}

// awaitSilence returns errVanished when the client has vanished, and nil when ended is closed.
// tick returns a channel that gets the next tick, and client the connection to send requests on, nil until there is one.
func (c *heardConn) awaitSilence(tick func() <-chan time.Time, ended <-chan struct{}, client func() requester) error {
	var asking atomic.Bool
	for silent := 0; ; {
		select {
		case <-ended:
			return nil
		case <-tick():
		}
		if c.heard.Swap(false) {
			silent = 0
			continue
		}
		if silent++; silent == vanishedAfter {
			return errVanished
		}
		if to := client(); to != nil && silent%requestAfter == 0 && asking.CompareAndSwap(false, true) {
			go func() { // the request waits while the way to the client is full
				defer asking.Store(false)
				to.SendRequest(wire.RequestKeepalive, true, nil)
			}()
		}
	}
}
