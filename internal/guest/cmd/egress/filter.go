//go:build linux

package egress

import (
	"cmp"
	"encoding/binary"
	"net/netip"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/seed-1a2d6d8f/sandbox/internal/policy"
)

// ruleset is a network policy as the kernel enforces it. The zero value lets nothing
// out and nothing in.
//
// A packet's mark identifies its sender: with neither NET_RAW nor NET_ADMIN nobody but
// this process can set one. And because the kernel takes a flow's direction from whatever
// packet it saw first, which a process can forge, "this is an answer" counts only with a
// connection mark that packets get as they enter through a published port.
type ruleset struct {
	mark     uint32       // of this process's own packets
	ports    []uint16     // published, TCP
	upstream []netip.Addr // resolvers that this process queries

	dns   bool // port 53, wherever, is the filter's
	proxy bool // TCP that the sets do not decide goes through the proxy
	open  bool // what nothing else decides may leave
	// anyoneAsks lets every process query the resolvers, and the engine's.
	anyoneAsks bool

	deny      []netip.Prefix // before anything else
	allow     []netip.Prefix // before protected
	protected []netip.Prefix
	into      []netip.Prefix // protected, but not from this process
	local     []netip.Prefix // IPv6 sources that can be this container's own

	networks []netip.Prefix // of this container's devices
	gateways []netip.Addr   // the engine's machine, in these networks

	log bool // send the heads of refused packets to logGroup
}

const (
	filterTable = "agent-sandbox" // begins the name of the table
	inputChain  = "in"

	// Connection marks: of flows that came in through a published port, of those of
	// this process, and of anyone's with a resolver.
	markPublished = 1
	markOwn       = 2
	markAsking    = 3

	logGroup = 15053
)

// engineResolver is where the engine answers names inside a container.
var engineResolver = netip.MustParseAddr("127.0.0.11")

// ownPorts are this process's own listeners, for redirected traffic alone.
var ownPorts = []struct {
	proto  uint8
	number uint16
}{{unix.IPPROTO_TCP, policy.ProxyPort}, {unix.IPPROTO_TCP, policy.DNSPort}, {unix.IPPROTO_UDP, policy.DNSPort}}

// ICMPv6 types without which IPv6 finds no neighbour.
const (
	ndRouterSolicit    = 133
	ndRouterAdvert     = 134
	ndNeighbourSolicit = 135
	ndNeighbourAdvert  = 136
)

// build writes the chains. What a rule goes to comes before it.
func (r *ruleset) build(b *builder) {
	sets := r.sets(b)
	r.refuseChain(b)
	if r.dns || r.proxy {
		r.redirectChain(b, sets)
	}
	r.outChain(b, sets)
	r.leaveChain(b, sets)
	r.inChain(b, sets)
	b.baseChain("forward", nftables.ChainTypeFilter, nftables.ChainHookForward, 0, nftables.ChainPolicyDrop)
}

// addrSets are the named sets of a ruleset.
type addrSets struct{ deny, allow, protected, into, local, loopback, networks addrSet }

func (r *ruleset) sets(b *builder) addrSets {
	loopback := []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("::1/128")}
	return addrSets{
		deny:      b.set("deny", r.deny),
		allow:     b.set("allow", r.allow),
		protected: b.set("protected", r.protected),
		into:      b.set("into", r.into),
		local:     b.set("local", append(r.local, netip.MustParsePrefix("::/127"), netip.MustParsePrefix("fe80::/10"))),
		loopback:  b.set("loopback", loopback),
		networks:  b.set("networks", append(loopback, r.networks...)), // of both families
	}
}

// own matches this process's own packets.
func (r *ruleset) own() cond { return meta(expr.MetaKeyMARK, native(r.mark)) }

// refuseChain answers what is refused, and logs it.
func (r *ruleset) refuseChain(b *builder) {
	b.plainChain("refuse")
	if r.log {
		b.rule(cond{
			&expr.Limit{Type: expr.LimitTypePkts, Rate: 50, Unit: expr.LimitTimeSecond, Burst: 50},
			&expr.Log{Key: 1<<unix.NFTA_LOG_GROUP | 1<<unix.NFTA_LOG_SNAPLEN, Group: logGroup, Snaplen: 64},
		})
	}
	b.rule(proto(unix.IPPROTO_TCP), cond{&expr.Reject{Type: unix.NFT_REJECT_TCP_RST}})
	b.rule(cond{&expr.Reject{Type: unix.NFT_REJECT_ICMPX_UNREACH, Code: unix.NFT_REJECT_ICMPX_ADMIN_PROHIBITED}})
}

// redirectChain sends DNS queries to the filter, and connections to the proxy.
func (r *ruleset) redirectChain(b *builder, sets addrSets) {
	// Before the engine's own redirection of its resolver, at -100.
	b.baseChain("redirect", nftables.ChainTypeNAT, nftables.ChainHookOutput, -150, nftables.ChainPolicyAccept)
	b.rule(r.own(), accept)
	if r.dns {
		b.rule(destination.addr(engineResolver), toPort(unix.IPPROTO_UDP, 53), redirect(policy.DNSPort))
		b.rule(destination.addr(engineResolver), toPort(unix.IPPROTO_TCP, 53), redirect(policy.DNSPort))
	}
	b.rule(outLoopback, accept)
	if r.dns {
		b.rule(toPort(unix.IPPROTO_UDP, 53), redirect(policy.DNSPort))
		b.rule(toPort(unix.IPPROTO_TCP, 53), redirect(policy.DNSPort))
	}
	if r.proxy {
		b.each(nil, destination, sets.deny, accept)
		b.each(nil, destination, sets.allow, accept)
		b.rule(proto(unix.IPPROTO_TCP), redirect(policy.ProxyPort))
	}
}

// outChain decides what this host may send.
func (r *ruleset) outChain(b *builder, sets addrSets) {
	own := r.own()
	b.baseChain("out", nftables.ChainTypeFilter, nftables.ChainHookOutput, 0, nftables.ChainPolicyDrop)
	// Routers on the way would send it to the addresses in the header, which no rule sees.
	b.rule(routingHeader, drop)
	// A process may bind an IPv6 address that is not ours; IPv4's it may not. Only the
	// kernel itself speaks for others, when it refuses a connection below.
	b.rule(outLoopback, proto(unix.IPPROTO_TCP), related, accept)
	b.rule(source.outside(sets.local.v6), drop)
	b.rule(direction(directionReply), flowMark(markPublished), accept)
	r.allowResolvers(b, own, markOwn)
	if r.anyoneAsks {
		r.allowResolvers(b, nil, markAsking)
	} else {
		b.rule(destination.addr(engineResolver), gotoChain("refuse"))
	}
	b.rule(outLoopback, accept)
	for _, p := range ownPorts {
		// The output device of a redirected packet is still the one of its old route.
		b.rule(destination.addr(loopback4), toPort(p.proto, p.number), redirected(true), accept)
		b.rule(destination.addr(loopback6), toPort(p.proto, p.number), redirected(true), accept)
	}
	for _, kind := range []byte{ndRouterSolicit, ndNeighbourSolicit, ndNeighbourAdvert} {
		b.rule(icmp6(kind), accept)
	}
	b.each(nil, destination, sets.deny, gotoChain("refuse"))
	b.each(nil, destination, sets.allow, accept)
	if r.proxy {
		b.each(own, destination, sets.into, setFlowMark(markOwn), accept)
	}
	b.each(nil, destination, sets.protected, gotoChain("refuse"))
	if r.proxy {
		b.rule(own, setFlowMark(markOwn), accept)
	}
	if r.open {
		b.rule(accept)
	}
	b.rule(gotoChain("refuse"))
}

// allowResolvers lets packets that match who go to the resolvers, and marks their flows.
func (r *ruleset) allowResolvers(b *builder, who cond, mark uint32) {
	for _, u := range r.upstream {
		for _, proto := range []uint8{unix.IPPROTO_UDP, unix.IPPROTO_TCP} {
			b.rule(who, destination.addr(u), toPort(proto, 53), setFlowMark(mark), accept)
		}
	}
}

// leaveChain keeps what is for this host in it, even from a socket that is bound to a
// device.
func (r *ruleset) leaveChain(b *builder, sets addrSets) {
	b.baseChain("leave", nftables.ChainTypeFilter, nftables.ChainHookPostrouting, 0, nftables.ChainPolicyAccept)
	b.rule(outLoopback, accept)
	b.each(nil, destination, sets.loopback, drop)
}

// inChain decides what this host may receive.
func (r *ruleset) inChain(b *builder, sets addrSets) {
	b.baseChain(inputChain, nftables.ChainTypeFilter, nftables.ChainHookInput, 0, nftables.ChainPolicyDrop)
	for _, u := range r.upstream {
		if !u.IsLoopback() {
			// Somebody's forgery of an answer to us. Answers of ours to clients, which
			// come in the same name, have no mark.
			b.rule(inLoopback, source.addr(u), flowMark(markOwn), drop)
		}
	}
	for _, p := range ownPorts {
		// As where nothing listens.
		refuse := cond{&expr.Reject{Type: unix.NFT_REJECT_ICMPX_UNREACH, Code: unix.NFT_REJECT_ICMPX_PORT_UNREACH}}
		if p.proto == unix.IPPROTO_TCP {
			refuse = cond{&expr.Reject{Type: unix.NFT_REJECT_TCP_RST}}
		}
		b.rule(inLoopback, destination.addr(loopback4), toPort(p.proto, p.number), redirected(false), refuse)
		b.rule(inLoopback, destination.addr(loopback6), toPort(p.proto, p.number), redirected(false), refuse)
	}
	b.rule(inLoopback, accept)
	b.rule(flowMark(markPublished), accept)
	b.rule(flowMark(markOwn), established, accept)
	if r.anyoneAsks {
		b.rule(flowMark(markAsking), established, accept)
	}
	for _, kind := range []byte{ndRouterAdvert, ndNeighbourSolicit, ndNeighbourAdvert} {
		b.rule(icmp6(kind), accept)
	}
	// Answers are checked one by one, like what they answer: a flow that is not allowed
	// any more ends in both directions.
	if r.open || len(r.allow) > 0 {
		b.rule(proto(unix.IPPROTO_ICMP), related, accept)
		b.rule(proto(unix.IPPROTO_ICMPV6), related, accept)
		b.each(direction(directionReply), source, sets.deny, drop)
		b.each(direction(directionReply), source, sets.allow, established, accept)
		b.each(direction(directionReply), source, sets.protected, drop)
	}
	if r.open {
		b.rule(direction(directionReply), established, accept)
	}
	for _, p := range r.ports {
		r.publish(b, p, sets.networks)
	}
}

// publish lets the engine's machine connect to a port, but no neighbour in the container's
// networks: connections through the engine's proxy, and those that it masquerades, come from
// the gateway.
func (r *ruleset) publish(b *builder, port uint16, networks addrSet) {
	from := []cond{source.outside(networks.v4), source.outside(networks.v6)}
	for _, g := range r.gateways {
		from = append(from, source.addr(g))
	}
	for _, f := range from {
		// Only the first packet of a connection comes here. See kernelTable.accepted.
		b.rule(direction(directionOriginal), f, toPort(unix.IPPROTO_TCP, port), setFlowMark(markPublished), cond{&expr.Counter{}}, accept)
	}
}

// builder writes one table.
type builder struct {
	conn  *nftables.Conn
	table *nftables.Table
	chain *nftables.Chain
	err   error
}

func (b *builder) plainChain(name string) {
	b.chain = b.conn.AddChain(&nftables.Chain{Table: b.table, Name: name})
}

func (b *builder) baseChain(name string, kind nftables.ChainType, hook *nftables.ChainHook, priority nftables.ChainPriority, policy nftables.ChainPolicy) {
	b.chain = b.conn.AddChain(&nftables.Chain{Table: b.table, Name: name, Type: kind, Hooknum: hook, Priority: &priority, Policy: &policy})
}

// rule adds a rule of conditions and what to do to the last chain.
func (b *builder) rule(parts ...cond) {
	b.conn.AddRule(&nftables.Rule{Table: b.table, Chain: b.chain, Exprs: slices.Concat(parts...)})
}

// each adds a rule for every family in which the set has addresses.
func (b *builder) each(first cond, side side, set addrSet, rest ...cond) {
	for _, s := range []*nftables.Set{set.v4, set.v6} {
		if s != nil {
			b.rule(append([]cond{first, side.in(s)}, rest...)...)
		}
	}
}

// addrSet is a set of each family; one without addresses is nil.
type addrSet struct{ v4, v6 *nftables.Set }

func (b *builder) set(name string, prefixes []netip.Prefix) (set addrSet) {
	for _, family := range []struct {
		name string
		bits int
		kind nftables.SetDatatype
		out  **nftables.Set
	}{{"4", 32, nftables.TypeIPAddr, &set.v4}, {"6", 128, nftables.TypeIP6Addr, &set.v6}} {
		elements := intervals(prefixes, family.bits)
		if len(elements) == 0 {
			continue
		}
		s := &nftables.Set{Table: b.table, Name: name + family.name, Interval: true, KeyType: family.kind}
		*family.out = s
		if err := b.conn.AddSet(s, nil); err != nil {
			b.err = err
		}
		// One message holds less than 64 KiB of them.
		for part := range slices.Chunk(elements, 512) {
			if err := b.conn.SetAddElements(s, part); err != nil {
				b.err = err
			}
		}
	}
	return set
}

// intervals are the addresses of one family, as the kernel wants them: begins and ends,
// in order, without overlap.
func intervals(prefixes []netip.Prefix, bits int) []nftables.SetElement {
	type span struct{ first, last netip.Addr }
	var spans []span
	for _, p := range prefixes {
		if p.Addr().BitLen() == bits {
			spans = append(spans, span{p.Masked().Addr(), lastAddr(p)})
		}
	}
	slices.SortFunc(spans, func(a, b span) int { return cmp.Or(a.first.Compare(b.first), b.last.Compare(a.last)) })
	var elements []nftables.SetElement
	for i := 0; i < len(spans); {
		first, last := spans[i].first, spans[i].last
		for i++; i < len(spans) && (!last.Next().IsValid() || spans[i].first.Compare(last.Next()) <= 0); i++ {
			if last.Less(spans[i].last) {
				last = spans[i].last
			}
		}
		elements = append(elements, nftables.SetElement{Key: first.AsSlice()})
		if end := last.Next(); end.IsValid() { // otherwise it goes to the last there is
			elements = append(elements, nftables.SetElement{Key: end.AsSlice(), IntervalEnd: true})
		}
	}
	return elements
}

func lastAddr(p netip.Prefix) netip.Addr {
	b := p.Addr().AsSlice()
	for i := p.Bits(); i < len(b)*8; i++ {
		b[i/8] |= 0x80 >> (i % 8)
	}
	last, _ := netip.AddrFromSlice(b)
	return last
}

// cond is a part of a rule: a condition, or what to do.
type cond []expr.Any

var (
	accept = verdict(expr.VerdictAccept)
	drop   = verdict(expr.VerdictDrop)

	// By the kind of device: another one may be called lo.
	outLoopback = meta(expr.MetaKeyOIFTYPE, native16(unix.ARPHRD_LOOPBACK))
	inLoopback  = meta(expr.MetaKeyIIFTYPE, native16(unix.ARPHRD_LOOPBACK))

	established = ctBits(expr.CtKeySTATE, expr.CtStateBitESTABLISHED|expr.CtStateBitRELATED, true)
	related     = ctBits(expr.CtKeySTATE, expr.CtStateBitRELATED, true)

	loopback4 = netip.AddrFrom4([4]byte{127, 0, 0, 1})
	loopback6 = netip.IPv6Loopback()
)

func verdict(kind expr.VerdictKind) cond { return cond{&expr.Verdict{Kind: kind}} }

func gotoChain(name string) cond { return cond{&expr.Verdict{Kind: expr.VerdictGoto, Chain: name}} }

// All expressions here use the first register.
const reg = unix.NFT_REG_1

func equals(data []byte) expr.Any { return &expr.Cmp{Op: expr.CmpOpEq, Register: reg, Data: data} }

func native(n uint32) []byte { return binary.NativeEndian.AppendUint32(nil, n) }

func native16(n uint16) []byte { return binary.NativeEndian.AppendUint16(nil, n) }

func meta(key expr.MetaKey, is []byte) cond {
	return cond{&expr.Meta{Key: key, Register: reg}, equals(is)}
}

func proto(n uint8) cond { return meta(expr.MetaKeyL4PROTO, []byte{n}) }

func toPort(p uint8, number uint16) cond {
	return append(proto(p),
		&expr.Payload{DestRegister: reg, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2},
		equals(binary.BigEndian.AppendUint16(nil, number)))
}

func icmp6(kind byte) cond {
	return append(proto(unix.IPPROTO_ICMPV6),
		&expr.Payload{DestRegister: reg, Base: expr.PayloadBaseTransportHeader, Offset: 0, Len: 1}, equals([]byte{kind}))
}

// routingHeader matches IPv6 packets with a routing header, of any type.
var routingHeader = slices.Concat(meta(expr.MetaKeyNFPROTO, []byte{unix.NFPROTO_IPV6}), cond{
	&expr.Exthdr{DestRegister: reg, Type: unix.IPPROTO_ROUTING, Len: 1, Flags: exthdrPresent, Op: expr.ExthdrOpIpv6},
	equals([]byte{1}),
})

// exthdrPresent is NFT_EXTHDR_F_PRESENT of linux/netfilter/nf_tables.h.
const exthdrPresent = 1

func redirect(port uint16) cond {
	return cond{
		&expr.Immediate{Register: reg, Data: binary.BigEndian.AppendUint16(nil, port)},
		&expr.Redir{RegisterProtoMin: reg},
	}
}

// side is an address of a packet: where it is in the header of IPv4 and of IPv6.
type side struct{ at4, at6 uint32 }

var (
	source      = side{12, 8}
	destination = side{16, 24}
)

func (s side) load(bits int) cond {
	family, at := byte(unix.NFPROTO_IPV4), s.at4
	if bits == 128 {
		family, at = unix.NFPROTO_IPV6, s.at6
	}
	return append(meta(expr.MetaKeyNFPROTO, []byte{family}),
		&expr.Payload{DestRegister: reg, Base: expr.PayloadBaseNetworkHeader, Offset: at, Len: uint32(bits / 8)})
}

func (s side) addr(a netip.Addr) cond         { return append(s.load(a.BitLen()), equals(a.AsSlice())) }
func (s side) in(set *nftables.Set) cond      { return s.lookup(set, false) }
func (s side) outside(set *nftables.Set) cond { return s.lookup(set, true) }

func (s side) lookup(set *nftables.Set, invert bool) cond {
	return append(s.load(int(set.KeyType.Bytes)*8),
		&expr.Lookup{SourceRegister: reg, SetName: set.Name, SetID: set.ID, Invert: invert})
}

// Directions of a flow.
const (
	directionOriginal = 0
	directionReply    = 1
)

func direction(is byte) cond {
	return cond{&expr.Ct{Key: expr.CtKeyDIRECTION, Register: reg}, equals([]byte{is})}
}

func flowMark(is uint32) cond {
	return cond{&expr.Ct{Key: expr.CtKeyMARK, Register: reg}, equals(native(is))}
}

func setFlowMark(mark uint32) cond {
	return cond{
		&expr.Immediate{Register: reg, Data: native(mark)},
		&expr.Ct{Key: expr.CtKeyMARK, Register: reg, SourceRegister: true},
	}
}

// redirected asks whether a flow's destination was changed.
func redirected(is bool) cond { return ctBits(expr.CtKeySTATUS, ipsDstNAT, is) }

// ipsDstNAT is IPS_DST_NAT of the kernel's nf_conntrack_common.h.
const ipsDstNAT = 1 << 5

func ctBits(key expr.CtKey, bits uint32, any bool) cond {
	op := expr.CmpOpEq
	if any {
		op = expr.CmpOpNeq
	}
	return cond{
		&expr.Ct{Key: key, Register: reg},
		&expr.Bitwise{SourceRegister: reg, DestRegister: reg, Len: 4, Mask: native(bits), Xor: native(0)},
		&expr.Cmp{Op: op, Register: reg, Data: native(0)},
	}
}
