package sandboxhttp_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/sandboxhttp"
)

// nowhere is a client whose engine does not exist: what passes the checks is a 503.
func nowhere(t *testing.T) *sandbox.Client {
	t.Helper()
	c, err := sandbox.NewClient(sandbox.WithHost("unix:///nowhere.sock"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// ask sends a request to a handler in this process.
func ask(t *testing.T, h http.Handler, method, path, body string, header ...string) (status int, f failure) {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), method, "http://localhost"+path, strings.NewReader(body))
	if body != "" {
		r.Header.Set("Content-Type", "application/json")
	}
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	openAPI(t).check(t, method, path, w.Code, w.Header().Get("Content-Type"), w.Body.Bytes())
	if w.Code != http.StatusOK && (path != "/health" || w.Code != http.StatusServiceUnavailable) {
		if err := json.Unmarshal(w.Body.Bytes(), &f); err != nil || f.Error.Code == "" || f.Error.Message == "" {
			t.Errorf("%s %s: %d %q (%v), want an error with code and message", method, path, w.Code, w.Body, err)
		}
	}
	return w.Code, f
}

// example is a path of a route.
func example(path string) string {
	return strings.NewReplacer("{name}", "x", "{id}", "abcdefghij23").Replace(path)
}

// reads are the routes that need no authorisation unless there is one.
var reads = map[string]bool{
	"openapi": true, "health": true, "listSandboxes": true, "inspectSandbox": true, "listProcesses": true, "listEgress": true,
	"readLogs": true, "listSnapshots": true, "snapshotTree": true, "inspectSnapshot": true, "listVolumes": true, "listOrphans": true,
	"healthz": true, "listUsage": true, "listNodes": true, "getDefaults": true, "watchSandboxes": true, "checkNetwork": true, "checkSandboxNetwork": true,
}

func TestChangesNeedAuthorisation(t *testing.T) {
	t.Parallel()
	h := sandboxhttp.Handler(nowhere(t))
	for _, r := range sandboxhttp.Routes() {
		status, f := ask(t, h, r.Method, example(r.Path), "")
		switch {
		case r.Name == "checkNetwork" && status == http.StatusBadRequest: // there is no policy to check
		case reads[r.Name] && status != http.StatusOK && status != http.StatusServiceUnavailable:
			t.Errorf("%s: %d %+v, want it permitted", r.Name, status, f)
		case !reads[r.Name] && (status != http.StatusForbidden || f.Error.Code != "forbidden" || !strings.Contains(f.Error.Message, "WithAuthorize")):
			t.Errorf("%s: %d %+v, want 403 with a reason", r.Name, status, f)
		}
	}
}

func TestAuthorizeIsAskedForEveryRequest(t *testing.T) {
	t.Parallel()
	var asked sandboxhttp.Action
	h := sandboxhttp.Handler(nowhere(t), sandboxhttp.WithAuthorize(func(r *http.Request, a sandboxhttp.Action) error {
		asked = a
		return errors.New("not today")
	}))
	for _, r := range sandboxhttp.Routes() {
		status, f := ask(t, h, r.Method, example(r.Path), `{"unknown": 1`)
		want := sandboxhttp.Action{Name: r.Name, Changes: !reads[r.Name]}
		switch {
		case strings.HasPrefix(r.Path, "/volumes/{"):
			want.Volume = "x"
		case strings.Contains(r.Path, "{name}"):
			want.Sandbox = "x"
		case strings.Contains(r.Path, "{id}"):
			want.Snapshot = "abcdefghij23"
		}
		if status != http.StatusForbidden || f.Error.Message != "not today" || asked != want {
			t.Errorf("%s: %d %+v, asked for %+v; want 403, not today, and %+v", r.Name, status, f, asked, want)
		}
	}
	logs := sandboxhttp.LogsHandler(nowhere(t), sandboxhttp.WithAuthorize(func(r *http.Request, a sandboxhttp.Action) error {
		return fmt.Errorf("no %s of %s", a.Name, a.Sandbox)
	}))
	if status, f := ask(t, logs, "GET", "/sandboxes/x/logs", ""); status != http.StatusForbidden || f.Error.Message != "no readLogs of x" {
		t.Errorf("LogsHandler: %d %+v", status, f)
	}
}

type teapot struct{}

func (teapot) Error() string   { return "short and stout" }
func (teapot) StatusCode() int { return http.StatusTeapot }

func TestAuthorizeChoosesTheStatus(t *testing.T) {
	t.Parallel()
	permit := sandboxhttp.WithAuthorize(func(*http.Request, sandboxhttp.Action) error { return nil })
	deny := sandboxhttp.WithAuthorize(func(*http.Request, sandboxhttp.Action) error { return teapot{} })
	for name, opts := range map[string][]sandboxhttp.Option{"one": {deny}, "the second": {permit, deny}, "the first": {deny, permit}, "one with WithoutAuthorization": {deny, sandboxhttp.WithoutAuthorization()}} {
		if status, f := ask(t, sandboxhttp.Handler(nowhere(t), opts...), "POST", "/sandboxes/x/stop", ""); status != http.StatusTeapot || f.Error.Message != "short and stout" {
			t.Errorf("%s denies: %d %+v", name, status, f)
		}
	}
	if status, f := ask(t, sandboxhttp.Handler(nowhere(t), permit), "POST", "/sandboxes/x/stop", ""); status != http.StatusServiceUnavailable {
		t.Errorf("permitted: %d %+v", status, f)
	}
}

func TestOnlyTheTokenOpens(t *testing.T) {
	t.Parallel()
	c := nowhere(t)
	h := sandboxhttp.Handler(c, sandboxhttp.WithToken("s3cret"))
	for _, test := range []struct {
		method, path string
		header       []string
		status       int
	}{
		{"GET", "/sandboxes", nil, 401},
		{"GET", "/openapi.json", nil, 401},
		{"GET", "/sandboxes", []string{"Authorization", "Bearer s3cret"}, 503},
		{"GET", "/sandboxes", []string{"Authorization", "bearer s3cret"}, 503},
		{"GET", "/sandboxes", []string{"Authorization", "Bearer s3cre"}, 401},
		{"GET", "/sandboxes", []string{"Authorization", "Bearer s3cret2"}, 401},
		{"GET", "/sandboxes", []string{"Authorization", "Bearer "}, 401},
		{"GET", "/sandboxes", []string{"Authorization", "s3cret"}, 401},
		{"GET", "/sandboxes", []string{"Authorization", "Basic s3cret"}, 401},
		{"GET", "/sandboxes?access_token=s3cret", nil, 503},
		{"GET", "/sandboxes?access_token=wrong", nil, 401},
		{"GET", "/sandboxes?access_token=wrong", []string{"Authorization", "Bearer s3cret"}, 503},
		{"POST", "/sandboxes/x/stop?access_token=s3cret", nil, 401},
		{"POST", "/sandboxes/x/stop?access_token=s3cret", []string{"Authorization", "Bearer s3cret"}, 400},
		{"DELETE", "/sandboxes/x", nil, 401},
		{"DELETE", "/sandboxes/x", []string{"Authorization", "Bearer s3cret"}, 503},
		{"GET", "/sandboxes", []string{"Cookie", "agent-sandbox-preview=s3cret"}, 401},
	} {
		if status, f := ask(t, h, test.method, test.path, "", test.header...); status != test.status {
			t.Errorf("%s %s with %q: %d %+v, want %d", test.method, test.path, test.header, status, f, test.status)
		}
	}
	none := sandboxhttp.Handler(c, sandboxhttp.WithToken(""))
	for _, header := range [][]string{nil, {"Authorization", "Bearer "}, {"Authorization", "Bearer"}} {
		if status, _ := ask(t, none, "GET", "/sandboxes?access_token=", "", header...); status != 401 {
			t.Errorf("an empty token with %q: %d, want 401", header, status)
		}
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest("GET", "http://localhost/health", nil))
	if got := w.Header().Get("WWW-Authenticate"); got != "Bearer" {
		t.Errorf("WWW-Authenticate is %q", got)
	}
}

// What no caller may ask for gets no further than this program.
func TestRequestsAreChecked(t *testing.T) {
	t.Parallel()
	c := nowhere(t)
	h := sandboxhttp.Handler(c, sandboxhttp.WithoutAuthorization())
	for _, test := range []struct {
		method, path, body string
		status             int
		code, text         string
	}{
		{"POST", "/sandboxes", `{"nmae": "x"}`, 400, "invalid_argument", "nmae"},
		{"POST", "/sandboxes", `{"name": 1}`, 400, "invalid_argument", "name"},
		{"POST", "/sandboxes", `{"name": 1}`, 400, "invalid_argument", `"name" takes a string, not number`},
		{"POST", "/sandboxes", `{"env": ["a"]}`, 400, "invalid_argument", `"env" takes an object, not array`},
		{"POST", "/sandboxes", `{"mounts": [{"target": 1}]}`, 400, "invalid_argument", `"mounts.target" takes a string`},
		{"POST", "/sandboxes", `[]`, 400, "invalid_argument", "it takes an object, not array"},
		{"POST", "/sandboxes", `{"ports": [99999]}`, 400, "invalid_argument", "ports: 99999"},
		{"POST", "/sandboxes", `{"vcpus": 0}`, 400, "invalid_argument", "vcpus: 0"},
		{"POST", "/sandboxes", `{"memoryBytes": 1}`, 400, "invalid_argument", "memoryBytes: 1"},
		{"POST", "/sandboxes", `{"stopTimeoutMs": 1}`, 400, "invalid_argument", "stopTimeoutMs: 1"},
		{"POST", "/sandboxes", `{"image": "x", "runtime": "node20"}`, 400, "invalid_argument", "image"},
		{"POST", "/sandboxes", `{"name": "x"} {}`, 400, "invalid_argument", "more than one"},
		{"POST", "/sandboxes", `{"name": "x"`, 400, "invalid_argument", "body"},
		{"POST", "/sandboxes", `{"name": "` + strings.Repeat("x", 1<<20) + `"}`, 413, "too_large", "1048576"},
		{"POST", "/sandboxes", `{"name": "UPPER"}`, 400, "invalid_argument", "UPPER"},
		{"POST", "/sandboxes", `{"network": "allow-everything"}`, 400, "invalid_argument", "network"},
		{"POST", "/sandboxes", `{"timeoutMs": 9223372036854775807}`, 400, "invalid_argument", "timeoutMs"},
		{"POST", "/sandboxes", `{"ignoreDetached": true}`, 400, "invalid_argument", "idleTimeoutMs"},
		{"POST", "/sandboxes", `{"ports": [1,2,3,4,5]}`, 400, "invalid_argument", "4"},
		{"POST", "/sandboxes", `{"mounts": [{"source": "/etc", "target": "/x", "mode": "ro"}]}`, 403, "forbidden", "WithHostFiles"},
		{"POST", "/sandboxes", `{"mounts": [{"source": "/etc", "volume": "v", "target": "/x"}]}`, 403, "forbidden", "WithHostFiles"},
		{"POST", "/sandboxes", `{"source": {"directory": "/etc"}}`, 403, "forbidden", "WithHostFiles"},
		{"POST", "/sandboxes", `{"source": {"git": {"url": "/srv/repo"}}}`, 403, "forbidden", "WithHostFiles"},
		{"POST", "/sandboxes", `{"source": {"git": {"url": "file:///srv/repo"}}}`, 403, "forbidden", "WithHostFiles"},
		{"POST", "/sandboxes", `{"source": {"git": {"url": "git@host:repo"}}}`, 403, "forbidden", "WithHostFiles"},
		{"POST", "/sandboxes", `{"source": {"git": {"url": "ssh://host/repo"}}}`, 403, "forbidden", "WithHostFiles"},
		{"POST", "/sandboxes", `{"source": {"tarball": {"url": "file:///etc/passwd"}}}`, 400, "invalid_argument", "file"},
		{"POST", "/sandboxes", `{"source": {"tarball": {"path": "/etc/passwd"}}}`, 400, "invalid_argument", "path"},
		{"POST", "/sandboxes", `{"source": {}}`, 400, "invalid_argument", "exactly one"},
		{"POST", "/sandboxes", `{"source": {"snapshot": "a", "tarball": {"url": "https://x.test/"}}}`, 400, "invalid_argument", "exactly one"},
		{"POST", "/sandboxes/x/fork", `{"mounts": [{"source": "/etc", "target": "/x"}]}`, 403, "forbidden", "WithHostFiles"},
		{"PATCH", "/sandboxes/x", `{"mounts": [{"source": "/etc", "target": "/x"}]}`, 403, "forbidden", "WithHostFiles"},
		{"PATCH", "/sandboxes/x", `{}`, 400, "invalid_argument", "no change"},
		{"PATCH", "/sandboxes/x", ``, 400, "invalid_argument", "no change"},
		{"PATCH", "/sandboxes/x", `{"name": "y"}`, 400, "invalid_argument", "name"},
		{"POST", "/sandboxes/x/start", `{"now": true}`, 400, "invalid_argument", "now"},
		{"POST", "/sandboxes/x/stop?now=1", ``, 400, "invalid_argument", "now"},
		{"POST", "/sandboxes/x/exec", `{"command": ["a"], "tty": true}`, 400, "invalid_argument", "tty"},
		{"POST", "/sandboxes/x/exec", `{"command": ["a"], "detached": true, "stdin": "x"}`, 400, "invalid_argument", "stdin"},
		{"POST", "/sandboxes/x/exec", `{"command": ["a"], "env": {"A=B": "c"}}`, 400, "invalid_argument", "A=B"},
		{"POST", "/sandboxes/x/exec", `{"command": ["a"], "env": {"A\nB": "c"}}`, 400, "invalid_argument", "line break"},
		{"POST", "/sandboxes/x/exec", `{"command": ["a"], "env": {"": "c"}}`, 400, "invalid_argument", "name"},
		{"POST", "/sandboxes", `{"env": {"A=B": "c"}}`, 400, "invalid_argument", "A=B"},
		{"POST", "/sandboxes", `{"env": {"A\r": "c"}}`, 400, "invalid_argument", "line break"},
		{"GET", "/sandboxes/x/terminal", ``, 426, "upgrade_required", "WebSocket"},
		{"GET", "/sandboxes/x?a;b", ``, 400, "invalid_argument", "semicolon"},
		{"GET", "/health?a", ``, 400, "invalid_argument", "there is none"},
		{"DELETE", "/volumes/x?force=1", ``, 400, "invalid_argument", "neither true nor false"},
		{"PUT", "/sandboxes/x/files?path=a&mode=4755", ``, 400, "invalid_argument", "mode"},
		{"POST", "/volumes/cleanup", `{"dryrun": "x"}`, 400, "invalid_argument", "dryRun"},
		{"GET", "/nothing", ``, 404, "not_found", "Not Found"},
		{"PUT", "/sandboxes", ``, 405, "method_not_allowed", "Method Not Allowed"},
	} {
		status, f := ask(t, h, test.method, test.path, test.body)
		if status != test.status || f.Error.Code != test.code || !strings.Contains(f.Error.Message, test.text) {
			t.Errorf("%s %s %.60s: %d %+v, want %d %s with %q", test.method, test.path, test.body, status, f, test.status, test.code, test.text)
		}
	}
	for _, r := range sandboxhttp.Routes() {
		path := strings.NewReplacer("{name}", "x", "{id}", "x").Replace(r.Path)
		if status, f := ask(t, h, r.Method, path+"?nope=1", ""); status != 400 || !strings.Contains(f.Error.Message, `unknown parameter "nope"`) {
			t.Errorf("%s %s?nope=1: %d %+v, want 400 and the parameter", r.Method, path, status, f)
		}
	}
	// A page can send this type without asking first.
	if status, f := ask(t, h, "POST", "/sandboxes", `{}`, "Content-Type", "text/plain"); status != 415 || f.Error.Code != "unsupported_media_type" {
		t.Errorf("text/plain: %d %+v, want 415", status, f)
	}
	own := sandboxhttp.Handler(c, sandboxhttp.WithoutAuthorization(), sandboxhttp.WithHostFiles())
	for _, body := range []string{`{"mounts": [{"source": "/etc", "target": "/x", "mode": "ro"}]}`, `{"source": {"directory": "/etc"}}`, `{"source": {"git": {"url": "git@host:repo"}}}`} {
		if status, f := ask(t, own, "POST", "/sandboxes", body); status != 503 {
			t.Errorf("WithHostFiles: %s: %d %+v, want it to get as far as the engine", body, status, f)
		}
	}
}
