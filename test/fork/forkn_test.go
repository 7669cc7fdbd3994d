package fork_test

import (
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/internal/enginetest"
	"github.com/seed-1a2d6d8f/sandbox/internal/record"
	"github.com/seed-1a2d6d8f/sandbox/test/harness"
)

// manyForks makes n forks of a sandbox that has everything, and calls beside when the
// first of them has got as far as its container.
func manyForks(t *testing.T, c *sandbox.Client, source *sandbox.Sandbox, n int, beside func()) {
	t.Helper()
	harness.Run(t, source, "sh", "-ec", "chown 1000:5 /workspace; chmod 1770 /workspace; setfattr -n user.of -v root /workspace 2>/dev/null || true; touch -d 2001-02-03T04:05:06.789 /workspace")
	want := files(t, source, true)
	const root = "stat -c '%a %u %g %y' /workspace '/the copy'"
	roots := harness.Run(t, source, "sh", "-c", root)
	once := sync.OnceFunc(beside)
	results, err := c.ForkN(t.Context(), source.Name(), n, sandbox.WithProgress(func(p sandbox.Progress) {
		if p.Step == "container" {
			once()
		}
	}))
	for _, r := range results {
		if r.Sandbox != nil {
			harness.Remove(t, c, r.Sandbox.Name())
			t.Cleanup(func() { r.Sandbox.Detach() })
		}
	}
	if err != nil || len(results) != n {
		t.Fatalf("ForkN = %+v, %v", results, err)
	}
	for i, r := range results {
		if got := harness.Run(t, r.Sandbox, "sh", "-c", root); got != roots {
			t.Errorf("fork %d: the volumes' own directories are\n%s\nwant\n%s", i, got, roots)
		}
		if diff := cmp.Diff(want, files(t, r.Sandbox, true)); diff != "" {
			t.Errorf("files of fork %d (-source +fork):\n%s", i, diff)
		}
	}
}

// containersMade is how many containers were asked for through the proxy.
func containersMade(proxy *enginetest.Proxy) (n int) {
	for _, call := range proxy.Calls() {
		if call == "POST /containers/create" {
			n++
		}
	}
	return n
}

// learn has a client find out whether the engine mounts overlays, and where it keeps layers.
func learn(t *testing.T, c *sandbox.Client, source *sandbox.Sandbox) {
	t.Helper()
	snap := harness.SnapshotOf(t, c, source)
	harness.CreateWith(t, c, nil, fromSnap(snap))
}

// However many forks there are of one moment, it takes two helpers: one that freezes it,
// and one that fills them all.
func TestForksOfOneMomentAreFilledByOneHelper(t *testing.T) {
	t.Parallel()
	sharing(t, func(t *testing.T, _ *sandbox.Client, shares bool) {
		proxy := enginetest.NewProxy(t)
		c := harness.NewClient(t, sandbox.WithHost(proxy.Host()))
		source := grow(t, c)
		if !shares {
			proxy.RefuseOverlays()
		}
		learn(t, c, source)
		before := containersMade(proxy)
		const n = 5 // more than there are places for on a small machine
		manyForks(t, c, source, n, func() {})
		if made := containersMade(proxy) - before; made != n+2 {
			t.Errorf("%d forks took %d containers, want two helpers: %q", n, made, slices.Compact(proxy.Calls()))
		}
	})
}

// What can't be done for all at once is done for each.
func TestForksThatCannotBeFilledAtOnceAreFilledOneByOne(t *testing.T) {
	t.Parallel()
	sharing(t, func(t *testing.T, _ *sandbox.Client, shares bool) {
		proxy := enginetest.NewProxy(t)
		c := harness.NewClient(t, sandbox.WithHost(proxy.Host()))
		source := grow(t, c)
		if !shares {
			proxy.RefuseOverlays()
		}
		learn(t, c, source)
		const n = 2
		var before int
		manyForks(t, c, source, n, func() {
			proxy.ArmAt("/attach", enginetest.RefuseBefore, func() { before = containersMade(proxy) })
		})
		if made := containersMade(proxy) - before; made != n || !proxy.Fired() {
			t.Errorf("%d forks took %d more containers once the first helper had failed, want one each", n, made)
		}
	})
}

// A fork that lives as long as its handle is kept by that, as every other one is.
func TestForksOfOneMomentKeepTheirLeases(t *testing.T) {
	t.Parallel()
	c := harness.NewClient(t)
	results, err := c.ForkN(t.Context(), harness.CreateWith(t, c, nil).Name(), 2, harness.Quick, sandbox.WithPersistent(false))
	if err != nil {
		t.Fatal(err)
	}
	time.Sleep(35 * time.Second) // the lease that a session begins with is 30 s
	for i, r := range results {
		if st, err := c.Inspect(t.Context(), r.Sandbox.Name()); err != nil || st.State != sandbox.StateRunning {
			t.Errorf("fork %d is %q, %v", i, st.State, err)
		}
		if err := r.Sandbox.Close(); err != nil {
			t.Error(err)
		}
	}
}

// Shows 4: what forks of one moment share goes with the last of them, and not before.
func TestForksOfOneMomentTakeWhatTheyShareAlong(t *testing.T) {
	t.Parallel()
	c, eng := harness.NewClient(t), harness.NewEngine(t)
	source := harness.CreateWith(t, c, nil)
	harness.Run(t, source, "sh", "-c", "echo a >a; echo b >/etc/b")
	forks, err := c.ForkN(t.Context(), source.Name(), 2, harness.Quick)
	for _, f := range forks {
		if f.Sandbox != nil {
			harness.Remove(t, c, f.Sandbox.Name())
			t.Cleanup(func() { f.Sandbox.Detach() })
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	shared := func() (names []string) {
		volumes, err := eng.ListVolumes(t.Context(), record.Filter(record.Role, record.RoleFrozen), record.Filter(record.Name, source.Name()))
		if err != nil {
			t.Fatal(err)
		}
		for _, v := range volumes {
			names = append(names, v.Name)
		}
		return names
	}
	if len(shared()) == 0 {
		t.Fatal("they share nothing: this engine mounts no overlays, or the test looks for the wrong thing")
	}
	for i, f := range forks {
		if _, err := c.Delete(t.Context(), f.Sandbox.Name(), sandbox.PreserveVolumes(false)); err != nil {
			t.Fatal(err)
		}
		harness.Sweep(t)
		if left := shared(); (len(left) > 0) != (i == 0) {
			t.Errorf("after %d of 2 forks there is %q", i+1, left)
		}
	}
}
