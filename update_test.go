package sandbox_test

import (
	"context"
	"errors"
	"maps"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/internal/engine"
)

func update(t *testing.T, sb *sandbox.Sandbox, opts ...sandbox.UpdateOption) {
	t.Helper()
	if err := sb.Update(t.Context(), opts...); err != nil {
		t.Fatalf("Update: %v", err)
	}
}

// S4.1, E71: a new timeout is for the sessions to come, whoever starts them; the
// running session is not shortened.
func TestUpdatedTimeoutCountsFromTheNextSession(t *testing.T) {
	t.Parallel()
	sb := newSandbox(t, sandbox.WithName(uniqueName(t)), sandbox.WithTimeout(time.Hour))
	update(t, sb, sandbox.WithTimeout(2*time.Second))
	st := inspect(t, sb.Name())
	if got := st.ExpiresAt.Sub(st.StartedAt); got != time.Hour {
		t.Errorf("the running session expires %v after its start, want the hour it had", got)
	}
	if _, err := sb.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	other, err := newClient(t).Get(t.Context(), sb.Name())
	if err != nil {
		t.Fatal(err)
	}
	defer other.Detach()
	end, seen := ended(t, sb.Name())
	if end.Reason != "timeout" || seen.Sub(end.StartedAt) > 5*time.Second {
		t.Errorf("the next session ended by %q after %v, want timeout after 2s", end.Reason, seen.Sub(end.StartedAt))
	}

	update(t, sb, sandbox.WithTimeout(0))
	if _, err := sb.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if st := inspect(t, sb.Name()); !st.ExpiresAt.IsZero() || st.State != sandbox.StateRunning {
		t.Errorf("with the timeout taken away it is %s and expires at %v", st.State, st.ExpiresAt)
	}
}

// S4.1: also a session that somebody started with other tools gets what was set, as
// soon as one of us comes by.
func TestUpdatedTimeoutReachesASessionOthersStarted(t *testing.T) {
	t.Parallel()
	sb := newSandbox(t, sandbox.WithName(uniqueName(t)))
	if _, err := sb.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	update(t, sb, sandbox.WithTimeout(3*time.Second))
	if err := directly(t).StartContainer(t.Context(), "agent-sandbox-"+sb.Name()); err != nil {
		t.Fatal(err)
	}
	other, err := newClient(t).Get(t.Context(), sb.Name())
	if err != nil {
		t.Fatal(err)
	}
	defer other.Detach()
	if st, _ := ended(t, sb.Name()); st.Reason != "timeout" {
		t.Errorf("it ended by %q, want timeout", st.Reason)
	}
}

// S1.p9, S4.1: tags are replaced, found by, and taken away.
func TestUpdatedTagsAreSeenByAll(t *testing.T) {
	t.Parallel()
	sb := newSandbox(t, sandbox.WithName(uniqueName(t)), sandbox.WithTags(map[string]string{"color": "red", "size": "s"}))
	for _, want := range []map[string]string{{"color": "blue"}, {"a": "1", "b": ""}, nil} {
		update(t, sb, sandbox.WithTags(want))
		if got := inspect(t, sb.Name()).Tags; !maps.Equal(got, want) {
			t.Errorf("Inspect after Update: tags %v, want %v", got, want)
		}
		list, err := newClient(t).List(t.Context(), sandbox.NamePrefix(sb.Name()))
		if err != nil || len(list) != 1 || !maps.Equal(list[0].Tags, want) {
			t.Errorf("List after Update: %+v, %v; want tags %v", list, err, want)
		}
		list, err = newClient(t).List(t.Context(), sandbox.NamePrefix(sb.Name()), sandbox.TagFilter("color", "red"))
		if err != nil || len(list) != 0 {
			t.Errorf("List by a tag it had before: %+v, %v", list, err)
		}
	}
}

// E102: limits change in the running session, with what goes with them.
func TestUpdatedLimitsCountAtOnce(t *testing.T) {
	t.Parallel()
	sb := newSandbox(t, sandbox.WithName(uniqueName(t)), sandbox.WithVCPUs(0.5), sandbox.WithMemory(128<<20))
	limits := func() (cpus, memory int64) {
		t.Helper()
		got, err := directly(t).InspectContainer(t.Context(), "agent-sandbox-"+sb.Name())
		if err != nil {
			t.Fatal(err)
		}
		return got.NanoCPUs, got.Memory
	}
	update(t, sb, sandbox.WithMemory(256<<20))
	if cpus, memory := limits(); cpus != 5e8 || memory != 256<<20 {
		t.Errorf("limits %d and %d, want half a CPU and 256 MiB", cpus, memory)
	}
	if st := inspect(t, sb.Name()); st.Usage == nil || st.Usage.MemoryLimit != 256<<20 {
		t.Errorf("the session's memory limit: %+v, want 256 MiB", st.Usage)
	}
	update(t, sb, sandbox.WithVCPUs(1))
	if cpus, memory := limits(); cpus != 1e9 || memory != sandbox.MemoryPerVCPU {
		t.Errorf("limits %d and %d, want a CPU and its memory", cpus, memory)
	}
	// What the engine refuses changes nothing else either.
	err := sb.Update(t.Context(), sandbox.WithVCPUs(4096), sandbox.WithTags(map[string]string{"x": "y"}))
	if !errors.Is(err, sandbox.ErrInvalidArgument) {
		t.Errorf("Update to 4096 CPUs: %v, want ErrInvalidArgument", err)
	}
	if cpus, _ := limits(); cpus != 1e9 || len(inspect(t, sb.Name()).Tags) != 0 {
		t.Errorf("after a refused update: %d CPUs, tags %v", cpus, inspect(t, sb.Name()).Tags)
	}
}

// What Update can't change does not compile there; what it can is checked first.
func TestUpdateTakesOnlyWhatCanChange(t *testing.T) {
	t.Parallel()
	for name, o := range map[string]any{
		"WithImage": sandbox.WithImage("x"), "WithName": sandbox.WithName("x"), "WithID": sandbox.WithID("x"),
		"WithEnv": sandbox.WithEnv(nil), "WithUser": sandbox.WithUser("x"), "WithPersistent": sandbox.WithPersistent(true),
		"OnCreate": sandbox.OnCreate(nil),
	} {
		if _, is := o.(sandbox.UpdateOption); is {
			t.Errorf("%s is an UpdateOption", name)
		}
	}
	sb := newSandbox(t, sandbox.WithName(uniqueName(t)))
	six := map[string]string{"1": "", "2": "", "3": "", "4": "", "5": "", "6": ""}
	err := sb.Update(t.Context(), sandbox.WithTags(six), sandbox.WithTimeout(-1), sandbox.WithMemory(1), sandbox.WithStopTimeout(0))
	for _, complaint := range []string{"6 tags", "WithTimeout", "WithMemory", "WithStopTimeout"} {
		if !errors.Is(err, sandbox.ErrInvalidArgument) || !strings.Contains(err.Error(), complaint) {
			t.Errorf("Update with four mistakes: %v, without %q", err, complaint)
		}
	}
}

// E90: updates of different things at the same time all hold.
func TestConcurrentUpdatesNeverMix(t *testing.T) {
	t.Parallel()
	sb := newSandbox(t, sandbox.WithName(uniqueName(t)))
	updates := []sandbox.UpdateOption{
		sandbox.WithTags(map[string]string{"by": "first"}), sandbox.WithTimeout(time.Hour), sandbox.WithStopTimeout(7 * time.Second),
	}
	var all sync.WaitGroup
	for _, o := range updates {
		other, err := newClient(t).Get(t.Context(), sb.Name())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { other.Detach() })
		all.Go(func() {
			for range 5 {
				if err := other.Update(t.Context(), o); err != nil {
					t.Errorf("Update: %v", err)
				}
			}
		})
	}
	all.Wait()
	if _, err := sb.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := sb.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	st := inspect(t, sb.Name())
	if st.ExpiresAt.Sub(st.StartedAt) != time.Hour || st.Tags["by"] != "first" {
		t.Errorf("after all updates: tags %v, expires %v after the start", st.Tags, st.ExpiresAt.Sub(st.StartedAt))
	}
	// At most the first, the last and the one before stay, and none after the sandbox.
	if n := len(revisions(t, sb.ID())); n < 1 || n > 3 {
		t.Errorf("%d revisions are kept", n)
	}
	if _, err := sb.Delete(t.Context()); err != nil {
		t.Fatal(err)
	}
	if left := revisions(t, sb.ID()); len(left) > 0 {
		t.Errorf("after Delete there are still %v", left)
	}
	remove := context.WithoutCancel(t.Context())
	if err := directly(t).RemoveVolume(remove, "agent-sandbox-"+sb.ID(), false); err != nil {
		t.Error(err)
	}
}

func revisions(t *testing.T, id string) []engine.Volume {
	t.Helper()
	vols, err := directly(t).ListVolumes(t.Context(), "agent-sandbox.role=revision", "agent-sandbox.id="+id)
	if err != nil {
		t.Fatal(err)
	}
	return vols
}

// C6.2, S4.2: a sandbox that is gone can't be changed, and nothing is left of the try.
func TestUpdateOfADeletedSandboxLeavesNothing(t *testing.T) {
	t.Parallel()
	sb := newSandbox(t, sandbox.WithName(uniqueName(t)))
	if _, err := newClient(t).Delete(t.Context(), sb.Name(), sandbox.PreserveVolumes(false)); err != nil {
		t.Fatal(err)
	}
	if err := sb.Update(t.Context(), sandbox.WithTimeout(time.Hour)); !errors.Is(err, sandbox.ErrNotFound) {
		t.Errorf("Update: %v, want ErrNotFound", err)
	}
	if err := sb.ExtendTimeout(t.Context(), time.Hour); !errors.Is(err, sandbox.ErrNotFound) {
		t.Errorf("ExtendTimeout: %v, want ErrNotFound", err)
	}
	if left := revisions(t, sb.ID()); len(left) > 0 {
		t.Errorf("it left %v", left)
	}
	sb.Close()
	if err := sb.Update(t.Context()); !errors.Is(err, sandbox.ErrClosed) {
		t.Errorf("Update of a closed handle: %v, want ErrClosed", err)
	}
}
