//go:build linux

package pid1

import (
	"os"

	"golang.org/x/sys/unix"
)

// giveStdio sends the container's stdout and stderr and the keeper's socket to the peer, if
// it is root's.
func giveStdio(conn *os.File, keep int) {
	giveRoot(conn, 1, 2, keep)
}

// giveRoot sends descriptors to the peer, with one byte, if it is root's, and reports whether it has.
func giveRoot(conn *os.File, fds ...int) (sent bool) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return false
	}
	raw.Control(func(fd uintptr) {
		peer, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
		if err == nil && peer.Uid == 0 {
			err = unix.Sendmsg(int(fd), []byte{'\n'}, unix.UnixRights(fds...), nil, unix.MSG_NOSIGNAL|unix.MSG_DONTWAIT)
			sent = err == nil
		}
	})
	return sent
}
