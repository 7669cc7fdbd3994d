package engine_test

import (
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/seed-1a2d6d8f/sandbox/internal/engine"
)

func TestVolumeLifecycle(t *testing.T) {
	t.Parallel()
	e, ctx := open(t), t.Context()
	v := volume(t, e)
	got, err := e.InspectVolume(ctx, v.Name)
	if err != nil {
		t.Fatalf("InspectVolume: %v", err)
	}
	if got.Name != v.Name || got.Labels[runKey] != runID || got.Driver != "local" || got.Options["size"] != "0" ||
		got.Size != -1 || got.Mountpoint == "" || time.Since(got.CreatedAt).Abs() > time.Hour {
		t.Errorf("InspectVolume = %+v", got)
	}
	all, err := e.ListVolumes(ctx, runLabel)
	if err != nil || !slices.ContainsFunc(all, func(o engine.Volume) bool { return o.Name == v.Name }) {
		t.Errorf("ListVolumes(%q) = %v, %v", runLabel, all, err)
	}
	if none, err := e.ListVolumes(ctx, runKey+"=other"); err != nil || len(none) != 0 {
		t.Errorf("ListVolumes of another run = %v, %v", none, err)
	}
	id, _ := create(t, e, engine.ContainerSpec{Mounts: []engine.Mount{{Type: "volume", Source: v.Name, Target: "/v"}}})
	wantClass(t, "remove a used volume", e.RemoveVolume(ctx, v.Name, false), engine.ErrConflict)
	wantClass(t, "remove a used volume by force", e.RemoveVolume(ctx, v.Name, true), engine.ErrConflict)
	if err := e.RemoveContainer(ctx, id, false); err != nil {
		t.Fatal(err)
	}
	if err := e.RemoveVolume(ctx, v.Name, false); err != nil {
		t.Errorf("RemoveVolume: %v", err)
	}
	_, err = e.InspectVolume(ctx, v.Name)
	wantClass(t, "inspect a removed volume", err, engine.ErrNotFound)
	wantClass(t, "remove a removed volume", e.RemoveVolume(ctx, v.Name, false), engine.ErrNotFound)
	if err := e.RemoveVolume(ctx, v.Name, true); err != nil {
		t.Errorf("remove a removed volume by force: %v", err)
	}
}

func TestLoserOfCreateVolumeSeesTheWinner(t *testing.T) {
	t.Parallel()
	e := open(t)
	name := unique()
	t.Cleanup(func() { dropVolume(t, name) })
	var (
		g    sync.WaitGroup
		mu   sync.Mutex
		seen = map[string]int{}
		wins int
	)
	for range 20 {
		g.Go(func() {
			nonce := unique()
			l := labels()
			l["nonce"] = nonce
			v, err := e.CreateVolume(t.Context(), name, l)
			if err != nil {
				t.Errorf("CreateVolume: %v", err)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			seen[v.Labels["nonce"]]++
			if v.Labels["nonce"] == nonce {
				wins++
			}
		})
	}
	g.Wait()
	if len(seen) != 1 || wins != 1 {
		t.Errorf("20 creators saw %v, and %d of them won; want one nonce and one winner", seen, wins)
	}
}

func TestVolumeWithoutOptionOnAnOldEngine(t *testing.T) {
	t.Parallel()
	var bodies []string
	host := fakeEngine(t, func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		bodies = append(bodies, string(b))
		w.Header().Set("Content-Type", "application/json")
		if strings.Contains(string(b), `"size"`) {
			w.WriteHeader(http.StatusInternalServerError)
			_, _ = io.WriteString(w, `{"message":"invalid option key: \"size\""}`)
			return
		}
		w.WriteHeader(http.StatusCreated)
		_, _ = io.WriteString(w, `{"Name":"v","Driver":"local","Labels":{"a":"b"}}`)
	})
	v, err := openAt(t, host).CreateVolume(t.Context(), "v", map[string]string{"a": "b"})
	if err != nil || v.Name != "v" || v.Labels["a"] != "b" || len(bodies) != 2 {
		t.Errorf("CreateVolume = %+v, %v after %q", v, err, bodies)
	}
}

// An engine with a full disk can make a volume and lose its labels. Who wants the volume gets one with
// labels, and one that somebody else made without labels stays as it is.
func TestVolumeThatLostItsLabelsIsMadeAgain(t *testing.T) {
	t.Parallel()
	e, name := open(t), unique()
	t.Cleanup(func() { dropVolume(t, name) })
	if _, err := e.CreateVolume(t.Context(), name, nil); err != nil {
		t.Fatal(err)
	}
	v, err := e.CreateVolume(t.Context(), name, labels())
	if err != nil || v.Labels[runKey] != runID {
		t.Errorf("CreateVolume = %+v, %v, want its labels", v, err)
	}
	again, err := e.CreateVolume(t.Context(), name, map[string]string{runKey: "other"})
	if err != nil || again.Labels[runKey] != runID {
		t.Errorf("CreateVolume of one that exists = %+v, %v, want the first", again, err)
	}
}
