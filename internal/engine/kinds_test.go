package engine_test

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	dockerimage "github.com/docker/docker/api/types/image"

	"github.com/seed-1a2d6d8f/sandbox/internal/engine"
)

// answers is an engine that gives fixed replies, by method and path without the version. A number
// is the status of an error.
func answers(t *testing.T, server string, replies map[string]func(body string) any) *engine.Engine {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Api-Version", "1.41")
		if server != "" {
			w.Header().Set("Server", server)
		}
		path := r.URL.Path
		if rest, ok := strings.CutPrefix(path, "/v1.41"); ok {
			path = rest
		}
		reply, ok := replies[r.Method+" "+path]
		if !ok {
			return // as to a ping
		}
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		w.Header().Set("Content-Type", "application/json")
		answer := reply(string(body))
		switch refused := answer.(type) {
		case int:
			w.WriteHeader(refused)
			answer = object{"message": "refused"}
		case failure:
			w.WriteHeader(refused.status)
			answer = object{"message": refused.text}
		}
		_ = json.NewEncoder(w).Encode(answer)
	}))
	t.Cleanup(s.Close)
	e, err := engine.Open(t.Context(), engine.Options{Host: "tcp://" + strings.TrimPrefix(s.URL, "http://")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { e.Close() })
	return e
}

// failure is an error of the engine's.
type failure struct {
	status int
	text   string
}

func fixed(v any) func(string) any { return func(string) any { return v } }

type object = map[string]any

// Podman mounts a volume that has options, takes no seccomp profile for a helper, and calls every OCI runtime
// "oci". It is known by a header of its replies.
func TestPodmanGetsWhatItTakes(t *testing.T) {
	for server, podman := range map[string]bool{"Libpod/5.8.6 (linux)": true, "Docker/28.5.2 (linux)": false} {
		var options bool
		e := answers(t, server, map[string]func(string) any{
			"POST /volumes/create": func(body string) any {
				options = strings.Contains(body, `"size"`)
				return object{"Name": "v", "Labels": object{"k": "v"}}
			},
			"GET /info":               fixed(object{"SecurityOptions": []string{"name=seccomp,profile=default"}}),
			"GET /v4.0.0/libpod/info": fixed(object{}),
			"GET /version":            fixed(object{"Arch": "amd64"}),
			"GET /containers/c/json":  fixed(object{"Id": "c", "HostConfig": object{"Runtime": "oci"}}),
		})
		if _, err := e.CreateVolume(t.Context(), "v", map[string]string{"k": "v"}); err != nil || options == podman {
			t.Errorf("%s: CreateVolume: options %t, %v", server, options, err)
		}
		if profile, err := e.TrustedSeccomp(t.Context(), engine.Trusted{}); err != nil || (profile == "") != podman {
			t.Errorf("%s: TrustedSeccomp = %.20q, %v", server, profile, err)
		}
		if c, err := e.InspectContainer(t.Context(), "c"); err != nil || (c.Runtime == "") != podman {
			t.Errorf("%s: InspectContainer: runtime %q, %v", server, c.Runtime, err)
		}
	}
}

// A symbolic link that leads nowhere is described by every engine: Podman's reply has the status of a
// path that does not exist.
func TestALinkThatLeadsNowhereIsDescribed(t *testing.T) {
	link := base64.StdEncoding.EncodeToString([]byte(fmt.Sprintf(`{"name":"to","size":3,"mode":%d,"linkTarget":"/to"}`, fs.ModeSymlink|0o777)))
	for server, found := range map[string]bool{"Libpod/5.8.6 (linux)": true, "Docker/28.5.2 (linux)": false} {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Api-Version", "1.41")
			w.Header().Set("Server", server)
			if strings.HasSuffix(r.URL.Path, "/_ping") {
				return
			}
			if r.Method == http.MethodHead && r.URL.Query().Get("path") == "/link" {
				w.Header().Set("X-Docker-Container-Path-Stat", link)
			}
			w.WriteHeader(http.StatusNotFound)
		}))
		t.Cleanup(s.Close)
		e, err := engine.Open(t.Context(), engine.Options{Host: strings.Replace(s.URL, "http:", "tcp:", 1)})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { e.Close() })
		got, err := e.StatPath(t.Context(), "c", "/link")
		if is := err == nil && got.Mode&fs.ModeSymlink != 0 && got.LinkTarget == "/to"; is != found {
			t.Errorf("%s: StatPath = %+v, %v", server, got, err)
		}
		if got, err := e.StatPath(t.Context(), "c", "/other"); !errors.Is(err, engine.ErrNotFound) {
			t.Errorf("%s: StatPath of nothing = %+v, %v", server, got, err)
		}
	}
}

// Sandboxes have a profile of this package unless the engine was configured with one.
func TestAnEngineKeepsItsOwnProfile(t *testing.T) {
	const podman = "Libpod/5.8.6 (linux)"
	for _, tt := range []struct {
		server, option, libpod string
		ours                   bool
	}{
		{"", "name=seccomp,profile=default", "", true}, // before 23
		{"", "name=seccomp,profile=builtin", "", true},
		{"", "name=seccomp,profile=/etc/docker/seccomp.json", "", false},
		{"", "name=seccomp,profile=unconfined", "", true}, // Docker Desktop
		{"", "name=seccomp", "", true},
		{"", "name=apparmor", "", false},
		{podman, "name=seccomp,profile=default", "/usr/share/containers/seccomp.json", true},
		{podman, "name=seccomp,profile=default", "", true},
		{podman, "name=seccomp,profile=default", "/etc/containers/seccomp.json", false},
		{podman, "name=apparmor", "/usr/share/containers/seccomp.json", false},
	} {
		e := answers(t, tt.server, map[string]func(string) any{
			"GET /info":               fixed(object{"SecurityOptions": []string{"name=cgroupns", tt.option}}),
			"GET /version":            fixed(object{}),
			"GET /v4.0.0/libpod/info": fixed(object{"host": object{"security": object{"seccompProfilePath": tt.libpod}}}),
		})
		if profile, err := e.SandboxSeccomp(t.Context()); err != nil || (profile != "") != tt.ours {
			t.Errorf("%+v: SandboxSeccomp = %.20q, %v", tt, profile, err)
		}
	}
}

func TestMoreCPUsThanTheMachineHasAreInvalid(t *testing.T) {
	e := answers(t, "", map[string]func(string) any{
		"GET /info":    fixed(object{"NCPU": 4}),
		"GET /version": fixed(object{}),
	})
	for cpus, valid := range map[float64]bool{0: true, 4: true, 4.5: false} {
		if err := e.CheckLimits(t.Context(), cpus); valid && err != nil || !valid && !errors.Is(err, engine.ErrInvalid) {
			t.Errorf("CheckLimits of %v CPUs = %v", cpus, err)
		}
	}
}

// Podman names images in full, and adds to the environment of containers.
func TestPodmanDescribesAsDockerDoes(t *testing.T) {
	for server, podman := range map[string]bool{"Libpod/5.8.6 (linux)": true, "Docker/28.5.2 (linux)": false} {
		tags := []string{"docker.io/library/node:20", "docker.io/org/node:20", "localhost/agent-sandbox-layer:a", "quay.io/library/node:20", "<none>:<none>"}
		short := []string{"node:20", "org/node:20", "agent-sandbox-layer:a", "quay.io/library/node:20"}
		e := answers(t, server, map[string]func(string) any{
			"GET /images/json":      fixed([]object{{"Id": "i", "RepoTags": tags}}),
			"GET /images/node/json": fixed(object{"Id": "i", "RepoTags": tags[:4]}),
			"GET /containers/json":  fixed([]object{{"Id": "c", "Names": []string{"/c"}, "Image": "docker.io/library/node:20"}}),
			"GET /containers/c/json": fixed(object{"Id": "c", "Config": object{"Image": "localhost/node:20", "Hostname": "h",
				"Env": []string{"PATH=/bin", "container=podman", "HOME=/root", "HOSTNAME=h", "HOSTNAME_OF=h"}}}),
		})
		wantTags, wantImage, wantEnv := tags[:4], tags[0], []string{"PATH=/bin", "container=podman", "HOME=/root", "HOSTNAME=h", "HOSTNAME_OF=h"}
		if podman {
			wantTags, wantImage, wantEnv = short, "node:20", []string{"PATH=/bin", "HOSTNAME_OF=h"}
		}
		image, err := e.InspectImage(t.Context(), "node")
		if err != nil || !slices.Equal(image.Tags, wantTags) {
			t.Errorf("%s: InspectImage: tags %q, %v, want %q", server, image.Tags, err, wantTags)
		}
		images, err := e.ListImages(t.Context())
		if err != nil || len(images) != 1 || !slices.Equal(images[0].Tags, wantTags) {
			t.Errorf("%s: ListImages: %+v, %v, want tags %q", server, images, err, wantTags)
		}
		containers, err := e.ListContainers(t.Context(), engine.Filter{})
		if err != nil || len(containers) != 1 || containers[0].Image != wantImage {
			t.Errorf("%s: ListContainers: %+v, %v, want image %q", server, containers, err, wantImage)
		}
		c, err := e.InspectContainer(t.Context(), "c")
		if err != nil || podman && c.Image != "node:20" || !slices.Equal(c.Env, wantEnv) {
			t.Errorf("%s: InspectContainer: image %q, environment %q, %v, want %q", server, c.Image, c.Env, err, wantEnv)
		}
	}
}

// Podman answers 500 with words of its own where Docker has a status.
func TestErrorsOfPodmanHaveClasses(t *testing.T) {
	for text, class := range map[string]error{
		"no container with ID 0 found in database: no such container":                              engine.ErrNotFound,
		"can only create exec sessions on running containers: container state improper":            engine.ErrConflict,
		`the container name "c" is already in use by 0: that name is already in use`:               engine.ErrConflict,
		"crun: open executable: no such file or directory":                                         nil,
		"cannot listen on the TCP port: listen tcp4 127.0.0.1:45575: bind: address already in use": nil,
	} {
		for server, podman := range map[string]bool{"Libpod/5.8.6 (linux)": true, "Docker/28.5.2 (linux)": false} {
			e := answers(t, server, map[string]func(string) any{"POST /containers/c/start": fixed(failure{500, text})})
			err := e.StartContainer(t.Context(), "c")
			for _, of := range []error{engine.ErrNotFound, engine.ErrConflict} {
				if got, want := errors.Is(err, of), podman && of == class; got != want {
					t.Errorf("%s: %q: is %v: %t, want %t", server, text, of, got, want)
				}
			}
		}
	}
}

// Podman fills an empty volume from the image unless it is mounted in the older way.
func TestVolumesAreNotFilledFromTheImage(t *testing.T) {
	for server, podman := range map[string]bool{"Libpod/5.8.6 (linux)": true, "Docker/28.5.2 (linux)": false} {
		var sent struct {
			HostConfig struct {
				Binds  []string
				Mounts []object
			}
		}
		e := answers(t, server, map[string]func(string) any{"POST /containers/create": func(body string) any {
			if err := json.Unmarshal([]byte(body), &sent); err != nil {
				t.Error(err)
			}
			return object{"Id": "c"}
		}})
		_, err := e.CreateContainer(t.Context(), engine.ContainerSpec{Image: "node:20", Mounts: []engine.Mount{
			{Type: "volume", Source: "v", Target: "/v", NoCopy: true, VolumeLabels: map[string]string{"k": "v"}},
			{Type: "volume", Source: "r", Target: "/r", NoCopy: true, ReadOnly: true},
			{Type: "volume", Source: "filled", Target: "/f"},
			{Type: "bind", Source: "/b", Target: "/b"},
		}})
		var binds []string
		mounts := 4
		if podman {
			binds, mounts = []string{"v:/v:nocopy", "r:/r:nocopy,ro"}, 2
		}
		if err != nil || !slices.Equal(sent.HostConfig.Binds, binds) || len(sent.HostConfig.Mounts) != mounts {
			t.Errorf("%s: CreateContainer sent %+v, %v; want the binds %q and %d mounts", server, sent, err, binds, mounts)
		}
	}
}

// An import gets the settings of an image that have no line break.
func TestImportIsToldTheSettings(t *testing.T) {
	var of dockerimage.InspectResponse
	err := json.Unmarshal([]byte(`{"Config": {"Env": ["A=$b", "LINES=1\n2"], "User": "7", "WorkingDir": "/w", "Cmd": ["c", "d"], "Entrypoint": ["e"],
		"ExposedPorts": {"80/tcp": {}, "53/udp": {}}, "Volumes": {"/v w": {}, "/u": {}}}}`), &of)
	if err != nil {
		t.Fatal(err)
	}
	got, lost := engine.Instructions(of, map[string]string{"k": "v", "text": "a\rb"})
	want := []string{`LABEL "k"="v"`, `ENV "A"="\$b"`, `USER "7"`, `WORKDIR "/w"`, `ENTRYPOINT ["e"]`, `CMD ["c","d"]`, "EXPOSE 53/udp", "EXPOSE 80/tcp", `VOLUME ["/u","/v w"]`}
	if !slices.Equal(got, want) {
		t.Errorf("instructions = %q, want %q", got, want)
	}
	if want := []string{`LABEL "text"`, `ENV "LINES"`}; !slices.Equal(lost, want) {
		t.Errorf("lost = %q, want %q", lost, want)
	}
}

// An engine without root can be one that limits all but CPUs. One that does not say is taken to.
func TestLimitsOfCPUsTakeTheirController(t *testing.T) {
	for _, tt := range []struct {
		info     object
		enforced bool
	}{{object{"CpuCfsQuota": false}, false}, {object{"CpuCfsQuota": true}, true}, {object{}, true}} {
		e := answers(t, "", map[string]func(string) any{"GET /info": fixed(tt.info), "GET /version": fixed(object{})})
		if err := e.CheckLimits(t.Context(), 0); err != nil {
			t.Errorf("%v: CheckLimits without CPUs = %v", tt.info, err)
		}
		if err := e.CheckLimits(t.Context(), 1); tt.enforced && err != nil || !tt.enforced && !errors.Is(err, engine.ErrUnsupported) {
			t.Errorf("%v: CheckLimits of 1 CPU = %v", tt.info, err)
		}
	}
}

func TestLimitsTakeCgroups(t *testing.T) {
	for driver, enforced := range map[string]bool{"none": false, "cgroupfs": true, "systemd": true, "": true} {
		calls := 0
		e := answers(t, "", map[string]func(string) any{
			"GET /info":    func(string) any { calls++; return object{"CgroupDriver": driver} },
			"GET /version": fixed(object{"Arch": "amd64"}),
		})
		for range 2 {
			if err := e.CheckLimits(t.Context(), 0); enforced && err != nil || !enforced && !errors.Is(err, engine.ErrUnsupported) {
				t.Errorf("driver %q: CheckLimits = %v", driver, err)
			}
		}
		if calls != 1 {
			t.Errorf("driver %q: %d calls of /info, want 1", driver, calls)
		}
	}
}

// An engine that takes several filters as any of them, as Podman 4 does with volumes, finds no
// more than one that takes them as all of them.
func TestListsHaveAllOfTheLabels(t *testing.T) {
	all := []object{
		{"Name": "one", "Id": "1", "Names": []string{"/one"}, "Labels": object{"a": "1", "b": "2"}},
		{"Name": "two", "Id": "2", "Names": []string{"/two"}, "Labels": object{"a": "1"}},
		{"Name": "three", "Id": "3", "Names": []string{"/three"}, "Labels": object{"a": "1", "b": "3"}},
		{"Name": "four", "Id": "4", "Names": []string{"/four"}},
	}
	e := answers(t, "", map[string]func(string) any{
		"GET /volumes":         fixed(object{"Volumes": all}),
		"GET /containers/json": fixed(all),
		"GET /images/json":     fixed(all),
	})
	for _, tt := range []struct {
		labels []string
		want   int
	}{{nil, 4}, {[]string{"a"}, 3}, {[]string{"a", "b"}, 2}, {[]string{"a=1", "b=2"}, 1}, {[]string{"b="}, 0}, {[]string{"c"}, 0}} {
		volumes, err := e.ListVolumes(t.Context(), tt.labels...)
		if err != nil || len(volumes) != tt.want {
			t.Errorf("volumes with %q: %v, %v; want %d", tt.labels, volumes, err, tt.want)
		}
		containers, err := e.ListContainers(t.Context(), engine.Filter{Labels: tt.labels})
		if err != nil || len(containers) != tt.want {
			t.Errorf("containers with %q: %v, %v; want %d", tt.labels, containers, err, tt.want)
		}
		images, err := e.ListImages(t.Context(), tt.labels...)
		if err != nil || len(images) != tt.want {
			t.Errorf("images with %q: %v, %v; want %d", tt.labels, images, err, tt.want)
		}
	}
}

func TestPodmanBefore5IsRefused(t *testing.T) {
	for _, tt := range []struct {
		server, version string
		refused         bool
	}{{"Libpod/4.3.1 (linux)", "4.3.1", true}, {"Libpod/5.8.6 (linux)", "5.8.6", false}, {"Docker/4.0 (linux)", "4.0", false}} {
		e := answers(t, tt.server, map[string]func(string) any{"GET /info": fixed(object{}), "GET /version": fixed(object{"Version": tt.version})})
		i, err := e.Info(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := i.CheckVersion(); (err != nil) != tt.refused || err != nil && !errors.Is(err, engine.ErrUnsupported) {
			t.Errorf("%s: CheckVersion = %v", tt.server, err)
		}
	}
}

// Every storage driver that is an overlay and reports a container's own layer does so alike. Those
// outside of the kernel keep what is written for a while, and Podman's may be one of these.
func TestLayersOfStorageDrivers(t *testing.T) {
	for driver, want := range map[string][2]string{
		"overlay2": {"/u", ""}, "fuse-overlayfs": {"/u", "/m"}, "overlay": {"/u", "/m"}, "btrfs": {}, "": {},
	} {
		e := answers(t, "", map[string]func(string) any{"GET /containers/c/json": fixed(object{"Id": "c", "GraphDriver": object{
			"Name": driver, "Data": object{"UpperDir": "/u", "MergedDir": "/m"}}})})
		if c, err := e.InspectContainer(t.Context(), "c"); err != nil || [2]string{c.Upper, c.Merged} != want {
			t.Errorf("%q: layer in %q, merged in %q, %v, want %q", driver, c.Upper, c.Merged, err, want)
		}
	}
}

func TestStorageDriverIsCached(t *testing.T) {
	calls := 0
	e := answers(t, "", map[string]func(string) any{
		"GET /info":    func(string) any { calls++; return object{"Driver": "overlayfs"} },
		"GET /version": fixed(object{"Arch": "amd64"}),
	})
	for range 2 {
		if driver, err := e.StorageDriver(t.Context()); err != nil || driver != "overlayfs" {
			t.Errorf("StorageDriver = %q, %v", driver, err)
		}
	}
	if calls != 1 {
		t.Errorf("%d calls of /info, want 1", calls)
	}
}

// What our own programs may do beyond the rest is denied to those that need it not.
func TestTrustedProfilesDifferByWhatTheyAllow(t *testing.T) {
	e := answers(t, "", map[string]func(string) any{
		"GET /info":    fixed(object{"SecurityOptions": []string{"name=seccomp,profile=builtin"}}),
		"GET /version": fixed(object{"Arch": "amd64"}),
	})
	for _, unmounts := range []bool{false, true} {
		for _, sockets := range []engine.Sockets{engine.NoSockets, engine.LocalSockets, engine.AllSockets} {
			profile, err := e.TrustedSeccomp(t.Context(), engine.Trusted{Sockets: sockets, Unmounts: unmounts})
			if err != nil || strings.Contains(profile, `"umount2"`) == unmounts || strings.Contains(profile, `"socketpair"`) == (sockets == engine.AllSockets) || !strings.Contains(profile, `"pivot_root"`) {
				t.Errorf("unmounts %t, sockets %d: %v, %s", unmounts, sockets, err, profile)
			}
		}
	}
}

func TestImagesAreListedWhileOneIsRemoved(t *testing.T) {
	for _, tt := range []struct{ status, failures, calls int }{{404, 2, 3}, {404, 100, 5}, {500, 2, 1}} {
		calls := 0
		e := answers(t, "", map[string]func(string) any{"GET /images/json": func(string) any {
			if calls++; calls <= tt.failures {
				return tt.status
			}
			return []object{{"Id": "1"}}
		}})
		list, err := e.ListImages(t.Context())
		if calls != tt.calls || (err == nil) != (tt.calls > tt.failures) || err == nil && len(list) != 1 {
			t.Errorf("%d, %d times: %v, %v after %d calls, want %d", tt.status, tt.failures, list, err, calls, tt.calls)
		}
	}
}
