package harness

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/seed-1a2d6d8f/sandbox/internal/engine"
)

// Registry is a registry on this machine with one image, which has any name and the label
// version. Engines trust registries of 127.0.0.1.
type Registry struct {
	Host string

	id               string // in the image, so that no other test has the same one and removes it
	arch             string
	layer            []byte
	manifest, config atomic.Pointer[[]byte]
	user, password   string // what it requires, if it requires anything
}

// Media types of Docker's images.
const (
	mediaType    = "application/vnd.docker."
	manifestType = mediaType + "distribution.manifest.v2+json"
)

// NewRegistry starts a registry that ends with the test. With credentials, a name and a
// password, it refuses who has others or none.
func NewRegistry(t *testing.T, credentials ...string) *Registry {
	t.Helper()
	info, err := NewEngine(t).Info(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	id := rand.Text()
	var tarball bytes.Buffer
	w := tar.NewWriter(&tarball)
	// The name that nobody reads makes it another layer than that of any other image: engines with
	// containerd's image store don't pull one that they have unpacked from another file, and then
	// can't tell what the image is.
	w.WriteHeader(&tar.Header{Name: "srv/", Typeflag: tar.TypeDir, Mode: 0o755, Uname: id})
	w.Close()
	r := &Registry{id: id, arch: info.Arch, layer: tarball.Bytes()}
	if len(credentials) > 0 {
		r.user, r.password = credentials[0], credentials[1]
	}
	r.Set("1")
	server := httptest.NewServer(r)
	t.Cleanup(server.Close)
	r.Host = strings.TrimPrefix(server.URL, "http://")
	return r
}

// Ref is a new name of its image, which is removed from the engine when the test ends.
func (r *Registry) Ref(t *testing.T) string {
	t.Helper()
	eng, ref := NewEngine(t), r.Host+"/"+UniqueName(t)+":latest"
	t.Cleanup(func() {
		if err := eng.RemoveImage(context.Background(), ref, false); err != nil && !errors.Is(err, engine.ErrNotFound) {
			t.Errorf("RemoveImage: %v", err)
		}
	})
	return ref
}

// Set replaces the image by one with that version.
func (r *Registry) Set(version string) {
	type fields = map[string]any
	part := func(kind string, b []byte) fields {
		return fields{"mediaType": mediaType + kind, "size": len(b), "digest": digest(b)}
	}
	config, _ := json.Marshal(fields{"architecture": r.arch, "os": "linux", "config": fields{"Labels": fields{"version": version, "registry": r.id}},
		"rootfs": fields{"type": "layers", "diff_ids": []string{digest(r.layer)}}})
	manifest, _ := json.Marshal(fields{"schemaVersion": 2, "mediaType": manifestType,
		"config": part("container.image.v1+json", config), "layers": []any{part("image.rootfs.diff.tar", r.layer)}})
	r.config.Store(&config)
	r.manifest.Store(&manifest)
}

// Digest is that of the image.
func (r *Registry) Digest() string { return digest(*r.manifest.Load()) }

func digest(b []byte) string { return fmt.Sprintf("sha256:%x", sha256.Sum256(b)) }

// ServeHTTP answers as a registry.
func (r *Registry) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	if user, password, _ := req.BasicAuth(); user != r.user || password != r.password {
		w.Header().Set("WWW-Authenticate", `Basic realm="registry"`)
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusUnauthorized)
		io.WriteString(w, `{"errors": [{"code": "UNAUTHORIZED", "message": "authentication required"}]}`)
		return
	}
	for _, b := range [][]byte{*r.manifest.Load(), *r.config.Load(), r.layer} {
		named := strings.HasSuffix(req.URL.Path, "/"+digest(b))
		if tagged := strings.HasSuffix(req.URL.Path, "/manifests/latest") && bytes.Equal(b, *r.manifest.Load()); named || tagged {
			if strings.Contains(req.URL.Path, "/manifests/") {
				w.Header().Set("Content-Type", manifestType)
			}
			w.Header().Set("Docker-Content-Digest", digest(b))
			w.Header().Set("Content-Length", strconv.Itoa(len(b)))
			w.Write(b)
			return
		}
	}
	if req.URL.Path != "/v2/" {
		http.NotFound(w, req)
	}
}
