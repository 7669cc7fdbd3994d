package store

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/seed-1a2d6d8f/sandbox/internal/claim"
)

// Who waits for another process looks often at first, four times a second for as long as a lease
// lasts, and once a second from then on.
func TestPausesBetweenLooksGetLonger(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		wait := newPace("x", 20*time.Millisecond)
		pause := func() time.Duration {
			began := time.Now()
			if err := wait.sleep(t.Context()); err != nil {
				t.Fatal(err)
			}
			return time.Since(began)
		}
		var got []time.Duration
		for range 6 {
			got = append(got, pause())
		}
		want := []time.Duration{20e6, 40e6, 80e6, 160e6, 250e6, 250e6}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("pauses (-want +got):\n%s", diff)
		}
		time.Sleep(claim.Lease) // of the bubble's clock
		if got := pause(); got != time.Second {
			t.Errorf("the pause after a lease: %v, want 1s", got)
		}
	})
}
