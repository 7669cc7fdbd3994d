package volumes_test

import (
	"context"
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
	"github.com/seed-1a2d6d8f/sandbox/internal/record"
	"github.com/seed-1a2d6d8f/sandbox/test/harness"
)

// keepNot has a volume removed when the test ends, with whoever uses it.
func keepNot(t *testing.T, volume string) {
	t.Helper()
	c := harness.NewClient(t)
	t.Cleanup(func() {
		if _, err := c.DeleteVolume(context.Background(), volume, sandbox.DeleteVolumeOptions{Force: true}); err != nil && !errors.Is(err, sandbox.ErrVolumeNotFound) {
			t.Errorf("DeleteVolume(%q): %v", volume, err)
		}
	})
}

// volume finds one in a list.
func volume(t *testing.T, c *sandbox.Client, name string) sandbox.Volume {
	t.Helper()
	list, err := c.ListVolumes(t.Context())
	if err != nil {
		t.Fatalf("ListVolumes: %v", err)
	}
	i := slices.IndexFunc(list, func(v sandbox.Volume) bool { return v.Name == name })
	if i < 0 {
		t.Fatalf("ListVolumes has no %s", name)
	}
	return list[i]
}

// A mount without a mode
// is a copy of the moment in a volume, which is tracked everywhere. What the image has at the target is
// not mixed in, and a relative source is made absolute for good.
func TestMountWithoutAModeIsACopyInAVolume(t *testing.T) {
	dir := harness.HostDir(t, map[string]string{"f": "hello", "sub/g": strings.Repeat("x", 1536)})
	t.Chdir(dir)
	c := harness.NewClient(t)
	sb := harness.CreateWith(t, c, []sandbox.Mount{{Source: dir, Target: "/data"}, {Source: "./sub", Target: "/sub"}, {Source: t.TempDir(), Target: "/etc/apt"}})
	t.Chdir("/")
	if err := os.WriteFile(filepath.Join(dir, "f"), []byte("later"), 0o644); err != nil {
		t.Fatal(err)
	}
	if got := harness.Run(t, sb, "sh", "-c", "cat /data/f && echo more >> /data/f && cat /data/f; ls -A /etc/apt"); got != "hellohellomore" {
		t.Errorf("the copies read and write as %q", got)
	}
	if got, err := os.ReadFile(filepath.Join(dir, "f")); string(got) != "later" {
		t.Errorf("the source is %q, %v after a write to the copy", got, err)
	}
	inspected, err := harness.NewEngine(t).InspectContainer(t.Context(), record.ContainerName(sb.Name()))
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(inspected.Mounts, func(m engine.MountPoint) bool { return m.Target == "/data" })
	if i < 0 || inspected.Mounts[i].Type != "volume" || !inspected.Mounts[i].RW {
		t.Errorf("the container's mounts are %+v, want a volume at /data, read-write", inspected.Mounts)
	}
	name, sub := harness.CopiedVolume(t, sb, "/data"), filepath.Join(dir, "sub")
	if !strings.HasPrefix(name, "agent-sandbox-"+sb.ID()+"-rwcopy-") {
		t.Errorf("the copy's volume is called %q", name)
	}
	v := volume(t, c, name)
	if v.CreatedBy != "rwcopy" || v.Role != "rwcopy" || v.Source != dir || !slices.Equal(v.Sandboxes, []string{sb.Name()}) || !v.InUse || v.Orphaned {
		t.Errorf("the copy's volume is listed as %+v", v)
	}
	if got := sb.Mounts()[1].Source; got != sub {
		t.Errorf("the mount's source is %q, want it absolute", got)
	}
	name = harness.CopiedVolume(t, sb, "/sub")
	got := lookElsewhere(t, name).Volume
	if got.CreatedAt.IsZero() {
		t.Error("the volume has no time of creation")
	}
	want := sandbox.Volume{Name: name, Role: "rwcopy", SizeBytes: 1536, Size: "1.5 KB", Sandboxes: []string{sb.Name()},
		CreatedAt: got.CreatedAt, CreatedBy: "rwcopy", Source: sub, InUse: true}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the volume, seen elsewhere (-want +got):\n%s", diff)
	}
}

// Delete preserves and reports. A
// volume kept from one sandbox is attached to others, of which its labels tell nothing.
func TestKeptVolumeIsAttachedAgain(t *testing.T) {
	c := harness.NewClient(t)
	dir := harness.HostDir(t, map[string]string{"f": "one"})
	first := harness.NewSandbox(t, sandbox.WithName(harness.UniqueName(t)), sandbox.WithMounts(sandbox.Mount{Source: dir, Target: "/data"}))
	kept := harness.CopiedVolume(t, first, "/data")
	work := "agent-sandbox-" + first.ID()
	keepNot(t, kept)
	keepNot(t, work)
	report, err := first.Delete(t.Context(), sandbox.DeleteOptions{})
	if err != nil {
		t.Fatalf("Delete: %v", err)
	}
	if want := fmt.Sprintf("volume %s: preserved\nvolume %s: preserved", work, kept); report.String() != want {
		t.Errorf("the report is\n%s\nwant\n%s", report, want)
	}
	orphans, err := c.OrphanedVolumes(t.Context())
	if err != nil {
		t.Fatalf("OrphanedVolumes: %v", err)
	}
	for _, name := range []string{kept, work} {
		i := slices.IndexFunc(orphans, func(o sandbox.Volume) bool { return o.Name == name })
		if i < 0 {
			t.Fatalf("OrphanedVolumes has no %s", name)
		}
		if v := orphans[i]; !v.Orphaned || v.State() != "orphaned" || len(v.Sandboxes) > 0 || (v.Source == dir) != (name == kept) {
			t.Errorf("the volume kept from a deleted sandbox is listed as %+v", v)
		}
	}

	second := harness.NewSandbox(t, sandbox.WithName(harness.UniqueName(t)), sandbox.WithMounts(sandbox.Mount{Volume: kept, Target: "/again"}))
	if got := harness.Run(t, second, "sh", "-c", "cat /again/f; echo two > /again/f"); got != "one" {
		t.Errorf("the file in the kept volume is %q", got)
	}
	third := harness.NewSandbox(t, sandbox.WithName(harness.UniqueName(t)), sandbox.WithMounts(sandbox.Mount{Volume: kept, Target: "/look", Mode: sandbox.RO}))
	if got := harness.Run(t, third, "cat", "/look/f"); got != "two" {
		t.Errorf("what one sandbox wrote another reads as %q", got)
	}
	out, err := third.Command(t.Context(), "sh", "-c", "echo three > /look/f").CombinedOutput()
	if err == nil || !strings.Contains(string(out), "Read-only file system") {
		t.Errorf("a write to a volume attached read-only: %q, %v", out, err)
	}
	want := []string{second.Name(), third.Name()}
	slices.Sort(want)
	if v := volume(t, c, kept); !slices.Equal(v.Sandboxes, want) || v.CreatedBy != "rwcopy" || v.Source != dir {
		t.Errorf("the volume attached to %q is listed as %+v", want, v)
	}
	forceDelete(t, c, kept, second, third)
}

// A forced deletion of a volume takes its sandboxes along.
func forceDelete(t *testing.T, c *sandbox.Client, v string, users ...*sandbox.Sandbox) {
	t.Helper()
	var names []string
	for _, sb := range users {
		keepNot(t, "agent-sandbox-"+sb.ID())
		names = append(names, sb.Name())
	}
	report, err := c.DeleteVolume(t.Context(), v, sandbox.DeleteVolumeOptions{Force: true})
	if err != nil {
		t.Fatalf("DeleteVolume with Force: %v", err)
	}
	if slices.Sort(names); !slices.Equal(report.Sandboxes, names) {
		t.Errorf("the report names the sandboxes %q, want %q", report.Sandboxes, names)
	}
	if report.Volumes[0].String() != "volume "+v+": deleted" || len(report.Volumes) != 1+len(users) {
		t.Errorf("the report is\n%s", report)
	}
	for _, o := range report.Volumes[1:] {
		if o.Status != sandbox.VolumePreserved {
			t.Errorf("of another volume the report says %q", o)
		}
	}
	for _, sb := range users {
		if _, err := c.Inspect(t.Context(), sb.Name()); !errors.Is(err, sandbox.ErrNotFound) {
			t.Errorf("Inspect of a sandbox deleted by force: %v", err)
		}
	}
	if _, err := c.DeleteVolume(t.Context(), v, sandbox.DeleteVolumeOptions{Force: true}); !errors.Is(err, sandbox.ErrVolumeNotFound) {
		t.Errorf("DeleteVolume of what is gone, with Force: %v", err)
	}
}
