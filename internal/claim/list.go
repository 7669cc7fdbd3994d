package claim

import (
	"maps"
	"slices"
	"time"

	"github.com/seed-1a2d6d8f/sandbox/internal/engine"
	"github.com/seed-1a2d6d8f/sandbox/internal/record"
)

// Markers returns the markers among vols, a list of all managed volumes.
func Markers(vols []engine.Volume) []record.Marker {
	var ms []record.Marker
	at := map[string]int{} // in ms, by name: it has one volume
	for _, vol := range vols {
		if record.Is(vol.Labels, record.RolePending) && record.IsMarkerName(vol.Name, vol.Labels[record.Name]) {
			m := record.DecodeMarker(vol.Labels)
			at[m.Name] = len(ms)
			ms = append(ms, m)
		}
	}
	for _, vol := range vols {
		if i, marked := at[vol.Labels[record.Name]]; marked {
			ms[i].Renew(vol.Name, vol.Labels)
		}
	}
	return ms
}

// ExpiredLeftovers returns the names of expired renewals without a marker, and of expired takeovers.
func ExpiredLeftovers(vols []engine.Volume, now time.Time) []string {
	held := map[string]bool{}
	for _, m := range Markers(vols) {
		held[m.Name+" "+m.Nonce] = true
	}
	var names []string
	for _, vol := range vols {
		m := record.DecodeMarker(vol.Labels)
		if !m.Expired(now) {
			continue
		}
		switch {
		case record.Is(vol.Labels, record.RolePending) && record.IsRenewalName(vol.Name, m.Name) && !held[m.Name+" "+m.Nonce],
			record.Is(vol.Labels, record.RoleTakeover) && vol.Name == record.TakeoverName(m.Name):
			names = append(names, vol.Name)
		}
	}
	return slices.Sorted(slices.Values(names))
}

// Revisions are the latest revisions by sandbox.
type Revisions map[string]record.Revision

func revisionKey(id, of string) string { return id + " " + of }

// ReadRevisions reads a list of all managed volumes, or of all revisions.
func ReadRevisions(vols []engine.Volume) Revisions {
	type numbered struct {
		n   int
		vol engine.Volume
	}
	latest := map[string]numbered{}
	for _, v := range vols {
		if !record.Is(v.Labels, record.RoleRevision) {
			continue
		}
		key := revisionKey(v.Labels[record.ID], v.Labels[record.Of])
		if n, ok := record.RevisionNumber(v.Name, v.Labels); ok && n > latest[key].n {
			latest[key] = numbered{n, v}
		}
	}
	all := make(Revisions, len(latest))
	for key, l := range latest {
		all[key], _ = record.Sandbox{ID: l.vol.Labels[record.ID], Nonce: l.vol.Labels[record.Of]}.RevisionOf(l.vol.Name, l.vol.Labels)
	}
	return all
}

// Of returns r with its latest revision.
func (all Revisions) Of(r record.Sandbox) record.Sandbox {
	return r.With(all[revisionKey(r.ID, r.Nonce)])
}

// OrphanedRevisions returns the names of those revisions among vols that belong to no
// sandbox in alive, a set of creation nonces, and are older than age.
func OrphanedRevisions(vols []engine.Volume, alive map[string]bool, now time.Time, age time.Duration) []string {
	var names []string
	for _, v := range vols {
		if !record.Is(v.Labels, record.RoleRevision) || !record.OurName(v.Name) || alive[v.Labels[record.Of]] {
			continue
		}
		if made, err := time.Parse(time.RFC3339Nano, v.Labels[record.CreatedAt]); err == nil && now.Sub(made) < age {
			continue
		}
		names = append(names, v.Name)
	}
	return names
}

// SupersededRevisions returns the names of those revisions among vols that no search inspects
// any more, and has not for that time: a search takes less. They have to be removed in this
// order, see [Latest], and those of a sandbox after one that can't be removed have to stay.
func SupersededRevisions(vols []engine.Volume, now time.Time, age time.Duration) [][]string {
	lines := map[string]map[int]string{}
	settled := map[string]int{} // the latest revision of that age
	for _, v := range vols {
		rev, ok := (record.Sandbox{ID: v.Labels[record.ID], Nonce: v.Labels[record.Of]}).RevisionOf(v.Name, v.Labels)
		if !ok {
			continue
		}
		key := revisionKey(v.Labels[record.ID], v.Labels[record.Of])
		if lines[key] == nil {
			lines[key] = map[int]string{}
		}
		lines[key][rev.N] = v.Name
		if made, err := time.Parse(time.RFC3339Nano, v.Labels[record.CreatedAt]); err == nil && now.Sub(made) > age {
			settled[key] = max(settled[key], rev.N)
		}
	}
	var all [][]string
	for key, line := range lines {
		var old []string
		for _, n := range slices.Sorted(maps.Keys(line)) {
			if n != lowBit(n) && n+lowBit(n) <= settled[key] {
				old = append(old, line[n])
			}
		}
		if len(old) > 0 {
			all = append(all, old)
		}
	}
	return all
}

// PastSweeps returns the names of the volumes of sweeps that were due before now.
func PastSweeps(vols []engine.Volume, now time.Time) (names []string) {
	for _, v := range vols {
		if record.Is(v.Labels, record.RoleSweep) && record.IsSweepName(v.Name) && v.Name != record.SweepName(now) {
			names = append(names, v.Name)
		}
	}
	return names
}
