package sandbox_test

import (
	"context"
	"fmt"

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

	snap, err := sb.Snapshot(ctx, sandbox.WithSnapshotName("prepared"))
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
