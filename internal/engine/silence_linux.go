package engine

import (
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// limitSilence bounds how long a TCP connection waits for the acknowledgement of what it has sent.
// It would retransmit that for some 15 min, and send no keepalives meanwhile.
func limitSilence(network, _ string, conn syscall.RawConn) error {
	if !strings.HasPrefix(network, "tcp") {
		return nil
	}
	var err error
	if e := conn.Control(func(fd uintptr) {
		err = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(deadAfter.Milliseconds()))
	}); e != nil {
		return e
	}
	return err
}
