package volumes_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/seed-1a2d6d8f/sandbox"
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

// V6.1, V6.2, X17, X23: filters narrow what is removed, and whoever calls confirms.
func TestCleanupKeepsToItsFilters(t *testing.T) {
	c := harness.NewClient(t)
	work, copied, young := orphan(t, "workspace", time.Hour), orphan(t, "rwcopy", time.Hour), orphan(t, "rwcopy", 0)
	all := sandbox.CleanupNames(work, copied, young)
	for what, tt := range map[string]struct {
		opts []sandbox.CleanupOption
		want []string
	}{
		"no names":          {[]sandbox.CleanupOption{sandbox.CleanupNames()}, []string{}},
		"no roles":          {[]sandbox.CleanupOption{all, sandbox.CleanupRoles()}, []string{}},
		"a role":            {[]sandbox.CleanupOption{all, sandbox.CleanupRoles("workspace")}, []string{work}},
		"an age":            {[]sandbox.CleanupOption{all, sandbox.CleanupMinAge(time.Minute)}, []string{work, copied}},
		"a role and an age": {[]sandbox.CleanupOption{all, sandbox.CleanupRoles("rwcopy"), sandbox.CleanupMinAge(time.Minute)}, []string{copied}},
	} {
		report, err := c.CleanupOrphanedVolumes(t.Context(), append(tt.opts, sandbox.CleanupDryRun())...)
		slices.Sort(tt.want)
		if err != nil || !slices.Equal(report.Removed, tt.want) {
			t.Errorf("%s: a dry run tells of %q, %v, want %q", what, report.Removed, err, tt.want)
		}
	}
	no := errors.New("no")
	if _, err := c.CleanupOrphanedVolumes(t.Context(), all, sandbox.CleanupConfirm(func(v []sandbox.Volume) error {
		if len(v) != 3 {
			t.Errorf("to be confirmed are %d volumes, want 3", len(v))
		}
		return no
	})); !errors.Is(err, no) {
		t.Errorf("CleanupOrphanedVolumes that is not confirmed: %v", err)
	}
	report, err := c.CleanupOrphanedVolumes(t.Context(), all)
	if err != nil || len(report.Removed) != 3 || report.FreedBytes != 0 || report.String() == "" {
		t.Errorf("CleanupOrphanedVolumes: %+v, %v, want all three removed", report, err)
	}
	for _, wrong := range []sandbox.CleanupOption{sandbox.CleanupRoles("guest"), sandbox.CleanupNames("../x"), sandbox.CleanupMinAge(-1)} {
		if _, err := c.CleanupOrphanedVolumes(t.Context(), wrong, sandbox.CleanupDryRun()); !errors.Is(err, sandbox.ErrInvalidArgument) {
			t.Errorf("CleanupOrphanedVolumes with a wrong option: %v, want ErrInvalidArgument", err)
		}
	}
}
