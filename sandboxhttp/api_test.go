package sandboxhttp_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
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
)

// An api is a handler below the prefix /v1 of a server.
type api struct {
	t      *testing.T
	url    string
	client *sandbox.Client
}

func newAPI(t *testing.T, opts ...sandboxhttp.Option) api {
	t.Helper()
	c, err := sandbox.NewClient()
	if err != nil {
		t.Fatal(err)
	}
	s := httptest.NewServer(http.StripPrefix("/v1", sandboxhttp.Handler(c, append(opts, sandboxhttp.WithoutAuthorization())...)))
	t.Cleanup(func() { s.Close(); c.Close() })
	return api{t, s.URL + "/v1", c}
}

// send sends a request. The caller closes the body of the response.
func (a api) send(method, path string, body io.Reader, header ...string) *http.Response {
	a.t.Helper()
	req, err := http.NewRequestWithContext(a.t.Context(), method, a.url+path, body)
	if err != nil {
		a.t.Fatal(err)
	}
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		a.t.Fatal(err)
	}
	return resp
}

// call sends JSON, and checks it and the answer by the document. A v that is not nil gets the answer.
func (a api) call(method, path, body string, status int, v any) *http.Response {
	a.t.Helper()
	resp := a.send(method, path, strings.NewReader(body), "Content-Type", "application/json")
	defer resp.Body.Close()
	got, err := io.ReadAll(resp.Body)
	if err != nil {
		a.t.Fatalf("%s %s: %v", method, path, err)
	}
	if resp.StatusCode != status {
		a.t.Errorf("%s %s %s: %s %s, want %d", method, path, body, resp.Status, got, status)
	}
	if resp.StatusCode < 300 {
		openAPI(a.t).accepts(a.t, method, path, body)
	}
	openAPI(a.t).check(a.t, method, path, resp.StatusCode, resp.Header.Get("Content-Type"), got)
	if v != nil {
		if err := json.Unmarshal(got, v); err != nil {
			a.t.Fatalf("%s %s: %v in %s", method, path, err, got)
		}
	}
	return resp
}

// events are those of a command.
func (a api) exec(name, body string, status int) []execEvent {
	a.t.Helper()
	resp := a.send("POST", "/sandboxes/"+name+"/exec", strings.NewReader(body), "Content-Type", "application/json")
	defer resp.Body.Close()
	got, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != status {
		a.t.Fatalf("exec %s: %s %s, %v, want %d", body, resp.Status, got, err, status)
	}
	if status < 300 {
		openAPI(a.t).accepts(a.t, "POST", "/sandboxes/"+name+"/exec", body)
	}
	openAPI(a.t).check(a.t, "POST", "/sandboxes/"+name+"/exec", resp.StatusCode, resp.Header.Get("Content-Type"), got)
	var all []execEvent
	for d := json.NewDecoder(bytes.NewReader(got)); ; {
		var e execEvent
		if err := d.Decode(&e); err == io.EOF {
			return all
		} else if err != nil {
			a.t.Fatalf("exec %s: %v in %s", body, err, got)
		}
		all = append(all, e)
	}
}

type execEvent struct {
	Event, ID, Text  string
	Base64           []byte
	ExitCode, Signal int
	TimedOut         bool
	OutOfMemory      bool
	Error            struct{ Code, Message string }
}

// outputOf joins the output of a stream.
func outputOf(events []execEvent, stream string) string {
	var b strings.Builder
	for _, e := range events {
		if e.Event == stream {
			b.WriteString(e.Text)
			b.Write(e.Base64)
		}
	}
	return b.String()
}

// remove deletes what a test created over HTTP.
func (a api) remove(name string) {
	a.t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(a.t.Context()), 5*time.Minute)
		defer cancel()
		if report, err := a.client.Delete(ctx, name, sandbox.DeleteOptions{Volumes: true, Snapshots: true}); err != nil && !strings.Contains(err.Error(), sandbox.ErrNotFound.Error()) {
			a.t.Errorf("remove %s: %v\n%s", name, err, report)
		}
	})
}

// A client creates, changes, forks, stores and rolls back sandboxes without a line of Go.
func TestSandboxesOverHTTP(t *testing.T) {
	enginetest.Story(t)
	t.Parallel()
	a := newAPI(t)
	var sb struct {
		ID, Name, Status, LogsEndpoint, Network string
		Tags                                    map[string]string
		Settings                                struct {
			Persistent bool
			TimeoutMS  int64
			Command    []string
		}
		Env []string
	}
	resp := a.call("POST", "/sandboxes", `{"stopTimeoutMs": 1000, "timeoutMs": 3600000, "network": "deny-all", "env": {"A": "s3cret"}, "tags": {"k": "v"}, "command": ["sh", "-c", "echo hello; exec sleep 1000"]}`, 201, &sb)
	a.remove(sb.ID)
	if sb.Status != "running" || sb.Settings.TimeoutMS != 3600000 || sb.Network != "deny-all" || !sb.Settings.Persistent || sb.Tags["k"] != "v" || !slices.Equal(sb.Env, []string{"A"}) {
		t.Errorf("created: %+v", sb)
	}
	if got := resp.Header.Get("Location"); got != "/v1/sandboxes/"+sb.ID || sb.LogsEndpoint != got+"/logs" {
		t.Errorf("Location is %q, logsEndpoint %q, want them below /v1", got, sb.LogsEndpoint)
	}
	at := "/sandboxes/" + sb.ID
	for _, name := range []string{sb.ID} {
		var f failure
		if a.call("POST", "/sandboxes", `{"name": "`+name+`"}`, 409, &f); f.Error.Code != "exists" {
			t.Errorf("created with the name of another: %+v", f)
		}
	}

	// One snapshot, a change, and back.
	a.exec(sb.ID, `{"command": ["sh", "-c", "echo one > f"]}`, 200)
	var snapshot struct{ ID, Name, SandboxID string }
	a.call("POST", at+"/snapshots", `{"name": "first"}`, 201, &snapshot)
	t.Cleanup(func() { a.client.DeleteSnapshot(context.WithoutCancel(t.Context()), snapshot.ID) })
	if snapshot.Name != "first" || snapshot.SandboxID != sb.ID {
		t.Errorf("snapshot: %+v", snapshot)
	}
	a.exec(sb.ID, `{"command": ["sh", "-c", "echo two > f"]}`, 200)
	var fork struct{ ID, Status string }
	a.call("POST", at+"/fork", `{"tags": {"is": "fork"}}`, 201, &fork)
	a.remove(fork.ID)
	a.call("POST", at+"/rollback", `{"snapshot": "`+snapshot.ID+`"}`, 200, nil)
	for name, want := range map[string]string{sb.ID: "one\n", fork.ID: "two\n"} {
		if got := outputOf(a.exec(name, `{"command": ["cat", "f"]}`, 200), "stdout"); got != want {
			t.Errorf("f in %s is %q, want %q", name, got, want)
		}
	}
	var forks []struct{ ID string }
	a.call("POST", at+"/fork", `{"count": 2}`, 201, &forks)
	for _, f := range forks {
		a.remove(f.ID)
	}
	if len(forks) != 2 {
		t.Errorf("forks: %+v", forks)
	}
	var listed []struct{ ID string }
	if a.call("GET", "/snapshots?sandbox="+sb.ID+"&name=first", "", 200, &listed); len(listed) != 1 || listed[0].ID != snapshot.ID {
		t.Errorf("snapshots: %+v", listed)
	}
	a.call("GET", "/snapshots/tree", "", 200, nil)
	a.call("GET", "/snapshots/"+snapshot.ID, "", 200, nil)

	// Settings. A command of a handle that is open sees the new environment.
	a.call("PATCH", at, `{"env": {"B": "2"}, "tags": {}, "withoutEnv": ["A"], "timeoutMs": 0}`, 200, &sb)
	if got := outputOf(a.exec(sb.ID, `{"command": ["sh", "-c", "echo $A$B"]}`, 200), "stdout"); got != "2\n" {
		t.Errorf("the environment after an update is %q", got)
	}
	if err := a.updateByAnother(sb.ID, sandbox.WithEnv(map[string]string{"B": "3"})); err != nil {
		t.Fatal(err)
	}
	if got := outputOf(a.exec(sb.ID, `{"command": ["sh", "-c", "echo $B"]}`, 200), "stdout"); got != "3\n" {
		t.Errorf("the environment after an update by another program is %q", got)
	}

	// Volumes: deleted sandboxes leave them, unless told otherwise.
	for i, f := range append(forks, struct{ ID string }{fork.ID}) {
		var report struct {
			Volumes []struct{ Name, Status string }
		}
		query := []string{"", "?preserveVolume=true", "?snapshots=false"}[i]
		a.call("DELETE", "/sandboxes/"+f.ID+query, "", 200, &report)
		if len(report.Volumes) != 1 || report.Volumes[0].Status != "preserved" {
			t.Fatalf("deleted with the query %q: %+v, want the volume preserved", query, report)
		}
	}
	var orphans []struct{ Name string }
	a.call("GET", "/volumes/orphans", "", 200, &orphans)
	first := "agent-sandbox-" + forks[0].ID
	if !slices.ContainsFunc(orphans, func(v struct{ Name string }) bool { return v.Name == first }) {
		t.Errorf("orphans are %+v, want %s among them", orphans, first)
	}
	var f failure
	if a.call("DELETE", "/volumes/agent-sandbox-"+sb.ID, "", 409, &f); f.Error.Code != "volume_in_use" || !strings.Contains(f.Error.Message, "Volume is in use by running sandbox") {
		t.Errorf("delete the volume of a running sandbox: %+v", f)
	}
	a.call("DELETE", "/volumes/"+first+"?force=true", "", 200, nil)
	a.call("DELETE", "/volumes/"+first, "", 404, &f)
	if f.Error.Code != "volume_not_found" {
		t.Errorf("delete it again: %+v", f)
	}
	var cleaned struct {
		Removed []string
		DryRun  bool
	}
	rest := fmt.Sprintf(`"names": ["agent-sandbox-%s", "agent-sandbox-%s"]`, forks[1].ID, fork.ID)
	if a.call("POST", "/volumes/cleanup", `{"dryRun": true, `+rest+`}`, 200, &cleaned); len(cleaned.Removed) != 2 || !cleaned.DryRun {
		t.Errorf("a dry run: %+v", cleaned)
	}
	if a.call("POST", "/volumes/cleanup", `{`+rest+`}`, 200, &cleaned); len(cleaned.Removed) != 2 || cleaned.DryRun {
		t.Errorf("cleaned up: %+v", cleaned)
	}
	a.call("DELETE", "/snapshots/"+snapshot.ID, "", 204, nil)
	for path, want := range map[string]string{"/snapshots/" + snapshot.ID: "snapshot_not_found", "/snapshots/NO": "snapshot_not_found", "/sandboxes/NO/egress": "not_found", "/sandboxes/NO/processes": "not_found", "/sandboxes/NO/files?path=x": "not_found", "/sandboxes/NO": "not_found"} {
		if a.call("GET", path, "", 404, &f); f.Error.Code != want {
			t.Errorf("GET %s: %+v, want %s", path, f, want)
		}
	}
	if a.call("POST", "/sandboxes/NO/stop", "", 400, &f); f.Error.Code != "invalid_argument" {
		t.Errorf("stop an impossible name: %+v", f)
	}
	a.call("POST", at+"/stop", "{}", 200, nil)
	a.call("GET", at+"/egress", "", 409, &f)
	if f.Error.Code != "not_running" {
		t.Errorf("egress of a stopped sandbox: %+v", f)
	}
	a.call("DELETE", at+"?preserveVolume=false&snapshots=true", "", 200, nil)
}

// updateByAnother changes a sandbox as another program does.
func (a api) updateByAnother(name string, opts ...sandbox.UpdateOption) error {
	c, err := sandbox.NewClient()
	if err != nil {
		return err
	}
	defer c.Close()
	sb, err := c.Get(a.t.Context(), name)
	if err != nil {
		return err
	}
	defer sb.Detach()
	return sb.Update(a.t.Context(), opts...)
}

// What the specification says of one sandbox, as it is.
func TestUnknownSandboxesAreNotFound(t *testing.T) {
	enginetest.Need(t)
	t.Parallel()
	a := newAPI(t)
	for _, r := range sandboxhttp.Routes() {
		if !strings.HasPrefix(r.Path, "/sandboxes/{name}") || r.Name == "openTerminal" {
			continue
		}
		body := map[string]string{"updateSandbox": `{"tags": {}}`, "exec": `{"command": ["true"]}`, "rollbackSandbox": `{"snapshot": "abcdefghij23"}`, "moveSandbox": `{"node": "node2"}`}[r.Name]
		path := strings.ReplaceAll(r.Path, "{name}", "no-such-sandbox")
		if strings.Contains(path, "/files") {
			path += "?path=x"
		}
		resp := a.send(r.Method, path, strings.NewReader(body), "Content-Type", "application/json")
		got, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil || resp.StatusCode != 404 || !strings.HasPrefix(string(got), `{"error":{"code":"not_found","message":"Sandbox not found"}`) {
			t.Errorf("%s: %s %s, %v", r.Name, resp.Status, got, err)
		}
	}
}

// The rest is of one sandbox, which does nothing.
func TestOneSandboxOverHTTP(t *testing.T) {
	enginetest.Need(t)
	t.Parallel()
	sb := sandboxtest.New(t)
	a := newAPI(t, sandboxhttp.WithMaxUpload(8<<20))
	silent := a.send("GET", "/sandboxes/"+sb.Name()+"/logs", nil)
	defer silent.Body.Close()
	t.Run("Exec", func(t *testing.T) { a := a; a.t = t; a.testExec(sb) })
	t.Run("Disconnect", func(t *testing.T) { a := a; a.t = t; a.testDisconnect(sb) })
	t.Run("Files", func(t *testing.T) { a := a; a.t = t; a.testFiles(sb) })
	t.Run("FileChanges", func(t *testing.T) { a := a; a.t = t; a.testFileChanges(sb) })
	t.Run("Archive", func(t *testing.T) { a := a; a.t = t; a.testArchive(sb) })
	t.Run("Wait", func(t *testing.T) { a := a; a.t = t; a.testWait(sb) })
	t.Run("Control", func(t *testing.T) { a := a; a.t = t; a.testControl(sb) })
	t.Run("Terminal", func(t *testing.T) { a := a; a.t = t; a.testTerminal(sb) })
	t.Run("Heartbeat", func(t *testing.T) {
		// A log that is silent shows that it lives, or somebody on the way would hang up.
		beat := make([]byte, 3)
		if _, err := io.ReadFull(silent.Body, beat); err != nil || string(beat) != ":\n\n" {
			t.Errorf("the first of a silent log is %q, %v, want a comment", beat, err)
		}
	})
	t.Run("Detached", func(t *testing.T) { a := a; a.t = t; a.testDetached(sb) }) // whose output is in the log
}
