package store_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/seed-1a2d6d8f/sandbox/internal/engine"
	"github.com/seed-1a2d6d8f/sandbox/internal/record"
	"github.com/seed-1a2d6d8f/sandbox/internal/store"
)

var now = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func TestInventoryHasOneContainerOfEachSandbox(t *testing.T) {
	t.Parallel()
	labels, err := record.Sandbox{ID: "id", Name: "a", Nonce: "n"}.Labels()
	if err != nil {
		t.Fatal(err)
	}
	container := func(name, state string) engine.Container {
		return engine.Container{ID: name + " " + state, Name: name, State: state, Labels: labels}
	}
	current, next, unfinished := record.ContainerName("a"), record.NextName("a"), record.UnfinishedName("a")
	for name, test := range map[string]struct {
		list         []engine.Container
		want         []string
		replacements int
	}{
		"one":                          {[]engine.Container{container(current, engine.StateRunning)}, []string{current}, 0},
		"being removed":                {[]engine.Container{container(current, engine.StateRemoving)}, []string{current}, 0},
		"with a replacement":           {[]engine.Container{container(current, engine.StateExited), container(next, engine.StateCreated)}, []string{current}, 1},
		"being replaced":               {[]engine.Container{container(next, engine.StateCreated), container(current, engine.StateRemoving)}, []string{next}, 1},
		"not to be removed":            {[]engine.Container{container(current, engine.StateDead), container(next, engine.StateCreated)}, []string{next}, 1},
		"a replacement alone":          {[]engine.Container{container(next, engine.StateCreated)}, []string{next}, 1},
		"with an unfinished one":       {[]engine.Container{container(unfinished, engine.StateCreated), container(current, engine.StateExited)}, []string{current}, 1},
		"beside a user's of our image": {[]engine.Container{container("theirs", engine.StateRunning), container(current, engine.StateRunning)}, []string{"theirs", current}, 0},
	} {
		var all store.Inventory
		if got := all.OnePerSandbox(test.list); len(got) != test.replacements {
			t.Errorf("%s: %d replacements, want %d", name, len(got), test.replacements)
		}
		var names []string
		for _, c := range all.Containers {
			if c.IsSandbox == (c.Container.Name == "theirs") {
				t.Errorf("%s: %s is a sandbox: %t", name, c.Container.Name, c.IsSandbox)
			}
			names = append(names, c.Container.Name)
		}
		if diff := cmp.Diff(test.want, names); diff != "" {
			t.Errorf("%s: containers (-want +got):\n%s", name, diff)
		}
	}
}

func TestOrphanedSnapshotFiles(t *testing.T) {
	t.Parallel()
	snapshot := record.SnapshotRecord{ID: "s1", Nonce: "n1"}
	files := engine.Volume{Name: record.FrozenName("s1", 0), Labels: snapshot.FrozenLabels()}
	sharer := engine.Volume{Name: "v", Labels: record.With(record.Base(record.RoleWorkspace, "n2", now), record.Snapshot, "s1")}
	for name, test := range map[string]struct {
		others  []engine.Volume
		live    string
		orphans map[string]string
	}{
		"alone":                {nil, "", map[string]string{"s1": "n1"}},
		"with a record":        {[]engine.Volume{{Name: record.SnapshotName("s1")}}, "", map[string]string{}},
		"shared":               {[]engine.Volume{sharer}, "", map[string]string{}},
		"shared by a stranger": {[]engine.Volume{{Name: "v", Labels: map[string]string{record.Snapshot: "s1"}}}, "", map[string]string{"s1": "n1"}},
		"with a live process":  {nil, "n1", map[string]string{}},
		"with another process": {nil, "n2", map[string]string{"s1": "n1"}},
	} {
		all := store.Inventory{Volumes: append(test.others, files)}.WithLive(test.live)
		if diff := cmp.Diff(test.orphans, all.OrphanedFiles()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

func TestVolumeOfAnEmptyTree(t *testing.T) {
	t.Parallel()
	rec := record.SnapshotRecord{ID: "s1", Nonce: "n1", CreatedAt: now.Add(-2 * time.Minute), Trees: []record.Tree{{Volume: record.FrozenName("s1", 0)}}}
	volume := func(n int) engine.Volume {
		return engine.Volume{Name: record.FrozenName("s1", n), Labels: rec.FrozenLabels()}
	}
	young, other := rec, rec
	young.CreatedAt = now.Add(-time.Second)
	other.Nonce = "n2"
	for name, test := range map[string]struct {
		v    engine.Volume
		recs map[string]record.SnapshotRecord
		want bool
	}{
		"not in the record":    {volume(1), map[string]record.SnapshotRecord{"s1": rec}, true},
		"in the record":        {volume(0), map[string]record.SnapshotRecord{"s1": rec}, false},
		"of a young snapshot":  {volume(1), map[string]record.SnapshotRecord{"s1": young}, false},
		"without a record":     {volume(1), nil, false},
		"of another snapshot":  {volume(1), map[string]record.SnapshotRecord{"s1": other}, false},
		"not a snapshot's own": {engine.Volume{Name: "v", Labels: record.With(rec.FrozenLabels(), record.Role, record.RoleWorkspace)}, map[string]record.SnapshotRecord{"s1": rec}, false},
	} {
		if got := store.EmptyTree(now, test.v, test.recs); got != test.want {
			t.Errorf("%s: %v, want %v", name, got, test.want)
		}
	}
}

func TestAbandonedHelpers(t *testing.T) {
	t.Parallel()
	const hour = time.Hour
	for name, test := range map[string]struct {
		state      string
		age, until time.Duration
		claimed    bool // its operation's marker is that of a live process
		want       bool
	}{
		"just created, as far as is known without a marker": {engine.StateCreated, 20 * time.Second, hour, false, false},
		"created and never started":                         {engine.StateCreated, 2 * time.Minute, hour, false, true},
		"created by a dead process":                         {engine.StateCreated, 2 * time.Minute, hour, false, true},
		"created by a live process that is slow":            {engine.StateCreated, hour, -hour, true, false},
		"ended":                                             {engine.StateExited, 2 * time.Minute, hour, false, true},
		"that runs":                                         {engine.StateRunning, 2 * time.Minute, hour, false, false},
		"that runs and has expired":                         {engine.StateRunning, 2 * hour, -hour, false, true},
		"of a live process that has expired":                {engine.StateRunning, 2 * hour, -hour, true, false},
	} {
		var all store.Inventory
		if test.claimed {
			all = all.WithLive("n")
		}
		labels := record.Base(record.RoleHelper, "n", now.Add(-test.age))
		labels[record.Until] = now.Add(test.until).Format(time.RFC3339Nano)
		got := engine.Container{State: test.state, CreatedAt: now.Add(-test.age), Labels: labels}
		if all.AbandonedHelper(got, now) != test.want {
			t.Errorf("a helper %s: abandoned is %v, want %v", name, !test.want, test.want)
		}
	}
}
