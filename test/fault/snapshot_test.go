package fault_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/internal/record"
	"github.com/seed-1a2d6d8f/sandbox/test/harness"
)

// ofKept returns a handle on the stand's sandbox, past the proxy.
func (x *trial) ofKept() *sandbox.Sandbox {
	x.Helper()
	sb, err := x.clean.Get(context.Background(), x.kept, sandbox.WithoutResume())
	if err != nil {
		x.Fatalf("the sandbox of the stand: %v", err)
	}
	return sb
}

// snapshots are those of the stand's sandbox but for the one that trials share.
func (x *trial) snapshots() []sandbox.Snapshot {
	x.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), harness.CallBound)
	defer cancel()
	all, err := x.clean.ListSnapshots(ctx, sandbox.ListSnapshotsOptions{})
	if err != nil {
		x.Fatalf("ListSnapshots: %v", err)
	}
	return slices.DeleteFunc(all, func(s sandbox.Snapshot) bool { return s.Sandbox != x.kept || s.ID == x.saved.ID })
}

// onlyItself checks that there is nothing of the stand's sandbox but its container and its
// workspace, after one sweep at the most: no helper, no frozen files, no snapshot.
func (x *trial) onlyItself() {
	x.Helper()
	sb := x.ofKept()
	sb.Detach()
	own := func(o string) bool {
		return strings.HasPrefix(o, "container "+record.ContainerName(x.kept)+" (") || o == "volume "+record.WorkspaceName(sb.ID()) ||
			x.saved.ID != "" && strings.HasPrefix(o, "volume "+record.SnapshotName(x.saved.ID)+"-")
	}
	look := func() []string {
		left := slices.DeleteFunc(harness.Objects(x, x.eng, harness.Named(x.kept)), own)
		for _, s := range x.snapshots() {
			left = append(left, "snapshot "+s.ID)
		}
		return left
	}
	if len(look()) == 0 {
		return
	}
	harness.Sweep(x)
	// Another client's sweep may be at the same object just now.
	for deadline := time.Now().Add(harness.GoneBound); ; time.Sleep(50 * time.Millisecond) {
		if x.err != nil && !x.undone { // until its leases are over
			time.Sleep(time.Second)
			harness.Sweep(x)
		}
		left := look()
		if len(left) == 0 {
			return
		}
		if time.Now().After(deadline) {
			x.Errorf("%s: left after a sweep: %s; it returned %v; its calls: %q", x.where(), strings.Join(left, ", "), x.err, x.proxy.Calls())
			return
		}
	}
}

// dropped deletes the trial's snapshot and checks that nothing is left of it.
func (x *trial) dropped() {
	x.Helper()
	if x.snap.ID != "" {
		if err := x.clean.DeleteSnapshot(context.Background(), x.snap.ID); err != nil && !errors.Is(err, sandbox.ErrSnapshotNotFound) {
			x.Errorf("DeleteSnapshot: %v", err)
		}
	}
	x.onlyItself()
}

// snapshotting is an operation that makes a snapshot of the stand's sandbox.
func snapshotting(state sandbox.State) operation {
	op := operation{
		open: func(x *trial) (err error) {
			x.sb, err = x.c.Get(context.Background(), x.kept, sandbox.WithoutResume())
			return err
		},
		act: func(ctx context.Context, x *trial) (err error) {
			x.snap, err = x.sb.Snapshot(ctx, sandbox.SnapshotOptions{Name: x.name})
			return err
		},
		done: func(x *trial) {
			x.aside(func() {
				if all := x.snapshots(); len(all) != 1 || all[0].ID != x.snap.ID || all[0].Name != x.name {
					x.Errorf("%s: it returned nil and there is %+v, want %s", x.where(), all, x.snap.ID)
				}
			})
		},
		after: func(x *trial) {
			if x.k > 0 && x.err == nil {
				x.creatable(append(plain(x), sandbox.WithSource(sandbox.FromSnapshot(x.snap.ID)))...)
			}
			x.dropped()
		},
	}
	retry := again(op).failed
	op.failed = func(x *trial) {
		if x.snap.ID != "" {
			x.Errorf("%s: a snapshot beside the error %v", x.where(), x.err)
		}
		x.aside(func() { x.untouched(state); x.onlyItself() })
		retry(x)
	}
	return beside(op, state)
}

// What a snapshot is taken of is never left paused, and there is a
// whole snapshot or nothing of one.
func TestSnapshotSurvivesAFaultInAnyCall(t *testing.T) {
	testFaultsAtEvery(t, 6, snapshotting(sandbox.StateRunning))
}

func TestSnapshotOfAStoppedSandboxSurvivesAFaultInAnyCallSoak(t *testing.T) {
	harness.Soak(t)
	testFaults(t, snapshotting(sandbox.StateStopped))
}

// A snapshot by commit that fails leaves no image.
func TestSnapshotByCommitSurvivesAFaultInAnyCallSoak(t *testing.T) {
	harness.Soak(t)
	testFaults(t, committing(snapshotting(sandbox.StateRunning)))
}

// The snapshot is there, or it is gone with all it had once the same call
// or a sweep has come by.
func TestDeleteSnapshotSurvivesAFaultInAnyCall(t *testing.T) {
	testFaultsAtEvery(t, 6, beside(operation{
		arrange: func(x *trial) {
			sb := x.ofKept()
			defer sb.Detach()
			var err error
			if x.snap, err = sb.Snapshot(context.Background(), sandbox.SnapshotOptions{}); err != nil {
				x.Fatalf("Snapshot: %v", err)
			}
		},
		act: func(ctx context.Context, x *trial) error { return x.c.DeleteSnapshot(ctx, x.snap.ID) },
		done: func(x *trial) {
			x.aside(func() {
				if all := x.snapshots(); len(all) > 0 {
					x.Errorf("%s: it returned nil and there is %+v", x.where(), all)
				}
			})
		},
		after: func(x *trial) { x.dropped() },
	}, sandbox.StateRunning))
}

// save makes, once, the snapshot that the stand's trials share, of files that write makes.
func (x *trial) save(write func(sb *sandbox.Sandbox) error) {
	x.Helper()
	if x.saved.ID != "" {
		return
	}
	sb := x.ofKept()
	defer sb.Detach()
	err := write(sb)
	if err == nil {
		x.saved, err = sb.Snapshot(context.Background(), sandbox.SnapshotOptions{})
	}
	if err != nil {
		x.Fatalf("the snapshot of the stand: %v", err)
	}
	s, id := x.stand, x.saved.ID
	s.top.Cleanup(func() {
		if err := s.clean.DeleteSnapshot(context.Background(), id); err != nil {
			s.top.Errorf("DeleteSnapshot: %v", err)
		}
	})
}

// fromSnapshot is an operation that makes a sandbox of the stand's snapshot.
func fromSnapshot(act func(context.Context, *trial, []sandbox.CreateOption) (*sandbox.Sandbox, error)) operation {
	op := creation(func(x *trial) []sandbox.CreateOption {
		return append(plain(x), sandbox.WithSource(sandbox.FromSnapshot(x.saved.ID)))
	}, act)
	op.alters = true
	op.arrange = func(x *trial) {
		x.save(func(sb *sandbox.Sandbox) error {
			return sb.Command(context.Background(), "sh", "-c", "echo w >/workspace/f; echo e >/etc/f").Run()
		})
	}
	op.done = func(x *trial) {
		x.usable()
		ctx, cancel := context.WithTimeout(context.Background(), harness.CallBound)
		defer cancel()
		if out, err := x.sb.Command(ctx, "cat", "/workspace/f", "/etc/f").Output(); string(out) != "w\ne\n" {
			x.Errorf("%s: it returned nil and the files hold %q, %v", x.where(), out, err)
		}
	}
	after := op.after
	op.after = func(x *trial) {
		after(x)
		all, err := x.clean.ListSnapshots(context.Background(), sandbox.ListSnapshotsOptions{})
		i := slices.IndexFunc(all, func(s sandbox.Snapshot) bool { return s.ID == x.saved.ID })
		if err != nil || i < 0 || len(all[i].Volumes) > 0 {
			x.Errorf("%s: the snapshot is %+v, %v, want it there and shared by nobody", x.where(), all, err)
		}
		x.onlyItself()
	}
	return beside(op, sandbox.StateRunning)
}

// The snapshot stays, and nobody shares it.
func TestCreateFromASnapshotSurvivesAFaultInAnyCall(t *testing.T) {
	testFaultsAtEvery(t, 14, fromSnapshot(create))
}

// The same with the files copied, as on engines that mount no overlays.
func TestCreateFromACopiedSnapshotSurvivesAFaultInAnyCallSoak(t *testing.T) {
	harness.Soak(t)
	op := fromSnapshot(create)
	op.open = func(x *trial) error { x.proxy.RefuseOverlays(); return nil }
	testFaults(t, op)
}
