package lifecycle_test

import (
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/internal/enginetest"
	"github.com/seed-1a2d6d8f/sandbox/internal/record"
	"github.com/seed-1a2d6d8f/sandbox/test/harness"
)

// leftover adds to an engine what a program left that died while it created a sandbox, and
// returns the names of the volumes.
func leftover(f *enginetest.Fake) []string {
	long := time.Now().Add(-time.Hour)
	rec := record.Sandbox{ID: "dead", Name: "dead", Nonce: record.NewNonce(), CreatedAt: long}
	marker := record.Base(record.RolePending, rec.Nonce, long)
	marker[record.Name], marker[record.Until] = rec.Name, long.Format(time.RFC3339Nano)
	f.AddVolume("agent-sandbox-pending.dead", marker)
	f.AddVolume(record.WorkspaceName(rec.ID), rec.VolumeLabels(record.RoleWorkspace))
	revision := record.Base(record.RoleRevision, record.NewNonce(), long)
	revision[record.ID], revision[record.Of], revision[record.Settings] = "gone", record.NewNonce(), "{}"
	f.AddVolume("agent-sandbox-gone.rev-1", revision)
	return []string{"agent-sandbox-pending.dead", record.WorkspaceName(rec.ID), "agent-sandbox-gone.rev-1"}
}

// Of many clients that list at the same moment one sweeps, once, and nobody waits for it.
func TestOneOfManyClientsSweeps(t *testing.T) {
	t.Parallel()
	f := engineWith(t, 3)
	left := leftover(f)
	var all sync.WaitGroup
	for range 8 {
		c := harness.NewClient(t, sandbox.WithHost(f.Host()))
		all.Go(func() {
			for range 3 {
				if list, err := c.List(t.Context(), sandbox.ListOptions{}); err != nil || len(list) != 3 {
					t.Errorf("List = %v, %v, want 3 sandboxes", list, err)
				}
			}
		})
	}
	all.Wait()
	harness.Eventually(t, "the leftovers are gone", func() bool { return !slices.ContainsFunc(left, f.HasVolume) })
	lists := 0
	calls, _ := f.Take()
	for _, call := range calls {
		if call == "GET /containers/json" {
			lists++
		}
	}
	// The minute may end meanwhile. And the takeover from a creator that died lists what it made.
	if most := 8*3 + 2*2; lists < 8*3+2 || lists > most {
		t.Errorf("24 calls of List and a sweep list the containers %d times, want at most %d", lists, most)
	}
}

// A client that is closed leaves its turn to sweep to another one, and does not wait for an
// engine that takes its time.
func TestCloseLeavesTheSweepToAnother(t *testing.T) {
	t.Parallel()
	f := engineWith(t, 1)
	left := leftover(f)
	release, sweeping := make(chan struct{}), make(chan struct{}, 8)
	var mu sync.Mutex
	claimed := false
	f.Before(func(call string) {
		mu.Lock()
		stall := claimed && call == "GET /volumes"
		claimed = claimed || call == "POST /volumes/create"
		mu.Unlock()
		if stall {
			sweeping <- struct{}{}
			<-release
		}
	})
	c := harness.NewClient(t, sandbox.WithHost(f.Host()))
	if _, err := c.Get(t.Context(), "name0", sandbox.WithoutResume()); err != nil {
		t.Fatal(err)
	}
	go c.List(t.Context(), sandbox.ListOptions{}) // which may be what stalls
	<-sweeping
	if err := c.Close(); err != nil {
		t.Errorf("Close while a sweep is under way: %v", err)
	}
	f.Before(nil)
	close(release)
	next := harness.NewClient(t, sandbox.WithHost(f.Host()))
	if _, err := next.List(t.Context(), sandbox.ListOptions{}); err != nil {
		t.Fatal(err)
	}
	harness.Eventually(t, "another client has swept", func() bool { return !slices.ContainsFunc(left, f.HasVolume) })
}
