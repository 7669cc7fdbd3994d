package fork_test

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/internal/engine"
	"github.com/seed-1a2d6d8f/sandbox/internal/record"
	"github.com/seed-1a2d6d8f/sandbox/test/harness"
)

// No container uses the image of a snapshot, so "docker image prune -a" removes it.
func TestSnapshotWhoseImageWasPruned(t *testing.T) {
	t.Parallel()
	for name, behind := range map[string][]sandbox.ClientOption{
		"layers on disk": nil,
		"commits":        {harness.Behind(t, harness.WithoutLayers, harness.WithoutOverlays)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c, eng := harness.NewClient(t, behind...), harness.NewEngine(t)
			image := harness.SmallImage(t)
			sb := harness.CreateWith(t, c, nil, sandbox.WithImage(image))
			harness.Write(t, sb, "/srv/a", "a")
			snap := harness.SnapshotOf(t, c, sb)
			if err := eng.RemoveImage(t.Context(), record.SnapshotImage(snap.ID), false); err != nil {
				t.Fatal(err)
			}
			if behind != nil {
				_, err := c.Create(t.Context(), sandbox.WithSource(sandbox.FromSnapshot(snap.ID)))
				if !errors.Is(err, sandbox.ErrImageNotFound) || !strings.Contains(err.Error(), "docker image prune") {
					t.Errorf("Create from the snapshot = %v, want ErrImageNotFound and why", err)
				}
				return
			}
			again := harness.CreateWith(t, c, nil, sandbox.WithSource(sandbox.FromSnapshot(snap.ID)))
			if got := harness.Read(t, again, "/srv/a"); got != "a" {
				t.Errorf("the file is %q, want %q", got, "a")
			}
			if _, err := eng.InspectImage(t.Context(), record.SnapshotImage(snap.ID)); err != nil {
				t.Errorf("the snapshot's image: %v", err)
			}
		})
	}
}

// registry is a registry on this machine with one image, which has the label version. Engines
// trust registries of 127.0.0.1.
func registry(t *testing.T, arch string) (ref string, set func(version string)) {
	t.Helper()
	var tarball bytes.Buffer
	w := tar.NewWriter(&tarball)
	w.WriteHeader(&tar.Header{Name: "srv/", Typeflag: tar.TypeDir, Mode: 0o755})
	w.Close()
	digest := func(b []byte) string { return fmt.Sprintf("sha256:%x", sha256.Sum256(b)) }
	encode := func(v any) []byte {
		b, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	type fields = map[string]any
	const docker = "application/vnd.docker."
	part := func(kind string, b []byte) fields {
		return fields{"mediaType": docker + kind, "size": len(b), "digest": digest(b)}
	}
	layer := tarball.Bytes()
	var manifest, config atomic.Pointer[[]byte]
	set = func(version string) {
		c := encode(fields{"architecture": arch, "os": "linux", "config": fields{"Labels": fields{"version": version}},
			"rootfs": fields{"type": "layers", "diff_ids": []string{digest(layer)}}})
		m := encode(fields{"schemaVersion": 2, "mediaType": docker + "distribution.manifest.v2+json",
			"config": part("container.image.v1+json", c), "layers": []any{part("image.rootfs.diff.tar", layer)}})
		config.Store(&c)
		manifest.Store(&m)
	}
	set("1")
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for _, b := range [][]byte{*manifest.Load(), *config.Load(), layer} {
			named := strings.HasSuffix(r.URL.Path, "/"+digest(b))
			if tagged := strings.HasSuffix(r.URL.Path, "/manifests/latest") && bytes.Equal(b, *manifest.Load()); named || tagged {
				if strings.Contains(r.URL.Path, "/manifests/") {
					w.Header().Set("Content-Type", docker+"distribution.manifest.v2+json")
				}
				w.Header().Set("Docker-Content-Digest", digest(b))
				w.Header().Set("Content-Length", strconv.Itoa(len(b)))
				w.Write(b)
				return
			}
		}
		if r.URL.Path != "/v2/" {
			http.NotFound(w, r)
		}
	}))
	t.Cleanup(server.Close)
	return strings.TrimPrefix(server.URL, "http://") + "/" + harness.UniqueName(t) + ":latest", set
}

// A snapshot's image that is nowhere on the engine is pulled again. One that has changed in its
// registry meanwhile is not taken for it.
func TestSnapshotWhoseImageIsPulledAgain(t *testing.T) {
	t.Parallel()
	c, eng := harness.NewClient(t), harness.NewEngine(t)
	info, err := eng.Info(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	ref, set := registry(t, info.Arch)
	sb := harness.CreateWith(t, c, nil, sandbox.WithImage(ref))
	harness.Write(t, sb, "/srv/a", "a")
	snap := harness.SnapshotOf(t, c, sb)
	if _, err := c.Delete(t.Context(), sb.Name(), sandbox.PreserveVolumes(false)); err != nil {
		t.Fatal(err)
	}
	prune := func() {
		t.Helper()
		for _, ref := range []string{record.SnapshotImage(snap.ID), ref} {
			if err := eng.RemoveImage(t.Context(), ref, false); err != nil && !errors.Is(err, engine.ErrNotFound) {
				t.Fatal(err)
			}
		}
		if _, err := eng.InspectImage(t.Context(), ref); !errors.Is(err, engine.ErrNotFound) {
			t.Fatalf("the image is still on the engine: %v", err)
		}
	}
	create := func() (*sandbox.Sandbox, error) {
		return c.Create(t.Context(), sandbox.WithSource(sandbox.FromSnapshot(snap.ID)))
	}
	defer eng.RemoveImage(context.WithoutCancel(t.Context()), ref, false)

	prune()
	again, err := create()
	if err != nil {
		t.Fatal(err)
	}
	if got := harness.Read(t, again, "/srv/a"); got != "a" {
		t.Errorf("the file is %q, want %q", got, "a")
	}
	if err := again.Close(); err != nil {
		t.Fatal(err)
	}

	prune()
	set("2")
	if _, err := create(); !errors.Is(err, sandbox.ErrImageNotFound) || !strings.Contains(err.Error(), "another one by now") {
		t.Errorf("Create from a snapshot whose image has changed = %v, want ErrImageNotFound and why", err)
	}
}

// A failure that says nothing of mounts is not taken for an engine without overlays.
func TestOverlaysAreUsedAfterAnotherFailure(t *testing.T) {
	t.Parallel()
	var refuse atomic.Bool
	c := harness.NewClient(t, sandbox.WithHost(harness.InFront(t, func(w http.ResponseWriter, r *http.Request) bool {
		if r.Method != http.MethodPut || !strings.HasSuffix(r.URL.Path, "/archive") || !refuse.CompareAndSwap(true, false) {
			return false
		}
		harness.Refuse(w, "no space left on device")
		return true
	}, nil)))
	eng := harness.NewEngine(t)
	sb := harness.CreateWith(t, c, nil, sandbox.WithImage(harness.SmallImage(t)))
	harness.Write(t, sb, "a", "a")
	snap := harness.SnapshotOf(t, c, sb)
	overlay := func() bool {
		t.Helper()
		made := harness.CreateWith(t, c, nil, fromSnap(snap))
		if got := harness.Read(t, made, "a"); got != "a" {
			t.Errorf("the file is %q, want %q", got, "a")
		}
		v, err := eng.InspectVolume(t.Context(), record.WorkspaceName(made.ID()))
		if err != nil {
			t.Fatal(err)
		}
		return v.Options["type"] == "overlay"
	}
	if !overlay() {
		t.Fatal("its workspace is no overlay: this engine mounts none, or the test looks for the wrong thing")
	}
	refuse.Store(true)
	if overlay() || refuse.Load() {
		t.Errorf("the workspace is an overlay, or nothing was refused (%v); want a copy", refuse.Load())
	}
	if !overlay() {
		t.Error("the next workspace is a copy, want an overlay")
	}
}
