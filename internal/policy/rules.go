package policy

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// protected are the addresses that are not the public internet's, and the forms of IPv6
// that carry an IPv4 address, behind which one of them could hide.
var protected = prefixes(
	"0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12",
	"192.0.0.0/24", "192.168.0.0/16", "198.18.0.0/15", "224.0.0.0/3",
	"::/96", "::ffff:0:0/96", "64:ff9b::/96", "64:ff9b:1::/48", "100::/64", "2001::/32", "2002::/16",
	"fc00::/7", "fe80::/10", "fec0::/10", "ff00::/8",
)

// metadata are the addresses where clouds tell a machine its own secrets, and the whole
// of the link they are on.
var metadata = prefixes(
	"169.254.0.0/16", "fe80::/10",
	"fd00:ec2::254/128",  // AWS over IPv6
	"fd20:ce::254/128",   // Google Cloud over IPv6
	"100.100.100.200/32", // Alibaba Cloud
)

func prefixes(texts ...string) []netip.Prefix {
	var out []netip.Prefix
	for _, s := range texts {
		out = append(out, netip.MustParsePrefix(s))
	}
	return out
}

// A Verdict is what becomes of a connection to an address.
type Verdict string

const (
	Denied    Verdict = "subnets.deny"  // never
	Subnet    Verdict = "subnets.allow" // by any protocol, whatever its name
	Protected Verdict = "protected"     // never: not a public address
	Open      Verdict = "open"          // by any protocol: the policy allows every public address
	ByName    Verdict = "name"          // only where a name that is allowed leads there
	Closed    Verdict = "closed"        // never: the policy allows no name
)

// Reaches reports whether a connection may go to the address itself.
func (v Verdict) Reaches() bool { return v == Subnet || v == Open }

// Rules is a policy made ready to decide. It is safe for concurrent use.
type Rules struct {
	policy    Policy
	protected []netip.Prefix
	exact     map[string]Name
	wild      []Name // the most particular first
}

// Compile makes ready a policy in canonical form. protect are further addresses that are
// protected: those of the engine's machine, which a public address could be among, and
// of the networks the sandbox itself is in. They count in every mode but AllowAll.
func (p Policy) Compile(protect ...netip.Prefix) (*Rules, error) {
	for _, n := range p.Allow {
		if err := checkName(n.Pattern, true); err != nil {
			return nil, fmt.Errorf("name %q: %w", n.Pattern, err)
		}
	}
	if len(p.Allow) > MaxEntries || len(p.Subnets.Allow) > MaxEntries || len(p.Subnets.Deny) > MaxEntries || len(p.ResolveInto) > MaxEntries {
		return nil, fmt.Errorf("a list has more than %d entries", MaxEntries)
	}
	r := &Rules{policy: p, exact: map[string]Name{}}
	switch p.Mode {
	case AllowAll:
		r.protected = metadata
		r.wild = []Name{{Pattern: Any}}
	case PublicOnly:
		r.protected = append(slices.Clone(protect), protected...)
		r.wild = []Name{{Pattern: Any}}
	case DenyAll, Custom:
		r.protected = append(slices.Clone(protect), protected...)
	default:
		return nil, fmt.Errorf("%q is not a mode", p.Mode)
	}
	r.protected = mergeWire(r.protected)
	for _, n := range p.Allow {
		if strings.Contains(n.Pattern, Any) {
			r.wild = append(r.wild, n)
		} else {
			r.exact[n.Pattern] = n
		}
	}
	slices.SortStableFunc(r.wild, func(a, b Name) int {
		return cmp.Or(
			cmp.Compare(strings.Count(b.Pattern, "."), strings.Count(a.Pattern, ".")),
			cmp.Compare(strings.Count(a.Pattern, Any), strings.Count(b.Pattern, Any)),
			strings.Compare(a.Pattern, b.Pattern))
	})
	return r, nil
}

// mergeWire is Merge, but IPv4 inside IPv6 stays: it is an address on the wire, too.
func mergeWire(in []netip.Prefix) []netip.Prefix {
	var mapped, rest []netip.Prefix
	for _, f := range in {
		if f.Addr().Is4In6() {
			mapped = append(mapped, f)
		} else {
			rest = append(rest, f)
		}
	}
	return append(Merge(rest), mapped...)
}

// Policy is what the rules were made of.
func (r *Rules) Policy() Policy { return r.policy }

// Protected are the addresses that only an allowed subnet opens, merged: for IPv6 with
// the forms that carry an IPv4 address. The caller must not change them.
func (r *Rules) Protected() []netip.Prefix { return r.protected }

// Open reports whether every address that is not protected and not denied is reached,
// by any protocol: in AllowAll, PublicOnly and where "*" is allowed.
func (r *Rules) Open() bool {
	return r.policy.Mode == AllowAll || r.policy.Mode == PublicOnly ||
		slices.ContainsFunc(r.policy.Allow, func(n Name) bool { return n.Pattern == Any })
}

// Resolves reports whether any name may be looked up. If so PID 1 needs DNS servers that
// nobody inside could have named, unless the mode is AllowAll.
func (r *Rules) Resolves() bool { return len(r.exact)+len(r.wild) > 0 }

// Transforms reports whether any name is transformed.
func (r *Rules) Transforms() bool {
	return slices.ContainsFunc(r.policy.Allow, func(n Name) bool { return n.Transform })
}

// Name returns the rule that allows a name: of several the most particular, which is the
// name itself, then the pattern of most labels and fewest stars. Case and a final dot
// don't matter; what is not a domain name, an address above all, is never allowed.
func (r *Rules) Name(name string) (Name, bool) {
	name = lower(strings.TrimSuffix(name, "."))
	if checkName(name, false) != nil {
		return Name{}, false
	}
	if n, ok := r.exact[name]; ok {
		return n, true
	}
	for _, n := range r.wild {
		if matches(n.Pattern, name) {
			return n, true
		}
	}
	return Name{}, false
}

// Addr decides on a connection to an address, whatever name led to it.
func (r *Rules) Addr(a netip.Addr) Verdict {
	a = a.Unmap().WithZone("")
	switch {
	case contains(r.policy.Subnets.Deny, a):
		return Denied
	case contains(r.policy.Subnets.Allow, a):
		return Subnet
	case !a.IsValid(), contains(r.protected, a):
		return Protected
	case r.Open():
		return Open
	case r.Resolves():
		return ByName
	}
	return Closed
}

// Into reports whether a name that is allowed may lead to the address.
func (r *Rules) Into(a netip.Addr) bool {
	switch r.Addr(a) {
	case Subnet, Open, ByName:
		return true
	case Protected:
		return contains(r.policy.ResolveInto, a.Unmap().WithZone(""))
	}
	return false
}

func contains(list []netip.Prefix, a netip.Addr) bool {
	for _, f := range list {
		if f.Contains(a) {
			return true
		}
	}
	return false
}
