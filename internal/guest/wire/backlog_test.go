package wire

import (
	"errors"
	"io"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/crypto/ssh"
)

// Both sides close channels at the same time, on a connection that holds nothing: each side's reading goroutine answers while the
// other's does. A channel may have a writer whose packet is on its way meanwhile.
func TestChannelsThatBothSidesCloseAtOnce(t *testing.T) {
	t.Parallel()
	for name, writes := range map[string]bool{"idle": false, "written": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			near, far := net.Pipe()
			closeNow := make(chan chan struct{})
			served := make(chan struct{})
			go func() {
				defer close(served)
				_, chans, reqs, err := ServerConn(far)
				if err != nil {
					t.Error(err)
					return
				}
				go ssh.DiscardRequests(reqs)
				var all sync.WaitGroup
				defer all.Wait()
				for nc := range chans {
					all.Go(func() {
						ch, reqs, err := nc.Accept()
						if err != nil {
							return
						}
						go ssh.DiscardRequests(reqs)
						if nc.ChannelType() == "closed by the server" {
							<-<-closeNow
							ch.Close()
						}
						io.Copy(io.Discard, ch)
					})
				}
			}()
			conn, chans, reqs, err := ClientConn(near)
			if err != nil {
				t.Fatal(err)
			}
			go ssh.DiscardRequests(reqs)
			go func() {
				for range chans {
				}
			}()
			rounds := make(chan error, 1)
			go func() {
				for range 200 {
					var all sync.WaitGroup
					now := make(chan struct{})
					for _, kind := range []string{"closed by the server", "closed by the client"} {
						ch, reqs, err := conn.OpenChannel(kind, nil)
						if err != nil {
							rounds <- err
							return
						}
						if kind == "closed by the server" {
							closeNow <- now
						} else {
							all.Go(func() { <-now; ch.Close() })
						}
						if writes && kind == "closed by the server" {
							all.Go(func() {
								for err := error(nil); err == nil; {
									_, err = ch.Write(make([]byte, 3*PacketData))
								}
							})
						}
						all.Go(func() { ssh.DiscardRequests(reqs) }) // until both sides have closed it
					}
					close(now)
					all.Wait()
				}
				rounds <- nil
			}()
			select {
			case err := <-rounds:
				if err != nil {
					t.Error(err)
				}
			case <-time.After(5 * time.Minute):
				near.Close()
				t.Fatal("both sides wait for each other")
			}
			conn.Close()
			<-served
		})
	}
}

// What is kept is bounded, and its writers wait until there is room or the connection ends.
func TestBacklogIsBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		conn := &gatedConn{begun: make(chan []byte), allow: make(chan error)}
		b := newBacklog(conn)
		b.Write([]byte{0})
		<-conn.begun
		if n, err := b.Write(make([]byte, backlogMax+1)); n != backlogMax+1 || err != nil {
			t.Fatalf("Write: %d, %v; want all kept", n, err)
		}
		wrote := make(chan error, 2)
		go func() { _, err := b.Write([]byte{1}); wrote <- err }()
		go func() { b.room(); wrote <- nil }()
		if synctest.Wait(); len(wrote) > 0 {
			t.Error("a writer did not wait for room")
		}
		conn.allow <- nil
		if n := len(<-conn.begun); n != backlogMax+1 {
			t.Errorf("the second write has %d bytes, want %d", n, backlogMax+1)
		}
		for range 2 {
			if err := <-wrote; err != nil {
				t.Error(err)
			}
		}
		ch := &channel{out: b, Channel: keeping{b: b}}
		go func() { _, err := ch.Write(make([]byte, backlogRoom+2*PacketData)); wrote <- err }()
		if synctest.Wait(); len(b.kept) > backlogRoom+PacketData || len(wrote) > 0 {
			t.Errorf("the writer of a channel left %d bytes, and did not wait for room", len(b.kept))
		}
		broken := errors.New("broken")
		conn.allow <- broken
		if err := <-wrote; err != broken {
			t.Errorf("Write to a channel that waits: %v, want the connection's error", err)
		}
		if _, err := b.Write([]byte{2}); err != broken {
			t.Errorf("Write after a failed one: %v, want its error", err)
		}
	})
}

// keeping is a channel that writes to a backlog.
type keeping struct {
	ssh.Channel
	b *backlog
}

func (k keeping) Write(p []byte) (int, error) { return k.b.Write(p) }

func TestNothingIsSentOnceTheEndIsRead(t *testing.T) {
	t.Parallel()
	near, far := net.Pipe()
	b := newBacklog(near)
	far.Close()
	if _, err := b.Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("Read: %v, want the end", err)
	}
	if _, err := b.Write([]byte("late")); err == nil {
		t.Error("a packet was taken after the end of the connection")
	}
}

// Close sends what is kept first, and nothing is kept after it.
func TestCloseSendsTheBacklog(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		near, far := net.Pipe()
		b := newBacklog(near)
		for range 100 {
			b.Write([]byte("0123456789"))
		}
		closed := make(chan error)
		go func() { closed <- b.Close() }()
		if got, err := io.ReadAll(far); len(got) != 1000 || err != nil {
			t.Errorf("got %d bytes, %v; want the 1000 that were written before Close", len(got), err)
		}
		if err := <-closed; err != nil {
			t.Error(err)
		}
		if _, err := b.Write([]byte("late")); !errors.Is(err, net.ErrClosed) {
			t.Errorf("Write after Close: %v, want ErrClosed", err)
		}
	})
}

func TestCloseGivesUpABacklogThatNobodyReads(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		near, _ := net.Pipe()
		b := newBacklog(near)
		b.Write([]byte("kept"))
		began := time.Now()
		if err := b.Close(); err != nil || time.Since(began) != closeWait {
			t.Errorf("Close: %v after %v, want nil after %v", err, time.Since(began), closeWait)
		}
	})
}
