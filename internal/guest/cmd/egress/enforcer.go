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
	"os"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"

	"golang.org/x/net/http/httpguts"
	"golang.org/x/sys/unix"

	"github.com/seed-1a2d6d8f/sandbox/internal/guest/wire"
	"github.com/seed-1a2d6d8f/sandbox/internal/policy"
)

// Enforcer is the network policy of a session at work. The kernel's rules are the wall, and
// hold without anything else here; the DNS filter and the proxy are the doors in it.
type Enforcer struct {
	mark  uint32
	ports []uint16
	boot  []netip.Addr // the DNS servers that the session started with

	// What the kernel can't do, found out while nothing else ran.
	noFilter   error // enforce anything at all
	noRedirect error // redirect
	noLog      bool  // tell what it refused

	dialer   func(context.Context, net.Dialer, string, string) (net.Conn, error) // in tests
	log      decisionLog
	resolver *resolver
	proxy    *proxy
	injector *injector
	trust    func(cert string) error // has the sandbox trust a certificate, or none
	ca       string                  // that it was told to; guarded by mu

	open []io.Closer // its listeners

	mu     sync.Mutex // orders changes
	rules  *ruleset   // that the kernel has
	active atomic.Pointer[activePolicy]
	begun  chan struct{} // closed when the first policy is in force
	first  sync.Once
}

// activePolicy is a policy in force. It does not change.
type activePolicy struct {
	version  int64
	rules    *policy.Rules
	protect  []netip.Prefix
	upstream []netip.Addr                 // as the owner told them
	six      bool                         // there is IPv6 here
	secrets  map[string]map[string]string // headers by the pattern of the names
	roots    string
	ca       string // that the sandbox is to trust
}

// denyAll is what is allowed before anything is.
var denyAll, _ = policy.Policy{Mode: policy.DenyAll}.Compile()

// New locks the network: from here on nothing leaves, and only published ports
// answer. It comes before the first child.
func New(ports []uint16, trust func(cert string) error) *Enforcer {
	g := &Enforcer{ports: ports, trust: trust, boot: bootServers(), begun: make(chan struct{})}
	g.resolver, g.proxy = newResolver(g), newProxy(g)
	g.injector = newInjector(g)
	for g.mark == 0 {
		var b [4]byte
		rand.Read(b[:])
		g.mark = binary.NativeEndian.Uint32(b[:])
	}
	g.active.Store(&activePolicy{rules: denyAll})
	g.rules = g.locked()
	// Everything that a policy may need is tried here, where it can do no harm. A
	// kernel without it tells now, and not in the middle of a session.
	all := &ruleset{mark: g.mark, dns: true, proxy: true, log: true, deny: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24"), netip.MustParsePrefix("2001:db8::/32")}}
	if all.install() != nil {
		g.noLog = true
		all.log = false
		g.noRedirect = all.install()
	}
	g.noRedirect = errors.Join(g.noRedirect, g.listen())
	g.noLog = g.noLog || g.watchRefused() != nil
	if g.noFilter = g.rules.install(); g.noFilter != nil {
		linksDown()
	}
	return g
}

// listen takes the ports that the kernel redirects to, before anyone else could. They
// are this host's alone.
func (g *Enforcer) listen() error {
	free := net.ListenConfig{Control: func(network, _ string, c syscall.RawConn) error {
		return c.Control(func(fd uintptr) {
			if strings.HasSuffix(network, "6") {
				// An address that is not there now may be later.
				unix.SetsockoptInt(int(fd), unix.SOL_IPV6, unix.IPV6_FREEBIND, 1)
			}
			if strings.HasPrefix(network, "tcp") {
				// What is accepted here goes by loopback, which nobody else needs spared.
				// The host's own choice is for the world outside: bbr, which sends at a
				// measured pace, costs a third of the speed and a quarter more of the cores.
				unix.SetsockoptString(int(fd), unix.IPPROTO_TCP, unix.TCP_CONGESTION, "reno")
			}
		})
	}}
	// Multipath TCP does not tell where a connection was going; its clients do without.
	free.SetMultipathTCP(false)
	for _, host := range []netip.Addr{loopback4, loopback6} {
		on := func(port uint16) string { return netip.AddrPortFrom(host, port).String() }
		proxied, err := free.Listen(context.Background(), "tcp", on(proxyPort))
		if host.Is6() && errors.Is(err, unix.EAFNOSUPPORT) {
			return nil
		}
		if err != nil {
			return err
		}
		dnsTCP, err := free.Listen(context.Background(), "tcp", on(dnsPort))
		if err != nil {
			return err
		}
		dnsUDP, err := free.ListenPacket(context.Background(), "udp", on(dnsPort))
		if err != nil {
			return err
		}
		g.open = append(g.open, proxied, dnsTCP, dnsUDP)
		go g.proxy.serve(proxied.(*net.TCPListener))
		go g.resolver.serveTCP(dnsTCP.(*net.TCPListener))
		go g.resolver.serveUDP(dnsUDP.(*net.UDPConn))
	}
	return nil
}

func (g *Enforcer) locked() *ruleset {
	r := &ruleset{mark: g.mark, ports: g.ports}
	for _, n := range ownNetworks() {
		if n.Addr().Is6() {
			r.local = append(r.local, n)
		}
	}
	return r
}

// Refusal is why a Begin was not carried out.
type Refusal struct {
	Kind string
	err  error
}

func (r *Refusal) Error() string { return r.err.Error() }

// Begin puts a policy in force. A nil result means that it is, or was before.
func (g *Enforcer) Begin(b *wire.Begin) *Refusal {
	if b == nil || b.Version < 1 {
		return &Refusal{wire.RefusedPolicy, errors.New("a session begins with a policy, which has a version from 1 up")}
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.noFilter != nil {
		return &Refusal{wire.RefusedUnsupported, fmt.Errorf("no network policy can be enforced here: %w", g.noFilter)}
	}
	old := g.active.Load()
	switch {
	case b.Version < old.version:
		return &Refusal{wire.RefusedStale, fmt.Errorf("policy version %d is in force, which is newer than %d", old.version, b.Version)}
	case b.Version == old.version:
		return g.complete(old, b)
	}
	next, err := newPolicy(b)
	if err != nil {
		return &Refusal{wire.RefusedPolicy, err}
	}
	return g.change(old, next)
}

func newPolicy(b *wire.Begin) (*activePolicy, error) {
	if len(b.Protect) > wire.MaxProtect {
		return nil, fmt.Errorf("%d protected subnets: there may be %d", len(b.Protect), wire.MaxProtect)
	}
	if err := checkServers(b.Upstream); err != nil {
		return nil, err
	}
	p, err := b.Policy.Canon()
	if err != nil {
		return nil, err
	}
	own := ownNetworks()
	s := &activePolicy{version: b.Version, protect: b.Protect, upstream: b.Upstream, roots: b.Roots, secrets: make(map[string]map[string]string)}
	if err := s.addSecrets(p, b.Secrets); err != nil {
		return nil, err
	}
	s.six = slices.ContainsFunc(own, func(n netip.Prefix) bool { return n.Addr().Is6() && !n.Addr().IsLinkLocalUnicast() })
	s.rules, err = p.Compile(append(own, s.protect...)...)
	return s, err
}

// checkServers says what keeps addresses from being those of DNS servers.
func checkServers(all []netip.Addr) error {
	if len(all) > wire.MaxUpstream {
		return fmt.Errorf("%d DNS servers: there may be %d", len(all), wire.MaxUpstream)
	}
	for _, a := range all {
		if !a.IsValid() || a.Zone() != "" || a.IsUnspecified() || a.IsMulticast() || a.Is4In6() {
			return fmt.Errorf("%q can't be a DNS server", a)
		}
	}
	return nil
}

// complete adds what the Begin of the policy in force lacked.
func (g *Enforcer) complete(old *activePolicy, b *wire.Begin) *Refusal {
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
	return g.change(old, &next)
}

// addSecrets takes secrets for names that have none yet.
func (s *activePolicy) addSecrets(p policy.Policy, secrets []wire.Secret) error {
	size := 0
	for _, secret := range secrets {
		if len(secret.Headers) > wire.MaxSecretHeaders {
			return fmt.Errorf("the names %q have %d headers: there may be %d", secret.Pattern, len(secret.Headers), wire.MaxSecretHeaders)
		}
		for name, value := range secret.Headers {
			if size += len(name) + len(value); size > wire.MaxSecretBytes {
				return fmt.Errorf("the headers are too large: there may be %d bytes", wire.MaxSecretBytes)
			}
			if !httpguts.ValidHeaderFieldName(name) || !httpguts.ValidHeaderFieldValue(value) {
				return fmt.Errorf("the names %q have a header that is none", secret.Pattern)
			}
		}
		named := slices.ContainsFunc(p.Allow, func(n policy.Name) bool { return n.Transform && n.Pattern == secret.Pattern })
		if _, have := s.secrets[secret.Pattern]; named && !have && len(secret.Headers) > 0 {
			s.secrets[secret.Pattern] = secret.Headers
		}
	}
	return nil
}

// change makes next the policy in force, or leaves it at old.
func (g *Enforcer) change(old, next *activePolicy) *Refusal {
	if next.rules.Transforms() {
		ca, err := g.injector.configure(next.roots)
		if err != nil {
			return &Refusal{wire.RefusedPolicy, err}
		}
		next.ca = ca
	}
	rules := g.rulesFor(next)
	if err := rules.install(); err != nil {
		kind := wire.RefusedPolicy
		if g.noRedirect != nil {
			kind, err = wire.RefusedUnsupported, g.noRedirect
		}
		err = fmt.Errorf("apply the policy: %w", err)
		if g.rules.install() != nil {
			// Which rules the kernel has is not known now. These are the simplest.
			g.rules = g.locked()
			g.active.Store(&activePolicy{rules: denyAll})
			g.proxy.review()
			if again := g.rules.install(); again != nil {
				linksDown()
				err = errors.Join(err, fmt.Errorf("lock the network: %w", again))
			} else {
				err = fmt.Errorf("%w; the network is locked", err)
			}
		}
		return &Refusal{kind, err}
	}
	g.rules = rules
	g.active.Store(next)
	g.resolver.forget()
	g.proxy.review()
	if old.version > 0 {
		dropFlows(next) // their packets are refused anyhow
	}
	if g.trust != nil && (g.ca != next.ca || old.version == 0) {
		// Where it fails, clients will not trust us, and fail.
		if g.trust(next.ca) == nil {
			g.ca = next.ca
		}
	}
	g.first.Do(func() { close(g.begun) })
	go debug.FreeOSMemory() // what it took to get here is not needed again
	return nil
}

// rulesFor says what the kernel is to enforce.
func (g *Enforcer) rulesFor(s *activePolicy) *ruleset {
	p := s.rules.Policy()
	r := g.locked()
	r.log = !g.noLog
	r.deny, r.allow, r.protected = p.Subnets.Deny, p.Subnets.Allow, s.rules.Protected()
	r.into = p.ResolveInto
	r.open = s.rules.Open()
	r.upstream = g.servers(s)
	if p.Mode == policy.AllowAll {
		r.anyoneAsks = true
		return r
	}
	r.dns = g.noRedirect == nil
	r.proxy = p.Mode == policy.Custom && s.rules.Resolves() && (!s.rules.Open() || s.rules.Transforms())
	return r
}

// servers are the DNS servers to ask under a policy.
func (g *Enforcer) servers(s *activePolicy) []netip.Addr {
	if len(s.upstream) > 0 {
		return s.upstream
	}
	return g.boot
}

// Network tells of the policy in force.
func (g *Enforcer) Network() *wire.Network {
	s := g.active.Load()
	n := &wire.Network{Version: s.version, CA: s.ca}
	for _, name := range s.rules.Policy().Allow {
		if name.Transform && s.secrets[name.Pattern] == nil {
			n.Missing = append(n.Missing, name.Pattern)
		}
	}
	n.Allowed, n.Blocked = g.log.counts()
	return n
}

// InForce is closed when the first policy is in force.
func (g *Enforcer) InForce() <-chan struct{} { return g.begun }

// Log returns the record of decisions, the latest first.
func (g *Enforcer) Log() *wire.EgressLog { return g.log.entries() }

// bootServers are the DNS servers that the container has now.
func bootServers() []netip.Addr {
	file, err := os.OpenFile("/etc/resolv.conf", os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil
	}
	defer file.Close()
	text, _ := io.ReadAll(io.LimitReader(file, 64<<10))
	// A zone makes an address one of a device, and there is no telling which.
	return slices.DeleteFunc(nameservers(string(text)), func(a netip.Addr) bool {
		return a.Zone() != "" || a.IsUnspecified() || a.IsMulticast()
	})
}

// ownNetworks are the networks of this host's devices.
func ownNetworks() []netip.Prefix {
	addrs, _ := net.InterfaceAddrs()
	var all []netip.Prefix
	for _, a := range addrs {
		if p, err := netip.ParsePrefix(a.String()); err == nil && !p.Addr().IsLoopback() && !p.Addr().Is4In6() {
			all = append(all, p.Masked())
		}
	}
	return all
}

// linksDown takes the container off every network. It is for a kernel that can't be
// told what to let pass.
func linksDown() {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return
	}
	defer unix.Close(fd)
	links, _ := net.Interfaces()
	for _, l := range links {
		if l.Flags&net.FlagLoopback != 0 {
			continue
		}
		req, err := unix.NewIfreq(l.Name)
		if err != nil || unix.IoctlIfreq(fd, unix.SIOCGIFFLAGS, req) != nil {
			continue
		}
		req.SetUint16(req.Uint16() &^ unix.IFF_UP)
		unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, req)
	}
}
