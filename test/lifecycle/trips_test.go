package lifecycle_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/internal/enginetest"
	"github.com/seed-1a2d6d8f/sandbox/test/harness"
)

// On a link with a latency of 50 ms these calls take that many times 50 ms, and what the engine
// takes.
func TestRoundTrips(t *testing.T) {
	t.Parallel()
	p := enginetest.NewProxy(t)
	trips := p.CountTrips(0)
	c := harness.NewClient(t, sandbox.WithHost(p.Host()))
	bounds := map[string]int{
		"Create": 8, "first command": 5, "next command": 1, "Get running": 2, "Get stopped": 11,
		"Delete": 8, "Delete with volumes": 8,
	}
	if locks, err := harness.NewEngine(t).PauseLocks(t.Context()); err != nil {
		t.Fatal(err)
	} else if locks {
		bounds["first command"]++ // it looks for a pause before it starts the guest's server
	}
	// A busy machine may make calls one after the other that overlap elsewhere: the best of some rounds is right. The
	// replies of each come later, since then calls overlap that it takes longer to make.
	best, log := map[string]int{}, map[string]string{}
	measure := func(call string, do func() error) {
		t.Helper()
		trips.Reset()
		if err := do(); err != nil {
			t.Fatalf("%s: %v", call, err)
		}
		if n := trips.Count(); best[call] == 0 || n < best[call] {
			best[call] = n
			var b strings.Builder
			for _, m := range trips.Log() {
				fmt.Fprintf(&b, "\n%3d %s", m.N, m.What)
			}
			log[call] = b.String()
		}
	}
	over := func(calls ...string) bool {
		return slices.ContainsFunc(calls, func(call string) bool { return best[call] == 0 || best[call] > bounds[call] })
	}
	one := func() {
		name := harness.UniqueName(t)
		harness.Remove(t, c, name)
		var sb *sandbox.Sandbox
		ctx := t.Context()
		measure("Create", func() (err error) { sb, err = c.Create(ctx, sandbox.WithName(name)); return err })
		defer func() { sb.Detach() }()
		measure("first command", func() error { return sb.Command(ctx, "true").Run() })
		measure("next command", func() error { return sb.Command(ctx, "true").Run() })
		get := func() error {
			got, err := c.Get(ctx, name)
			if err == nil {
				defer got.Detach()
			}
			return err
		}
		measure("Get running", get)
		if _, err := sb.Stop(ctx); err != nil {
			t.Fatal(err)
		}
		measure("Get stopped", get)
		var report sandbox.DeleteReport
		measure("Delete", func() (err error) { report, err = c.Delete(ctx, name, sandbox.DeleteOptions{}); return err })
		for _, v := range report.Volumes {
			if _, err := c.DeleteVolume(ctx, v.Name, sandbox.DeleteVolumeOptions{}); err != nil {
				t.Errorf("DeleteVolume(%q): %v", v.Name, err)
			}
		}
	}
	withVolumes := func() {
		name := harness.UniqueName(t)
		harness.Remove(t, c, name)
		sb, err := c.Create(t.Context(), sandbox.WithName(name))
		if err != nil {
			t.Fatal(err)
		}
		defer sb.Detach()
		measure("Delete with volumes", func() error {
			return harness.Second(c.Delete(t.Context(), name, sandbox.DeleteOptions{Volumes: true}))
		})
	}
	one() // what a client does once
	clear(best)
	defer func() {
		var table strings.Builder
		for _, call := range slices.Sorted(maps.Keys(best)) {
			fmt.Fprintf(&table, "\n%-20s %2d, at most %2d", call, best[call], bounds[call])
		}
		t.Logf("round trips:%s", table.String())
	}()
	for round := range 8 {
		trips.Delay(min(250*time.Millisecond<<round, 2*time.Second))
		if over("Create", "first command", "next command", "Get running", "Get stopped", "Delete") {
			one()
		}
		if over("Delete with volumes") {
			withVolumes()
		}
	}
	for call, bound := range bounds {
		if best[call] > bound {
			t.Errorf("%s takes %d round trips, want at most %d:%s", call, best[call], bound, log[call])
		}
	}
}
