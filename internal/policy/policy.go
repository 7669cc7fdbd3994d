// Package policy is a sandbox's network policy as data and as decisions. The library
// checks and stores it, PID 1 of the sandbox enforces it, and both ask this package what
// it means. It opens no connection and knows nothing of either.
//
// What it decides, in this order: a denied subnet is never reached; an allowed subnet is
// reached by any protocol; a protected address (private, link-local, the engine's
// machine) is not reached; what is left is reached by its name, if that is allowed.
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
// transaction that sets them ("message too long"); 1,000 in every list were applied.
const MaxEntries = 1000

// MaxText bounds the textual form of a policy, in bytes. It is kept in a label, which
// every list of the engine carries.
const MaxText = 128 << 10

// Mode says how the lists of a policy are meant.
type Mode string

const (
	// AllowAll reaches everything but the link-local addresses where clouds keep their
	// metadata.
	AllowAll Mode = "allow-all"
	// PublicOnly reaches the public internet by any protocol and nothing protected.
	PublicOnly Mode = "public-only"
	// DenyAll reaches nothing. Published ports answer all the same.
	DenyAll Mode = "deny-all"
	// Custom reaches what its lists say. Only this mode has lists.
	Custom Mode = "custom"
)

// A Policy is what a sandbox may reach. [Policy.Canon] puts it into the one form that
// everything else here takes. The zero Policy has no mode and is not valid.
type Policy struct {
	Mode        Mode           `json:"mode"`
	Allow       []Name         `json:"allow,omitempty"`
	Subnets     Subnets        `json:"subnets,omitzero"`
	ResolveInto []netip.Prefix `json:"resolve_into,omitempty"` // protected, and yet names may lead there
}

// A Name is a pattern of domain names: labels, of which "*" as the first stands for one
// or more and elsewhere for exactly one. "*" alone is every name and every public
// address; the name above "*.example.com" is not in it.
type Name struct {
	Pattern string `json:"pattern"`
	// Transform says that PID 1 terminates TLS for these names and sets headers.
	Transform bool `json:"transform,omitempty"`
}

// Subnets are reached, or not, whatever their names are.
type Subnets struct {
	Allow []netip.Prefix `json:"allow,omitempty"`
	Deny  []netip.Prefix `json:"deny,omitempty"`
}

// Any is the pattern of every name.
const Any = "*"

// Canon returns p in canonical form: names in lower case, without the final dot and in
// ASCII; every list sorted, without duplicates, and subnets masked and merged. A custom
// policy without any list is DenyAll. All mistakes are reported at once.
func (p Policy) Canon() (Policy, error) {
	var problems []error
	bad := func(format string, args ...any) { problems = append(problems, fmt.Errorf(format, args...)) }
	size := func(list string, n int) {
		if n > MaxEntries {
			bad("%s: %d entries; there may be %d", list, n, MaxEntries)
		}
	}
	size("allow", len(p.Allow))
	size("subnets.allow", len(p.Subnets.Allow))
	size("subnets.deny", len(p.Subnets.Deny))
	size("resolve-into", len(p.ResolveInto))

	out := Policy{Mode: p.Mode}
	for _, n := range p.Allow {
		pattern, err := canonPattern(n.Pattern)
		if err != nil {
			problems = append(problems, err)
			continue
		}
		if n.Transform && pattern == Any {
			bad("%q cannot be transformed: it is every address as well; name the names", n.Pattern)
			continue
		}
		out.Allow = append(out.Allow, Name{pattern, n.Transform})
	}
	slices.SortFunc(out.Allow, func(a, b Name) int { return strings.Compare(a.Pattern, b.Pattern) })
	out.Allow = joinNames(out.Allow)
	prefixes := func(list string, in []netip.Prefix) []netip.Prefix {
		for _, f := range in {
			if err := checkPrefix(f); err != nil {
				bad("%s: %w", list, err)
			}
		}
		return Merge(in)
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
		bad("%q is not a mode: there is %s, %s, %s and %s", p.Mode, AllowAll, PublicOnly, DenyAll, Custom)
	}
	if n := len(out.String()); n > MaxText && len(problems) == 0 {
		bad("the policy takes %d bytes; there may be %d", n, MaxText)
	}
	if len(problems) > 0 {
		return Policy{}, errors.Join(problems...)
	}
	return out, nil
}

// joinNames makes one of equal neighbours. A name that is transformed anywhere is.
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

// checkPrefix says what is wrong with a subnet.
func checkPrefix(f netip.Prefix) error {
	if !f.IsValid() {
		return errors.New("there is an invalid subnet")
	}
	if f.Addr().Is4In6() && f.Bits() < 96 {
		return fmt.Errorf("subnet %s reaches from IPv6 into IPv4: write two", f)
	}
	return nil
}

// ParsePrefix reads a subnet in CIDR notation, or an address, which is a subnet of one.
// Host bits are dropped.
func ParsePrefix(s string) (netip.Prefix, error) {
	s = strings.TrimSpace(s)
	f, err := netip.ParsePrefix(s)
	if err != nil {
		a, e := netip.ParseAddr(s)
		if e != nil || a.Zone() != "" {
			return netip.Prefix{}, fmt.Errorf("%q is not a subnet, such as 10.0.0.0/8 or fd00::/8, and not an address", s)
		}
		f = netip.PrefixFrom(a, a.BitLen())
	}
	if err := checkPrefix(f); err != nil {
		return netip.Prefix{}, err
	}
	return unmapPrefix(f).Masked(), nil
}

// unmapPrefix writes IPv4 that was written as IPv6 as what it is.
func unmapPrefix(f netip.Prefix) netip.Prefix {
	if f.Addr().Is4In6() && f.Bits() >= 96 {
		return netip.PrefixFrom(f.Addr().Unmap(), f.Bits()-96)
	}
	return f
}

// Merge returns the fewest subnets that hold the same addresses, in order. What is not
// valid is left out.
func Merge(in []netip.Prefix) []netip.Prefix {
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
		// A larger one comes before what is in it.
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

// Parse reads the textual form and returns the policy in canonical form. Lists may come
// in any order and more than once, set apart by spaces.
func Parse(text string) (Policy, error) {
	switch mode := Mode(strings.TrimSpace(text)); mode {
	case AllowAll, PublicOnly, DenyAll:
		return Policy{Mode: mode}, nil
	}
	fields := strings.Fields(text)
	if len(fields) == 0 {
		return Policy{}, fmt.Errorf("the policy is empty: it takes %s, %s, %s or lists such as %s=example.com", AllowAll, PublicOnly, DenyAll, keyAllow)
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
			problems = append(problems, fmt.Errorf("%q is not part of a policy: it takes %s, %s, %s, or %s=, %s=, %s=, %s= and %s= with a list",
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
