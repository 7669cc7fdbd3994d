package fork_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/test/harness"
)

// A volume has the same sizes wherever they are reported, however its files came to be: its own, and
// those that it shares with a snapshot.
func TestAVolumeHasOneSize(t *testing.T) {
	t.Parallel()
	sharing(t, wantOneSize)
}

func wantOneSize(t *testing.T, c *sandbox.Client, shares bool) {
	source := harness.CreateWith(t, c, nil)
	harness.Write(t, source, "shared", strings.Repeat("s", 1<<20))
	name := harness.UniqueName(t)
	harness.Remove(t, c, name+"-1")
	forks, err := c.ForkN(t.Context(), source.Name(), 1, harness.Quick, sandbox.WithName(name), sandbox.WithPersistent(true))
	if err != nil {
		t.Fatal(err)
	}
	fork := forks[0].Sandbox
	defer fork.Detach()
	harness.Write(t, fork, "own", strings.Repeat("o", 1<<16))
	want := map[*sandbox.Sandbox]string{source: "1048576 and 0", fork: "65536 and 1048576"}
	if !shares {
		want[fork] = "1114112 and 0"
	}
	sizes := func(v sandbox.Volume) string { return fmt.Sprint(v.SizeBytes, " and ", v.SharedBytes) }
	find := func(all []sandbox.Volume, err error) func(string) string {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return func(name string) string {
			i := slices.IndexFunc(all, func(v sandbox.Volume) bool { return v.Name == name })
			if i < 0 {
				return "none"
			}
			return sizes(all[i])
		}
	}
	volumes := map[*sandbox.Sandbox]string{}
	for _, state := range []string{"running", "stopped"} {
		listed := find(c.ListVolumes(t.Context()))
		for sb, want := range want {
			st := harness.Status(t, sb)
			volumes[sb] = st.Workspace.Name
			if got := sizes(st.Workspace); got != want {
				t.Errorf("the status of the %s %s has %s bytes, want %s", state, sb, got, want)
			}
			if got := sizes(harness.Inspect(t, sb.Name()).Workspace); got != want {
				t.Errorf("the inspection of the %s %s has %s bytes, want %s", state, sb, got, want)
			}
			if got := listed(st.Workspace.Name); got != want {
				t.Errorf("the list has %s bytes of the %s %s, want %s", got, state, sb, want)
			}
			if _, err := sb.Stop(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
	}
	for sb, want := range want {
		if _, err := sb.Delete(t.Context(), sandbox.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		if got := find(c.OrphanedVolumes(t.Context()))(volumes[sb]); got != want {
			t.Errorf("the orphan of %s has %s bytes, want %s", sb, got, want)
		}
		report, err := c.CleanupOrphanedVolumes(t.Context(), harness.Cleanup(volumes[sb]))
		if own, _, _ := strings.Cut(want, " "); err != nil || fmt.Sprint(report.FreedBytes) != own {
			t.Errorf("the clean-up of %s: %d bytes, %v, want %s", sb, report.FreedBytes, err, own)
		}
	}
}
