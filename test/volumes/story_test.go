package volumes_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/internal/engine"
	"github.com/seed-1a2d6d8f/sandbox/internal/enginetest"
	"github.com/seed-1a2d6d8f/sandbox/test/harness"
)

// The acceptance criteria of volumes, a story each. "elsewhere" is another process.

func init() {
	// lists prints the volume of the name, and the mounts of the sandboxes named after it.
	harness.AddRole("volume", func(args []string) error {
		c, err := harness.Open()
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

// Who uses a volume is seen everywhere at
// each step, and only at the last one can it be deleted.
func TestStoryOfAVolumeThatIsSharedAndProtected(t *testing.T) {
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
		wantInUse(t, c, v, "")
	}
	step("one made", one.Name())
	wantInUse(t, c, v, "Volume is in use by running sandbox")
	two := harness.CreateWith(t, c, []sandbox.Mount{{Volume: v, Target: "/a"}, {Volume: v, Target: "/b", Mode: sandbox.RO}})
	keepNot(t, "agent-sandbox-"+two.ID())
	step("two attached it, twice", one.Name(), two.Name())
	if _, err := one.Stop(t.Context()); err != nil {
		t.Fatalf("Stop: %v", err)
	}
	step("one stopped", one.Name(), two.Name())
	if _, err := one.Delete(t.Context(), sandbox.DeleteOptions{}); err != nil {
		t.Fatalf("Delete: %v", err)
	}
	step("one deleted", two.Name())
	if _, err := two.Stop(t.Context()); err != nil {
		t.Fatalf("Stop: %v", err)
	}
	if err := wantInUse(t, c, v, two.Name()); strings.Contains(err.Error(), "running") {
		t.Errorf("DeleteVolume of a stopped sandbox's volume: %v", err)
	}
	if _, err := two.Delete(t.Context(), sandbox.DeleteOptions{}); err != nil {
		t.Fatalf("Delete: %v", err)
	}
	step("two deleted")
	if _, err := c.DeleteVolume(t.Context(), v, sandbox.DeleteVolumeOptions{}); err != nil {
		t.Errorf("DeleteVolume of what nobody uses: %v", err)
	}
	if got := lookElsewhere(t, v).Volume; got.Name != "" {
		t.Errorf("elsewhere a deleted volume is %+v", got)
	}
}

// wantInUse tries to delete a volume that is in use, which has to be refused with a reason.
func wantInUse(t *testing.T, c *sandbox.Client, v, reason string) error {
	t.Helper()
	report, err := c.DeleteVolume(t.Context(), v, sandbox.DeleteVolumeOptions{})
	if !errors.Is(err, sandbox.ErrVolumeInUse) || !strings.Contains(err.Error(), reason) {
		t.Fatalf("DeleteVolume of what is in use = %v, want ErrVolumeInUse and %q", err, reason)
	}
	if len(report.Volumes) != 1 || report.Volumes[0].Status != sandbox.VolumeDeleteFailed {
		t.Errorf("the report of a refused deletion is %q", report)
	}
	return err
}

// Delete with volumes says what it could not delete,
// and a later call finishes.
func TestStoryOfADeleteWithVolumes(t *testing.T) {
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
	report, err := sb.Delete(t.Context(), sandbox.DeleteOptions{Volumes: true})
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
	if _, err := c.DeleteVolume(t.Context(), v, sandbox.DeleteVolumeOptions{Force: true}); !errors.Is(err, sandbox.ErrVolumeInUse) {
		t.Errorf("DeleteVolume with Force of what a stranger uses: got %v, want ErrVolumeInUse", err)
	}
	if err := eng.RemoveContainer(t.Context(), stranger, true); err != nil {
		t.Fatal(err)
	}
	if _, err := c.DeleteVolume(t.Context(), v, sandbox.DeleteVolumeOptions{}); err != nil {
		t.Errorf("DeleteVolume once the stranger is gone: %v", err)
	}
}

// Records of other versions, and damaged ones, are listed, got and deleted.
func TestStoryOfRecordsOfOtherVersions(t *testing.T) {
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
		list, err := c.List(t.Context(), sandbox.ListOptions{Prefix: name})
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
		if _, err := c.Delete(t.Context(), name, sandbox.DeleteOptions{}); err != nil {
			t.Errorf("%s: Delete: %v", version, err)
		}
	}
}
