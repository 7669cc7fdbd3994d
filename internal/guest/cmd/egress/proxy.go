//go:build linux

package egress

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/seed-1a2d6d8f/sandbox/internal/guest/cmd/proc"
)

const (
	// maxFlows bounds the connections through the proxy, maxHellos those of them whose
	// host is not identified yet, each for at most helloTime. A new connection evicts the
	// oldest of these.
	maxFlows  = 1024
	maxHellos = 256
	helloTime = 10 * time.Second
	// openTime is how long the proxy waits for a client to speak first, under a policy
	// that allows every public address and transforms some names.
	openTime = 500 * time.Millisecond
	// dialTime bounds the lookup of a name and connecting, to one of maxDials addresses.
	dialTime = 15 * time.Second
	maxDials = 4
	// filesPerFlow are the descriptors of a connection: two sockets, and a pipe for each
	// direction. filesReserved are for everything else.
	filesPerFlow  = 6
	filesReserved = 320
)

// proxy forwards the TCP connections that the kernel redirects to it to the hosts that they
// name, if the policy allows these names. It resolves the name itself, whatever address the
// client chose.
type proxy struct {
	enforcer *Enforcer

	mu     sync.Mutex
	max    int
	flows  map[*flow]struct{}
	hellos []*flow // those not identified yet, oldest first
}

// flow is one connection through the proxy.
type flow struct {
	client *net.TCPConn
	to     netip.AddrPort // as the client chose it
	// Set once it is established, guarded by proxy.mu.
	name   string
	addr   netip.Addr
	server net.Conn
	inject bool
}

func newProxy(e *Enforcer) *proxy {
	p := &proxy{enforcer: e, max: maxFlows, flows: make(map[*flow]struct{})}
	var limit unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &limit) == nil && limit.Cur < filesReserved+maxFlows*filesPerFlow {
		// The control socket must have descriptors whatever the proxy uses.
		p.max = max(int(limit.Cur)-filesReserved, 0) / filesPerFlow
	}
	return p
}

// serve accepts connections for as long as PID 1 lives.
func (p *proxy) serve(listener *net.TCPListener) {
	for {
		conn, err := listener.AcceptTCP()
		if err != nil {
			if errors.Is(err, net.ErrClosed) {
				return
			}
			p.evict()
			proc.AcceptPause()
			continue
		}
		f := &flow{client: conn}
		if !p.admit(f) {
			reset(conn)
			continue
		}
		go p.handle(f)
	}
}

// reset closes a connection with an RST.
func reset(conn *net.TCPConn) {
	conn.SetLinger(0)
	conn.Close()
}

func (p *proxy) admit(f *flow) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.hellos) >= min(maxHellos, p.max) {
		p.evictLocked()
	}
	if len(p.flows) >= p.max {
		return false
	}
	p.flows[f] = struct{}{}
	p.hellos = append(p.hellos, f)
	return true
}

func (p *proxy) evict() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.evictLocked()
}

// evictLocked resets the oldest connection that is not identified yet.
func (p *proxy) evictLocked() {
	if len(p.hellos) > 0 {
		f := p.hellos[0]
		p.hellos = p.hellos[1:]
		delete(p.flows, f)
		reset(f.client)
	}
}

// identified removes a flow from those not identified yet.
func (p *proxy) identified(f *flow) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.hellos = slices.DeleteFunc(p.hellos, func(h *flow) bool { return h == f })
}

func (p *proxy) leave(f *flow) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.flows, f)
	p.hellos = slices.DeleteFunc(p.hellos, func(h *flow) bool { return h == f })
}

// handle serves one connection to its end.
func (p *proxy) handle(f *flow) {
	defer p.leave(f)
	defer f.client.Close()
	s := p.enforcer.active.Load()
	to, ok := originalDst(f.client)
	if !ok || s.version == 0 {
		reset(f.client)
		return
	}
	f.to = to
	// Where every public address is open, the proxy has the connection for the names that
	// are transformed.
	open := s.rules.Open() && s.rules.Addr(to.Addr()).Reaches()
	limit := helloTime
	if open {
		limit = openTime
	}
	f.client.SetReadDeadline(time.Now().Add(limit))
	h, err := sniff(f.client)
	f.client.SetReadDeadline(time.Time{})
	p.identified(f)

	plan := s.plan(h, err)
	if open && !plan.inject && !plan.refused {
		plan = route{allowed: true, rule: string(s.rules.Addr(to.Addr())), direct: true}
	}
	if !plan.allowed {
		p.enforcer.log.add(decision{name: h.name, addr: to.Addr(), port: to.Port(), protocol: "tcp", rule: plan.rule})
		reset(f.client)
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), dialTime)
	defer cancel()
	if !p.connect(ctx, s, f, h, plan) {
		reset(f.client)
		return
	}
	if f.inject {
		p.enforcer.injector.serve(f, h)
		return
	}
	defer f.server.Close()
	server := f.server.(*net.TCPConn)
	if greet(server, h) != nil {
		reset(f.client)
		return
	}
	h.said = nil // up to 64 KiB, for as long as the connection lasts
	relay(f.client, server)
}

// greet sends a server what the client has sent so far.
func greet(server *net.TCPConn, h hello) error {
	if h.postgres {
		if err := askPostgres(server); err != nil {
			return err
		}
	}
	_, err := server.Write(h.said)
	return err
}

// connect resolves and dials the name, unless the injector serves the client, and logs the
// decision.
func (p *proxy) connect(ctx context.Context, s *activePolicy, f *flow, h hello, plan route) bool {
	note := func(addr netip.Addr, rule string, allowed bool) {
		p.enforcer.log.add(decision{name: h.name, addr: addr, port: f.to.Port(), protocol: "tcp", rule: rule, allowed: allowed})
	}
	if plan.inject {
		note(netip.Addr{}, plan.rule, true)
		return p.establish(f, h.name, netip.Addr{}, nil, true)
	}
	addrs := []netip.Addr{f.to.Addr()}
	if !plan.direct {
		good, refused, _ := p.enforcer.resolver.addrs(ctx, s, h.name, f.to.Addr().Is6())
		if len(good) == 0 {
			if refused.IsValid() {
				note(refused, string(s.rules.Addr(refused)), false)
			}
			return false
		}
		addrs = good[:min(len(good), maxDials)]
	}
	note(addrs[0], plan.rule, true)
	server, addr := p.enforcer.dialAny(ctx, addrs, f.to.Port())
	if server == nil {
		return false
	}
	if !p.establish(f, h.name, addr, server, false) {
		server.Close()
		return false
	}
	return true
}

// establish registers what a flow is for. It returns false if the policy has changed since
// the decision and does not allow it.
func (p *proxy) establish(f *flow, name string, addr netip.Addr, server net.Conn, inject bool) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, ok := p.flows[f]; !ok {
		return false
	}
	f.name, f.addr, f.server, f.inject = name, addr, server, inject
	return p.enforcer.active.Load().allowsFlow(f)
}

// review resets every flow that the policy in force does not allow.
func (p *proxy) review() {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.enforcer.active.Load()
	for f := range p.flows {
		if f.name == "" && f.server == nil || s.allowsFlow(f) {
			continue
		}
		delete(p.flows, f)
		f.cut()
	}
}

// cut resets both sides of a flow.
func (f *flow) cut() {
	reset(f.client)
	if server, ok := f.server.(*net.TCPConn); ok {
		reset(server)
	}
}

// askPostgres requests TLS of a Postgres server, as the client did of the proxy.
func askPostgres(server net.Conn) error {
	server.SetDeadline(time.Now().Add(helloTime))
	defer server.SetDeadline(time.Time{})
	if _, err := server.Write(postgresSSLRequest); err != nil {
		return err
	}
	var answer [1]byte
	if _, err := io.ReadFull(server, answer[:]); err != nil {
		return err
	}
	if !bytes.Equal(answer[:], []byte("S")) {
		return errProtocol
	}
	return nil
}

// soOriginalDst is SO_ORIGINAL_DST, and IP6T_SO_ORIGINAL_DST, of the kernel's netfilter.
const soOriginalDst = 80

// originalDst returns the original destination of a redirected connection, and false for one
// that was made to the proxy itself.
func originalDst(conn *net.TCPConn) (to netip.AddrPort, ok bool) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return to, false
	}
	local := conn.LocalAddr().(*net.TCPAddr).AddrPort()
	local = netip.AddrPortFrom(local.Addr().Unmap(), local.Port())
	raw.Control(func(fd uintptr) {
		if local.Addr().Is4() {
			// The result of this call is large enough for a struct sockaddr_in.
			var got *unix.IPv6Mreq
			if got, err = unix.GetsockoptIPv6Mreq(int(fd), unix.SOL_IP, soOriginalDst); err == nil {
				m := got.Multiaddr
				to = netip.AddrPortFrom(netip.AddrFrom4([4]byte(m[4:8])), uint16(m[2])<<8|uint16(m[3]))
			}
			return
		}
		var got *unix.IPv6MTUInfo
		if got, err = unix.GetsockoptIPv6MTUInfo(int(fd), unix.SOL_IPV6, soOriginalDst); err == nil {
			port := got.Addr.Port
			to = netip.AddrPortFrom(netip.AddrFrom16(got.Addr.Addr), port>>8|port<<8)
		}
	})
	return to, err == nil && to.IsValid() && to != local && !to.Addr().IsLoopback()
}
