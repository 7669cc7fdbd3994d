//go:build linux

package egress

import (
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/seed-1a2d6d8f/sandbox/internal/policy"
)

// What generated policies let out, by name and by address and at each port, is what a model of their
// rules says, and so are the addresses in answers. The patterns here are names, or "*." and a domain;
// package policy compares others.
func TestGeneratedPoliciesLetOutWhatAModelSays(t *testing.T) {
	l := newLab(t)
	world := map[string][]string{
		"one.a.test": {alphaAddr}, "two.a.test": {otherAddr, alphaAddr}, "a.test": {otherAddr}, "b.test": {privateAddr}, "deep.one.a.test": {privateAddr, alphaAddr},
		"meta.b.test": {metaAddr}, "six.b.test": {alpha6}, "none.b.test": nil,
	}
	l.mu.Lock()
	l.names = world
	l.mu.Unlock()
	var names []string
	for name := range world {
		names = append(names, name)
	}
	slices.Sort(names)
	addrs := []string{alphaAddr, otherAddr, privateAddr, metaAddr, gatewayAddr}
	ports := []string{"80", "81"} // the second is closed
	random := rand.New(rand.NewPCG(34, 6))
	some := func(of []string, n int) (picked []string) {
		for range random.IntN(n + 1) {
			picked = append(picked, of[random.IntN(len(of))])
		}
		return picked
	}
	subnets := []string{alphaAddr, otherAddr, privateAddr, metaAddr, "203.0.113.0/24", "192.168.0.0/16", "169.254.0.0/16", "203.0.113.0/31"}
	for n := range 25 {
		allow := some([]string{"one.a.test", "*.a.test", "a.test", "b.test", "*.b.test", "*.one.a.test"}, 3)
		lists := map[string][]string{"allow": allow, "subnets.allow": some(subnets, 2), "subnets.deny": some(subnets, 1), "resolve-into": some(subnets, 1)}
		var text []string
		for _, key := range []string{"allow", "subnets.allow", "subnets.deny", "resolve-into"} {
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
				rest, star := strings.CutPrefix(p, "*")
				return name == p || star && strings.HasSuffix(name, rest)
			})
		}
		// Whether a name may lead to an address, and where a request to an address for a name arrives.
		leads := func(addr string) bool {
			return !in("subnets.deny", addr) && (in("subnets.allow", addr) || !protected(addr) || in("resolve-into", addr))
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
				return good[0]
			}
			return ""
		}
		l.begin(int64(n+1), parse(t, strings.Join(text, " ")))
		for range 16 {
			addr, name, port := addrs[random.IntN(len(addrs))], names[random.IntN(len(names))], ports[random.IntN(len(ports))]
			got := l.http(net.JoinHostPort(addr, port), "GET / HTTP/1.1\r\nHost: "+name+"\r\nConnection: close\r\n\r\n")
			want := refusedText
			if to := arrives(addr, name); to != "" && port == "80" {
				want = fmt.Sprintf("http %s:80 %s", to, name)
				if to == alpha6 {
					want = fmt.Sprintf("http [%s]:80 %s", to, name)
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
				}
				got := l.lookup(resolverIP, name, kind)
				if got == refusedText { // its port was that of a query of PID 1's a moment ago
					got = l.lookup(resolverIP, name, kind)
				}
				if got != want {
					t.Errorf("%q: the answer for %s, %v: %q, want %q", text, name, kind, got, want)
				}
			}
		}
	}
}
