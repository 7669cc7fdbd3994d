//go:build linux

package egress

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/seed-1a2d6d8f/sandbox/internal/policy"
	"github.com/seed-1a2d6d8f/sandbox/test/harness"
)

// What generated policies let out, by name and by address and at each port, is what a model of their
// rules says, and so are the addresses in answers, and the connections that live on when the policy
// changes. One name resolves to another address each time. The patterns here are names, or "*." and a
// domain; package policy compares others.
func TestGeneratedPoliciesLetOutWhatAModelSays(t *testing.T) {
	l := newLab(t)
	world := map[string][]string{
		"one.a.test": {alphaAddr}, "two.a.test": {otherAddr, alphaAddr}, "a.test": {otherAddr}, "b.test": {privateAddr}, "deep.one.a.test": {privateAddr, alphaAddr},
		"meta.b.test": {metaAddr}, "six.b.test": {alpha6}, "none.b.test": nil,
		"xn--bcher-kva.a.test": {alphaAddr}, "lo.b.test": {"127.0.0.1", "::1", "::ffff:" + metaAddr},
		"outside.test": {otherAddr, metaAddr}, "alias.a.test": {otherAddr, metaAddr}, "rebind.a.test": nil,
	}
	l.mu.Lock()
	l.names = maps.Clone(world)
	l.names["alias.a.test"] = []string{"-> outside.test"}
	l.mu.Unlock()
	var names []string
	for name := range world {
		names = append(names, name)
	}
	slices.Sort(names)
	addrs := []string{alphaAddr, otherAddr, privateAddr, metaAddr, gatewayAddr}
	ports := []string{"80", "81"} // the second is closed
	version := int64(0)
	for _, seed := range harness.Seeds(2, 50) {
		l.model(rand.New(rand.NewPCG(34, seed)), &version, world, names, addrs, ports)
	}
}

func unmapped(addr string) string { return netip.MustParseAddr(addr).Unmap().String() }

// liveFlow is a connection that PID 1 made for a client.
type liveFlow struct {
	conn       net.Conn
	name, addr string
}

func (l *lab) model(random *rand.Rand, version *int64, world map[string][]string, names, addrs, ports []string) {
	t := l.t
	some := func(of []string, n int) (picked []string) {
		for range random.IntN(n + 1) {
			picked = append(picked, of[random.IntN(len(of))])
		}
		return picked
	}
	var live []liveFlow
	defer func() {
		for _, f := range live {
			f.conn.Close()
		}
	}()
	subnets := []string{alphaAddr, otherAddr, privateAddr, metaAddr, "203.0.113.0/24", "192.168.0.0/16", "169.254.0.0/16", "203.0.113.0/31", "2001:db8::/32"}
	keys := []string{"allow", "subnets.allow", "subnets.deny", "resolve-into"}
	someNames := func() []string {
		return some([]string{"one.a.test", "*.a.test", "a.test", "b.test", "*.b.test", "*.one.a.test", "bücher.a.test", "ONE.A.test."}, 3)
	}
	var lists map[string][]string
	for range 25 {
		// Every second policy is the one before with another list.
		if only := keys[random.IntN(len(keys))]; lists == nil || random.IntN(2) == 0 {
			lists = map[string][]string{"allow": someNames(), "subnets.allow": some(subnets, 2), "subnets.deny": some(subnets, 1), "resolve-into": some(subnets, 1)}
		} else if only == "allow" {
			lists[only] = someNames()
		} else {
			lists[only] = some(subnets, 1)
		}
		allow := lists["allow"]
		var text []string
		for _, key := range keys {
			if len(lists[key]) > 0 {
				text = append(text, key+"="+strings.Join(lists[key], ","))
			}
		}
		if len(text) == 0 {
			text = []string{"deny-all"}
		}
		in := func(key, addr string) bool {
			return slices.ContainsFunc(lists[key], func(s string) bool {
				p, _ := policy.ParsePrefix(s)
				return p.Contains(netip.MustParseAddr(addr))
			})
		}
		protected := func(addr string) bool { return slices.Contains([]string{privateAddr, metaAddr, gatewayAddr}, addr) }
		named := func(name string) bool {
			return slices.ContainsFunc(allow, func(p string) bool {
				p = strings.TrimSuffix(strings.ReplaceAll(strings.ToLower(p), "bücher", "xn--bcher-kva"), ".")
				rest, star := strings.CutPrefix(p, "*")
				return name == p || star && strings.HasSuffix(name, rest)
			})
		}
		// Whether a name may lead to an address, and where a request to an address for a name arrives.
		leads := func(addr string) bool {
			addr = unmapped(addr)
			return !netip.MustParseAddr(addr).IsLoopback() && !in("subnets.deny", addr) && (in("subnets.allow", addr) || !protected(addr) || in("resolve-into", addr))
		}
		arrives := func(addr, name string) string {
			switch {
			case in("subnets.deny", addr):
				return ""
			case in("subnets.allow", addr):
				return addr
			case !named(name):
				return ""
			}
			good := slices.DeleteFunc(slices.Clone(world[name]), func(a string) bool { return !leads(a) })
			if slices.Contains(good, addr) {
				return addr
			} else if len(good) > 0 {
				return unmapped(good[0])
			}
			return ""
		}
		*version++
		l.begin(*version, parse(t, strings.Join(text, " ")))
		// What PID 1 has let out goes on if it would be let out now.
		live = slices.DeleteFunc(live, func(f liveFlow) bool {
			may := !in("subnets.deny", f.addr) && (in("subnets.allow", f.addr) || named(f.name) && leads(f.addr))
			got := ask(f.conn, "GET / HTTP/1.1\r\nHost: "+f.name+"\r\n\r\n")
			if may != strings.HasPrefix(got, "http ") {
				t.Errorf("%q: a connection for %s to %s: %q, want it to live %t", text, f.name, f.addr, got, may)
			}
			if !strings.HasPrefix(got, "http ") || !may {
				f.conn.Close()
				return true
			}
			return false
		})
		for range 16 {
			world["rebind.a.test"] = []string{addrs[random.IntN(len(addrs))]}
			l.mu.Lock()
			l.names["rebind.a.test"] = world["rebind.a.test"]
			l.mu.Unlock()
			addr, name, port := addrs[random.IntN(len(addrs))], names[random.IntN(len(names))], ports[random.IntN(len(ports))]
			spelled := []string{name, name, strings.ToUpper(name), name + "."}[random.IntN(4)]
			conn, err := l.inside.dial("tcp", net.JoinHostPort(addr, port))
			got := refusedText
			if err == nil {
				got = ask(conn, "GET / HTTP/1.1\r\nHost: "+spelled+"\r\n\r\n")
				if to := arrives(addr, name); strings.HasPrefix(got, "http ") && to != "" && len(live) < 8 && !in("subnets.allow", addr) {
					live = append(live, liveFlow{conn, name, to})
				} else {
					conn.Close()
				}
			}
			want := refusedText
			if to := arrives(addr, name); to != "" && port == "80" {
				want = fmt.Sprintf("http %s:80 %s", to, spelled)
				if to == alpha6 {
					want = fmt.Sprintf("http [%s]:80 %s", to, spelled)
				}
			}
			if got != want {
				t.Errorf("%q: %s at %s:%s: %q, want %q", text, name, addr, port, got, want)
			}
			for kind, four := range map[dnsmessage.Type]bool{dnsmessage.TypeA: true, dnsmessage.TypeAAAA: false} {
				want := "RCodeNameError"
				if named(name) {
					want = strings.Join(slices.DeleteFunc(slices.Clone(world[name]), func(a string) bool {
						return !leads(a) || netip.MustParseAddr(a).Is4() != four
					}), " ")
					if name == "alias.a.test" {
						want = strings.TrimSpace("TypeCNAME " + want)
					}
				}
				got := l.lookup(resolverIP, strings.TrimSuffix(spelled, "."), kind)
				if got != want {
					t.Errorf("%q: the answer for %s, %v: %q, want %q", text, name, kind, got, want)
				}
			}
		}
	}
}
