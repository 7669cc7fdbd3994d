package store

import (
	"context"
	"slices"
	"time"

	"github.com/seed-1a2d6d8f/sandbox/internal/engine"
	"github.com/seed-1a2d6d8f/sandbox/internal/record"
)

// Inventory lists all our containers and volumes on an engine.
type Inventory struct {
	Containers []engine.Container // one of each sandbox, by the rules of Store.Locate
	Volumes    []engine.Volume
	Markers    map[string]record.Marker // by name
	Revisions  record.Revisions

	live         map[string]bool  // nonces of markers whose holder may live
	replacements []record.Sandbox // sandboxes whose container is being replaced
}

// List takes the inventory, with two calls to the engine.
func (s *Store) List(ctx context.Context) (all Inventory, err error) {
	managed := record.Filter(record.Managed, "true")
	// Volumes first: a sandbox whose marker is removed in between is in the other list.
	if all.Volumes, err = s.Engine.ListVolumes(ctx, managed); err != nil {
		return all, err
	}
	if all.Containers, err = s.Engine.ListContainers(ctx, engine.Filter{Labels: []string{managed}}); err != nil {
		return all, err
	}
	all.onePerSandbox()
	all.Revisions = record.ReadRevisions(all.Volumes)
	all.Markers, all.live = map[string]record.Marker{}, map[string]bool{}
	for _, m := range record.Markers(all.Volumes) {
		all.Markers[m.Name] = m
		if !s.IsDead(m) {
			all.live[m.Nonce] = true
		}
	}
	return all, nil
}

// onePerSandbox leaves one container of each sandbox, by the rules of [Store.Locate].
func (all *Inventory) onePerSandbox() {
	byName := map[string]engine.Container{}
	for _, got := range all.Containers {
		byName[got.Name] = got
	}
	all.Containers = slices.DeleteFunc(all.Containers, func(got engine.Container) bool {
		if rec, ok := record.Decode(got.Labels); ok && isUnfinished(got) {
			all.replacements = append(all.replacements, rec)
			return true
		}
		rec, ok := SandboxOf(got)
		if !ok {
			return false
		}
		current, exists := byName[record.ContainerName(rec.Name)]
		if IsNext(got, rec) {
			all.replacements = append(all.replacements, rec)
			return exists && !BeingRemoved(current)
		}
		_, replaced := byName[record.NextName(rec.Name)]
		return replaced && BeingRemoved(current)
	})
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
	names, on, orphaned := all.volumeNames(), sharers(all.Volumes), map[string]string{}
	for _, v := range all.Volumes {
		id, nonce := v.Labels[record.ID], v.Labels[record.Nonce]
		if record.Is(v.Labels, record.RoleFrozen) && record.ValidName(id) && !names[record.SnapshotName(id)] && len(on[id]) == 0 && !all.claimed(nonce) {
			orphaned[id] = nonce
		}
	}
	return orphaned
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
