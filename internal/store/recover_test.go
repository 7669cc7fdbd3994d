package store_test

import (
	"context"
	"crypto/rand"
	"strings"
	"testing"
	"time"

	"github.com/seed-1a2d6d8f/sandbox/internal/engine"
	"github.com/seed-1a2d6d8f/sandbox/internal/enginetest"
	"github.com/seed-1a2d6d8f/sandbox/internal/store"
)

// An engine that is behind reports a container as running that has just been paused for a second time.
func TestUnpauseWaitsForAnEngineThatIsBehind(t *testing.T) {
	t.Parallel()
	enginetest.Need(t)
	proxy := enginetest.NewProxy(t)
	open := func(host string) *engine.Engine {
		eng, err := engine.Open(t.Context(), engine.Options{Host: host})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { eng.Close() })
		return eng
	}
	eng, s := open(""), &store.Store{Engine: open(proxy.Host())}
	id, err := eng.CreateContainer(t.Context(), engine.ContainerSpec{Name: "enginetest-" + strings.ToLower(rand.Text()[:12]),
		Image: "node:20-bookworm", Entrypoint: []string{"sleep", "600"}, NetworkMode: "none"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := eng.RemoveContainer(context.Background(), id, true); err != nil {
			t.Error(err)
		}
	})
	if err := eng.StartContainer(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	// Its second answer is the one that is not late.
	proxy.ArmAtNth(2, "/unpause", enginetest.Cancel, func() {
		if err := eng.PauseContainer(t.Context(), id); err != nil {
			t.Error(err)
		}
	})
	was, err := s.UnpauseNow(t.Context(), id)
	if !was || err != nil {
		t.Errorf("UnpauseNow: %v, %v after %q, want that it was paused", was, err, proxy.Calls())
	}
	for until := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) { // it may be behind once more
		got, err := eng.InspectContainer(t.Context(), id)
		if err == nil && got.State == engine.StateRunning {
			break
		}
		if err != nil || time.Now().After(until) {
			t.Fatalf("the container is %s, %v, want running", got.State, err)
		}
	}
	if was, err := s.UnpauseNow(t.Context(), id); was || err != nil {
		t.Errorf("UnpauseNow of one that runs: %v, %v", was, err)
	}
}
