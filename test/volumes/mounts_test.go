package volumes_test

import (
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/test/harness"
)

// What Mounts returns can be given to Create, Fork and Update: a copy is the volume that it
// became. Mounts of every kind are the same in another process.
func TestMountsGoRound(t *testing.T) {
	t.Parallel()
	c := harness.NewClient(t)
	bound, copied := harness.HostDir(t, map[string]string{"file": "bound"}), harness.HostDir(t, map[string]string{"file": "from outside"})
	first := harness.CreateWith(t, c, []sandbox.Mount{{Source: bound, Target: "/v"}})
	attached := harness.CopiedVolume(t, first, "/v")
	sb := harness.CreateWith(t, c, []sandbox.Mount{
		{Source: bound, Target: "/bound", Mode: sandbox.RO}, {Source: filepath.Join(copied, "."), Target: "/x/../copy"}, {Volume: attached, Target: "/attached"},
	})
	harness.Write(t, sb, "/copy/file", "from inside")
	mounts := sb.Mounts()
	var kinds []string
	for _, m := range mounts {
		kinds = append(kinds, m.Kind())
	}
	if want := []string{"bind", "copy", "volume"}; !slices.Equal(kinds, want) {
		t.Errorf("the kinds are %q, want %q", kinds, want)
	}
	volume := harness.CopiedVolume(t, sb, "/copy")
	want := []sandbox.Mount{
		{Source: bound, Target: "/bound", Mode: sandbox.RO}, {Source: copied, Volume: volume, Target: "/copy", Mode: sandbox.RWCopy},
		{Volume: attached, Target: "/attached", Mode: sandbox.RW},
	}
	if diff := cmp.Diff(want, mounts); diff != "" {
		t.Errorf("Mounts (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([][]sandbox.Mount{want}, lookElsewhere(t, attached, sb.Name()).Mounts); diff != "" {
		t.Errorf("Mounts, seen elsewhere (-want +got):\n%s", diff)
	}
	if got := harness.Run(t, sb, "sh", "-c", "cat /attached/file; touch /bound/no 2>&1 || true"); !strings.HasPrefix(got, "bound") || !strings.Contains(got, "Read-only") {
		t.Errorf("in the mounts there is %q", got)
	}
	wantFile := func(what string, sb *sandbox.Sandbox) {
		t.Helper()
		if got := harness.Read(t, sb, "/copy/file"); got != "from inside" {
			t.Errorf("%s: the copy has %q, want what was written inside", what, got)
		}
		if got := harness.Read(t, sb, "/bound/file"); got != "bound" {
			t.Errorf("%s: the directory has %q", what, got)
		}
	}

	harness.Update(t, sb, sandbox.WithMounts(mounts...))
	if st := harness.Inspect(t, sb.Name()); st.Pending != nil {
		t.Errorf("Update with the mounts that it has: %q wait for the next session", st.Pending)
	}
	harness.Update(t, sb, sandbox.WithMounts(append(mounts, sandbox.Mount{Source: bound, Target: "/again", Mode: sandbox.RO})...))
	if _, err := sb.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := sb.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	wantFile("after Update", sb)
	if diff := cmp.Diff(mounts, sb.Mounts()[:3]); diff != "" {
		t.Errorf("the mounts after Update (-want +got):\n%s", diff)
	}

	want = slices.Clone(mounts)
	want[1] = sandbox.Mount{Volume: volume, Target: "/copy", Mode: sandbox.RW}
	made := harness.CreateWith(t, c, mounts)
	wantFile("Create", made)
	if diff := cmp.Diff(want, made.Mounts()); diff != "" {
		t.Errorf("the mounts of Create (-want +got):\n%s", diff)
	}
	fork, err := c.Fork(t.Context(), sb.Name(), sandbox.WithMounts(mounts...))
	if err != nil {
		t.Fatal(err)
	}
	harness.Remove(t, c, fork.Name())
	defer fork.Detach()
	wantFile("Fork", fork)
	if diff := cmp.Diff(want, fork.Mounts()); diff != "" {
		t.Errorf("the mounts of Fork (-want +got):\n%s", diff)
	}

	// At another place it is a volume that is attached, too.
	mounts[1].Target = "/elsewhere"
	harness.Update(t, sb, sandbox.WithMounts(mounts...))
	if got, want := harness.Inspect(t, sb.Name()).Settings.Mounts[1], (sandbox.Mount{Volume: volume, Target: "/elsewhere", Mode: sandbox.RW}); got != want {
		t.Errorf("the copy at another place is %+v, want %+v", got, want)
	}
}

// A directory has no place over a file, nor a file over a directory: the error names the target.
func TestMountOverAnotherKindIsAnInvalidArgument(t *testing.T) {
	t.Parallel()
	c := harness.NewClient(t)
	dir := harness.HostDir(t, map[string]string{"file": "x"})
	for _, m := range []sandbox.Mount{
		{Source: dir, Target: "/etc/hostname", Mode: sandbox.RO},
		{Source: dir, Target: "/usr/bin/env", Mode: sandbox.RW},
		{Source: dir, Target: "/usr/bin/env"},
		{Source: filepath.Join(dir, "file"), Target: "/usr/bin", Mode: sandbox.RO},
	} {
		name := harness.UniqueName(t)
		harness.Remove(t, c, name)
		sb, err := c.Create(t.Context(), sandbox.WithName(name), harness.Quick, sandbox.WithMounts(m))
		if sb != nil {
			sb.Detach()
		}
		if !errors.Is(err, sandbox.ErrInvalidArgument) || !strings.Contains(err.Error(), m.Target) || strings.Contains(err.Error(), "merged") {
			t.Errorf("Create with %v: %v, want ErrInvalidArgument and the target", m, err)
		}
	}
	sb := harness.CreateWith(t, c, []sandbox.Mount{{Source: filepath.Join(dir, "file"), Target: "/usr/bin/there-is-none", Mode: sandbox.RO}})
	if got := harness.Run(t, sb, "cat", "/usr/bin/there-is-none"); got != "x" {
		t.Errorf("a file that is mounted is %q", got)
	}
}
