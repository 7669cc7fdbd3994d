//go:build linux

package egress

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// What another process changed.
var (
	errRules    = errors.New("the nftables rules")
	errOverflow = errors.New("the network, faster than could be followed")
)

// watcher notices when another process changes rules or devices, addresses and routes. Only
// a process with NET_ADMIN can, which none inside has: it was started from outside the
// sandbox, such as by "docker exec", which gives a process all capabilities of the container.
//
// A message of the kernel carries the port of the socket that caused it, which nobody else
// can have while it is open. It carries none where the kernel acted by itself, or for an
// ioctl: then what changed decides, see subject.
type watcher struct {
	table   *kernelTable
	files   []*os.File
	known   map[string]bool // state at the start
	changed chan error      // receives what has changed, once
	running sync.WaitGroup
}

// routeGroups are the groups of rtnetlink that are followed.
var routeGroups = []int{
	unix.RTNLGRP_LINK, unix.RTNLGRP_TC, unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR,
	unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE, unix.RTNLGRP_IPV4_RULE, unix.RTNLGRP_IPV6_RULE,
}

// watch begins to follow changes that are not those of t.
func watch(t *kernelTable) (*watcher, error) {
	w := &watcher{table: t, changed: make(chan error, 1)}
	rules, err := w.subscribe(unix.NETLINK_NETFILTER, unix.NFNLGRP_NFTABLES)
	if err != nil {
		return nil, fmt.Errorf("follow the rules: %w", err)
	}
	network, err := w.subscribe(unix.NETLINK_ROUTE, routeGroups...)
	if err == nil {
		w.known, err = subjects()
	}
	if err != nil {
		w.Close()
		return nil, fmt.Errorf("follow the network: %w", err)
	}
	w.running.Go(func() { w.follow(rules, w.judgeRules, t.untouched) })
	w.running.Go(func() { w.follow(network, w.judgeNetwork, w.compare) })
	return w, nil
}

// Close ends the watcher. What has changed since then is not reported.
func (w *watcher) Close() error {
	for _, f := range w.files {
		f.Close()
	}
	w.running.Wait()
	return nil
}

func (w *watcher) subscribe(family int, groups ...int) (syscall.RawConn, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, family)
	if err != nil {
		return nil, err
	}
	file := os.NewFile(uintptr(fd), "netlink")
	w.files = append(w.files, file)
	// The session may be paused for long, while routers advertise themselves.
	if unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 4<<20) != nil {
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, 4<<20)
	}
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return nil, err
	}
	for _, g := range groups {
		if err := unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_ADD_MEMBERSHIP, g); err != nil {
			return nil, err
		}
	}
	return file.SyscallConn()
}

// follow reads messages until judge reports a change, and calls verify when some were lost.
func (w *watcher) follow(conn syscall.RawConn, judge func(syscall.NetlinkMessage) error, verify func() error) {
	buf := make([]byte, 64<<10)
	for {
		messages, err := receive(conn, buf)
		if errors.Is(err, os.ErrClosed) {
			return
		}
		if err != nil {
			err = verify()
		}
		for ; err == nil && len(messages) > 0; messages = messages[1:] {
			err = judge(messages[0])
		}
		if err != nil {
			select {
			case w.changed <- err:
			default:
			}
			return
		}
	}
}

// receive returns the next messages of the kernel. An error other than os.ErrClosed says that
// some may be lost.
func receive(conn syscall.RawConn, buf []byte) (messages []syscall.NetlinkMessage, err error) {
	closed := conn.Read(func(fd uintptr) bool {
		var n int
		var from unix.Sockaddr
		n, from, err = unix.Recvfrom(int(fd), buf, unix.MSG_DONTWAIT|unix.MSG_TRUNC)
		if err == unix.EAGAIN || err == unix.EINTR {
			return false
		}
		if sender, ok := from.(*unix.SockaddrNetlink); err != nil || !ok || sender.Pid != 0 {
			return true // others may send to groups, too
		}
		if n > len(buf) {
			err = errOverflow
			return true
		}
		messages, err = syscall.ParseNetlinkMessage(buf[:n])
		return true
	})
	if closed != nil {
		return nil, os.ErrClosed
	}
	return messages, err
}

func (w *watcher) judgeRules(m syscall.NetlinkMessage) error {
	if m.Header.Pid == w.table.port {
		return nil
	}
	return errRules
}

func (w *watcher) judgeNetwork(m syscall.NetlinkMessage) error {
	const deleted = 1 // of RTM_NEW..., RTM_DEL..., RTM_GET..., RTM_SET...
	s := subject(m.Header.Type, m.Data)
	if m.Header.Pid == 0 && (s == "" || m.Header.Type%4 != deleted && w.known[s]) {
		return nil
	}
	return kindOfSubject(m.Header.Type)
}

// compare returns an error if the state differs from that at the start.
func (w *watcher) compare() error {
	now, err := subjects()
	if err != nil {
		return err
	}
	for s := range now {
		if !w.known[s] {
			return errOverflow
		}
	}
	if len(now) != len(w.known) {
		return errOverflow
	}
	return nil
}

func kindOfSubject(kind uint16) error {
	switch kind {
	case unix.RTM_NEWLINK, unix.RTM_DELLINK:
		return errors.New("a network device")
	case unix.RTM_NEWADDR, unix.RTM_DELADDR:
		return errors.New("an address")
	case unix.RTM_NEWROUTE, unix.RTM_DELROUTE:
		return errors.New("a route")
	case unix.RTM_NEWRULE, unix.RTM_DELRULE:
		return errors.New("a rule for routes")
	}
	return errors.New("traffic control")
}

// dumps are the requests that return all subjects, and the sizes of their headers.
var dumps = []struct{ kind, header int }{
	{unix.RTM_GETLINK, unix.SizeofIfInfomsg}, {unix.RTM_GETADDR, unix.SizeofIfAddrmsg}, {unix.RTM_GETROUTE, unix.SizeofRtMsg},
	{unix.RTM_GETRULE, unix.SizeofRtMsg}, {unix.RTM_GETQDISC, sizeofTcMsg},
}

const sizeofTcMsg = 20

// subjects returns the subject of everything that there is.
func subjects() (map[string]bool, error) {
	all := make(map[string]bool)
	for _, d := range dumps {
		messages, err := dump(d.kind, d.header)
		if err != nil {
			return nil, err
		}
		for _, m := range messages {
			if s := subject(uint16(m.Header.Type), m.Data); s != "" {
				all[s] = true
			}
		}
	}
	return all, nil
}

func dump(kind, header int) ([]netlink.Message, error) {
	conn, err := netlink.Dial(unix.NETLINK_ROUTE, nil)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(installTime))
	return conn.Execute(netlink.Message{
		Header: netlink.Header{Type: netlink.HeaderType(kind), Flags: netlink.Request | netlink.Dump},
		Data:   make([]byte, header),
	})
}

// subject is what a message of rtnetlink is about, in a form that stays the same for as long
// as only the kernel changes it: a device may lose its carrier, an IPv6 address is checked for
// duplicates. It is "" for what the kernel itself adds and removes: link-local addresses, and
// what routers advertise. Of these, routes are recognized by their protocol, which an ioctl
// can't set, and addresses by their limited lifetime.
func subject(kind uint16, data []byte) string {
	var header int
	switch kind &^ 3 {
	case unix.RTM_NEWLINK:
		header = unix.SizeofIfInfomsg
	case unix.RTM_NEWADDR:
		header = unix.SizeofIfAddrmsg
	case unix.RTM_NEWROUTE, unix.RTM_NEWRULE:
		header = unix.SizeofRtMsg
	default:
		header = sizeofTcMsg
	}
	if len(data) < header {
		return "malformed"
	}
	attrs := attributes(data[header:])
	word := func(at int) uint32 { return binary.NativeEndian.Uint32(data[at:]) }
	switch kind &^ 3 {
	case unix.RTM_NEWLINK:
		return fmt.Sprintf("device %x %d %q %x %x %x %t %x", data[:4], word(4), attrs[unix.IFLA_IFNAME], attrs[unix.IFLA_ADDRESS],
			attrs[unix.IFLA_MTU], attrs[unix.IFLA_MASTER], word(8)&unix.IFF_UP != 0, attributes(attrs[unix.IFLA_LINKINFO])[unix.IFLA_INFO_KIND])
	case unix.RTM_NEWADDR:
		a, _ := netip.AddrFromSlice(attrs[unix.IFA_ADDRESS])
		if data[0] == unix.AF_INET6 && (a.IsLinkLocalUnicast() || uint32(data[2])&unix.IFA_F_PERMANENT == 0) {
			return ""
		}
		return fmt.Sprintf("address %x %d %s %x", data[:2], word(4), a, attrs[unix.IFA_LOCAL])
	case unix.RTM_NEWROUTE:
		byKernel := data[5] == unix.RTPROT_KERNEL || data[5] == unix.RTPROT_RA || data[5] == unix.RTPROT_REDIRECT
		if data[0] == unix.AF_INET6 && byKernel {
			return ""
		}
		delete(attrs, unix.RTA_CACHEINFO)
		return fmt.Sprintf("route %x %x", data[:8], attrs)
	case unix.RTM_NEWRULE:
		return fmt.Sprintf("rule %x %x", data[:header], attrs)
	case unix.RTM_NEWQDISC:
		if word(8)>>16 == 0 {
			return "" // the default one
		}
		return fmt.Sprintf("queue %d %x %x %q", word(4), word(8), word(12), attrs[unix.TCA_KIND])
	}
	return fmt.Sprintf("message %d", kind&^3)
}

// attributes returns attributes by their types.
func attributes(data []byte) map[uint16][]byte {
	all := make(map[uint16][]byte)
	attrs, err := netlink.NewAttributeDecoder(data)
	if err != nil {
		return all
	}
	for attrs.Next() {
		all[attrs.Type()] = attrs.Bytes()
	}
	return all
}
