package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
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
	got := a.bash(object{"sandbox": name, "command": command})
	output, _ = got["output"].(string) // none if it is empty
	return int(got["exitCode"].(float64)), output
}

// bash returns how a command went.
func (a *agent) bash(args object) object {
	a.t.Helper()
	return a.must("bash", args)["command"].(object)
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
	name := a.sandbox("sandbox_create", object{"mounts": []string{mount}, "env": []string{"GREETING=hello"}})
	if code, out := a.exec(name, "cd /src && node test.js"); code != 1 || out != "add(2, 2) is 0\n" {
		t.Fatalf("the test before: %d, %q", code, out)
	}
	found := a.must("grep", object{"sandbox": name, "path": "/src", "pattern": `exports\.add\b`, "files": "*.js"})["matches"].([]any)
	if len(found) != 1 || found[0].(object)["path"] != "/src/lib/add.js" || found[0].(object)["line"] != 2.0 {
		t.Fatalf("search: %v", found)
	}
	if got := a.must("read", object{"sandbox": name, "path": "/src/lib/add.js", "line": 2, "lines": 1}); got["text"] != "exports.add = (a, b) => a - b\n" || got["more"] != nil {
		t.Errorf("read: %v", got)
	}
	if _, failed := a.call("edit", object{"sandbox": name, "path": "/src/lib/add.js", "old": "add", "new": "sum"}); !strings.Contains(failed, "2 times") {
		t.Errorf("edit of a text that occurs twice: %q", failed)
	}
	if got := a.must("edit", object{"sandbox": name, "path": "/src/lib/add.js", "old": "a - b", "new": "a + b"}); got["text"] != "Replaced 1 in /src/lib/add.js." {
		t.Errorf("edit: %v", got)
	}
	if code, out := a.exec(name, "cd /src && node test.js"); code != 0 || out != "passed\n" {
		t.Errorf("the test afterwards: %d, %q", code, out)
	}
	if content, err := os.ReadFile(filepath.Join(dir, "lib/add.js")); err != nil || !strings.Contains(string(content), "a - b") {
		t.Errorf("the directory here, of which the sandbox has a copy: %q, %v", content, err)
	}

	id := a.must("sandbox_snapshot", object{"sandbox": name})["id"].(string)
	fork := a.sandbox("sandbox_fork", object{"sandbox": name})
	a.must("write", object{"sandbox": name, "path": "new/run.sh", "content": "echo $GREETING\n", "executable": true})
	if code, out := a.exec(name, "/workspace/new/run.sh; rm /src/test.js"); code != 0 || out != "hello\n" {
		t.Errorf("a file that was written: %d, %q", code, out)
	}
	if code, out := a.exec(fork, "cd /src && node test.js; ls /workspace"); code != 0 || out != "passed\n" {
		t.Errorf("the fork: %d, %q", code, out)
	}
	a.must("sandbox_rollback", object{"sandbox": name, "snapshot": id})
	if got := a.must("glob", object{"sandbox": name, "pattern": "**", "path": "/src"})["paths"]; !cmp.Equal(got, []any{"/src/lib", "/src/lib/add.js", "/src/test.js"}) {
		t.Errorf("glob after the rollback: %v", got)
	}

	background := a.bash(object{"sandbox": name, "command": "echo in the background; sleep 1000", "background": true})
	if diff := cmp.Diff(object{"id": background["id"], "status": "running"}, background); diff != "" || background["id"] == "" {
		t.Errorf("a command in the background, which has neither an exit code nor output (-want +got):\n%s", diff)
	}
	harness.Eventually(t, "the output of a command in the background", func() bool {
		got := a.bash(object{"sandbox": name, "id": background["id"]})
		return got["output"] == "in the background\n" && got["status"] == "running"
	})
	a.must("sandbox_kill", object{"sandbox": name, "id": background["id"]})
	harness.Eventually(t, "the end of a command in the background", func() bool {
		return a.bash(object{"sandbox": name, "id": background["id"]})["status"] == "exited"
	})
	if _, failed := a.call("sandbox_kill", object{"sandbox": name, "id": "nosuchcommand"}); !strings.Contains(failed, `"nosuchcommand"`) {
		t.Errorf("kill of none: %q", failed)
	}
	a.bash(object{"sandbox": name, "command": `node -e 'require("http").createServer((q, r) => r.end("at " + q.url)).listen(8080)'`, "background": true})
	harness.Eventually(t, "an answer of the server inside", func() bool {
		got, failed := a.call("fetch", object{"sandbox": name, "port": 8080, "path": "/here"})
		return failed == "" && strings.HasSuffix(got["text"].(string), "at /here")
	})
	if code, _ := a.exec(name, `node -e 'require("net").connect(80, "192.0.2.1").on("error", e => process.exit(9))'`); code != 9 {
		t.Errorf("a connection with the policy deny-all: exit code %d", code)
	}
	attempts := a.must("sandbox_egress", object{"sandbox": name})["attempts"].([]any)
	if len(attempts) != 1 || attempts[0].(object)["address"] != "192.0.2.1" || attempts[0].(object)["allowed"] != false {
		t.Errorf("egress: %v", attempts)
	}
	if got := a.bash(object{"sandbox": name, "command": "sleep 100", "timeoutMs": 500}); got["status"] != "timed out" || got["exitCode"] != 137.0 {
		t.Errorf("a command that takes too long: %v", got)
	}
	a.must("sandbox_delete", object{"sandbox": fork})
	listed := a.must("sandbox_list", nil)
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
	name := a.sandbox("sandbox_create", nil)
	if got := a.bash(object{"sandbox": name, "command": "dd if=/dev/zero of=/dev/null bs=256M count=1"}); got["outOfMemory"] != true || got["exitCode"] != 137.0 || got["status"] != "exited" {
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
	got := a.bash(object{"sandbox": name, "command": "echo before; touch /tmp/runs; sleep 1000"})
	if why, _ := got["reason"].(string); got["status"] != "session lost" || !strings.Contains(why, "stopped") || !strings.HasPrefix(got["output"].(string), "before\n") {
		t.Errorf("a command whose session another program stopped: %v", got)
	}
	if err := <-stopped; err != nil {
		t.Errorf("Stop: %v", err)
	}
	if _, failed := a.call("bash", object{"sandbox": name, "command": "true"}); !strings.Contains(failed, "Session lost") || !strings.Contains(failed, "stopped") {
		t.Errorf("the next command: %q, want why the session ended", failed)
	}
}

func TestAgentIsHeldToEachLimit(t *testing.T) {
	enginetest.Need(t)
	t.Parallel()
	other := harness.Shared(t)
	a := newAgent(t, "--count", "2", "--snapshots", "1", "--vcpus", "0.5", "--memory", "256m", "--command-timeout", "30s", "--output", "4k")
	name := a.sandbox("sandbox_create", object{"memoryBytes": json.RawMessage("2.68435456e8")}) // as of a client whose numbers are all doubles
	st, err := harness.NewClient(t).Inspect(t.Context(), name)
	if err != nil || *st.Settings.VCPUs != 0.5 || *st.Settings.MemoryBytes != 256<<20 || st.Network.String() != sandbox.DenyAll().String() || *st.Settings.Persistent || *st.Settings.Timeout != time.Hour {
		t.Errorf("the sandbox: %+v, %v", st, err)
	}
	a.must("sandbox_snapshot", object{"sandbox": name})
	for _, tt := range []struct {
		tool, want string
		args       object
	}{
		{"sandbox_create", "image", object{"image": "debian"}},
		{"sandbox_create", "256.5 bytes", object{"memoryBytes": 256.5}},
		{"sandbox_create", "network policy", object{"network": "allow-all"}},
		{"sandbox_create", "mount", object{"mounts": []string{"/etc:/mnt:ro"}}},
		{"sandbox_create", "CPUs", object{"vcpus": 1}},
		{"sandbox_create", "memory", object{"memoryBytes": 256<<20 + 1}},
		{"sandbox_create", "memory", object{"memoryBytes": -1}},
		{"bash", "timeout", object{"sandbox": name, "command": "true", "timeoutMs": 30001}},
		{"bash", "there is no sandbox", object{"sandbox": other.Name(), "command": "true"}},
		{"read", "there is no sandbox", object{"sandbox": other.ID(), "path": "/etc/passwd"}},
		{"sandbox_fork", "there is no sandbox", object{"sandbox": other.Name()}},
		{"sandbox_delete", "there is no sandbox", object{"sandbox": other.Name()}},
		{"sandbox_snapshot", "limit", object{"sandbox": name}},
		{"sandbox_rollback", "there is no snapshot", object{"sandbox": name, "snapshot": "abc"}},
	} {
		if _, failed := a.call(tt.tool, tt.args); !strings.Contains(failed, tt.want) {
			t.Errorf("%s %v: %q, want %q", tt.tool, tt.args, failed, tt.want)
		}
	}
	fork := a.sandbox("sandbox_fork", object{"sandbox": name})
	for _, tool := range []string{"sandbox_create", "sandbox_fork"} {
		args := object{}
		if tool == "sandbox_fork" {
			args["sandbox"] = name
		}
		if _, failed := a.call(tool, args); !strings.Contains(failed, "there are 2 sandboxes") {
			t.Errorf("%s of a third sandbox: %q", tool, failed)
		}
	}
	a.must("sandbox_delete", object{"sandbox": fork})
	a.sandbox("sandbox_fork", object{"sandbox": name})
	a.must("write", object{"sandbox": name, "path": "long", "content": strings.Repeat("0123456789\n", 1000)})
	if got := a.must("read", object{"sandbox": name, "path": "long"}); len(got["text"].(string)) != 4096+len("\n[the file goes on]") || got["more"] != true {
		t.Errorf("read: %d bytes, more %v", len(got["text"].(string)), got["more"])
	}
	if _, failed := a.call("read", object{"sandbox": name, "path": "long", "line": 2000}); !strings.Contains(failed, "1000 lines") {
		t.Errorf("read behind the end: %q", failed)
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
		first, failed = a.call("sandbox_create", nil)
	}
	name, _ := first["name"].(string)
	for deadline := time.Now().Add(harness.CallBound); ; time.Sleep(100 * time.Millisecond) {
		if _, failed = a.call("sandbox_create", nil); failed == "" {
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
	name := a.sandbox("sandbox_create", nil)
	got := a.bash(object{"sandbox": name, "command": "echo first; head -c 268435456 /dev/zero | tr '\\0' x; echo; echo last"})
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
	name := a.sandbox("sandbox_create", object{"env": []string{"A=1"}})
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
	name := a.must("sandbox_create", object{"network": "public-only", "image": sandbox.DefaultImage})["name"].(string)
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		if _, err := c.Delete(ctx, name, sandbox.DeleteOptions{Volumes: true, Snapshots: true}); err != nil {
			t.Error(err)
		}
	})
	snap := a.must("sandbox_snapshot", object{"sandbox": name})["id"].(string)
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
	name := a.must("sandbox_create", nil)["name"].(string)
	st, err := c.Inspect(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	snap := a.must("sandbox_snapshot", object{"sandbox": name})["id"].(string)
	if err := a.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = a.session.Close() // it was killed
	a.session = nil
	for deadline := time.Now().Add(harness.CallBound); ; time.Sleep(2 * time.Second) {
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
	if got := a.must("sandbox_create", object{"mounts": []string{dir + ":/src"}}); fmt.Sprint(got["leftOut"]) != "[/src/sock: a socket]" {
		t.Errorf("create: %v", got)
	}
	if got := a.must("sandbox_create", object{}); got["leftOut"] != nil {
		t.Errorf("create without a mount: %v", got)
	}
}
