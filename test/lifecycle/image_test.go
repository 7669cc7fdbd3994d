package lifecycle_test

import (
	"maps"
	"testing"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/internal/engine"
	"github.com/seed-1a2d6d8f/sandbox/internal/record"
	"github.com/seed-1a2d6d8f/sandbox/test/harness"
)

// The labels of a hostile image are never those of what is made from it: a sandbox, its
// replacement, a fork, a snapshot, and the images committed for them.
func TestLabelsOfAnImageAreNotThoseOfTheSandbox(t *testing.T) {
	t.Parallel()
	const forged = "agent-sandbox.tag.tenant=acme"
	tags := map[string]string{"ours": "1", "empty": ""}
	for name, behind := range map[string][]sandbox.ClientOption{
		"layers on disk": nil,
		"commits":        {harness.Behind(t, harness.WithoutLayers, harness.WithoutOverlays)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c, eng := harness.NewClient(t, behind...), harness.NewEngine(t)
			image := harness.SmallImage(t, "LABEL "+forged, "LABEL agent-sandbox.tag.ours=theirs", "LABEL agent-sandbox.by=forged",
				"LABEL agent-sandbox.after=forged", "LABEL agent-sandbox.holder=forged", "LABEL agent-sandbox.until=2000-01-01T00:00:00Z",
				"LABEL agent-sandbox.source=forged", "LABEL agent-sandbox.role=helper", "LABEL theirs=kept")
			check := func(what, name string, replaced bool) {
				t.Helper()
				if got := harness.Inspect(t, name).Tags; !maps.Equal(got, tags) {
					t.Errorf("%s: Inspect says tags %v, want %v", what, got, tags)
				}
				list, err := c.List(t.Context(), sandbox.NamePrefix(name), sandbox.TagFilter("tenant", "acme"))
				if err != nil || len(list) != 0 {
					t.Errorf("%s: List by the image's tag: %+v, %v; want none", what, list, err)
				}
				of := engine.Filter{Names: []string{record.ContainerName(name)}, Labels: []string{forged}}
				if found, err := eng.ListContainers(t.Context(), of); err != nil || len(found) != 0 {
					t.Errorf("%s: the engine's filter by %s: %d containers, %v; want none", what, forged, len(found), err)
				}
				got, err := eng.InspectContainer(t.Context(), record.ContainerName(name))
				if err != nil {
					t.Fatal(err)
				}
				rec, ok := record.Decode(got.Labels)
				if !ok || (rec.By != "") != replaced || rec.By == "forged" || rec.Previous == "forged" {
					t.Errorf("%s: the record is %v: changed by %q, after %q", what, ok, rec.By, rec.Previous)
				}
				for _, key := range []string{record.Holder, record.Until, record.Source} {
					if got.Labels[key] != "" {
						t.Errorf("%s: label %s is %q", what, key, got.Labels[key])
					}
				}
				if got.Labels["theirs"] != "kept" {
					t.Errorf("%s: the image's own label is %q", what, got.Labels["theirs"])
				}
			}
			sb := harness.CreateWith(t, c, nil, sandbox.WithImage(image), sandbox.WithTags(tags))
			check("created", sb.Name(), false)
			harness.Write(t, sb, "/srv/b", "b")
			fork, err := c.Fork(t.Context(), sb.Name())
			if err != nil {
				t.Fatalf("Fork: %v", err)
			}
			harness.Remove(t, c, fork.Name())
			t.Cleanup(func() { fork.Detach() })
			check("forked", fork.Name(), false)
			snap := harness.SnapshotOf(t, c, sb)
			stored := harness.CreateWith(t, c, nil, sandbox.WithSource(sandbox.FromSnapshot(snap.ID)), sandbox.WithTags(tags))
			check("from a snapshot", stored.Name(), false)
			if _, err := sb.Stop(t.Context()); err != nil {
				t.Fatal(err)
			}
			harness.Update(t, sb, sandbox.WithPorts(3000))
			if _, err := sb.Start(t.Context()); err != nil {
				t.Fatal(err)
			}
			check("replaced", sb.Name(), true)
			images, err := eng.ListImages(t.Context(), record.Filter(record.Managed, "true"), forged)
			if err != nil || len(images) != 0 {
				t.Errorf("images of ours with %s: %+v, %v; want none", forged, images, err)
			}
		})
	}
}
