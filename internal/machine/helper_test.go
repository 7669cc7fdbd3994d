package machine_test

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/seed-1a2d6d8f/sandbox/internal/claim"
	"github.com/seed-1a2d6d8f/sandbox/internal/engine"
	"github.com/seed-1a2d6d8f/sandbox/internal/enginetest"
	"github.com/seed-1a2d6d8f/sandbox/internal/machine"
	"github.com/seed-1a2d6d8f/sandbox/internal/record"
	"github.com/seed-1a2d6d8f/sandbox/internal/store"
	"github.com/seed-1a2d6d8f/sandbox/test/harness"
)

// A helper that takes longer than its time is claimed: a sweep of another program leaves it.
func TestLongHelperIsClaimed(t *testing.T) {
	enginetest.Need(t)
	machine.ClaimAfter(10 * time.Millisecond)
	defer machine.ClaimAfter(time.Minute)
	proxy := enginetest.NewProxy(t)
	eng, err := engine.Open(t.Context(), engine.Options{Host: proxy.Host()})
	if err != nil {
		t.Fatal(err)
	}
	defer eng.Close()
	m := machine.New(&store.Store{Engine: eng, Log: slog.New(slog.DiscardHandler)}, machine.Options{})
	if _, err := m.EnsureGuest(t.Context(), &machine.Reporter{}); err != nil {
		t.Fatal(err)
	}
	proxy.ArmAt("/start", enginetest.Stall, nil)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	nonces, result := make(chan string, 1), make(chan error, 1)
	go func() { result <- m.QueryExpired(ctx, func(nonce string) { nonces <- nonce }) }()
	nonce := <-nonces

	other := &store.Store{Engine: harness.NewEngine(t), Log: slog.New(slog.DiscardHandler)}
	marker := record.HelperMarker(nonce)
	claimed := func() bool {
		_, found, err := claim.FindMarker(t.Context(), other.Engine, marker)
		if err != nil {
			t.Fatal(err)
		}
		return found
	}
	harness.Eventually(t, "the helper waits for its start, and is claimed", func() bool { return proxy.Fired() && claimed() })
	all, err := other.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	other.Sweep(t.Context(), all, nil)
	left, err := other.Engine.ListContainers(t.Context(), engine.Filter{Labels: []string{record.Filter(record.Nonce, nonce)}})
	if err != nil || len(left) != 1 {
		t.Errorf("after a sweep the helper has %d containers, %v; want 1", len(left), err)
	}
	cancel()
	if err := <-result; err == nil {
		t.Error("a query whose context has ended succeeded")
	}
	if claimed() {
		t.Error("the marker of a helper that has ended is left")
	}
}

// A helper whose output is lost is asked again: an engine on a busy machine may drop what a container wrote at its end.
func TestALostAnswerIsAskedForAgain(t *testing.T) {
	enginetest.Need(t)
	p := enginetest.NewProxy(t)
	m := machine.New(harness.NewStore(t, p.Host()), machine.Options{})
	g, err := m.EnsureGuest(t.Context(), &machine.Reporter{})
	if err != nil {
		t.Fatal(err)
	}
	dir := m.GuestDir(t, g)
	p.ArmAt("/attach", enginetest.CutStream, nil)
	if size, err := m.Measure(t.Context(), dir); err != nil || size < 1<<20 {
		t.Errorf("the size is %d, %v", size, err)
	}
	if !p.Fired() {
		t.Error("no answer was lost")
	}
}
