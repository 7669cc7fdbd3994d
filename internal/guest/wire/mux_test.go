package wire

import (
	"encoding/binary"
	"errors"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"
)

// pipe returns the two ends of a connection.
func pipe(t *testing.T) (near, far net.Conn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if near, err = net.Dial("tcp", l.Addr().String()); err != nil {
		t.Fatal(err)
	}
	if far, err = l.Accept(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { near.Close(); far.Close() })
	return near, far
}

// What is written on many channels at once arrives whole, and messages before the greeting
// don't matter.
func TestManyChannelsOfOneConnection(t *testing.T) {
	t.Parallel()
	near, far := pipe(t)
	var served sync.WaitGroup
	served.Go(func() {
		io.WriteString(far, "a message of another program\n")
		_, chans, reqs, err := ServerConn(far)
		if err != nil {
			t.Error(err)
			return
		}
		go ssh.DiscardRequests(reqs)
		for nc := range chans {
			served.Go(func() {
				ch, reqs, err := nc.Accept()
				if err != nil {
					t.Error(err)
					return
				}
				go ssh.DiscardRequests(reqs)
				io.Copy(ch, ch)
				ch.Close()
			})
		}
	})
	conn, chans, reqs, err := ClientConn(near)
	if err != nil {
		t.Fatal(err)
	}
	go ssh.DiscardRequests(reqs)
	go func() {
		for range chans {
		}
	}()
	var all sync.WaitGroup
	for i := range 16 {
		all.Go(func() {
			ch, reqs, err := conn.OpenChannel("echo", nil)
			if err != nil {
				t.Error(err)
				return
			}
			go ssh.DiscardRequests(reqs)
			sent := slices.Repeat([]byte{byte(i), 1, 2, 3, 5, 7, 11}, 40_000)
			go func() {
				ch.Write(sent)
				ch.CloseWrite()
			}()
			got, err := io.ReadAll(ch)
			if err != nil || !slices.Equal(got, sent) {
				t.Errorf("channel %d: got %d bytes, %v; want %d", i, len(got), err, len(sent))
			}
		})
	}
	all.Wait()
	conn.Close()
	served.Wait()
}

// A hostile server ends its own connection.
func TestPacketsOfAHostileServer(t *testing.T) {
	t.Parallel()
	for name, sent := range map[string]string{
		"empty":                "\x00\x00\x00\x00",
		"without a type":       "\x00\x00\x00\x01\x00",
		"padded":               "\x00\x00\x00\x02\x01\x5a",
		"too long":             "\x00\x10\x00\x00",
		"of no length":         "\xff\xff\xff\xff",
		"of a channel unknown": "\x00\x00\x00\x06\x00\x5e\x00\x00\x00\x07",
		"of a key exchange":    "\x00\x00\x00\x02\x00\x14",
		"half":                 "\x00\x00\x00\x09\x00\x5a",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			near, far := pipe(t)
			io.WriteString(far, Greeting+sent)
			far.(*net.TCPConn).CloseWrite()
			conn, chans, reqs, err := ClientConn(near)
			if err != nil {
				t.Fatal(err)
			}
			go ssh.DiscardRequests(reqs)
			for range chans {
				t.Error("a channel")
			}
			if err := conn.Wait(); err == nil {
				t.Error("the connection ended without an error")
			}
		})
	}
}

// What comes in place of a greeting is bounded.
func TestClientGivesUpWithoutAGreeting(t *testing.T) {
	t.Parallel()
	near, far := pipe(t)
	go io.Copy(far, strings.NewReader(strings.Repeat("y", 1<<20)))
	if _, _, _, err := ClientConn(near); err == nil {
		t.Error("ClientConn succeeded")
	}
}

// adjusts counts what its writer sends of windows.
type adjusts struct {
	net.Conn
	n atomic.Int64
}

func (a *adjusts) Write(b []byte) (int, error) {
	if len(b) == adjustSize && b[5] == windowAdjust {
		a.n.Add(1)
	}
	return a.Conn.Write(b)
}

// Windows are given back in large steps, and what a channel is owed ends with it: the other side gives its number
// to the next channel.
func TestWindowsInSteps(t *testing.T) {
	t.Parallel()
	near, far := pipe(t)
	var served sync.WaitGroup
	served.Go(func() {
		_, chans, reqs, err := ServerConn(far)
		if err != nil {
			t.Error(err)
			return
		}
		go ssh.DiscardRequests(reqs)
		for nc := range chans {
			size := binary.BigEndian.Uint32(nc.ExtraData())
			ch, reqs, err := nc.Accept()
			if err != nil {
				t.Error(err)
				return
			}
			go ssh.DiscardRequests(reqs)
			ch.Write(make([]byte, size))
		}
	})
	counted := &adjusts{Conn: near}
	conn, chans, reqs, err := ClientConn(counted)
	if err != nil {
		t.Fatal(err)
	}
	go ssh.DiscardRequests(reqs)
	go func() {
		for range chans {
		}
	}()
	for _, want := range []struct{ size, most int64 }{
		{windowStep * 3 / 4, 0},
		{windowStep * 3 / 4, 0}, // none, either, of the channel before
		{64 * windowStep, 64},
	} {
		before := counted.n.Load()
		ch, reqs, err := conn.OpenChannel("send", binary.BigEndian.AppendUint32(nil, uint32(want.size)))
		if err != nil {
			t.Fatal(err)
		}
		if n, err := io.CopyN(io.Discard, ch, want.size); err != nil {
			t.Fatalf("got %d bytes, %v; want %d", n, err, want.size)
		}
		ch.Close()
		ssh.DiscardRequests(reqs) // until the other side has closed it, too
		if got := counted.n.Load() - before; got > want.most {
			t.Errorf("%d bytes: the window was given back %d times, want at most %d", want.size, got, want.most)
		}
	}
	conn.Close()
	served.Wait()
}

// gatedConn writes when the test allows it, and then returns err.
type gatedConn struct {
	net.Conn
	begun chan []byte
	allow chan error
}

func (c *gatedConn) Write(b []byte) (int, error) {
	c.begun <- slices.Clone(b)
	if err := <-c.allow; err != nil {
		return 0, err
	}
	return len(b), nil
}

// Packets that are written while others are take one call, and each writer waits for that call and gets its error.
func TestPacketsAreWrittenTogether(t *testing.T) {
	t.Parallel()
	broken := errors.New("broken")
	for _, want := range []error{nil, broken} {
		conn := &gatedConn{begun: make(chan []byte), allow: make(chan error)}
		p := &packets{Conn: conn}
		results := make(chan error)
		write := func(b ...byte) { _, err := p.Write(b); results <- err }
		go write(1, 1)
		if first := <-conn.begun; !slices.Equal(first, []byte{1, 1}) {
			t.Fatalf("the first call has %v", first)
		}
		const others = 50
		for i := range others {
			go write(byte(i), byte(i))
		}
		for queued := 0; queued < 2*others; { // in the batch of the first of them, who waits for the call
			p.mu.Lock()
			if p.next != nil {
				queued = len(p.next.packets)
			}
			p.mu.Unlock()
			select {
			case err := <-results:
				t.Fatalf("a write returned %v before its call", err)
			case <-conn.begun:
				t.Fatal("two calls at once")
			case <-time.After(time.Millisecond):
			}
		}
		conn.allow <- nil
		if err := <-results; err != nil {
			t.Fatal(err)
		}
		batch := <-conn.begun
		seen := map[byte]int{}
		for i := 0; i+1 < len(batch); i += 2 {
			if batch[i] != batch[i+1] {
				t.Fatalf("torn packets: %v", batch)
			}
			seen[batch[i]]++
		}
		if len(batch) != 2*others || len(seen) != others {
			t.Errorf("the second call has %d bytes of %d packets, want all %d", len(batch), len(seen), others)
		}
		conn.allow <- want
		for range others {
			if err := <-results; err != want {
				t.Errorf("a write returned %v, want %v", err, want)
			}
		}
	}
}
