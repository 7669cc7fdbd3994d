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
	all, err := c.ListSnapshots(ctx)
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
			opts := []sandbox.SnapshotOption{sandbox.WithSnapshotName(prefix)}
			if rand.IntN(2) == 0 {
				opts = append(opts, sandbox.WithKeepLast(1))
			}
			_, err = sb.Snapshot(ctx, opts...)
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
		_, err := c.Delete(ctx, any(), sandbox.PreserveVolumes(false))
		a.Note("delete", err)
	}
}

// Shows 4; S3.1, E83: processes that fork, snapshot and delete the same few sandboxes and
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
	harness.Race(t, processes, "fork-race", prefix, length.String())
	list, err := c.List(t.Context(), sandbox.NamePrefix(prefix))
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
		if m, found, err := record.FindPause(t.Context(), eng, name); err != nil || found {
			t.Errorf("there is a pause of %v, %v", m, err)
		}
		harness.RemoveNow(t, c, name)
	}
	all, err := c.ListSnapshots(t.Context())
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
