//go:build linux

package pid1

import (
	"bufio"
	"io"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/seed-1a2d6d8f/sandbox/internal/guest/cmd/proc"
	"github.com/seed-1a2d6d8f/sandbox/internal/guest/wire"
)

// gates keep PID 1 and the owner's servers from starting processes during a hold.
//
// A server is the owner's if the owner has sent signed requests through it: the owner starts
// it from outside, by the path of the guest, and no process inside can change one or see what it
// is sent. Other processes may ask for holds to be announced, too: they are stopped all the same.
type gates struct {
	starts sync.RWMutex // of PID 1's own starts, for writing by a hold

	mu      sync.Mutex
	closed  bool
	owners  map[proc.ID]bool
	servers []*gateServer // oldest first
}

// maxServers bounds the servers that go on during a hold. Older ones are stopped by it.
const maxServers = 256

// gateServer is a connection on which holds are announced.
type gateServer struct {
	id          proc.ID
	conn        controlConn
	keep        func()        // keeps the connection from being evicted
	sent, acked int           // of GateClose
	changed     chan struct{} // has a value when acked has changed
}

// authenticated registers a process through which the owner has sent a signed request.
func (g *gates) authenticated(id proc.ID) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.owners[id] || id == (proc.ID{}) {
		return
	}
	if len(g.owners) >= 2*maxServers {
		for old := range g.owners {
			if p, ok := proc.Find(old.PID); !ok || p.ID() != old {
				delete(g.owners, old)
			}
		}
	}
	if g.owners == nil {
		g.owners = make(map[proc.ID]bool)
	}
	g.owners[id] = true
	for _, s := range g.servers {
		if s.id == id {
			s.keep()
		}
	}
}

// serve announces holds on a connection of a process until it ends. It calls keep if the process
// is the owner's, or becomes known as such.
func (g *gates) serve(conn controlConn, r *bufio.Reader, id proc.ID, keep func()) {
	s := &gateServer{id: id, conn: conn, changed: make(chan struct{}, 1)}
	s.keep = func() {
		conn.SetDeadline(time.Time{})
		keep()
	}
	g.mu.Lock()
	if g.owners[id] {
		s.keep()
	}
	if len(g.servers) >= maxServers {
		g.servers[0].conn.SetDeadline(time.Unix(1, 0))
		g.servers = g.servers[1:]
	}
	g.servers = append(g.servers, s)
	if g.closed {
		s.close()
	}
	g.mu.Unlock()
	defer func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.servers = slices.DeleteFunc(g.servers, func(other *gateServer) bool { return other == s })
	}()
	for {
		line, err := r.ReadSlice('\n')
		if err != nil || string(line) != wire.GateClosed {
			return
		}
		g.mu.Lock()
		s.acked++
		g.mu.Unlock()
		select {
		case s.changed <- struct{}{}:
		default:
		}
	}
}

// close announces a hold. The caller holds the gates' mutex.
func (s *gateServer) close() {
	s.sent++
	s.write(wire.GateClose)
}

func (s *gateServer) write(line string) {
	s.conn.SetWriteDeadline(time.Now().Add(gateTime))
	io.WriteString(s.conn, line)
}

const (
	// gateTime bounds the wait for a server to close its gate. One that does not is stopped.
	gateTime = 100 * time.Millisecond
	// startsTime bounds the wait for processes that PID 1 is starting.
	startsTime = 300 * time.Millisecond
)

// enter begins the start of a process of PID 1's own, unless a hold lasts for longer than patience.
func (g *gates) enter(patience time.Duration) (leave func(), err error) {
	if !poll(patience, g.starts.TryRLock) {
		return nil, os.ErrDeadlineExceeded
	}
	return g.starts.RUnlock, nil
}

// poll calls try until it returns true, for a limited time.
func poll(patience time.Duration, try func() bool) bool {
	wait := 50 * time.Microsecond
	for begin := time.Now(); !try(); wait = min(2*wait, 2*time.Millisecond) {
		if time.Since(begin) > patience {
			return false
		}
		time.Sleep(wait)
	}
	return true
}

// shut closes all gates, if PID 1 is starting no process. The caller calls open.
func (g *gates) shut() bool {
	if !poll(startsTime, g.starts.TryLock) {
		return false
	}
	g.mu.Lock()
	g.closed = true
	servers := slices.Clone(g.servers)
	for _, s := range servers {
		s.close()
	}
	g.mu.Unlock()
	timeout := time.NewTimer(gateTime)
	defer timeout.Stop()
	for _, s := range servers {
		for g.waiting(s) {
			select {
			case <-s.changed:
			case <-timeout.C:
				return true
			}
		}
	}
	return true
}

func (g *gates) waiting(s *gateServer) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.owners[s.id] && s.acked < s.sent && slices.Contains(g.servers, s)
}

// behind returns the owner's processes whose gates are closed.
func (g *gates) behind() map[proc.ID]bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	in := make(map[proc.ID]bool)
	for _, s := range g.servers {
		if g.owners[s.id] && s.sent > 0 && s.acked == s.sent {
			in[s.id] = true
		}
	}
	return in
}

// known reports whether a process is the owner's.
func (g *gates) known(id proc.ID) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.owners[id]
}

// open opens all gates.
func (g *gates) open() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.closed = false
	for _, s := range g.servers {
		if s.sent > 0 {
			s.write(wire.GateOpen)
		}
	}
	g.starts.Unlock()
}
