package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/internal/enginetest"
	"github.com/seed-1a2d6d8f/sandbox/sandboxhttp"
	"github.com/seed-1a2d6d8f/sandbox/test/harness"
)

// agent is a client of "sandbox mcp".
type agent struct {
	t        *testing.T
	cmd      *exec.Cmd
	session  *mcp.ClientSession
	stderr   bytes.Buffer // complete after the end
	progress atomic.Int64 // bytes of progress messages
	made     []string     // IDs of sandboxes
}

func newAgent(t *testing.T, flags ...string) *agent {
	t.Helper()
	noteFlags(append([]string{"mcp"}, flags...))
	a := &agent{t: t, cmd: exec.Command(os.Args[0], append([]string{"mcp"}, flags...)...)}
	a.cmd.Env, a.cmd.Stderr = append(os.Environ(), asProgram+"=1"), &a.stderr
	client := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "v1"}, &mcp.ClientOptions{
		ProgressNotificationHandler: func(_ context.Context, r *mcp.ProgressNotificationClientRequest) {
			a.progress.Add(int64(len(r.Params.Message)))
		},
	})
	session, err := client.Connect(t.Context(), &mcp.CommandTransport{Command: a.cmd, TerminateDuration: time.Minute}, nil)
	if err != nil {
		t.Fatal(err)
	}
	a.session = session
	t.Cleanup(a.end)
	return a
}

// end disconnects. Then nothing is left of what was made.
func (a *agent) end() {
	if a.session == nil {
		return
	}
	if err := a.session.Close(); err != nil {
		a.t.Errorf("the server's end: %v", err)
	}
	a.session = nil
	for _, id := range a.made {
		if held := left(a.t, "agent-sandbox.id="+id); len(held) > 0 {
			a.t.Errorf("left after the end: %v", held)
		}
	}
}

type object = map[string]any

// call calls a tool. failed is the text of an error.
func (a *agent) call(tool string, args object) (result object, failed string) {
	a.t.Helper()
	params := &mcp.CallToolParams{Name: tool, Arguments: args}
	params.SetProgressToken(tool)
	got, err := a.session.CallTool(a.t.Context(), params)
	if err != nil {
		a.t.Fatalf("%s: %v", tool, err)
	}
	if got.IsError {
		return nil, got.Content[0].(*mcp.TextContent).Text
	}
	body, err := json.Marshal(got.StructuredContent)
	if err == nil {
		err = json.Unmarshal(body, &result)
	}
	if err != nil {
		a.t.Fatalf("%s: %v", tool, err)
	}
	return result, ""
}

func (a *agent) must(tool string, args object) object {
	a.t.Helper()
	result, failed := a.call(tool, args)
	if failed != "" {
		a.t.Fatalf("%s %v: %s", tool, args, failed)
	}
	return result
}

// sandbox makes a sandbox by a tool, and returns its name.
func (a *agent) sandbox(tool string, args object) string {
	a.t.Helper()
	name := a.must(tool, args)["name"].(string)
	info, err := harness.NewClient(a.t).Inspect(a.t.Context(), name)
	if err != nil {
		a.t.Fatal(err)
	}
	a.made = append(a.made, info.ID)
	return name
}

func (a *agent) exec(name, command string) (code int, output string) {
	a.t.Helper()
	got := a.must("exec", object{"sandbox": name, "command": command})
	return int(got["exitCode"].(float64)), got["output"].(string)
}

// An agent finds a defect in a small repository, mends it and tries it out.
func TestAgentMendsARepository(t *testing.T) {
	enginetest.Story(t)
	t.Parallel()
	dir := t.TempDir()
	for name, content := range map[string]string{
		"lib/add.js": "// add returns the sum.\nexports.add = (a, b) => a - b\n",
		"test.js":    "const {add} = require('./lib/add')\nif (add(2, 2) !== 4) { console.error('add(2, 2) is', add(2, 2)); process.exit(1) }\nconsole.log('passed')\n",
	} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	mount := dir + ":/src"
	a := newAgent(t, "--mount", mount)
	name := a.sandbox("create", object{"mounts": []string{mount}, "env": object{"GREETING": "hello"}})
	if code, out := a.exec(name, "cd /src && node test.js"); code != 1 || out != "add(2, 2) is 0\n" {
		t.Fatalf("the test before: %d, %q", code, out)
	}
	found := a.must("search", object{"sandbox": name, "path": "/src", "pattern": `exports\.add\b`, "files": "*.js"})["matches"].([]any)
	if len(found) != 1 || found[0].(object)["path"] != "/src/lib/add.js" || found[0].(object)["line"] != 2.0 {
		t.Fatalf("search: %v", found)
	}
	if got := a.must("read", object{"sandbox": name, "path": "/src/lib/add.js", "line": 2, "lines": 1}); got["text"] != "exports.add = (a, b) => a - b\n" {
		t.Errorf("read: %v", got)
	}
	if _, failed := a.call("edit", object{"sandbox": name, "path": "/src/lib/add.js", "old": "add", "new": "sum"}); !strings.Contains(failed, "2 times") {
		t.Errorf("edit of a text that occurs twice: %q", failed)
	}
	if got := a.must("edit", object{"sandbox": name, "path": "/src/lib/add.js", "old": "a - b", "new": "a + b"}); got["replaced"] != 1.0 {
		t.Errorf("edit: %v", got)
	}
	if code, out := a.exec(name, "cd /src && node test.js"); code != 0 || out != "passed\n" {
		t.Errorf("the test afterwards: %d, %q", code, out)
	}
	if content, err := os.ReadFile(filepath.Join(dir, "lib/add.js")); err != nil || !strings.Contains(string(content), "a - b") {
		t.Errorf("the directory here, of which the sandbox has a copy: %q, %v", content, err)
	}

	id := a.must("snapshot", object{"sandbox": name})["id"].(string)
	fork := a.sandbox("fork", object{"sandbox": name})
	a.must("write", object{"sandbox": name, "path": "new/run.sh", "content": "echo $GREETING\n", "executable": true})
	if code, out := a.exec(name, "new/run.sh; rm /src/test.js"); code != 0 || out != "hello\n" {
		t.Errorf("a file that was written: %d, %q", code, out)
	}
	if code, out := a.exec(fork, "cd /src && node test.js; ls /workspace"); code != 0 || out != "passed\n" {
		t.Errorf("the fork: %d, %q", code, out)
	}
	a.must("rollback", object{"sandbox": name, "snapshot": id})
	entries := a.must("list", object{"sandbox": name, "path": "/src"})["entries"].([]any)
	if len(entries) != 2 || entries[0].(object)["type"] != "directory" || entries[1].(object)["name"] != "test.js" {
		t.Errorf("list after the rollback: %v", entries)
	}

	command := a.must("exec", object{"sandbox": name, "command": "echo in the background", "detached": true})["id"].(string)
	harness.Eventually(t, "the output of a command in the background", func() bool {
		return a.must("logs", object{"sandbox": name, "command": command})["text"] == "in the background\n"
	})
	if code, _ := a.exec(name, `node -e 'require("net").connect(80, "192.0.2.1").on("error", e => process.exit(9))'`); code != 9 {
		t.Errorf("a connection with the policy deny-all: exit code %d", code)
	}
	attempts := a.must("egress", object{"sandbox": name})["attempts"].([]any)
	if len(attempts) != 1 || attempts[0].(object)["address"] != "192.0.2.1" || attempts[0].(object)["allowed"] != false {
		t.Errorf("egress: %v", attempts)
	}
	if got := a.must("exec", object{"sandbox": name, "command": "sleep 100", "timeoutMs": 500}); got["timedOut"] != true || got["exitCode"] != 137.0 {
		t.Errorf("a command that takes too long: %v", got)
	}
	a.must("delete", object{"sandbox": fork})
	listed := a.must("sandboxes", nil)
	if all := listed["sandboxes"].([]any); len(all) != 1 || all[0].(object)["name"] != name || len(listed["snapshots"].(object)) != 1 {
		t.Errorf("sandboxes: %v", listed)
	}
	a.end()
	if _, err := harness.NewClient(t).GetSnapshot(t.Context(), id); err == nil {
		t.Errorf("the snapshot %s is left", id)
	}
}

// An agent that fills the memory is told so.
func TestAgentIsToldWhatEndedItsCommand(t *testing.T) {
	enginetest.Need(t)
	t.Parallel()
	a := newAgent(t, "--memory", "64m")
	name := a.sandbox("create", nil)
	if got := a.must("exec", object{"sandbox": name, "command": "dd if=/dev/zero of=/dev/null bs=256M count=1"}); got["outOfMemory"] != true || got["exitCode"] != 137.0 || got["sessionLost"] != nil {
		t.Errorf("a command that fills the memory: %v", got)
	}
	sb, err := harness.NewClient(t).Get(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	defer sb.Detach()
	stopped := make(chan error, 1)
	go func() {
		harness.WaitForFile(t, sb, "/tmp/runs")
		stopped <- harness.Second(sb.Stop(context.Background()))
	}()
	got := a.must("exec", object{"sandbox": name, "command": "echo before; touch /tmp/runs; sleep 1000"})
	if why, _ := got["sessionLost"].(string); !strings.Contains(why, "stopped") || got["output"] != "before\n" {
		t.Errorf("a command whose session another program stopped: %v", got)
	}
	if err := <-stopped; err != nil {
		t.Errorf("Stop: %v", err)
	}
	if _, failed := a.call("exec", object{"sandbox": name, "command": "true"}); !strings.Contains(failed, "Session lost") || !strings.Contains(failed, "stopped") {
		t.Errorf("the next command: %q, want why the session ended", failed)
	}
}

func TestAgentIsHeldToEachLimit(t *testing.T) {
	enginetest.Need(t)
	t.Parallel()
	other := harness.Shared(t)
	a := newAgent(t, "--count", "2", "--snapshots", "1", "--vcpus", "0.5", "--memory", "256m", "--command-timeout", "30s", "--output", "4k")
	name := a.sandbox("create", nil)
	st, err := harness.NewClient(t).Inspect(t.Context(), name)
	if err != nil || *st.Settings.VCPUs != 0.5 || *st.Settings.MemoryBytes != 256<<20 || st.Network.String() != sandbox.DenyAll().String() || *st.Settings.Persistent || *st.Settings.Timeout != time.Hour {
		t.Errorf("the sandbox: %+v, %v", st, err)
	}
	a.must("snapshot", object{"sandbox": name})
	for _, tt := range []struct {
		tool, want string
		args       object
	}{
		{"create", "image", object{"image": "debian"}},
		{"create", "network policy", object{"network": "allow-all"}},
		{"create", "mount", object{"mounts": []string{"/etc:/mnt:ro"}}},
		{"create", "CPUs", object{"vcpus": 1}},
		{"create", "memory", object{"memoryBytes": 256<<20 + 1}},
		{"create", "memory", object{"memoryBytes": -1}},
		{"exec", "timeout", object{"sandbox": name, "command": "true", "timeoutMs": 30001}},
		{"exec", "there is no sandbox", object{"sandbox": other.Name(), "command": "true"}},
		{"read", "there is no sandbox", object{"sandbox": other.ID(), "path": "/etc/passwd"}},
		{"fork", "there is no sandbox", object{"sandbox": other.Name()}},
		{"delete", "there is no sandbox", object{"sandbox": other.Name()}},
		{"snapshot", "limit", object{"sandbox": name}},
		{"rollback", "there is no snapshot", object{"sandbox": name, "snapshot": "abc"}},
	} {
		if _, failed := a.call(tt.tool, tt.args); !strings.Contains(failed, tt.want) {
			t.Errorf("%s %v: %q, want %q", tt.tool, tt.args, failed, tt.want)
		}
	}
	fork := a.sandbox("fork", object{"sandbox": name})
	for _, tool := range []string{"create", "fork"} {
		args := object{}
		if tool == "fork" {
			args["sandbox"] = name
		}
		if _, failed := a.call(tool, args); !strings.Contains(failed, "there are 2 sandboxes") {
			t.Errorf("%s of a third sandbox: %q", tool, failed)
		}
	}
	a.must("delete", object{"sandbox": fork})
	a.sandbox("fork", object{"sandbox": name})
	a.must("write", object{"sandbox": name, "path": "long", "content": strings.Repeat("0123456789\n", 1000)})
	if got := a.must("read", object{"sandbox": name, "path": "long"}); len(got["text"].(string)) != 4096 || got["more"] != true {
		t.Errorf("read: %d bytes, more %v", len(got["text"].(string)), got["more"])
	}
	if _, failed := a.call("read", object{"sandbox": name, "path": "long", "line": 2000}); !strings.Contains(failed, "1000 lines") {
		t.Errorf("read behind the end: %q", failed)
	}
	a.exec(name, "head -c 8388609 /dev/zero | tr '\\0' x >big; mkdir many s; cd many; seq 1001 | xargs touch; yes n | head -n 201 >../s/f; ln -s f ../s/link")
	if _, failed := a.call("edit", object{"sandbox": name, "path": "big", "old": "x", "new": "y", "all": true}); !strings.Contains(failed, "too large to edit") {
		t.Errorf("edit of 8 MiB and a byte: %q", failed)
	}
	if got := a.must("list", object{"sandbox": name, "path": "many"}); len(got["entries"].([]any)) != 1000 || got["more"] != 1.0 {
		t.Errorf("list of 1001 entries: %d, more %v, want 1000 and 1", len(got["entries"].([]any)), got["more"])
	}
	file, link := object{"name": "f", "type": "file", "sizeBytes": 402.0}, object{"name": "link", "type": "symlink"}
	if diff := cmp.Diff([]any{file, link}, a.must("list", object{"sandbox": name, "path": "s"})["entries"]); diff != "" {
		t.Errorf("list of a file and a link (-want +got):\n%s", diff)
	}
	if got := a.must("search", object{"sandbox": name, "path": "s", "pattern": "n"}); len(got["matches"].([]any)) != 200 || got["more"] != true {
		t.Errorf("search of 201 lines: %d, more %v, want 200 and true", len(got["matches"].([]any)), got["more"])
	}
}

// fieldsIn returns the names of the properties and parameters in a schema or an OpenAPI document.
func fieldsIn(schema any) (names []string) {
	switch s := schema.(type) {
	case object:
		if fields, ok := s["properties"].(object); ok {
			names = slices.Collect(maps.Keys(fields))
		}
		if s["in"] == "query" {
			names = append(names, s["name"].(string))
		}
		for _, below := range s {
			names = append(names, fieldsIn(below)...)
		}
	case []any:
		for _, below := range s {
			names = append(names, fieldsIn(below)...)
		}
	}
	return names
}

// What the tools have in common with the HTTP API has the same names.
func TestToolsHaveTheNamesOfTheHTTPAPI(t *testing.T) {
	t.Parallel()
	w := httptest.NewRecorder()
	sandboxhttp.Handler(nil).ServeHTTP(w, httptest.NewRequest("GET", "/openapi.json", nil))
	var document object
	if err := json.Unmarshal(w.Body.Bytes(), &document); err != nil {
		t.Fatal(err)
	}
	known := fieldsIn(document)
	// Files are edited and searched, output and reports are cut, and a lost session is a result, by the tools alone.
	own := strings.Fields("all attempts content entries executable leftOut line lines matches new old omittedBytes output pattern replaced sessionLost")
	got, err := newAgent(t).session.ListTools(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, tool := range got.Tools {
		names = append(names, slices.Concat(fieldsIn(tool.InputSchema), fieldsIn(tool.OutputSchema))...)
	}
	for _, name := range names {
		if slices.Contains(known, name) == slices.Contains(own, name) {
			t.Errorf("the tools' field %q: in the HTTP API %t, of the tools alone %t", name, slices.Contains(known, name), slices.Contains(own, name))
		}
	}
	if len(names) < 50 {
		t.Errorf("the tools have the fields %q, which can't be all", names)
	}
}

// A sandbox that is gone at the end of its lifetime makes room for another one.
func TestAgentsSandboxEndsWithItsLifetime(t *testing.T) {
	enginetest.Need(t)
	t.Parallel()
	var a *agent
	var first object
	failed := "not tried"
	// On a busy machine a creation takes longer than a short lifetime lasts.
	for lifetime := 5 * time.Second; failed != ""; lifetime *= 2 {
		if lifetime > 3*time.Minute {
			t.Fatalf("no sandbox was made within its lifetime: %s", failed)
		}
		a = newAgent(t, "--count", "1", "--lifetime", lifetime.String())
		first, failed = a.call("create", nil)
	}
	name, _ := first["name"].(string)
	for deadline := time.Now().Add(4 * time.Minute); ; time.Sleep(100 * time.Millisecond) {
		if _, failed = a.call("create", nil); failed == "" {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("another sandbox can't be made: %s", failed)
		}
	}
	if _, err := harness.NewClient(t).Inspect(t.Context(), name); err == nil {
		t.Errorf("%s is there after its lifetime", name)
	}
}

// Output that nobody could hold is cut, in the result and in progress messages.
func TestAgentGetsTheEndsOfMuchOutput(t *testing.T) {
	enginetest.Need(t)
	t.Parallel()
	a := newAgent(t, "--output", "64k")
	name := a.sandbox("create", nil)
	got := a.must("exec", object{"sandbox": name, "command": "echo first; head -c 268435456 /dev/zero | tr '\\0' x; echo; echo last"})
	out := got["output"].(string)
	if !strings.HasPrefix(out, "first\nxxx") || !strings.HasSuffix(out, "xxx\nlast\n") || len(out) > 66<<10 || got["omittedBytes"] != float64(1<<28+12-64<<10) {
		t.Errorf("output of %d bytes, without %v: %.20q", len(out), got["omittedBytes"], out)
	}
	if n := a.progress.Load(); n == 0 || n > 64<<10 {
		t.Errorf("%d bytes of progress messages", n)
	}
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", a.cmd.Process.Pid))
	if err != nil {
		t.Skipf("no memory usage on this system: %v", err)
	}
	m := regexp.MustCompile(`VmHWM:\s+(\d+) kB`).FindSubmatch(status)
	if m == nil {
		t.Fatalf("no peak in %s", status)
	}
	if kB, _ := strconv.Atoi(string(m[1])); kB > 200<<10 {
		t.Errorf("the server needed %d MiB at its peak", kB>>10)
	}
}

func TestAgentGetsASandboxOfThePool(t *testing.T) {
	enginetest.Story(t)
	t.Parallel()
	image := harness.SmallImage(t) // which no other test has
	a := newAgent(t, "--pool", "1", "--image", image)
	c := harness.NewClient(t)
	var waiting []sandbox.Info
	harness.Eventually(t, "a sandbox waits", func() bool {
		list, err := c.List(t.Context(), sandbox.ListOptions{States: []sandbox.State{sandbox.StateRunning}})
		if err != nil {
			t.Fatal(err)
		}
		waiting = slices.DeleteFunc(list, func(i sandbox.Info) bool { return i.Image != image })
		return len(waiting) > 0
	})
	time.Sleep(time.Second) // it is connected, too
	name := a.sandbox("create", object{"env": object{"A": "1"}})
	if name != waiting[0].Name {
		t.Errorf("the agent got %s, and not %s, which waited", name, waiting[0].Name)
	}
	st := harness.Inspect(t, name)
	if st.Network.String() != "deny-all" || st.ExpiresAt.IsZero() || !slices.Contains(st.Env, "A") {
		t.Errorf("it is %+v", st)
	}
	a.end()
	list, err := c.List(t.Context(), sandbox.ListOptions{})
	if err != nil || slices.ContainsFunc(list, func(i sandbox.Info) bool { return i.Image == image }) {
		t.Errorf("left of the pool after the end: %v, %v", list, err)
	}
}

func TestAgentsSandboxesAreKeptIfAsked(t *testing.T) {
	enginetest.Need(t)
	t.Parallel()
	c := harness.NewClient(t)
	a := newAgent(t, "--keep", "--remote-mounts", "--image", sandbox.DefaultImage, "--network", "deny-all", "--network", "public-only", "--lifetime", "10m")
	name := a.must("create", object{"network": "public-only", "image": sandbox.DefaultImage})["name"].(string)
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		if _, err := c.Delete(ctx, name, sandbox.DeleteOptions{Volumes: true, Snapshots: true}); err != nil {
			t.Error(err)
		}
	})
	snap := a.must("snapshot", object{"sandbox": name})["id"].(string)
	a.end()
	st, err := c.Inspect(t.Context(), name)
	if err != nil || st.State != sandbox.StateRunning || !*st.Settings.Persistent || *st.Settings.Timeout != 10*time.Minute || st.Network.String() != "public-only" {
		t.Errorf("the sandbox after the end: %+v, %v", st, err)
	}
	if got, err := c.GetSnapshot(t.Context(), snap); err != nil || !got.ExpiresAt.IsZero() {
		t.Errorf("the snapshot after the end: %+v, %v", got, err)
	}
	if got, want := a.stderr.String(), "left: sandbox "+name+"\nleft: snapshot "+snap+"\n"; got != want {
		t.Errorf("stderr is %q, want %q", got, want)
	}
}

func TestAgentsSandboxesEndWithAServerThatIsKilled(t *testing.T) {
	enginetest.Need(t)
	t.Parallel()
	c := harness.NewClient(t)
	a := newAgent(t, "--lifetime", "20s")
	name := a.must("create", nil)["name"].(string)
	st, err := c.Inspect(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	snap := a.must("snapshot", object{"sandbox": name})["id"].(string)
	if err := a.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = a.session.Close() // it was killed
	a.session = nil
	for deadline := time.Now().Add(3 * time.Minute); ; time.Sleep(2 * time.Second) {
		if _, err := c.Prune(t.Context()); err != nil {
			t.Fatal(err)
		}
		held := left(t, "agent-sandbox.id="+st.ID)
		_, err := c.GetSnapshot(t.Context(), snap)
		if len(held) == 0 && errors.Is(err, sandbox.ErrSnapshotNotFound) {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("left: %v; the snapshot: %v", held, err)
		}
	}
}

// An agent learns which files a sandbox lacks.
func TestAgentIsToldWhatWasLeftOut(t *testing.T) {
	enginetest.Need(t)
	t.Parallel()
	dir := harness.HostDir(t, map[string]string{"f": "x"})
	l, err := net.Listen("unix", filepath.Join(dir, "sock"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	a := newAgent(t, "--mount", dir+":/src")
	if got := a.must("create", object{"mounts": []string{dir + ":/src"}}); fmt.Sprint(got["leftOut"]) != "[/src/sock: a socket]" {
		t.Errorf("create: %v", got)
	}
	if got := a.must("create", object{}); got["leftOut"] != nil {
		t.Errorf("create without a mount: %v", got)
	}
}
