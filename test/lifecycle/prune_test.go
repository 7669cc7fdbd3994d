package lifecycle_test

import (
	"slices"
	"testing"

	"github.com/seed-1a2d6d8f/sandbox/internal/record"
	"github.com/seed-1a2d6d8f/sandbox/test/harness"
)

func TestPruneTakesOldGuestsThatNobodyUses(t *testing.T) {
	ctx := t.Context()
	eng := harness.NewEngine(t)
	used := harness.NewSandbox(t) // and with it the guest of this version
	old := record.GuestName("old-" + record.NewID())
	foreign := old + "-foreign"
	labels := record.Base(record.RoleGuest, "", eng.Now())
	for name, l := range map[string]map[string]string{old: labels, foreign: nil} {
		if _, err := eng.CreateVolume(ctx, name, l); err != nil {
			t.Fatal(err)
		}
	}

	report, err := harness.NewClient(t).Prune(ctx)
	if err != nil {
		t.Fatalf("Prune = %v, %v", report, err)
	}
	if !slices.Contains(report.Removed, "volume "+old) {
		t.Errorf("Prune = %v; want volume %s in it", report, old)
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
