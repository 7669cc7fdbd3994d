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
	"github.com/seed-1a2d6d8f/sandbox/internal/policy"
)

const (
	// maxFlows bounds the connections through the proxy. A new one waits up to busyTime for
	// a place: that of a connection that ends, of one whose client has closed its side, or of
	// one whose client has said nothing for speakTime.
	maxFlows  = 1024
	busyTime  = 15 * time.Second
	speakTime = 2 * time.Second
	// helloTime bounds how long the host of a connection is not identified.
	helloTime = 10 * time.Second
	// openTime is how long the proxy waits for a client to speak first, under a policy
	// that allows every public address and transforms some names.
	openTime = 500 * time.Millisecond
	// dialTime bounds the lookup of a name and connecting to one of its addresses.
	dialTime = 15 * time.Second
	// filesPerFlow are the descriptors of a connection: two sockets, and a pipe for each
	// direction. filesReserved are for everything else.
	filesPerFlow  = 6
	filesReserved = 320 + maxAttempts
)

// ruleBusy is the rule of a connection that ended because this process had no room for it.
const ruleBusy = "busy"

// ruleUnclear is the rule of a connection whose client did not name one host within maxHello, in
// a protocol that names hosts.
const ruleUnclear = "unclear"

// proxy forwards the TCP connections that the kernel redirects to it to the hosts that they
// name, if the policy allows these names. It resolves the name itself, whatever address the
// client chose.
type proxy struct {
	enforcer *Enforcer

	mu     sync.Mutex
	max    int
	flows  map[*flow]struct{}
	hellos []*flow       // those not identified yet, oldest first
	halves []*flow       // those whose client has closed its side, the longest first
	freed  chan struct{} // has an element once a place may be free
}

// flow is one connection through the proxy.
type flow struct {
	client *net.TCPConn
	to     netip.AddrPort // as the client chose it
	since  time.Time
	// Set once it is established, guarded by proxy.mu.
	name   string
	addr   netip.Addr
	server net.Conn
	inject bool
}

func newProxy(e *Enforcer) *proxy {
	p := &proxy{enforcer: e, max: maxFlows, flows: make(map[*flow]struct{}), freed: make(chan struct{}, 1)}
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
		f := &flow{client: conn, since: time.Now()}
		if !p.admit(f) {
			if to, ok := originalDst(conn); ok {
				p.busy("", to)
			}
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

// busy logs a connection for which there was no room.
func (p *proxy) busy(name string, to netip.AddrPort) {
	p.enforcer.log.add(decision{name: name, addr: to.Addr(), port: to.Port(), protocol: "tcp", rule: ruleBusy})
}

// admit waits for a place for a connection. Meanwhile the kernel holds those that come after it.
func (p *proxy) admit(f *flow) bool {
	if p.tryAdmit(f) {
		return true
	}
	if p.max == 0 {
		return false
	}
	for deadline := time.Now().Add(min(busyTime, p.enforcer.patience)); !p.tryAdmit(f); {
		if time.Now().After(deadline) {
			return false
		}
		select {
		case <-p.freed:
		case <-time.After(100 * time.Millisecond): // some may have been silent for long enough
		}
	}
	return true
}

func (p *proxy) tryAdmit(f *flow) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.flows) >= p.max && !p.evictLocked(speakTime) {
		return false
	}
	p.flows[f] = struct{}{}
	p.hellos = append(p.hellos, f)
	return true
}

func (p *proxy) evict() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.evictLocked(0)
}

// evictLocked resets the connection whose client closed its side first, or else the oldest one
// that is not identified yet, if it has been silent for that long.
func (p *proxy) evictLocked(silent time.Duration) bool {
	var f *flow
	switch {
	case len(p.halves) > 0:
		f = p.halves[0]
	case len(p.hellos) > 0 && time.Since(p.hellos[0].since) >= silent:
		f = p.hellos[0]
	default:
		return false
	}
	p.removeLocked(f)
	f.cut()
	return true
}

// removeLocked reports whether the flow was still there.
func (p *proxy) removeLocked(f *flow) bool {
	_, there := p.flows[f]
	delete(p.flows, f)
	is := func(other *flow) bool { return other == f }
	p.hellos, p.halves = slices.DeleteFunc(p.hellos, is), slices.DeleteFunc(p.halves, is)
	select {
	case p.freed <- struct{}{}:
	default:
	}
	return there
}

// identified takes a flow from those not identified yet, and reports whether it is still there.
func (p *proxy) identified(f *flow) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.hellos = slices.DeleteFunc(p.hellos, func(h *flow) bool { return h == f })
	_, there := p.flows[f]
	return there
}

// halfClosed notes that the client has closed its side.
func (p *proxy) halfClosed(f *flow) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, there := p.flows[f]; there {
		p.halves = append(p.halves, f)
		select {
		case p.freed <- struct{}{}:
		default:
		}
	}
}

func (p *proxy) leave(f *flow) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.removeLocked(f)
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
	verdict := s.rules.Addr(to.Addr())
	var h hello
	var err error
	// A connection to an allowed subnet does not come here, unless its client's port was redirected before,
	// when the subnet was not allowed yet: NAT decides once for what the kernel still tracks as one flow.
	if verdict != policy.Subnet {
		// Where every public address is open, the proxy has the connection for the names that
		// are transformed.
		limit := helloTime
		if verdict == policy.Open {
			limit = openTime
		}
		f.client.SetReadDeadline(time.Now().Add(limit))
		h, err = sniff(f.client)
		f.client.SetReadDeadline(time.Time{})
	}
	if !p.identified(f) {
		p.busy(h.name, to)
		return
	}

	plan := s.plan(h, err)
	if verdict == policy.Subnet || verdict == policy.Open && !plan.inject && !plan.refused {
		plan = route{allowed: true, rule: string(verdict), direct: true}
	}
	if !plan.allowed {
		p.enforcer.log.add(decision{name: h.name, addr: to.Addr(), port: to.Port(), protocol: "tcp", rule: plan.rule})
		reset(f.client)
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), p.enforcer.patience)
	defer cancel()
	if !p.connect(ctx, s, f, h, plan) {
		reset(f.client)
		return
	}
	if f.inject {
		if !p.enforcer.injector.serve(f, h) {
			p.busy(h.name, to)
			reset(f.client)
		}
		return
	}
	defer f.server.Close()
	server := f.server.(*net.TCPConn)
	if greet(server, h) != nil {
		reset(f.client)
		return
	}
	h.said = nil // up to 64 KiB, for as long as the connection lasts
	relay(f.client, server, func() { p.halfClosed(f) })
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
// decision and what became of it.
func (p *proxy) connect(ctx context.Context, s *activePolicy, f *flow, h hello, plan route) bool {
	d := decision{name: h.name, port: f.to.Port(), protocol: "tcp", rule: plan.rule, allowed: true}
	if plan.inject {
		p.enforcer.log.add(d)
		return p.establish(f, h.name, netip.Addr{}, nil, true)
	}
	var server net.Conn
	var err error
	if plan.direct {
		server, d.addr, err = p.enforcer.dialAny(ctx, []netip.Addr{f.to.Addr()}, f.to.Port())
		d.failure = failureOf(err)
	} else {
		server, err = p.enforcer.dialName(ctx, s, f.to.Addr(), &d)
	}
	p.enforcer.log.add(d)
	if err != nil {
		return false
	}
	if !p.establish(f, h.name, d.addr, server, false) {
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
		p.removeLocked(f)
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
