package engine_test

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httputil"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/seed-1a2d6d8f/sandbox/internal/engine"
)

// changed makes a container with secrets and one file more than its image.
func changed(t *testing.T, e *engine.Engine) (id string) {
	t.Helper()
	l := labels()
	l["secret-label"] = "sesame"
	id, _ = create(t, e, engine.ContainerSpec{
		Env: []string{"SECRET=sesame", "A=sesame"}, Labels: l, User: "7", WorkingDir: "/sesame", Entrypoint: []string{"/tool", "wait"},
	})
	if err := e.CopyTo(t.Context(), id, "/", bytes.NewReader(tarball(file{"tmp/new", 0o640, "new"}))); err != nil {
		t.Fatal(err)
	}
	return id
}

func imageRef(t *testing.T, e *engine.Engine) string {
	t.Helper()
	ref := "enginetest-commit:" + strings.TrimPrefix(unique(), "enginetest-")
	t.Cleanup(func() { dropImages(t, e, "captured="+ref) })
	return ref
}

func dropImages(t *testing.T, e *engine.Engine, label string) {
	t.Helper()
	left, err := e.ListImages(context.Background(), runLabel, label)
	if err != nil {
		t.Error(err)
	}
	for _, i := range left {
		if err := e.RemoveImage(context.Background(), i.ID, true); err != nil && !errors.Is(err, engine.ErrNotFound) {
			t.Error(err)
		}
	}
}

func captureLabels(ref string) map[string]string {
	l := labels()
	l["captured"] = ref
	return l
}

// A container's environment and labels don't get into what is committed of it.
func TestCommitHasTheFilesAndTheImagesSettings(t *testing.T) {
	t.Parallel()
	for name, capture := range map[string]func(e *engine.Engine, id, ref string, labels map[string]string) (engine.Image, error){
		"commit": func(e *engine.Engine, id, ref string, l map[string]string) (engine.Image, error) {
			return e.CommitContainer(t.Context(), id, ref, l)
		},
		"flatten": func(e *engine.Engine, id, ref string, l map[string]string) (engine.Image, error) {
			return e.FlattenContainer(t.Context(), id, ref, l, func(string) {})
		},
	} {
		t.Run(name, func(t *testing.T) {
			e := open(t)
			id, ref := changed(t, e), imageRef(t, e)
			got, err := capture(e, id, ref, captureLabels(ref))
			if err != nil {
				t.Fatal(err)
			}
			base, err := e.InspectImage(t.Context(), image)
			if err != nil {
				t.Fatal(err)
			}
			want := base
			want.ID, want.Ref, want.Tags, want.Size, want.Layers = got.ID, ref, []string{ref}, got.Size, base.Layers+1
			want.Labels = captureLabels(ref)
			driver, err := e.StorageDriver(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			// Containerd's image store loads no image without its layers: what the commit made stays.
			stays := driver == "overlayfs" && name == "commit"
			if stays {
				want.Labels["secret-label"] = ""
				want.Env = append(slices.Clone(want.Env), "SECRET=")
			}
			if name == "flatten" {
				want.Layers = 1
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("image (-want +got):\n%s", diff)
			}
			if all := raw(t, "/images/"+got.ID+"/json") + raw(t, "/images/"+got.ID+"/history"); strings.Contains(all, "sesame") {
				t.Errorf("the image tells a secret: %s", all)
			}
			copied, _ := create(t, e, engine.ContainerSpec{Image: ref})
			rc, _, err := e.CopyFrom(t.Context(), copied, "/tmp/new")
			if err != nil {
				t.Fatal(err)
			}
			defer rc.Close()
			r := tar.NewReader(rc)
			h, err := r.Next()
			if err != nil || h.Mode&0o777 != 0o640 || readAll(t, r) != "new" {
				t.Errorf("the file is %+v, %v", h, err)
			}
			if name == "flatten" || stays {
				return
			}
			again, err := capture(e, id, ref+"-b", captureLabels(ref))
			if err != nil || again.ID != got.ID {
				t.Errorf("committed again it is image %s, %v, want %s", again.ID, err, got.ID)
			}
			left, err := e.ListImages(t.Context(), "captured="+ref)
			if err != nil || len(left) != 1 {
				t.Errorf("images made: %+v, %v, want one", left, err)
			}
		})
	}
}

// real reaches the engine under test without any of our code.
func real() *http.Transport {
	return &http.Transport{
		DialContext:       func(context.Context, string, string) (net.Conn, error) { return dialEngine() },
		DisableKeepAlives: true,
	}
}

// raw is the engine's own reply.
func raw(t *testing.T, path string) string {
	t.Helper()
	resp, err := (&http.Client{Transport: real()}).Get("http://engine" + path)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	return readAll(t, resp.Body)
}

// An engine that takes no image in without its layers keeps what it committed, where
// secrets have no value.
func TestCommitWithoutLoadBlanksSecrets(t *testing.T) {
	t.Parallel()
	e := open(t)
	id, ref := changed(t, e), imageRef(t, e)
	pass := &httputil.ReverseProxy{Transport: real(), Rewrite: func(r *httputil.ProxyRequest) { r.Out.URL.Scheme, r.Out.URL.Host = "http", "engine" }}
	host := fakeEngine(t, func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/images/load") {
			w.WriteHeader(http.StatusInternalServerError)
			return
		}
		pass.ServeHTTP(w, r)
	})
	got, err := openAt(t, host).CommitContainer(t.Context(), id, ref, captureLabels(ref))
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Contains(got.Env, "SECRET=") || got.Labels["secret-label"] != "" || !slices.Contains(got.Env, "A=image") || got.User != "user" {
		t.Errorf("committed: %+v", got)
	}
}

func TestDiffTellsWhatChanged(t *testing.T) {
	t.Parallel()
	e := open(t)
	clean, _ := create(t, e, engine.ContainerSpec{})
	if diff, err := e.DiffContainer(t.Context(), clean); err != nil || len(diff) != 0 {
		t.Errorf("DiffContainer of a new container = %v, %v", diff, err)
	}
	diff, err := e.DiffContainer(t.Context(), changed(t, e))
	if err != nil || !slices.Contains(diff, engine.Change{Path: "/tmp/new", Kind: engine.Added}) || !slices.Contains(diff, engine.Change{Path: "/tmp", Kind: engine.Modified}) {
		t.Errorf("DiffContainer = %v, %v", diff, err)
	}
	_, err = e.DiffContainer(t.Context(), unique())
	wantClass(t, "DiffContainer", err, engine.ErrNotFound)
	_, err = e.CommitContainer(t.Context(), unique(), "enginetest-none:x", nil)
	wantClass(t, "CommitContainer", err, engine.ErrNotFound)
	_, err = e.CommitContainer(t.Context(), "../images/x", "enginetest-none:x", nil)
	wantClass(t, "CommitContainer", err, engine.ErrInvalid)
	_, err = e.CommitContainer(t.Context(), clean, "../x", nil)
	wantClass(t, "CommitContainer", err, engine.ErrInvalid)
}
