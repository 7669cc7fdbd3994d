//go:build linux

package egress

import (
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// run runs a program in the namespace, as a process of "docker exec" would.
func (ns *netns) run(line string) (out []byte, err error) {
	ns.do(func() {
		f := strings.Fields(line)
		out, err = exec.Command(f[0], f[1:]...).CombinedOutput()
	})
	return out, err
}

func (ns *netns) must(lines ...string) {
	ns.t.Helper()
	for _, line := range lines {
		if out, err := ns.run(line); err != nil {
			ns.t.Fatalf("%s: %v: %s", line, err, out)
		}
	}
}

// watched is a namespace with a device, IPv4 and IPv6, whose changes are followed.
type watched struct {
	*netns
	outside *netns
	table   *kernelTable
	watcher *watcher
}

func newWatched(t *testing.T) *watched {
	t.Helper()
	return newWatchedWith(t, tableOwner|tablePersist)
}

// newWatchedWith is newWatched with a table that is to have other flags.
func newWatchedWith(t *testing.T, flags uint32) *watched {
	t.Helper()
	w := &watched{netns: newNetns(t), outside: newNetns(t)}
	w.outside.must(fmt.Sprintf("ip link add out0 type veth peer name eth0 netns %d", w.tid), "ip link set out0 up")
	w.must("ip link set eth0 up", "ip addr add 10.99.0.2/24 dev eth0", "ip addr add fd99::2/64 dev eth0",
		"ip route add default via 10.99.0.1", "ip -6 route add default via fd99::1")
	var err error
	w.do(func() {
		if w.table, err = openTable(); err == nil {
			w.table.flags = flags
			w.watcher, err = watch(w.table)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		w.watcher.Close()
		w.table.Close()
	})
	w.install(&ruleset{mark: 1, ports: []uint16{1}, dns: true, proxy: true})
	return w
}

func (w *watched) install(r *ruleset) {
	w.t.Helper()
	if err := w.table.install(r); err != nil {
		w.t.Fatal(err)
	}
}

// reported waits for the report of a change.
func (w *watched) reported() string {
	w.t.Helper()
	select {
	case err := <-w.watcher.changed:
		return err.Error()
	case <-time.After(5 * time.Minute):
		w.t.Fatal("no change was reported")
		return ""
	}
}

func TestForeignChangesAreReported(t *testing.T) {
	t.Parallel()
	const rules, device, address, route, rule, queues = "the nftables rules", "a network device", "an address", "a route", "a rule for routes", "traffic control"
	for _, test := range []struct{ change, want string }{
		{"nft add table inet mine", rules},
		{"nft add table netdev mine", rules},
		{"nft add chain inet before c { type filter hook output priority -300; policy accept; }", rules},
		{"nft add set inet before more { type ipv4_addr; }", rules},
		{"nft add element inet before s { 1.2.3.4 }", rules},
		{"nft delete table inet before", rules},
		{"nft flush ruleset", rules},
		{"ip link add d0 type veth peer name d1", device},
		{"ip link set eth0 down", device},
		{"ip link set eth0 mtu 1400", device},
		{"ip link del eth0", device},
		{"ip link set lo down", device},
		{"ip addr add 10.99.0.3/24 dev eth0", address},
		{"ip addr del 10.99.0.2/24 dev eth0", address},
		{"ip addr add fd99::3/64 dev eth0", address},
		{"ip addr del fd99::2/64 dev eth0", address},
		{"ip route add 203.0.113.0/24 via 10.99.0.1", route},
		{"ip route add 203.0.113.0/24 via 10.99.0.1 proto kernel", route},
		{"ip route replace default via 10.99.0.9", route},
		{"ip route del default", route},
		{"ip -6 route add 2001:db8::/32 via fd99::1", route},
		{"ip -6 route add 2001:db8::/32 via fd99::1 proto ra", route},
		{"ip -6 route del default", route},
		{"ip rule add fwmark 7 table 7", rule},
		{"ip -6 rule del table main", rule},
		{"tc qdisc add dev eth0 clsact", queues},
		{"tc qdisc replace dev eth0 root pfifo", queues},
	} {
		t.Run(test.change, func(t *testing.T) {
			w := newWatched(t)
			if strings.Contains(test.change, " before") || test.change == "nft flush ruleset" {
				// As the engine leaves it in networks that users make.
				w.watcher.Close()
				w.must("nft add table inet before", "nft add set inet before s { type ipv4_addr; }")
				var err error
				w.do(func() { w.watcher, err = watch(w.table) })
				if err != nil {
					t.Fatal(err)
				}
			}
			w.must(test.change)
			// The addresses and routes of a device go before it.
			if got := w.reported(); got != test.want && !(strings.HasPrefix(test.change, "ip link") && (got == address || got == route)) {
				t.Errorf("reported is %q, want %q", got, test.want)
			}
		})
	}
}

// An ioctl leaves no trace of who made it.
func TestForeignChangesByIoctlAreReported(t *testing.T) {
	t.Parallel()
	w := newWatched(t)
	w.do(linksDown)
	if got := w.reported(); got != "a network device" {
		t.Errorf("reported is %q", got)
	}
	w = newWatched(t)
	w.do(func() {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Error(err)
			return
		}
		defer unix.Close(fd)
		req, err := unix.NewIfreq("eth0")
		if err == nil {
			err = errors.Join(req.SetInet4Addr([]byte{10, 99, 0, 77}), unix.IoctlIfreq(fd, unix.SIOCSIFADDR, req))
		}
		if err != nil {
			t.Error(err)
		}
	})
	if got := w.reported(); got != "an address" {
		t.Errorf("reported is %q", got)
	}
}

// What the kernel does by itself, and this process, ends no session. The messages of a socket
// are in order: the first report is of what comes last.
func TestOwnAndKernelsChangesAreNotReported(t *testing.T) {
	t.Parallel()
	w := newWatched(t) // its IPv6 addresses are being checked for duplicates
	w.outside.must("ip addr add fd99::1/64 dev out0 nodad", "ip link set out0 down", "ip link set out0 up",
		"ip addr add fe80::99/64 dev out0 nodad")
	// A router comes, has all choose addresses, and goes.
	advertise := func(lifetime byte) {
		l := &lab{t: w.t, inside: w.netns, outside: w.outside}
		router := l.outside.packets("ip6:ipv6-icmp", "::")
		prefix := []byte{3, 4, 64, 0xc0, 0, 0, 0, lifetime, 0, 0, 0, lifetime, 0, 0, 0, 0, 0x20, 0x01, 0x0d, 0xb8, 0, 9, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}
		sendAdvert(w.t, w.outside, router, append([]byte{ndRouterAdvert, 0, 0, 0, 64, 0, 0, lifetime, 0, 0, 0, 0, 0, 0, 0, 0}, prefix...))
	}
	w.do(func() { exec.Command("sysctl", "-qw", "net.ipv6.conf.eth0.accept_ra=2").Run() })
	w.outside.do(func() { exec.Command("sysctl", "-qw", "net.ipv6.conf.out0.forwarding=1").Run() })
	until := func(what string, want bool, line, text string) {
		t.Helper()
		for deadline := time.Now().Add(5 * time.Minute); ; time.Sleep(50 * time.Millisecond) {
			out, err := w.run(line)
			if err == nil && strings.Contains(string(out), text) == want {
				return
			}
			if time.Now().After(deadline) {
				t.Fatalf("%s: %s, %v", what, out, err)
			}
			if want {
				advertise(100)
			} else {
				advertise(0)
			}
		}
	}
	until("an address of the router's prefix", true, "ip -6 addr show dev eth0", "2001:db8:9:")
	until("its route", true, "ip -6 route show default", "proto ra")
	until("the route's end", false, "ip -6 route show default", "proto ra")
	w.must("ip -6 neigh replace fd99::77 lladdr 02:00:00:00:00:01 dev eth0") // not followed
	compare := func() (err error) {
		w.do(func() { err = w.watcher.compare() })
		return err
	}
	if err := compare(); err != nil {
		t.Errorf("compared with the start: %v", err)
	}
	w.must("tc qdisc add dev eth0 clsact")
	if got := w.reported(); got != "traffic control" {
		t.Errorf("reported is %q", got)
	}
	if err := compare(); err == nil {
		t.Error("compared with the start nothing is new")
	}
}

// More own changes than a socket can hold, and failures among them, are not reported. The
// first foreign one is, even if its messages are lost.
func TestOwnRulesAreNotReported(t *testing.T) {
	t.Parallel()
	w := newWatched(t)
	var many []netip.Prefix
	for i := range 1000 {
		many = append(many, netip.PrefixFrom(netip.AddrFrom4([4]byte{11, byte(i >> 8), byte(i), 0}), 25))
	}
	for range 5 {
		w.install(&ruleset{mark: 1, deny: many, allow: many, protected: many})
	}
	if err := w.table.install(&ruleset{mark: 1, upstream: make([]netip.Addr, 1)}); err == nil {
		t.Error("rules with an address that is none were installed")
	}
	w.install(&ruleset{mark: 1})
	if err := w.table.untouched(); err != nil {
		t.Errorf("after own changes: %v", err)
	}
	select {
	case err := <-w.watcher.changed:
		t.Errorf("reported is %q", err)
	default:
	}
	w.must("nft add table inet mine")
	if err := w.table.untouched(); err != errRules {
		t.Errorf("after a foreign change: %v", err)
	}
	if got := w.reported(); got != errRules.Error() {
		t.Errorf("reported is %q", got)
	}
}

// A kernel that does not know the flags of the table has it unowned, and others' changes of
// it are reported.
func TestRulesOfOldKernelsAreWatched(t *testing.T) {
	t.Parallel()
	w := newWatchedWith(t, 1<<7) // which no kernel knows
	if w.table.flags != 0 {
		t.Errorf("the flags of the table are %#x, want none", w.table.flags)
	}
	w.install(&ruleset{mark: 1})
	w.must("nft insert rule inet " + w.table.names[0] + " out accept")
	if got := w.reported(); got != errRules.Error() {
		t.Errorf("reported is %q", got)
	}
}

// Messages from others with NET_ADMIN, to a socket or to its group, are neither taken for the
// kernel's nor keep its own from being heard.
func TestForgedMessagesChangeNothing(t *testing.T) {
	t.Parallel()
	w := newWatched(t)
	var ports []uint32
	for _, f := range w.watcher.files {
		raw, err := f.SyscallConn()
		if err != nil {
			t.Fatal(err)
		}
		raw.Control(func(fd uintptr) {
			if addr, err := unix.Getsockname(int(fd)); err == nil {
				ports = append(ports, addr.(*unix.SockaddrNetlink).Pid)
			}
		})
	}
	// A part of a longer message, which never ends, in the name of the owner of the rules.
	forged := slices.Concat(native(20), native16(unix.RTM_NEWLINK), native16(unix.NLM_F_MULTI), native(0), native(w.table.port), native(0))
	w.do(func() {
		for _, to := range []struct {
			family int
			addr   unix.SockaddrNetlink
			heard  bool
		}{
			{unix.NETLINK_NETFILTER, unix.SockaddrNetlink{Family: unix.AF_NETLINK, Pid: ports[0]}, true},
			{unix.NETLINK_NETFILTER, unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: 1 << (unix.NFNLGRP_NFTABLES - 1)}, true},
			{unix.NETLINK_ROUTE, unix.SockaddrNetlink{Family: unix.AF_NETLINK, Pid: ports[1]}, true},
			{unix.NETLINK_ROUTE, unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: 1 << (unix.RTNLGRP_LINK - 1)}, true},
			{unix.NETLINK_NETFILTER, unix.SockaddrNetlink{Family: unix.AF_NETLINK, Pid: w.table.port}, false},
		} {
			fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, to.family)
			if err != nil {
				t.Error(err)
				return
			}
			err = unix.Sendto(fd, forged, 0, &to.addr)
			unix.Close(fd)
			if refused := errors.Is(err, unix.ECONNREFUSED); refused == to.heard && to.addr.Groups == 0 {
				t.Errorf("sent to %+v: %v", to.addr, err)
			}
		}
	})
	w.install(&ruleset{mark: 1})
	w.must("tc qdisc add dev eth0 clsact")
	if got := w.reported(); got != "traffic control" {
		t.Errorf("reported is %q", got)
	}
}

func FuzzSubject(f *testing.F) {
	f.Add(uint16(unix.RTM_NEWLINK), make([]byte, 40))
	f.Add(uint16(unix.RTM_DELADDR), []byte{10, 64, 0, 0, 1, 0, 0, 0, 20, 0, 1, 0, 0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1})
	f.Add(uint16(unix.RTM_NEWROUTE), make([]byte, 13))
	f.Fuzz(func(t *testing.T, kind uint16, data []byte) {
		if s := subject(kind, data); s != subject(kind, slices.Clone(data)) {
			t.Errorf("the subject of %d %x differs", kind, data)
		}
	})
}

// The table is this process's alone, and outlives it: what runs inside is killed a moment
// after PID 1, and must not see the network without rules.
func TestRulesAreOwnedAndOutliveTheirOwner(t *testing.T) {
	l := newLab(t)
	l.begin(1, parse(t, "deny-all"))
	table := l.enforcer.table
	if table.flags != tableOwner|tablePersist {
		t.Logf("this kernel has no tables that are owned and persist")
	} else {
		for _, line := range []string{
			"nft delete table inet " + table.names[0], "nft flush chain inet " + table.names[0] + " out", "nft delete chain inet " + table.names[0] + " forward",
			"nft add rule inet " + table.names[0] + " out accept", "nft insert rule inet " + table.names[0] + " out accept",
		} {
			if out, err := l.inside.run(line); err == nil {
				t.Errorf("%s: done %s", line, out)
			}
		}
		l.inside.must("nft flush ruleset") // of what it may
	}
	blocked := func(when string) {
		t.Helper()
		if got := l.udp(otherAddr + ":9000"); got == "ping" {
			t.Errorf("%s: %q", when, got)
		}
		if hits := l.took(); len(hits) > 0 {
			t.Errorf("%s: reached %q", when, hits)
		}
	}
	blocked("while it lives")
	l.enforcer.watch.Close()
	table.Close()
	blocked("after its end")
	if out, err := l.inside.run("nft list tables"); err != nil || !strings.Contains(string(out), table.names[0]) {
		t.Errorf("after its end there are %s, %v", out, err)
	}
}
