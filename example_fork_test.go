package sandbox_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/seed-1a2d6d8f/sandbox"
)

// What was prepared once is tried in two ways, side by side, and neither sees the other.
func ExampleForkN() {
	ctx := context.Background()
	sb, err := sandbox.Create(ctx)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer sb.Close()
	if err := sb.WriteFile(ctx, "answer", []byte("42"), 0o644); err != nil {
		fmt.Println(err)
		return
	}

	forks, err := sandbox.ForkN(ctx, sb.Name(), 2)
	for _, f := range forks {
		if f.Sandbox != nil {
			defer f.Sandbox.Close()
		}
	}
	if err != nil {
		fmt.Println(err)
		return
	}
	for i, f := range forks {
		out, err := f.Sandbox.Command(ctx, "sh", "-c", fmt.Sprintf("printf %%d %d >>answer; cat answer", i)).Output()
		fmt.Println(string(out), err)
	}
	// Output:
	// 420 <nil>
	// 421 <nil>
}

// What may go wrong is tried in a fork. The sandbox itself does not change.
func ExampleSandbox_Fork() {
	ctx := context.Background()
	sb, err := sandbox.Create(ctx)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer sb.Close()
	if err := sb.WriteFile(ctx, "state", []byte("as it was"), 0o644); err != nil {
		fmt.Println(err)
		return
	}

	fork, err := sb.Fork(ctx)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer fork.Close()
	if err := fork.Command(ctx, "rm", "state").Run(); err != nil {
		fmt.Println(err)
		return
	}
	kept, err := sb.ReadFile(ctx, "state")
	fmt.Println(string(kept), err)
	// Output: as it was <nil>
}

// A snapshot is there for as long as it is wanted, whatever becomes of the sandbox.
func ExampleSandbox_Snapshot() {
	ctx := context.Background()
	sb, err := sandbox.Create(ctx)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer sb.Close()
	if err := sb.WriteFile(ctx, "state", []byte("as it was"), 0o644); err != nil {
		fmt.Println(err)
		return
	}

	snap, err := sb.Snapshot(ctx, sandbox.SnapshotOptions{Name: "prepared"})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer sandbox.DeleteSnapshot(ctx, snap.ID)
	if err := sb.WriteFile(ctx, "state", []byte("changed"), 0o644); err != nil {
		fmt.Println(err)
		return
	}
	again, err := sandbox.Create(ctx, sandbox.WithSource(sandbox.FromSnapshot(snap.ID)))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer again.Close()
	was, err := again.ReadFile(ctx, "state")
	fmt.Println(string(was), err)
	// Output: as it was <nil>
}

// What went wrong is undone: the sandbox has the files of the snapshot again, and its name.
func ExampleSandbox_Rollback() {
	ctx := context.Background()
	sb, err := sandbox.Create(ctx)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer sb.Close()
	if err := sb.WriteFile(ctx, "state", []byte("as it was"), 0o644); err != nil {
		fmt.Println(err)
		return
	}
	snap, err := sb.Snapshot(ctx, sandbox.SnapshotOptions{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer sandbox.DeleteSnapshot(ctx, snap.ID)

	if err := sb.Command(ctx, "rm", "state").Run(); err != nil {
		fmt.Println(err)
		return
	}
	if err := sb.Rollback(ctx, snap.ID); err != nil {
		fmt.Println(err)
		return
	}
	was, err := sb.ReadFile(ctx, "state")
	fmt.Println(string(was), err)
	// Output: as it was <nil>
}

// Which sandbox came from which, and from what snapshot. The snapshots go with their sandbox.
func ExampleSnapshotTree() {
	ctx := context.Background()
	sb, err := sandbox.Create(ctx)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer sandbox.Delete(ctx, sb.ID(), sandbox.DeleteOptions{Volumes: true, Snapshots: true})
	defer sb.Detach()
	if _, err := sb.Snapshot(ctx, sandbox.SnapshotOptions{Name: "prepared"}); err != nil {
		fmt.Println(err)
		return
	}

	roots, err := sandbox.SnapshotTree(ctx)
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, node := range roots {
		if node.ID != sb.ID() {
			continue // others are on the engine, too
		}
		for _, child := range node.Children {
			fmt.Println(node.Kind, "->", child.Kind, child.Name)
		}
	}
	// Output: sandbox -> snapshot prepared
}

// A snapshot by its ID, and what to do if somebody has deleted it.
func ExampleGetSnapshot() {
	_, err := sandbox.GetSnapshot(context.Background(), "nosuchsnapsh")
	fmt.Println(errors.Is(err, sandbox.ErrSnapshotNotFound))
	// Output: true
}

// Snapshots of a sandbox are found by its name, and deleted.
func ExampleListSnapshots() {
	ctx := context.Background()
	sb, err := sandbox.Get(ctx, existing())
	if err != nil {
		fmt.Println(err)
		return
	}
	defer sb.Detach()
	if _, err := sb.Snapshot(ctx, sandbox.SnapshotOptions{Name: "nightly", Expiry: 24 * time.Hour}); err != nil {
		fmt.Println(err)
		return
	}
	list, err := sandbox.ListSnapshots(ctx, sandbox.ListSnapshotsOptions{Sandbox: sb.Name(), Name: "nightly"})
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, s := range list {
		fmt.Println(s.Name, s.Sandbox == sb.Name(), sandbox.DeleteSnapshot(ctx, s.ID))
	}
	// Output: nightly true <nil>
}

// A snapshot that is gone is no surprise to who deletes it again.
func ExampleDeleteSnapshot() {
	err := sandbox.DeleteSnapshot(context.Background(), "nosuchsnapsh")
	fmt.Println(errors.Is(err, sandbox.ErrSnapshotNotFound))
	// Output: true
}
