//go:build linux

package egress

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/netip"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/seed-1a2d6d8f/sandbox/internal/guest/wire"
	"github.com/seed-1a2d6d8f/sandbox/internal/policy"
)

// untold is no certificate: which one the sandbox trusts is not known.
const untold = "?"

// Enforcer enforces the network policy of a session. The kernel's rules hold without anything
// else; the DNS filter and the proxy let through what names decide. Its methods may be called
// concurrently.
type Enforcer struct {
	mark  uint32
	ports []uint16
	boot  []netip.Addr // the DNS servers that the session started with
	gates []netip.Addr // the gateways of its default routes

	// What the kernel can't do, tried while no other process exists.
	noFilter   error // enforce anything at all
	noRedirect error // redirect
	noLog      bool  // log what it refuses
	isolated   bool  // there is no network to filter: without a filter this is denyAll

	dialer   func(context.Context, net.Dialer, string, string) (net.Conn, error) // in tests
	log      decisionLog
	resolver *resolver
	proxy    *proxy
	injector *injector
	hooks    hooks
	trust    func(cert string) error // makes the sandbox trust a certificate, or none
	ca       string                  // that it trusts, or untold; guarded by mu

	open []io.Closer // its listeners

	attempts chan struct{} // to connect, beyond the first that each connection has
	patience time.Duration // dialTime, or less in tests

	table *kernelTable // nil if the kernel can't enforce anything
	watch *watcher     // nil as well

	mu     sync.Mutex // orders changes
	rules  *ruleset   // that the kernel has
	active atomic.Pointer[activePolicy]
	begun  chan struct{} // closed when the first policy is in force
	first  sync.Once
}

// denyAll are the rules before the first policy.
var denyAll, _ = policy.Policy{Mode: policy.DenyAll}.Compile()

// New locks the network: from then on nothing leaves, and only published ports answer. It
// must come before the first child. trust is called to make the sandbox trust a certificate,
// or none; it may be nil.
func New(ports []uint16, trust func(cert string) error) *Enforcer {
	e := &Enforcer{ports: ports, trust: trust, boot: bootServers(), gates: gateways(), begun: make(chan struct{}), attempts: make(chan struct{}, maxAttempts), patience: dialTime}
	e.resolver, e.proxy = newResolver(e), newProxy(e)
	e.injector = newInjector(e)
	for e.mark == 0 {
		var b [4]byte
		rand.Read(b[:])
		e.mark = binary.NativeEndian.Uint32(b[:])
	}
	e.active.Store(&activePolicy{rules: denyAll})
	e.rules = e.locked()
	// A kernel that lacks something is found out here, not in the middle of a session.
	all := &ruleset{mark: e.mark, dns: true, proxy: true, log: true, deny: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24"), netip.MustParsePrefix("2001:db8::/32")}}
	if e.noFilter = e.openTable(); e.noFilter == nil {
		if e.table.install(all) != nil {
			e.noLog = true
			all.log = false
			e.noRedirect = e.table.install(all)
		}
		e.noRedirect = errors.Join(e.noRedirect, e.listen())
		e.noLog = e.noLog || e.watchRefused() != nil
		e.noFilter = e.table.install(e.rules)
	}
	if e.noFilter != nil {
		e.Cut()
		e.isolated = isolated()
	}
	return e
}

// install makes the kernel enforce the rules.
func (e *Enforcer) install(r *ruleset) error {
	if e.isolated {
		return nil
	}
	return e.table.install(r)
}

// openTable opens what it takes to install rules, and to notice when others change them.
func (e *Enforcer) openTable() (err error) {
	if e.table, err = openTable(); err != nil {
		return err
	}
	e.open = append(e.open, e.table)
	if e.watch, err = watch(e.table); err == nil {
		e.open = append(e.open, e.watch)
	}
	return err
}

// Changed returns a channel that receives what another process has changed of the rules or
// of the network. Then nothing is known about what they let through.
func (e *Enforcer) Changed() <-chan error {
	if e.watch == nil {
		return nil
	}
	return e.watch.changed
}

// Cut takes the sandbox off every network. Changes are not reported any more.
func (e *Enforcer) Cut() {
	if e.watch != nil {
		e.watch.Close()
	}
	linksDown()
}

// listen binds the ports that the kernel redirects to, on loopback, before another process
// could.
func (e *Enforcer) listen() error {
	free := net.ListenConfig{Control: func(network, _ string, c syscall.RawConn) error {
		return c.Control(func(fd uintptr) {
			if strings.HasSuffix(network, "6") {
				// The address may be added later.
				unix.SetsockoptInt(int(fd), unix.SOL_IPV6, unix.IPV6_FREEBIND, 1)
			}
			if strings.HasPrefix(network, "tcp") {
				// Clients are on loopback, where congestion control has nothing to do. The
				// host's choice may be bbr, whose pacing costs a third of the throughput and
				// a quarter more CPU time.
				unix.SetsockoptString(int(fd), unix.IPPROTO_TCP, unix.TCP_CONGESTION, "reno")
			}
		})
	}}
	// Multipath TCP has no SO_ORIGINAL_DST. Its clients fall back to TCP.
	free.SetMultipathTCP(false)
	for _, host := range []netip.Addr{loopback4, loopback6} {
		on := func(port uint16) string { return netip.AddrPortFrom(host, port).String() }
		proxied, err := free.Listen(context.Background(), "tcp", on(policy.ProxyPort))
		if host.Is6() && errors.Is(err, unix.EAFNOSUPPORT) {
			return nil
		}
		if err != nil {
			return err
		}
		dnsTCP, err := free.Listen(context.Background(), "tcp", on(policy.DNSPort))
		if err != nil {
			return err
		}
		dnsUDP, err := free.ListenPacket(context.Background(), "udp", on(policy.DNSPort))
		if err != nil {
			return err
		}
		e.open = append(e.open, proxied, dnsTCP, dnsUDP)
		go e.proxy.serve(proxied.(*net.TCPListener))
		go e.resolver.serveTCP(dnsTCP.(*net.TCPListener))
		go e.resolver.serveUDP(dnsUDP.(*net.UDPConn))
	}
	return nil
}

func (e *Enforcer) locked() *ruleset {
	r := &ruleset{mark: e.mark, ports: e.ports, networks: ownNetworks(), gateways: e.gates}
	for _, n := range r.networks {
		if n.Addr().Is6() {
			r.local = append(r.local, n)
		}
	}
	return r
}

// Refusal is the error of a Begin. Kind is one of package wire.
type Refusal struct {
	Kind string
	err  error
}

func (r *Refusal) Error() string { return r.err.Error() }

// Begin puts a policy in force. It returns nil if that version is in force already.
func (e *Enforcer) Begin(b *wire.Begin) *Refusal {
	if b == nil || b.Version < 1 {
		return &Refusal{wire.RefusedPolicy, errors.New("begin: no policy with a version of 1 or more")}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.noFilter != nil && !(e.isolated && b.Policy.Mode == policy.DenyAll) {
		return &Refusal{wire.RefusedUnsupported, fmt.Errorf("no network policy can be enforced here: %w", e.noFilter)}
	}
	old := e.active.Load()
	switch {
	case b.Version < old.version:
		return &Refusal{wire.RefusedStale, fmt.Errorf("policy version %d is in force, which is newer than %d", old.version, b.Version)}
	case b.Version == old.version:
		return e.complete(old, b)
	}
	next, err := newPolicy(b)
	if err != nil {
		return &Refusal{wire.RefusedPolicy, err}
	}
	return e.change(old, next)
}

// complete adds what the Begin of the policy in force lacked: subnets to protect, DNS servers
// and secrets.
func (e *Enforcer) complete(old *activePolicy, b *wire.Begin) *Refusal {
	next := *old
	changed := false
	if len(old.protect) == 0 && len(b.Protect) > 0 && len(b.Protect) <= wire.MaxProtect {
		rules, err := old.rules.Policy().Compile(append(ownNetworks(), b.Protect...)...)
		if err != nil {
			return &Refusal{wire.RefusedPolicy, err}
		}
		next.protect, next.rules, changed = b.Protect, rules, true
	}
	if len(old.upstream) == 0 && len(b.Upstream) > 0 && checkServers(b.Upstream) == nil {
		next.upstream, changed = b.Upstream, true
	}
	next.secrets = maps.Clone(old.secrets)
	if err := next.addSecrets(old.rules.Policy(), b.Secrets); err != nil {
		return &Refusal{wire.RefusedPolicy, err}
	}
	if len(next.secrets) > len(old.secrets) && next.roots == "" {
		next.roots = b.Roots
	}
	if !changed && len(next.secrets) == len(old.secrets) {
		return nil
	}
	return e.change(old, &next)
}

// change puts next in force. After an error it is old, or the network is locked.
func (e *Enforcer) change(old, next *activePolicy) *Refusal {
	if next.rules.Transforms() {
		ca, err := e.injector.configure(next.roots)
		if err != nil {
			return &Refusal{wire.RefusedPolicy, err}
		}
		next.ca = ca
	}
	rules := e.rulesFor(next)
	if err := e.install(rules); err != nil {
		kind := wire.RefusedPolicy
		if e.noRedirect != nil {
			kind, err = wire.RefusedUnsupported, e.noRedirect
		}
		err = fmt.Errorf("apply the policy: %w", err)
		if e.table.install(e.rules) != nil {
			// Which rules the kernel has is unknown. The locked ones are the simplest.
			e.rules = e.locked()
			e.active.Store(&activePolicy{rules: denyAll})
			e.proxy.review()
			if again := e.table.install(e.rules); again != nil {
				e.Cut()
				err = errors.Join(err, fmt.Errorf("lock the network: %w", again))
			} else {
				err = fmt.Errorf("%w; the network is locked", err)
			}
		}
		return &Refusal{kind, err}
	}
	e.rules = rules
	e.active.Store(next)
	e.resolver.forget()
	e.proxy.review()
	if old.version > 0 {
		dropFlows(next) // their packets are refused anyhow
	}
	if e.trust != nil && (e.ca != next.ca || old.version == 0) {
		// Where it fails, TLS clients will fail, too.
		if e.ca = next.ca; e.trust(next.ca) != nil {
			e.ca = untold
		}
	}
	e.first.Do(func() { close(e.begun) })
	go debug.FreeOSMemory() // installing rules takes memory that is not needed again
	return nil
}

// rulesFor returns the rules of a policy for the kernel.
func (e *Enforcer) rulesFor(s *activePolicy) *ruleset {
	p := s.rules.Policy()
	r := e.locked()
	r.log = !e.noLog
	r.deny, r.allow, r.protected = s.rules.Denied(), p.Subnets.Allow, s.rules.Protected()
	r.into = p.ResolveInto
	r.open = s.rules.Open()
	r.upstream = e.servers(s)
	if p.Mode == policy.AllowAll {
		r.anyoneAsks = true
		return r
	}
	r.dns = e.noRedirect == nil
	r.proxy = p.Mode == policy.Custom && s.rules.Resolves() && (!s.rules.Open() || s.rules.Transforms())
	return r
}

// servers returns the DNS servers to query under a policy. Those of the container's resolv.conf,
// which a session may have written, count only where this process does not look up names.
func (e *Enforcer) servers(s *activePolicy) []netip.Addr {
	if len(s.upstream) > 0 || s.rules.Policy().Mode != policy.AllowAll {
		return s.upstream
	}
	return e.boot
}

// Network describes the policy in force.
func (e *Enforcer) Network() *wire.Network {
	s := e.active.Load()
	n := &wire.Network{Version: s.version, CA: s.ca}
	for _, name := range s.rules.Policy().Allow {
		if name.Transform && s.secrets[name.Pattern] == nil {
			n.Missing = append(n.Missing, name.Pattern)
		}
	}
	n.Allowed, n.Blocked = e.log.counts()
	return n
}

// InForce returns a channel that is closed once the first policy is in force.
func (e *Enforcer) InForce() <-chan struct{} { return e.begun }

// Connections returns how many connections have come through published ports since the start.
func (e *Enforcer) Connections() int64 {
	if e.table == nil {
		return 0
	}
	return e.table.accepted()
}

// Log returns the log of decisions, the latest first.
func (e *Enforcer) Log() *wire.EgressLog { return e.log.entries() }

// dial connects with the mark that only this process can set.
func (e *Enforcer) dial(ctx context.Context, network string, to netip.AddrPort) (net.Conn, error) {
	return e.dialFrom(ctx, nil, network, to)
}

// dialFrom is dial from an address; nil is any.
func (e *Enforcer) dialFrom(ctx context.Context, from net.Addr, network string, to netip.AddrPort) (net.Conn, error) {
	d := net.Dialer{LocalAddr: from, Control: func(_, _ string, c syscall.RawConn) error {
		var setErr error
		err := c.Control(func(fd uintptr) {
			setErr = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_MARK, int(int32(e.mark)))
		})
		return errors.Join(err, setErr)
	}}
	if e.dialer != nil {
		return e.dialer(ctx, d, network, to.String())
	}
	return d.DialContext(ctx, network, to.String())
}
