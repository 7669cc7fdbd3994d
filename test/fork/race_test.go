package fork_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/internal/claim"
	"github.com/seed-1a2d6d8f/sandbox/internal/enginetest"
	"github.com/seed-1a2d6d8f/sandbox/internal/record"
	"github.com/seed-1a2d6d8f/sandbox/test/harness"
)

// forkRaceNames are how many sandboxes the processes of the race fork and delete. A name
// that ForkN makes is that of one of them, too.
const forkRaceNames = 4

func forkRaceName(prefix string, i int) string { return fmt.Sprint(prefix, "-", i+1) }

func init() {
	harness.AddRole("fork-race", harness.Racing(func(a *harness.Account, ctx context.Context, c *sandbox.Client, args []string) {
		stepOfForks(ctx, a, c, args[0])
	}))
}

func stepOfForks(ctx context.Context, a *harness.Account, c *sandbox.Client, prefix string) {
	any := func() string { return forkRaceName(prefix, rand.IntN(forkRaceNames)) }
	var ours []string
	all, err := c.ListSnapshots(ctx, sandbox.ListSnapshotsOptions{})
	a.Note("list", err)
	for _, s := range all {
		if s.Name == prefix {
			ours = append(ours, s.ID)
		}
	}
	made := func(what string, sb *sandbox.Sandbox, err error) {
		a.Note(what, err)
		if err == nil {
			err := sb.Command(ctx, "true").Run()
			if _, ended := errors.AsType[*sandbox.ExitError](err); !ended { // with its session, which another ends
				a.Note(what+", a command", err)
			}
			sb.Detach()
		}
	}
	switch rand.IntN(10) {
	default:
		sb, err := c.GetOrCreate(ctx, any(), harness.Quick)
		made("get or create", sb, err)
	case 1, 2:
		sb, err := c.Fork(ctx, any(), sandbox.WithName(any()))
		made("fork", sb, err)
	case 3:
		results, err := c.ForkN(ctx, any(), 2, sandbox.WithName(prefix))
		if len(results) == 0 {
			a.Note("fork many", err)
		}
		for _, r := range results {
			made("fork many", r.Sandbox, r.Err)
		}
	case 4:
		sb, err := c.Get(ctx, any(), sandbox.WithoutResume())
		if err == nil {
			_, err = sb.Snapshot(ctx, sandbox.SnapshotOptions{Name: prefix, KeepLast: rand.IntN(2)})
			sb.Detach()
		}
		a.Note("snapshot", err)
	case 5:
		if len(ours) > 0 {
			a.Note("delete snapshot", c.DeleteSnapshot(ctx, ours[rand.IntN(len(ours))]))
		}
	case 6:
		if len(ours) > 0 {
			sb, err := c.Create(ctx, sandbox.WithName(any()), harness.Quick, sandbox.WithSource(sandbox.FromSnapshot(ours[rand.IntN(len(ours))])))
			made("create from a snapshot", sb, err)
		}
	case 7:
		_, err := c.Delete(ctx, any(), sandbox.DeleteOptions{Volumes: true})
		a.Note("delete", err)
	}
}

// Processes that fork, snapshot and delete the same few sandboxes and
// snapshots see no error that is not ours, pause nothing for good and leave nothing.
func TestProcessesRaceOverForksSoak(t *testing.T) {
	harness.Soak(t)
	raceOverForks(t, 6, time.Minute)
}

func raceOverForks(t *testing.T, processes int, length time.Duration) {
	t.Helper()
	prefix := harness.UniqueName(t)
	c, eng := harness.NewClient(t), harness.NewEngine(t)
	strange := harness.StrayImages(t, eng)
	t.Cleanup(func() {
		for i := range forkRaceNames {
			harness.RemoveNow(t, c, forkRaceName(prefix, i))
		}
	})
	harness.Race(t, harness.Racers{Processes: processes, Length: length}, "fork-race", prefix)
	list, err := c.List(t.Context(), sandbox.ListOptions{Prefix: prefix})
	if err != nil {
		t.Fatalf("List: %v", err)
	}
	for _, info := range list {
		if info.State != sandbox.StateRunning {
			t.Errorf("%s is %s, want it running", info.Name, info.State)
		}
	}
	for i := range forkRaceNames {
		name := forkRaceName(prefix, i)
		if m, found, err := claim.FindPause(t.Context(), eng, name); err != nil || found {
			t.Errorf("there is a pause of %v, %v", m, err)
		}
		harness.RemoveNow(t, c, name)
	}
	all, err := c.ListSnapshots(t.Context(), sandbox.ListSnapshotsOptions{})
	if err != nil {
		t.Fatalf("ListSnapshots: %v", err)
	}
	for _, s := range all {
		if strings.HasPrefix(s.Sandbox, prefix) {
			if err := c.DeleteSnapshot(t.Context(), s.ID); err != nil {
				t.Errorf("DeleteSnapshot of one that nobody uses: %v", err)
			}
		}
	}
	var left []string
	defer func() {
		if t.Failed() {
			t.Logf("there is %q", left)
		}
	}()
	harness.Eventually(t, "nothing is left", func() bool {
		harness.Sweep(t)
		left = nil
		for i := range forkRaceNames {
			left = append(left, harness.Objects(t, eng, harness.Named(forkRaceName(prefix, i)))...)
		}
		return len(left) == 0
	})
	harness.NoImages(t, eng, strange)
}

// holdRaceNames are how many sandboxes the processes of a race fork, use and look at.
const holdRaceNames = 2

func init() {
	harness.AddRole("hold-race", harness.Racing(func(a *harness.Account, ctx context.Context, c *sandbox.Client, args []string) {
		source := forkRaceName(args[0], rand.IntN(holdRaceNames))
		switch rand.IntN(3) {
		case 0:
			fork, err := c.Fork(ctx, source, sandbox.WithName(args[0]+record.NewID()), sandbox.WithPersistent(false))
			a.Must("fork", err)
			if err == nil {
				a.Must("command in a fork", fork.Command(ctx, "test", "-s", "/workspace/n").Run())
				a.Must("delete a fork", harness.Second(fork.Delete(ctx, sandbox.DeleteOptions{Volumes: true})))
			}
		case 1:
			sb, err := c.Get(ctx, source)
			a.Must("get", err)
			if err == nil {
				a.Must("command", sb.Command(ctx, "true").Run())
				a.Must("detach", sb.Detach())
			}
		case 2:
			st, err := c.Inspect(ctx, source)
			if err == nil && st.State != sandbox.StateRunning && st.State != sandbox.StatePaused {
				err = fmt.Errorf("%s is %s", source, st.State)
			}
			a.Must("status", err)
		}
	}))
}

// Processes fork the same sandboxes, run commands in them on new handles and look at them, and some
// are killed all the time. No call fails, nothing stays paused or held, and nothing is left, which
// the end of the package checks when the leases of the dead are over.
func TestForkersThatAreKilledHoldNothing(t *testing.T) { killForkers(t, 5*time.Second, "") }

// The same for ten minutes.
func TestForkersThatAreKilledHoldNothingSoak(t *testing.T) {
	harness.Soak(t)
	killForkers(t, 10*time.Minute, "")
}

// The same where the engine pauses what is copied: a pause that meets the start of a command locks
// up some containerds.
func TestForkersThatAreKilledPauseNothingSoak(t *testing.T) {
	harness.Soak(t)
	p := enginetest.NewProxy(t)
	harness.WithoutHolds(p)
	killForkers(t, 10*time.Minute, p.Host())
}

func killForkers(t *testing.T, length time.Duration, host string) {
	t.Helper()
	prefix := harness.UniqueName(t)
	c, eng := harness.NewClient(t), harness.NewEngine(t)
	var sources []*sandbox.Sandbox
	for i := range holdRaceNames {
		name := forkRaceName(prefix, i)
		harness.Remove(t, c, name)
		source, err := c.Create(t.Context(), sandbox.WithName(name), harness.Quick)
		if err != nil {
			t.Fatalf("Create: %v", err)
		}
		defer source.Detach()
		writer := source.Command(t.Context(), "sh", "-c", "while :; do echo >>/workspace/n; echo >>/etc/n; sleep 0.01; done")
		if err := writer.Start(); err != nil {
			t.Fatalf("Start: %v", err)
		}
		defer writer.Wait()
		defer writer.Kill()
		harness.WaitForFile(t, source, "/etc/n")
		sources = append(sources, source)
	}
	harness.Race(t, harness.Racers{Processes: 5, Mortal: 2, MaxLife: 3 * time.Second, Length: length, Host: host}, "hold-race", prefix)
	for _, source := range sources {
		if m, found, err := claim.FindPause(t.Context(), eng, source.Name()); err != nil || found {
			t.Errorf("there is a pause of %v, %v", m, err)
		}
		if st := harness.Inspect(t, source.Name()); st.State != sandbox.StateRunning {
			t.Errorf("%s is %s, want it running", source.Name(), st.State)
		}
		// The helper of a dead process may hold it as long as that would have.
		harness.Eventually(t, "no process is held", func() bool {
			return harness.Run(t, source, "sh", "-c", "cat /proc/[0-9]*/stat 2>/dev/null | grep -c ') T ' || true") == "0"
		})
		lines := func() string { return harness.Run(t, source, "wc", "-l", "/workspace/n") }
		before := lines()
		harness.Eventually(t, "the writer goes on", func() bool { return lines() != before })
	}
}
