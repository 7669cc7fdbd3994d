package harness

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/seed-1a2d6d8f/sandbox"
)

// An account is what one process of the race did.
type Account struct {
	Done     map[string]int
	Reported []string // volumes that a report or list told of
	Strange  []string // errors that are none of our sentinels
}

// Racing is a role that takes steps until the time is over that its last argument says, and
// prints its account.
func Racing(step func(a *Account, ctx context.Context, c *sandbox.Client, args []string)) func([]string) error {
	return func(args []string) error {
		end, err := time.ParseDuration(args[len(args)-1])
		if err != nil {
			return err
		}
		c, err := sandbox.NewClient()
		if err != nil {
			return err
		}
		defer c.Close()
		a := Account{Done: map[string]int{}}
		for began := time.Now(); time.Since(began) < end; {
			step(&a, context.Background(), c, args)
		}
		return json.NewEncoder(os.Stdout).Encode(a)
	}
}

// Race runs so many processes in such a role and adds their accounts up. An error that is
// none of ours fails the test.
func Race(t *testing.T, processes int, role string, args ...string) (done map[string]int, reported map[string]bool) {
	t.Helper()
	var running []*exec.Cmd
	var outs []*strings.Builder
	for range processes {
		cmd, out := Process(t, role, args...), &strings.Builder{}
		cmd.Stdout = out
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { Kill(cmd) })
		running, outs = append(running, cmd), append(outs, out)
	}
	done, reported = map[string]int{}, map[string]bool{}
	for i, cmd := range running {
		var a Account
		if err := errors.Join(cmd.Wait(), json.Unmarshal([]byte(outs[i].String()), &a)); err != nil {
			t.Fatalf("a process of the race: %v", err)
		}
		for what, n := range a.Done {
			done[what] += n
		}
		for _, name := range a.Reported {
			reported[name] = true
		}
		for _, s := range a.Strange {
			t.Errorf("an error that is none of ours: %s", s)
		}
	}
	t.Logf("%v", done)
	return done, reported
}

// Note counts a step, or notes its error if that is none of ours.
func (a *Account) Note(what string, err error) {
	if err == nil {
		a.Done[what]++
		return
	}
	for _, known := range []error{sandbox.ErrNotFound, sandbox.ErrExists, sandbox.ErrVolumeInUse, sandbox.ErrVolumeNotFound, sandbox.ErrNotRunning,
		sandbox.ErrSnapshotNotFound, sandbox.ErrSnapshotInUse} {
		if errors.Is(err, known) {
			a.Done[what+": "+known.Error()]++
			return
		}
	}
	a.Strange = append(a.Strange, fmt.Sprintf("%s: %v", what, err))
}
