package machine_test

import (
	"context"
	"log/slog"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/seed-1a2d6d8f/sandbox/internal/enginetest"
	"github.com/seed-1a2d6d8f/sandbox/internal/machine"
	"github.com/seed-1a2d6d8f/sandbox/internal/store"
	"github.com/seed-1a2d6d8f/sandbox/test/harness"
)

// Clients that meet an engine without the guest at the same moment each import it; the
// tag is the last one's, and the others' images must not stay.
func TestGuestImportedByManyLeavesOneImage(t *testing.T) {
	eng := harness.NewEngine(t)
	m := machine.New(&store.Store{Engine: eng, Log: slog.New(slog.DiscardHandler)}, machine.Options{})
	m.PlaceScratchGuests(t, 6)
	harness.Eventually(t, "no image of the guest is without a tag", func() bool {
		ctx, cancel := context.WithTimeout(context.Background(), harness.CallBound)
		defer cancel()
		images, err := eng.ListImages(ctx, "agent-sandbox.managed=true", "agent-sandbox.role=guest")
		if err != nil {
			t.Fatal(err)
		}
		for _, i := range images {
			if len(i.Tags) == 0 {
				return false
			}
		}
		return true
	})
}

// A program of the guest's size in its volume is not the guest.
func TestGuestIsKnownByItsContent(t *testing.T) {
	eng := harness.NewEngine(t)
	m := machine.New(&store.Store{Engine: eng, Log: slog.New(slog.DiscardHandler)}, machine.Options{})
	if !m.RepairScratchGuest(t) {
		t.Error("the volume still has another program of the same size")
	}
}

// The second client of a process takes the first one's word for the guest, and needs no
// container to look at it.
func TestGuestIsReadOncePerProcess(t *testing.T) {
	enginetest.Need(t)
	var created atomic.Int32
	host := harness.InFront(t, func(_ http.ResponseWriter, r *http.Request) bool {
		if strings.HasSuffix(r.URL.Path, "/containers/create") {
			created.Add(1)
		}
		return false
	}, nil)
	for i, want := range []int32{1, 1, 1} {
		m := machine.New(harness.NewStore(t, host), machine.Options{})
		if _, err := m.EnsureGuest(t.Context(), &machine.Reporter{}); err != nil {
			t.Fatal(err)
		}
		if got := created.Load(); got != want {
			t.Errorf("containers after %d clients: %d, want %d", i+1, got, want)
		}
	}
}

// Programs that write the guest at the same moment do not fail for each other.
func TestGuestIsWrittenByMany(t *testing.T) {
	m := machine.New(&store.Store{Engine: harness.NewEngine(t), Log: slog.New(slog.DiscardHandler)}, machine.Options{})
	m.WriteScratchGuest(t, 6)
}
