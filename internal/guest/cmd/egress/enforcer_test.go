//go:build linux

package egress

import (
	"bufio"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"
	"golang.org/x/sys/unix"

	"github.com/seed-1a2d6d8f/sandbox/internal/guest/wire"
	"github.com/seed-1a2d6d8f/sandbox/internal/policy"
)

// attempts are ways out, by what they are called in the tests.
func (l *lab) attempts() map[string]func() string {
	get := func(host string) string { return "GET / HTTP/1.1\r\nHost: " + host + "\r\nConnection: close\r\n\r\n" }
	return map[string]func() string{
		"tls alpha as a":        func() string { return l.secure(alphaAddr+":443", "a.example.com") },
		"tls alpha 8443 as a":   func() string { return l.secure(alphaAddr+":8443", "a.example.com") },
		"tls alpha6 as a":       func() string { return l.secure("["+alpha6+"]:443", "a.example.com") },
		"tls evil as a":         func() string { return l.secure(otherAddr+":443", "a.example.com") },
		"tls alpha as evil":     func() string { return l.secure(alphaAddr+":443", "evil.test") },
		"tls evil as evil":      func() string { return l.secure(otherAddr+":443", "evil.test") },
		"tls evil without name": func() string { return l.secure(otherAddr+":443", "") },
		"tls meta as a":         func() string { return l.secure(metaAddr+":443", "a.example.com") },
		"tls meta as meta":      func() string { return l.secure(metaAddr+":443", "meta.example.com") },
		"tls gateway":           func() string { return l.secure(gatewayAddr+":443", "evil.test") },
		"tls alpha6 as evil":    func() string { return l.secure("["+alpha6+"]:443", "evil.test") },
		"tls gateway6":          func() string { return l.secure("["+gateway6+"]:443", "evil.test") },
		"tls private":           func() string { return l.secure(privateAddr+":443", "evil.test") },
		"tls intra":             func() string { return l.secure(privateAddr+":443", "intra.example.com") },
		"http a":                func() string { return l.http(alphaAddr+":80", get("a.example.com")) },
		"http evil":             func() string { return l.http(otherAddr+":80", get("evil.test")) },
		"http address":          func() string { return l.http(otherAddr+":80", get(otherAddr)) },
		"http meta":             func() string { return l.http(metaAddr+":80", get(metaAddr)) },
		"udp evil":              func() string { return l.udp(otherAddr + ":9000") },
		"udp alpha":             func() string { return l.udp(alphaAddr + ":9000") },
		"udp alpha6":            func() string { return l.udp("[" + alpha6 + "]:9000") },
		"udp meta":              func() string { return l.udp(metaAddr + ":123") },
		"dns a":                 func() string { return l.lookup(resolverIP, "a.example.com", dnsmessage.TypeA) },
		"dns a tcp":             func() string { return l.lookupBy("tcp", resolverIP, "a.example.com", dnsmessage.TypeA) },
		"dns evil":              func() string { return l.lookup(resolverIP, "evil.test", dnsmessage.TypeA) },
		"dns evil's own":        func() string { return l.lookup(otherAddr, "evil.test", dnsmessage.TypeA) },
		"dns engine's":          func() string { return l.lookup("127.0.0.11", "a.example.com", dnsmessage.TypeA) },
		"dns engine's tcp":      func() string { return l.lookupBy("tcp", "127.0.0.11", "a.example.com", dnsmessage.TypeA) },
		"dns meta":              func() string { return l.lookup(resolverIP, "meta.example.com", dnsmessage.TypeA) },
	}
}

const (
	refusedText = "refused"
	toAlpha     = "tls " + alphaAddr + ":443 a.example.com hello\n"
)

// What each policy lets out, and what of it arrives. What is not listed is refused, and
// nothing of it arrives anywhere.
func TestEachPolicyLetsOutWhatItSays(t *testing.T) {
	alpha6TLS := "tls [" + alpha6 + "]:443 a.example.com hello\n"
	direct := map[string]string{
		"tls alpha as a": toAlpha, "tls alpha 8443 as a": "tls " + alphaAddr + ":8443 a.example.com hello\n",
		"tls alpha6 as a": alpha6TLS, "tls evil as a": "tls " + otherAddr + ":443 a.example.com hello\n",
		"tls alpha as evil": "tls " + alphaAddr + ":443 evil.test hello\n", "tls evil as evil": "tls " + otherAddr + ":443 evil.test hello\n",
		"tls alpha6 as evil":    "tls [" + alpha6 + "]:443 evil.test hello\n",
		"tls evil without name": "tls " + otherAddr + ":443  hello\n",
		"http a":                "http " + alphaAddr + ":80 a.example.com", "http evil": "http " + otherAddr + ":80 evil.test",
		"http address": "http " + otherAddr + ":80 " + otherAddr,
		"udp evil":     "ping", "udp alpha": "ping", "udp alpha6": "ping",
	}
	with := func(base map[string]string, more ...string) map[string]string {
		out := map[string]string{}
		for k, v := range base {
			out[k] = v
		}
		for i := 0; i < len(more); i += 2 {
			out[more[i]] = more[i+1]
		}
		return out
	}
	noNames := map[string]string{"dns a": "RCodeNameError", "dns a tcp": "RCodeNameError", "dns evil": "RCodeNameError", "dns evil's own": "RCodeNameError", "dns engine's": "RCodeNameError", "dns engine's tcp": "RCodeNameError", "dns meta": "RCodeNameError"}
	names := with(noNames, "dns a", alphaAddr, "dns a tcp", alphaAddr, "dns engine's", alphaAddr, "dns engine's tcp", alphaAddr, "dns meta", "")
	for _, tt := range []struct {
		policy string
		open   map[string]string
	}{
		{"", map[string]string{}},
		{"deny-all", noNames},
		{"allow-all", with(direct, "tls gateway", "tls "+gatewayAddr+":443 evil.test hello\n", "tls private", "tls "+privateAddr+":443 evil.test hello\n",
			"tls gateway6", "tls ["+gateway6+"]:443 evil.test hello\n",
			"tls intra", "tls "+privateAddr+":443 intra.example.com hello\n",
			"dns a", alphaAddr, "dns a tcp", alphaAddr, "dns evil", otherAddr, "dns evil's own", "", "dns engine's", "refused", "dns meta", metaAddr)},
		{"public-only", with(with(direct, "dns evil", otherAddr), "dns a", alphaAddr, "dns a tcp", alphaAddr, "dns engine's", alphaAddr, "dns engine's tcp", alphaAddr, "dns meta", "", "dns evil's own", otherAddr)},
		{"allow=*", with(with(direct, "dns evil", otherAddr), "dns a", alphaAddr, "dns a tcp", alphaAddr, "dns engine's", alphaAddr, "dns engine's tcp", alphaAddr, "dns meta", "", "dns evil's own", otherAddr)},
		{"allow=*.example.com", with(names, "tls alpha as a", toAlpha, "tls alpha 8443 as a", direct["tls alpha 8443 as a"], "tls alpha6 as a", alpha6TLS,
			"tls evil as a", toAlpha, "tls meta as a", toAlpha, "http a", direct["http a"])},
		{"allow=a.example.com resolve-into=192.168.77.0/24", with(names, "dns meta", "RCodeNameError", "tls alpha as a", toAlpha, "tls alpha 8443 as a", direct["tls alpha 8443 as a"], "tls alpha6 as a", alpha6TLS,
			"tls evil as a", toAlpha, "tls meta as a", toAlpha, "http a", direct["http a"])},
		{"allow=intra.example.com resolve-into=192.168.77.0/24", with(noNames, "tls intra", "tls "+privateAddr+":443 intra.example.com hello\n")},
		{"subnets.allow=203.0.113.2/32", with(noNames, "tls evil as a", direct["tls evil as a"], "tls evil as evil", direct["tls evil as evil"], "tls evil without name", direct["tls evil without name"],
			"http evil", direct["http evil"], "http address", direct["http address"], "udp evil", "ping")},
		{"subnets.allow=203.0.113.0/24,169.254.169.254/32 subnets.deny=203.0.113.1", with(noNames, "tls evil as a", direct["tls evil as a"], "tls evil as evil", direct["tls evil as evil"], "tls evil without name", direct["tls evil without name"],
			"http evil", direct["http evil"], "http address", direct["http address"], "udp evil", "ping",
			"tls meta as a", "tls "+metaAddr+":443 a.example.com hello\n", "tls meta as meta", "tls "+metaAddr+":443 meta.example.com hello\n", "http meta", "http "+metaAddr+":80 "+metaAddr, "udp meta", "ping")},
		// A denied or allowed address is not one to be proxied, whatever name is asked for there.
		{"allow=a.example.com subnets.deny=203.0.113.2,2001:db8:1::/48", with(names, "dns meta", "RCodeNameError", "tls alpha as a", toAlpha, "tls alpha 8443 as a", direct["tls alpha 8443 as a"],
			"tls meta as a", toAlpha, "http a", direct["http a"])},
		{"allow=a.example.com subnets.allow=203.0.113.2,2001:db8::/32 subnets.deny=2001:db8:2::/48", with(names, "dns meta", "RCodeNameError", "tls alpha as a", toAlpha, "tls alpha 8443 as a", direct["tls alpha 8443 as a"],
			"tls meta as a", toAlpha, "http a", direct["http a"], "tls alpha6 as a", alpha6TLS, "tls alpha6 as evil", direct["tls alpha6 as evil"], "udp alpha6", "ping",
			"tls evil as a", direct["tls evil as a"], "tls evil as evil", direct["tls evil as evil"], "tls evil without name", direct["tls evil without name"],
			"http evil", direct["http evil"], "http address", direct["http address"], "udp evil", "ping")},
		{"subnets.allow=2001:db8::/32 subnets.deny=2001:db8:1::/48", noNames},
		{"allow=a.example.com subnets.deny=203.0.113.1,2001:db8:1::/48", with(names, "dns a", "", "dns a tcp", "", "dns engine's", "", "dns engine's tcp", "", "dns meta", "RCodeNameError")},
	} {
		t.Run(tt.policy, func(t *testing.T) {
			l := newLab(t)
			if tt.policy != "" {
				l.begin(1, parse(t, tt.policy))
			}
			l.took()
			for name, try := range l.attempts() {
				want, open := tt.open[name]
				if !open {
					want = refusedText
				}
				got := try()
				hits := slices.DeleteFunc(l.took(), func(h string) bool {
					return strings.Contains(tt.policy, "allow=") && strings.HasPrefix(h, "dns ") && strings.HasSuffix(h, "example.com") && strings.Contains(name, "tls") ||
						open && (strings.HasPrefix(h, "dns ") && (want != "RCodeNameError") || strings.HasPrefix(h, "tcp ") || strings.HasPrefix(h, "udp "))
				})
				if tt.policy == "allow-all" && strings.HasPrefix(name, "dns e") {
					continue // answers of others
				}
				if got != want {
					t.Errorf("%s: %q, want %q", name, got, want)
				}
				if len(hits) > 0 {
					t.Errorf("%s: reached %q", name, hits)
				}
			}
		})
	}
}

func TestBeginOrdersVersions(t *testing.T) {
	l := newLab(t)
	l.begin(2, parse(t, "allow=a.example.com"))
	select {
	case <-l.enforcer.begun:
	default:
		t.Error("it has not begun")
	}
	l.begin(2, policy.Policy{Mode: policy.AllowAll}) // nothing but a repetition
	if got := l.enforcer.active.Load().rules.Policy().String(); got != "allow=a.example.com" {
		t.Errorf("the policy is %s", got)
	}
	for _, tt := range []struct {
		b    *wire.Begin
		kind string
	}{
		{nil, wire.RefusedPolicy},
		{&wire.Begin{Policy: policy.Policy{Mode: policy.AllowAll}}, wire.RefusedPolicy},
		{&wire.Begin{Version: 1, Policy: policy.Policy{Mode: policy.AllowAll}}, wire.RefusedStale},
		{&wire.Begin{Version: 3}, wire.RefusedPolicy},
		{&wire.Begin{Version: 3, Policy: policy.Policy{Mode: policy.AllowAll, Allow: []policy.Name{{Pattern: "a.b"}}}}, wire.RefusedPolicy},
	} {
		if refused := l.enforcer.Begin(tt.b); refused == nil || refused.Kind != tt.kind {
			t.Errorf("%+v: %v, want a refusal as %s", tt.b, refused, tt.kind)
		}
	}
	if got := l.enforcer.Network().Version; got != 2 {
		t.Errorf("version %d", got)
	}
}

// An update closes what is not allowed any more, at once and in both directions, and
// keeps the rest.
func TestUpdateClosesWhatNoLongerMatches(t *testing.T) {
	l := newLab(t)
	proxied := func(name string) net.Conn {
		t.Helper()
		conn, err := l.inside.dial("tcp", alphaAddr+":443")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		conn.SetDeadline(time.Now().Add(5 * time.Minute))
		client := tls.Client(conn, &tls.Config{ServerName: name, RootCAs: l.pool})
		if err := client.Handshake(); err != nil {
			t.Fatal(err)
		}
		return client
	}
	direct := func(addr string) net.Conn {
		t.Helper()
		conn, err := l.inside.dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		conn.SetDeadline(time.Now().Add(5 * time.Minute))
		if err := echoes(conn); err != nil {
			t.Fatal(err)
		}
		return conn
	}
	answers := func(conn net.Conn) error {
		if _, err := io.WriteString(conn, "hello\n"); err != nil {
			return err
		}
		_, err := io.ReadAll(conn)
		return err
	}
	l.begin(1, parse(t, "allow=a.example.com,b.c.example.com subnets.allow=203.0.113.2"))
	gone, stays, open := proxied("b.c.example.com"), proxied("a.example.com"), direct(otherAddr+":7")
	l.begin(2, parse(t, "allow=a.example.com subnets.allow=203.0.113.2"))
	if err := answers(gone); err == nil {
		t.Error("a connection to a name that was taken away goes on")
	}
	if err := answers(stays); err != nil {
		t.Errorf("a connection to a name that stays: %v", err)
	}
	if err := echoes(open); err != nil {
		t.Errorf("a connection to a subnet that stays: %v", err)
	}
	// What leads to a subnet that is denied now ends, whatever its name.
	stays = proxied("a.example.com")
	l.begin(3, parse(t, "allow=a.example.com subnets.deny=203.0.113.1"))
	if err := answers(stays); err == nil {
		t.Error("a connection to a denied subnet goes on")
	}
	if err := echoes(open); err == nil {
		t.Error("a connection to a subnet that was taken away goes on")
	}

	l.begin(4, policy.Policy{Mode: policy.AllowAll})
	open = direct(alphaAddr + ":7")
	// The same socket asks before and after.
	ask, err := l.inside.dial("udp", otherAddr+":9000")
	if err != nil {
		t.Fatal(err)
	}
	defer ask.Close()
	ask.SetDeadline(time.Now().Add(5 * time.Second))
	if err := echoes(ask); err != nil {
		t.Fatal(err)
	}
	l.begin(5, policy.Policy{Mode: policy.DenyAll})
	l.took()
	if err := echoes(open); err == nil {
		t.Error("a direct connection goes on under deny-all")
	}
	if err := echoes(ask); err == nil {
		t.Error("a UDP socket goes on under deny-all")
	}
	if hits := l.took(); len(hits) > 0 {
		t.Errorf("reached: %q", hits)
	}
	l.begin(6, policy.Policy{Mode: policy.AllowAll})
	if err := echoes(direct(alphaAddr + ":7")); err != nil {
		t.Errorf("after deny-all: %v", err)
	}
}

// A subnet that is allowed now is reached from every port: also from one whose last connection went to PID 1, when
// the subnet was not allowed, and which the kernel still redirects.
func TestPortsThatWereRedirectedReachAnAllowedSubnet(t *testing.T) {
	l := newLab(t)
	for i, to := range []string{"80", "22"} {
		l.begin(int64(2*i+1), parse(t, "allow=one.a.test"))
		conn, err := l.inside.dial("tcp", otherAddr+":"+to)
		if err != nil {
			t.Fatal(err)
		}
		// Reset by PID 1, so that the port is free at once, and the kernel tracks its flow for some seconds.
		if got := ask(conn, "GET / HTTP/1.1\r\nHost: b.test\r\n\r\n"); got != refusedText {
			t.Errorf("port %s before: %q", to, got)
		}
		conn.Close()
		l.begin(int64(2*i+2), parse(t, "allow=one.a.test subnets.allow="+otherAddr))
		conn, err = l.inside.dialFrom("tcp", otherAddr+":"+to, &net.Dialer{LocalAddr: conn.LocalAddr()})
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if to == "22" { // whose server speaks first
			said, err := bufio.NewReader(conn).ReadString('\n')
			if said != "SSH-2.0-lab\r\n" {
				t.Errorf("port %s: %q, %v", to, said, err)
			}
		} else if got, want := ask(conn, "GET / HTTP/1.1\r\nHost: b.test\r\n\r\n"), "http "+otherAddr+":80 b.test"; got != want {
			t.Errorf("port %s: %q, want %q", to, got, want)
		}
	}
}

// echoes sends a word and waits for it.
func echoes(conn net.Conn) error {
	conn.SetDeadline(time.Now().Add(20 * time.Second))
	if _, err := io.WriteString(conn, "ping"); err != nil {
		return err
	}
	_, err := io.ReadFull(conn, make([]byte, 4))
	return err
}

// Published ports answer from outside under every policy; others don't, and nobody makes
// "an answer" of what is none.
func TestPublishedPortsAnswer(t *testing.T) {
	l := newLab(t, 3000)
	for _, port := range []string{"3000", "3001"} {
		for _, host := range []string{insideAddr, inside6} {
			var listener net.Listener
			var err error
			l.inside.do(func() { listener, err = net.Listen("tcp", net.JoinHostPort(host, port)) })
			if err != nil {
				t.Fatal(err)
			}
			defer listener.Close()
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
	}
	var kept []net.Conn
	for version, text := range []string{"", "deny-all", "allow-all", "public-only", "allow=a.example.com", "subnets.deny=10.99.0.0/24,fd99::/64"} {
		if text != "" {
			l.begin(int64(version), parse(t, text))
		}
		for _, host := range []string{insideAddr, inside6} {
			conn, err := l.outside.dial("tcp", net.JoinHostPort(host, "3000"))
			if err != nil {
				t.Errorf("%q: a published port: %v", text, err)
				continue
			}
			defer conn.Close()
			kept = append(kept, conn)
			conn, err = l.outside.dialFrom("tcp", net.JoinHostPort(host, "3001"), &net.Dialer{Timeout: 100 * time.Millisecond})
			if err == nil {
				conn.Close()
				t.Errorf("%q: a port that is not published answers", text)
			}
		}
		for i, conn := range kept {
			if err := echoes(conn); err != nil {
				t.Errorf("%q: connection %d: %v", text, i, err)
			}
		}
	}
}

// They answer the gateway, where connections through the engine's proxy come from, and those
// that the engine masquerades, and addresses beyond; but no other in the sandbox's own
// networks.
func TestPublishedPortsRefuseNeighbours(t *testing.T) {
	l := newLab(t, 3000)
	const neighbour6 = "fd99::77"
	l.outside.ip("addr add " + neighbour6 + "/64 dev out0 nodad")
	const linkLocal, linkLocalOut = "fe80::2", "fe80::1"
	l.outside.ip("addr add " + linkLocalOut + "/64 dev out0 nodad")
	l.inside.ip("addr add " + linkLocal + "/64 dev eth0 nodad")
	listener := l.inside.listen("tcp", ":3000")
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() { defer conn.Close(); io.Copy(conn, conn) }()
		}
	}()
	for version, text := range []string{"", "deny-all", "allow-all", "public-only", "allow=a.example.com", "subnets.allow=10.99.0.0/24,fd99::/64"} {
		if text != "" {
			l.begin(int64(version), parse(t, text))
		}
		for _, tt := range []struct {
			from, to string
			answers  bool
		}{
			{gatewayAddr, insideAddr, true},
			{gateway6, inside6, true},
			{alphaAddr, insideAddr, true},
			{alpha6, inside6, true},
			{resolverIP, insideAddr, false},
			{neighbour6, inside6, false},
			{linkLocalOut + "%out0", linkLocal + "%out0", false},
		} {
			from := netip.MustParseAddr(tt.from)
			d := &net.Dialer{Timeout: 10 * time.Second, LocalAddr: &net.TCPAddr{IP: from.AsSlice(), Zone: from.Zone()}}
			if !tt.answers {
				d.Timeout = 100 * time.Millisecond
			}
			conn, err := l.outside.dialFrom("tcp", net.JoinHostPort(tt.to, "3000"), d)
			if err == nil {
				err = echoes(conn)
				conn.Close()
			}
			if (err == nil) != tt.answers {
				t.Errorf("%q: from %s: %v; want an answer: %v", text, tt.from, err, tt.answers)
			}
		}
	}
}

// Routers send a packet with a routing header to addresses in the header, which rules do not
// look at.
func TestNoRoutingHeaderLeaves(t *testing.T) {
	l := newLab(t)
	l.neighbours()
	l.inside.ip("-6 neigh replace " + alpha6 + " lladdr 02:00:00:00:00:09 dev eth0 nud permanent")
	first, last := netip.MustParseAddr(gateway6).As16(), netip.MustParseAddr(alpha6).As16()
	// A segment routing header (RFC 8754) with two segments, the last of which comes first.
	header := slices.Concat([]byte{0, 4, 4, 1, 1, 0, 0, 0}, last[:], first[:])
	for version, text := range []string{"", "deny-all", "subnets.allow=" + gateway6 + "/64," + alpha6, "allow-all"} {
		if text != "" {
			l.begin(int64(version), parse(t, text))
		}
		for _, with := range []bool{false, true} {
			frames := l.frames()
			d := &net.Dialer{Control: func(_, _ string, c syscall.RawConn) (err error) {
				c.Control(func(fd uintptr) {
					if with {
						err = unix.SetsockoptString(int(fd), unix.IPPROTO_IPV6, unix.IPV6_RTHDR, string(header))
					}
				})
				return err
			}}
			conn, err := l.inside.dialFrom("udp", "["+alpha6+"]:9", d)
			if err != nil {
				t.Fatal(err)
			}
			for range 3 { // a busy machine drops packets
				io.WriteString(conn, "word")
			}
			conn.Close()
			sent := slices.ContainsFunc(frames(), func(a netip.Addr) bool { return a.String() == gateway6 || a.String() == alpha6 })
			if want := !with && version > 1; sent != want {
				t.Errorf("%q: a packet left: %v; with a routing header: %v", text, sent, with)
			}
		}
	}
}

// A process can bind an IPv6 address that is another's, and send itself packets in its
// name: what it then sends there is an answer to the kernel's connection tracking.
func TestForgedFlowsDoNotLeave(t *testing.T) {
	l := newLab(t, 9000)
	for version, text := range []string{"", "deny-all", "allow=a.example.com"} {
		if text != "" {
			l.begin(int64(version), parse(t, text))
		}
		l.took()
		free := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
			return c.Control(func(fd uintptr) { unix.SetsockoptInt(int(fd), unix.SOL_IPV6, unix.IPV6_FREEBIND, 1) })
		}}
		for _, port := range []string{"9000", "9100"} {
			var forger, victim net.PacketConn
			var err error
			l.inside.do(func() {
				forger, err = free.ListenPacket(t.Context(), "udp6", net.JoinHostPort(alpha6, "9000"))
				if err == nil {
					victim, err = net.ListenPacket("udp6", net.JoinHostPort(inside6, port))
				}
			})
			if err != nil {
				t.Fatalf("the attack itself: %v", err)
			}
			// The flow begins with the remote's packet to us...
			to := &net.UDPAddr{IP: net.ParseIP(inside6), Port: int(netip.MustParseAddrPort("[::1]:" + port).Port())}
			forger.WriteTo([]byte("forged"), to)
			victim.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
			victim.ReadFrom(make([]byte, 16)) // it may well not arrive
			// ...and goes on with an answer to it.
			victim.WriteTo([]byte("leak"), &net.UDPAddr{IP: net.ParseIP(alpha6), Port: 9000})
			forger.Close()
			victim.Close()
		}
		if got := l.udp("[" + alpha6 + "]:9000"); got != refusedText {
			t.Errorf("%q: %q", text, got)
		}
		// What comes from the world's own side comes after all that got out before.
		mark, err := l.outside.dial("udp", "["+alpha6+"]:9000")
		if err != nil {
			t.Fatal(err)
		}
		if err := echoes(mark); err != nil {
			t.Fatal(err)
		}
		mark.Close()
		if hits := l.took(); len(hits) != 1 {
			t.Errorf("%q: reached: %q", text, hits)
		}
	}
	l.begin(9, policy.Policy{Mode: policy.AllowAll})
	if got := l.udp("[" + alpha6 + "]:9000"); got != "ping" {
		t.Errorf("the control: %q", got)
	}
}

// The proxy and the filter serve what the kernel redirects to them, and nobody else.
func TestDialledDirectlyTheDoorsAreShut(t *testing.T) {
	l := newLab(t)
	l.begin(1, parse(t, "allow=*.example.com"))
	l.took()
	for _, host := range []string{"127.0.0.1", "::1", insideAddr, "127.0.0.2"} {
		for _, port := range []string{"15001", "15053"} {
			conn, err := l.inside.dial("tcp", net.JoinHostPort(host, port))
			if !errors.Is(err, unix.ECONNREFUSED) {
				t.Errorf("%s:%s: %v, want a refusal", host, port, err)
			}
			if err == nil {
				conn.Close()
			}
		}
		conn, err := l.inside.dial("udp", net.JoinHostPort(host, "15053"))
		if err != nil {
			continue
		}
		conn.SetDeadline(time.Now().Add(5 * time.Minute))
		b := dnsmessage.NewBuilder(nil, dnsmessage.Header{ID: 7})
		b.StartQuestions()
		b.Question(dnsmessage.Question{Name: dnsmessage.MustNewName("a.example.com."), Type: dnsmessage.TypeA, Class: dnsmessage.ClassINET})
		message, _ := b.Finish()
		conn.Write(message)
		if n, err := conn.Read(make([]byte, 512)); !errors.Is(err, unix.ECONNREFUSED) {
			t.Errorf("%s: %d bytes from the filter, %v, want a refusal", host, n, err)
		}
		conn.Close()
	}
	if hits := l.took(); len(hits) > 0 {
		t.Errorf("reached: %q", hits)
	}
	// And their ports can't be taken.
	for _, network := range []string{"127.0.0.1:15001", "[::1]:15001", "0.0.0.0:15001", "127.0.0.1:15053"} {
		l.inside.do(func() {
			if listener, err := net.Listen("tcp", network); err == nil {
				listener.Close()
				t.Errorf("%s can be taken", network)
			}
		})
	}
}

// What the proxy sends to clients is not paced as the host may have it: loopback needs
// that nowhere.
func TestClientsAreNotAnsweredAtAPace(t *testing.T) {
	l := newLab(t)
	// Whatever this host has, the sandbox's default is another one, if it may have any.
	others := "reno"
	var err error
	l.inside.do(func() {
		const setting = "/proc/sys/net/ipv4/tcp_%scongestion_control"
		var all []byte
		if all, err = os.ReadFile(fmt.Sprintf(setting, "allowed_")); err != nil {
			return
		}
		for _, name := range strings.Fields(string(all)) {
			if name != "reno" {
				others = name
			}
		}
		err = os.WriteFile(fmt.Sprintf(setting, ""), []byte(others), 0)
	})
	if err != nil {
		t.Fatal(err)
	}
	l.begin(1, parse(t, "allow=a.example.com"))
	congestion := func(conn net.Conn) (name string) {
		t.Helper()
		raw, err := conn.(*net.TCPConn).SyscallConn()
		if err != nil {
			t.Fatal(err)
		}
		raw.Control(func(fd uintptr) { name, err = unix.GetsockoptString(int(fd), unix.IPPROTO_TCP, unix.TCP_CONGESTION) })
		if err != nil {
			t.Fatal(err)
		}
		return name
	}
	for _, addr := range []string{alphaAddr, alpha6} {
		conn, err := l.inside.dial("tcp", net.JoinHostPort(addr, "443"))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		conn.SetDeadline(time.Now().Add(5 * time.Minute))
		if err := tls.Client(conn, &tls.Config{ServerName: "a.example.com", RootCAs: l.pool}).Handshake(); err != nil {
			t.Fatal(err)
		}
	}
	p := l.enforcer.proxy
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.flows) != 2 {
		t.Fatalf("%d flows, want 2", len(p.flows))
	}
	for f := range p.flows {
		if got := congestion(f.client); got != "reno" {
			t.Errorf("%v: to the client by %q, want reno", f.to, got)
		}
		// The world outside is the host's to choose for.
		if got := congestion(f.server); got != others {
			t.Errorf("%v: to the server by %q, want %q", f.to, got, others)
		}
	}
}

// What was refused is in the record, by name where there is one and by address where the
// kernel refused it.
func TestTheRecordTellsWhatWasDecided(t *testing.T) {
	l := newLab(t)
	if l.enforcer.noLog {
		t.Fatal("the kernel does not tell what it refuses")
	}
	l.begin(1, parse(t, "allow=a.example.com,meta.example.com"))
	for range 2 {
		l.secure(alphaAddr+":443", "a.example.com")
		l.secure(otherAddr+":443", "evil.test")
		l.secure(metaAddr+":443", "meta.example.com")
		l.lookup(resolverIP, "evil.test", dnsmessage.TypeA)
		l.udp(otherAddr + ":9000")
	}
	want := []string{
		"a.example.com 203.0.113.1 443 tcp a.example.com true 2",
		"evil.test 203.0.113.2 443 tcp name false 2",
		"meta.example.com 169.254.169.254 443 tcp protected false 2",
		"evil.test invalid IP 0 dns name false 2",
		" 203.0.113.2 9000 udp name false 2",
	}
	deadline := time.Now().Add(5 * time.Minute)
	for {
		var got []string
		for _, e := range l.enforcer.log.entries().Entries {
			if e.First.IsZero() || e.Last.Before(e.First) {
				t.Errorf("times of %+v", e)
			}
			got = append(got, fmt.Sprintf("%s %s %d %s %s %v %d", e.Name, e.Address, e.Port, e.Protocol, e.Rule, e.Allowed, e.Count))
		}
		missing := slices.DeleteFunc(slices.Clone(want), func(w string) bool { return slices.Contains(got, w) })
		if len(missing) == 0 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("missing %q in %q", missing, got)
		}
		time.Sleep(10 * time.Millisecond)
	}
	if n := l.enforcer.Network(); n.Allowed < 2 || n.Blocked < 8 {
		t.Errorf("%+v", n)
	}
	for i := range 3 * wire.MaxEgress {
		l.enforcer.log.add(decision{name: fmt.Sprint(i), protocol: "dns"})
	}
	if log := l.enforcer.log.entries(); len(log.Entries) != wire.MaxEgress || log.Dropped < wire.MaxEgress || log.Entries[0].Name != fmt.Sprint(3*wire.MaxEgress-1) {
		t.Errorf("%d entries, %d dropped, first %+v", len(log.Entries), log.Dropped, log.Entries[0])
	}
}

// The largest policy that there can be is applied whole.
func TestTheLargestPolicyIsApplied(t *testing.T) {
	l := newLab(t)
	p := policy.Policy{Mode: policy.Custom}
	for i := range policy.MaxEntries {
		six := netip.AddrFrom16([16]byte{0x20, 1, 0xd, 0xb8, byte(i >> 8), byte(i), 1})
		p.Subnets.Allow = append(p.Subnets.Allow, netip.PrefixFrom(six, 64))
		four := netip.AddrFrom4([4]byte{203, 0, byte(i >> 7), byte(i << 1)}) // and its address of NAT64
		p.Subnets.Deny = append(p.Subnets.Deny, netip.PrefixFrom(four, 32))
		six = netip.AddrFrom16([16]byte{0xfd, 1, 0xd, 0xb8, byte(i >> 8), byte(i), 3})
		p.ResolveInto = append(p.ResolveInto, netip.PrefixFrom(six, 64))
		p.Allow = append(p.Allow, policy.Name{Pattern: fmt.Sprintf("n%d.example.com", i)})
	}
	p.Subnets.Allow[0] = netip.MustParsePrefix(otherAddr + "/32")
	begin := time.Now()
	l.begin(1, p)
	t.Logf("applied in %v", time.Since(begin))
	if got := l.udp(otherAddr + ":9000"); got != "ping" {
		t.Errorf("an allowed subnet: %q", got)
	}
	if got := l.udp(alphaAddr + ":9000"); got != refusedText {
		t.Errorf("another: %q", got)
	}
}
