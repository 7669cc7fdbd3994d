package volumes_test

import (
	"archive/tar"
	"context"
	"errors"
	"io/fs"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/internal/record"
	"github.com/seed-1a2d6d8f/sandbox/test/harness"
)

// declaring is an image that declares volumes, one at a directory with a file.
func declaring(t *testing.T) string {
	t.Helper()
	dir := harness.TarMember{Header: tar.Header{Typeflag: tar.TypeDir, Name: "data/", Mode: 0o2750, Uid: 70, Gid: 71, ModTime: time.Unix(1e9, 0)}}
	return harness.Image(t, harness.Tar(t, dir, harness.TarFile("data/image", "the image's")), "VOLUME /data/", "VOLUME /empty", "VOLUME /workspace", "VOLUME /workspace/below", "VOLUME relative")
}

// declaredVolumes are the volumes of a sandbox that its image declares, by their targets.
func declaredVolumes(t *testing.T, c *sandbox.Client, id string) map[string]sandbox.Volume {
	t.Helper()
	all, err := c.ListVolumes(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]sandbox.Volume{}
	for _, v := range all {
		if v.Role == "image" && strings.HasPrefix(v.Name, record.WorkspaceName(id)+"-") {
			found[v.Source] = v
		}
	}
	return found
}

// A volume that the image declares is a volume of the sandbox: it has the image's files, is listed
// with its size, and is preserved by a deletion, which names it. A sandbox with the same ID has its
// files again.
func TestVolumesOfAnImageAreTheSandboxes(t *testing.T) {
	t.Parallel()
	c, image := harness.NewClient(t), declaring(t)
	sb := harness.CreateWith(t, c, nil, sandbox.WithImage(image))
	st, err := sb.Stat(t.Context(), "/data")
	if err != nil || st.Mode() != fs.ModeDir|fs.ModeSetgid|0o750 || st.Sys().(*sandbox.FileStat).UID != 70 {
		t.Errorf("/data is %v, %v, want it as in the image", st, err)
	}
	if got := harness.Read(t, sb, "/data/image"); got != "the image's" {
		t.Errorf("the image's file is %q", got)
	}
	harness.Write(t, sb, "/data/file", strings.Repeat("x", 100_000))
	harness.Write(t, sb, "/workspace/below/file", "b")
	harness.Write(t, sb, "/relative/file", "r")
	volumes := declaredVolumes(t, c, sb.ID())
	if targets := slices.Sorted(maps.Keys(volumes)); !slices.Equal(targets, []string{"/data", "/empty", "/relative", "/workspace/below"}) {
		t.Fatalf("listed are %q", targets)
	}
	data := volumes["/data"]
	if data.CreatedBy != "image" || data.SizeBytes < 100_000 || !slices.Equal(data.Sandboxes, []string{sb.Name()}) || data.Orphaned {
		t.Errorf("the volume is listed as %+v", data)
	}
	status := harness.Status(t, sb)
	if i := slices.IndexFunc(status.Volumes, func(v sandbox.Volume) bool { return v.Name == data.Name }); len(status.Volumes) != 4 || i < 0 || status.Volumes[i].SizeBytes != data.SizeBytes {
		t.Errorf("Status has the volumes %+v", status.Volumes)
	}
	if len(sb.Mounts()) > 0 || len(status.Settings.Mounts) > 0 {
		t.Errorf("mounts that no option asked for: %v, %v", sb.Mounts(), status.Settings.Mounts)
	}
	report, err := sb.Delete(t.Context(), sandbox.DeleteOptions{})
	if err != nil || len(report.Volumes) != 5 || !strings.Contains(report.String(), "volume "+data.Name+": preserved") {
		t.Errorf("Delete = %+v, %v", report, err)
	}
	again := harness.CreateWith(t, c, nil, sandbox.WithImage(image), sandbox.WithID(sb.ID()))
	for name, want := range map[string]int{"/data/file": 100_000, "/data/image": 11, "/workspace/below/file": 1, "/relative/file": 1} {
		if got := harness.Read(t, again, name); len(got) != want {
			t.Errorf("%s of the sandbox that adopts has %d bytes, want %d", name, len(got), want)
		}
	}
	if _, err := c.Fork(t.Context(), again.Name(), sandbox.WithID(sb.ID())); !errors.Is(err, sandbox.ErrExists) {
		t.Errorf("Fork with the ID of another sandbox = %v", err)
	}
	report, err = again.Delete(t.Context(), sandbox.DeleteOptions{Volumes: true})
	if err != nil || strings.Count(report.String(), "deleted") != 5 || len(declaredVolumes(t, c, sb.ID())) > 0 {
		t.Errorf("Delete without preserving = %v, %v", report, err)
	}
}

// A volume of an image whose files were all removed stays empty, whatever makes a new container for
// it, and one that a mount takes the place of is left behind with its files.
func TestVolumesOfAnImageStayAsTheyAre(t *testing.T) {
	t.Parallel()
	c, image := harness.NewClient(t), declaring(t)
	sb := harness.CreateWith(t, c, nil, sandbox.WithImage(image))
	if err := sb.Remove(t.Context(), "/data/image"); err != nil {
		t.Fatal(err)
	}
	names := func(sb *sandbox.Sandbox) (names []string) {
		t.Helper()
		entries, err := sb.ReadDir(t.Context(), "/data")
		if err != nil {
			t.Error(err)
		}
		for _, e := range entries {
			names = append(names, e.Name())
		}
		return names
	}
	anew := func(opts ...sandbox.UpdateOption) {
		t.Helper()
		harness.Update(t, sb, opts...)
		if _, err := sb.Stop(t.Context()); err != nil {
			t.Fatal(err)
		}
		if _, err := sb.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	anew(sandbox.WithPorts(3000))
	fork, err := c.Fork(t.Context(), sb.Name())
	if err != nil {
		t.Fatal(err)
	}
	harness.Remove(t, c, fork.Name())
	defer fork.Detach()
	snap := harness.SnapshotOf(t, c, sb, sandbox.SnapshotOptions{})
	made := harness.CreateWith(t, c, nil, sandbox.WithSource(sandbox.FromSnapshot(snap.ID)))
	for _, sb := range []*sandbox.Sandbox{sb, fork, made} {
		if got := names(sb); len(got) > 0 {
			t.Errorf("/data has %q", got)
		}
	}
	harness.Write(t, sb, "/data/kept", "k")
	first := declaredVolumes(t, c, sb.ID())["/data"]
	anew(sandbox.WithMounts(sandbox.Mount{Source: harness.HostDir(t, map[string]string{"mounted": ""}), Target: "/data"}))
	if got := names(sb); !slices.Equal(got, []string{"mounted"}) {
		t.Errorf("below the mount /data has %q", got)
	}
	if err := sb.Rollback(t.Context(), harness.SnapshotOf(t, c, made, sandbox.SnapshotOptions{}).ID); err == nil {
		// The mount is a copy: the snapshot's files of that directory are its files.
		if got := names(sb); len(got) > 0 {
			t.Errorf("rolled back, /data has %q", got)
		}
	} else {
		t.Errorf("Rollback = %v", err)
	}
	anew(sandbox.WithMounts())
	if got := names(sb); !slices.Equal(got, []string{"image"}) {
		t.Errorf("without the mount /data has %q, want what the image has", got)
	}
	attached := harness.CreateWith(t, c, []sandbox.Mount{{Volume: first.Name, Target: "/data"}}, sandbox.WithImage(image))
	if got := names(attached); !slices.Equal(got, []string{"kept"}) {
		t.Errorf("the volume that was left has %q", got)
	}
	harness.RemoveNow(t, c, attached.Name())
	t.Cleanup(func() { removeDeclared(t, c, sb.ID()) })
}

// A copy, and a volume of the image, whose mount an update took away are deleted with the sandbox: by
// Close if it is not persistent, and by a Delete with volumes, which names them. Left are one that
// another sandbox mounts, and those that an earlier sandbox of the ID left.
func TestVolumesWithoutTheirMountsGoWithTheSandbox(t *testing.T) {
	t.Parallel()
	c, image, dir := harness.NewClient(t), declaring(t), harness.HostDir(t, map[string]string{"file": "f"})
	copies := []sandbox.Mount{{Source: dir, Target: "/copy"}, {Source: dir, Target: "/used"}}
	earlier := harness.CreateWith(t, c, copies[:1])
	id, preserved := earlier.ID(), harness.CopiedVolume(t, earlier, "/copy")
	t.Cleanup(func() { removeDeclared(t, c, id) })
	if _, err := earlier.Delete(t.Context(), sandbox.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, persistent := range []bool{false, true} {
		sb := harness.CreateWith(t, c, copies, sandbox.WithImage(image), sandbox.WithID(id), sandbox.WithPersistent(persistent))
		copied, used, data := harness.CopiedVolume(t, sb, "/copy"), harness.CopiedVolume(t, sb, "/used"), declaredVolumes(t, c, id)["/data"].Name
		user := harness.CreateWith(t, c, []sandbox.Mount{{Volume: used, Target: "/used"}})
		harness.Update(t, sb, sandbox.WithMounts(sandbox.Mount{Source: dir, Target: "/data", Mode: sandbox.RO}))
		if _, err := sb.Stop(t.Context()); err != nil {
			t.Fatal(err)
		}
		if _, err := sb.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		if persistent {
			report, err := sb.Delete(t.Context(), sandbox.DeleteOptions{Volumes: true})
			for _, want := range []string{copied + ": deleted", data + ": deleted", used + ": preserved"} {
				if !strings.Contains(report.String(), want) {
					t.Errorf("Delete reports %s, %v, want %q", report, err, want)
				}
			}
		} else if err := sb.Close(); err != nil {
			t.Errorf("Close = %v", err)
		}
		harness.RemoveNow(t, c, user.Name()) // and with it the volume, which it has attached
		all, err := c.ListVolumes(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		var left []string
		for _, v := range all {
			if strings.HasPrefix(v.Name, record.WorkspaceName(id)) {
				left = append(left, v.Name)
			}
		}
		if !slices.Equal(left, []string{preserved}) {
			t.Errorf("persistent %v: left are %q, want %q", persistent, left, preserved)
		}
	}
}

// removeDeclared removes the volumes of a sandbox that it left behind.
func removeDeclared(t *testing.T, c *sandbox.Client, id string) {
	eng := harness.NewStore(t, "").Engine
	volumes, err := eng.ListVolumes(context.Background(), record.Filter(record.ID, id))
	if err != nil {
		t.Error(err)
	}
	for _, v := range volumes {
		if !record.IsData(v.Name, v.Labels) {
			continue
		}
		if _, err := c.DeleteVolume(context.Background(), v.Name, sandbox.DeleteVolumeOptions{}); err != nil && !errors.Is(err, sandbox.ErrVolumeInUse) {
			t.Error(err)
		}
	}
}

// A fork with another image has the files of its source's volumes, and of the other volumes that the
// new image declares the image's.
func TestForkWithAnotherImageHasTheVolumes(t *testing.T) {
	t.Parallel()
	c := harness.NewClient(t)
	sb := harness.CreateWith(t, c, nil, sandbox.WithImage(declaring(t)))
	harness.Write(t, sb, "/data/file", "f")
	dir := harness.TarMember{Header: tar.Header{Typeflag: tar.TypeDir, Name: "other/", Mode: 0o755}}
	other := harness.Image(t, harness.Tar(t, dir, harness.TarFile("other/new", "n")), "VOLUME /other", "VOLUME /empty")
	for _, n := range []int{1, 2} {
		forks, err := c.ForkN(t.Context(), sb.Name(), n, sandbox.WithImage(other))
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range forks {
			if f.Err != nil {
				t.Fatal(f.Err)
			}
			harness.Remove(t, c, f.Sandbox.Name())
			defer f.Sandbox.Detach()
			for name, want := range map[string]string{"/data/file": "f", "/data/image": "the image's", "/other/new": "n"} {
				if got := harness.Read(t, f.Sandbox, name); got != want {
					t.Errorf("%s of a fork is %q, want %q", name, got, want)
				}
			}
		}
	}
}
