package cluster_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/internal/enginetest"
	"github.com/seed-1a2d6d8f/sandbox/sandboxhttp"
	"github.com/seed-1a2d6d8f/sandbox/test/harness"
)

// programs builds the packages, and returns what runs one of them with the first manager as its engine.
func programs(t *testing.T, packages ...string) func(program string, args ...string) (output string, err error) {
	t.Helper()
	bin := t.TempDir()
	if out, err := exec.CommandContext(t.Context(), "go", append([]string{"build", "-o", bin + "/"}, packages...)...).CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	return func(program string, args ...string) (string, error) {
		cmd := exec.CommandContext(t.Context(), filepath.Join(bin, program), args...)
		cmd.Env = append(os.Environ(), "DOCKER_HOST="+addresses[0])
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
}

// The command line and the example work on a swarm by its manager.
func TestProgramsWorkOnASwarm(t *testing.T) {
	enginetest.Need(t)
	t.Parallel()
	run := programs(t, "../../cmd/sandbox", "../../examples/cluster")
	name := harness.UniqueName(t)
	harness.Remove(t, client(t, 0), name)
	for _, step := range []struct {
		args []string
		want string
		fail bool
	}{
		{args: []string{"create", "--name", name, "--placement", "node.hostname==nowhere"}, want: "nowhere", fail: true},
		{args: []string{"create", "--name", name, "--placement", "node.hostname==node1"}, want: name},
		{args: []string{"exec", name, "--", "cat", "/etc/hostname"}},
		{args: []string{"run", "--placement", "node.role==manager", "--", "echo", "ran"}, want: "ran"},
	} {
		out, err := run("sandbox", append([]string{"--swarm", "--quiet"}, step.args...)...)
		if (err != nil) != step.fail || !strings.Contains(out, step.want) {
			t.Fatalf("%q: %v, %q, want %q", step.args, err, out, step.want)
		}
	}
	out, err := run("sandbox", "--swarm", "list", "--json", "--prefix", name)
	var infos []sandbox.Info
	if err != nil || json.Unmarshal([]byte(out), &infos) != nil || len(infos) != 1 || infos[0].Location != "node1" {
		t.Errorf("list: %v, %s", err, out)
	}
	if out, err := run("sandbox", "--swarm", "node", "list"); err != nil || !strings.Contains(out, "10.77.0.1") || !strings.Contains(out, "active") {
		t.Errorf("node list: %v, %s", err, out)
	}
	for _, step := range [][]string{{"stop", name}, {"move", name, "node1"}} {
		if out, err := run("sandbox", append([]string{"--swarm"}, step...)...); err != nil || step[0] == "move" && !strings.Contains(out, "on node1 already") {
			t.Errorf("%q: %v, %s", step, err, out)
		}
	}
	if out, err := run("sandbox", "--swarm", "move", "--json", name, "node9"); err == nil || !strings.Contains(out, "node1") {
		t.Errorf("move to no node: %v, %s", err, out)
	}
	if out, err := run("sandbox", "--swarm", "delete", "--delete-volumes", "--yes", name); err != nil {
		t.Errorf("delete: %v, %s", err, out)
	}
	if out, err := run("sandbox", "create", "--placement", "node.role==manager"); err == nil || !strings.Contains(out, "WithSwarm") && !strings.Contains(out, "swarm") {
		t.Errorf("a placement without a swarm: %v, %s", err, out)
	}
	if out, err := run("cluster"); err != nil || strings.Count(out, " is on node") != 3 || !strings.Contains(out, "made as cluster-b\n") {
		t.Errorf("examples/cluster: %v, %s", err, out)
	}
}

// The README's commands work as they stand there, on another node than the client's if there is one.
func TestREADMEsCommandsWorkOnASwarm(t *testing.T) {
	enginetest.Need(t)
	t.Parallel()
	text, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	run := programs(t, "../../cmd/sandbox")
	name, node := harness.UniqueName(t), fmt.Sprintf("node%d", len(addresses))
	harness.Remove(t, client(t, 0), name)
	var outputs []string
	for line := range strings.Lines(string(text)) {
		command, is := strings.CutPrefix(line, "    sandbox --swarm ")
		if !is {
			continue
		}
		command, _, _ = strings.Cut(command, "#")
		args := strings.Fields(strings.NewReplacer("NODE", node, "build", name).Replace("--swarm " + command))
		out, err := run("sandbox", args...)
		if err != nil {
			t.Fatalf("sandbox %q: %v\n%s", args, err, out)
		}
		outputs = append(outputs, out)
	}
	if len(outputs) != 5 || !strings.Contains(outputs[0], node) || !strings.Contains(outputs[2], name) || !strings.Contains(outputs[3], node) {
		t.Errorf("the README's commands printed %q, want the nodes, the name of %s, and that it is on %s", outputs, name, node)
	}
}

// The list of nodes says what each has and what is taken, also over HTTP. A node that does not answer is in
// it.
func TestNodesAreListedWithTheirRoom(t *testing.T) {
	c, ctx := client(t, 0, sandbox.WithOvercommit(2, 1)), t.Context()
	free := func(c *sandbox.Client) (cpus float64, memory int64) {
		t.Helper()
		list, err := c.Nodes(ctx)
		if err != nil || len(list) != len(addresses) {
			t.Fatalf("Nodes: %+v, %v, want %d", list, err, len(addresses))
		}
		for i, n := range list {
			if n.Name != fmt.Sprintf("node%d", i+1) || n.State != "ready" || n.Availability != "active" || !n.Manager || n.Error != "" ||
				n.CPUs != n.UsedCPUs+n.FreeCPUs || n.Memory != n.UsedMemory+n.FreeMemory || n.Memory == 0 {
				t.Errorf("Nodes: %+v", n)
			}
		}
		return list[0].FreeCPUs, list[0].FreeMemory
	}
	cpus, memory := free(c)
	name := harness.UniqueName(t)
	harness.Remove(t, c, name)
	sb, err := c.Create(ctx, small(name, sandbox.WithPlacement("node.hostname==node1"))...)
	if err != nil {
		t.Fatal(err)
	}
	other := client(t, 1, sandbox.WithOvercommit(2, 1))
	for _, c := range []*sandbox.Client{c, other} {
		if nowCPUs, nowMemory := free(c); nowCPUs != cpus-0.125 || nowMemory != memory-64<<20 {
			t.Errorf("with a sandbox of 0.125 CPUs and 64 MiB %v CPUs and %d bytes are free, before it %v and %d", nowCPUs, nowMemory, cpus, memory)
		}
	}
	changed, err := onNode(t, "node1").Get(ctx, name)
	if err != nil {
		t.Fatal(err)
	}
	if err := changed.Update(ctx, sandbox.WithVCPUs(0.25), sandbox.WithMemory(32<<20)); err != nil {
		t.Fatal(err)
	}
	for _, c := range []*sandbox.Client{c, other} { // which know the limits from before
		if nowCPUs, nowMemory := free(c); nowCPUs != cpus-0.25 || nowMemory != memory-32<<20 {
			t.Errorf("after a change to 0.25 CPUs and 32 MiB %v CPUs and %d bytes are free, before it %v and %d", nowCPUs, nowMemory, cpus, memory)
		}
	}
	if _, err := sb.Stop(ctx); err != nil {
		t.Fatal(err)
	}
	if nowCPUs, nowMemory := free(c); nowCPUs != cpus || nowMemory != memory {
		t.Errorf("with a stopped sandbox %v CPUs and %d bytes are free, before it %v and %d", nowCPUs, nowMemory, cpus, memory)
	}
	w := httptest.NewRecorder()
	sandboxhttp.Handler(c, sandboxhttp.WithoutAuthorization()).ServeHTTP(w, httptest.NewRequest("GET", "http://localhost/nodes", nil))
	var list []sandbox.NodeStatus
	if err := json.Unmarshal(w.Body.Bytes(), &list); err != nil || len(list) != len(addresses) || list[0].FreeMemory != memory {
		t.Errorf("GET /nodes: %v, %s", err, w.Body)
	}
	nowhere := client(t, 0, sandbox.WithNodeHost(func(n sandbox.Node) string { return "tcp://10.77.0.254:1" }))
	list, err = nowhere.Nodes(ctx)
	if err != nil || len(list) != len(addresses) || list[0].Error != "" {
		t.Fatalf("Nodes: %+v, %v", list, err)
	}
	for _, n := range list[1:] {
		if !strings.Contains(n.Error, "node "+n.Name) || n.CPUs != 0 || n.State != "ready" {
			t.Errorf("Nodes with one that can't be reached: %+v", n)
		}
	}
	if _, err := onNode(t, "node1").Nodes(ctx); !errors.Is(err, sandbox.ErrUnsupported) || !strings.Contains(err.Error(), "WithSwarm") {
		t.Errorf("Nodes of a client without a swarm: %v, want ErrUnsupported", err)
	}
}
