//go:build linux

package proc

import (
	"os"
	"strings"
	"testing"
)

func TestParseStatus(t *testing.T) {
	t.Parallel()
	const text = "Name:\tState:\\nState:\tT\nState:\tT (stopped)\nGroups:\t1 2\nvoluntary_ctxt_switches:\t3\nnonvoluntary_ctxt_switches:\t4\n"
	if got, ok := parseStatus(7, []byte(text)); !ok || got != (Thread{TID: 7, state: 'T', Switches: 7}) || !got.Stopped() {
		t.Errorf("got %+v, %t", got, ok)
	}
	// One that shows so many groups that the end is cut off has not been seen to stand still.
	cut, _, _ := strings.Cut(text, "nonvoluntary")
	if got, ok := parseStatus(7, []byte(cut)); !ok || got.Stopped() || got.Dead() {
		t.Errorf("cut short: got %+v, %t", got, ok)
	}
	if got, ok := parseStatus(7, nil); ok {
		t.Errorf("a thread that is gone: %+v", got)
	}
}

func TestThreadsOfThisProcess(t *testing.T) {
	t.Parallel()
	threads := Threads(os.Getpid())
	if len(threads) == 0 || threads[0].Stopped() || threads[0].Switches == 0 {
		t.Errorf("Threads = %+v", threads)
	}
	if LastPID() == 0 {
		t.Error("LastPID is unknown")
	}
	if p, ok := Find(os.Getpid()); !ok || p.ID().PID != os.Getpid() || p.Nascent() {
		t.Errorf("Find = %+v, %t", p, ok)
	}
}
