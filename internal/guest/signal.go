package guest

import (
	"os"
	"strconv"
	"strings"
	"syscall"

	"github.com/seed-1a2d6d8f/sandbox/internal/errdefs"
)

// linuxSignals are the numbers of Linux on amd64 and arm64 (signal(7)).
var linuxSignals = map[string]int{
	"SIGHUP": 1, "SIGINT": 2, "SIGQUIT": 3, "SIGILL": 4, "SIGTRAP": 5, "SIGABRT": 6, "SIGBUS": 7,
	"SIGFPE": 8, "SIGKILL": 9, "SIGUSR1": 10, "SIGSEGV": 11, "SIGUSR2": 12, "SIGPIPE": 13,
	"SIGALRM": 14, "SIGTERM": 15, "SIGSTKFLT": 16, "SIGCHLD": 17, "SIGCONT": 18, "SIGSTOP": 19,
	"SIGTSTP": 20, "SIGTTIN": 21, "SIGTTOU": 22, "SIGURG": 23, "SIGXCPU": 24, "SIGXFSZ": 25,
	"SIGVTALRM": 26, "SIGPROF": 27, "SIGWINCH": 28, "SIGIO": 29, "SIGPWR": 30, "SIGSYS": 31,
}

// The real-time signals of Linux, as programs with glibc count them, and the first one that the kernel has.
const (
	firstRealTime = 32
	realTimeMin   = 34
	realTimeMax   = 64
)

// unnamed returns the number of a signal without a name in package syscall, which all systems leave to Linux: a real-time
// signal, or 0, which sends nothing and tells whether the process lives.
func unnamed(s syscall.Signal) (int, bool) {
	return int(s), s == 0 || s >= firstRealTime && s <= realTimeMax
}

// ParseSignal returns the signal of a name of Linux, with or without SIG, or of its number there. Names of real-time signals
// are RTMIN, RTMIN+1, RTMAX-1, RTMAX and so on.
func ParseSignal(text string) (os.Signal, error) {
	name := strings.TrimPrefix(strings.ToUpper(text), "SIG")
	n, known := linuxSignals["SIG"+name]
	if !known {
		n, known = realTime(name)
	}
	if !known {
		var err error
		if n, err = strconv.Atoi(text); err != nil || n < 1 || n > realTimeMax {
			return nil, errdefs.Invalid("%q is no signal of Linux, such as TERM, SIGHUP or 9", errdefs.Printable(errdefs.Cut(text, 32)))
		}
	}
	return HostSignal(n), nil
}

// realTime returns the number of a real-time signal.
func realTime(name string) (n int, ok bool) {
	offset, low := strings.CutPrefix(name, "RTMIN")
	n = realTimeMin
	if !low {
		if offset, ok = strings.CutPrefix(name, "RTMAX"); !ok {
			return 0, false
		}
		n = realTimeMax
	}
	if offset != "" {
		by, err := strconv.Atoi(offset)
		if err != nil || low != (offset[0] == '+') {
			return 0, false
		}
		n += by
	}
	return n, n >= realTimeMin && n <= realTimeMax
}
