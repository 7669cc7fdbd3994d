//go:build linux

package egress

import (
	"encoding/binary"
	"net/netip"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// Message types and attributes of connection tracking (nfnetlink_conntrack.h).
const (
	ctnlGet    = unix.NFNL_SUBSYS_CTNETLINK<<8 | 1
	ctnlDelete = unix.NFNL_SUBSYS_CTNETLINK<<8 | 2

	ctaTupleOrig = 1
	ctaStatus    = 3
	ctaMark      = 8

	ctaTupleIP = 1
	ctaIPv4Dst = 2
	ctaIPv6Dst = 4
)

// conntrackEntry is a flow that the kernel tracks.
type conntrackEntry struct {
	family byte
	tuple  []byte // addresses and ports, as received
	dst    netip.Addr
	status uint32
	mark   uint32
}

// dropFlows removes the direct flows that a policy does not allow from connection tracking.
// The rules refuse their packets anyhow; but NAT decides once for each flow, so the packets
// of a socket would not be redirected for as long as the kernel tracks its flow.
func dropFlows(s *activePolicy) error {
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
	if err != nil {
		return err
	}
	defer conn.Close()
	messages, err := conn.Execute(netlink.Message{
		Header: netlink.Header{Type: ctnlGet, Flags: netlink.Request | netlink.Dump},
		Data:   nfgen(unix.AF_UNSPEC),
	})
	if err != nil {
		return err
	}
	for _, m := range messages {
		t, err := readConntrackEntry(m.Data)
		if err != nil || !t.dst.IsValid() || t.dst.IsLoopback() || t.status&ipsDstNAT != 0 ||
			t.mark == markPublished || t.mark == markOwn || s.rules.Addr(t.dst).Reaches() {
			continue
		}
		data, err := netlink.MarshalAttributes([]netlink.Attribute{{Type: ctaTupleOrig | unix.NLA_F_NESTED, Data: t.tuple}})
		if err != nil {
			return err
		}
		// It may have ended meanwhile.
		conn.Execute(netlink.Message{
			Header: netlink.Header{Type: ctnlDelete, Flags: netlink.Request | netlink.Acknowledge},
			Data:   append(nfgen(t.family), data...),
		})
	}
	return nil
}

// nfgen is a struct nfgenmsg.
func nfgen(family byte) []byte { return []byte{family, unix.NFNETLINK_V0, 0, 0} }

func readConntrackEntry(data []byte) (t conntrackEntry, err error) {
	if len(data) < 4 {
		return t, unix.EINVAL
	}
	t.family = data[0]
	all, err := netlink.NewAttributeDecoder(data[4:])
	if err != nil {
		return t, err
	}
	all.ByteOrder = binary.BigEndian
	for all.Next() {
		switch all.Type() {
		case ctaTupleOrig:
			t.tuple = all.Bytes()
			all.Nested(func(tuple *netlink.AttributeDecoder) error {
				for tuple.Next() {
					if tuple.Type() != ctaTupleIP {
						continue
					}
					tuple.Nested(func(ip *netlink.AttributeDecoder) error {
						for ip.Next() {
							if ip.Type() == ctaIPv4Dst || ip.Type() == ctaIPv6Dst {
								t.dst, _ = netip.AddrFromSlice(ip.Bytes())
							}
						}
						return ip.Err()
					})
				}
				return tuple.Err()
			})
		case ctaStatus:
			t.status = all.Uint32()
		case ctaMark:
			t.mark = all.Uint32()
		}
	}
	return t, all.Err()
}
