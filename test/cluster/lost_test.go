package cluster_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/internal/record"
	"github.com/seed-1a2d6d8f/sandbox/test/harness"
)

// A fleet is sandboxes on all nodes, each with its name in a file of the workspace and in one outside.
type fleet struct {
	t      *testing.T
	c      *sandbox.Client
	prefix string

	mu    sync.Mutex
	names []string // of those that have to be there, with their files
	gone  []string // of those that were deleted
}

const (
	perNode  = 10
	partTime = 60 * time.Second // that a partition lasts
)

func newFleet(t *testing.T) *fleet {
	f := &fleet{t: t, c: client(t, 0), prefix: harness.UniqueName(t)}
	var creates errgroup.Group
	creates.SetLimit(6)
	for i := range perNode * len(addresses) {
		creates.Go(func() error {
			return f.create(f.c, fmt.Sprint(i), sandbox.WithPlacement(fmt.Sprintf("node.hostname==node%d", i%len(addresses)+1)))
		})
	}
	if err := creates.Wait(); err != nil {
		t.Fatal(err)
	}
	return f
}

// create adds a sandbox.
func (f *fleet) create(c *sandbox.Client, suffix string, opts ...sandbox.CreateOption) error {
	name := f.prefix + "-" + suffix
	harness.Remove(f.t, f.c, name)
	sb, err := c.Create(f.t.Context(), small(name, opts...)...)
	if err != nil {
		return fmt.Errorf("create %s: %w", name, err)
	}
	if err := sb.Command(f.t.Context(), "sh", "-ec", "echo "+name+" | tee /workspace/f >/opt/f; sync").Run(); err != nil {
		return fmt.Errorf("write in %s: %w", name, err)
	}
	f.mu.Lock()
	f.names = append(f.names, name)
	f.mu.Unlock()
	return sb.Detach()
}

// on names a sandbox of a node: the i-th.
func (f *fleet) on(node, i int) string {
	return fmt.Sprintf("%s-%d", f.prefix, i*len(addresses)+node-1)
}

// check waits until nothing is inconsistent, and reads all files.
func (f *fleet) check(after string) {
	f.t.Helper()
	ctx, c := f.t.Context(), client(f.t, 0)
	all := append(append([]string{}, f.names...), f.gone...)
	var strange []string
	for deadline := time.Now().Add(4 * time.Minute); time.Now().Before(deadline); time.Sleep(time.Second) {
		if _, err := c.Prune(ctx); err != nil {
			strange = []string{err.Error()} // a node may not answer yet
			continue
		}
		if strange = inconsistent(f.t, all); len(strange) == 0 {
			break
		}
	}
	if len(strange) > 0 {
		f.t.Errorf("after %s: %s", after, strings.Join(strange, "; "))
	}
	var reads errgroup.Group
	reads.SetLimit(6)
	for _, name := range f.names {
		reads.Go(func() error {
			sb, err := c.Get(ctx, name)
			if err != nil {
				f.t.Errorf("after %s: Get(%s): %v", after, name, err)
				return nil
			}
			defer sb.Detach()
			if out, err := sb.Command(ctx, "cat", "/workspace/f", "/opt/f").Output(); err != nil || string(out) != name+"\n"+name+"\n" {
				f.t.Errorf("after %s: the files of %s say %q, %v", after, name, out, err)
			}
			return nil
		})
	}
	reads.Wait()
	for _, name := range f.gone {
		if _, err := c.Get(ctx, name); !errors.Is(err, sandbox.ErrNotFound) {
			f.t.Errorf("after %s: Get(%s), which was deleted: %v, want ErrNotFound", after, name, err)
		}
	}
	f.t.Logf("after %s: %d sandboxes with all files, %d deleted ones", after, len(f.names), len(f.gone))
}

// unavailable fails unless the error says that an engine does not answer, and has the text.
func unavailable(t *testing.T, what, text string, began time.Time, err error) {
	t.Helper()
	if !errors.Is(err, sandbox.ErrEngineUnavailable) || !strings.Contains(err.Error(), text) {
		t.Errorf("%s: %v, want ErrEngineUnavailable with %q", what, err, text)
	}
	t.Logf("%s: an error after %v", what, time.Since(began).Round(10*time.Millisecond))
}

// Whatever is lost, no name gets two sandboxes, no sandbox loses its name, and no file is lost.
func TestLossesLoseNoSandbox(t *testing.T) {
	nodes(t, 3)
	f := newFleet(t)
	t.Run("a manager", f.loseManager)
	t.Run("two managers", f.loseManagers)
	t.Run("a partition", f.loseNetwork)
	t.Run("a worker", f.loseWorker) // last: Swarm takes long to elect after a demotion
}

func (f *fleet) loseWorker(t *testing.T) {
	ctx := t.Context()
	docker(t, "node", "demote", "node3")
	harness.Eventually(t, "node3 is a worker that the managers hear from", func() bool {
		out, err := exec.Command("docker", "node", "inspect", "--format", "{{.Spec.Role}} {{.Status.State}}", "node3").Output()
		return err == nil && strings.TrimSpace(string(out)) == "worker ready" && managers(t) == 2
	})
	defer func() {
		docker(t, "node", "promote", "node3")
		harness.Eventually(t, "node3 is a manager", func() bool { return managers(t) == 3 })
	}()
	// One is being deleted as its engine dies.
	deaf := f.prefix + "-deaf"
	harness.Remove(t, f.c, deaf)
	sb, err := f.c.Create(ctx, sandbox.WithName(deaf), sandbox.WithVCPUs(0.125), sandbox.WithMemory(64<<20), sandbox.WithPlacement("node.hostname==node3"),
		sandbox.WithStopTimeout(20*time.Second), sandbox.WithCommand("sh", "-c", "trap 'touch /workspace/term' TERM; while :; do sleep 0.1; done"))
	if err != nil {
		t.Fatal(err)
	}
	sb.Detach()
	deleted := make(chan error)
	go func() { deleted <- harness.Second(f.c.Delete(ctx, deaf, sandbox.DeleteOptions{Volumes: true})) }()
	harness.Eventually(t, "the stop is under way", func() bool {
		return exec.Command("docker", "-H", addresses[2], "exec", record.ContainerName(deaf), "test", "-e", "/workspace/term").Run() == nil
	})
	back := kill(t, 3)
	began := time.Now()
	unavailable(t, "Delete, cut", "node node3", began, <-deleted)
	f.gone = append(f.gone, deaf)
	lost := f.on(3, 0)
	for what, c := range map[string]*sandbox.Client{"a connected client": f.c, "a new one": client(t, 1)} {
		began = time.Now()
		unavailable(t, what+": Get", "node node3", began, harness.Second(c.Get(ctx, lost)))
		began = time.Now()
		unavailable(t, what+": Delete", "the swarm has noted its deletion", began, harness.Second(c.Delete(ctx, lost, sandbox.DeleteOptions{Volumes: true})))
		if err := harness.Second(c.Create(ctx, small(lost)...)); !errors.Is(err, sandbox.ErrExists) {
			t.Errorf("%s: Create of a lost name: %v, want ErrExists", what, err)
		}
	}
	f.drop(lost)
	if err := f.create(f.c, "without-worker"); err != nil {
		t.Error(err)
	}
	back()
	f.check("the loss of a worker")
}

// managers is how many managers the others reach.
func managers(t *testing.T) int {
	t.Helper()
	out, _ := exec.Command("docker", "node", "ls", "--format", "{{.ManagerStatus}}").CombinedOutput()
	return strings.Count(string(out), "Leader") + strings.Count(string(out), "Reachable")
}

// writes reports whether the managers take a write.
func writes(t *testing.T) bool {
	name := harness.UniqueName(t)
	cmd := exec.Command("docker", "config", "create", name, "-")
	cmd.Stdin = strings.NewReader("-")
	return cmd.Run() == nil && exec.Command("docker", "config", "rm", name).Run() == nil
}

// drop notes that a sandbox was deleted.
func (f *fleet) drop(name string) {
	for i, n := range f.names {
		if n == name {
			f.names = append(f.names[:i], f.names[i+1:]...)
			break
		}
	}
	f.gone = append(f.gone, name)
}

func (f *fleet) loseManager(t *testing.T) {
	ctx, own := t.Context(), client(t, 1)
	if _, err := own.List(ctx, sandbox.ListOptions{}); err != nil { // which connects
		t.Fatal(err)
	}
	back := kill(t, 2)
	began := time.Now()
	unavailable(t, "Get", "node node2", began, harness.Second(f.c.Get(ctx, f.on(2, 1))))
	// Swarm may elect a leader for longer than calls wait.
	began = time.Now()
	for deadline := began.Add(3 * time.Minute); time.Now().Before(deadline) && (managers(t) != 2 || !writes(t)); {
		time.Sleep(time.Second)
	}
	t.Logf("two of three managers have a leader after %v", time.Since(began).Round(time.Second))
	for i, c := range []*sandbox.Client{f.c, own} { // the own manager of the second one is gone
		began := time.Now()
		if err := f.create(c, fmt.Sprintf("without-manager-%d", i)); err != nil {
			t.Error(err)
		}
		t.Logf("Create without a manager: %v", time.Since(began).Round(10*time.Millisecond))
	}
	back()
	harness.Eventually(t, "all are managers again", func() bool { return managers(t) == 3 })
	f.check("the loss of a manager")
}

func (f *fleet) loseManagers(t *testing.T) {
	ctx := t.Context()
	open, err := f.c.Get(ctx, f.on(1, 2))
	if err != nil {
		t.Fatal(err)
	}
	defer open.Detach()
	harness.Run(t, open, "true")
	fresh := client(t, 0)
	if _, err := fresh.Nodes(ctx); err != nil { // which connects
		t.Fatal(err)
	}
	back2, back3 := kill(t, 2), kill(t, 3)
	const text = "no leader"
	other := client(t, 0)
	if _, err := other.Nodes(ctx); err != nil && !strings.Contains(err.Error(), text) {
		t.Fatal(err)
	}
	// The one that is left notices the loss after seconds.
	harness.Eventually(t, "the swarm has no leader", func() bool { return errors.Is(harness.Second(other.Nodes(ctx)), sandbox.ErrEngineUnavailable) })
	for what, c := range map[string]*sandbox.Client{"a connected client": fresh, "a new one": client(t, 0)} {
		began := time.Now()
		unavailable(t, what+": List without a quorum", text, began, harness.Second(c.List(ctx, sandbox.ListOptions{})))
		if d := time.Since(began); d >= 10*time.Second {
			t.Errorf("%s: List without a quorum took %v, as if there could be an election", what, d)
		}
		began = time.Now()
		unavailable(t, what+": Get without a quorum", text, began, harness.Second(c.Get(ctx, f.on(1, 3))))
		began = time.Now()
		unavailable(t, what+": Create without a quorum", text, began, harness.Second(c.Create(ctx, small(f.prefix+"-never")...)))
	}
	began := time.Now()
	if out := harness.Run(t, open, "cat", "/workspace/f"); out != open.Name() {
		t.Errorf("a command on an open handle: %q", out)
	}
	t.Logf("a command on an open handle: %v", time.Since(began).Round(time.Millisecond))
	plain := onNode(t, "node1")
	name := f.prefix + "-plain"
	sb, err := plain.Create(ctx, small(name)...)
	if err != nil {
		t.Fatalf("Create of a client of one node: %v", err)
	}
	harness.Run(t, sb, "true")
	if _, err := sb.Delete(ctx, sandbox.DeleteOptions{Volumes: true}); err != nil {
		t.Errorf("Delete of a client of one node: %v", err)
	}
	f.gone = append(f.gone, name, f.prefix+"-never")
	var backs sync.WaitGroup // an engine that is a manager answers when half of them run
	backs.Go(back2)
	backs.Go(back3)
	backs.Wait()
	harness.Eventually(t, "all are managers again", func() bool { return managers(t) == 3 })
	f.check("the loss of two managers")
}

// cut takes node3 off the network until back is called.
func cut(t *testing.T) (back func()) {
	t.Helper()
	set := func(state string) {
		if out, err := exec.Command("ip", "link", "set", "port3", state).CombinedOutput(); err != nil {
			t.Fatalf("ip link set port3 %s: %v\n%s", state, err, out)
		}
	}
	set("down")
	back = sync.OnceFunc(func() { set("up") })
	t.Cleanup(back)
	return back
}

func (f *fleet) loseNetwork(t *testing.T) {
	ctx := t.Context()
	socket := "unix://" + filepath.Join(os.Getenv("SANDBOX_CLUSTER_DIR"), "3", "docker.sock")
	inside := harness.NewClient(t, sandbox.WithHost(socket)) // beside node3, behind the partition
	// This program is on the other side. So the client there gets addresses of nodes that nobody has.
	minority := harness.NewClient(t, sandbox.WithHost(socket), sandbox.WithSwarm(sandbox.WithNodeHost(func(n sandbox.Node) string {
		return "tcp://10.77.0.25" + strings.TrimPrefix(n.Name, "node") + ":2375"
	})))
	if _, err := minority.Nodes(ctx); err != nil {
		t.Fatal(err)
	}
	back := cut(t)
	ended := time.After(partTime)
	own, cancel := context.WithTimeout(ctx, time.Minute) // an election takes up to 10 s if the leader is cut off, and so does a connection
	began := time.Now()
	unavailable(t, "Get of a sandbox behind a partition", "node node3", began, harness.Second(client(t, 0).Get(own, f.on(3, 1))))
	cancel()
	for i := 0; ; i++ {
		if err := f.create(f.c, fmt.Sprintf("majority-%d", i)); err != nil {
			t.Error(err)
		}
		here, err := inside.Get(ctx, f.on(3, 2+i%3))
		if err != nil {
			t.Fatalf("Get behind the partition, of a client of the node: %v", err)
		}
		harness.Run(t, here, "sh", "-c", "echo used >>/workspace/used")
		here.Detach()
		if err := harness.Second(minority.Delete(ctx, f.on(1, 4), sandbox.DeleteOptions{})); !errors.Is(err, sandbox.ErrEngineUnavailable) {
			t.Errorf("Delete behind the partition of a sandbox beyond it: %v, want ErrEngineUnavailable", err)
		}
		if err := harness.Second(minority.Create(ctx, small(f.prefix+"-minority")...)); !errors.Is(err, sandbox.ErrEngineUnavailable) {
			t.Errorf("Create behind the partition: %v, want ErrEngineUnavailable", err)
		}
		name := f.on(2, 5+i)
		if i < 3 {
			if _, err := f.c.Delete(ctx, name, sandbox.DeleteOptions{Volumes: true}); err != nil {
				t.Errorf("Delete beyond the partition: %v", err)
			}
			f.drop(name)
		}
		select {
		case <-ended:
			f.gone = append(f.gone, f.prefix+"-minority")
			back()
			f.check("a partition")
			return
		default:
		}
	}
}
