package cluster_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/internal/engine"
	"github.com/seed-1a2d6d8f/sandbox/internal/enginetest"
	"github.com/seed-1a2d6d8f/sandbox/internal/record"
	"github.com/seed-1a2d6d8f/sandbox/test/harness"
)

// addresses are those of the swarm's engines, see ci/cluster. All are managers.
var addresses = strings.Fields(os.Getenv("SANDBOX_CLUSTER"))

// TestMain runs the tests in ci/cluster, with one node unless they run there already.
func TestMain(m *testing.M) {
	flag.Parse()
	listing := flag.Lookup("test.list").Value.String() != ""
	if len(addresses) == 0 && !testing.Short() && !listing {
		cmd := exec.Command("../../ci/cluster", os.Args...)
		cmd.Env = append(os.Environ(), "NODES=1")
		cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
		err := cmd.Run()
		var exit *exec.ExitError
		switch {
		case errors.As(err, &exit):
			os.Exit(exit.ExitCode())
		case err != nil:
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	harness.Main(m, nothingLeft)
}

// nothingLeft fails if a node holds anything but the guest, or the swarm an entry.
func nothingLeft() error {
	var errs []error
	for i, host := range addresses {
		eng, err := engine.Open(context.Background(), engine.Options{Host: host})
		if err != nil {
			return err
		}
		defer eng.Close()
		var left []string
		for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Second) {
			left, err = held(context.Background(), eng, i == 0)
			if err != nil || len(left) == 0 || time.Now().After(deadline) {
				break
			}
		}
		if err != nil || len(left) > 0 {
			errs = append(errs, fmt.Errorf("left on node %d (%w): %s", i+1, err, strings.Join(left, ", ")))
		}
	}
	return errors.Join(errs...)
}

// held names what sandboxes have on an engine and, if asked, in the swarm.
func held(ctx context.Context, eng *engine.Engine, entries bool) (names []string, err error) {
	managed := record.Filter(record.Managed, "true")
	containers, err := eng.ListContainers(ctx, engine.Filter{Labels: []string{managed}})
	for _, c := range containers {
		names = append(names, "container "+c.Name)
	}
	volumes, err2 := eng.ListVolumes(ctx, managed)
	for _, v := range volumes {
		if role := v.Labels[record.Role]; role != record.RoleGuest && role != record.RoleSweep {
			names = append(names, "volume "+v.Name)
		}
	}
	if !entries {
		return names, errors.Join(err, err2)
	}
	list, err3 := eng.ListEntries(ctx, managed)
	for _, en := range list {
		names = append(names, "entry "+en.Name)
	}
	return names, errors.Join(err, err2, err3)
}

// nodes leaves a test that takes more nodes than there are to make test-cluster.
func nodes(t *testing.T, n int) {
	t.Helper()
	enginetest.Need(t)
	if len(addresses) < n {
		t.Skipf("it takes %d nodes: make test-cluster runs it", n)
	}
}

// hostOf is the address of a node's engine, by the node's name.
func hostOf(n sandbox.Node) string {
	return fmt.Sprintf("tcp://10.77.0.%s:2375", strings.TrimPrefix(n.Name, "node"))
}

// client returns a client of the swarm that asks the i-th manager.
func client(t *testing.T, i int, opts ...sandbox.SwarmOption) *sandbox.Client {
	t.Helper()
	enginetest.Need(t)
	return harness.NewClient(t, sandbox.WithHost(addresses[i%len(addresses)]), sandbox.WithSwarm(opts...))
}

// onNode returns a client of the node of that name alone.
func onNode(t *testing.T, name string) *sandbox.Client {
	t.Helper()
	return harness.NewClient(t, sandbox.WithHost(hostOf(sandbox.Node{Name: name})))
}

// manager is the engine of the first manager, beside the library.
func manager(t *testing.T) *engine.Engine {
	t.Helper()
	enginetest.Need(t)
	eng, err := engine.Open(t.Context(), engine.Options{Host: addresses[0]})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { eng.Close() })
	return eng
}

// entriesOf names the entries of sandboxes with these names.
func entriesOf(t *testing.T, names ...string) (found []string) {
	t.Helper()
	list, err := manager(t).ListEntries(t.Context(), record.Filter(record.Managed, "true"))
	if err != nil {
		t.Fatal(err)
	}
	for _, got := range list {
		if en, ok := record.DecodeEntry(got.Labels); ok && slices.Contains(names, en.Name) {
			found = append(found, en.Name)
		}
	}
	slices.Sort(found)
	return found
}

// docker runs the docker command on the first manager.
func docker(t *testing.T, args ...string) string {
	t.Helper()
	out, err := exec.Command("docker", args...).CombinedOutput()
	if err != nil {
		t.Fatalf("docker %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return strings.TrimSpace(string(out))
}
