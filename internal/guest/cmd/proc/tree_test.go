//go:build linux

package proc

import (
	"os/exec"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

func FuzzParseStat(f *testing.F) {
	f.Add([]byte("1 (a) S 0 1 1 0 -1 4194560 1 2 3 4 5 6 7 8 9 10 11 12 13 14\n"))
	f.Add([]byte("1 (a) R 1 (b)) Z 0 1 1"))
	f.Fuzz(func(t *testing.T, line []byte) { parseStat(1, line) })
}

func TestParseStatIgnoresTheName(t *testing.T) {
	t.Parallel()
	line := "77 (x) S 1 2 3) Z 5 6 7 0 -1 4194560 1 2 3 4 5 6 7 8 9 10 11 12 99 14 15 16 17 18 19 20 21 22 65536 24 25\n"
	got, ok := parseStat(77, []byte(line))
	want := Process{PID: 77, Parent: 5, Group: 6, Session: 7, state: 'Z', flags: 4194560, start: 99, blocked: 1 << (unix.SIGCHLD - 1)}
	if !ok || got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if !got.Blocks(unix.SIGCHLD) || got.Blocks(unix.SIGTERM) {
		t.Error("it blocks SIGCHLD alone")
	}
}

func TestTreeIsRootsAndDescendants(t *testing.T) {
	t.Parallel()
	table := []Process{
		{PID: 9, Parent: 8, state: 'S'}, {PID: 8, Parent: 7, state: 'Z'}, {PID: 7, Parent: 1, state: 'S'},
		{PID: 6, Parent: 1, Session: 7, state: 'S'}, {PID: 5, Parent: 6, state: 'R'}, {PID: 4, Parent: 1, state: 'S'},
	}
	var got []int
	for _, p := range Tree(table, func(p Process) bool { return p.PID == 7 || p.Session == 7 }) {
		got = append(got, p.PID)
	}
	if diff := cmp.Diff([]int{9, 7, 6, 5}, got); diff != "" {
		t.Errorf("closure (-want +got):\n%s", diff)
	}
}

// What forks before each look at it dies all the same: this process may have little of the CPUs.
func TestKillOfWhatForksBeforeEachLook(t *testing.T) {
	t.Parallel()
	cmd := exec.Command("bash", "-c", "step() { sleep 0.1; step & sleep 3; }; step")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Wait()
	session := func() []Process {
		table, err := List()
		if err != nil {
			t.Error(err)
		}
		return slices.DeleteFunc(table, func(p Process) bool { return p.Session != cmd.Process.Pid || p.Dead() })
	}
	defer unix.Kill(-cmd.Process.Pid, unix.SIGKILL) // whatever is left
	Kill(func() []Process {
		seen := session()
		<-time.After(500 * time.Millisecond)
		return seen
	})
	if left := session(); len(left) > 0 {
		t.Errorf("%d processes are left", len(left))
	}
}
