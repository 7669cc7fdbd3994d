package policy_test

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/seed-1a2d6d8f/sandbox/internal/policy"
	"github.com/seed-1a2d6d8f/sandbox/test/harness"
)

// A model decides as the documentation says, in the simplest way: by every entry as it was written.
type model struct {
	names       []policy.Name
	allow, deny []netip.Prefix
	into        []netip.Prefix
	protect     []netip.Prefix // beside those that always are
}

// notPublic are the addresses that are not of the public internet.
var notPublic = func() (all []netip.Prefix) {
	for _, text := range strings.Fields(`0.0.0.0/8 10.0.0.0/8 100.64.0.0/10 127.0.0.0/8 169.254.0.0/16 172.16.0.0/12 192.0.0.0/24 192.168.0.0/16
		198.18.0.0/15 224.0.0.0/4 240.0.0.0/4 168.63.129.16/32 ::/96 64:ff9b:1::/48 100::/64 2001::/32 2002::/16 fc00::/7 fe80::/10 fec0::/10 ff00::/8`) {
		all = append(all, netip.MustParsePrefix(text))
	}
	return all
}()

func within(a netip.Addr, lists ...[]netip.Prefix) bool {
	for _, list := range lists {
		for _, p := range list {
			if p.Contains(a) {
				return true
			}
		}
	}
	return false
}

// name returns the rule for a name: its own, then that of the most labels and the fewest stars.
func (m *model) name(name string) (best string, transform bool) {
	if strings.ContainsFunc(name, func(r rune) bool { return r > '~' }) {
		return "", false
	}
	name = strings.ToLower(strings.TrimSuffix(name, "."))
	if !regexp.MustCompile(`^([a-z0-9_]([a-z0-9_-]*[a-z0-9_])?)(\.[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?)*$`).MatchString(name) || regexp.MustCompile(`(^|\.)([0-9]+|0x[^.]*)$`).MatchString(name) {
		return "", false
	}
	score := func(pattern string) int {
		if !strings.Contains(pattern, "*") {
			return 1 << 20
		}
		return (strings.Count(pattern, ".")+1)<<10 - strings.Count(pattern, "*")
	}
	for _, n := range m.names {
		labels := strings.Split(regexp.QuoteMeta(strings.ToLower(strings.TrimSuffix(n.Pattern, "."))), `\.`)
		for i, l := range labels {
			switch {
			case l == `\*` && i == 0:
				labels[i] = `[^.]+(\.[^.]+)*`
			case l == `\*`:
				labels[i] = `[^.]+`
			}
		}
		pattern := strings.ToLower(strings.TrimSuffix(n.Pattern, "."))
		if !regexp.MustCompile("^" + strings.Join(labels, `\.`) + "$").MatchString(name) {
			continue
		}
		switch {
		case pattern == best:
			transform = transform || n.Transform
		case best == "" || score(pattern) > score(best) || score(pattern) == score(best) && pattern < best:
			best, transform = pattern, n.Transform
		}
	}
	return best, transform
}

func (m *model) open() bool {
	return slices.ContainsFunc(m.names, func(n policy.Name) bool { return n.Pattern == "*" })
}

func (m *model) addr(a netip.Addr) policy.Verdict {
	a = a.Unmap()
	four := a // what a translator makes of it
	if netip.MustParsePrefix("64:ff9b::/96").Contains(a) {
		four = netip.AddrFrom4([4]byte(a.AsSlice()[12:]))
	}
	switch {
	case within(a, m.deny), within(four, m.deny):
		return policy.Denied
	case within(a, m.allow):
		return policy.Subnet
	case within(a, notPublic, m.protect), within(four, notPublic, m.protect):
		return policy.Protected
	case m.open():
		return policy.Open
	case len(m.names) > 0:
		return policy.ByName
	}
	return policy.Closed
}

// answer reports whether an address may be in the answer for an allowed name.
func (m *model) answer(a netip.Addr) bool {
	switch m.addr(a) {
	case policy.Subnet, policy.Open, policy.ByName:
		return true
	case policy.Protected:
		return within(a.Unmap(), m.into)
	}
	return false
}

// generator makes policies whose parts meet often.
type generator struct{ *rand.Rand }

func (g generator) of(list ...string) string { return list[g.IntN(len(list))] }

func (g generator) pattern() string {
	labels := make([]string, 1+g.IntN(4))
	for i := range labels {
		labels[i] = g.of("a", "b", "c-d", "*", "*", "x_1", "bücher")
	}
	if len(labels) > 1 && labels[len(labels)-1] != "*" {
		labels[len(labels)-1] = g.of("com", "test")
	}
	return g.cased(strings.Join(labels, "."))
}

func (g generator) cased(s string) string {
	if g.IntN(4) == 0 {
		s = strings.ToUpper(s)
	}
	if g.IntN(6) == 0 {
		s += "."
	}
	return s
}

func (g generator) name() string {
	if g.IntN(12) == 0 {
		return g.of("", ".", "a..com", "1.2.3.4", "a.1", "0x7f.com", "a.0x7f", "::1", "[::1]", "-a.com", "a-.com", "a b.com", "a.com:80", "a@b.com", "\u212a.com", "*.com", "a.com\x00", "bücher.com", "a.com..", "xn--bcher-kva-.com")
	}
	labels := make([]string, 1+g.IntN(5))
	for i := range labels {
		labels[i] = g.of("a", "b", "c-d", "x_1", "q", "xn--bcher-kva")
	}
	labels[len(labels)-1] = g.of("com", "test", "a", "b")
	return g.cased(strings.Join(labels, "."))
}

func (g generator) addr() netip.Addr {
	switch g.IntN(7) {
	case 6:
		four := g.four().As4()
		return netip.AddrFrom16([16]byte{0, 0x64, 0xff, 0x9b, 12: four[0], four[1], four[2], four[3]})
	case 0:
		p := notPublic[g.IntN(len(notPublic))]
		return g.near(p)
	case 1:
		return netip.AddrFrom16(g.four().As16()) // mapped
	case 2, 3:
		return g.six()
	}
	return g.four()
}

func (g generator) four() netip.Addr {
	return netip.AddrFrom4([4]byte{[]byte{203, 10, 11, 192, 255, 0}[g.IntN(6)], []byte{0, 168, 255}[g.IntN(3)], byte(g.IntN(4)), byte(g.IntN(8))})
}

func (g generator) six() netip.Addr {
	return netip.AddrFrom16([16]byte{0x20, 0x01, 0x0d, 0xb8, byte(g.IntN(2)), byte(g.IntN(4)), 14: byte(g.IntN(2)), 15: byte(g.IntN(8))})
}

// near returns an address at an edge of a subnet: its first or last, or one beside them.
func (g generator) near(p netip.Prefix) netip.Addr {
	b := p.Masked().Addr().AsSlice()
	if g.IntN(2) == 0 {
		for i := p.Bits(); i < len(b)*8; i++ {
			b[i/8] |= 0x80 >> (i % 8)
		}
	}
	a, _ := netip.AddrFromSlice(b)
	if beside := []netip.Addr{a, a.Next(), a.Prev()}[g.IntN(3)]; beside.IsValid() {
		return beside
	}
	return a
}

func (g generator) prefixes() (all []netip.Prefix) {
	for range g.IntN(5) {
		a := g.addr().Unmap()
		bits := []int{0, 4, 8, 16, 24, 30, 31, 32, 40, 64, 127, 128}[g.IntN(12)]
		all = append(all, netip.PrefixFrom(a, min(bits, a.BitLen())))
	}
	return all
}

// Decisions of generated policies are those of a model that knows neither merged subnets nor an order
// of patterns.
func TestDecisionsAreThoseOfAModel(t *testing.T) {
	t.Parallel()
	for _, seed := range harness.Seeds(1, 50) {
		g := generator{rand.New(rand.NewPCG(34, seed))}
		for n := range 1000 {
			g.decide(t, n)
		}
	}
}

func (g generator) decide(t *testing.T, n int) {

	m := &model{allow: g.prefixes(), deny: g.prefixes(), into: g.prefixes(), protect: g.prefixes()}
	for range g.IntN(7) {
		pattern := g.pattern()
		m.names = append(m.names, policy.Name{Pattern: pattern, Transform: g.IntN(4) == 0 && strings.TrimSuffix(pattern, ".") != "*"})
	}
	p := policy.Policy{Mode: policy.Custom, Allow: m.names, Subnets: policy.Subnets{Allow: m.allow, Deny: m.deny}, ResolveInto: m.into}
	canon, err := p.Canon()
	if err != nil {
		t.Fatalf("%v: %v", p, err)
	}
	if canon.Mode == policy.Custom {
		again, err := policy.Parse(canon.String())
		if err != nil || again.String() != canon.String() {
			t.Fatalf("%q is parsed as %q, %v", canon, again, err)
		}
	}
	for i, name := range m.names { // as the model compares them
		m.names[i].Pattern = strings.ReplaceAll(strings.TrimSuffix(strings.ToLower(name.Pattern), "."), "bücher", "xn--bcher-kva")
	}
	rules, err := canon.Compile(m.protect...)
	if err != nil {
		t.Fatalf("%q: %v", canon, err)
	}
	fail := func(what any, got, want string) {
		t.Fatalf("policy %d, %q, protected %v: %v: %s, want %s", n, canon, m.protect, what, got, want)
	}
	for range 40 {
		name := g.name()
		rule, ok := rules.Name(name)
		want, transform := m.name(name)
		if ok != (want != "") || ok && (rule.Pattern != want || rule.Transform != transform) {
			fail(fmt.Sprintf("%q", name), fmt.Sprint(rule, ok), fmt.Sprint(want, transform))
		}
	}
	for range 60 {
		a := g.addr()
		if lists := slices.Concat(m.allow, m.deny, m.into, m.protect); len(lists) > 0 && g.IntN(2) == 0 {
			a = g.near(lists[g.IntN(len(lists))])
		}
		if got, want := rules.Addr(a), m.addr(a); got != want {
			fail(a, string(got), string(want))
		}
		if got, want := rules.Into(a), m.answer(a); got != want {
			fail(a, fmt.Sprint("may be an answer: ", got), fmt.Sprint(want))
		}
	}
}
