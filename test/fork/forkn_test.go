package fork_test

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/internal/engine"
	"github.com/seed-1a2d6d8f/sandbox/internal/enginetest"
	"github.com/seed-1a2d6d8f/sandbox/internal/record"
	"github.com/seed-1a2d6d8f/sandbox/test/harness"
)

// wantForksLike compares forks of one moment with the source, of which roots and all are the state.
func wantForksLike(t *testing.T, forks []*sandbox.Sandbox, roots string, all []string) {
	t.Helper()
	for i, fork := range forks {
		if got := harness.Run(t, fork, "sh", "-c", rootsOfVolumes); got != roots {
			t.Errorf("fork %d: the volumes' own directories are\n%s\nwant\n%s", i, got, roots)
		}
		if diff := cmp.Diff(all, files(t, fork, true)); diff != "" {
			t.Errorf("files of fork %d (-source +fork):\n%s", i, diff)
		}
	}
}

const rootsOfVolumes = "stat -c '%a %u %g %y' /workspace '/the copy'"

// containersMade is how many containers were asked for through the proxy.
func containersMade(proxy *enginetest.Proxy) (n int) {
	for _, call := range proxy.Calls() {
		if call == "POST /containers/create" {
			n++
		}
	}
	return n
}

// Many forks of one moment, each on its own from then on. However many there are, it
// takes two helpers: one that freezes the moment, and one that fills them all. What can't be done for
// all at once is done for each.
func TestForkN(t *testing.T) {
	t.Parallel()
	sharing(t, func(t *testing.T, _ *sandbox.Client, shares bool) {
		proxy := enginetest.NewProxy(t)
		c := harness.NewClient(t, sandbox.WithHost(proxy.Host()))
		source := grow(t, c)
		if !shares {
			proxy.RefuseOverlays()
		}
		// So that the client knows whether the engine mounts overlays, and where it keeps layers.
		harness.CreateWith(t, c, nil, fromSnap(harness.SnapshotOf(t, c, stock(t), sandbox.SnapshotOptions{})))
		harness.Run(t, source, "sh", "-ec", "chown 1000:5 /workspace; chmod 1770 /workspace; setfattr -n user.of -v root /workspace 2>/dev/null || true; touch -d 2001-02-03T04:05:06.789 /workspace")
		roots, all := harness.Run(t, source, "sh", "-c", rootsOfVolumes), files(t, source, true)

		before := containersMade(proxy)
		n := 5 // more than there are places for on a small machine
		if !shares {
			n = 2
		}
		name := harness.UniqueName(t)
		forks := forkedN(t, c, source.Name(), n, sandbox.WithName(name))
		if made := containersMade(proxy) - before; made != n+2 {
			t.Errorf("%d forks took %d containers, want two helpers: %q", n, made, slices.Compact(proxy.Calls()))
		}
		wantForksLike(t, forks, roots, all)
		wantNamed(t, c, source, name, forks)
		wantOwnWays(t, forks[0], forks[1], "/etc/b", "/workspace/tree/empty", "/the copy/empty")
		wantSharedUntilTheLast(t, source, forks, shares)

		const few = 2
		arm := sync.OnceFunc(func() {
			proxy.ArmAt("/attach", enginetest.RefuseBefore, func() { before = containersMade(proxy) })
		})
		forks = forkedN(t, c, source.Name(), few, sandbox.WithProgress(func(p sandbox.Progress) {
			if p.Step == "container" {
				arm()
			}
		}))
		if made := containersMade(proxy) - before; made != few || !proxy.Fired() {
			t.Errorf("%d forks took %d more containers once the first helper had failed, want one each", few, made)
		}
		wantForksLike(t, forks, roots, all)
	})
}

// wantNamed checks the names of the forks of one moment, that they can't be had twice and that there
// is no snapshot of the moment.
func wantNamed(t *testing.T, c *sandbox.Client, source *sandbox.Sandbox, name string, forks []*sandbox.Sandbox) {
	t.Helper()
	for i, fork := range forks {
		if want := fmt.Sprint(name, "-", i+1); fork.Name() != want {
			t.Errorf("fork %d is named %q, want %q", i, fork.Name(), want)
		}
	}
	again, err := c.ForkN(t.Context(), source.Name(), 2, sandbox.WithName(name))
	if !errors.Is(err, sandbox.ErrExists) || len(again) != 2 || again[0].Sandbox != nil || !errors.Is(again[1].Err, sandbox.ErrExists) {
		t.Errorf("ForkN under names that are taken = %+v, %v", again, err)
	}
	for _, n := range []int{0, -1, 1000} {
		if _, err := c.ForkN(t.Context(), source.Name(), n); !errors.Is(err, sandbox.ErrInvalidArgument) {
			t.Errorf("ForkN of %d = %v", n, err)
		}
	}
	if all, err := c.ListSnapshots(t.Context(), sandbox.ListSnapshotsOptions{}); err != nil || slices.ContainsFunc(all, func(s sandbox.Snapshot) bool { return s.Sandbox == source.Name() }) {
		t.Errorf("ForkN leaves a snapshot: %v, %v", all, err)
	}
}

// wantSharedUntilTheLast deletes the forks of one moment: what they share goes with the last of them,
// and not before.
func wantSharedUntilTheLast(t *testing.T, source *sandbox.Sandbox, forks []*sandbox.Sandbox, shares bool) {
	t.Helper()
	eng := harness.NewEngine(t)
	shared := func() []engine.Volume {
		t.Helper()
		volumes, err := eng.ListVolumes(t.Context(), record.Filter(record.Role, record.RoleFrozen), record.Filter(record.Name, source.Name()))
		if err != nil {
			t.Fatal(err)
		}
		return volumes
	}
	for i, fork := range forks {
		harness.Sweep(t)
		if shares && len(shared()) == 0 {
			t.Errorf("after %d of %d forks nothing is left of what they share", i, len(forks))
		}
		if _, err := fork.Delete(t.Context(), sandbox.DeleteOptions{Volumes: true}); err != nil {
			t.Fatal(err)
		}
	}
	harness.Eventually(t, "what they shared goes with them", func() bool {
		harness.Sweep(t)
		return len(shared()) == 0
	})
}

// Snapshot and ForkN tell how far they are, one call at a time and none afterwards. A fork that lives
// as long as its handle is kept by that, as every other one is.
func TestForksOfOneMomentTellTheirProgressAndKeepTheirLeases(t *testing.T) {
	t.Parallel()
	c := harness.NewClient(t)
	source := harness.CreateWith(t, c, nil)
	harness.Run(t, source, "sh", "-c", "head -c 3000000 /dev/zero | tr '\\0' x >big")
	var mu sync.Mutex
	var last sandbox.Progress
	over := false
	progress := func(p sandbox.Progress) {
		if !mu.TryLock() {
			t.Error("two calls at once")
			return
		}
		defer mu.Unlock()
		if over {
			t.Errorf("a call afterwards: %+v", p)
		}
		if p.Step == "copy" {
			last = p
		}
	}
	harness.SnapshotOf(t, c, source, sandbox.SnapshotOptions{Progress: progress})
	mu.Lock()
	if last.Current != 3_000_000 || last.Files < 1 {
		t.Errorf("the last progress of the copy is %+v", last)
	}
	mu.Unlock()
	results, err := c.ForkN(t.Context(), source.Name(), 2, harness.Quick, sandbox.WithPersistent(false), sandbox.WithProgress(progress))
	if err != nil {
		t.Fatal(err)
	}
	mu.Lock()
	over = true
	mu.Unlock()
	harness.Renewed(t, harness.NewEngine(t), results[0].Sandbox.Name(), results[1].Sandbox.Name())
	for i, r := range results {
		if st, err := c.Inspect(t.Context(), r.Sandbox.Name()); err != nil || st.State != sandbox.StateRunning {
			t.Errorf("fork %d is %q, %v", i, st.State, err)
		}
		if err := r.Sandbox.Close(); err != nil {
			t.Error(err)
		}
	}
}
