package sandbox

import (
	"cmp"
	"context"
	"slices"

	"github.com/seed-1a2d6d8f/sandbox/internal/trace"
)

// A SnapshotNode is a snapshot or a sandbox in [SnapshotTree].
type SnapshotNode struct {
	// Kind is [SnapshotKind] or [SandboxKind].
	Kind string `json:"kind"`
	// Snapshot describes a snapshot. Of a sandbox it has the ID, the Name, the Image, the time of
	// its creation, as Sandbox and SandboxID name and ID again, and as Parent the snapshot that
	// the sandbox, or the source it was forked from, was created from or rolled back to.
	Snapshot
	// ForkOf is the ID of the sandbox that this one was forked from, which may no longer exist.
	ForkOf string `json:"forkOf,omitempty"`
	// Children came from this one, the oldest first. It is never nil.
	Children []*SnapshotNode `json:"children"`
}

// The values of [SnapshotNode.Kind].
const (
	SnapshotKind = "snapshot"
	SandboxKind  = "sandbox"
)

// SnapshotTree returns all snapshots and sandboxes on the engine, each below the one that its
// files came from, and those that came from none that still exists. A fork is below its source.
// Otherwise a sandbox is below the snapshot that it was created from, or rolled back to since. A
// snapshot is below its sandbox, or, if that was rolled back or deleted since, below the snapshot
// that the sandbox came from then.
func SnapshotTree(ctx context.Context) ([]*SnapshotNode, error) {
	return defaultClient().SnapshotTree(ctx)
}

// SnapshotTree is the package's [SnapshotTree] on the client's engine.
func (c *Client) SnapshotTree(ctx context.Context) (_ []*SnapshotNode, err error) {
	ctx, span := trace.Start(ctx, "sandbox.snapshot_tree")
	defer span.End(&err)
	defer wrap(&err, "list snapshots", "")
	l, err := c.connect(ctx)
	if err != nil {
		return nil, err
	}
	all, err := l.List(ctx)
	if err != nil {
		return nil, err
	}
	nodes := []*SnapshotNode{}
	snapshots, sharers := all.Snapshots()
	for _, rec := range snapshots {
		nodes = append(nodes, &SnapshotNode{Kind: SnapshotKind, Snapshot: snapshotOf(rec, sharers[rec.ID])})
	}
	for _, got := range all.Containers {
		rec := got.Record
		if !got.IsSandbox || all.Abandoned(rec) {
			continue
		}
		nodes = append(nodes, &SnapshotNode{Kind: SandboxKind, ForkOf: rec.Settings.ForkOf, Snapshot: Snapshot{
			ID: rec.ID, Name: rec.Name, Sandbox: rec.Name, SandboxID: rec.ID, Parent: rec.Settings.Snapshot,
			CreatedAt: rec.CreatedAt, Image: cmp.Or(rec.Settings.Image, got.Image),
		}})
	}
	return forest(nodes), nil
}

// forest puts each node below the one it came from, and returns the others.
func forest(nodes []*SnapshotNode) []*SnapshotNode {
	slices.SortFunc(nodes, func(a, b *SnapshotNode) int {
		return cmp.Or(a.CreatedAt.Compare(b.CreatedAt), cmp.Compare(a.ID, b.ID))
	})
	snapshots, sandboxes := map[string]*SnapshotNode{}, map[string]*SnapshotNode{}
	for _, n := range nodes {
		n.Children = []*SnapshotNode{}
		if n.Kind == SnapshotKind {
			snapshots[n.ID] = n
		} else {
			sandboxes[n.ID] = n
		}
	}
	from := func(n *SnapshotNode) *SnapshotNode {
		of := sandboxes[n.ForkOf]
		if n.Kind == SnapshotKind {
			of = sandboxes[n.SandboxID]
		}
		if of != nil && of.Parent == n.Parent { // else it was rolled back since
			return of
		}
		return snapshots[n.Parent]
	}
	roots := []*SnapshotNode{}
	for _, n := range nodes {
		parent := from(n)
		// What labels say may be a circle, of which all are roots then.
		for up, steps := parent, 0; up != nil && steps < len(nodes); up, steps = from(up), steps+1 {
			if up == n {
				parent = nil
				break
			}
		}
		if parent == nil {
			roots = append(roots, n)
		} else {
			parent.Children = append(parent.Children, n)
		}
	}
	return roots
}
