//go:build unix

package guest

import (
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/seed-1a2d6d8f/sandbox/internal/errdefs"
)

// LinuxSignal translates a signal of this system into Linux' number, which is what
// the sandbox knows: SIGUSR1 is 10 there and 30 on macOS.
func LinuxSignal(sig os.Signal) (int, error) {
	s, ok := sig.(syscall.Signal)
	if !ok {
		return 0, errdefs.Invalid("signal %v is not one of package syscall", sig)
	}
	if n, ok := linuxSignals[unix.SignalName(s)]; ok {
		return n, nil
	}
	if n, ok := unnamed(s); ok {
		return n, nil
	}
	return 0, errdefs.Invalid("signal %d is not known in the sandbox", int(s))
}

// HostSignal is LinuxSignal's inverse.
func HostSignal(n int) os.Signal {
	for name, number := range linuxSignals {
		if number == n {
			if s := unix.SignalNum(name); s != 0 {
				return s
			}
		}
	}
	return syscall.Signal(n) // a real-time signal, or one that only Linux has
}
