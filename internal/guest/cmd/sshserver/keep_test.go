//go:build linux

package sshserver

import (
	"testing"
	"testing/synctest"

	"github.com/seed-1a2d6d8f/sandbox/internal/guest/cmd/proc"
)

// Who looks for a command that is about to start gets it once it runs.
func TestFindWaitsForTheStart(t *testing.T) {
	t.Parallel()
	for _, starts := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			k := &keeper{commands: map[string]*detached{}}
			d := k.reserve("job")
			if d == nil || k.reserve("job") != nil {
				t.Fatal("one ID is not reserved exactly once")
			}
			found, done := (*detached)(nil), false
			go func() {
				found = k.find("job")
				done = true
			}()
			synctest.Wait()
			if done {
				t.Errorf("find returned %v during the start", found)
			}
			var c *proc.Command
			if starts {
				c = new(proc.Command)
			}
			k.finishStart("job", d, c)
			synctest.Wait()
			if !done || (found == d) != starts {
				t.Errorf("the command starts: %v; find returned: %v, %v", starts, done, found)
			}
			if again := k.reserve("job"); (again == nil) != starts {
				t.Errorf("the command starts: %v; its ID is reserved again: %v", starts, again != nil)
			}
		})
	}
	if d := (&keeper{}).find("job"); d != nil {
		t.Errorf("find of nothing: %v", d)
	}
}
