package fork_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/internal/record"
	"github.com/seed-1a2d6d8f/sandbox/test/harness"
)

// sharing runs a test with volumes that share a snapshot's files, and with copies.
func sharing(t *testing.T, test func(t *testing.T, c *sandbox.Client, shares bool)) {
	t.Run("shared", func(t *testing.T) { t.Parallel(); test(t, harness.NewClient(t), true) })
	t.Run("copied", func(t *testing.T) {
		t.Parallel()
		c := harness.NewClient(t, harness.Behind(t, harness.WithoutOverlays))
		test(t, c, false)
	})
}

// A snapshot has everything, is not changed by what comes later, and is protected while
// something uses its files.
func TestSnapshotHasEverything(t *testing.T) {
	t.Parallel()
	sharing(t, func(t *testing.T, c *sandbox.Client, shares bool) {
		source := grow(t, c)
		snap := harness.SnapshotOf(t, c, source, sandbox.SnapshotOptions{Name: "first"})
		want := files(t, source, true)
		harness.Run(t, source, "sh", "-c", "echo later >/etc/b; echo later >/workspace/tree/empty; rm -r '/the copy/sub'")
		sb, err := c.Create(t.Context(), fromSnap(snap))
		if err != nil {
			t.Fatal(err)
		}
		defer sb.Close()
		if diff := cmp.Diff(want, files(t, sb, true)); diff != "" {
			t.Errorf("files (-source +sandbox of the snapshot):\n%s", diff)
		}
		harness.Run(t, sb, "sh", "-c", "echo mine >/workspace/tree/empty; mv /workspace/tree/sub /workspace/tree/moved; rm /etc/b")
		other := harness.CreateWith(t, c, nil, fromSnap(snap))
		if diff := cmp.Diff(want, files(t, other, true)); diff != "" {
			t.Errorf("another one's files (-source +other):\n%s", diff)
		}
		all, err := c.ListSnapshots(t.Context(), sandbox.ListSnapshotsOptions{})
		if err != nil {
			t.Fatal(err)
		}
		i := slices.IndexFunc(all, func(s sandbox.Snapshot) bool { return s.ID == snap.ID })
		if i < 0 || all[i].Name != "first" || all[i].Sandbox != source.Name() || all[i].SizeBytes < 900_000 || shares != (len(all[i].Volumes) == 4) {
			t.Fatalf("ListSnapshots = %+v", all)
		}
		if shares {
			wantForkThatSharesNothing(t, c, other, want)
		}
		wantRolledBack(t, c, snap, want, source, sb)
		err = c.DeleteSnapshot(t.Context(), snap.ID)
		if shares {
			if !errors.Is(err, sandbox.ErrSnapshotInUse) || !strings.Contains(err.Error(), sb.ID()) {
				t.Errorf("DeleteSnapshot of one in use = %v", err)
			}
		} else if err != nil {
			t.Errorf("DeleteSnapshot = %v", err)
		}
	})
}

// wantForkThatSharesNothing forks a sandbox that shares a snapshot's files: the fork has them all.
func wantForkThatSharesNothing(t *testing.T, c *sandbox.Client, sb *sandbox.Sandbox, want []string) {
	t.Helper()
	fork := forked(t, c, sb.Name())
	if diff := cmp.Diff(want, files(t, fork, true)); diff != "" {
		t.Errorf("a fork's files (-source +fork):\n%s", diff)
	}
	vols, err := c.ListVolumes(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(vols, func(v sandbox.Volume) bool { return v.Name == record.WorkspaceName(sb.ID()) })
	if i < 0 || vols[i].Role != "workspace" || vols[i].SizeBytes > 100_000 {
		t.Errorf("the volume that shares is listed as %+v", vols[i])
	}
}

// wantRolledBack rolls a sandbox that was made of a snapshot, and is not persistent, back to that and
// to another one. Volumes that are overlays over a snapshot's files are rolled back like others. A
// snapshot of another sandbox of the same shape fits, too, as the source's rollback shows.
func wantRolledBack(t *testing.T, c *sandbox.Client, first sandbox.Snapshot, want []string, source, sb *sandbox.Sandbox) {
	t.Helper()
	harness.Run(t, sb, "sh", "-ec", "mv /workspace/tree/moved /workspace/tree/sub\n"+spoil)
	spoilt := files(t, sb, true)
	second := harness.SnapshotOf(t, c, sb, sandbox.SnapshotOptions{})
	if second.Parent != first.ID {
		t.Errorf("the parent of a snapshot of what was made of one is %q, want %q", second.Parent, first.ID)
	}
	for _, step := range []struct {
		what string
		sb   *sandbox.Sandbox
		to   sandbox.Snapshot
		want []string
	}{
		{"the first", sb, first, want},
		{"the second", sb, second, spoilt},
		{"another sandbox's snapshot", source, second, spoilt},
	} {
		if err := step.sb.Rollback(t.Context(), step.to.ID); err != nil {
			t.Fatalf("Rollback to %s: %v", step.what, err)
		}
		if diff := cmp.Diff(step.want, files(t, step.sb, true)); diff != "" {
			t.Errorf("files (-snapshot +rolled back to %s):\n%s", step.what, diff)
		}
	}
}

// What is no snapshot is refused, and nothing is made.
func TestFromNoSnapshot(t *testing.T) {
	t.Parallel()
	c := harness.NewClient(t)
	from := func(id string, opts ...sandbox.CreateOption) error {
		sb, err := c.Create(t.Context(), append(opts, sandbox.WithSource(sandbox.FromSnapshot(id)))...)
		if sb != nil {
			harness.Remove(t, c, sb.Name())
		}
		return err
	}
	if err := from("nosuchsnapsh"); !errors.Is(err, sandbox.ErrSnapshotNotFound) {
		t.Errorf("Create from an unknown snapshot = %v", err)
	}
	for _, id := range []string{"", "../containers/x"} {
		if err := from(id); !errors.Is(err, sandbox.ErrInvalidArgument) {
			t.Errorf("Create from %q = %v", id, err)
		}
		if err := c.DeleteSnapshot(t.Context(), id); !errors.Is(err, sandbox.ErrInvalidArgument) {
			t.Errorf("DeleteSnapshot(%q) = %v", id, err)
		}
	}
	if err := from("nosuchsnapsh", sandbox.WithImage("x")); !errors.Is(err, sandbox.ErrInvalidArgument) {
		t.Errorf("Create from a snapshot with an image = %v", err)
	}
	if err := c.DeleteSnapshot(t.Context(), "nosuchsnapsh"); !errors.Is(err, sandbox.ErrSnapshotNotFound) {
		t.Errorf("DeleteSnapshot of nothing = %v", err)
	}
	// The ID of a sandbox is not that of a snapshot.
	if err := c.DeleteSnapshot(t.Context(), harness.Shared(t).ID()); !errors.Is(err, sandbox.ErrSnapshotNotFound) {
		t.Errorf("DeleteSnapshot of a sandbox = %v", err)
	}
}

// Retention keeps what is wanted and what is in use.
func TestRetentionOfSnapshots(t *testing.T) {
	t.Parallel()
	c := harness.NewClient(t)
	source := harness.CreateWith(t, c, nil)
	first := harness.SnapshotOf(t, c, source, sandbox.SnapshotOptions{})
	user := harness.CreateWith(t, c, nil, sandbox.WithSource(sandbox.FromSnapshot(first.ID)))
	second := harness.SnapshotOf(t, c, source, sandbox.SnapshotOptions{})
	third := harness.SnapshotOf(t, c, source, sandbox.SnapshotOptions{KeepLast: 1})
	brief := harness.SnapshotOf(t, c, user, sandbox.SnapshotOptions{Expiry: time.Nanosecond})
	there := func(id string) bool {
		all, err := c.ListSnapshots(t.Context(), sandbox.ListSnapshotsOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return slices.ContainsFunc(all, func(s sandbox.Snapshot) bool { return s.ID == id })
	}
	if !there(first.ID) || there(second.ID) || !there(third.ID) {
		t.Errorf("of three snapshots with the first in use and one to keep there are %v %v %v", there(first.ID), there(second.ID), there(third.ID))
	}
	harness.Eventually(t, "an expired snapshot is swept", func() bool {
		harness.Sweep(t)
		return !there(brief.ID)
	})
	// What shared the first is gone: then it can go.
	if _, err := user.Delete(t.Context(), sandbox.DeleteOptions{Volumes: true}); err != nil {
		t.Fatal(err)
	}
	if err := c.DeleteSnapshot(t.Context(), first.ID); err != nil {
		t.Errorf("DeleteSnapshot: %v", err)
	}
}
