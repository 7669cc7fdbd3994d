//go:build linux

package proc

import (
	"fmt"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestReaperFindsWhatEndedEarly(t *testing.T) {
	// Not parallel: it collects every child of this process.
	r := NewReaper()
	for range 20 {
		c, err := r.Start(func() (int, error) {
			pid, err := syscall.ForkExec("/bin/sh", []string{"sh", "-c", "exit 3"}, &syscall.ProcAttr{})
			for err == nil {
				p, ok := lookup(pid)
				if !ok || p.Dead() {
					break
				}
				time.Sleep(time.Millisecond)
			}
			r.Reap()
			return pid, err
		})
		if err != nil {
			t.Fatal(err)
		}
		<-c.Done
		if got := c.Exit(); got.Code != 3 {
			t.Errorf("exit %+v", got)
		}
		if err := r.Signal(c, unix.SIGKILL); err != unix.ESRCH {
			t.Errorf("signal: %v", err)
		}
	}
	if len(r.known) != 0 || len(r.early) != 0 {
		t.Errorf("left over: %v, %v", r.known, r.early)
	}
	if _, err := r.Start(func() (int, error) { return 0, fmt.Errorf("no") }); err == nil {
		t.Error("start: no error")
	}
}
