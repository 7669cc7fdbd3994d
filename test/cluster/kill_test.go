package cluster_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/internal/engine"
	"github.com/seed-1a2d6d8f/sandbox/internal/enginetest"
	"github.com/seed-1a2d6d8f/sandbox/internal/record"
	"github.com/seed-1a2d6d8f/sandbox/test/harness"
)

func init() { harness.AddRole("mortal", mortal) }

// mortal creates, deletes or moves a sandbox of the swarm on request, or finds its deletion noted: HOST HOST2 VERB NAME. HOST2 is the
// address of node2.
func mortal(args []string) error {
	ctx := context.Background()
	host2 := args[1]
	c, err := sandbox.NewClient(sandbox.WithHost(args[0]), sandbox.WithSwarm(sandbox.WithNodeHost(func(n sandbox.Node) string {
		if n.Name == "node2" {
			return host2
		}
		return hostOf(n)
	})))
	if err != nil {
		return err
	}
	if _, err := c.Nodes(ctx); err != nil { // which connects
		return err
	}
	fmt.Println("ready")
	if _, err := fmt.Scanln(); err != nil && err.Error() != "unexpected newline" {
		return err
	}
	switch verb, name := args[2], args[3]; verb {
	case "delete":
		return harness.Second(c.Delete(ctx, name, sandbox.DeleteOptions{Volumes: true}))
	case "move":
		return harness.Second(c.Move(ctx, name, "node2"))
	case "find":
		if err := harness.Second(c.Get(ctx, name)); !errors.Is(err, sandbox.ErrNotFound) {
			return fmt.Errorf("a sandbox whose deletion is noted: %w", err)
		}
		return nil
	}
	sb, err := c.Create(ctx, small(args[3], sandbox.WithPlacement("node.hostname==node1"))...)
	if err == nil {
		err = sb.Detach()
	}
	return err
}

// A program that is killed at any of its calls leaves a sandbox with its name, or neither, once the
// lease of a dead one is over.
func TestSwarmSurvivesTheDeathOfItsPrograms(t *testing.T) {
	nodes(t, 3)
	c, ctx := client(t, 0), t.Context()
	var mu sync.Mutex
	var names []string
	verbOf := map[string]string{}
	// trial kills a program at its k-th call to node1, which is its manager, or to node2.
	trial := func(verb, node string, k int) (calls []string) {
		name := harness.UniqueName(t)
		mu.Lock()
		names = append(names, name)
		verbOf[name] = verb
		mu.Unlock()
		if verb != "create" {
			sb, err := c.Create(ctx, small(name, sandbox.WithPlacement("node.hostname==node1"))...)
			if err == nil && verb == "move" {
				if err = sb.Command(ctx, "sh", "-ec", "echo one >/workspace/f; echo two >/opt/f; rm /etc/issue").Run(); err == nil {
					_, err = sb.Stop(ctx)
				}
			}
			if err != nil {
				t.Error(err)
				return nil
			}
			sb.Detach()
		}
		if verb == "find" {
			noteDeletion(t, name)
		}
		proxies := map[string]*enginetest.Proxy{"node1": enginetest.NewProxyTo(t, addresses[0]), "node2": enginetest.NewProxyTo(t, addresses[1])}
		cmd := harness.Process(t, "mortal", proxies["node1"].Host(), proxies["node2"].Host(), verb, name)
		goOn := harness.Ready(t, cmd)
		fault := enginetest.Cancel
		if k == 0 {
			fault = enginetest.None
		}
		proxies[node].Arm(k, fault, func() { cmd.Process.Kill() })
		goOn()
		err := cmd.Wait()
		calls = proxies[node].Calls()
		proxies[node].Disarm()
		if k == 0 && err != nil {
			t.Errorf("%s: %v", verb, err)
		}
		return calls
	}
	trial("create", "node1", 0) // which places the guest
	for _, part := range []struct{ verb, node string }{{"create", "node1"}, {"delete", "node1"}, {"find", "node1"}, {"move", "node1"}, {"move", "node2"}} {
		t.Run(part.verb+" "+part.node, func(t *testing.T) {
			calls := trial(part.verb, part.node, 0)
			t.Logf("%s has %d calls of %s: %q", part.verb, len(calls), part.node, calls)
			var trials errgroup.Group
			trials.SetLimit(4)
			for k := range calls {
				trials.Go(func() error { trial(part.verb, part.node, k+1); return nil })
			}
			trials.Wait()
		})
	}
	var strange []string
	for deadline := time.Now().Add(4 * time.Minute); time.Now().Before(deadline); time.Sleep(time.Second) {
		if report, err := c.Prune(ctx); err != nil {
			t.Errorf("Prune: %v, %v", report, err)
		}
		if strange = inconsistent(t, names); len(strange) == 0 {
			break
		}
	}
	if len(strange) > 0 {
		t.Errorf("after leases and sweeps: %s", strings.Join(strange, "; "))
	}
	whole, at := map[string]int{}, map[string]int{} // by verb, and moved ones by node
	for _, name := range names {
		sb, err := c.Get(ctx, name)
		if errors.Is(err, sandbox.ErrNotFound) && verbOf[name] != "move" {
			continue
		}
		if err != nil {
			t.Errorf("Get of what a dead program created or deleted: %v", err)
			continue
		}
		if whole[verbOf[name]]++; verbOf[name] == "find" {
			t.Errorf("%s is there, whose deletion is noted", name)
		}
		script, want := "true", ""
		if verbOf[name] == "move" {
			script, want = "cat /workspace/f /opt/f; ls /etc/issue 2>/dev/null || true", "one\ntwo\n"
			st, err := sb.Summary(ctx)
			if at[st.Location]++; err != nil {
				t.Error(err)
			}
		}
		if out, err := sb.Command(ctx, "sh", "-c", script).Output(); err != nil || string(out) != want {
			t.Errorf("a command in what a program that died has left of %s: %q, %v, want %q", verbOf[name], out, err, want)
		}
		if _, err := sb.Delete(ctx, sandbox.DeleteOptions{Volumes: true}); err != nil {
			t.Error(err)
		}
	}
	t.Logf("of %d sandboxes these are whole: %v, the others gone; of those to be moved on each node: %v", len(names), whole, at)
	for _, left := range everything(t) {
		if slices.ContainsFunc(names, func(name string) bool { return strings.Contains(left, name) }) {
			t.Errorf("left: %s", left)
		}
	}
}

// noteDeletion does what a deletion does that can't reach the node.
func noteDeletion(t *testing.T, name string) {
	t.Helper()
	m := manager(t)
	en, err := m.FindEntry(t.Context(), record.EntryName(name))
	if err == nil {
		labels := maps.Clone(en.Labels)
		labels[record.Deletes] = `{"volumes":true}`
		err = m.UpdateEntry(t.Context(), en, labels)
	}
	if err != nil {
		t.Error(err)
	}
}

// inconsistent reads every engine and the managers' store, and says what is wrong with these names: two
// sandboxes of one, a sandbox without an entry or with that of another node or life, an entry or a marker
// without a sandbox.
func inconsistent(t *testing.T, names []string) (strange []string) {
	t.Helper()
	list, err := manager(t).ListEntries(t.Context(), record.Filter(record.Managed, "true"))
	if err != nil {
		t.Fatal(err)
	}
	entries := map[string]record.Entry{}
	for _, got := range list {
		if en, ok := record.DecodeEntry(got.Labels); ok && slices.Contains(names, en.Name) {
			entries[en.Name] = en
		}
	}
	there := map[string]string{} // the node that has a sandbox
	for i := range addresses {
		node := fmt.Sprintf("node%d", i+1)
		eng := engineOf(t, node)
		containers, err := eng.ListContainers(t.Context(), engine.Filter{Labels: []string{record.Filter(record.Managed, "true")}})
		if err != nil {
			t.Fatal(err)
		}
		for _, got := range containers {
			rec, ok := record.Decode(got.Labels)
			if !ok || !slices.Contains(names, rec.Name) {
				continue
			}
			if other := there[rec.Name]; other != "" {
				strange = append(strange, fmt.Sprintf("%s has two sandboxes, on %s and on %s", rec.Name, other, node))
			}
			there[rec.Name] = node
			if en, ok := entries[rec.Name]; !ok || en.Host != node || en.Nonce != rec.Nonce {
				strange = append(strange, fmt.Sprintf("%s is on %s and its entry is %+v", rec.Name, node, en))
			}
		}
		volumes, err := eng.ListVolumes(t.Context(), record.Filter(record.Managed, "true"))
		if err != nil {
			t.Fatal(err)
		}
		for _, v := range volumes {
			if slices.Contains(names, v.Labels[record.Name]) && there[v.Labels[record.Name]] != node {
				strange = append(strange, fmt.Sprintf("%s has %s and no sandbox", node, v.Name))
			}
		}
	}
	for name := range entries {
		if there[name] == "" {
			strange = append(strange, name+" has an entry and no sandbox")
		}
	}
	return strange
}
