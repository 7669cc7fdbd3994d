package volumes_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/internal/engine"
	"github.com/seed-1a2d6d8f/sandbox/internal/enginetest"
	"github.com/seed-1a2d6d8f/sandbox/internal/record"
	"github.com/seed-1a2d6d8f/sandbox/test/harness"
)

// The acceptance criteria of volumes, a story each. "elsewhere" is another process.

func init() {
	// lists prints the volume of the name, and the mounts of the sandboxes named after it.
	harness.AddRole("volume", func(args []string) error {
		c, err := sandbox.NewClient()
		if err != nil {
			return err
		}
		defer c.Close()
		ctx := context.Background()
		var said elsewhere
		list, err := c.ListVolumes(ctx)
		if err != nil {
			return err
		}
		for _, v := range list {
			if v.Name == args[0] {
				said.Volume = v
			}
		}
		for _, name := range args[1:] {
			sb, err := c.Get(ctx, name, sandbox.WithoutResume())
			if err != nil {
				return err
			}
			said.Mounts = append(said.Mounts, sb.Mounts())
			if err := sb.Detach(); err != nil {
				return err
			}
		}
		return json.NewEncoder(os.Stdout).Encode(said)
	})
}

type elsewhere struct {
	Volume sandbox.Volume
	Mounts [][]sandbox.Mount
}

// lookElsewhere asks another process.
func lookElsewhere(t *testing.T, volume string, sandboxes ...string) (said elsewhere) {
	t.Helper()
	out, err := harness.Process(t, "volume", append([]string{volume}, sandboxes...)...).Output()
	if err == nil {
		err = json.Unmarshal(out, &said)
	}
	if err != nil {
		t.Fatalf("the other process: %v", err)
	}
	return said
}

// AC1: a mount without a mode behaves as rwcopy.
func TestStoryAC1MountWithoutAMode(t *testing.T) {
	h := harness.HostDir(t, map[string]string{"f": "content"})
	c := harness.NewClient(t)
	sb := harness.CreateWith(t, c, []sandbox.Mount{{Source: h, Target: "/data"}})
	if got := harness.Run(t, sb, "cat", "/data/f"); got != "content" {
		t.Errorf("/data/f is %q", got)
	}
	got, err := harness.NewEngine(t).InspectContainer(t.Context(), record.ContainerName(sb.Name()))
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(got.Mounts, func(m engine.MountPoint) bool { return m.Target == "/data" })
	if i < 0 || got.Mounts[i].Type != "volume" || !got.Mounts[i].RW {
		t.Errorf("the container's mounts are %+v, want a volume at /data, read-write", got.Mounts)
	}
}

// AC2, A2, E44: what is changed inside a copy is not changed on the host.
func TestStoryAC2HostStaysAsItIs(t *testing.T) {
	h := harness.TreeOfEverything(t)
	before := onHost(t, h, harness.Manifest+"\nfind . -printf '%P %A@ %C@\\n' | sort")
	harness.BothWays(t, func(t *testing.T, c *sandbox.Client) {
		sb := harness.CreateWith(t, c, []sandbox.Mount{{Source: h, Target: "/data"}})
		harness.Run(t, sb, "sh", "-ec", `cd /data
			echo more >> empty; echo else > .hidden/.git/config; rm first; chmod 777 sub; mv xattr moved; touch added; ln -sf x link`)
	})
	// Reading for the manifest moves access times, which a copy must not.
	after := onHost(t, h, harness.Manifest+"\nfind . -printf '%P %A@ %C@\\n' | sort")
	if diff := cmp.Diff(before, after); diff != "" {
		t.Errorf("the host's directory (-before +after):\n%s", diff)
	}
}

// AC3, V3.1, A6, A28: the copy is tracked.
func TestStoryAC3CopiesAreTracked(t *testing.T) {
	h := harness.HostDir(t, map[string]string{"f": strings.Repeat("x", 1536)})
	c := harness.NewClient(t)
	sb := harness.CreateWith(t, c, []sandbox.Mount{{Source: h, Target: "/data"}})
	v := harness.CopiedVolume(t, sb, "/data")
	got := lookElsewhere(t, v).Volume
	if got.CreatedAt.IsZero() {
		t.Error("the volume has no time of creation")
	}
	want := sandbox.Volume{Name: v, Role: "rwcopy", SizeBytes: 1536, Size: "1.5 KB", Sandboxes: []string{sb.Name()},
		CreatedAt: got.CreatedAt, CreatedBy: "rwcopy", Source: h, InUse: true}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the volume, seen elsewhere (-want +got):\n%s", diff)
	}
}

// AC4, AC5, A25, A29, A31, A43, X2, X18, AT6, AT7, AT13, AT14: who uses a volume is seen everywhere at
// each step, and only at the last one can it be deleted.
func TestStoryAC4And5UseIsSeenAndProtects(t *testing.T) {
	c := harness.NewClient(t)
	h := harness.HostDir(t, map[string]string{"f": "x"})
	one := harness.CreateWith(t, c, []sandbox.Mount{{Source: h, Target: "/data"}})
	v := harness.CopiedVolume(t, one, "/data")
	keepNot(t, v)
	keepNot(t, "agent-sandbox-"+one.ID())
	step := func(what string, users ...string) {
		t.Helper()
		slices.Sort(users)
		got := lookElsewhere(t, v).Volume
		if !slices.Equal(got.Sandboxes, users) || got.InUse != (len(users) > 0) || got.Orphaned == got.InUse {
			t.Errorf("%s: elsewhere the volume is %+v, want the users %q", what, got, users)
		}
		if len(users) == 0 {
			return
		}
		if _, err := c.DeleteVolume(t.Context(), v); !errors.Is(err, sandbox.ErrVolumeInUse) {
			t.Errorf("%s: DeleteVolume: got %v, want ErrVolumeInUse", what, err)
		}
	}
	step("one made", one.Name())
	two := harness.CreateWith(t, c, []sandbox.Mount{{Volume: v, Target: "/a"}, {Volume: v, Target: "/b", Mode: sandbox.RO}})
	keepNot(t, "agent-sandbox-"+two.ID())
	step("two attached it, twice", one.Name(), two.Name())
	if _, err := one.Stop(t.Context()); err != nil {
		t.Fatalf("Stop: %v", err)
	}
	step("one stopped", one.Name(), two.Name())
	if _, err := one.Delete(t.Context()); err != nil {
		t.Fatalf("Delete: %v", err)
	}
	step("one deleted", two.Name())
	if _, err := two.Delete(t.Context()); err != nil {
		t.Fatalf("Delete: %v", err)
	}
	step("two deleted")
	if _, err := c.DeleteVolume(t.Context(), v); err != nil {
		t.Errorf("DeleteVolume of what nobody uses: %v", err)
	}
	if got := lookElsewhere(t, v).Volume; got.Name != "" {
		t.Errorf("elsewhere a deleted volume is %+v", got)
	}
}

// AC6, A3, A22, A24, A27, A54, X3, AT10: Delete preserves and reports.
func TestStoryAC6DeletePreserves(t *testing.T) {
	c := harness.NewClient(t)
	sb := harness.CreateWith(t, c, []sandbox.Mount{{Source: harness.HostDir(t, nil), Target: "/data"}})
	v, w := harness.CopiedVolume(t, sb, "/data"), "agent-sandbox-"+sb.ID()
	keepNot(t, v)
	keepNot(t, w)
	report, err := sb.Delete(t.Context())
	if err != nil {
		t.Fatalf("Delete: %v", err)
	}
	if want := fmt.Sprintf("volume %s: preserved\nvolume %s: preserved", w, v); report.String() != want {
		t.Errorf("the report is\n%s\nwant\n%s", report, want)
	}
	orphans, err := c.OrphanedVolumes(t.Context())
	if err != nil {
		t.Fatalf("OrphanedVolumes: %v", err)
	}
	for _, name := range []string{v, w} {
		if !slices.ContainsFunc(orphans, func(o sandbox.Volume) bool { return o.Name == name }) {
			t.Errorf("OrphanedVolumes has no %s", name)
		}
	}
}

// AC7, A26, A55, A56, X6, AT11, AT12, E74, E78: Delete with volumes says what it could not delete,
// and a later call finishes.
func TestStoryAC7DeleteWithVolumes(t *testing.T) {
	c, eng := harness.NewClient(t), harness.NewEngine(t)
	foreign := enginetest.NewForeign(t)
	sb := harness.CreateWith(t, c, []sandbox.Mount{{Source: harness.HostDir(t, nil), Target: "/data"}})
	v, w := harness.CopiedVolume(t, sb, "/data"), "agent-sandbox-"+sb.ID()
	keepNot(t, v)
	stranger := "stranger-" + foreign.Suffix
	if _, err := eng.CreateContainer(t.Context(), engine.ContainerSpec{Name: stranger, Image: foreign.Image, Cmd: []string{"/never"},
		Mounts: []engine.Mount{{Type: "volume", Source: v, Target: "/x", NoCopy: true}}}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { eng.RemoveContainer(context.Background(), stranger, true) })
	report, err := sb.Delete(t.Context(), sandbox.PreserveVolumes(false))
	if !errors.Is(err, sandbox.ErrVolumeInUse) {
		t.Errorf("Delete: got %v, want ErrVolumeInUse", err)
	}
	want := fmt.Sprintf("volume %s: deleted\nvolume %s: delete failed: volume %s is used by container %s, which is not a sandbox", w, v, v, stranger)
	if report.String() != want {
		t.Errorf("the report is\n%s\nwant\n%s", report, want)
	}
	if _, err := c.Inspect(t.Context(), sb.Name()); !errors.Is(err, sandbox.ErrNotFound) {
		t.Errorf("Inspect of the deleted sandbox: %v", err)
	}
	if got := volume(t, c, v); !got.Orphaned {
		t.Errorf("the volume that could not be deleted is %+v, want it orphaned", got)
	}
	if _, err := c.DeleteVolume(t.Context(), v, sandbox.Force()); !errors.Is(err, sandbox.ErrVolumeInUse) {
		t.Errorf("DeleteVolume with Force of what a stranger uses: got %v, want ErrVolumeInUse", err)
	}
	if err := eng.RemoveContainer(t.Context(), stranger, true); err != nil {
		t.Fatal(err)
	}
	if _, err := c.DeleteVolume(t.Context(), v); err != nil {
		t.Errorf("DeleteVolume once the stranger is gone: %v", err)
	}
}

// AC8, A9, A35: records of other versions are read.
func TestStoryAC8OtherVersionsAreRead(t *testing.T) {
	c, eng := harness.NewClient(t), harness.NewEngine(t)
	for version, labels := range map[string]map[string]string{
		"older": {},
		"newer": {"agent-sandbox.schema": "99", "agent-sandbox.role": "sandbox", "agent-sandbox.unheard-of": "x", "agent-sandbox.record": `{"unknown": 1}`},
		"wrong": {"agent-sandbox.record": `{"mounts": 7`, "agent-sandbox.created-at": "yesterday"},
	} {
		name := harness.UniqueName(t)
		labels["agent-sandbox.managed"], labels["agent-sandbox.id"], labels["agent-sandbox.name"] = "true", "id"+name, name
		if _, err := eng.CreateContainer(t.Context(), engine.ContainerSpec{Name: "agent-sandbox-" + name, Image: sandbox.DefaultImage,
			// As PID 1 a program ends by SIGTERM only if it says so.
			Entrypoint: []string{"sh", "-c", "trap 'exit 0' TERM; while :; do sleep 0.1; done"}, Labels: labels}); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { eng.RemoveContainer(context.Background(), "agent-sandbox-"+name, true) })
		list, err := c.List(t.Context(), sandbox.NamePrefix(name))
		if err != nil || len(list) != 1 {
			t.Errorf("%s: List: %v, %v", version, list, err)
		}
		sb, err := c.Get(t.Context(), name)
		if err != nil {
			t.Errorf("%s: Get: %v", version, err)
			continue
		}
		if st, err := sb.Status(t.Context()); err != nil || st.State != sandbox.StateRunning {
			t.Errorf("%s: Status: %v, %v", version, st.State, err)
		}
		sb.Detach()
		if _, err := c.Delete(t.Context(), name); err != nil {
			t.Errorf("%s: Delete: %v", version, err)
		}
	}
}

// A34, AT9, E20, E28: mounts of every kind are the same in another process.
func TestMountsAreTheSameInAnotherProcess(t *testing.T) {
	c := harness.NewClient(t)
	h := harness.HostDir(t, map[string]string{"f": "x"})
	first := harness.CreateWith(t, c, []sandbox.Mount{{Source: h, Target: "/data"}})
	v := harness.CopiedVolume(t, first, "/data")
	sb := harness.CreateWith(t, c, []sandbox.Mount{
		{Source: h, Target: "/z", Mode: sandbox.RO}, {Volume: v, Target: "/y"}, {Source: filepath.Join(h, "."), Target: "/x/../a"},
	})
	want := []sandbox.Mount{
		{Source: h, Target: "/z", Mode: sandbox.RO}, {Volume: v, Target: "/y", Mode: sandbox.RW},
		{Source: h, Volume: harness.CopiedVolume(t, sb, "/a"), Target: "/a", Mode: sandbox.RWCopy},
	}
	if diff := cmp.Diff(want, sb.Mounts()); diff != "" {
		t.Errorf("Mounts (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([][]sandbox.Mount{want}, lookElsewhere(t, v, sb.Name()).Mounts); diff != "" {
		t.Errorf("Mounts, seen elsewhere (-want +got):\n%s", diff)
	}
	if got := harness.Run(t, sb, "sh", "-c", "cat /z/f /y/f /a/f; touch /z/no 2>&1 || true"); !strings.Contains(got, "xxx") || !strings.Contains(got, "Read-only") {
		t.Errorf("in the mounts there is %q", got)
	}
}
