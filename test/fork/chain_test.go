package fork_test

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"testing"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/internal/engine"
	"github.com/seed-1a2d6d8f/sandbox/test/harness"
)

// Forks of forks by commit go on past the point where layers are made one,
// which is long before the engine refuses another.
func TestChainOfForksOutgrowsTheLayersOfAnImage(t *testing.T) {
	t.Parallel()
	c := harness.NewClient(t, harness.Behind(t, harness.WithoutLayers))
	chainOfForks(t, c, layeredImage(t, 63), 3)
}

// A chain of 150 forks, each with one more file.
func TestChainOfForksSoak(t *testing.T) {
	harness.Soak(t)
	byCommit(t, func(t *testing.T, c *sandbox.Client, exact bool) { chainOfForks(t, c, layeredImage(t, 1), 150) })
}

// chainOfForks makes a fork of each fork in turn, which adds a file in the container and
// one in the workspace, and deletes them in any order. Each has its own files and those of
// all before it, from the first moment until it is deleted itself.
func chainOfForks(t *testing.T, c *sandbox.Client, image string, n int) {
	t.Helper()
	eng := harness.NewEngine(t)
	strange := harness.StrayImages(t, eng)
	sb := harness.CreateWith(t, c, nil, sandbox.WithImage(image))
	chain := []*sandbox.Sandbox{sb}
	holds := func(i int) {
		t.Helper()
		for _, dir := range []string{"/srv", "/workspace"} {
			entries, err := fs.ReadDir(chain[i].FS(), dir[1:])
			if err != nil || len(entries) != i {
				t.Errorf("fork %d has %d files in %s, %v, want %d", i, len(entries), dir, err, i)
			}
			if i == 0 {
				continue
			}
			for _, j := range []int{1, rand.IntN(i) + 1, i} {
				if got, err := chain[i].ReadFile(t.Context(), fmt.Sprint(dir, "/", j)); string(got) != fmt.Sprint(j) || err != nil {
					t.Errorf("fork %d holds %q in file %d of %s, %v", i, got, j, dir, err)
				}
			}
		}
	}
	for i := 1; i <= n; i++ {
		sb = forked(t, c, sb.Name(), sandbox.WithName(harness.UniqueName(t)))
		chain = append(chain, sb)
		for _, dir := range []string{"/srv", "/workspace"} {
			if err := sb.WriteFile(t.Context(), fmt.Sprint(dir, "/", i), []byte(fmt.Sprint(i)), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		holds(i)
		if _, err := chain[i-1].Stop(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	order := rand.Perm(n + 1)
	t.Logf("deleted in the order %v", order)
	for at, i := range order {
		if _, err := chain[i].Delete(t.Context(), sandbox.DeleteOptions{Volumes: true}); err != nil {
			t.Errorf("Delete of fork %d: %v", i, err)
		}
		// Every so often another one is opened, and the last one always.
		if left := order[at+1:]; len(left) == 1 || len(left) > 0 && at%max(1, n/10) == 0 {
			i := left[rand.IntN(len(left))]
			if _, err := chain[i].Start(t.Context()); err != nil {
				t.Errorf("Start of fork %d: %v", i, err)
			}
			holds(i)
			if _, err := chain[i].Stop(t.Context()); err != nil {
				t.Errorf("Stop of fork %d: %v", i, err)
			}
		}
	}
	harness.NoImages(t, eng, strange)
}

// layeredImage is an image of n layers with an empty directory /srv.
func layeredImage(t *testing.T, n int) string {
	t.Helper()
	eng := harness.NewEngine(t)
	ref := "agent-sandbox-test:" + harness.UniqueName(t)
	var layers []string
	var ids []string
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	add := func(name string, content []byte) {
		err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644, Size: int64(len(content))})
		if _, e := w.Write(content); err != nil || e != nil {
			t.Fatal(errors.Join(err, e))
		}
	}
	for i := range n {
		layer := harness.Tar(t, harness.TarMember{Header: tar.Header{Typeflag: tar.TypeDir, Name: "srv/", Mode: 0o755}}, harness.TarFile(fmt.Sprintf("opt/%d", i), ref))
		layers = append(layers, fmt.Sprintf("%d/layer.tar", i))
		ids = append(ids, fmt.Sprintf("sha256:%x", sha256.Sum256(layer)))
		add(layers[i], layer)
	}
	arch, err := eng.Arch(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	config, err := json.Marshal(map[string]any{"architecture": arch, "os": "linux", "config": map[string]any{}, "rootfs": map[string]any{"type": "layers", "diff_ids": ids}})
	if err != nil {
		t.Fatal(err)
	}
	manifest, err := json.Marshal([]map[string]any{{"Config": "config.json", "RepoTags": []string{ref}, "Layers": layers}})
	if err != nil {
		t.Fatal(err)
	}
	add("config.json", config)
	add("manifest.json", manifest)
	if err := errors.Join(w.Close(), eng.LoadImage(t.Context(), &archive)); err != nil {
		t.Fatalf("LoadImage: %v", err)
	}
	t.Cleanup(func() {
		if err := eng.RemoveImage(context.Background(), ref, false); err != nil && !errors.Is(err, engine.ErrNotFound) {
			t.Errorf("RemoveImage: %v", err)
		}
	})
	return ref
}
