package store

import (
	"context"
	"sync"
	"time"

	"github.com/seed-1a2d6d8f/sandbox/internal/claim"
	"github.com/seed-1a2d6d8f/sandbox/internal/engine"
	"github.com/seed-1a2d6d8f/sandbox/internal/record"
)

// Inventory lists all our containers and volumes on an engine.
type Inventory struct {
	Containers []Listed // one of each sandbox, by the rules of Store.Locate
	Volumes    []engine.Volume
	Markers    map[string]record.Marker // by name
	Revisions  claim.Revisions

	live         map[string]bool  // nonces of markers whose holder may live
	replacements []record.Sandbox // sandboxes whose container is being replaced
}

// Listed is a container of an inventory.
type Listed struct {
	Container engine.Container
	Record    record.Sandbox // of a sandbox, or of a container that another tool gave a sandbox's labels
	HasRecord bool           // whether there is one, and the name is one of ours
	IsSandbox bool           // by the rules of [SandboxOf]
}

// List takes the inventory, with two calls to the engine.
func (s *Store) List(ctx context.Context) (all Inventory, err error) {
	managed := record.Filter(record.Managed, "true")
	// Volumes first: a sandbox whose marker is removed in between is in the other list.
	if all.Volumes, err = s.Engine.ListVolumes(ctx, managed); err != nil {
		return all, err
	}
	var revisions sync.WaitGroup // they are read while the engine makes its other list
	revisions.Go(func() { all.Revisions = claim.ReadRevisions(all.Volumes) })
	containers, err := s.Engine.ListContainers(ctx, engine.Filter{Labels: []string{managed}})
	revisions.Wait()
	if err != nil {
		return all, err
	}
	all.onePerSandbox(containers)
	all.Markers, all.live = map[string]record.Marker{}, map[string]bool{}
	for _, m := range claim.Markers(all.Volumes) {
		all.Markers[m.Name] = m
		if !s.isDead(m) {
			all.live[m.Nonce] = true
		}
	}
	return all, nil
}

// onePerSandbox takes one container of each sandbox, by the rules of [Store.Locate], and all that
// are no sandbox's.
func (all *Inventory) onePerSandbox(containers []engine.Container) {
	removed := make(map[string]bool, len(containers)) // by name: whether the container is being removed
	for _, got := range containers {
		removed[got.Name] = BeingRemoved(got)
	}
	all.Containers = make([]Listed, 0, len(containers))
	for _, got := range containers {
		rec, is := SandboxOf(got)
		switch {
		case isUnfinished(got, rec):
			all.replacements = append(all.replacements, rec)
			continue
		case is && IsNext(got, rec):
			all.replacements = append(all.replacements, rec)
			if gone, exists := removed[record.ContainerName(rec.Name)]; exists && !gone {
				continue
			}
		case is:
			if _, replaced := removed[record.NextName(rec.Name)]; replaced && BeingRemoved(got) {
				continue
			}
		}
		all.Containers = append(all.Containers, Listed{Container: got, Record: rec, HasRecord: rec.Name != "" && record.OurName(got.Name), IsSandbox: is})
	}
}

// Pending reports whether a process that may live is creating the sandbox.
func (all Inventory) Pending(rec record.Sandbox) bool {
	return all.claimedBy(rec) && !all.Markers[rec.Name].Deletes
}

// claimedBy reports whether a process that may live is creating or deleting the sandbox.
func (all Inventory) claimedBy(rec record.Sandbox) bool {
	m, ok := all.Markers[rec.Name]
	return ok && m.Nonce == rec.Nonce && all.claimed(m.Nonce)
}

// Abandoned reports whether the sandbox is what a dead process left of a creation or deletion.
func (all Inventory) Abandoned(rec record.Sandbox) bool {
	m, ok := all.Markers[rec.Name]
	return ok && m.Nonce == rec.Nonce && !all.claimed(m.Nonce)
}

// claimed reports whether a process that may live has a claim with the nonce.
func (all Inventory) claimed(nonce string) bool { return all.live[nonce] }

// InUse reports whether a process that may live is creating or deleting the sandbox of a volume.
func (all Inventory) InUse(v engine.Volume) bool {
	m, ok := all.Markers[v.Labels[record.Name]]
	return ok && m.Nonce == v.Labels[record.Nonce] && all.claimed(m.Nonce)
}

// abandonedHelper reports whether a helper's user is dead: no live process has the marker of its
// operation, and it does not run or has expired. A helper that runs may belong to a live process
// without a marker, and one that was just created to a marker that is younger than the inventory.
func (all Inventory) abandonedHelper(got engine.Container, now time.Time) bool {
	if all.claimed(got.Labels[record.Nonce]) {
		return false
	}
	until, err := time.Parse(time.RFC3339Nano, got.Labels[record.Until])
	return err != nil || now.After(until) || isIdle(got) && now.Sub(got.CreatedAt) > minOrphanAge
}

// volumeNames returns the set of all volume names.
func (all Inventory) volumeNames() map[string]bool {
	names := map[string]bool{}
	for _, v := range all.Volumes {
		names[v.Name] = true
	}
	return names
}

// orphanedFiles returns the snapshot files without a record, a sharer, or a live process that
// creates one: the nonce of each, by the snapshot's ID.
func (all Inventory) orphanedFiles() map[string]string {
	names, on, orphaned := all.volumeNames(), all.snapshotUsers(), map[string]string{}
	for _, v := range all.Volumes {
		id, nonce := v.Labels[record.ID], v.Labels[record.Nonce]
		if record.Is(v.Labels, record.RoleFrozen) && record.ValidName(id) && !names[record.SnapshotName(id)] && len(on[id]) == 0 && !all.claimed(nonce) {
			orphaned[id] = nonce
		}
	}
	return orphaned
}

// Snapshots returns the recorded snapshots, the newest first, and the volumes that share the files
// of each, by its ID.
func (all Inventory) Snapshots() ([]record.SnapshotRecord, map[string][]string) {
	return snapshotsIn(all.Volumes), sharers(all.Volumes)
}

// snapshotUsers returns what needs a snapshot's files, by its ID: the volumes that share them, and
// sandboxes that are being rolled back to it.
func (all Inventory) snapshotUsers() map[string][]string {
	on := sharers(all.Volumes)
	for _, rec := range all.replacements {
		if r := rec.Settings.Rollback; r != nil {
			on[r.Snapshot] = append(on[r.Snapshot], rec.Name)
		}
	}
	return on
}

// sharers returns the volumes that share a snapshot's files, by its ID.
func sharers(volumes []engine.Volume) map[string][]string {
	on := map[string][]string{}
	for _, v := range volumes {
		if id := v.Labels[record.Snapshot]; id != "" && v.Labels[record.Managed] == "true" {
			on[id] = append(on[id], v.Name)
		}
	}
	return on
}
