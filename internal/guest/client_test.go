package guest

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/seed-1a2d6d8f/sandbox/internal/guest/wire"
)

// forgetful never answers who opens a channel, not even when it ends.
type forgetful struct {
	ssh.Conn
	asked, end chan struct{}
	forever    chan struct{}
}

func (f *forgetful) OpenChannel(string, []byte) (ssh.Channel, <-chan *ssh.Request, error) {
	close(f.asked)
	<-f.forever
	return nil, nil, errors.New("the test is over")
}

func (f *forgetful) Wait() error {
	<-f.end
	return io.EOF
}

func (f *forgetful) Close() error { return nil }

// A session that ends takes nobody along who was about to do something in it.
func TestWhoOpensAChannelLearnsOfTheEnd(t *testing.T) {
	t.Parallel()
	f := &forgetful{asked: make(chan struct{}), end: make(chan struct{}), forever: make(chan struct{})}
	defer close(f.forever)
	chans, reqs := make(chan ssh.NewChannel), make(chan *ssh.Request)
	r, w := net.Pipe()
	defer w.Close()
	conn := newClient(f, chans, reqs, r, &stream{})
	go func() {
		<-f.asked
		close(chans)
		close(reqs)
		close(f.end)
	}()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	if _, _, err := conn.open(ctx, "any", nil); !errors.Is(err, ErrConnectionLost) {
		t.Errorf("open as the connection ends: %v, want ErrConnectionLost", err)
	}
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		conn.Close()
	}()
	select {
	case <-closed:
	case <-ctx.Done():
		t.Error("Close waits for one who opens a channel, and nobody answers")
	}
}

// Keepalives that begin after Close has begun end at once: Close may wait for them.
func TestKeepalivesDoNotOutliveClose(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := &forgetful{end: make(chan struct{})}
		chans, reqs := make(chan ssh.NewChannel), make(chan *ssh.Request)
		close(chans)
		close(reqs)
		close(f.end)
		r, w := net.Pipe()
		defer w.Close()
		began := time.Now()
		conn := newClient(f, chans, reqs, r, &stream{began: began})
		conn.Close()
		conn.keepAlive(Keepalive, func(context.Context, time.Duration) error { return errors.New("silent") })
		if took := time.Since(began); took > 0 {
			t.Errorf("keepalives went on for %v after Close", took)
		}
	})
}

// connected are the two ends of a connection.
func connected(t *testing.T) (near, far net.Conn) {
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
	return near, far
}

// sshServer answers on conn until it has refused so many channels.
func sshServer(t *testing.T, conn net.Conn, channels int) {
	sc, chans, reqs, err := wire.ServerConn(conn)
	if err != nil {
		t.Error(err)
		return
	}
	defer sc.Wait()
	defer sc.Close()
	go ssh.DiscardRequests(reqs)
	for nc := range chans {
		if nc.Reject(ssh.Prohibited, ""); channels == 0 {
			break
		}
		channels--
	}
}

// A call that begins while the connection ends fails, too.
func TestManyOpenChannelsAsTheConnectionEnds(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	for round := range 60 {
		near, far := connected(t)
		var all sync.WaitGroup
		all.Go(func() { sshServer(t, far, round%8) })
		conn, err := Dial(ctx, near)
		if err != nil {
			t.Fatal(err)
		}
		for range 4 {
			all.Go(func() {
				for conn.Err() == nil && ctx.Err() == nil {
					conn.open(ctx, "any", nil)
				}
			})
		}
		<-conn.Done()
		all.Wait()
		conn.Close()
		if ctx.Err() != nil {
			t.Fatalf("round %d: there is no end", round)
		}
	}
}

// prompt answers each request at once, and counts them.
type prompt struct {
	ssh.Conn
	st    *stream
	asked atomic.Int64
	end   chan struct{}
}

func (p *prompt) SendRequest(string, bool, []byte) (bool, []byte, error) {
	p.asked.Add(1)
	p.st.heard.Store(int64(time.Since(p.st.began)))
	return false, nil, nil
}

func (p *prompt) Wait() error {
	<-p.end
	return io.EOF
}

func (p *prompt) Close() error {
	close(p.end)
	return nil
}

// Keepalives are rare until something lasts on the connection, frequent from then on, and rare again when it has ended.
func TestKeepalivesOfAnHour(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &prompt{st: &stream{began: time.Now()}, end: make(chan struct{})}
		chans, reqs := make(chan ssh.NewChannel), make(chan *ssh.Request)
		close(chans)
		close(reqs)
		r, _ := net.Pipe()
		conn := newClient(p, chans, reqs, r, p.st)
		defer conn.Close()
		conn.KeepAlive(func(context.Context, time.Duration) error {
			t.Error("the silence of a guest that answers is checked")
			return nil
		})
		during := func(d time.Duration) int {
			before := p.asked.Load()
			<-time.After(d) // by the test's own clock
			synctest.Wait()
			return int(p.asked.Load() - before)
		}
		least := func(silent time.Duration) int { return int(time.Hour/(silent+Keepalive.Answer)) - 1 }
		rare := func(when string) {
			t.Helper()
			if n := during(time.Hour); n < least(Keepalive.Idle) || n > int(time.Hour/Keepalive.Idle) {
				t.Errorf("%s there are %d keepalives in an hour, want one every %v", when, n, Keepalive.Idle)
			}
		}
		rare("before a command")
		ended := make(chan struct{})
		go conn.usage.while(func() { <-ended })
		if during(Keepalive.Silent+Keepalive.Answer) == 0 {
			t.Error("no keepalive follows the start of a command")
		}
		if n := during(time.Hour); n < least(Keepalive.Silent) {
			t.Errorf("while a command lasts there are %d keepalives in an hour, want one every %v", n, Keepalive.Silent)
		}
		close(ended)
		synctest.Wait()
		rare("after it")
	})
}
