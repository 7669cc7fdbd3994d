package store_test

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seed-1a2d6d8f/sandbox/internal/claim"
	"github.com/seed-1a2d6d8f/sandbox/internal/engine"
	"github.com/seed-1a2d6d8f/sandbox/internal/enginetest"
	"github.com/seed-1a2d6d8f/sandbox/internal/errdefs"
	"github.com/seed-1a2d6d8f/sandbox/internal/record"
	"github.com/seed-1a2d6d8f/sandbox/internal/store"
)

// stalled returns a store on an engine that never answers that call.
func stalled(t *testing.T, call string, volumes map[string]map[string]string) (s *store.Store, met *atomic.Bool) {
	t.Helper()
	fake := enginetest.NewFake(t)
	for name, labels := range volumes {
		fake.AddVolume(name, labels)
	}
	end := make(chan struct{})
	t.Cleanup(func() { close(end) })
	met = new(atomic.Bool)
	fake.Before(func(c string) {
		if c == call {
			met.Store(true)
			<-end
		}
	})
	eng, err := engine.Open(t.Context(), engine.Options{Host: fake.Host()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { eng.Close() })
	return &store.Store{Engine: eng, Log: slog.New(slog.DiscardHandler)}, met
}

// shorten changes a limit until the test ends.
func shorten(t *testing.T, limit *time.Duration) {
	t.Helper()
	was := *limit
	t.Cleanup(func() { *limit = was })
	*limit = 200 * time.Millisecond
}

// wantOurs checks that an error is one of a limit of the library's own.
func wantOurs(t *testing.T, what string, err error, met *atomic.Bool) {
	t.Helper()
	if !met.Load() || !errors.Is(err, errdefs.EngineUnavailable) || errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%s, with the stalled call made: %t = %v, want EngineUnavailable and no deadline", what, met.Load(), err)
	}
}

// An engine that does not answer while a snapshot is deleted is unavailable. The caller's context
// has no deadline.
func TestStalledDeletionOfASnapshotIsNotTheCallersDeadline(t *testing.T) {
	shorten(t, &store.UndoTimeout)
	rec := record.SnapshotRecord{ID: "abcdefghijkl", Nonce: "n", CreatedAt: time.Now()}
	labels, err := rec.Labels()
	if err != nil {
		t.Fatal(err)
	}
	name := record.SnapshotName(rec.ID)
	s, met := stalled(t, "DELETE /volumes/"+name, map[string]map[string]string{name: labels})
	wantOurs(t, "DropSnapshot", s.DropSnapshot(t.Context(), rec), met)
}

// Neither has the caller that takes over from a dead process.
func TestStalledTakeoverIsNotTheCallersDeadline(t *testing.T) {
	shorten(t, &claim.TakeOverTime)
	m := record.Marker{Name: "a", Nonce: "n", Holder: "the dead", Until: time.Now().Add(-time.Hour)}
	marker := record.Base(record.RolePending, m.Nonce, m.Until)
	marker[record.Name], marker[record.Until] = m.Name, m.Until.UTC().Format(time.RFC3339Nano)
	s, met := stalled(t, "DELETE /volumes/left", map[string]map[string]string{
		"agent-sandbox-pending.a": marker,
		"left":                    record.Base(record.RoleWorkspace, m.Nonce, m.Until),
	})
	wantOurs(t, "TakeOver", s.TakeOver(t.Context(), m), met)
}
