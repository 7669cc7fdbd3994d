package volumes_test

import (
	"archive/tar"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/internal/engine"
	"github.com/seed-1a2d6d8f/sandbox/internal/record"
	"github.com/seed-1a2d6d8f/sandbox/test/harness"
)

// filesAt has a line for each file at a path of a container, as the engine sees it.
func filesAt(t *testing.T, eng *engine.Engine, container, path string) (lines []string) {
	t.Helper()
	rc, tr, h, err := eng.OpenArchive(t.Context(), container, path)
	if err != nil {
		t.Fatalf("%s of %s: %v", path, container, err)
	}
	defer rc.Close()
	for ; err == nil; h, err = tr.Next() {
		content, err := io.ReadAll(tr)
		if err != nil {
			t.Fatal(err)
		}
		_, name, _ := strings.Cut(h.Name, "/")
		if h.Typeflag == tar.TypeDir {
			h.ModTime = time.Time{} // that of the copy
		}
		lines = append(lines, fmt.Sprintf("%q %c %o %d:%d %s %q %q", name, h.Typeflag, h.Mode&0o7777, h.Uid, h.Gid, h.ModTime.UTC().Format(time.DateTime), h.Linkname, content))
	}
	if err != io.EOF {
		t.Fatal(err)
	}
	slices.Sort(lines)
	return lines
}

// What the image has at /workspace is in a new workspace as the engine puts it into a new volume that
// is mounted there.
func TestNewWorkspaceHasTheImagesFilesAsADockerVolume(t *testing.T) {
	t.Parallel()
	c, eng := harness.NewClient(t), harness.NewEngine(t)
	at := time.Unix(1e9, 0)
	dir := func(name string, mode int64, uid, gid int) harness.TarMember {
		return harness.TarMember{Header: tar.Header{Typeflag: tar.TypeDir, Name: name, Mode: mode, Uid: uid, Gid: gid, ModTime: at}}
	}
	owned := harness.TarFile("workspace/sub/f", "x")
	owned.Uid, owned.Gid, owned.Mode = 1000, 1000, 0o4750
	for what, members := range map[string][]harness.TarMember{
		"files":              {dir("workspace/", 0o2775, 0, 7), dir("workspace/sub/", 0o700, 1000, 1000), owned, harness.TarLink("workspace/link", "sub/f"), harness.TarFile("workspace/g", "")},
		"an empty directory": {dir("workspace/", 0o750, 70, 71)},
		"no directory":       {dir("srv/", 0o755, 0, 0)},
	} {
		image := harness.Image(t, harness.Tar(t, members...))
		volume := harness.UniqueName(t)
		id, err := eng.CreateContainer(t.Context(), engine.ContainerSpec{Image: image, Entrypoint: []string{"none"},
			Mounts: []engine.Mount{{Type: "volume", Source: volume, Target: record.Workspace}}})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := eng.RemoveContainer(context.Background(), id, true); err != nil {
				t.Error(err)
			}
			if err := eng.RemoveVolume(context.Background(), volume, true); err != nil {
				t.Error(err)
			}
		})
		want := filesAt(t, eng, id, record.Workspace)
		sb := harness.CreateWith(t, c, nil, sandbox.WithImage(image))
		got := filesAt(t, eng, record.ContainerName(sb.Name()), record.Workspace)
		if what == "no directory" { // it is new
			got, want = got[1:], want[1:]
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-docker +sandbox):\n%s", what, diff)
		}
	}
}

// The image's files are those of a new workspace alone: a source hides them, an adopted workspace
// keeps its own, and what is deleted does not come back.
func TestOnlyANewWorkspaceHasTheImagesFiles(t *testing.T) {
	t.Parallel()
	c := harness.NewClient(t)
	image := harness.Image(t, harness.Tar(t, harness.TarFile("workspace/image", "x"), harness.TarFile("workspace/sub/image", "y")))
	names := func(sb *sandbox.Sandbox) string {
		t.Helper()
		list, err := sb.ReadDir(t.Context(), "/workspace")
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, e := range list {
			names = append(names, e.Name())
		}
		return strings.Join(names, " ")
	}
	of := harness.CreateWith(t, c, nil, sandbox.WithImage(image), sandbox.WithSource(sandbox.Dir(harness.HostDir(t, map[string]string{"own": ""}))))
	if got := names(of); got != "own" {
		t.Errorf("with a source there are %s", got)
	}
	sb := harness.CreateWith(t, c, nil, sandbox.WithImage(image))
	if got := names(sb); got != "image sub" {
		t.Errorf("without a source there are %s", got)
	}
	fork, err := c.Fork(t.Context(), sb.Name(), harness.Quick)
	if err != nil {
		t.Fatal(err)
	}
	defer fork.Close()
	if got := names(fork); got != "image sub" {
		t.Errorf("in a fork there are %s", got)
	}
	for _, name := range []string{"image", "sub"} {
		if err := sb.RemoveAll(t.Context(), name); err != nil {
			t.Fatal(err)
		}
	}
	harness.Update(t, sb, sandbox.WithPorts(8080)) // a new container
	if _, err := sb.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := sb.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := names(sb); got != "" {
		t.Errorf("after all was deleted, in a new container, there are %s", got)
	}
	again, err := c.Fork(t.Context(), sb.Name(), harness.Quick)
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	if got := names(again); got != "" {
		t.Errorf("in a fork of that there are %s", got)
	}
	if _, err := sb.Delete(t.Context(), sandbox.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	adopting := harness.CreateWith(t, c, nil, sandbox.WithImage(image), sandbox.WithID(sb.ID()))
	if got := names(adopting); got != "" {
		t.Errorf("in an adopted, empty workspace there are %s", got)
	}
}
