//go:build linux

package pid1

import (
	"os"

	"golang.org/x/sys/unix"
)

// giveStdio sends the container's stdout and stderr and the keeper's socket to the peer, if
// it is root's.
func giveStdio(conn *os.File, keep int) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return
	}
	raw.Control(func(fd uintptr) {
		peer, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
		if err != nil || peer.Uid != 0 {
			return
		}
		unix.Sendmsg(int(fd), []byte{'\n'}, unix.UnixRights(1, 2, keep), nil, unix.MSG_NOSIGNAL|unix.MSG_DONTWAIT)
	})
}
