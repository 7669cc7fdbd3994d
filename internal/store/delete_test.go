package store_test

import (
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/seed-1a2d6d8f/sandbox/internal/engine"
	"github.com/seed-1a2d6d8f/sandbox/internal/enginetest"
	"github.com/seed-1a2d6d8f/sandbox/internal/record"
	"github.com/seed-1a2d6d8f/sandbox/internal/store"
)

// A deletion waits for the removal by somebody else that it meets, and removes the container
// itself when that one has failed.
func TestDeleteTriesAgainWhenAnothersRemovalFailed(t *testing.T) {
	t.Parallel()
	rec := record.Sandbox{ID: "id", Name: "a", Nonce: "n", CreatedAt: now, Persistent: true}
	labels, err := rec.Labels()
	if err != nil {
		t.Fatal(err)
	}
	fake := enginetest.NewFake(t)
	name := record.ContainerName(rec.Name)
	set := func(state string) {
		fake.AddContainer(name, enginetest.FakeContainer{ID: "c", State: state, Labels: labels})
	}
	set(engine.StateRemoving)
	var removals, looks atomic.Int64
	fake.Before(func(call string) {
		switch {
		case call == "DELETE /containers/c":
			removals.Add(1)
		case removals.Load() == 1 && strings.HasPrefix(call, "GET /containers/c/") && looks.Add(1) == 3:
			set(engine.StateDead)
		}
	})
	eng, err := engine.Open(t.Context(), engine.Options{Host: fake.Host()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { eng.Close() })
	s := &store.Store{Engine: eng, Log: slog.New(slog.DiscardHandler)}
	if _, err := s.Delete(t.Context(), rec, store.KeepVolumes); err != nil {
		t.Errorf("Delete = %v, want nil", err)
	}
	if _, err := eng.InspectContainer(t.Context(), name); err == nil || removals.Load() != 2 {
		t.Errorf("after %d removals, want 2: InspectContainer: %v, want that it is gone", removals.Load(), err)
	}
}
