package lifecycle_test

import (
	"errors"
	"slices"
	"testing"

	"github.com/seed-1a2d6d8f/sandbox/internal/engine"
	"github.com/seed-1a2d6d8f/sandbox/internal/record"
	"github.com/seed-1a2d6d8f/sandbox/test/harness"
)

func TestPruneTakesOldGuestsThatNobodyUses(t *testing.T) {
	ctx := t.Context()
	eng := harness.NewEngine(t)
	used := harness.NewSandbox(t) // and with it the guest of this version
	foreign := record.GuestName("foreign-" + record.NewID())
	if _, err := eng.CreateVolume(ctx, foreign, nil); err != nil {
		t.Fatal(err)
	}

	// Tests of other packages prune this engine at the same time. The one
	// that removes a volume has it in its report, so this one tries again
	// until it is the one.
	removed := func() bool {
		old := record.GuestName("old-" + record.NewID())
		if _, err := eng.CreateVolume(ctx, old, record.Base(record.RoleGuest, "", eng.Now())); err != nil {
			t.Fatal(err)
		}
		report, err := harness.NewClient(t).Prune(ctx)
		if err != nil {
			t.Fatalf("Prune = %v, %v", report, err)
		}
		if _, err := eng.InspectVolume(ctx, old); !errors.Is(err, engine.ErrNotFound) {
			t.Fatalf("the volume %s after Prune: %v; want that it is gone", old, err)
		}
		return slices.Contains(report.Removed, "volume "+old)
	}
	for tries := 1; !removed(); tries++ {
		if tries == 10 {
			t.Fatal("ten volumes went with no Prune that says so")
		}
	}
	if _, err := eng.InspectVolume(ctx, foreign); err != nil {
		t.Errorf("the volume %s, which is not ours: %v", foreign, err)
	}
	if err := eng.RemoveVolume(ctx, foreign, false); err != nil {
		t.Error(err)
	}
	if got := harness.Run(t, used, "echo", "alive"); got != "alive" {
		t.Errorf("the sandbox says %q after Prune", got)
	}
}
