package enginetest

import (
	"io"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Trips counts the sequential round trips of a client: the length of the longest chain of
// requests in which each was sent after the reply to the one before. A new connection and an
// exchange on a stream are a trip, too.
//
// Every reply is delayed, as on a slow link: so calls that do not wait for each other overlap,
// and a slow machine makes the count too high at worst.
type Trips struct {
	delay atomic.Int64 // a time.Duration

	mu   sync.Mutex
	done int // the longest chain whose last reply was sent to the client
	log  []Trip
}

// A Trip is a message of the client.
type Trip struct {
	N    int // the length of the longest chain that ends with it
	What string
}

// CountTrips makes the proxy delay every reply, and count round trips.
func (p *Proxy) CountTrips(delay time.Duration) *Trips {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.trips = &Trips{}
	p.trips.Delay(delay)
	return p.trips
}

// Delay makes later replies come after another delay.
func (t *Trips) Delay(delay time.Duration) { t.delay.Store(int64(delay)) }

func (t *Trips) after() time.Duration { return time.Duration(t.delay.Load()) }

// CountIn makes the proxy delay every reply, and count round trips together with other proxies: one chain
// can lead through several engines.
func (p *Proxy) CountIn(t *Trips) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.trips = t
}

// Reset starts to count from 0.
func (t *Trips) Reset() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.done, t.log = 0, nil
}

// Count returns the number of sequential round trips since the last Reset.
func (t *Trips) Count() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.done
}

// Log returns the messages since the last Reset.
func (t *Trips) Log() []Trip {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Clone(t.log)
}

// tripsOn are those of one connection. Without counting it is nil, and its methods do nothing.
type tripsOn struct {
	all   *Trips
	ready time.Time // when the connection can be used
	sent  int       // the length of the chain that ends with the last message
}

func (p *Proxy) newTrips() *tripsOn {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.trips == nil {
		return nil
	}
	t := &tripsOn{all: p.trips, ready: time.Now().Add(p.trips.after())}
	t.all.mu.Lock()
	defer t.all.mu.Unlock()
	t.sent = t.all.done + 1
	return t
}

// message counts a message of the client.
func (t *tripsOn) message(what string) {
	if t == nil {
		return
	}
	if wait := time.Until(t.ready); wait > 0 {
		time.Sleep(wait)
		t.answer(t.sent)
	}
	t.all.mu.Lock()
	defer t.all.mu.Unlock()
	t.sent = t.all.done + 1
	t.all.log = append(t.all.log, Trip{t.sent, what})
}

// reply delays the reply to the last message.
func (t *tripsOn) reply() {
	if t == nil {
		return
	}
	time.Sleep(t.all.after())
	t.answer(t.sent)
}

func (t *tripsOn) answer(n int) {
	t.all.mu.Lock()
	defer t.all.mu.Unlock()
	t.all.done = max(t.all.done, n)
}

// fromClient returns the client's half of a stream.
func (t *tripsOn) fromClient(r io.Reader) io.Reader {
	if t == nil {
		return r
	}
	return readerFunc(func(b []byte) (int, error) {
		n, err := r.Read(b)
		if n > 0 {
			t.message("stream")
		}
		return n, err
	})
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(b []byte) (int, error) { return f(b) }

// fromEngine returns the engine's half of a stream, delayed.
func (t *tripsOn) fromEngine(r io.Reader, down net.Conn) io.Reader {
	if t == nil {
		return r
	}
	type piece struct {
		data []byte
		at   time.Time
		n    int
	}
	pieces := make(chan piece, 1024)
	pr, pw := io.Pipe()
	go func() {
		defer close(pieces)
		for {
			b := make([]byte, 32<<10)
			n, err := r.Read(b)
			if n > 0 {
				t.all.mu.Lock()
				sent := t.sent
				t.all.mu.Unlock()
				pieces <- piece{b[:n], time.Now().Add(t.all.after()), sent}
			}
			if err != nil {
				return
			}
		}
	}()
	go func() {
		defer pw.Close()
		for p := range pieces {
			time.Sleep(time.Until(p.at))
			t.answer(p.n)
			if _, err := pw.Write(p.data); err != nil {
				down.Close()
				for range pieces {
				}
				return
			}
		}
	}()
	return pr
}
