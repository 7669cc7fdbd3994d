//go:build linux

package egress

import (
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/seed-1a2d6d8f/sandbox/internal/guest/wire"
)

// bootServers returns the DNS servers in the container's resolv.conf.
func bootServers() []netip.Addr {
	file, err := os.OpenFile("/etc/resolv.conf", os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil
	}
	defer file.Close()
	text, _ := io.ReadAll(io.LimitReader(file, 64<<10))
	return nameservers(string(text))
}

// ownNetworks returns the networks of this host's devices.
func ownNetworks() []netip.Prefix {
	addrs, _ := net.InterfaceAddrs()
	var all []netip.Prefix
	for _, a := range addrs {
		if p, err := netip.ParsePrefix(a.String()); err == nil && !p.Addr().IsLoopback() && !p.Addr().Is4In6() {
			all = append(all, p.Masked())
		}
	}
	return all
}

// gateways returns the gateways of the default routes. The engine's machine has their
// addresses, or forwards for them.
func gateways() (all []netip.Addr) {
	routes, _ := dump(unix.RTM_GETROUTE, unix.SizeofRtMsg)
	for _, m := range routes {
		if len(m.Data) < unix.SizeofRtMsg || m.Data[1] != 0 {
			continue // not a default route
		}
		if a, ok := netip.AddrFromSlice(attributes(m.Data[unix.SizeofRtMsg:])[unix.RTA_GATEWAY]); ok && !slices.Contains(all, a) {
			all = append(all, a)
		}
	}
	return all
}

// isolated reports whether this network namespace has no device but loopback, as in the
// network mode none, which no network can be connected to later.
func isolated() bool {
	links, err := net.Interfaces()
	return err == nil && !slices.ContainsFunc(links, func(l net.Interface) bool { return l.Flags&net.FlagLoopback == 0 })
}

// linksDown takes the container off every network, when the kernel can't filter.
func linksDown() {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return
	}
	defer unix.Close(fd)
	links, _ := net.Interfaces()
	for _, l := range links {
		if l.Flags&net.FlagLoopback != 0 {
			continue
		}
		req, err := unix.NewIfreq(l.Name)
		if err != nil || unix.IoctlIfreq(fd, unix.SIOCGIFFLAGS, req) != nil {
			continue
		}
		req.SetUint16(req.Uint16() &^ unix.IFF_UP)
		unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, req)
	}
}

// nameservers returns the DNS servers of a resolv.conf, without those that can't be one in every
// container: an address with a zone (fe80::1%eth0) is one of a device, which may have another name there.
func nameservers(text string) []netip.Addr {
	var list []netip.Addr
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		if len(fields) < 2 || fields[0] != "nameserver" {
			continue
		}
		a, err := netip.ParseAddr(fields[1])
		if a = a.Unmap(); err == nil && len(list) < wire.MaxUpstream && checkServers([]netip.Addr{a}) == nil {
			list = append(list, a)
		}
	}
	return list
}
