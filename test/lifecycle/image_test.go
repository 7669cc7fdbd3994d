package lifecycle_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/internal/engine"
	"github.com/seed-1a2d6d8f/sandbox/internal/record"
	"github.com/seed-1a2d6d8f/sandbox/test/harness"
)

// The labels of a hostile image are never those of what is made from it: a sandbox, its
// replacement, a fork, a snapshot, and the images committed for them.
func TestLabelsOfAnImageAreNotThoseOfTheSandbox(t *testing.T) {
	t.Parallel()
	const forged = "agent-sandbox.tag.tenant=acme"
	tags := map[string]string{"ours": "1", "empty": ""}
	for name, behind := range map[string][]sandbox.ClientOption{
		"layers on disk": nil,
		"commits":        {harness.Behind(t, harness.WithoutLayers, harness.WithoutOverlays)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c, eng := harness.NewClient(t, behind...), harness.NewEngine(t)
			image := harness.SmallImage(t, "LABEL "+forged, "LABEL agent-sandbox.tag.ours=theirs", "LABEL agent-sandbox.by=forged",
				"LABEL agent-sandbox.after=forged", "LABEL agent-sandbox.holder=forged", "LABEL agent-sandbox.until=2000-01-01T00:00:00Z",
				"LABEL agent-sandbox.source=forged", "LABEL agent-sandbox.role=helper", "LABEL theirs=kept")
			check := func(what, name string, replaced bool) {
				t.Helper()
				if got := harness.Inspect(t, name).Tags; !maps.Equal(got, tags) {
					t.Errorf("%s: Inspect says tags %v, want %v", what, got, tags)
				}
				list, err := c.List(t.Context(), sandbox.ListOptions{Prefix: name, Tags: map[string]string{"tenant": "acme"}})
				if err != nil || len(list) != 0 {
					t.Errorf("%s: List by the image's tag: %+v, %v; want none", what, list, err)
				}
				of := engine.Filter{Names: []string{record.ContainerName(name)}, Labels: []string{forged}}
				if found, err := eng.ListContainers(t.Context(), of); err != nil || len(found) != 0 {
					t.Errorf("%s: the engine's filter by %s: %d containers, %v; want none", what, forged, len(found), err)
				}
				got, err := eng.InspectContainer(t.Context(), record.ContainerName(name))
				if err != nil {
					t.Fatal(err)
				}
				rec, ok := record.Decode(got.Labels)
				if !ok || (rec.By != "") != replaced || rec.By == "forged" || rec.Previous == "forged" {
					t.Errorf("%s: the record is %v: changed by %q, after %q", what, ok, rec.By, rec.Previous)
				}
				for _, key := range []string{record.Holder, record.Until, record.Source} {
					if got.Labels[key] != "" {
						t.Errorf("%s: label %s is %q", what, key, got.Labels[key])
					}
				}
				if got.Labels["theirs"] != "kept" {
					t.Errorf("%s: the image's own label is %q", what, got.Labels["theirs"])
				}
			}
			sb := harness.CreateWith(t, c, nil, sandbox.WithImage(image), sandbox.WithTags(tags))
			check("created", sb.Name(), false)
			harness.Write(t, sb, "/srv/b", "b")
			fork, err := c.Fork(t.Context(), sb.Name())
			if err != nil {
				t.Fatalf("Fork: %v", err)
			}
			harness.Remove(t, c, fork.Name())
			t.Cleanup(func() { fork.Detach() })
			check("forked", fork.Name(), false)
			snap := harness.SnapshotOf(t, c, sb, sandbox.SnapshotOptions{})
			stored := harness.CreateWith(t, c, nil, sandbox.WithSource(sandbox.FromSnapshot(snap.ID)), sandbox.WithTags(tags))
			check("from a snapshot", stored.Name(), false)
			if _, err := sb.Stop(t.Context()); err != nil {
				t.Fatal(err)
			}
			harness.Update(t, sb, sandbox.WithPorts(3000))
			if _, err := sb.Start(t.Context()); err != nil {
				t.Fatal(err)
			}
			check("replaced", sb.Name(), true)
			images, err := eng.ListImages(t.Context(), record.Filter(record.Managed, "true"), forged)
			if err != nil || len(images) != 0 {
				t.Errorf("images of ours with %s: %+v, %v; want none", forged, images, err)
			}
		})
	}
}

// An image that is on the engine for another platform is pulled for the engine's. If that is not
// possible the error names the image and both platforms.
func TestImageOfAnotherPlatform(t *testing.T) {
	t.Parallel()
	info, err := harness.NewEngine(t).Info(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	const other = "s390x"
	for name, test := range map[string]struct {
		opts  []sandbox.CreateOption
		pulls int
		// What the engine is: it can pull the image for its platform, and has containerd's image store.
		pull, containerd bool
		want             error
	}{
		"pulled":               {pull: true, pulls: 1},
		"not pulled":           {pulls: 1, want: sandbox.ErrUnsupported},
		"emulated":             {opts: []sandbox.CreateOption{sandbox.WithEmulation()}},
		"containerd":           {containerd: true, pulls: 1, want: sandbox.ErrUnsupported},
		"containerd, pulled":   {containerd: true, pull: true, pulls: 1},
		"containerd, emulated": {containerd: true, opts: []sandbox.CreateOption{sandbox.WithEmulation()}, want: sandbox.ErrUnsupported},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var pulls, pulled atomic.Int32
			const noManifest = "no matching manifest for this platform"
			reply := func(w http.ResponseWriter, status int, body string) bool {
				w.Header().Set("Content-Type", "application/json")
				w.WriteHeader(status)
				io.WriteString(w, body)
				return true
			}
			host := harness.InFront(t, func(w http.ResponseWriter, r *http.Request) bool {
				switch {
				case strings.HasSuffix(r.URL.Path, "/images/create"):
					pulls.Add(1)
					if !test.pull {
						return reply(w, http.StatusNotFound, `{"message": "`+noManifest+`"}`)
					}
					pulled.Store(1)
					return reply(w, http.StatusOK, "{}")
				case strings.Contains(r.URL.Path, "/distribution/"):
					return reply(w, http.StatusNotFound, `{"message": "`+noManifest+`"}`)
				case test.containerd && pulled.Load() == 0 && strings.HasSuffix(r.URL.Path, "/containers/create") && !strings.Contains(r.URL.RawQuery, "helper"):
					return reply(w, http.StatusNotFound, `{"message": "image with reference x was found but does not provide the specified platform"}`)
				}
				return false
			}, func(r *http.Response) error {
				if pulled.Load() > 0 || r.StatusCode != http.StatusOK || !strings.HasSuffix(r.Request.URL.Path, "/"+sandbox.DefaultImage+"/json") {
					return nil
				}
				var image map[string]any
				if err := json.NewDecoder(r.Body).Decode(&image); err != nil {
					return err
				}
				image["Architecture"] = other
				if test.containerd {
					delete(image, "Architecture")
					image["Os"], image["RootFS"] = "", map[string]any{}
				}
				body, err := json.Marshal(image)
				r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
				r.Header.Set("Content-Length", strconv.Itoa(len(body)))
				return err
			})
			c := harness.NewClient(t, sandbox.WithHost(host))
			sb, err := c.Create(t.Context(), test.opts...)
			if err == nil {
				defer sb.Close()
				if err := sb.Command(t.Context(), "true").Run(); err != nil {
					t.Error(err)
				}
			}
			if !errors.Is(err, test.want) || int(pulls.Load()) != test.pulls {
				t.Fatalf("Create = %v after %d pulls, want %v and %d", err, pulls.Load(), test.want, test.pulls)
			}
			platforms := []string{sandbox.DefaultImage, "linux/" + info.Arch, "linux/" + other}
			if test.containerd {
				platforms = platforms[:2]
			}
			if test.pulls > 0 {
				platforms = append(platforms, noManifest)
			}
			for _, part := range platforms {
				if err != nil && !strings.Contains(err.Error(), part) {
					t.Errorf("the error does not name %s: %v", part, err)
				}
			}
		})
	}
}

// "docker rmi -f" removes the image of a stopped sandbox. Calls that need it say which one to bring back, and work again with it.
func TestImageOfASandboxThatWasRemoved(t *testing.T) {
	t.Parallel()
	c, eng := harness.NewClient(t), harness.NewEngine(t)
	ctx, ref := t.Context(), harness.SmallImage(t)
	sb := harness.CreateWith(t, c, nil, sandbox.WithImage(ref), sandbox.WithPersistent(true))
	harness.Write(t, sb, "f", "kept")
	harness.Update(t, sb, sandbox.WithEnv(map[string]string{"A": "b"})) // the next session has a new container
	if _, err := sb.Stop(ctx); err != nil {
		t.Fatal(err)
	}
	r, err := eng.SaveImage(ctx, ref)
	if err != nil {
		t.Fatal(err)
	}
	saved, err := io.ReadAll(r)
	if err := errors.Join(err, r.Close()); err != nil {
		t.Fatal(err)
	}
	if err := eng.RemoveImage(ctx, ref, true); err != nil {
		t.Fatal(err)
	}
	for what, err := range map[string]error{
		"Start":    harness.Second(sb.Start(ctx)),
		"Fork":     harness.Second(sb.Fork(ctx)),
		"Snapshot": harness.Second(sb.Snapshot(ctx, sandbox.SnapshotOptions{})),
		"Update":   sb.Update(ctx, sandbox.WithoutEnv("A")),
	} {
		if !errors.Is(err, sandbox.ErrImageNotFound) || !strings.Contains(err.Error(), ref) {
			t.Errorf("%s without the image: %v, want ErrImageNotFound and its name", what, err)
		}
	}
	if got := harness.Read(t, sb, "f"); got != "kept" {
		t.Errorf("without the image the file has %q, want kept", got)
	}
	if err := eng.LoadImage(ctx, bytes.NewReader(saved)); err != nil {
		t.Fatal(err)
	}
	if _, err := sb.Start(ctx); err != nil {
		t.Errorf("Start with the image again: %v", err)
	}
}
