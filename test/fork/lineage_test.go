package fork_test

import (
	"errors"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/test/harness"
)

// A family is a sandbox and what came from it.
type family struct {
	name          string // of first and below
	root          *sandbox.Sandbox
	first, second sandbox.Snapshot // of root
	child         *sandbox.Sandbox // from first
	fork          *sandbox.Sandbox // of child
	below         sandbox.Snapshot // of fork
	one           *sandbox.Sandbox // of root, by ForkN
}

// The status of a sandbox, the list of snapshots and the tree name the source of each sandbox and snapshot.
func TestLineage(t *testing.T) {
	t.Parallel()
	c := harness.NewClient(t)
	dir := harness.HostDir(t, map[string]string{"f": "x"})
	f := family{name: harness.UniqueName(t), root: harness.CreateWith(t, c, nil, sandbox.WithSource(sandbox.Dir(dir)))}
	f.first = harness.SnapshotOf(t, c, f.root, sandbox.SnapshotOptions{Name: f.name})
	f.second = harness.SnapshotOf(t, c, f.root, sandbox.SnapshotOptions{})
	f.child = harness.CreateWith(t, c, nil, fromSnap(f.first))
	f.fork = forked(t, c, f.child.Name())
	f.below = harness.SnapshotOf(t, c, f.fork, sandbox.SnapshotOptions{Name: f.name})
	f.one = forkedN(t, c, f.root.Name(), 1)[0]

	// The status of a sandbox and of its forks names its source, without secrets.
	for sb, want := range map[*sandbox.Sandbox]string{
		f.root:            "directory " + dir,
		f.child:           "snapshot " + f.first.ID,
		f.fork:            "fork of " + f.child.Name(),
		f.one:             "fork of " + f.root.Name(),
		harness.Shared(t): "",
	} {
		if st, err := c.Inspect(t.Context(), sb.Name()); err != nil || st.Source != want {
			t.Errorf("Inspect says %q, %v, want %q", st.Source, err, want)
		}
	}
	// Parents lead from one snapshot to the one it descends from, through forks, too.
	if f.below.Parent != f.first.ID || f.first.Parent != "" {
		t.Errorf("parents are %q and %q, want none and %s", f.first.Parent, f.below.Parent, f.first.ID)
	}
	wantTrees(t, c, f)
	if _, err := f.root.Delete(t.Context(), sandbox.DeleteOptions{Volumes: true}); err != nil {
		t.Fatal(err)
	}
	wantLists(t, c, f)
}

// wantTrees looks at the tree as it is, after a rollback and after a deletion: it has each fork below
// its source, each snapshot below its sandbox, and what was rolled back below the snapshot.
func wantTrees(t *testing.T, c *sandbox.Client, f family) {
	t.Helper()
	names := map[string]string{f.root.ID(): "root", f.first.ID: "first", f.second.ID: "second", f.child.ID(): "child", f.fork.ID(): "fork", f.below.ID: "below", f.one.ID(): "one"}
	snapshots := []string{"first", "second", "below"}
	wantTree := func(when string, want map[string]string) {
		t.Helper()
		roots, err := c.SnapshotTree(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		got := map[string]string{}
		var walk func(path string, nodes []*sandbox.SnapshotNode)
		walk = func(path string, nodes []*sandbox.SnapshotNode) {
			for _, n := range nodes {
				if name := names[n.ID]; name != "" {
					got[name] = path
					if (n.Kind == sandbox.SnapshotKind) != slices.Contains(snapshots, name) || n.Children == nil {
						t.Errorf("node %+v", n)
					}
				}
				walk(path+"/"+names[n.ID], n.Children)
			}
		}
		walk("", roots)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("tree %s (-want +got):\n%s", when, diff)
		}
	}
	wantTree("at first", map[string]string{"root": "", "first": "/root", "second": "/root", "one": "/root",
		"child": "/root/first", "fork": "/root/first/child", "below": "/root/first/child/fork"})
	// The source goes below what it was rolled back to; its first fork came from none of these.
	if err := f.root.Rollback(t.Context(), f.below.ID); err != nil {
		t.Fatal(err)
	}
	wantTree("after the rollback", map[string]string{"first": "", "second": "", "one": "",
		"child": "/first", "fork": "/first/child", "below": "/first/child/fork", "root": "/first/child/fork/below"})
	if _, err := c.Delete(t.Context(), f.child.Name(), sandbox.DeleteOptions{Volumes: true}); err != nil {
		t.Fatal(err)
	}
	wantTree("after a deletion", map[string]string{"first": "", "second": "", "one": "",
		"fork": "/first", "below": "/first/fork", "root": "/first/fork/below"})
}

// wantLists narrows the list of snapshots by the sandbox, which may be gone, and by name.
func wantLists(t *testing.T, c *sandbox.Client, f family) {
	t.Helper()
	for what, tt := range map[string]struct {
		opts sandbox.ListSnapshotsOptions
		want []string
	}{
		"of a name": {sandbox.ListSnapshotsOptions{Sandbox: f.root.Name()}, []string{f.second.ID, f.first.ID}},
		"of an ID":  {sandbox.ListSnapshotsOptions{Sandbox: f.root.ID()}, []string{f.second.ID, f.first.ID}},
		"named":     {sandbox.ListSnapshotsOptions{Name: f.name}, []string{f.below.ID, f.first.ID}},
		"both":      {sandbox.ListSnapshotsOptions{Name: f.name, Sandbox: f.fork.Name()}, []string{f.below.ID}},
		"of nobody": {sandbox.ListSnapshotsOptions{Sandbox: harness.UniqueName(t)}, nil},
	} {
		all, err := c.ListSnapshots(t.Context(), tt.opts)
		var ids []string
		for _, s := range all {
			ids = append(ids, s.ID)
		}
		if err != nil || !slices.Equal(ids, tt.want) {
			t.Errorf("ListSnapshots %s = %v, %v, want %v", what, ids, err, tt.want)
		}
	}
	for _, o := range []sandbox.ListSnapshotsOptions{{Sandbox: "../x"}, {Name: "A b"}} {
		if _, err := c.ListSnapshots(t.Context(), o); !errors.Is(err, sandbox.ErrInvalidArgument) {
			t.Errorf("ListSnapshots with what is no name = %v", err)
		}
	}
}
