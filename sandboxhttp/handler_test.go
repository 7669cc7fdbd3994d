package sandboxhttp_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/internal/enginetest"
	"github.com/seed-1a2d6d8f/sandbox/sandboxhttp"
	"github.com/seed-1a2d6d8f/sandbox/sandboxtest"
	"github.com/seed-1a2d6d8f/sandbox/test/harness"
)

func TestMain(m *testing.M) { harness.Main(m) }

// A platform sees, stops, starts and deletes sandboxes over HTTP.
func TestHandlerServesTheLifeOfASandbox(t *testing.T) {
	enginetest.Story(t)
	t.Parallel()
	c, err := sandbox.NewClient()
	if err != nil {
		t.Fatal(err)
	}
	s := httptest.NewServer(http.StripPrefix("/v1", sandboxhttp.Handler(c, sandboxhttp.WithoutAuthorization())))
	t.Cleanup(func() { s.Close(); c.Close() })
	sb := sandboxtest.New(t, sandbox.WithPersistent(true), sandbox.WithTimeout(time.Hour), sandbox.WithEnv(map[string]string{"A": "s3cret"}), sandbox.WithTags(map[string]string{"for": "http", "k=v": "="}))
	call := func(method, path string, code int, v any) {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), method, s.URL+"/v1"+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		if resp.StatusCode != code || resp.Header.Get("Content-Type") != "application/json" {
			t.Errorf("%s %s: %s (%s), want %d in JSON", method, path, resp.Status, resp.Header.Get("Content-Type"), code)
		}
		if err := json.NewDecoder(resp.Body).Decode(v); err != nil {
			t.Errorf("%s %s: %v", method, path, err)
		}
	}
	type sandboxJSON struct {
		ID, Name, Status, Image, Location, Reason, LogsEndpoint string
		CreatedAt, StartedAt, ExpiresAt                         time.Time
		Tags                                                    map[string]string
		Usage                                                   *struct{ MemoryLimit int64 }
		Workspace                                               struct{ Name string }
		Settings                                                map[string]any
	}

	var one sandboxJSON
	call("GET", "/sandboxes/"+sb.Name(), 200, &one)
	if one.ID != sb.ID() || one.Status != "running" || one.Location != "local" || one.Usage == nil || one.Usage.MemoryLimit != 2048<<20 ||
		one.ExpiresAt.Sub(one.StartedAt) != time.Hour || one.LogsEndpoint != "/v1/sandboxes/"+sb.ID()+"/logs" || one.Workspace.Name != "agent-sandbox-"+sb.ID() {
		t.Errorf("GET: %+v", one)
	}
	if got, want := fmt.Sprint(one.Settings), "map[idleTimeoutMs:0 memoryBytes:2.147483648e+09 ociRuntime:runc persistent:true pidsLimit:4096 stopTimeoutMs:2000 timeoutMs:3.6e+06 vcpus:1 workdir:/workspace]"; got != want {
		t.Errorf("GET: the settings are %s, want %s", got, want)
	}
	var all []sandboxJSON
	call("GET", "/sandboxes?status=running&tag=for=http&prefix="+sb.Name(), 200, &all)
	if len(all) != 1 || all[0].Name != sb.Name() || all[0].Tags["k=v"] != "=" {
		t.Errorf("list: %+v", all)
	}
	call("GET", "/sandboxes?status=stopped&prefix="+sb.Name(), 200, &all)
	if len(all) != 0 {
		t.Errorf("list of stopped ones: %+v", all)
	}
	type volumeJSON struct {
		Name, Role, Size string
		Sandboxes        []string
		InUse, Orphaned  bool
	}
	volumeOf := func(path string) (v volumeJSON) {
		t.Helper()
		var all []volumeJSON
		call("GET", path, 200, &all)
		if i := slices.IndexFunc(all, func(v volumeJSON) bool { return v.Name == one.Workspace.Name }); i >= 0 {
			v = all[i]
		}
		return v
	}
	if v := volumeOf("/volumes"); v.Role != "workspace" || !slices.Equal(v.Sandboxes, []string{sb.Name()}) || !v.InUse || v.Orphaned || v.Size == "" {
		t.Errorf("the workspace in /volumes: %+v", v)
	}
	if v := volumeOf("/volumes/orphans"); v.Name != "" {
		t.Errorf("the workspace in /volumes/orphans: %+v", v)
	}
	var state struct{ Status string }
	call("POST", "/sandboxes/"+sb.Name()+"/stop", 200, &state)
	if state.Status != "stopped" {
		t.Errorf("stop: %+v", state)
	}
	var stopped sandboxJSON
	call("GET", "/sandboxes/"+sb.ID(), 200, &stopped)
	if stopped.Status != "stopped" || stopped.Reason != "stopped" || stopped.Usage != nil {
		t.Errorf("GET of a stopped one: %+v", stopped)
	}
	call("POST", "/sandboxes/"+sb.Name()+"/start", 200, &state)
	if state.Status != "running" {
		t.Errorf("start: %+v", state)
	}
	var deleted struct {
		Volumes []struct{ Name, Status string }
	}
	call("DELETE", "/sandboxes/"+sb.Name()+"?preserveVolume=false", 200, &deleted)
	if len(deleted.Volumes) != 1 || deleted.Volumes[0].Status != "deleted" {
		t.Errorf("delete: %+v", deleted)
	}
	for path, want := range map[string]struct {
		code int
		text string
	}{
		"GET /sandboxes/" + sb.Name():                                  {404, "Sandbox not found"},
		"POST /sandboxes/" + sb.Name() + "/start":                      {404, "Sandbox not found"},
		"POST /sandboxes/" + sb.Name() + "/stop":                       {404, "Sandbox not found"},
		"DELETE /sandboxes/" + sb.Name():                               {404, "Sandbox not found"},
		"DELETE /sandboxes/x?volumes=delete":                           {400, "volumes"},
		"DELETE /sandboxes/x?preserveVolume=0":                         {400, "neither true nor false"},
		"DELETE /sandboxes/x?preserveVolumes=true":                     {400, "use preserveVolume"},
		"DELETE /sandboxes/x?preserveVolume=true&preserveVolume=false": {400, "twice"},
		"GET /sandboxes?prefix=a&prefix=b":                             {400, "prefix is given twice"},
		"GET /sandboxes/x/logs?tail=1&tail=2":                          {400, "tail is given twice"},
		"GET /sandboxes/x/files?path=a&path=b":                         {400, "path is given twice"},
		"GET /network/check?policy=deny-all&host=a&port=1&port=2":      {400, "port is given twice"},
		"GET /events?denied=true&denied=true":                          {400, "denied is given twice"},
		"GET /nothing":                                                 {404, "Not Found"},
		"PUT /volumes":                                                 {405, "Method Not Allowed"},
		"GET /volumes/":                                                {404, "Not Found"},
		"GET /sandboxes/Bad":                                           {404, "Sandbox not found"},
		"GET /sandboxes?status=runing":                                 {400, "runing"},
		"GET /sandboxes?tag=x":                                         {400, "key=value"},
		"GET /sandboxes?state=running":                                 {400, "status"},
		"GET /sandboxes/" + sb.Name() + "/logs?x=":                     {400, "tail, follow, since, command"},
	} {
		method, path, _ := strings.Cut(path, " ")
		var f failure
		if call(method, path, want.code, &f); !strings.Contains(f.Error.Message, want.text) {
			t.Errorf("%s %s: %q, want %q in it", method, path, f.Error.Message, want.text)
		}
	}
	call("GET", "/sandboxes?tag=a=b&tag=c=d&status=running&status=running", 200, new([]any))
	var health struct {
		Healthy bool
		Version string
	}
	if call("GET", "/health", 200, &health); !health.Healthy || health.Version == "" {
		t.Errorf("health: %+v", health)
	}
}

// Without an engine every answer says so.
func TestHandlerWithoutAnEngine(t *testing.T) {
	t.Parallel()
	c, err := sandbox.NewClient(sandbox.WithHost("unix:///nowhere.sock"))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for _, path := range []string{"/health", "/sandboxes", "/sandboxes/x", "/sandboxes/x/logs"} {
		w := httptest.NewRecorder()
		sandboxhttp.Handler(c).ServeHTTP(w, httptest.NewRequest("GET", "http://localhost"+path, nil))
		if w.Code != http.StatusServiceUnavailable || !strings.Contains(w.Body.String(), "nowhere.sock") {
			t.Errorf("GET %s: %d %s, want 503 naming the socket", path, w.Code, w.Body)
		}
		if path == "/health" && (!strings.Contains(w.Body.String(), `"healthy":false`) || !strings.Contains(w.Body.String(), "DOCKER_HOST")) {
			t.Errorf("GET %s: %s, want guidance that names DOCKER_HOST", path, w.Body)
		}
	}
}
