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

// Message types, attributes and commands of nflog, the kernel's log over netlink
// (nfnetlink_log.h).
const (
	nflogPacket = unix.NFNL_SUBSYS_ULOG << 8
	nflogConfig = unix.NFNL_SUBSYS_ULOG<<8 | 1

	nfulaPayload = 9

	nfulaCmd   = 1
	nfulaMode  = 2
	nfulaQueue = 5 // packets in a message; without it the kernel waits for a second
	nfulnlBind = 1
	nfulnlCopy = 2 // the packet
)

// watchRefused logs the packets that the kernel refuses, at most 50 in a second. Nothing
// depends on it.
func (e *Enforcer) watchRefused() error {
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
	if err != nil {
		return err
	}
	// struct nfulnl_msg_config_mode: how much of a packet, how to copy, padding.
	mode := append(binary.BigEndian.AppendUint32(nil, 64), nfulnlCopy, 0)
	for _, step := range []struct {
		attr uint16
		data []byte
	}{{nfulaCmd, []byte{nfulnlBind}}, {nfulaMode, mode}, {nfulaQueue, binary.BigEndian.AppendUint32(nil, 1)}} {
		if err := configureLog(conn, step.attr, step.data); err != nil {
			conn.Close()
			return err
		}
	}
	e.open = append(e.open, conn)
	go e.readRefused(conn)
	return nil
}

// configureLog sets an attribute of logGroup.
func configureLog(conn *netlink.Conn, attr uint16, data []byte) error {
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

// readRefused logs what the kernel sends on conn, until conn is closed or only fails.
func (e *Enforcer) readRefused(conn *netlink.Conn) {
	for failed := 0; failed < 100; {
		messages, err := conn.Receive()
		if errors.Is(err, os.ErrClosed) || errors.Is(err, unix.EBADF) {
			return
		}
		if err != nil {
			failed++
			proc.AcceptPause() // mostly some were lost
			continue
		}
		failed = 0
		for _, m := range messages {
			if m.Header.Type == nflogPacket {
				e.logRefused(m.Data)
			}
		}
	}
}

// logRefused adds a refused packet to the log.
func (e *Enforcer) logRefused(data []byte) {
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
				return // sent by the kernel itself, for group membership
			}
			s := e.active.Load()
			d.rule = string(s.rules.Addr(d.addr))
			if s.rules.Addr(d.addr).Reaches() {
				return // it was refused under the policy before
			}
			e.log.add(d)
		}
	}
}

// Types of ICMP and ICMPv6.
const (
	echoRequest4 = 8
	echoRequest6 = 128
)

// readPacket returns the destination of a packet, and false for one that the kernel sent by itself:
// without NET_RAW, programs send no other ICMP messages than requests for an echo.
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
		if len(rest) > 0 && rest[0] != echoRequest4 && rest[0] != echoRequest6 {
			return d, false
		}
	default:
		d.protocol = strconv.Itoa(int(proto))
	}
	return d, true
}
