package cluster_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/internal/enginetest"
	"github.com/seed-1a2d6d8f/sandbox/test/harness"
)

// The command line and the example work on a swarm by its manager.
func TestProgramsWorkOnASwarm(t *testing.T) {
	enginetest.Need(t)
	t.Parallel()
	bin := t.TempDir()
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", bin, "../../cmd/sandbox", "../../examples/cluster").CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	run := func(program string, args ...string) (string, error) {
		cmd := exec.CommandContext(t.Context(), filepath.Join(bin, program), args...)
		cmd.Env = append(os.Environ(), "DOCKER_HOST="+addresses[0])
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
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
