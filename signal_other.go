//go:build !unix

package sandbox

import (
	"os"
	"syscall"
)

// linuxSignal takes the numbers as they are: package syscall invents the signals of
// this system, with Linux' numbers.
func linuxSignal(sig os.Signal) (int, error) {
	s, ok := sig.(syscall.Signal)
	if !ok || s <= 0 || s > 31 {
		return 0, invalid("signal %v is not one of package syscall", sig)
	}
	return int(s), nil
}

func hostSignal(n int) os.Signal { return syscall.Signal(n) }
