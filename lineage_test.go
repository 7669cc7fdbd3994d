package sandbox_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/seed-1a2d6d8f/sandbox"
)

// Every node is in the tree once, whatever the labels say.
func TestTreeHasEveryNodeOnce(t *testing.T) {
	at := time.Unix(0, 0)
	node := func(kind, id, parent, of, forkOf string) *sandbox.SnapshotNode {
		at = at.Add(time.Second)
		return &sandbox.SnapshotNode{Kind: kind, ForkOf: forkOf, Snapshot: sandbox.Snapshot{ID: id, Parent: parent, SandboxID: of, CreatedAt: at}}
	}
	snap, box := sandbox.SnapshotKind, sandbox.SandboxKind
	nodes := []*sandbox.SnapshotNode{
		node(box, "x", "", "x", ""), node(snap, "a", "gone", "gone", ""), node(snap, "b", "a", "x", ""), node(snap, "c", "", "x", ""),
		node(box, "f", "", "f", "x"), node(box, "g", "b", "g", "x"), node(snap, "self", "self", "", ""),
		node(snap, "ring1", "ring2", "", ""), node(snap, "ring2", "ring1", "", ""), node(snap, "below", "ring1", "", ""),
		node(box, "mine", "y", "mine", "mine"), // a fork of itself
	}
	var lines []string
	var walk func(depth int, nodes []*sandbox.SnapshotNode)
	walk = func(depth int, nodes []*sandbox.SnapshotNode) {
		for _, n := range nodes {
			lines = append(lines, strings.Repeat("  ", depth)+n.ID)
			walk(depth+1, n.Children)
		}
	}
	walk(0, sandbox.Forest(nodes))
	want := []string{"x", "  c", "  f", "a", "  b", "    g", "self", "ring1", "  below", "ring2", "mine"}
	if diff := cmp.Diff(want, lines); diff != "" {
		t.Errorf("tree (-want +got):\n%s", diff)
	}
}
