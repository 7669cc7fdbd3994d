package store

import (
	"time"

	"github.com/seed-1a2d6d8f/sandbox/internal/engine"
	"github.com/seed-1a2d6d8f/sandbox/internal/record"
)

// OnePerSandbox takes one container of each sandbox and returns the replacements.
func (all *Inventory) OnePerSandbox(containers []engine.Container) []record.Sandbox {
	all.onePerSandbox(containers)
	return all.replacements
}

// OrphanedFiles returns what a sweep takes for files that nobody needs.
func (all Inventory) OrphanedFiles() map[string]string { return all.orphanedFiles() }

// WithLive returns the inventory with markers of that nonce counted as those of live processes.
func (all Inventory) WithLive(nonce string) Inventory {
	all.live = map[string]bool{nonce: true}
	return all
}

// EmptyTree reports what a sweep decides about a volume.
func EmptyTree(now time.Time, v engine.Volume, recs map[string]record.SnapshotRecord) bool {
	return (&sweep{now: now}).emptyTree(v, recs)
}

func (all Inventory) AbandonedHelper(got engine.Container, now time.Time) bool {
	return all.abandonedHelper(got, now)
}
