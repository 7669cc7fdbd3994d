package cluster_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/conform"
	"github.com/seed-1a2d6d8f/sandbox/test/harness"
)

// Each capability is on several nodes what it is on one of them alone. The suite keeps its sandboxes, so
// they get more room than they would have.
func TestCapabilitiesAreThoseOfOneEngine(t *testing.T) {
	nodes(t, 3)
	version := ""
	outcomes := func(c *sandbox.Client) map[string]conform.Result {
		report, err := conform.Run(t.Context(), c, conform.Options{})
		if err != nil {
			t.Fatal(err)
		}
		version = report.Engine.Version
		all := map[string]conform.Result{}
		for _, r := range report.Results {
			all[r.Check] = r
		}
		return all
	}
	one, many := outcomes(onNode(t, "node1")), outcomes(client(t, 0, sandbox.WithOvercommit(64, 4)))
	outcome := map[string]int{}
	for check, want := range one {
		got := many[check]
		if outcome[string(got.Outcome)]++; got.Outcome == conform.NotRun {
			t.Logf("%s: not run: %s", check, got.Reason)
		}
		if got.Outcome == conform.NotRun && strings.Contains(got.Reason, "another node") {
			continue
		}
		if got.Outcome != want.Outcome {
			t.Errorf("%s: %s on 3 nodes (%s), %s on one engine (%s)", check, got.Outcome, got.Reason, want.Outcome, want.Reason)
		}
	}
	t.Logf("engine %s: of %d checks on 3 nodes: %v", version, len(one), outcome)
	if len(one) != len(many) || len(one) == 0 {
		t.Errorf("%d checks on 3 nodes, %d on one engine", len(many), len(one))
	}
}

func init() { harness.AddRole("creators", creators) }

// creators calls GetOrCreate with a name from several goroutines, when a file exists, and prints the IDs:
// HOST NAME GOROUTINES FILE.
func creators(args []string) error {
	ctx := context.Background()
	n, err := strconv.Atoi(args[2])
	if err != nil {
		return err
	}
	c, err := sandbox.NewClient(sandbox.WithHost(args[0]), sandbox.WithSwarm())
	if err != nil {
		return err
	}
	defer c.Close()
	fmt.Println("ready")
	for {
		if _, err := os.Stat(args[3]); err == nil {
			break
		}
		time.Sleep(time.Millisecond)
	}
	errs := make([]error, n)
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() {
			sb, err := c.GetOrCreate(ctx, args[1], sandbox.WithVCPUs(0.125), sandbox.WithMemory(64<<20), harness.Quick, sandbox.OnCreate(func(ctx context.Context, sb *sandbox.Sandbox) error {
				return sb.Command(ctx, "sh", "-c", "echo prepared >> /workspace/prepared").Run()
			}))
			if errs[i] = err; err == nil {
				fmt.Println(sb.ID())
				errs[i] = sb.Detach()
			}
		})
	}
	all.Wait()
	return errors.Join(errs...)
}

// A name is one sandbox's, which is prepared once, however many create it at the same time.
func TestNameIsOneSandboxsOnAllNodes(t *testing.T) {
	nodes(t, 3)
	const processes, each = 8, 8
	for round := range harness.Rounds(5, 20) {
		name, begin := harness.UniqueName(t), filepath.Join(t.TempDir(), "begin")
		c := client(t, 0)
		harness.Remove(t, c, name)
		outs := make([]bytes.Buffer, processes)
		var cmds []*exec.Cmd
		for i := range processes {
			cmd := harness.Process(t, "creators", addresses[i%len(addresses)], name, strconv.Itoa(each), begin)
			cmd.Stdout = &outs[i]
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			cmds = append(cmds, cmd)
		}
		if err := os.WriteFile(begin, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		ids := map[string]int{}
		for i, cmd := range cmds {
			if err := cmd.Wait(); err != nil {
				t.Errorf("round %d: process %d: %v", round, i, err)
			}
			for _, id := range strings.Fields(strings.TrimPrefix(outs[i].String(), "ready")) {
				ids[id]++
			}
		}
		sb, err := c.Get(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		if len(ids) != 1 || ids[sb.ID()] != processes*each {
			t.Errorf("round %d: %d creators got %v, want all the ID %s", round, processes*each, ids, sb.ID())
		}
		if out := harness.Run(t, sb, "cat", "/workspace/prepared"); out != "prepared" {
			t.Errorf("round %d: it was prepared so often: %q", round, out)
		}
		infos, err := c.List(t.Context(), sandbox.ListOptions{Prefix: name})
		if err != nil || len(infos) != 1 {
			t.Errorf("round %d: List has %v, %v, want one", round, infos, err)
		}
		if _, err := sb.Delete(t.Context(), sandbox.DeleteOptions{Volumes: true}); err != nil {
			t.Error(err)
		}
	}
}

// Sandboxes that are created at once by one client are on all nodes, as many on each.
func TestSandboxesAreSpread(t *testing.T) {
	nodes(t, 3)
	c := client(t, 0)
	const n = 30
	var creates sync.WaitGroup
	prefix := harness.UniqueName(t)
	errs := make([]error, n)
	for i := range n {
		name := fmt.Sprintf("%s-%d", prefix, i)
		harness.Remove(t, c, name)
		creates.Go(func() {
			sb, err := c.Create(t.Context(), small(name)...)
			if errs[i] = err; err == nil {
				errs[i] = sb.Detach()
			}
		})
	}
	creates.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	infos, err := c.List(t.Context(), sandbox.ListOptions{Prefix: prefix})
	if err != nil {
		t.Fatal(err)
	}
	on := map[string]int{}
	for _, i := range infos {
		on[i.Location]++
	}
	for i := range addresses {
		// One that is created while another is counted may be taken for one more or less.
		if got := on[fmt.Sprintf("node%d", i+1)]; got < n/len(addresses)-3 {
			t.Errorf("%d sandboxes are spread so: %v", n, on)
		}
	}
}

// What is on a node whose engine was killed stays there, with its name, and the rest goes on.
func TestNodeIsLostAndComesBack(t *testing.T) {
	nodes(t, 3)
	c := client(t, 0)
	ctx := t.Context()
	lost, kept := harness.UniqueName(t), harness.UniqueName(t)
	for name, node := range map[string]string{lost: "node3", kept: "node2"} {
		sb, err := c.Create(ctx, small(name, sandbox.WithPlacement("node.hostname=="+node))...)
		if err != nil {
			t.Fatal(err)
		}
		harness.Remove(t, c, name)
		if err := sb.WriteFile(ctx, "/workspace/f", []byte("kept"), 0o644); err != nil {
			t.Fatal(err)
		}
		if err := sb.Detach(); err != nil {
			t.Fatal(err)
		}
	}
	back := kill(t, 3)
	saysNode3 := func(what string, err error) {
		t.Helper()
		if !errors.Is(err, sandbox.ErrEngineUnavailable) || !strings.Contains(err.Error(), "node node3") {
			t.Errorf("%s: %v, want ErrEngineUnavailable that names node3", what, err)
		}
	}
	fresh := client(t, 0) // without a connection to that node
	for what, c := range map[string]*sandbox.Client{"a client that was connected": c, "a new client": fresh} {
		saysNode3(what+", Get", harness.Second(c.Get(ctx, lost)))
		if err := harness.Second(c.Create(ctx, small(lost)...)); !errors.Is(err, sandbox.ErrExists) {
			t.Errorf("%s, Create of its name: %v, want ErrExists", what, err)
		}
		sb, err := c.Get(ctx, kept)
		if err != nil || harness.Run(t, sb, "cat", "/workspace/f") != "kept" {
			t.Errorf("%s: Get of a sandbox on another node: %v", what, err)
		} else if err := sb.Detach(); err != nil {
			t.Error(err)
		}
	}
	saysNode3("ListVolumes", harness.Second(c.ListVolumes(ctx)))
	saysNode3("List with tags", harness.Second(c.List(ctx, sandbox.ListOptions{Tags: map[string]string{"a": "b"}})))
	infos, err := c.List(ctx, sandbox.ListOptions{Prefix: lost})
	if err != nil || len(infos) != 1 || infos[0].State != sandbox.StateUnreachable || infos[0].Location != "node3" || infos[0].ID == "" {
		t.Errorf("List of the lost one: %+v, %v; want it as unreachable on node3", infos, err)
	}
	back()
	sb, err := c.Get(ctx, lost)
	if err != nil {
		t.Fatalf("Get after its node is back: %v", err)
	}
	if out := harness.Run(t, sb, "cat", "/workspace/f"); out != "kept" {
		t.Errorf("its file says %q", out)
	}
}

// kill ends a node's engine with SIGKILL, and returns a function that starts it again.
func kill(t *testing.T, node int) (back func()) {
	t.Helper()
	dir := filepath.Join(os.Getenv("SANDBOX_CLUSTER_DIR"), strconv.Itoa(node))
	down := filepath.Join(dir, "down")
	text, err := os.ReadFile(filepath.Join(dir, "pid"))
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(down, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	for syscall.Kill(pid, 0) == nil {
		time.Sleep(10 * time.Millisecond)
	}
	back = sync.OnceFunc(func() {
		if err := os.Remove(down); err != nil {
			t.Error(err)
		}
		c := harness.NewClient(t, sandbox.WithHost(addresses[node-1]))
		for {
			if h, err := c.CheckHealth(context.Background()); err != nil || h.Healthy {
				return
			}
		}
	})
	t.Cleanup(back)
	return back
}
