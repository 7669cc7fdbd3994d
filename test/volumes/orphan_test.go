package volumes_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/internal/engine"
	"github.com/seed-1a2d6d8f/sandbox/internal/enginetest"
	"github.com/seed-1a2d6d8f/sandbox/internal/record"
	"github.com/seed-1a2d6d8f/sandbox/test/harness"
)

// orphan makes a volume without a sandbox, as if made so long ago.
func orphan(t *testing.T, role string, age time.Duration) string {
	t.Helper()
	eng := harness.NewEngine(t)
	rec := record.Sandbox{ID: harness.UniqueName(t), Nonce: record.NewNonce(), CreatedAt: eng.Now().Add(-age), Persistent: true}
	rec.Name = rec.ID
	name := record.VolumeName(rec.ID, role, "/", rec.Nonce)
	if role == record.RoleWorkspace {
		name = record.WorkspaceName(rec.ID)
	}
	if _, err := eng.CreateVolume(t.Context(), name, rec.VolumeLabels(role)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { eng.RemoveVolume(context.Background(), name, false) })
	return name
}

// Filters narrow what is removed, and whoever calls confirms.
func TestCleanupKeepsToItsFilters(t *testing.T) {
	c := harness.NewClient(t)
	work, copied, young := orphan(t, "workspace", time.Hour), orphan(t, "rwcopy", time.Hour), orphan(t, "rwcopy", 0)
	all := harness.Cleanup(work, copied, young)
	for what, tt := range map[string]struct {
		opts sandbox.CleanupOptions
		want []string
	}{
		"no names":          {harness.Cleanup(), []string{}},
		"a role":            {sandbox.CleanupOptions{Select: all.Select, Roles: []string{"workspace"}}, []string{work}},
		"an age":            {sandbox.CleanupOptions{Select: all.Select, MinAge: time.Minute}, []string{work, copied}},
		"a role and an age": {sandbox.CleanupOptions{Select: all.Select, Roles: []string{"rwcopy"}, MinAge: time.Minute}, []string{copied}},
	} {
		tt.opts.DryRun = true
		report, err := c.CleanupOrphanedVolumes(t.Context(), tt.opts)
		slices.Sort(tt.want)
		if err != nil || !slices.Equal(report.Removed, tt.want) {
			t.Errorf("%s: a dry run tells of %q, %v, want %q", what, report.Removed, err, tt.want)
		}
	}
	no := errors.New("no")
	asked := all
	asked.Confirm = func(v []sandbox.Volume) error {
		if len(v) != 3 {
			t.Errorf("to be confirmed are %d volumes, want 3", len(v))
		}
		return no
	}
	if _, err := c.CleanupOrphanedVolumes(t.Context(), asked); !errors.Is(err, no) {
		t.Errorf("CleanupOrphanedVolumes that is not confirmed: %v", err)
	}
	report, err := c.CleanupOrphanedVolumes(t.Context(), all)
	if err != nil || len(report.Removed) != 3 || report.FreedBytes != 0 || report.String() == "" {
		t.Errorf("CleanupOrphanedVolumes: %+v, %v, want all three removed", report, err)
	}
	for _, wrong := range []sandbox.CleanupOptions{{Roles: []string{"guest"}, DryRun: true}, {MinAge: -1, DryRun: true}} {
		if _, err := c.CleanupOrphanedVolumes(t.Context(), wrong); !errors.Is(err, sandbox.ErrInvalidArgument) {
			t.Errorf("CleanupOrphanedVolumes with a wrong option: %v, want ErrInvalidArgument", err)
		}
	}
}

// What is freed is the sum of what was removed, and each of several failures is reported
// without keeping the others.
func TestCleanupCountsWhatItFreed(t *testing.T) {
	c, eng := harness.NewClient(t), harness.NewEngine(t)
	foreign := enginetest.NewForeign(t)
	first, second, held, also := orphan(t, "rwcopy", time.Hour), orphan(t, "fork", time.Hour), orphan(t, "rwcopy", time.Hour), orphan(t, "rwcopy", time.Hour)
	names := []string{first, second, held, also}
	var mounts []sandbox.Mount
	for i, name := range names {
		mounts = append(mounts, sandbox.Mount{Volume: name, Target: fmt.Sprint("/v", i)})
	}
	filler, err := c.Create(t.Context(), sandbox.WithMounts(mounts...), harness.Quick)
	if err != nil {
		t.Fatal(err)
	}
	defer filler.Close()
	harness.Run(t, filler, "sh", "-ec", "for i in 0 1 2 3; do head -c $((100000 * (i + 1))) /dev/urandom >/v$i/f; done")
	if err := filler.Close(); err != nil {
		t.Fatal(err)
	}
	for i, name := range []string{held, also} {
		stranger := fmt.Sprintf("stranger%d-%s", i, foreign.Suffix)
		t.Cleanup(func() { eng.RemoveContainer(context.Background(), stranger, true) })
		if _, err := eng.CreateContainer(t.Context(), engine.ContainerSpec{Name: stranger, Image: foreign.Image, Cmd: []string{"/never"},
			Mounts: []engine.Mount{{Type: "volume", Source: name, Target: "/x", NoCopy: true}}}); err != nil {
			t.Fatal(err)
		}
	}
	orphans, err := c.OrphanedVolumes(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	sizes := map[string]int64{}
	for _, v := range orphans {
		sizes[v.Name] = v.SizeBytes
	}
	if sizes[first] < 100_000 || sizes[second] < 200_000 || sizes[held] < 300_000 || sizes[also] < 400_000 {
		t.Fatalf("the sizes are %d, %d, %d and %d", sizes[first], sizes[second], sizes[held], sizes[also])
	}
	report, err := c.CleanupOrphanedVolumes(t.Context(), harness.Cleanup(names...))
	if !errors.Is(err, sandbox.ErrVolumeInUse) || !strings.Contains(err.Error(), held) || !strings.Contains(err.Error(), also) {
		t.Errorf("CleanupOrphanedVolumes = %v, want ErrVolumeInUse of both that strangers use", err)
	}
	slices.Sort(report.Removed)
	if want := slices.Sorted(slices.Values([]string{first, second})); !slices.Equal(report.Removed, want) {
		t.Errorf("removed are %q, want %q", report.Removed, want)
	}
	if want := sizes[first] + sizes[second]; report.FreedBytes != want {
		t.Errorf("freed are %d bytes, want %d", report.FreedBytes, want)
	}
	var failed []string
	for _, o := range report.Failed {
		failed = append(failed, o.Name)
		if o.Status != sandbox.VolumeDeleteFailed || !strings.Contains(o.Reason, "stranger") {
			t.Errorf("failed: %+v", o)
		}
	}
	slices.Sort(failed)
	if want := slices.Sorted(slices.Values([]string{held, also})); !slices.Equal(failed, want) {
		t.Errorf("failed are %q, want %q", failed, want)
	}
}
