package enginetest

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// Fake is an engine in this process that holds containers and volumes, and runs nothing. It is
// for what takes too many of them for a real one.
type Fake struct {
	host string

	mu         sync.Mutex
	containers map[string]FakeContainer // by name
	volumes    map[string]map[string]string
	calls      []string
	bytes      int64 // of replies
	before     func(call string)
}

// FakeContainer is a container of a [Fake].
type FakeContainer struct {
	ID, Image string
	State     string // "exited", "running", "created" or "removing", by another call
	Labels    map[string]string
	Volumes   map[string]string // by where they are mounted
	Unlisted  bool              // it is being removed: calls don't find it, and its volumes are not released yet
}

// NewFake starts an engine that holds nothing. It ends with the test.
func NewFake(t testing.TB) *Fake {
	t.Helper()
	dir, err := os.MkdirTemp("", "ef")
	if err != nil {
		t.Fatal(err)
	}
	ln, err := net.Listen("unix", filepath.Join(dir, "s"))
	if err != nil {
		t.Fatal(err)
	}
	f := &Fake{host: "unix://" + ln.Addr().String(), containers: map[string]FakeContainer{}, volumes: map[string]map[string]string{}}
	server := &http.Server{Handler: http.HandlerFunc(f.serve)}
	done := make(chan struct{})
	go func() { defer close(done); _ = server.Serve(ln) }()
	t.Cleanup(func() {
		_ = server.Shutdown(context.Background())
		<-done
		_ = os.RemoveAll(dir)
	})
	return f
}

// Host is the engine's address, as DOCKER_HOST takes it.
func (f *Fake) Host() string { return f.host }

// AddContainer adds a container of that name.
func (f *Fake) AddContainer(name string, c FakeContainer) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.containers[name] = c
}

// AddVolume adds a volume.
func (f *Fake) AddVolume(name string, labels map[string]string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.volumes[name] = labels
}

// Before has fn called before each call, such as "GET /volumes", which waits for it to return.
func (f *Fake) Before(fn func(call string)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.before = fn
}

// HasVolume reports whether there is a volume of that name.
func (f *Fake) HasVolume(name string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	_, has := f.volumes[name]
	return has
}

// Take returns the calls since the last Take, and how many bytes their replies had.
func (f *Fake) Take() (calls []string, bytes int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	calls, bytes = f.calls, f.bytes
	f.calls, f.bytes = nil, 0
	return calls, bytes
}

func (f *Fake) serve(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Api-Version", "1.41")
	w.Header().Set("Ostype", "linux")
	path := versionRE.ReplaceAllString(r.URL.Path, "/")
	f.mu.Lock()
	before := f.before
	f.mu.Unlock()
	if before != nil {
		before(r.Method + " " + path)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	status, reply := f.answer(r, path)
	var body bytes.Buffer
	if reply != nil {
		_ = json.NewEncoder(&body).Encode(reply)
	}
	f.calls = append(f.calls, r.Method+" "+path)
	f.bytes += int64(body.Len())
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(body.Bytes())
}

type fields = map[string]any

// answer makes one call. The caller holds f.mu.
func (f *Fake) answer(r *http.Request, path string) (status int, reply any) {
	kind, rest, _ := strings.Cut(strings.TrimPrefix(path, "/"), "/")
	name, verb, _ := strings.Cut(rest, "/")
	switch call := r.Method + " " + kind; {
	case kind == "_ping":
		return http.StatusOK, nil
	case kind == "info":
		return http.StatusOK, fields{"NCPU": 2, "OSType": "linux", "Architecture": "x86_64", "ServerVersion": "0"}
	case kind == "version":
		return http.StatusOK, fields{"Version": "0", "ApiVersion": "1.41", "Os": "linux", "Arch": "amd64"}
	case path == "/images/json":
		return http.StatusOK, []fields{}
	case path == "/containers/json":
		return http.StatusOK, f.listContainers(r)
	case call == "GET containers" && verb == "json":
		if c, at, ok := f.container(name); ok {
			return http.StatusOK, c.inspected(at)
		}
	case call == "DELETE containers":
		if c, at, ok := f.container(name); ok {
			if c.State == "removing" {
				return http.StatusConflict, fields{"message": "removal of container " + name + " is already in progress"}
			}
			delete(f.containers, at)
			return http.StatusNoContent, nil
		}
	case path == "/volumes":
		volumes := []fields{}
		for _, name := range slices.Sorted(maps.Keys(f.volumes)) {
			if labelled(r, f.volumes[name]) {
				volumes = append(volumes, f.volume(name))
			}
		}
		return http.StatusOK, fields{"Volumes": volumes}
	case path == "/volumes/create":
		var o struct {
			Name   string
			Labels map[string]string
		}
		if err := json.NewDecoder(r.Body).Decode(&o); err != nil {
			return http.StatusBadRequest, fields{"message": err.Error()}
		}
		if _, exists := f.volumes[o.Name]; !exists {
			f.volumes[o.Name] = o.Labels
		}
		return http.StatusCreated, f.volume(o.Name)
	case kind == "volumes":
		if _, exists := f.volumes[name]; !exists {
			break
		}
		if r.Method == http.MethodGet {
			return http.StatusOK, f.volume(name)
		}
		for _, c := range f.containers {
			for _, used := range c.Volumes {
				if used == name {
					return http.StatusConflict, fields{"message": "volume is in use"}
				}
			}
		}
		delete(f.volumes, name)
		return http.StatusNoContent, nil
	}
	return http.StatusNotFound, fields{"message": "no such object: " + path}
}

func (f *Fake) container(ref string) (c FakeContainer, name string, ok bool) {
	if c, ok = f.containers[ref]; ok && !c.Unlisted {
		return c, ref, true
	}
	for name, c := range f.containers {
		if c.ID == ref && !c.Unlisted {
			return c, name, true
		}
	}
	return c, "", false
}

func (f *Fake) listContainers(r *http.Request) []fields {
	list := []fields{}
	for _, name := range slices.Sorted(maps.Keys(f.containers)) {
		c := f.containers[name]
		if labelled(r, c.Labels) && !c.Unlisted {
			list = append(list, fields{"Id": c.ID, "Names": []string{"/" + name}, "Image": c.Image, "State": c.State, "Labels": c.Labels,
				"Created": time.Now().Unix() - 3600, "Mounts": c.mounts()})
		}
	}
	return list
}

func (c FakeContainer) mounts() []fields {
	mounts := []fields{}
	for _, target := range slices.Sorted(maps.Keys(c.Volumes)) {
		mounts = append(mounts, fields{"Type": "volume", "Name": c.Volumes[target], "Destination": target, "Driver": "local", "RW": true})
	}
	return mounts
}

func (c FakeContainer) inspected(name string) fields {
	at := time.Now().Add(-time.Hour).UTC().Format(time.RFC3339Nano)
	return fields{"Id": c.ID, "Name": "/" + name, "Image": c.Image, "Created": at, "Mounts": c.mounts(),
		"State":      fields{"Status": c.State, "Running": c.State == "running", "StartedAt": at, "FinishedAt": at},
		"Config":     fields{"Image": c.Image, "Labels": c.Labels, "Env": []string{}},
		"HostConfig": fields{}, "NetworkSettings": fields{}}
}

func (f *Fake) volume(name string) fields {
	return fields{"Name": name, "Driver": "local", "Scope": "local", "Labels": f.volumes[name],
		"Mountpoint": fmt.Sprintf("/var/lib/docker/volumes/%s/_data", name), "CreatedAt": "2026-01-02T03:04:05Z"}
}

// labelled reports whether labels pass the label filters of a list.
func labelled(r *http.Request, labels map[string]string) bool {
	var filters struct{ Label map[string]bool }
	_ = json.Unmarshal([]byte(r.URL.Query().Get("filters")), &filters)
	for want := range filters.Label {
		key, value, has := strings.Cut(want, "=")
		if got, ok := labels[key]; !ok || has && got != value {
			return false
		}
	}
	return true
}
