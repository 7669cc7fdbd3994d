package store_test

import (
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/seed-1a2d6d8f/sandbox/internal/engine"
	"github.com/seed-1a2d6d8f/sandbox/internal/enginetest"
	"github.com/seed-1a2d6d8f/sandbox/internal/store"
)

// A busy engine releases the volumes of a container, such as a helper that it removes by itself, some
// time after it has removed that from its list.
func TestVolumeIsRemovedWhenTheEngineReleasesIt(t *testing.T) {
	t.Parallel()
	fake := enginetest.NewFake(t)
	fake.AddVolume("v", nil)
	fake.AddContainer("helper", enginetest.FakeContainer{ID: "h", State: engine.StateRemoving, Volumes: map[string]string{"/v": "v"}, Unlisted: true})
	var tries atomic.Int64
	fake.Before(func(call string) {
		if strings.HasPrefix(call, "DELETE /volumes") && tries.Add(1) == 40 {
			fake.AddContainer("helper", enginetest.FakeContainer{Unlisted: true})
		}
	})
	eng, err := engine.Open(t.Context(), engine.Options{Host: fake.Host()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { eng.Close() })
	s := &store.Store{Engine: eng, Log: slog.New(slog.DiscardHandler)}
	if err := s.RemoveUnusedVolume(t.Context(), "v"); err != nil || fake.HasVolume("v") {
		t.Errorf("RemoveUnusedVolume after %d tries: %v, want it removed", tries.Load(), err)
	}
}
