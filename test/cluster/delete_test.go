package cluster_test

import (
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/test/harness"
)

// A deletion that can't reach its node is carried out by whoever reaches it next, and never on another sandbox
// of that name.
func TestDeletionsWaitForTheirNode(t *testing.T) {
	nodes(t, 3)
	c, ctx := client(t, 0), t.Context()
	onIt := sandbox.WithPlacement("node.hostname==node3")
	names := map[string]string{}
	var held *sandbox.Sandbox
	for _, who := range []string{"delete", "get", "create", "sweep", "another", "handle"} {
		name := harness.UniqueName(t)
		sb, err := c.Create(ctx, small(name, onIt)...)
		if err != nil {
			t.Fatal(err)
		}
		harness.Remove(t, c, name)
		defer sb.Detach()
		names[who], held = name, sb
	}
	const noted = "the swarm has noted its deletion"
	all := sandbox.DeleteOptions{Volumes: true}
	back := kill(t, 3)
	for who, name := range names {
		began := time.Now()
		if who == "handle" {
			unavailable(t, "Delete of a handle", noted, began, harness.Second(held.Delete(ctx, all)))
		} else {
			unavailable(t, "Delete", noted, began, harness.Second(client(t, 1).Delete(ctx, name, all)))
		}
	}
	unavailable(t, "Get", noted, time.Now(), harness.Second(client(t, 0).Get(ctx, names["get"])))
	if err := harness.Second(client(t, 0).Create(ctx, small(names["get"])...)); !errors.Is(err, sandbox.ErrExists) || !strings.Contains(err.Error(), noted) {
		t.Errorf("Create: %v, want ErrExists with %q", err, noted)
	}
	if got := entriesOf(t, slices.Sorted(maps.Values(names))...); len(got) != len(names) {
		t.Errorf("entries of %q, want all %d", got, len(names))
	}
	back()

	// Before anybody of the swarm comes by, a plain client of the node has done it, and used the name again.
	plain := onNode(t, "node3")
	if err := harness.Second(plain.Delete(ctx, names["another"], all)); err != nil {
		t.Fatal(err)
	}
	another, err := plain.Create(ctx, small(names["another"])...)
	if err != nil {
		t.Fatal(err)
	}
	defer another.Detach()

	fresh := client(t, 1)
	if err := harness.Second(fresh.Delete(ctx, names["delete"], all)); err != nil {
		t.Errorf("Delete again: %v", err)
	}
	for _, who := range []string{"get", "handle"} {
		if err := harness.Second(fresh.Get(ctx, names[who])); !errors.Is(err, sandbox.ErrNotFound) {
			t.Errorf("Get: %v, want ErrNotFound", err)
		}
	}
	again, err := fresh.Create(ctx, small(names["create"], sandbox.WithPlacement("node.hostname==node2"))...)
	if err != nil {
		t.Fatalf("Create of the name: %v", err)
	}
	defer again.Detach()
	for deadline := time.Now().Add(4 * time.Minute); len(entriesOf(t, names["sweep"])) > 0; time.Sleep(time.Second) {
		if time.Now().After(deadline) {
			t.Fatal("no sweep of the node carries the deletion out")
		}
		if _, err := fresh.List(ctx, sandbox.ListOptions{}); err != nil { // which sweeps in the background
			t.Fatal(err)
		}
	}
	noteDeletion(t, names["create"])
	report, err := client(t, 0).Prune(ctx)
	if err != nil {
		t.Errorf("Prune: %v", err)
	}
	if !slices.Contains(report.Removed, "sandbox "+names["create"]) {
		t.Errorf("Prune removed %q, want the sandbox %s, too", report.Removed, names["create"])
	}
	if sb, err := client(t, 0).Get(ctx, names["another"]); err != nil || sb.ID() != another.ID() {
		t.Errorf("Get of another sandbox of that name: %v, %v", sb, err)
	} else {
		sb.Detach()
	}
	delete(names, "another")
	if got := entriesOf(t, slices.Sorted(maps.Values(names))...); len(got) != 0 {
		t.Errorf("entries of %q, want none", got)
	}
	for _, left := range everything(t) {
		for _, name := range names {
			if strings.Contains(left, name) {
				t.Errorf("left: %s", left)
			}
		}
	}
}
