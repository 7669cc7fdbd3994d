package fork_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/internal/engine"
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
// something stands on it.
func TestSnapshotHasEverything(t *testing.T) {
	t.Parallel()
	sharing(t, func(t *testing.T, c *sandbox.Client, shares bool) {
		source := grow(t, c)
		snap := harness.SnapshotOf(t, c, source, sandbox.WithSnapshotName("first"))
		want := files(t, source, true)
		harness.Run(t, source, "sh", "-c", "echo later >/etc/b; echo later >/workspace/tree/empty; rm -r '/the copy/sub'")
		sb := harness.CreateWith(t, c, nil, sandbox.WithSource(sandbox.FromSnapshot(snap.ID)))
		got := files(t, sb, true)
		if !shares {
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("files (-source +snapshot):\n%s", diff)
			}
		} else if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("files (-source +shared):\n%s", diff)
		}
		harness.Run(t, sb, "sh", "-c", "echo mine >/workspace/tree/empty; mv /workspace/tree/sub /workspace/tree/moved; rm /etc/b")
		other := harness.CreateWith(t, c, nil, sandbox.WithSource(sandbox.FromSnapshot(snap.ID)))
		if diff := cmp.Diff(want, files(t, other, true)); diff != "" {
			t.Errorf("another one's files (-source +other):\n%s", diff)
		}
		all, err := c.ListSnapshots(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		i := slices.IndexFunc(all, func(s sandbox.Snapshot) bool { return s.ID == snap.ID })
		if i < 0 || all[i].Name != "first" || all[i].Sandbox != source.Name() || all[i].SizeBytes < 900_000 || shares != (len(all[i].Volumes) == 4) {
			t.Fatalf("ListSnapshots = %+v", all)
		}
		err = c.DeleteSnapshot(t.Context(), snap.ID)
		if shares {
			if !errors.Is(err, sandbox.ErrSnapshotInUse) || !strings.Contains(err.Error(), sb.ID()) {
				t.Errorf("DeleteSnapshot of one in use = %v", err)
			}
		} else if err != nil {
			t.Errorf("DeleteSnapshot = %v", err)
		}
		if shares {
			// A fork of what shares has it all, too, and shares nothing.
			fork := forked(t, c, other.Name())
			if diff := cmp.Diff(want, files(t, fork, true)); diff != "" {
				t.Errorf("a fork's files (-source +fork):\n%s", diff)
			}
			again, err := sb.Snapshot(t.Context())
			if err != nil || again.Parent != snap.ID {
				t.Errorf("a snapshot of what was made of one: %+v, %v", again, err)
			}
			if err := c.DeleteSnapshot(t.Context(), again.ID); err != nil {
				t.Errorf("DeleteSnapshot: %v", err)
			}
			vols, err := c.ListVolumes(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			i := slices.IndexFunc(vols, func(v sandbox.Volume) bool { return v.Name == record.WorkspaceName(other.ID()) })
			if i < 0 || vols[i].Role != "workspace" || vols[i].SizeBytes > 100_000 {
				t.Errorf("the volume that shares is listed as %+v", vols[i])
			}
		}
	})
}

// E59, E1, X11: what is no snapshot is refused, and nothing is made.
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
	sb := harness.CreateWith(t, c, nil)
	if err := c.DeleteSnapshot(t.Context(), sb.ID()); !errors.Is(err, sandbox.ErrSnapshotNotFound) {
		t.Errorf("DeleteSnapshot of a sandbox = %v", err)
	}
}

// Retention keeps what is wanted and what is in use.
func TestRetentionOfSnapshots(t *testing.T) {
	t.Parallel()
	c := harness.NewClient(t)
	source := harness.CreateWith(t, c, nil)
	first := harness.SnapshotOf(t, c, source)
	user := harness.CreateWith(t, c, nil, sandbox.WithSource(sandbox.FromSnapshot(first.ID)))
	second := harness.SnapshotOf(t, c, source)
	third := harness.SnapshotOf(t, c, source, sandbox.WithKeepLast(1))
	brief := harness.SnapshotOf(t, c, user, sandbox.WithExpiry(time.Nanosecond))
	there := func(id string) bool {
		all, err := c.ListSnapshots(t.Context())
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
	if _, err := user.Delete(t.Context(), sandbox.PreserveVolumes(false)); err != nil {
		t.Fatal(err)
	}
	if err := c.DeleteSnapshot(t.Context(), first.ID); err != nil {
		t.Errorf("DeleteSnapshot: %v", err)
	}
}

// Many forks of one moment, each on its own from then on; what they share goes with the
// last of them.
func TestForkN(t *testing.T) {
	t.Parallel()
	sharing(t, func(t *testing.T, c *sandbox.Client, shares bool) {
		source := harness.CreateWith(t, c, []sandbox.Mount{{Source: harness.HostDir(t, map[string]string{"f": "x"}), Target: "/c"}})
		harness.Run(t, source, "sh", "-c", "echo w >/workspace/w; echo b >/etc/b")
		name := harness.UniqueName(t)
		results, err := c.ForkN(t.Context(), source.Name(), 3, sandbox.WithName(name))
		if err != nil || len(results) != 3 {
			t.Fatalf("ForkN = %v, %v", results, err)
		}
		for i, r := range results {
			harness.Remove(t, c, r.Sandbox.Name())
			t.Cleanup(func() { r.Sandbox.Detach() })
			if want := name + "-" + string(rune('1'+i)); r.Sandbox.Name() != want {
				t.Errorf("fork %d is named %q, want %q", i, r.Sandbox.Name(), want)
			}
			if out := harness.Run(t, r.Sandbox, "sh", "-c", "cat /workspace/w /etc/b /c/f; echo mine | tee /workspace/w /etc/b /c/f"); out != "w\nb\nxmine" {
				t.Errorf("fork %d says %q", i, out)
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
		if all, err := c.ListSnapshots(t.Context()); err != nil || slices.ContainsFunc(all, func(s sandbox.Snapshot) bool { return s.Sandbox == source.Name() }) {
			t.Errorf("ForkN leaves a snapshot: %v, %v", all, err)
		}
		for _, r := range results {
			if _, err := r.Sandbox.Delete(t.Context(), sandbox.PreserveVolumes(false)); err != nil {
				t.Fatal(err)
			}
		}
		eng := harness.NewEngine(t)
		harness.Eventually(t, "what they shared goes with them", func() bool {
			harness.Sweep(t)
			left, err := eng.ListVolumes(t.Context(), record.Filter(record.Role, record.RoleFrozen))
			if err != nil {
				t.Fatal(err)
			}
			return !slices.ContainsFunc(left, func(v engine.Volume) bool { return v.Labels[record.Name] == source.Name() })
		})
	})
}
