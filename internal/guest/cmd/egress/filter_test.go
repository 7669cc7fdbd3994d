//go:build linux

package egress

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"
	"golang.org/x/sys/unix"

	"github.com/seed-1a2d6d8f/sandbox/internal/guest/wire"
)

// Tests of single rules: each fails when its rule is taken out.

// write opens a datagram socket, sends a word and lets go of it.
func (ns *netns) write(network, addr, word string) {
	if conn, err := ns.dial(network, addr); err == nil {
		io.WriteString(conn, word)
		conn.Close()
	}
}

// listen opens a listener.
func (ns *netns) listen(network, addr string) net.Listener {
	ns.t.Helper()
	var listener net.Listener
	var err error
	ns.do(func() { listener, err = net.Listen(network, addr) })
	if err != nil {
		ns.t.Fatal(err)
	}
	ns.t.Cleanup(func() { listener.Close() })
	return listener
}

// packets opens a datagram socket, at an address that need not be there.
func (ns *netns) packets(network, addr string) net.PacketConn {
	ns.t.Helper()
	free := net.ListenConfig{Control: func(network, _ string, c syscall.RawConn) error {
		return c.Control(func(fd uintptr) {
			if strings.HasSuffix(network, "6") {
				unix.SetsockoptInt(int(fd), unix.SOL_IPV6, unix.IPV6_FREEBIND, 1)
			}
		})
	}}
	var conn net.PacketConn
	var err error
	ns.do(func() { conn, err = free.ListenPacket(ns.t.Context(), network, addr) })
	if err != nil {
		ns.t.Fatal(err)
	}
	ns.t.Cleanup(func() { conn.Close() })
	return conn
}

// sysctl sets a setting of the namespace.
func (ns *netns) sysctl(name, value string) {
	ns.t.Helper()
	var err error
	ns.do(func() { err = os.WriteFile("/proc/sys/net/"+name, []byte(value), 0) })
	if err != nil {
		ns.t.Fatal(err)
	}
}

// frames begins to look at the wire. The function returns where the packets since then
// were going, at either end.
func (l *lab) frames() func() []netip.Addr {
	l.t.Helper()
	const all, arp = unix.ETH_P_ALL>>8 | unix.ETH_P_ALL<<8&0xff00, unix.ETH_P_ARP>>8 | unix.ETH_P_ARP<<8&0xff00
	var fd int
	var dev *net.Interface
	var err error
	l.outside.do(func() {
		if dev, err = net.InterfaceByName("out0"); err == nil {
			fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, all)
		}
	})
	if err != nil {
		l.t.Fatal(err)
	}
	unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 1})
	return func() (to []netip.Addr) {
		l.t.Helper()
		defer unix.Close(fd)
		// What comes after an answer of the inside's to this question was sent after it.
		l.fences++
		fence := [4]byte{10, 99, 1, l.fences}
		question := slices.Concat([]byte{0, 1, 8, 0, 6, 4, 0, 1}, dev.HardwareAddr, fence[:], make([]byte, 6), netip.MustParseAddr(insideAddr).AsSlice())
		ask := func() {
			if err := unix.Sendto(fd, question, 0, &unix.SockaddrLinklayer{Protocol: arp, Ifindex: dev.Index, Halen: 6, Addr: [8]byte{255, 255, 255, 255, 255, 255}}); err != nil {
				l.t.Fatal(err)
			}
		}
		ask()
		for buf, asked := make([]byte, 2048), 1; ; {
			n, link, err := unix.Recvfrom(fd, buf, 0)
			if err == unix.EAGAIN && asked < 60 {
				ask() // a busy machine drops packets
				asked++
				continue
			}
			if err != nil {
				l.t.Fatalf("the wire: %v", err)
			}
			from, _ := link.(*unix.SockaddrLinklayer)
			switch p := buf[:n]; {
			case from != nil && from.Protocol == arp:
				if n >= 28 && p[7] == 2 && [4]byte(p[24:28]) == fence {
					return to
				}
			case n >= 20 && p[0]>>4 == 4:
				to = append(to, netip.AddrFrom4([4]byte(p[16:20])))
			case n >= 40 && p[0]>>4 == 6:
				to = append(to, netip.AddrFrom16([16]byte(p[24:40])))
			}
		}
	}
}

// neighbours has both sides know each other, so that nothing waits to be sent.
func (l *lab) neighbours() {
	l.t.Helper()
	mac := func(ns *netns, name string) (addr net.HardwareAddr) {
		ns.do(func() {
			dev, err := net.InterfaceByName(name)
			if err != nil {
				l.t.Error(err)
				return
			}
			addr = dev.HardwareAddr
		})
		return addr
	}
	out, in := mac(l.outside, "out0"), mac(l.inside, "eth0")
	for _, addr := range []string{insideAddr, inside6} {
		l.outside.ip(fmt.Sprintf("neigh replace %s lladdr %s dev out0 nud permanent", addr, in))
	}
	for _, addr := range []string{gatewayAddr, gateway6} {
		l.inside.ip(fmt.Sprintf("neigh replace %s lladdr %s dev eth0 nud permanent", addr, out))
	}
}

// install puts rules in force that no policy would lead to.
func (l *lab) install(change func(*ruleset)) {
	l.t.Helper()
	var err error
	l.inside.do(func() {
		r := l.enforcer.locked()
		change(r)
		err = l.enforcer.table.install(r)
	})
	if err != nil {
		l.t.Fatal(err)
	}
}

// What a sandbox says to itself is nobody's business, under any policy. The engine's
// resolver is another's, at any port.
func TestLoopbackIsTheSandboxesOwn(t *testing.T) {
	l := newLab(t)
	own := []string{"127.0.0.1:8080", "[::1]:8080", insideAddr + ":8080", "127.0.0.11:4444"}
	for _, addr := range own {
		listener := l.inside.listen("tcp", addr)
		go func() {
			for {
				conn, err := listener.Accept()
				if err != nil {
					return
				}
				go func() { defer conn.Close(); io.Copy(conn, conn) }()
			}
		}()
	}
	for version, text := range []string{"", "deny-all", "public-only", "allow=a.example.com", "allow-all"} {
		if text != "" {
			l.begin(int64(version), parse(t, text))
		}
		for _, addr := range own {
			conn, err := l.inside.dial("tcp", addr)
			if err == nil {
				err = echoes(conn)
				conn.Close()
			}
			engines := strings.HasPrefix(addr, "127.0.0.11:") && text != "allow-all"
			if engines && (err == nil || errText(err) != refusedText) || !engines && err != nil {
				t.Errorf("%q: %s: %v; want it refused: %v", text, addr, err, engines)
			}
		}
	}
}

// Packets for this host stay in it, whatever device the socket is bound to: neither what
// is sent to a loopback address nor what is redirected to one is seen on the wire.
func TestNothingForThisHostLeavesIt(t *testing.T) {
	l := newLab(t)
	l.neighbours()
	bound := &net.Dialer{Timeout: 100 * time.Millisecond, Control: func(_, _ string, c syscall.RawConn) error {
		return c.Control(func(fd uintptr) { unix.SetsockoptString(int(fd), unix.SOL_SOCKET, unix.SO_BINDTODEVICE, "eth0") })
	}}
	for version, text := range []string{"", "deny-all", "allow=a.example.com", "subnets.allow=0.0.0.0/0,::/0", "allow-all"} {
		if text != "" {
			l.begin(int64(version), parse(t, text))
		}
		frames := l.frames()
		for _, to := range []string{"tcp 127.0.0.1:15001", "tcp 127.0.0.1:9", "udp 127.0.0.1:9", "udp 127.0.0.53:53", "tcp [::1]:9", "udp [::1]:9",
			"tcp " + alphaAddr + ":443", "udp " + alphaAddr + ":53", "tcp " + alphaAddr + ":53", "tcp [" + alpha6 + "]:443", "udp " + otherAddr + ":9000"} {
			network, addr, _ := strings.Cut(to, " ")
			if conn, err := l.inside.dialFrom(network, addr, bound); err == nil {
				io.WriteString(conn, "word")
				conn.Close()
			}
		}
		got := frames()
		for _, a := range got {
			if a.IsLoopback() {
				t.Errorf("%q: a packet for %s left", text, a)
			}
		}
		if open := text == "allow-all"; slices.Contains(got, netip.MustParseAddr(otherAddr)) != open && text != "subnets.allow=0.0.0.0/0,::/0" {
			t.Errorf("%q: on the wire %s; want the one of the open policy alone", text, got)
		}
	}
}

// A sandbox is nobody's router, although engines leave forwarding on.
func TestNothingIsForwarded(t *testing.T) {
	l := newLab(t)
	l.neighbours()
	const far, far6 = "198.51.100.9", "2001:db8:9::9"
	l.inside.sysctl("ipv4/ip_forward", "1")
	l.inside.sysctl("ipv6/conf/all/forwarding", "1")
	for _, who := range []string{"ipv4/conf/all", "ipv4/conf/out0", "ipv6/conf/out0"} {
		l.outside.sysctl(who+"/accept_redirects", "0") // a shorter way there
	}
	l.outside.ip("route add " + far + " via " + insideAddr)
	l.outside.ip("-6 route add " + far6 + " via " + inside6)
	came := func() (n int) {
		frames := l.frames()
		l.outside.write("udp", far+":9", "there")
		l.outside.write("udp", "["+far6+"]:9", "there")
		for _, a := range frames() {
			if a.String() == far || a.String() == far6 {
				n++
			}
		}
		return n
	}
	for version, text := range []string{"", "deny-all", "allow-all"} {
		if text != "" {
			l.begin(int64(version), parse(t, text))
		}
		if got := came(); got != 2 { // those that went there
			t.Errorf("%q: %d packets on the wire, want 2", text, got)
		}
	}
	table := l.enforcer.table
	table.conn.DelTable(inetTable(table.names[0]))
	if err := table.conn.Flush(); err != nil {
		t.Error(err)
	}
	for deadline := time.Now().Add(5 * time.Minute); came() != 4; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("without rules nothing is forwarded either: the attempt proves nothing")
		}
	}
}

// An address of IPv6 that is not ours is no source to send from, where all is allowed.
func TestNobodySendsInAnothersName(t *testing.T) {
	l := newLab(t)
	l.begin(1, parse(t, "allow-all"))
	to := &net.UDPAddr{IP: net.ParseIP(alpha6), Port: 9000}
	l.inside.packets("udp6", "[2001:db8:bad::1]:9000").WriteTo([]byte("spoofed"), to)
	if got := l.udp("[" + alpha6 + "]:9000"); got != "ping" {
		t.Errorf("in its own name: %q", got)
	}
	if hits := slices.Compact(l.took()); !slices.Equal(hits, []string{"udp [" + alpha6 + "]:9000 ping"}) { // or more of them
		t.Errorf("reached: %q", hits)
	}
}

// sendAdvert sends a router's advertisement to all on the link of out0.
func sendAdvert(t testing.TB, ns *netns, router net.PacketConn, advert []byte) {
	t.Helper()
	var dev *net.Interface
	var err error
	ns.do(func() { dev, err = net.InterfaceByName("out0") })
	if err != nil {
		t.Fatal(err)
	}
	raw, err := router.(*net.IPConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	raw.Control(func(fd uintptr) {
		err = errors.Join(unix.SetsockoptInt(int(fd), unix.SOL_IPV6, unix.IPV6_MULTICAST_HOPS, 255), unix.SetsockoptInt(int(fd), unix.SOL_IPV6, unix.IPV6_MULTICAST_IF, dev.Index))
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := router.WriteTo(advert, &net.IPAddr{IP: net.ParseIP("ff02::1")}); err != nil {
		t.Fatal(err)
	}
}

// IPv6 asks for a router and believes the one that answers, whatever the policy: without
// one there is no way out of some networks.
func TestIPv6FindsItsRouter(t *testing.T) {
	l := newLab(t)
	l.begin(1, parse(t, "deny-all"))
	l.outside.sysctl("ipv6/conf/out0/forwarding", "1") // so that it hears what is for routers
	l.inside.sysctl("ipv6/conf/eth0/accept_ra", "1")
	router := l.outside.packets("ip6:ipv6-icmp", "::")
	l.inside.ip("link set eth0 down")
	l.inside.ip("link set eth0 up")
	router.SetReadDeadline(time.Now().Add(5 * time.Minute))
	for buf := make([]byte, 1500); ; {
		n, _, err := router.ReadFrom(buf)
		if err != nil {
			t.Fatalf("nobody asks for a router: %v", err)
		}
		if n > 0 && buf[0] == ndRouterSolicit {
			break
		}
	}
	advert := []byte{ndRouterAdvert, 0, 0, 0, 64, 0, 7, 8, 0, 0, 0, 0, 0, 0, 0, 0} // it is one for 30 minutes
	for deadline := time.Now().Add(5 * time.Minute); ; time.Sleep(20 * time.Millisecond) {
		sendAdvert(t, l.outside, router, advert)
		var routes []byte
		var err error
		l.inside.do(func() { routes, err = exec.Command("ip", "-6", "route", "show", "default").CombinedOutput() })
		if bytes.Contains(routes, []byte("proto ra")) {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("it does not believe the router: %q, %v", routes, err)
		}
	}
}

// forged is an answer with another address in it.
func forged(answer []byte) []byte {
	real, fake := netip.MustParseAddr(alphaAddr).As4(), netip.MustParseAddr(otherAddr).As4()
	return bytes.ReplaceAll(answer, real[:], fake[:])
}

// A process can bind the address of a resolver in the sandbox's own network, and answer
// before it does: such an answer is not heard.
func TestNobodyAnswersInTheResolversName(t *testing.T) {
	l := newLab(t)
	const resolver6 = "fd99::53"
	l.outside.ip("addr add " + resolver6 + "/128 dev out0 nodad")
	server, forger := l.outside.packets("udp6", "["+resolver6+"]:53"), l.inside.packets("udp6", "["+resolver6+"]:53")
	go func() {
		buf := make([]byte, 4096)
		for {
			n, from, err := server.ReadFrom(buf)
			if err != nil {
				return
			}
			answer := l.resolve(buf[:n], false)
			forger.WriteTo(forged(answer), from)
			server.WriteTo(answer, from)
		}
	}()
	l.begin(1, parse(t, "allow=a.example.com"), func(b *wire.Begin) { b.Upstream = []netip.Addr{netip.MustParseAddr(resolver6)} })
	if got := l.lookup(otherAddr, "a.example.com", dnsmessage.TypeA); got != alphaAddr {
		t.Errorf("with a forger inside: %q, want %s", got, alphaAddr)
	}
	if hits := l.took(); !slices.Contains(hits, "dns a.example.com") {
		t.Errorf("the resolver heard %q", hits)
	}
	// He can speak in its name: to anyone else.
	victim := l.inside.packets("udp6", "["+inside6+"]:9100")
	forger.WriteTo([]byte("forged"), victim.LocalAddr())
	victim.SetReadDeadline(time.Now().Add(5 * time.Minute))
	if _, _, err := victim.ReadFrom(make([]byte, 16)); err != nil {
		t.Errorf("the attack itself: %v", err)
	}
}

// A resolver on this host, as the engine's is in networks that users make, is asked by TCP
// alone: anyone could send a datagram in its name.
func TestResolverOnThisHostIsAskedByTCP(t *testing.T) {
	l := newLab(t)
	tcp, udp := l.inside.listen("tcp", "127.0.0.11:53"), l.inside.packets("udp4", "127.0.0.11:53")
	go l.answerTCP(tcp)
	go func() {
		buf := make([]byte, 4096)
		for {
			n, from, err := udp.ReadFrom(buf)
			if err != nil {
				return
			}
			udp.WriteTo(forged(l.resolve(buf[:n], false)), from)
		}
	}()
	l.begin(1, parse(t, "allow=*.example.com"), func(b *wire.Begin) { b.Upstream = []netip.Addr{engineResolver} })
	for _, network := range []string{"udp", "tcp"} {
		for _, server := range []string{"127.0.0.11", otherAddr} {
			if got := l.lookupBy(network, server, "a.example.com", dnsmessage.TypeA); got != alphaAddr {
				t.Errorf("%s %s: %q, want %s", network, server, got, alphaAddr)
			}
			if got := l.lookupBy(network, server, "evil.test", dnsmessage.TypeA); got != "RCodeNameError" {
				t.Errorf("%s %s: an unlisted name: %q", network, server, got)
			}
		}
	}
	if got := l.secure(otherAddr+":443", "a.example.com"); got != toAlpha {
		t.Errorf("by its name: %q", got)
	}
	if hits := l.took(); slices.Contains(hits, "dns evil.test") {
		t.Errorf("the resolver heard %q", hits)
	}
}

// Under allow-all everybody asks the resolvers, also those at addresses that are closed
// otherwise, as clouds have them.
func TestUnderAllowAllEverybodyAsks(t *testing.T) {
	l := newLab(t)
	udp, tcp := l.outside.packets("udp4", metaAddr+":53"), l.outside.listen("tcp", metaAddr+":53")
	go l.answerUDP(udp)
	go l.answerTCP(tcp)
	ask := func(network string) string { return l.lookupBy(network, metaAddr, "a.example.com", dnsmessage.TypeA) }
	l.begin(1, parse(t, "allow-all"))
	for _, network := range []string{"udp", "tcp"} {
		if got := ask(network); got != refusedText {
			t.Errorf("%s, of a server that is not the resolver: %q", network, got)
		}
	}
	l.begin(2, parse(t, "allow-all"), func(b *wire.Begin) { b.Upstream = []netip.Addr{netip.MustParseAddr(metaAddr)} })
	for _, network := range []string{"udp", "tcp"} {
		if got := ask(network); got != alphaAddr {
			t.Errorf("%s: %q, want %s", network, got, alphaAddr)
		}
	}
	for _, got := range []string{l.http(metaAddr+":80", "GET / HTTP/1.0\r\n\r\n"), l.udp(metaAddr + ":123")} {
		if got != refusedText {
			t.Errorf("another port there: %q", got)
		}
	}
}

// Answers are looked at like what they answer: a flow that the rules allow no more ends in
// both directions, even while the kernel remembers it.
func TestAnswersAreLookedAtOneByOne(t *testing.T) {
	l := newLab(t)
	type pair struct {
		subnet netip.Prefix
		in     net.Conn
		out    net.PacketConn
		to     net.Addr
	}
	var pairs []*pair
	for _, addr := range []string{otherAddr, alpha6} {
		p := &pair{out: l.outside.packets(map[bool]string{true: "udp6", false: "udp4"}[strings.Contains(addr, ":")], net.JoinHostPort(addr, "9200"))}
		a := netip.MustParseAddr(addr)
		p.subnet = netip.PrefixFrom(a, a.BitLen())
		pairs = append(pairs, p)
	}
	l.install(func(r *ruleset) { r.open = true })
	for _, p := range pairs {
		var err error
		if p.in, err = l.inside.dial("udp", p.out.LocalAddr().String()); err != nil {
			t.Fatal(err)
		}
		defer p.in.Close()
		io.WriteString(p.in, "hello")
		p.out.SetReadDeadline(time.Now().Add(5 * time.Minute))
		if _, p.to, err = p.out.ReadFrom(make([]byte, 16)); err != nil {
			t.Fatal(err)
		}
	}
	both := []netip.Prefix{pairs[0].subnet, pairs[1].subnet}
	elsewhere := []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24"), netip.MustParsePrefix("2001:db8:2::/48")}
	for i, tt := range []struct {
		rules string
		set   func(*ruleset)
		heard bool
	}{
		{"open", func(r *ruleset) { r.open = true }, true},
		{"open, denied", func(r *ruleset) { r.open, r.deny = true, both }, false},
		{"open, protected", func(r *ruleset) { r.open, r.protected = true, both }, false},
		{"open, protected and allowed", func(r *ruleset) { r.open, r.protected, r.allow = true, both, both }, true},
		{"allowed", func(r *ruleset) { r.allow = both }, true},
		{"allowed and denied", func(r *ruleset) { r.allow, r.deny = both, both }, false},
		{"others allowed", func(r *ruleset) { r.allow = elsewhere }, false},
		{"none", func(*ruleset) {}, false},
		{"open again", func(r *ruleset) { r.open = true }, true},
	} {
		l.install(tt.set)
		for _, p := range pairs {
			word := fmt.Sprint("word ", i)
			p.out.WriteTo([]byte(word), p.to)
			wait := 100 * time.Millisecond
			if tt.heard {
				wait = time.Minute
			}
			p.in.SetReadDeadline(time.Now().Add(wait))
			buf := make([]byte, 16)
			n, err := p.in.Read(buf)
			if heard := err == nil && string(buf[:n]) == word; heard != tt.heard {
				t.Fatalf("%s: from %s: %q, %v; want it heard: %v", tt.rules, p.subnet, buf[:n], err, tt.heard)
			}
		}
	}
}

// What a router on the way says of a flow that is allowed reaches who has it, although
// the router itself is out of reach.
func TestErrorsOfTheNetworkComeThrough(t *testing.T) {
	l := newLab(t, 3000)
	const far, far6 = "203.0.113.99", "2001:db8:1::99"
	l.outside.sysctl("ipv4/ip_forward", "1")
	l.outside.sysctl("ipv6/conf/all/forwarding", "1")
	l.outside.ip("route add prohibit " + far)
	l.outside.ip("-6 route add prohibit " + far6)
	for version, text := range []string{"public-only", "subnets.allow=203.0.113.0/24,2001:db8:1::/48"} {
		l.begin(int64(version+1), parse(t, text))
		for addr, want := range map[string]error{far + ":9": unix.EHOSTUNREACH, "[" + far6 + "]:9": unix.EACCES} {
			conn, err := l.inside.dial("udp", addr)
			if err != nil {
				t.Fatal(err)
			}
			conn.SetDeadline(time.Now().Add(5 * time.Minute))
			if _, err := io.WriteString(conn, "word"); err != nil {
				t.Errorf("%s: %s: %v", text, addr, err)
			}
			if _, err := conn.Read(make([]byte, 1)); !errors.Is(err, want) {
				t.Errorf("%s: %s: %v, want %v", text, addr, err, want)
			}
			conn.Close()
		}
	}

	// The same of an answer on a published port, under a policy that lets nothing out: the
	// client's address goes away, and its router says so.
	l.begin(3, parse(t, "deny-all"))
	listener := l.inside.listen("tcp4", insideAddr+":3000")
	client, err := l.outside.dialFrom("tcp", insideAddr+":3000", &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(privateAddr)}, Timeout: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	conn, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	raw, err := conn.(*net.TCPConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_IP, unix.IP_RECVERR, 1) })
	if err != nil {
		t.Fatal(err)
	}
	l.outside.ip("addr del " + privateAddr + "/32 dev out0")
	l.outside.ip("route add prohibit " + privateAddr)
	io.WriteString(conn, "word")
	conn.SetReadDeadline(time.Now().Add(5 * time.Minute))
	if _, err := conn.Read(make([]byte, 1)); !errors.Is(err, unix.EHOSTUNREACH) {
		t.Errorf("on a published port: %v, want %v", err, unix.EHOSTUNREACH)
	}
}

// Who sends what is refused hears of it when he waits for an answer, too: not everybody
// looks at what sending said.
func TestRefusedDatagramsAreAnswered(t *testing.T) {
	l := newLab(t)
	l.begin(1, parse(t, "deny-all"))
	for _, addr := range []string{otherAddr + ":9000", "[" + alpha6 + "]:9000"} {
		conn, err := l.inside.dial("udp", addr)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		io.WriteString(conn, "word")
		conn.SetReadDeadline(time.Now().Add(5 * time.Minute))
		if _, err := conn.Read(make([]byte, 1)); err == nil || isTimeout(err) {
			t.Errorf("%s: %v, want that it is refused", addr, err)
		}
	}
	if hits := l.took(); len(hits) > 0 {
		t.Errorf("reached: %q", hits)
	}
}

// A change that the kernel refuses leaves what was before; where that fails as well, the
// network is locked, and where even that fails, it is taken away.
func TestRefusedChangesFailClosed(t *testing.T) {
	wrong := []netip.Addr{{}}      // which makes a rule that is none
	ports := make([]uint16, 1<<14) // more rules than a message to the kernel holds
	for _, tt := range []struct {
		what    string
		set     func(*Enforcer)
		allowed string // what becomes of what the policy before allows
		says    string
		up      bool
	}{
		{"the change", func(*Enforcer) {}, toAlpha, "apply the policy", true},
		{"and what was before", func(g *Enforcer) { g.rules = &ruleset{upstream: wrong} }, refusedText, "the network is locked", true},
		{"and the lock", func(g *Enforcer) { g.rules, g.ports = &ruleset{upstream: wrong}, ports }, "", "lock the network", false},
	} {
		t.Run(tt.what, func(t *testing.T) {
			l := newLab(t)
			l.begin(1, parse(t, "allow=a.example.com"))
			if got := l.secure(alphaAddr+":443", "a.example.com"); got != toAlpha {
				t.Fatalf("before: %q", got)
			}
			old := l.enforcer.active.Load()
			next := *old
			var err error
			next.version, next.upstream = 2, wrong
			if next.rules, err = parse(t, "allow=*").Compile(); err != nil {
				t.Fatal(err)
			}
			l.took()
			var refused *Refusal
			var links []net.Interface
			l.inside.do(func() {
				tt.set(l.enforcer)
				refused = l.enforcer.change(old, &next)
				links, err = net.Interfaces()
			})
			if refused == nil || !strings.Contains(refused.Error(), tt.says) || err != nil {
				t.Errorf("the change: %v, %v, want it refused with %q", refused, err, tt.says)
			}
			for _, link := range links {
				if up := link.Flags&net.FlagUp != 0; up != (tt.up || link.Flags&net.FlagLoopback != 0) {
					t.Errorf("%s is up: %v", link.Name, up)
				}
			}
			if got := l.secure(alphaAddr+":443", "a.example.com"); got != tt.allowed && tt.up || got == toAlpha != (tt.allowed == toAlpha) {
				t.Errorf("what was allowed: %q, want %q", got, tt.allowed)
			}
			want := int64(0) // none: whoever comes next begins anew
			if tt.allowed == toAlpha {
				want = old.version
			}
			if got := l.enforcer.Network().Version; got != want {
				t.Errorf("version %d is in force, want %d", got, want)
			}
			for _, addr := range []string{otherAddr + ":9000", "[" + alpha6 + "]:9000"} {
				if got := l.udp(addr); got == "ping" {
					t.Errorf("%s answers", addr)
				}
			}
			if hits := slices.DeleteFunc(l.took(), func(h string) bool {
				return tt.allowed == toAlpha && h == "dns a.example.com" || h == "tcp "+alphaAddr+":443"
			}); len(hits) > 0 {
				t.Errorf("reached: %q", hits)
			}
		})
	}
}

// A kernel that can't be told what to let pass: the container is off every network, and
// still its own.
func TestLinksDownLeavesLoopbackAlone(t *testing.T) {
	l := newLab(t)
	l.begin(1, parse(t, "allow-all"))
	l.inside.ip("link add extra0 type veth peer name extra1")
	l.inside.ip("link set extra0 up")
	l.inside.ip("link set extra1 up")
	if got := l.udp(otherAddr + ":9000"); got != "ping" {
		t.Fatalf("before: %q", got)
	}
	l.took()
	var up []string
	l.inside.do(func() {
		linksDown()
		links, err := net.Interfaces()
		if err != nil {
			t.Error(err)
		}
		for _, link := range links {
			if link.Flags&net.FlagUp != 0 {
				up = append(up, link.Name)
			}
		}
	})
	if !slices.Equal(up, []string{"lo"}) {
		t.Errorf("up are %q, want lo alone", up)
	}
	for _, addr := range []string{otherAddr + ":9000", "[" + alpha6 + "]:9000"} {
		if got := l.udp(addr); got == "ping" {
			t.Errorf("%s still answers", addr)
		}
	}
	if hits := l.took(); len(hits) > 0 {
		t.Errorf("reached: %q", hits)
	}
}
