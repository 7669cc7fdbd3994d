//go:build linux

package egress

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"os"
	"strconv"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/seed-1a2d6d8f/sandbox/internal/guest/cmd/proc"
)

// Of the kernel's log over netlink (nfnetlink_log.h): message types, attributes and
// commands.
const (
	nflogPacket = unix.NFNL_SUBSYS_ULOG << 8
	nflogConfig = unix.NFNL_SUBSYS_ULOG<<8 | 1

	nfulaPayload = 9

	nfulaCmd   = 1
	nfulaMode  = 2
	nfulaQueue = 5 // how many packets are told of at once; without, it takes a second
	nfulnlBind = 1
	nfulnlCopy = 2 // the packet
)

// watchRefused has the kernel tell of what it refuses, for the record. It tells at most 50
// times a second, and nothing depends on it.
func (g *Enforcer) watchRefused() error {
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
	if err != nil {
		return err
	}
	configure := func(attr uint16, data []byte) error {
		b, err := netlink.MarshalAttributes([]netlink.Attribute{{Type: attr, Data: data}})
		if err != nil {
			return err
		}
		head := nfgen(unix.AF_UNSPEC)
		binary.BigEndian.PutUint16(head[2:], logGroup)
		_, err = conn.Execute(netlink.Message{
			Header: netlink.Header{Type: nflogConfig, Flags: netlink.Request | netlink.Acknowledge},
			Data:   append(head, b...),
		})
		return err
	}
	// struct nfulnl_msg_config_mode: how much of a packet, how to copy, padding.
	mode := append(binary.BigEndian.AppendUint32(nil, 64), nfulnlCopy, 0)
	for _, step := range []struct {
		attr uint16
		data []byte
	}{{nfulaCmd, []byte{nfulnlBind}}, {nfulaMode, mode}, {nfulaQueue, binary.BigEndian.AppendUint32(nil, 1)}} {
		if err := configure(step.attr, step.data); err != nil {
			conn.Close()
			return err
		}
	}
	g.open = append(g.open, conn)
	go func() {
		for failed := 0; failed < 100; {
			messages, err := conn.Receive()
			if errors.Is(err, os.ErrClosed) || errors.Is(err, unix.EBADF) {
				return
			}
			if err != nil {
				failed++
				proc.AcceptPause() // some were lost, mostly
				continue
			}
			failed = 0
			for _, m := range messages {
				if m.Header.Type == nflogPacket {
					g.logRefused(m.Data)
				}
			}
		}
	}()
	return nil
}

// logRefused puts a refused packet into the record.
func (g *Enforcer) logRefused(data []byte) {
	if len(data) < 4 {
		return
	}
	attrs, err := netlink.NewAttributeDecoder(data[4:])
	if err != nil {
		return
	}
	for attrs.Next() {
		if attrs.Type() != nfulaPayload {
			continue
		}
		if d, ok := readPacket(attrs.Bytes()); ok {
			if d.addr.IsMulticast() && d.protocol != "tcp" && d.protocol != "udp" {
				return // the kernel itself: who it is in a group with
			}
			s := g.active.Load()
			d.rule = string(s.rules.Addr(d.addr))
			if s.rules.Addr(d.addr).Reaches() {
				return // it was refused under the policy before
			}
			g.log.add(d)
		}
	}
}

// readPacket tells where a packet was going.
func readPacket(p []byte) (d decision, ok bool) {
	var proto byte
	var rest []byte
	switch {
	case len(p) >= 20 && p[0]>>4 == 4:
		head := int(p[0]&15) * 4
		if head < 20 || len(p) < head {
			return d, false
		}
		d.addr, proto, rest = netip.AddrFrom4([4]byte(p[16:20])), p[9], p[head:]
		if binary.BigEndian.Uint16(p[6:])&0x1fff != 0 {
			rest = nil // a later fragment has no ports
		}
	case len(p) >= 40 && p[0]>>4 == 6:
		d.addr, proto, rest = netip.AddrFrom16([16]byte(p[24:40])), p[6], p[40:]
	default:
		return d, false
	}
	switch proto {
	case unix.IPPROTO_TCP, unix.IPPROTO_UDP:
		d.protocol = "tcp"
		if proto == unix.IPPROTO_UDP {
			d.protocol = "udp"
		}
		if len(rest) >= 4 {
			d.port = binary.BigEndian.Uint16(rest[2:])
		}
	case unix.IPPROTO_ICMP, unix.IPPROTO_ICMPV6:
		d.protocol = "icmp"
	default:
		d.protocol = strconv.Itoa(int(proto))
	}
	return d, true
}
