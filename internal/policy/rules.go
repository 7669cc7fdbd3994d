package policy

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// protected are the addresses outside the public internet, and the IPv6 ranges that embed
// an IPv4 address, which could be one of them. Those of NAT64's well-known prefix are what the
// address in them is: networks without IPv4 have no others for most of the internet.
var protected = translated(append(prefixes(
	"0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12",
	"192.0.0.0/24", "192.168.0.0/16", "198.18.0.0/15", "224.0.0.0/3",
	"::/96", "::ffff:0:0/96", "64:ff9b:1::/48", "100::/64", "2001::/32", "2002::/16",
	"fc00::/7", "fe80::/10", "fec0::/10", "ff00::/8",
), platform))

// platform is Azure's address for the agent of a machine, public by its number; it hands
// out certificates and settings of extensions. Azure's DNS server has the same address, and
// stays reachable as one.
// https://learn.microsoft.com/azure/virtual-network/what-is-ip-address-168-63-129-16
var platform = netip.MustParsePrefix("168.63.129.16/32")

// metadata are the addresses of cloud metadata services, which hand out a machine's own
// credentials, and all link-local addresses.
var metadata = translated(relayed(append(slices.Concat(
	prefixes(
		"169.254.0.0/16", "fe80::/10",
		"192.0.0.0/24",           // for protocols (RFC 6890); Oracle Cloud Classic has 192.0.0.192
		"100.100.100.200/32",     // https://www.alibabacloud.com/help/en/ecs/user-guide/view-instance-metadata
		"fd20:ce::254/128",       // https://cloud.google.com/compute/docs/metadata/querying-metadata
		"fd00:42::42/128",        // https://docs.cloud-init.io/en/latest/reference/datasources/scaleway.html
		"fd00:c1::a9fe:a9fe/128", // https://github.com/oracle/oci-python-sdk, auth/signers/instance_principals_security_token_signer.py
		"fd00:a9fe:a9fe::1/128",  // https://techdocs.akamai.com/cloud-computing/docs/metadata-service-api
	),
	// All of AWS but its resolver, which is for everyone.
	// https://docs.aws.amazon.com/whitepapers/latest/ipv6-on-aws/supporting-amazon-vpc-services.html
	without(netip.MustParsePrefix("fd00:ec2::/32"), netip.MustParseAddr("fd00:ec2::253")),
), platform)))

// without returns the addresses of f other than a.
func without(f netip.Prefix, a netip.Addr) (rest []netip.Prefix) {
	for bits := f.Bits() + 1; bits <= a.BitLen(); bits++ {
		sibling := a.AsSlice()
		sibling[(bits-1)/8] ^= 0x80 >> ((bits - 1) % 8)
		other, _ := netip.AddrFromSlice(sibling)
		rest = append(rest, netip.PrefixFrom(other, bits).Masked())
	}
	return rest
}

// translated returns a list and the IPv6 addresses that a translator turns into its IPv4 addresses:
// those of NAT64's well-known prefix (RFC 6052).
func translated(list []netip.Prefix) []netip.Prefix { return embedded(list, 12, 0, 0x64, 0xff, 0x9b) }

// relayed returns a list and the IPv6 addresses that a relay turns into its IPv4 addresses: 6to4
// (RFC 3056).
func relayed(list []netip.Prefix) []netip.Prefix { return embedded(list, 2, 0x20, 0x02) }

// embedded returns a list and the IPv6 addresses that begin with these bytes and have one of its IPv4
// addresses at byte at.
func embedded(list []netip.Prefix, at int, begin ...byte) []netip.Prefix {
	all := slices.Clone(list)
	for _, f := range list {
		if f.Addr().Is4() {
			var six [16]byte
			copy(six[:], begin)
			copy(six[at:], f.Addr().AsSlice())
			all = append(all, netip.PrefixFrom(netip.AddrFrom16(six), 8*at+f.Bits()))
		}
	}
	return all
}

func prefixes(texts ...string) []netip.Prefix {
	var out []netip.Prefix
	for _, s := range texts {
		out = append(out, netip.MustParsePrefix(s))
	}
	return out
}

// A Verdict is the decision on a connection to an address, and its reason.
type Verdict string

const (
	Denied    Verdict = "subnets.deny"  // rejected
	Subnet    Verdict = "subnets.allow" // permitted by any protocol, whatever its name
	Protected Verdict = "protected"     // rejected: not a public address
	Open      Verdict = "open"          // permitted by any protocol: the policy allows every public address
	ByName    Verdict = "name"          // permitted only through an allowed name
	Closed    Verdict = "closed"        // rejected: the policy allows no name
)

// Reaches reports whether a connection to the address is permitted without a name.
func (v Verdict) Reaches() bool { return v == Subnet || v == Open }

// Rules is a compiled policy. It is safe for concurrent use.
type Rules struct {
	policy    Policy
	denied    []netip.Prefix
	protected []netip.Prefix
	exact     map[string]Name
	wild      []Name // the most specific first
}

// Compile compiles a policy in canonical form. protect are further protected addresses:
// those of the engine's machine, some of which may be public, and of the sandbox's own
// networks. AllowAll ignores them.
func (p Policy) Compile(protect ...netip.Prefix) (*Rules, error) {
	for _, n := range p.Allow {
		if err := checkName(n.Pattern, true); err != nil {
			return nil, fmt.Errorf("name %q: %w", n.Pattern, err)
		}
	}
	if len(p.Allow) > MaxEntries || len(p.Subnets.Allow) > MaxEntries || len(p.Subnets.Deny) > MaxEntries || len(p.ResolveInto) > MaxEntries {
		return nil, fmt.Errorf("a list has more than %d entries", MaxEntries)
	}
	r := &Rules{policy: p, denied: merge(translated(p.Subnets.Deny)), exact: map[string]Name{}}
	switch p.Mode {
	case AllowAll:
		r.protected = metadata
		r.wild = []Name{{Pattern: Any}}
	case PublicOnly:
		r.protected = append(translated(protect), protected...)
		r.wild = []Name{{Pattern: Any}}
	case DenyAll, Custom:
		r.protected = append(translated(protect), protected...)
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

// mergeWire is Merge, but keeps IPv4-mapped IPv6 prefixes: packets can carry such addresses.
func mergeWire(in []netip.Prefix) []netip.Prefix {
	var mapped, rest []netip.Prefix
	for _, f := range in {
		if f.Addr().Is4In6() {
			mapped = append(mapped, f)
		} else {
			rest = append(rest, f)
		}
	}
	return append(merge(rest), mapped...)
}

// Policy returns the policy that the rules were compiled from.
func (r *Rules) Policy() Policy { return r.policy }

// Denied returns, merged, the addresses that nothing permits: the denied subnets, and what NAT64 turns
// into them. The caller must not modify the slice.
func (r *Rules) Denied() []netip.Prefix { return r.denied }

// Protected returns, merged, the addresses that only an allowed subnet permits, including
// the IPv6 ranges that embed an IPv4 address. The caller must not modify the slice.
func (r *Rules) Protected() []netip.Prefix { return r.protected }

// Open reports whether every address that is neither protected nor denied is permitted,
// by any protocol: in AllowAll, PublicOnly and where "*" is allowed.
func (r *Rules) Open() bool {
	return r.policy.Mode == AllowAll || r.policy.Mode == PublicOnly ||
		slices.ContainsFunc(r.policy.Allow, func(n Name) bool { return n.Pattern == Any })
}

// Resolves reports whether any name may be looked up. Unless the mode is AllowAll, PID 1
// then needs DNS servers that nobody inside could have chosen.
func (r *Rules) Resolves() bool { return len(r.exact)+len(r.wild) > 0 }

// Transforms reports whether any name is transformed.
func (r *Rules) Transforms() bool {
	return slices.ContainsFunc(r.policy.Allow, func(n Name) bool { return n.Transform })
}

// Name returns the most specific rule that allows a name: the name itself, then the pattern
// with the most labels and the fewest stars. Case and a final dot don't matter. Anything
// that is not a domain name, such as an address, is never allowed.
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
	case contains(r.denied, a):
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

// Allows reports whether the policy allows a connection to a name or an address on a TCP port, and
// which rule decides: the pattern for a name, else a [Verdict].
func (p Policy) Allows(host string, port int) (allowed bool, rule string, err error) {
	if port < 1 || port > 65535 {
		return false, "", fmt.Errorf("%d is not a port", port)
	}
	r, err := p.Compile()
	if err != nil {
		return false, "", err
	}
	if a, err := netip.ParseAddr(strings.Trim(host, "[]")); err == nil {
		v := r.Addr(a)
		return v.Reaches(), string(v), nil
	}
	host = lower(strings.TrimSuffix(host, "."))
	if err := checkName(host, false); err != nil {
		return false, "", fmt.Errorf("name %q: %w", host, err)
	}
	switch n, ok := r.Name(host); {
	case ok && n.Pattern == Any:
		return true, string(Open), nil
	case ok:
		return true, n.Pattern, nil
	case r.Resolves():
		return false, string(ByName), nil
	}
	return false, string(Closed), nil
}

// Into reports whether an allowed name may resolve to the address.
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
	return slices.ContainsFunc(list, func(f netip.Prefix) bool { return f.Contains(a) })
}
