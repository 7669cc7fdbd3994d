//go:build !unix

package guest

import (
	"os"
	"syscall"

	"github.com/seed-1a2d6d8f/sandbox/internal/errdefs"
)

// LinuxSignal takes the numbers as they are: package syscall invents the signals of
// this system, with Linux' numbers.
func LinuxSignal(sig os.Signal) (int, error) {
	s, ok := sig.(syscall.Signal)
	if !ok {
		return 0, errdefs.Invalid("signal %v is not one of package syscall", sig)
	}
	if n, ok := unnamed(s); ok {
		return n, nil
	}
	if s < 0 || s > 31 {
		return 0, errdefs.Invalid("signal %d is not known in the sandbox", int(s))
	}
	return int(s), nil
}

// HostSignal is LinuxSignal's inverse.
func HostSignal(n int) os.Signal { return syscall.Signal(n) }
