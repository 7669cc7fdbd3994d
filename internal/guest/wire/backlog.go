package wire

import (
	"net"
	"sync"
	"time"

	"golang.org/x/crypto/ssh"
)

// backlog is a connection whose Write does not wait for the other side, but keeps what that does not take yet.
//
// Package ssh writes from the goroutine that reads, to answer the close of a channel, and a channel's writers hold a lock
// that this goroutine takes, too. If both sides waited in such a write, neither would read. So the client's goroutine never waits:
// then it reads, and the server's writes end, too.
type backlog struct {
	net.Conn

	mu      sync.Mutex
	changed sync.Cond // of what follows
	kept    []byte
	sending bool  // by a goroutine
	err     error // of all further writes
}

const (
	backlogRoom = 64 << 10    // kept bytes from which writers of channels wait: what a pipe holds
	backlogMax  = 16 << 20    // from which all do: 512 channels have that much if all write a packet at once
	closeWait   = time.Second // for what is kept when the connection is closed
)

// buffers are for large packets: as many as come before their writers wait.
var buffers = sync.Pool{New: func() any { b := make([]byte, 0, bufferSize); return &b }}

const bufferSize = backlogRoom + 32<<10

func newBacklog(conn net.Conn) *backlog {
	b := &backlog{Conn: conn}
	b.changed.L = &b.mu
	return b
}

// Read reads from the connection. Writes fail before it returns the connection's end. Package ssh then wakes all callers that wait
// for an answer, and only after that fails to send: a channel opened in between would be forgotten, and its caller wait for ever.
func (b *backlog) Read(p []byte) (int, error) {
	n, err := b.Conn.Read(p)
	if err != nil {
		b.fail(net.ErrClosed)
	}
	return n, err
}

// Write keeps p until it is written. Its error is that of an earlier write.
func (b *backlog) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.await(backlogMax); b.err != nil {
		return 0, b.err
	}
	if b.kept == nil && len(p) >= alone {
		b.kept = (*buffers.Get().(*[]byte))[:0]
	}
	b.kept = append(b.kept, p...)
	if !b.sending {
		b.sending = true
		go b.send()
	}
	return len(p), nil
}

// send writes what is kept, until nothing is.
func (b *backlog) send() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for len(b.kept) > 0 && b.err == nil {
		batch := b.kept
		b.kept = nil
		b.changed.Broadcast()
		b.mu.Unlock()
		_, err := b.Conn.Write(batch)
		b.mu.Lock()
		if err != nil && b.err == nil {
			b.err = err
		}
		if cap(batch) == bufferSize {
			buffers.Put(&batch)
		}
	}
	b.kept, b.sending = nil, false
	b.changed.Broadcast()
}

// room waits until no more than backlogRoom is kept.
func (b *backlog) room() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.await(backlogRoom)
}

func (b *backlog) await(most int) {
	for len(b.kept) > most && b.err == nil {
		b.changed.Wait()
	}
}

func (b *backlog) fail(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.err == nil {
		b.err = err
	}
	b.changed.Broadcast()
}

// Close writes what is kept, if the other side takes it within closeWait.
func (b *backlog) Close() error {
	late := time.AfterFunc(closeWait, func() { b.fail(net.ErrClosed) })
	defer late.Stop()
	b.mu.Lock()
	for b.sending && b.err == nil {
		b.changed.Wait()
	}
	b.mu.Unlock()
	b.fail(net.ErrClosed)
	return b.Conn.Close()
}

// clientConn is a connection whose channels wait for room before they write.
type clientConn struct {
	ssh.Conn
	out *backlog
}

func (c *clientConn) OpenChannel(kind string, extra []byte) (ssh.Channel, <-chan *ssh.Request, error) {
	ch, reqs, err := c.Conn.OpenChannel(kind, extra)
	if err != nil {
		return nil, nil, err
	}
	return &channel{ch, c.out}, reqs, nil
}

type channel struct {
	ssh.Channel
	out *backlog
}

// Write waits without a lock of package ssh, and returns when p is kept.
func (c *channel) Write(p []byte) (n int, err error) {
	for {
		c.out.room()
		m, err := c.Channel.Write(p[n:min(len(p), n+PacketData)])
		if n += m; err != nil || n == len(p) {
			return n, err
		}
	}
}
