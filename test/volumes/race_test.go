package volumes_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/internal/enginetest"
	"github.com/seed-1a2d6d8f/sandbox/internal/record"
	"github.com/seed-1a2d6d8f/sandbox/test/harness"
)

// Names that lead elsewhere, and volumes that only look like ours.
func TestNothingForeignIsListedAttachedOrDeleted(t *testing.T) {
	c := harness.NewClient(t)
	foreign := enginetest.NewForeign(t)
	for _, name := range append([]string{"../containers/" + foreign.Victim, "..", "a/b", ""}, foreign.Volumes...) {
		want := sandbox.ErrVolumeNotFound
		if !record.ValidVolume(name) {
			want = sandbox.ErrInvalidArgument
		}
		if _, err := c.DeleteVolume(t.Context(), name, sandbox.DeleteVolumeOptions{Force: true}); !errors.Is(err, want) {
			t.Errorf("DeleteVolume(%q) with Force: got %v, want %v", name, err, want)
		}
		if report, err := c.CleanupOrphanedVolumes(t.Context(), harness.Cleanup(name)); len(report.Removed) > 0 || err != nil {
			t.Errorf("CleanupOrphanedVolumes of %q: %v, %v", name, report, err)
		}
		if name == "" {
			continue
		}
		if _, err := c.Create(t.Context(), sandbox.WithMounts(sandbox.Mount{Volume: name, Target: "/x"})); !errors.Is(err, want) {
			t.Errorf("Create with volume %q attached: got %v, want %v", name, err, want)
		}
	}
	list, err := c.ListVolumes(t.Context())
	if err != nil {
		t.Fatalf("ListVolumes: %v", err)
	}
	for _, v := range list {
		if !slices.Contains([]string{"workspace", "rwcopy", "fork", "image"}, v.Role) {
			t.Errorf("ListVolumes has %s, which nobody has files in", v.Name)
		}
		if slices.Contains(foreign.Volumes, v.Name) {
			t.Errorf("ListVolumes has the foreign %s", v.Name)
		}
	}
	if _, err := c.Create(t.Context(), sandbox.WithID("foreign"+foreign.Suffix), sandbox.WithName(harness.UniqueName(t))); !errors.Is(err, sandbox.ErrForeign) {
		t.Errorf("Create with the ID of a foreign volume: got %v, want ErrForeign", err)
	}
}

// raceNames are what the processes of the race make and unmake.
const raceNames = 12

func init() {
	harness.AddRole("race", harness.Racing(func(a *harness.Account, ctx context.Context, c *sandbox.Client, args []string) {
		step(ctx, a, c, args[0], args[1])
	}))
}

func step(ctx context.Context, a *harness.Account, c *sandbox.Client, prefix, dir string) {
	name := prefix + fmt.Sprint(rand.IntN(raceNames))
	list, err := c.ListVolumes(ctx)
	a.Note("list", err)
	var ours, orphans []string
	for _, v := range list {
		mine := slices.ContainsFunc(v.Sandboxes, func(s string) bool { return strings.HasPrefix(s, prefix) })
		if v.Source == dir || mine || strings.HasPrefix(v.Name, "agent-sandbox-"+prefix) {
			ours = append(ours, v.Name)
			if v.Orphaned {
				orphans = append(orphans, v.Name)
				a.Reported = append(a.Reported, v.Name)
			}
		}
	}
	any := func(from []string) string {
		if len(from) == 0 {
			return "agent-sandbox-" + name
		}
		return from[rand.IntN(len(from))]
	}
	switch rand.IntN(6) {
	case 0, 1:
		mounts := []sandbox.Mount{{Source: dir, Target: "/a"}}
		if len(ours) > 0 {
			mounts = append(mounts, sandbox.Mount{Volume: any(ours), Target: "/b"})
		}
		sb, err := c.Create(ctx, sandbox.WithName(name), sandbox.WithID(name), harness.Quick, sandbox.WithMounts(mounts...))
		a.Note("create", err)
		if err == nil {
			sb.Detach()
		}
	case 2:
		report, err := c.Delete(ctx, name, sandbox.DeleteOptions{Volumes: rand.IntN(2) == 0})
		a.Note("delete", err)
		for _, o := range report.Volumes {
			a.Reported = append(a.Reported, o.Name)
		}
	case 3:
		_, err := c.DeleteVolume(ctx, any(ours), sandbox.DeleteVolumeOptions{})
		a.Note("delete volume", err)
	case 4:
		report, err := c.DeleteVolume(ctx, any(ours), sandbox.DeleteVolumeOptions{Force: true})
		a.Note("force", err)
		for _, o := range report.Volumes {
			a.Reported = append(a.Reported, o.Name)
		}
	case 5:
		if len(orphans) > 0 {
			_, err := c.CleanupOrphanedVolumes(ctx, harness.Cleanup(orphans...))
			a.Note("clean up", err)
		}
	}
}

// Processes that make, attach, list, delete and clean up the same things lose no
// volume that a sandbox uses, leave no orphan that nobody told of, and see no error that
// is not ours.
func TestProcessesRaceOverVolumes(t *testing.T) { raceOverVolumes(t, 4, 3*time.Second) }

func TestSoakProcessesRaceOverVolumes(t *testing.T) {
	harness.Soak(t)
	raceOverVolumes(t, 8, time.Minute)
}

func raceOverVolumes(t *testing.T, processes int, length time.Duration) {
	t.Helper()
	prefix := harness.UniqueName(t) + "-"
	dir := harness.HostDir(t, map[string]string{"f": "x"})
	c, eng := harness.NewClient(t), harness.NewEngine(t)
	t.Cleanup(func() {
		for i := range raceNames {
			harness.RemoveNow(t, c, prefix+fmt.Sprint(i))
		}
		for _, o := range objectsOf(t, c, prefix, dir) {
			if _, err := c.DeleteVolume(context.Background(), o, sandbox.DeleteVolumeOptions{Force: true}); err != nil && !errors.Is(err, sandbox.ErrVolumeNotFound) {
				t.Errorf("DeleteVolume(%q): %v", o, err)
			}
		}
	})
	_, reported := harness.Race(t, harness.Racers{Processes: processes, Length: length}, "race", prefix, dir)
	for i := range raceNames {
		got, err := eng.InspectContainer(t.Context(), record.ContainerName(prefix+fmt.Sprint(i)))
		if err != nil {
			continue
		}
		for _, m := range got.Mounts {
			if m.Type != "volume" {
				continue
			}
			if v, err := eng.InspectVolume(t.Context(), m.Name); err != nil || v.Labels[record.Managed] != "true" {
				t.Errorf("sandbox %d refers to volume %s, which is %v, %v", i, m.Name, v.Labels, err)
			}
		}
	}
	list, err := c.ListVolumes(t.Context())
	if err != nil {
		t.Fatalf("ListVolumes: %v", err)
	}
	for _, v := range list {
		if (v.Source == dir || strings.HasPrefix(v.Name, "agent-sandbox-"+prefix)) && v.Orphaned && !reported[v.Name] {
			t.Errorf("volume %s is orphaned, and nobody told", v.Name)
		}
	}
}

// objectsOf are the volumes of the race.
func objectsOf(t *testing.T, c *sandbox.Client, prefix, dir string) (names []string) {
	t.Helper()
	list, err := c.ListVolumes(context.Background())
	if err != nil {
		t.Errorf("ListVolumes: %v", err)
	}
	for _, v := range list {
		if v.Source == dir || strings.HasPrefix(v.Name, "agent-sandbox-"+prefix) {
			names = append(names, v.Name)
		}
	}
	return names
}
