package engine_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/seed-1a2d6d8f/sandbox/internal/engine"
)

func TestImageLifecycle(t *testing.T) {
	t.Parallel()
	e, ctx := open(t), t.Context()
	ref := "enginetest-image:" + strings.ToLower(runID)
	err := e.ImportImage(ctx, ref, bytes.NewReader(tarball(file{"a", 0o644, runID})), []string{
		"LABEL " + runLabel, `CMD ["/a"]`, "ENV X=1", "USER 5", "WORKDIR /w", `ENTRYPOINT ["/e"]`,
	})
	if err != nil {
		t.Fatalf("ImportImage: %v", err)
	}
	t.Cleanup(func() { _ = e.RemoveImage(ctx, ref, true) })
	i, err := e.InspectImage(ctx, ref)
	if err != nil {
		t.Fatalf("InspectImage: %v", err)
	}
	arch, _ := e.Arch(ctx)
	if i.Labels[runKey] != runID || i.User != "5" || i.WorkingDir != "/w" || i.Layers != 1 || i.OS != "linux" || i.Arch != arch ||
		!slices.Equal(i.Cmd, []string{"/a"}) || !slices.Equal(i.Entrypoint, []string{"/e"}) || !slices.Contains(i.Env, "X=1") || !slices.Contains(i.Tags, ref) {
		t.Errorf("InspectImage = %+v", i)
	}
	if byID, err := e.InspectImage(ctx, i.ID); err != nil || byID.ID != i.ID {
		t.Errorf("InspectImage(%q) = %+v, %v", i.ID, byID, err)
	}
	l, err := e.ListImages(ctx, runLabel)
	if err != nil || !slices.ContainsFunc(l, func(o engine.Image) bool { return o.ID == i.ID && slices.Contains(o.Tags, ref) }) {
		t.Errorf("ListImages = %+v, %v", l, err)
	}
	id, _ := create(t, e, engine.ContainerSpec{Image: ref})
	wantClass(t, "remove a used image", e.RemoveImage(ctx, i.ID, false), engine.ErrConflict)
	if err := e.RemoveContainer(ctx, id, true); err != nil {
		t.Fatal(err)
	}
	if err := e.RemoveImage(ctx, ref, false); err != nil {
		t.Errorf("RemoveImage: %v", err)
	}
	_, err = e.InspectImage(ctx, ref)
	wantClass(t, "inspect a removed image", err, engine.ErrNotFound)
	wantClass(t, "remove a removed image", e.RemoveImage(ctx, ref, true), engine.ErrNotFound)
}

// never returns the name of an image whose import fails. With containerd's image store the engine keeps
// what it could not unpack.
func never(t *testing.T) string {
	t.Helper()
	e, ref := open(t), "enginetest-never:"+strings.ToLower(rand.Text())
	t.Cleanup(func() {
		if err := e.RemoveImage(context.Background(), ref, true); err != nil && !errors.Is(err, engine.ErrNotFound) {
			t.Errorf("RemoveImage: %v", err)
		}
	})
	return ref
}

func TestImportOfNoArchiveFails(t *testing.T) {
	t.Parallel()
	err := open(t).ImportImage(t.Context(), never(t), strings.NewReader(strings.Repeat("no tar", 1000)), nil)
	if err == nil {
		t.Error("ImportImage of something else: no error")
	}
}

func TestPullFromADeadRegistryFails(t *testing.T) {
	t.Parallel()
	if err := open(t).PullImage(t.Context(), "127.0.0.1:1/none:x", nil); err == nil {
		t.Error("PullImage from a dead registry: no error")
	}
}

func TestPullReportsProgressAndTheErrorWithinTheStream(t *testing.T) {
	var auth string
	end := ""
	unknown := false
	host := fakeEngine(t, func(w http.ResponseWriter, r *http.Request) {
		if strings.Contains(r.URL.Path, "/distribution/") {
			status := http.StatusInternalServerError
			if unknown {
				status = http.StatusNotFound
			}
			w.WriteHeader(status)
			return
		}
		auth = r.Header.Get("X-Registry-Auth")
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"status":"Pulling from x","id":"1"}`+"\r\n"+
			`{"status":"Downloading","progressDetail":{"current":5,"total":10},"progress":"[=>]","id":"abc"}`+"\r\n"+end)
	})
	e := openAt(t, host)
	dir := t.TempDir()
	t.Setenv("DOCKER_CONFIG", dir)
	secret := base64.StdEncoding.EncodeToString([]byte("me:pass:word"))
	config := `{"auths":{"https://registry.example.com/v1/":{"auth":"` + secret + `"},"helper.example.com":{}}}`
	if err := os.WriteFile(filepath.Join(dir, "config.json"), []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}

	var got []engine.PullEvent
	if err := e.PullImage(t.Context(), "registry.example.com/x:1", func(ev engine.PullEvent) { got = append(got, ev) }); err != nil {
		t.Fatalf("PullImage: %v", err)
	}
	want := []engine.PullEvent{{Layer: "1", Status: "Pulling from x"}, {Layer: "abc", Status: "Downloading", Current: 5, Total: 10}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("progress (-want +got):\n%s", diff)
	}
	b, err := base64.URLEncoding.DecodeString(auth)
	var sent struct{ Username, Password, ServerAddress string }
	if err != nil || json.Unmarshal(b, &sent) != nil || sent.Username != "me" || sent.Password != "pass:word" {
		t.Errorf("credentials sent: %+v, %v", sent, err)
	}
	for _, ref := range []string{"helper.example.com/x", "x:1"} {
		if err := e.PullImage(t.Context(), ref, nil); err != nil || auth != "" {
			t.Errorf("PullImage(%q) = %v, and sent %q", ref, err, auth)
		}
	}

	end = `{"errorDetail":{"code":401,"message":"go away"},"error":"go away"}`
	err = e.PullImage(t.Context(), "x:1", nil)
	wantClass(t, "PullImage", err, engine.ErrForbidden)
	if err == nil || !strings.HasPrefix(err.Error(), "go away (registry docker.io; without credentials: ") {
		t.Errorf("PullImage = %v, want the registry's words", err)
	}
	end = `{"errorDetail":{"message":"manifest unknown"},"error":"manifest unknown"}`
	if err := e.PullImage(t.Context(), "x:1", nil); err == nil || !strings.HasPrefix(err.Error(), "manifest unknown (registry docker.io; ") {
		t.Errorf("PullImage = %v, want the registry's words", err)
	}
	unknown = true
	wantClass(t, "PullImage of an unknown image", e.PullImage(t.Context(), "x:1", nil), engine.ErrNotFound)
	end = `{"status":"Downl`
	wantClass(t, "PullImage cut short", e.PullImage(t.Context(), "x:1", nil), engine.ErrUnavailable)
}

func TestPullOfAMissingImageIsNotFound(t *testing.T) {
	t.Parallel()
	// A registry that has nothing, next to the engine: engines trust those of
	// 127.0.0.0/8 without TLS.
	registry := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if r.URL.Path == "/v2/" {
			_, _ = io.WriteString(w, "{}")
			return
		}
		w.WriteHeader(http.StatusNotFound)
		_, _ = io.WriteString(w, `{"errors":[{"code":"MANIFEST_UNKNOWN","message":"manifest unknown"}]}`)
	}))
	t.Cleanup(registry.Close)
	err := open(t).PullImage(t.Context(), strings.TrimPrefix(registry.URL, "http://")+"/none:x", nil)
	wantClass(t, "PullImage", err, engine.ErrNotFound)
}

// An image that is loaded has the ID of its content, so loading it again leaves one.
func TestLoadImageIsTheSameTwice(t *testing.T) {
	e, ctx := open(t), t.Context()
	ref := "enginetest-load:" + runID
	layer := tarball(file{"a", 0o644, runID})
	config := fmt.Sprintf(`{"architecture":"amd64","os":"linux","config":{"Labels":{%q:%q}},"rootfs":{"type":"layers","diff_ids":["sha256:%x"]}}`,
		"enginetest.run", runID, sha256.Sum256(layer))
	archive := tarball(
		file{"layer.tar", 0o644, string(layer)}, file{"config.json", 0o644, config},
		file{"manifest.json", 0o644, fmt.Sprintf(`[{"Config":"config.json","RepoTags":[%q],"Layers":["layer.tar"]}]`, ref)})
	t.Cleanup(func() { e.RemoveImage(context.Background(), ref, true) })
	var ids []string
	for range 2 {
		if err := e.LoadImage(ctx, bytes.NewReader(archive)); err != nil {
			t.Fatalf("LoadImage: %v", err)
		}
		got, err := e.InspectImage(ctx, ref)
		if err != nil {
			t.Fatalf("InspectImage: %v", err)
		}
		ids = append(ids, got.ID)
	}
	if ids[0] != ids[1] {
		t.Errorf("the same archive makes %v", ids)
	}
	if err := e.LoadImage(ctx, strings.NewReader("no archive")); err == nil {
		t.Error("LoadImage of something else: no error")
	}
}

// Whoever comes second finds it gone, however close the two are.
func TestImageRemovedTwiceAtOnceIsNotFound(t *testing.T) {
	t.Parallel()
	e, ctx := open(t), t.Context()
	for try := range 3 {
		ref := fmt.Sprintf("enginetest-image:%s-twice-%d", strings.ToLower(runID), try)
		if err := e.ImportImage(ctx, ref, bytes.NewReader(tarball(file{"a", 0o644, ref})), []string{"LABEL " + runLabel}); err != nil {
			t.Fatal(err)
		}
		img, err := e.InspectImage(ctx, ref)
		if err != nil {
			t.Fatal(err)
		}
		var all sync.WaitGroup
		for range 6 {
			all.Go(func() {
				err := e.RemoveImage(ctx, img.ID, false)
				if err != nil && !errors.Is(err, engine.ErrNotFound) && !errors.Is(err, engine.ErrConflict) {
					t.Errorf("RemoveImage: %v, want ErrNotFound or ErrConflict", err)
				}
			})
		}
		all.Wait()
		if _, err := e.InspectImage(ctx, ref); !errors.Is(err, engine.ErrNotFound) {
			t.Errorf("InspectImage afterwards: %v", err)
		}
	}
}
