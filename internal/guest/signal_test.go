package guest_test

import (
	"errors"
	"syscall"
	"testing"

	"github.com/seed-1a2d6d8f/sandbox/internal/errdefs"
	"github.com/seed-1a2d6d8f/sandbox/internal/guest"
)

// Names and numbers are those that kill -l lists with glibc.
func TestSignalsHaveTheNumbersOfLinux(t *testing.T) {
	for text, want := range map[string]int{
		"TERM": 15, "sigusr1": 10, "9": 9, "32": 32, "64": 64,
		"RTMIN": 34, "SIGRTMIN+1": 35, "rtmin+30": 64, "RTMAX": 64, "RTMAX-14": 50, "SIGRTMAX-30": 34,
	} {
		sig, err := guest.ParseSignal(text)
		if err != nil {
			t.Errorf("ParseSignal(%q): %v", text, err)
			continue
		}
		if got, err := guest.LinuxSignal(sig); got != want || err != nil {
			t.Errorf("signal %q is %d, %v; want %d", text, got, err, want)
		}
	}
	for _, text := range []string{"", "0", "65", "-1", "NOSUCH", "RTMIN+31", "RTMIN-1", "RTMIN+", "RTMIN1", "RTMAX+1", "RTMAX-31", "SIGSIGTERM"} {
		if sig, err := guest.ParseSignal(text); !errors.Is(err, errdefs.InvalidArgument) {
			t.Errorf("ParseSignal(%q) = %v, %v; want ErrInvalidArgument", text, sig, err)
		}
	}
	for _, n := range []syscall.Signal{-1, 65} {
		if got, err := guest.LinuxSignal(n); !errors.Is(err, errdefs.InvalidArgument) {
			t.Errorf("LinuxSignal(%d) = %d, %v; want ErrInvalidArgument", int(n), got, err)
		}
	}
	if got, err := guest.LinuxSignal(syscall.Signal(0)); got != 0 || err != nil {
		t.Errorf("LinuxSignal(0) = %d, %v; want 0", got, err)
	}
}
