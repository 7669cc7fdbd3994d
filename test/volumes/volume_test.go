package volumes_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/test/harness"
)

// keepNot has a volume removed when the test ends, with whoever uses it.
func keepNot(t *testing.T, volume string) {
	t.Helper()
	c := harness.NewClient(t)
	t.Cleanup(func() {
		if _, err := c.DeleteVolume(context.Background(), volume, sandbox.Force()); err != nil && !errors.Is(err, sandbox.ErrVolumeNotFound) {
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

// A1, A15, A36, A37, A38, A39, A40, AC1, AC3, E26.
func TestMountWithoutAModeIsACopyInAVolume(t *testing.T) {
	dir := harness.HostDir(t, map[string]string{"f": "hello"})
	sb := harness.NewSandbox(t, sandbox.WithName(harness.UniqueName(t)), sandbox.WithMounts(sandbox.Mount{Source: dir, Target: "/data"}))
	if got := harness.Run(t, sb, "sh", "-c", "cat /data/f && echo more >> /data/f && cat /data/f"); got != "hellohellomore" {
		t.Errorf("the copy reads and writes as %q", got)
	}
	if got, err := os.ReadFile(filepath.Join(dir, "f")); string(got) != "hello" {
		t.Errorf("the source is %q, %v after a write to the copy", got, err)
	}
	name := harness.CopiedVolume(t, sb, "/data")
	if !strings.HasPrefix(name, "agent-sandbox-"+sb.ID()+"-rwcopy-") {
		t.Errorf("the copy's volume is called %q", name)
	}
	v := volume(t, harness.NewClient(t), name)
	if v.CreatedBy != "rwcopy" || v.Role != "rwcopy" || v.Source != dir || !slices.Equal(v.Sandboxes, []string{sb.Name()}) || !v.InUse || v.Orphaned {
		t.Errorf("the copy's volume is listed as %+v", v)
	}
}

// A7, A42, A43, E21, V3.2, X16: a volume kept from one sandbox is attached to others, of
// which its labels tell nothing.
func TestKeptVolumeIsAttachedAgain(t *testing.T) {
	c := harness.NewClient(t)
	dir := harness.HostDir(t, map[string]string{"f": "one"})
	first := harness.NewSandbox(t, sandbox.WithName(harness.UniqueName(t)), sandbox.WithMounts(sandbox.Mount{Source: dir, Target: "/data"}))
	kept := harness.CopiedVolume(t, first, "/data")
	keepNot(t, kept)
	keepNot(t, "agent-sandbox-"+first.ID())
	if _, err := first.Delete(t.Context()); err != nil {
		t.Fatalf("Delete: %v", err)
	}
	if v := volume(t, c, kept); !v.Orphaned || v.State() != "orphaned" || v.Source != dir || len(v.Sandboxes) > 0 {
		t.Errorf("the volume kept from a deleted sandbox is listed as %+v", v)
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
}

// A8, A29, V4.2, X4, E72.
func TestVolumeInUseIsNotDeleted(t *testing.T) {
	c := harness.NewClient(t)
	sb := harness.NewSandbox(t, sandbox.WithName(harness.UniqueName(t)))
	name := "agent-sandbox-" + sb.ID()
	_, err := c.DeleteVolume(t.Context(), name)
	if !errors.Is(err, sandbox.ErrVolumeInUse) || !strings.Contains(err.Error(), "Volume is in use by running sandbox") || !strings.Contains(err.Error(), sb.Name()) {
		t.Errorf("DeleteVolume of a running sandbox's volume: %v", err)
	}
	if _, err := sb.Stop(t.Context()); err != nil {
		t.Fatalf("Stop: %v", err)
	}
	report, err := c.DeleteVolume(t.Context(), name)
	if !errors.Is(err, sandbox.ErrVolumeInUse) || strings.Contains(err.Error(), "running") || !strings.Contains(err.Error(), sb.Name()) {
		t.Errorf("DeleteVolume of a stopped sandbox's volume: %v", err)
	}
	if len(report.Volumes) != 1 || report.Volumes[0].Status != sandbox.VolumeDeleteFailed {
		t.Errorf("the report of a refused deletion is %q", report)
	}
	volume(t, c, name)
}

// A30, AT15, E73.
func TestForceDeletesTheSandboxesOfAVolumeToo(t *testing.T) {
	c := harness.NewClient(t)
	dir := harness.HostDir(t, map[string]string{"f": "x"})
	a := harness.NewSandbox(t, sandbox.WithName(harness.UniqueName(t)), sandbox.WithMounts(sandbox.Mount{Source: dir, Target: "/data"}))
	v := harness.CopiedVolume(t, a, "/data")
	b := harness.NewSandbox(t, sandbox.WithName(harness.UniqueName(t)), sandbox.WithMounts(sandbox.Mount{Volume: v, Target: "/data", Mode: sandbox.RO}))
	for _, sb := range []*sandbox.Sandbox{a, b} {
		keepNot(t, "agent-sandbox-"+sb.ID())
	}
	report, err := c.DeleteVolume(t.Context(), v, sandbox.Force())
	if err != nil {
		t.Fatalf("DeleteVolume with Force: %v", err)
	}
	names := []string{a.Name(), b.Name()}
	slices.Sort(names)
	if !slices.Equal(report.Sandboxes, names) {
		t.Errorf("the report names the sandboxes %q, want %q", report.Sandboxes, names)
	}
	if report.Volumes[0].String() != "volume "+v+": deleted" || len(report.Volumes) != 3 {
		t.Errorf("the report is\n%s", report)
	}
	for _, o := range report.Volumes[1:] {
		if o.Status != sandbox.VolumePreserved {
			t.Errorf("of another volume the report says %q", o)
		}
	}
	for _, sb := range []*sandbox.Sandbox{a, b} {
		if _, err := c.Inspect(t.Context(), sb.Name()); !errors.Is(err, sandbox.ErrNotFound) {
			t.Errorf("Inspect of a sandbox deleted by force: %v", err)
		}
	}
	if _, err := c.DeleteVolume(t.Context(), v, sandbox.Force()); !errors.Is(err, sandbox.ErrVolumeNotFound) {
		t.Errorf("DeleteVolume of what is gone, with Force: %v", err)
	}
}
