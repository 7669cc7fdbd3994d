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
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/seed-1a2d6d8f/sandbox/internal/guest/cmd/proc"
	"github.com/seed-1a2d6d8f/sandbox/internal/policy"
)

const (
	// maxFlows bounds the connections through the proxy, and maxHellos those of them
	// that have not said yet where they want to go, each for at most helloTime. A
	// newcomer takes the place of the oldest of these.
	maxFlows  = 1024
	maxHellos = 256
	helloTime = 10 * time.Second
	// openTime is what a client gets to speak first where a policy allows every public
	// address and only some names are looked for.
	openTime = 500 * time.Millisecond
	// dialTime is for looking the name up and connecting, to one of maxDials addresses.
	dialTime = 15 * time.Second
	maxDials = 4
	// filesOfFlow are the descriptors that a connection needs: its two sockets, and a
	// pipe for each direction. filesKept are left to all else.
	filesOfFlow = 6
	filesKept   = 320
)

// proxy carries the TCP connections that the kernel redirects here to the hosts they
// name, if the policy allows these names. It looks the name up itself: the address that
// the client chose counts for nothing.
type proxy struct {
	enforcer *Enforcer

	mu     sync.Mutex
	max    int
	flows  map[*flow]struct{}
	hellos []*flow // those who have not said where to, oldest first
}

// flow is one connection through the proxy.
type flow struct {
	client *net.TCPConn
	to     netip.AddrPort // as the client has it
	// Of one that goes on: what it is for, guarded by proxy.mu.
	name   string
	addr   netip.Addr
	server net.Conn
	inject bool
}

func newProxy(g *Enforcer) *proxy {
	p := &proxy{enforcer: g, max: maxFlows, flows: make(map[*flow]struct{})}
	var limit unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &limit) == nil && limit.Cur < filesKept+maxFlows*filesOfFlow {
		// The control channel and the deadline come before anybody's connections.
		p.max = max(int(limit.Cur)-filesKept, 0) / filesOfFlow
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

// reset closes a connection so that the other side gets an RST.
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

// evictLocked makes an end of the oldest connection that has said nothing useful.
func (p *proxy) evictLocked() {
	if len(p.hellos) > 0 {
		f := p.hellos[0]
		p.hellos = p.hellos[1:]
		delete(p.flows, f)
		reset(f.client)
	}
}

// identified takes a flow from those who have not said where to.
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

// handle does all there is to do for a connection.
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
	// Every public address is open, and yet the proxy has it: for the names it changes.
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
	if h.postgres && askPostgres(server) != nil {
		reset(f.client)
		return
	}
	if _, err := server.Write(h.said); err != nil {
		reset(f.client)
		return
	}
	h.said = nil
	relay(f.client, server)
}

// route is what becomes of a connection.
type route struct {
	allowed bool
	rule    string
	refused bool // by its name, whatever the address is
	inject  bool // PID 1 speaks TLS with the client
	direct  bool // to the address that the client chose
}

// unnamed is why a name is not allowed that no rule has.
func (s *activePolicy) unnamed() policy.Verdict {
	if s.rules.Resolves() {
		return policy.ByName
	}
	return policy.Closed
}

// plan decides on what a client said.
func (s *activePolicy) plan(h hello, err error) route {
	no := route{rule: string(s.unnamed())}
	if err != nil || h.name == "" {
		return no
	}
	rule, ok := s.rules.Name(h.name)
	if !ok {
		return no
	}
	r := route{allowed: true, rule: rule.Pattern}
	if rule.Transform {
		// Only TLS that ends here can be changed; and a name without its secret is as
		// good as not allowed.
		r.inject = true
		if !h.tls || h.postgres || s.secrets[rule.Pattern] == nil {
			return route{rule: rule.Pattern, refused: true}
		}
	}
	return r
}

// connect looks the name up and dials it, unless PID 1 speaks with the client itself,
// and notes the decision.
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

// dialAny connects to the first address that answers.
func (g *Enforcer) dialAny(ctx context.Context, addrs []netip.Addr, port uint16) (net.Conn, netip.Addr) {
	for i, addr := range addrs {
		deadline, _ := ctx.Deadline()
		one, cancel := context.WithTimeout(ctx, time.Until(deadline)/time.Duration(len(addrs)-i))
		conn, err := g.dial(one, "tcp", netip.AddrPortFrom(addr, port))
		cancel()
		if err == nil {
			return conn, addr
		}
	}
	return nil, netip.Addr{}
}

// establish lets a flow go on, if it still may: the policy can have changed since it was
// decided on.
func (p *proxy) establish(f *flow, name string, addr netip.Addr, server net.Conn, inject bool) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, ok := p.flows[f]; !ok {
		return false
	}
	f.name, f.addr, f.server, f.inject = name, addr, server, inject
	return p.enforcer.active.Load().allowsFlow(f)
}

// allowsFlow reports whether a policy allows a flow that is under way.
func (s *activePolicy) allowsFlow(f *flow) bool {
	if f.addr.IsValid() && s.rules.Addr(f.addr).Reaches() {
		return true
	}
	rule, ok := s.rules.Name(f.name)
	if !ok || rule.Transform != f.inject || f.inject && s.secrets[rule.Pattern] == nil {
		return false
	}
	return !f.addr.IsValid() || s.resolvesTo(f.addr)
}

// review ends every flow that the policy in force does not allow.
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

// cut ends a flow on both sides at once.
func (f *flow) cut() {
	reset(f.client)
	if server, ok := f.server.(*net.TCPConn); ok {
		reset(server)
	}
}

// relay carries bytes both ways until both sides have ended; each learns when the
// other one has no more to say.
func relay(a, b *net.TCPConn) {
	var both sync.WaitGroup
	one := func(to, from *net.TCPConn) {
		if err := splice(to, from); err != nil {
			reset(to)
			reset(from)
			return
		}
		to.CloseWrite()
	}
	both.Go(func() { one(a, b) })
	one(b, a)
	both.Wait()
}

// splice moves bytes within the kernel until from has ended. io.Copy does so, too, but by
// system calls that Go's scheduler takes for ones that may block: a call of more than
// 20 µs, as these are, has it hand its processor on and look out for more.
func splice(to, from *net.TCPConn) error {
	var pipe [2]int
	if err := unix.Pipe2(pipe[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
		_, err := io.Copy(to, from)
		return err
	}
	defer unix.Close(pipe[0])
	defer unix.Close(pipe[1])
	const room = 1 << 20
	unix.FcntlInt(uintptr(pipe[0]), unix.F_SETPIPE_SZ, room)
	in, err := from.SyscallConn()
	if err != nil {
		return err
	}
	out, err := to.SyscallConn()
	if err != nil {
		return err
	}
	for {
		n, err := move(in.Read, func(fd uintptr) (uintptr, syscall.Errno) { return spliceOnce(fd, uintptr(pipe[1]), room) })
		if n == 0 || err != nil {
			return err
		}
		for n > 0 {
			m, err := move(out.Write, func(fd uintptr) (uintptr, syscall.Errno) { return spliceOnce(uintptr(pipe[0]), fd, n) })
			if err != nil {
				return err
			}
			n -= m
		}
	}
}

func spliceOnce(from, to uintptr, n int) (uintptr, syscall.Errno) {
	m, _, errno := unix.RawSyscall6(unix.SYS_SPLICE, from, 0, to, 0, uintptr(n), unix.SPLICE_F_NONBLOCK|unix.SPLICE_F_MOVE)
	return m, errno
}

// move does a call once the connection is ready for it.
func move(ready func(func(uintptr) bool) error, call func(fd uintptr) (uintptr, syscall.Errno)) (int, error) {
	var n uintptr
	var errno syscall.Errno
	err := ready(func(fd uintptr) bool {
		for {
			if n, errno = call(fd); errno != unix.EINTR {
				return errno != unix.EAGAIN
			}
		}
	})
	if err == nil && errno != 0 {
		err = errno
	}
	return int(n), err
}

// askPostgres asks a server for TLS, as the client asked the proxy.
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

// originalDst is where a redirected connection was going. One that was made to the proxy
// itself was not redirected.
func originalDst(conn *net.TCPConn) (to netip.AddrPort, ok bool) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return to, false
	}
	local := conn.LocalAddr().(*net.TCPAddr).AddrPort()
	local = netip.AddrPortFrom(local.Addr().Unmap(), local.Port())
	raw.Control(func(fd uintptr) {
		if local.Addr().Is4() {
			// A struct sockaddr_in fits into what this call returns.
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
