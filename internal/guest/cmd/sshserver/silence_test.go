//go:build linux

package sshserver

import (
	"errors"
	"io"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/seed-1a2d6d8f/sandbox/internal/guest/wire"
)

// ticking is a silence watch with a clock of its own. tick returns when the watch has seen it.
type ticking struct {
	t     *testing.T
	conn  *heardConn
	ticks chan time.Time
	end   chan error
}

func newTicking(t *testing.T, conn net.Conn, client func() requester) *ticking {
	w := &ticking{t: t, conn: &heardConn{Conn: conn}, ticks: make(chan time.Time), end: make(chan error, 1)}
	ended := make(chan struct{})
	go func() { w.end <- w.conn.awaitSilence(func() <-chan time.Time { return w.ticks }, ended, client) }()
	t.Cleanup(func() { close(ended) })
	return w
}

func (w *ticking) tick(n int) {
	w.t.Helper()
	for range n {
		select {
		case w.ticks <- time.Time{}:
		case err := <-w.end:
			w.t.Fatalf("the watch ended: %v", err)
		case <-time.After(5 * time.Minute):
			w.t.Fatal("the watch waits for something else than its clock")
		}
	}
}

type countingRequester struct{ n atomic.Int32 }

func (c *countingRequester) SendRequest(name string, wantReply bool, _ []byte) (bool, []byte, error) {
	if name == wire.RequestKeepalive && wantReply {
		c.n.Add(1)
	}
	return false, nil, nil
}

func TestAClientThatSaysNothingHasVanished(t *testing.T) {
	t.Parallel()
	near, far := net.Pipe()
	defer near.Close()
	defer far.Close()
	to := &countingRequester{}
	w := newTicking(t, near, func() requester { return to })
	for range 3 { // a byte in time keeps the connection, be it noticed at the last tick or at the next one
		w.tick(vanishedAfter - 2)
		go far.Write([]byte("x"))
		if _, err := w.conn.Read(make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
		w.tick(1)
	}
	w.tick(vanishedAfter - 2)
	var err error
	for more := 0; err == nil && more <= 2; more++ { // for the byte, and for the end
		select {
		case w.ticks <- time.Time{}:
		case err = <-w.end:
		case <-time.After(5 * time.Minute):
			t.Fatal("the watch waits for something else than its clock")
		}
	}
	if !errors.Is(err, errVanished) {
		t.Errorf("awaitSilence = %v, want errVanished", err)
	}
	if to.n.Load() == 0 {
		t.Error("the client was not asked for a sign of life")
	}
}

// A request that can't be sent, because nobody reads, does not stop the clock.
func TestABlockedRequestDoesNotStopTheWatch(t *testing.T) {
	t.Parallel()
	near, far := net.Pipe()
	defer near.Close()
	defer far.Close()
	blocked := make(chan struct{})
	defer close(blocked)
	w := newTicking(t, near, func() requester { return blockedRequester(blocked) })
	w.tick(vanishedAfter - 1)
	w.ticks <- time.Time{}
	select {
	case <-w.end:
	case <-time.After(5 * time.Minute):
		t.Error("the watch waits for its request")
	}
}

type blockedRequester chan struct{}

func (b blockedRequester) SendRequest(string, bool, []byte) (bool, []byte, error) {
	<-b
	return false, nil, io.EOF
}

// Clients answer the request, those too that have never heard of it.
func TestClientsAnswerTheRequest(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	far, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	near, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	s := newServer()
	conn := &heardConn{Conn: near}
	served := make(chan error, 1)
	go func() { served <- s.serve(conn) }()
	sc, chans, reqs, err := wire.ClientConn(far)
	if err != nil {
		t.Fatal(err)
	}
	go ssh.DiscardRequests(reqs)
	go func() {
		for nc := range chans {
			nc.Reject(ssh.Prohibited, "")
		}
	}()
	for s.client() == nil { // its side of the handshake may end later
		time.Sleep(time.Millisecond)
	}
	conn.heard.Store(false)
	if _, _, err := s.client().SendRequest(wire.RequestKeepalive, true, nil); err != nil {
		t.Errorf("SendRequest: %v", err)
	}
	if !conn.heard.Load() {
		t.Error("nothing was heard of a client that has answered")
	}
	sc.Close()
	<-served
}
