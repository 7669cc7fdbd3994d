package cluster_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/internal/enginetest"
	"github.com/seed-1a2d6d8f/sandbox/test/harness"
)

// linkDelay is what is added to each reply of each engine.
const linkDelay = 50 * time.Millisecond

// Each verb on slow links takes as many round trips in sequence, over all engines, as the table in the log
// says, which is that of docs/cluster.md. A verb that asks no manager takes as many as without a swarm.
func TestRoundTripsOfEachVerb(t *testing.T) {
	nodes(t, 3)
	one, many := tripsOf(t, false), tripsOf(t, true)
	var table strings.Builder
	for i, m := range many {
		of := "–"
		for _, o := range one {
			if o.verb != m.verb {
				continue
			}
			of = fmt.Sprint(o.n)
			if m.same && m.n > o.n+1 { // a slow machine may make one more of what overlaps
				t.Errorf("%s: %d round trips in a swarm, %d without", m.verb, m.n, o.n)
			}
		}
		if m.n == 0 && m.verb != "Detach" {
			t.Errorf("%s: no round trip was counted", m.verb)
		}
		fmt.Fprintf(&table, "\n| %s | %d | %s | %d |", many[i].verb, m.n, of, m.took.Milliseconds())
	}
	t.Logf("with %v on each link\n| call | round trips | of one engine | ms |\n|---|---|---|---|%s", linkDelay, table.String())
}

type tripCount struct {
	verb string
	n    int
	took time.Duration
	same bool // whether it asks nobody but the sandbox's node
}

// tripsOf counts the round trips of each verb, in a swarm with the sandbox on another node than the
// manager that is asked, or on that node alone.
func tripsOf(t *testing.T, swarm bool) (counts []tripCount) {
	t.Helper()
	proxies := map[string]*enginetest.Proxy{}
	var trips *enginetest.Trips
	for i, address := range addresses {
		p := enginetest.NewProxyTo(t, address)
		proxies[fmt.Sprintf("node%d", i+1)] = p
		if trips == nil {
			trips = p.CountTrips(linkDelay)
		}
		p.CountIn(trips)
	}
	newClient := func() *sandbox.Client {
		if !swarm {
			return harness.NewClient(t, sandbox.WithHost(proxies["node2"].Host()))
		}
		return harness.NewClient(t, sandbox.WithHost(proxies["node1"].Host()),
			sandbox.WithSwarm(sandbox.WithNodeHost(func(n sandbox.Node) string { return proxies[n.Name].Host() })))
	}
	c, ctx, name := newClient(), t.Context(), harness.UniqueName(t)
	count := func(verb string, same bool, fn func() error) {
		t.Helper()
		trips.Reset()
		began := time.Now()
		if err := fn(); err != nil {
			t.Fatalf("%s: %v", verb, err)
		}
		counts = append(counts, tripCount{verb, trips.Count(), time.Since(began), same})
		time.Sleep(2500 * time.Millisecond) // the list of nodes is not used any more, and nothing is under way
	}
	var place []sandbox.CreateOption
	if swarm {
		place = append(place, sandbox.WithPlacement("node.hostname==node2"))
	}
	create := func(name string) (*sandbox.Sandbox, error) { return c.Create(ctx, small(name, place...)...) }
	// What a client asks once is not counted: facts about engines, the guest, connections.
	for range 2 {
		first := harness.UniqueName(t)
		harness.Remove(t, c, first)
		sb, err := create(first)
		if err == nil {
			_, err = sb.Delete(ctx, sandbox.DeleteOptions{Volumes: true})
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if _, err := c.List(ctx, sandbox.ListOptions{}); err != nil { // which sweeps
		t.Fatal(err)
	}
	time.Sleep(2500 * time.Millisecond)
	harness.Remove(t, c, name)
	var sb *sandbox.Sandbox
	var snap sandbox.Snapshot
	count("Create", false, func() (err error) { sb, err = create(name); return err })
	count("first command", true, func() error { return sb.Command(ctx, "true").Run() })
	count("command", true, func() error { return sb.Command(ctx, "true").Run() })
	count("WriteFile", true, func() error { return sb.WriteFile(ctx, "/workspace/f", []byte("x"), 0o644) })
	count("Get by name, again", true, func() error {
		again, err := c.Get(ctx, name)
		if err == nil {
			err = again.Detach()
		}
		return err
	})
	other := newClient()
	if _, err := other.List(ctx, sandbox.ListOptions{}); err != nil {
		t.Fatal(err)
	}
	time.Sleep(2500 * time.Millisecond)
	count("Get by name, first", false, func() error {
		again, err := other.Get(ctx, name)
		if err == nil {
			err = again.Detach()
		}
		return err
	})
	count("Inspect", true, func() error { return harness.Second(c.Inspect(ctx, name)) })
	count("List", false, func() error { return harness.Second(c.List(ctx, sandbox.ListOptions{})) })
	count("Update of tags", true, func() error { return sb.Update(ctx, sandbox.WithTags(map[string]string{"a": "b"})) })
	count("Snapshot", true, func() (err error) { snap, err = sb.Snapshot(ctx, sandbox.SnapshotOptions{}); return err })
	fork := harness.UniqueName(t)
	harness.Remove(t, c, fork)
	count("Fork", false, func() error {
		forked, err := c.Fork(ctx, name, sandbox.WithName(fork))
		if err == nil {
			err = forked.Detach()
		}
		return err
	})
	count("DeleteSnapshot", false, func() error { return c.DeleteSnapshot(ctx, snap.ID) })
	count("Stop", true, func() error { return harness.Second(sb.Stop(ctx)) })
	count("Start", false, func() error { return harness.Second(sb.Start(ctx)) })
	if swarm {
		if _, err := sb.Stop(ctx); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2500 * time.Millisecond)
		count("Move", false, func() error { return harness.Second(c.Move(ctx, name, "node3")) })
	}
	count("Delete", false, func() error { return harness.Second(c.Delete(ctx, name, sandbox.DeleteOptions{Volumes: true})) })
	return counts
}
