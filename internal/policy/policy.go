// Package policy represents a sandbox's network policy and evaluates it. The library
// validates and stores the policy, PID 1 of the sandbox enforces it, and both use this
// package's rules. It opens no connection and depends on neither.
//
// Rules apply in this order: a denied subnet is never reachable; an allowed subnet is
// reachable by any protocol; a protected address (private, link-local, the engine's
// machine) is not reachable; every other address is reachable through an allowed name.
package policy

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// MaxEntries bounds each list of a policy. With 5,000 subnets the kernel refuses the
// nftables transaction ("message too long"); 1,000 in every list were applied.
const MaxEntries = 1000

// MaxText bounds the textual form of a policy, in bytes. It is stored in a label, which
// the engine returns in every list.
const MaxText = 128 << 10

// Ports on which PID 1 itself listens, on the loopback addresses: the kernel redirects connections
// and DNS queries to them. What is sent there directly is refused.
const (
	ProxyPort = 15001 // TCP
	DNSPort   = 15053 // TCP and UDP
)

// Mode selects a fixed policy, or one made of lists.
type Mode string

const (
	// AllowAll permits every address except link-local ones and cloud metadata services.
	AllowAll Mode = "allow-all"
	// PublicOnly permits the public internet by any protocol, and no protected address.
	PublicOnly Mode = "public-only"
	// DenyAll permits no outgoing connection. Published ports still accept connections.
	DenyAll Mode = "deny-all"
	// Custom permits what its lists name. Only this mode has lists.
	Custom Mode = "custom"
)

// A Policy says what a sandbox may connect to. [Policy.Canon] returns the canonical form
// that the rest of this package expects. The zero Policy has no mode and is invalid.
type Policy struct {
	Mode        Mode           `json:"mode"`
	Allow       []Name         `json:"allow,omitempty"`
	Subnets     Subnets        `json:"subnets,omitzero"`
	ResolveInto []netip.Prefix `json:"resolve_into,omitempty"` // protected subnets that allowed names may resolve into
}

// A Name is a pattern of domain names. The label "*" matches one or more labels if it is
// the first and exactly one elsewhere. "*" alone is every name and every public address;
// "*.example.com" does not match example.com.
type Name struct {
	Pattern string `json:"pattern"`
	// Transform says that PID 1 terminates TLS for these names and sets headers.
	Transform bool `json:"transform,omitempty"`
}

// Subnets are allowed or denied by address, whatever name led there.
type Subnets struct {
	Allow []netip.Prefix `json:"allow,omitempty"`
	Deny  []netip.Prefix `json:"deny,omitempty"`
}

// Any is the pattern that matches every name.
const Any = "*"

// LooksUp reports whether PID 1 resolves names under the policy. If so it needs two things
// that it must not take from inside the sandbox: the addresses of the engine's machine, and
// the DNS servers to ask.
func (p Policy) LooksUp() bool { return p.Mode == PublicOnly || len(p.Allow) > 0 }

// Canon returns p in canonical form: names in lower case, without the final dot and in
// ASCII; every list sorted, without duplicates, and subnets masked and merged. A custom
// policy without any list is DenyAll. The error names every problem.
func (p Policy) Canon() (Policy, error) {
	var problems []error
	bad := func(format string, args ...any) { problems = append(problems, fmt.Errorf(format, args...)) }
	size := func(list string, n int) {
		if n > MaxEntries {
			bad("%s: %d entries: use at most %d", list, n, MaxEntries)
		}
	}
	size("allow", len(p.Allow))
	size("subnets.allow", len(p.Subnets.Allow))
	size("subnets.deny", len(p.Subnets.Deny))
	size("resolve-into", len(p.ResolveInto))

	out := Policy{Mode: p.Mode}
	names, err := canonNames(p.Allow)
	if err != nil {
		problems = append(problems, err)
	}
	out.Allow = names
	prefixes := func(list string, in []netip.Prefix) []netip.Prefix {
		for _, f := range in {
			if err := checkPrefix(f); err != nil {
				bad("%s: %w", list, err)
			}
		}
		return merge(in)
	}
	out.Subnets.Allow = prefixes("subnets.allow", p.Subnets.Allow)
	out.Subnets.Deny = prefixes("subnets.deny", p.Subnets.Deny)
	out.ResolveInto = prefixes("resolve-into", p.ResolveInto)

	lists := len(out.Allow)+len(out.Subnets.Allow)+len(out.Subnets.Deny)+len(out.ResolveInto) > 0
	switch p.Mode {
	case AllowAll, PublicOnly, DenyAll:
		if lists {
			bad("%s takes no names and no subnets", p.Mode)
		}
	case Custom:
		if !lists {
			out.Mode = DenyAll
		}
	default:
		bad("%q is not a mode: use %s, %s, %s or %s", p.Mode, AllowAll, PublicOnly, DenyAll, Custom)
	}
	if n := len(out.String()); n > MaxText && len(problems) == 0 {
		bad("the policy has %d bytes: use at most %d", n, MaxText)
	}
	if len(problems) > 0 {
		return Policy{}, errors.Join(problems...)
	}
	return out, nil
}

// canonNames returns the canonical form of names.
func canonNames(in []Name) ([]Name, error) {
	var out []Name
	var problems []error
	for _, n := range in {
		switch pattern, err := canonPattern(n.Pattern); {
		case err != nil:
			problems = append(problems, err)
		case n.Transform && pattern == Any:
			problems = append(problems, fmt.Errorf("%q cannot be transformed: it includes every address; list the names", n.Pattern))
		default:
			out = append(out, Name{pattern, n.Transform})
		}
	}
	slices.SortFunc(out, func(a, b Name) int { return strings.Compare(a.Pattern, b.Pattern) })
	return joinNames(out), errors.Join(problems...)
}

// joinNames merges equal neighbours. The result is transformed if either was.
func joinNames(in []Name) []Name {
	var out []Name
	for _, n := range in {
		if last := len(out) - 1; last >= 0 && out[last].Pattern == n.Pattern {
			out[last].Transform = out[last].Transform || n.Transform
			continue
		}
		out = append(out, n)
	}
	return out
}

func checkPrefix(f netip.Prefix) error {
	if !f.IsValid() {
		return errors.New("invalid subnet")
	}
	if f.Addr().Is4In6() && f.Bits() < 96 {
		return fmt.Errorf("subnet %s spans IPv6 and mapped IPv4 addresses: write two", f)
	}
	return nil
}

// ParsePrefix parses a subnet in CIDR notation, or a single address. Host bits are
// cleared.
func ParsePrefix(s string) (netip.Prefix, error) {
	s = strings.TrimSpace(s)
	f, err := netip.ParsePrefix(s)
	if err != nil {
		a, e := netip.ParseAddr(s)
		if e != nil || a.Zone() != "" {
			return netip.Prefix{}, fmt.Errorf("%q is neither a subnet, such as 10.0.0.0/8 or fd00::/8, nor an address", s)
		}
		f = netip.PrefixFrom(a, a.BitLen())
	}
	if err := checkPrefix(f); err != nil {
		return netip.Prefix{}, err
	}
	return unmapPrefix(f).Masked(), nil
}

// unmapPrefix converts a prefix of IPv4-mapped IPv6 addresses to IPv4.
func unmapPrefix(f netip.Prefix) netip.Prefix {
	if f.Addr().Is4In6() && f.Bits() >= 96 {
		return netip.PrefixFrom(f.Addr().Unmap(), f.Bits()-96)
	}
	return f
}

// merge returns the fewest subnets that cover the same addresses, sorted. Invalid ones are
// dropped.
func merge(in []netip.Prefix) []netip.Prefix {
	var sorted []netip.Prefix
	for _, f := range in {
		if checkPrefix(f) == nil {
			sorted = append(sorted, unmapPrefix(f).Masked())
		}
	}
	slices.SortFunc(sorted, func(a, b netip.Prefix) int {
		return cmp.Or(a.Addr().Compare(b.Addr()), cmp.Compare(a.Bits(), b.Bits()))
	})
	var out []netip.Prefix
	for _, f := range sorted {
		// The sort puts a subnet before those it contains.
		if n := len(out); n > 0 && out[n-1].Contains(f.Addr()) && out[n-1].Bits() <= f.Bits() {
			continue
		}
		out = append(out, f)
		for len(out) > 1 {
			a, b := out[len(out)-2], out[len(out)-1]
			both := netip.PrefixFrom(a.Addr(), a.Bits()-1)
			if a.Bits() == 0 || a.Bits() != b.Bits() || a == b || both.Masked().Addr() != a.Addr() || !both.Contains(b.Addr()) {
				break
			}
			out = append(out[:len(out)-2], both)
		}
	}
	return out
}

// Names of the lists in the textual form.
const (
	keyAllow     = "allow"
	keyTransform = "transform"
	keySubnets   = "subnets.allow"
	keyDeny      = "subnets.deny"
	keyInto      = "resolve-into"
)

// String is the textual form: the mode, or the lists of a custom policy.
//
//	allow=*.example.com,example.org subnets.allow=10.1.0.0/16 subnets.deny=10.1.2.0/24
//
// [Parse] reads it back.
func (p Policy) String() string {
	if p.Mode != Custom {
		return string(p.Mode)
	}
	var lists []string
	list := func(key string, entries []string) {
		if len(entries) > 0 {
			lists = append(lists, key+"="+strings.Join(entries, ","))
		}
	}
	var plain, transform []string
	for _, n := range p.Allow {
		if n.Transform {
			transform = append(transform, n.Pattern)
		} else {
			plain = append(plain, n.Pattern)
		}
	}
	list(keyAllow, plain)
	list(keyTransform, transform)
	list(keySubnets, texts(p.Subnets.Allow))
	list(keyDeny, texts(p.Subnets.Deny))
	list(keyInto, texts(p.ResolveInto))
	return strings.Join(lists, " ")
}

func texts(in []netip.Prefix) []string {
	var out []string
	for _, f := range in {
		out = append(out, f.String())
	}
	return out
}

// Parse reads the textual form and returns the policy in canonical form. Lists are
// separated by spaces, in any order, and may be repeated.
func Parse(text string) (Policy, error) {
	switch mode := Mode(strings.TrimSpace(text)); mode {
	case AllowAll, PublicOnly, DenyAll:
		return Policy{Mode: mode}, nil
	}
	fields := strings.Fields(text)
	if len(fields) == 0 {
		return Policy{}, fmt.Errorf("empty policy: use %s, %s, %s or lists such as %s=example.com", AllowAll, PublicOnly, DenyAll, keyAllow)
	}
	p := Policy{Mode: Custom}
	var problems []error
	for _, field := range fields {
		key, value, _ := strings.Cut(field, "=")
		var into *[]netip.Prefix
		switch key {
		case keyAllow, keyTransform:
		case keySubnets:
			into = &p.Subnets.Allow
		case keyDeny:
			into = &p.Subnets.Deny
		case keyInto:
			into = &p.ResolveInto
		default:
			problems = append(problems, fmt.Errorf("%q is not part of a policy: use %s, %s, %s, or lists %s=, %s=, %s=, %s= and %s=",
				field, AllowAll, PublicOnly, DenyAll, keyAllow, keyTransform, keySubnets, keyDeny, keyInto))
			continue
		}
		for entry := range strings.SplitSeq(value, ",") {
			if into == nil {
				p.Allow = append(p.Allow, Name{entry, key == keyTransform})
				continue
			}
			f, err := ParsePrefix(entry)
			if err != nil {
				problems = append(problems, fmt.Errorf("%s: %w", key, err))
				continue
			}
			*into = append(*into, f)
		}
	}
	p, err := p.Canon()
	if err := errors.Join(errors.Join(problems...), err); err != nil {
		return Policy{}, err
	}
	return p, nil
}
