package guest

import (
	"os"
	"strconv"
	"strings"

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

// ParseSignal returns the signal of a name of Linux, with or without SIG, or of its number there.
func ParseSignal(text string) (os.Signal, error) {
	name := strings.ToUpper(text)
	n, known := linuxSignals["SIG"+strings.TrimPrefix(name, "SIG")]
	if !known {
		var err error
		if n, err = strconv.Atoi(text); err != nil || n < 1 || n > 31 {
			return nil, errdefs.Invalid("%q is no signal of Linux, such as TERM, SIGHUP or 9", errdefs.Printable(errdefs.Cut(text, 32)))
		}
	}
	return HostSignal(n), nil
}
