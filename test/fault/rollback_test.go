package fault_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/internal/enginetest"
	"github.com/seed-1a2d6d8f/sandbox/test/harness"
)

// putFiles writes files, and tells of them.
func putFiles(t testing.TB, sb *sandbox.Sandbox, text string) (files string) {
	t.Helper()
	err := harness.PutFiles(context.Background(), sb, text)
	if err == nil {
		files, err = harness.ReadFiles(context.Background(), sb)
	}
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// rollingBack is an operation that rolls the stand's sandbox back.
func rollingBack(state sandbox.State) operation {
	// whole checks that the files are all of one moment.
	whole := func(x *trial, may ...string) {
		x.Helper()
		ctx, cancel := context.WithTimeout(context.Background(), harness.CallBound)
		defer cancel()
		sb, err := x.clean.Get(ctx, x.kept) // it runs, since owners of files are not known otherwise
		if err != nil {
			x.Errorf("%s: Get: %v", x.where(), err)
			return
		}
		defer sb.Detach()
		files, err := harness.ReadFiles(ctx, sb)
		if err != nil {
			x.Errorf("%s: read the files: %v", x.where(), err)
		}
		if slices.Contains(may, files) {
			return
		}
		st, err := x.clean.Inspect(ctx, x.kept)
		x.Errorf("%s: it returned %v and the files are\n%s\nthe sandbox is %+v, %v", x.where(), x.err, files, st, err)
	}
	op := again(operation{
		alters: true,
		arrange: func(x *trial) {
			x.keptIn(sandbox.StateRunning)
			x.save(func(sb *sandbox.Sandbox) error {
				x.old = putFiles(x, sb, "old")
				return nil
			})
			sb := x.ofKept()
			defer sb.Detach()
			x.files = putFiles(x, sb, x.Name())
			x.keptIn(state)
		},
		open: handle,
		act:  func(ctx context.Context, x *trial) error { return x.sb.Rollback(ctx, x.saved.ID) },
		done: func(x *trial) {
			if x.err == nil {
				x.is(state)
			}
			x.aside(func() { whole(x, x.old) })
		},
		after: func(x *trial) {
			x.onlyItself()
			for _, left := range halves(x, x.eng, x.name) {
				x.Errorf("%s: left: %s", x.where(), left)
			}
		},
	})
	retry := op.failed
	op.failed = func(x *trial) {
		x.aside(func() { whole(x, x.old, x.files) })
		retry(x)
	}
	return op
}

// The files are all of the sandbox's or all of the snapshot's, whatever fails, and the same
// rollback without a fault makes them the snapshot's.
func TestRollbackSurvivesAFaultInAnyCall(t *testing.T) {
	testFaultsAtEvery(t, 19, rollingBack(sandbox.StateRunning))
}

func TestRollbackOfAStoppedSandboxSurvivesAFaultInAnyCallSoak(t *testing.T) {
	harness.Soak(t)
	testFaults(t, rollingBack(sandbox.StateStopped))
}

func init() {
	// roller rolls a sandbox back on request.
	harness.AddRole("roller", func(args []string) error {
		ctx := context.Background()
		c, err := harness.Open(sandbox.WithHost(args[0]))
		if err != nil {
			return err
		}
		sb, err := c.Get(ctx, args[1], sandbox.WithoutResume())
		if err != nil {
			return err
		}
		fmt.Println("ready")
		if _, err := fmt.Scanln(); err != nil && err.Error() != "unexpected newline" {
			return err
		}
		return sb.Rollback(ctx, args[2])
	})
}

// A program that is killed at any engine call of a rollback leaves a sandbox that has all files
// of one moment for the next caller: its own until the old container is removed, the snapshot's
// from then on.
func TestRollbackSurvivesTheDeathOfItsProgram(t *testing.T) {
	t.Parallel()
	eng, image := harness.NewEngine(t), harness.SmallImage(t)
	trial := func(t *testing.T, at *moment) (calls []string) {
		over := turn()
		defer func() { over() }()
		c := harness.NewClient(t)
		sb, err := c.Create(t.Context(), sandbox.WithName(harness.UniqueName(t)), sandbox.WithImage(image), harness.Quick)
		if err != nil {
			t.Fatal(err)
		}
		harness.Remove(t, c, sb.Name())
		defer sb.Detach()
		old := putFiles(t, sb, "old")
		snap := harness.SnapshotOf(t, c, sb, sandbox.SnapshotOptions{})
		now := putFiles(t, sb, "new")
		proxy := enginetest.NewProxy(t)
		cmd := harness.Process(t, "roller", proxy.Host(), sb.Name(), snap.ID)
		goOn := harness.Ready(t, cmd)
		at.arm(proxy, harness.Raw(t, sb).ID, cmd)
		goOn()
		calls, k, call := dead(t, proxy, cmd)
		removes, committed := false, true
		if k > 0 {
			removes, committed = commitAt(calls, k-1)
		}
		over()
		again := next(t, sb.Name(), k, call)
		over = turn()
		defer again.Detach()
		after, err := harness.ReadFiles(t.Context(), again)
		// Nobody knows whether the call at which it died took effect.
		if want := map[bool]string{true: old, false: now}[committed]; err != nil || after != want && (!removes || after != old) {
			t.Errorf("killed at call %d, %s: the files are\n%s\n%v, want\n%s", k, call, after, err, want)
		}
		if list, err := c.List(t.Context(), sandbox.ListOptions{Prefix: sb.Name()}); err != nil || len(list) != 1 {
			t.Errorf("List: %+v, %v, want one", list, err)
		}
		noHalves(t, c, eng, sb.Name(), k, call)
		return calls
	}
	calls := trial(t, nil)
	t.Logf("calls: %q", calls)
	// Each waits for a lease. Until the session's end nothing has been changed, and helpers that start fill
	// volumes; the session's start is the last one.
	moments := []moment{{ending: "/stop", nth: 1}, {removal: true}, lastOf(calls, "/rename"), lastOf(calls, "/start")}
	if harness.Soaking() {
		moments = everyCall(calls)
	}
	for _, at := range moments {
		t.Run(at.String(), func(t *testing.T) {
			t.Parallel()
			trial(t, &at)
		})
	}
}

// lastOf is the moment of the last call of a container that ends so. Others end so, too.
func lastOf(calls []string, ending string) moment {
	last, n := moment{ending: ending}, 0
	for _, call := range calls {
		if strings.HasSuffix(call, ending) {
			n++
			if strings.HasPrefix(call, "POST /containers/") {
				last.nth = n
			}
		}
	}
	return last
}

// commitAt reports whether a call of a rollback removes the old container, and whether an earlier one
// did. It is the first container that is removed after the session's end.
func commitAt(calls []string, at int) (removes, committed bool) {
	stops := false
	for _, call := range calls[:at+1] {
		committed = committed || removes
		removes = stops && !committed && strings.HasPrefix(call, "DELETE /containers")
		stops = stops || strings.Contains(call, "/stop")
	}
	return removes, committed
}
