//go:build linux

package pid1

import (
	"encoding/binary"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/seed-1a2d6d8f/sandbox/internal/guest/cmd/proc"
	"github.com/seed-1a2d6d8f/sandbox/internal/guest/wire"
)

// maxUsers bounds the processes that report use, each of which takes two descriptors. Root
// inside can pretend to be one: an idle timeout does not bound what is hostile.
const maxUsers = 512

// uses knows when the session was used: by the servers of its clients and the keeper, which
// write that into files of PID 1, and by connections to published ports, of which the kernel
// knows.
type uses struct {
	ports       []uint16
	connections func() int64 // to published ports, since the start

	mu       sync.Mutex
	users    []*user
	gone     [2]time.Duration // the last use of those that are gone, by wire.UseRequest and of the keeper
	accepted int64            // connections at the last look
}

// user is a process that reports use.
type user struct {
	file     *os.File
	detached bool
}

func newUses(ports []uint16, connections func() int64) *uses {
	return &uses{ports: ports, connections: connections}
}

// follow takes note of the uses of the process at the other end of conn until it closes that.
func (u *uses) follow(conn *os.File, detached bool) {
	conn.SetDeadline(time.Time{})
	fd, err := unix.MemfdCreate("uses", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return
	}
	one := &user{file: os.NewFile(uintptr(fd), "uses"), detached: detached}
	defer one.file.Close()
	if one.file.Truncate(wire.UseSize) != nil {
		return
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_GROW|unix.F_SEAL_SHRINK|unix.F_SEAL_SEAL); err != nil {
		return
	}
	if !u.add(one) {
		return
	}
	defer u.remove(one)
	if giveRoot(conn, fd) {
		conn.Read(make([]byte, 1))
	}
}

func (u *uses) add(one *user) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	if len(u.users) >= maxUsers {
		return false
	}
	u.users = append(u.users, one)
	return true
}

func (u *uses) remove(one *user) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.users = slices.DeleteFunc(u.users, func(other *user) bool { return other == one })
	last, inUse := one.read()
	if inUse {
		last = proc.BootTime()
	}
	at := &u.gone[index(one.detached)]
	*at = max(*at, last)
}

func index(detached bool) int {
	if detached {
		return 1
	}
	return 0
}

// read returns what a user has written down.
func (one *user) read() (last time.Duration, inUse bool) {
	var b [wire.UseSize]byte
	if _, err := one.file.ReadAt(b[:], 0); err != nil {
		return 0, false
	}
	return time.Duration(binary.NativeEndian.Uint64(b[:])), binary.NativeEndian.Uint64(b[8:]) > 0
}

// latest implements usage. The connections to published ports are what takes longer.
func (u *uses) latest(detached, thorough bool) (last time.Duration, now bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	last = u.gone[0]
	if detached {
		last = max(last, u.gone[1])
	}
	for _, one := range u.users {
		if one.detached && !detached {
			continue
		}
		at, inUse := one.read()
		last, now = max(last, at), now || inUse
	}
	if !now && thorough && len(u.ports) > 0 {
		accepted := u.connections()
		now = accepted != u.accepted || connected(u.ports)
		u.accepted = accepted
	}
	return last, now
}

// connected reports whether somebody outside has a connection to one of the ports.
func connected(ports []uint16) bool {
	var own []netip.Addr
	addrs, _ := net.InterfaceAddrs()
	for _, a := range addrs {
		if p, err := netip.ParsePrefix(a.String()); err == nil {
			own = append(own, p.Addr())
		}
	}
	found, _ := proc.FindTCP(proc.TCPEstablished, outside(ports, own))
	return found
}

// outside matches the connections to one of the ports that do not come from an address of this
// host, those of loopback included.
func outside(ports []uint16, own []netip.Addr) func(local, remote netip.AddrPort) bool {
	return func(local, remote netip.AddrPort) bool {
		from := remote.Addr()
		return slices.Contains(ports, local.Port()) && from != local.Addr() && !from.IsLoopback() && !slices.Contains(own, from)
	}
}
