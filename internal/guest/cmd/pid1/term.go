//go:build linux

package pid1

import (
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/seed-1a2d6d8f/sandbox/internal/guest/cmd/proc"
)

// termAction returns the addresses of the handler of SIGTERM and of its restorer. Package
// os/signal does not know the sender of a signal, and signalfd can't be used: Go's runtime
// unblocks SIGTERM in every thread, whatever mask it was started with.
func termAction() (handler, restorer uintptr)

// termEvent is an eventfd. The handler adds to it at a request to stop.
//
//lint:ignore U1000 the handler reads it
var termEvent int32

// stopRequests returns a channel that is closed at a SIGTERM from outside this PID
// namespace: a plain kill with 0 for its sender. A process inside can write that number too
// (rt_sigqueueinfo), but not together with the code of a plain kill.
//
// One way stays open: a queued signal beyond RLIMIT_SIGPENDING arrives without its details
// and looks the same. Then the session stops, gracefully: the processes inside, which can
// kill each other anyhow, gain nothing.
func stopRequests() (<-chan struct{}, error) {
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("eventfd: %w", err)
	}
	termEvent = int32(fd)
	handler, restorer := termAction()
	const ( // asm-generic/signal-defs.h
		saSiginfo  = 0x00000004
		saRestorer = 0x04000000
		saOnStack  = 0x08000000
		saRestart  = 0x10000000
	)
	if err := proc.HandleSignal(unix.SIGTERM, handler, restorer, saSiginfo|saRestorer|saOnStack|saRestart); err != nil {
		return nil, fmt.Errorf("handle SIGTERM: %w", err)
	}
	stop := make(chan struct{})
	go func() {
		var buf [8]byte
		for {
			n, err := unix.Read(fd, buf[:])
			if err == nil && n == len(buf) {
				close(stop)
				return
			}
			if err != unix.EINTR {
				time.Sleep(10 * time.Millisecond)
			}
		}
	}()
	return stop, nil
}
