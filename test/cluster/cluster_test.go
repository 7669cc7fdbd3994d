package cluster_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/internal/claim"
	"github.com/seed-1a2d6d8f/sandbox/internal/engine"
	"github.com/seed-1a2d6d8f/sandbox/internal/record"
	"github.com/seed-1a2d6d8f/sandbox/test/harness"
)

// A sandbox of a swarm has a life like any other's, and each client of the swarm sees it.
func TestSandboxOfASwarmLivesLikeAnyOther(t *testing.T) {
	t.Parallel()
	one, other := client(t, 0), client(t, 1)
	ctx, name := t.Context(), harness.UniqueName(t)
	sb, err := one.Create(ctx, sandbox.WithName(name), harness.Quick)
	if err != nil {
		t.Fatalf("Create: %v", err)
	}
	harness.Remove(t, one, name)
	if err := sb.WriteFile(ctx, "/workspace/f", []byte("kept"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, ref := range []string{name, sb.ID()} {
		again, err := other.Get(ctx, ref)
		if err != nil {
			t.Fatalf("Get(%q) of another manager: %v", ref, err)
		}
		if out := harness.Run(t, again, "cat", "/workspace/f"); out != "kept" || again.ID() != sb.ID() {
			t.Errorf("Get(%q): its file says %q and its ID is %s, want kept and %s", ref, out, again.ID(), sb.ID())
		}
		again.Detach()
	}
	if same, err := other.GetOrCreate(ctx, name); err != nil || same.ID() != sb.ID() {
		t.Errorf("GetOrCreate: %v, %v, want the sandbox", same, err)
	} else {
		same.Detach()
	}
	for what, opt := range map[string]sandbox.CreateOption{"name": sandbox.WithName(name), "ID as the name": sandbox.WithName(sb.ID()), "ID": sandbox.WithID(sb.ID())} {
		if _, err := other.Create(ctx, opt); !errors.Is(err, sandbox.ErrExists) {
			t.Errorf("Create with its %s: %v, want ErrExists", what, err)
		}
	}
	st, err := other.Inspect(ctx, name)
	if err != nil || !strings.HasPrefix(st.Location, "node") || st.State != sandbox.StateRunning {
		t.Errorf("Inspect: %s on %q, %v; want running on a node", st.State, st.Location, err)
	}
	forkName := harness.UniqueName(t)
	fork, err := other.Fork(ctx, name, sandbox.WithName(forkName))
	if err != nil {
		t.Fatalf("Fork: %v", err)
	}
	harness.Remove(t, one, forkName)
	infos, err := one.List(ctx, sandbox.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range []string{name, forkName} {
		i := slices.IndexFunc(infos, func(i sandbox.Info) bool { return i.Name == n })
		if i < 0 || infos[i].Location != st.Location {
			t.Errorf("List has %q at %d of %v, want it on %s", n, i, infos, st.Location)
		}
	}
	if err := fork.Detach(); err != nil {
		t.Error(err)
	}
	snap, err := sb.Snapshot(ctx, sandbox.SnapshotOptions{})
	if err != nil {
		t.Fatalf("Snapshot: %v", err)
	}
	if got, err := other.GetSnapshot(ctx, snap.ID); err != nil || got.SandboxID != sb.ID() {
		t.Errorf("GetSnapshot: %+v, %v", got, err)
	}
	fromName := harness.UniqueName(t)
	from, err := other.Create(ctx, sandbox.WithName(fromName), sandbox.WithSource(sandbox.FromSnapshot(snap.ID)), harness.Quick)
	if err != nil {
		t.Fatalf("Create from a snapshot: %v", err)
	}
	harness.Remove(t, one, fromName)
	if out := harness.Run(t, from, "cat", "/workspace/f"); out != "kept" {
		t.Errorf("the file of the snapshot says %q", out)
	}
	if from, err := from.Status(ctx); err != nil || from.Location != st.Location {
		t.Errorf("a sandbox from a snapshot is on %q, %v; want %q", from.Location, err, st.Location)
	}
	if _, err := sb.Stop(ctx); err != nil {
		t.Fatal(err)
	}
	if out := harness.Run(t, sb, "cat", "/workspace/f"); out != "kept" {
		t.Errorf("after a resume the file says %q", out)
	}
	if got := entriesOf(t, name, forkName, fromName); len(got) != 3 {
		t.Errorf("the swarm has entries of %q, want all 3", got)
	}
	if err := from.Detach(); err != nil {
		t.Error(err)
	}
	for _, n := range []string{fromName, forkName, name} {
		if _, err := other.Delete(ctx, n, sandbox.DeleteOptions{Volumes: true, Snapshots: true}); err != nil {
			t.Errorf("Delete(%q): %v", n, err)
		}
		if _, err := one.Get(ctx, n); !errors.Is(err, sandbox.ErrNotFound) {
			t.Errorf("Get(%q) of a deleted one: %v, want ErrNotFound", n, err)
		}
	}
	if _, err := one.GetSnapshot(ctx, snap.ID); err == nil {
		if err := other.DeleteSnapshot(ctx, snap.ID); err != nil { // its files were shared
			t.Errorf("DeleteSnapshot: %v", err)
		}
	}
	if got := entriesOf(t, name, forkName, fromName); len(got) != 0 {
		t.Errorf("the swarm has entries of %q, want none", got)
	}
}

// What clients without the swarm do on a node is seen, and what they leave in the swarm is removed.
func TestClientsWithoutTheSwarmShareItsNodes(t *testing.T) {
	t.Parallel()
	c, plain := client(t, 0), onNode(t, "node1")
	ctx, name := t.Context(), harness.UniqueName(t)
	made, err := plain.Create(ctx, sandbox.WithName(name), harness.Quick)
	if err != nil {
		t.Fatal(err)
	}
	harness.Remove(t, plain, name)
	got, err := c.Get(ctx, name)
	if err != nil || got.ID() != made.ID() {
		t.Fatalf("Get of a sandbox without an entry: %v, %v", got, err)
	}
	got.Detach()
	onIt := sandbox.WithPlacement("node.hostname==node1")
	if _, err := c.Create(ctx, sandbox.WithName(name), onIt); !errors.Is(err, sandbox.ErrExists) {
		t.Errorf("Create of its name: %v, want ErrExists", err)
	}
	made.Detach()
	for i, find := range []func() error{
		func() error { return harness.Second(c.Get(ctx, name)) },
		func() error { return harness.Second(c.Prune(ctx)) },
	} {
		if _, err := plain.Delete(ctx, name, sandbox.DeleteOptions{Volumes: true}); err != nil {
			t.Fatal(err)
		}
		if i == 0 && len(entriesOf(t, name)) != 0 {
			t.Error("a plain client's sandbox had an entry")
		}
		sb, err := c.Create(ctx, sandbox.WithName(name), onIt, harness.Quick)
		if err != nil {
			t.Fatalf("Create: %v", err)
		}
		sb.Detach()
		if _, err := plain.Delete(ctx, name, sandbox.DeleteOptions{Volumes: true}); err != nil {
			t.Fatal(err)
		}
		if got := entriesOf(t, name); len(got) != 1 {
			t.Fatalf("the entry went with the sandbox that a plain client deleted: %q", got)
		}
		if err := find(); i == 0 && !errors.Is(err, sandbox.ErrNotFound) || i == 1 && err != nil {
			t.Errorf("who finds the entry: %v", err)
		}
		if got := entriesOf(t, name); len(got) != 0 {
			t.Errorf("the entry of a sandbox that is gone stays: %q", got)
		}
		if i == 0 {
			if sb, err = c.Create(ctx, sandbox.WithName(name), onIt, harness.Quick); err != nil {
				t.Fatal(err)
			}
			sb.Detach()
		}
	}
}

// small are the options of a sandbox that takes an eighth of a CPU.
func small(name string, opts ...sandbox.CreateOption) []sandbox.CreateOption {
	return append(opts, sandbox.WithName(name), sandbox.WithVCPUs(0.125), sandbox.WithMemory(64<<20), harness.Quick)
}

// roomFor is the overcommit with which there is room for n sandboxes of that size on each node, and
// which other tests' sandboxes would exceed.
func roomFor(t *testing.T, n int) sandbox.SwarmOption {
	t.Helper()
	all, err := manager(t).Nodes(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return sandbox.WithOvercommit(float64(n)*0.125/(float64(all[0].NanoCPUs)/1e9), 1)
}

// This test is not parallel to others, whose sandboxes take room.
func TestNodesTakeWhatTheyHaveRoomFor(t *testing.T) {
	room := roomFor(t, 2)
	c := client(t, 0, room)
	ctx := t.Context()
	var all []*sandbox.Sandbox
	create := func() error {
		name := harness.UniqueName(t)
		sb, err := c.Create(ctx, small(name)...)
		if err == nil {
			harness.Remove(t, c, name)
			all = append(all, sb)
		}
		return err
	}
	for range 2 * len(addresses) {
		if err := create(); err != nil {
			t.Fatalf("Create with %d sandboxes: %v", len(all), err)
		}
	}
	full := func(what string, err error) {
		t.Helper()
		var e *sandbox.Error
		if !errors.Is(err, sandbox.ErrNoCapacity) || !errors.As(err, &e) || e.StatusCode() != 503 {
			t.Errorf("%s: %v, want ErrNoCapacity with status 503", what, err)
		}
	}
	before := everything(t)
	err := create()
	full("Create on full nodes", err)
	for i := range addresses {
		if want := fmt.Sprintf("node node%d uses 0.25 of 0.25 CPUs", i+1); err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("the error does not say %q: %v", want, err)
		}
	}
	forkName := harness.UniqueName(t)
	full("Fork on a full node", harness.Second(c.Fork(ctx, all[0].Name(), sandbox.WithName(forkName))))
	full("Update to more CPUs", all[0].Update(ctx, sandbox.WithVCPUs(0.25)))
	if after := everything(t); !slices.Equal(before, after) {
		t.Errorf("calls that found no room left\n%q, before them there was\n%q", after, before)
	}
	if err := all[0].Update(ctx, sandbox.WithVCPUs(0.0625), sandbox.WithMemory(64<<20)); err != nil {
		t.Errorf("Update to fewer CPUs: %v", err)
	}
	if err := all[0].Update(ctx, sandbox.WithVCPUs(0.125), sandbox.WithMemory(64<<20)); err != nil {
		t.Errorf("Update to as many as before: %v", err)
	}
	stopped := all[0]
	if _, err := stopped.Stop(ctx); err != nil {
		t.Fatal(err)
	}
	if err := create(); err != nil {
		t.Fatalf("Create after a Stop: %v", err)
	}
	full("Start on a full node", harness.Second(stopped.Start(ctx)))
	full("Get on a full node", harness.Second(c.Get(ctx, stopped.Name())))
	// A client that allows more is not held up by one that allows less.
	if h, err := client(t, 0).Get(ctx, stopped.Name()); err != nil {
		t.Errorf("Get of a client with the default overcommit: %v", err)
	} else if _, err := h.Stop(ctx); err != nil {
		t.Error(err)
	}
	if _, err := all[len(all)-1].Delete(ctx, sandbox.DeleteOptions{Volumes: true}); err != nil {
		t.Fatal(err)
	}
	if _, err := stopped.Start(ctx); err != nil {
		t.Errorf("Start after the deletion of another: %v", err)
	}
}

// everything names what sandboxes have on all nodes and in the swarm.
func everything(t *testing.T) (all []string) {
	t.Helper()
	for i, host := range addresses {
		eng, err := engine.Open(t.Context(), engine.Options{Host: host})
		if err != nil {
			t.Fatal(err)
		}
		defer eng.Close()
		names, err := held(t.Context(), eng, i == 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, n := range names {
			all = append(all, fmt.Sprintf("%d %s", i+1, n))
		}
	}
	return all
}

// This test is not parallel to others, whose sandboxes take room.
func TestOneOfTwoGetsTheLastPlace(t *testing.T) {
	room := roomFor(t, 1)
	for round := range harness.Rounds(3, 20) {
		var creates sync.WaitGroup
		made := make([]*sandbox.Sandbox, 2*len(addresses))
		errs := make([]error, len(made))
		for i := range made {
			c, name := client(t, i, room), harness.UniqueName(t)
			harness.Remove(t, c, name)
			creates.Go(func() { made[i], errs[i] = c.Create(t.Context(), small(name)...) })
		}
		creates.Wait()
		won := 0
		for i, err := range errs {
			switch {
			case err == nil:
				won++
				if _, err := made[i].Delete(t.Context(), sandbox.DeleteOptions{Volumes: true}); err != nil {
					t.Fatal(err)
				}
			case !errors.Is(err, sandbox.ErrNoCapacity):
				t.Errorf("round %d: %v, want ErrNoCapacity", round, err)
			}
		}
		if won != len(addresses) {
			t.Errorf("round %d: %d of %d got the last places of %d nodes, want as many as nodes: %v", round, won, len(made), len(addresses), errors.Join(errs...))
		}
	}
}

// Constraints mean what they mean to Swarm itself, which places a service by them, or does not.
func TestPlacementMeansWhatItMeansToSwarm(t *testing.T) {
	t.Parallel()
	c := client(t, 0)
	ctx := t.Context()
	docker(t, "node", "update", "--label-add", "color=blue", "node1")
	t.Cleanup(func() { docker(t, "node", "update", "--label-rm", "color", "node1") })
	for _, constraint := range []string{
		"node.labels.color == BLUE", "node.labels.color!=blue", "node.labels.colour!=blue", "NODE.HOSTNAME==node1", "node.role==manager", "node.role==worker",
		"node.platform.os==linux", "node.platform.arch==amd64", "node.platform.arch==x86_64", "node.ip==10.77.0.0/24", "node.ip!=10.77.0.1", "engine.labels.none==x",
	} {
		both := []string{constraint, "node.hostname==node1"}
		service := docker(t, "service", "create", "--quiet", "--detach", "--no-resolve-image", "--network", "host", "--restart-condition", "none",
			"--constraint", both[0], "--constraint", both[1], "node:20-bookworm", "true")
		want := ""
		for want == "" { // "No such" and "Pending" are for a moment, but the latter with an error
			for _, line := range strings.Split(docker(t, "service", "ps", "--no-trunc", "--format", "{{.Node}} {{.Error}}", service), "\n") {
				switch {
				case strings.Contains(line, "no suitable node"):
					want = "none"
				case strings.HasPrefix(line, "node1"):
					want = "node1"
				}
			}
		}
		docker(t, "service", "rm", service)
		err := harness.Second(c.Create(ctx, sandbox.WithPlacement(both...), sandbox.WithImage("nothing-has-this-image:1")))
		got := fmt.Sprintf("an error: %v", err)
		switch {
		case errors.Is(err, sandbox.ErrNoCapacity):
			got = "none"
		case errors.Is(err, sandbox.ErrImageNotFound) && strings.Contains(err.Error(), "node node1:"):
			got = "node1"
		}
		if got != want {
			t.Errorf("WithPlacement(%q) places it on %s, Swarm on %s", constraint, got, want)
		}
	}
}

func TestPlacementIsCheckedBeforeAnyCall(t *testing.T) {
	t.Parallel()
	c := harness.Unconnected(t, sandbox.WithHost("tcp://192.0.2.1:1"), sandbox.WithSwarm())
	for _, wrong := range []string{"", "gpu==true", "node.labels.gpu", "node.labels.gpu=true", "node.labels.==x", "node.labels.x==", "node.id==a;b"} {
		if _, err := c.Create(t.Context(), sandbox.WithPlacement(wrong)); !errors.Is(err, sandbox.ErrInvalidArgument) {
			t.Errorf("WithPlacement(%q): %v, want ErrInvalidArgument", wrong, err)
		}
	}
	for _, o := range []sandbox.SwarmOption{sandbox.WithOvercommit(0, 1), sandbox.WithOvercommit(1, -1), sandbox.WithNodeHost(nil)} {
		if c, err := sandbox.NewClient(sandbox.WithSwarm(o)); !errors.Is(err, sandbox.ErrInvalidArgument) {
			t.Errorf("NewClient: %v, %v, want ErrInvalidArgument", c, err)
		}
	}
}

// An engine in no swarm, or an option that is for a swarm alone, is an error that says so.
func TestWithoutASwarmItSaysSo(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	plain := onNode(t, "node1")
	if _, err := plain.Create(ctx, sandbox.WithPlacement("node.role==manager")); !errors.Is(err, sandbox.ErrInvalidArgument) {
		t.Errorf("WithPlacement without a swarm: %v, want ErrInvalidArgument", err)
	}
	if _, err := plain.GetOrCreate(ctx, harness.UniqueName(t), sandbox.WithPlacement("node.role==manager")); !errors.Is(err, sandbox.ErrInvalidArgument) {
		t.Errorf("WithPlacement without a swarm: %v, want ErrInvalidArgument", err)
	}
	c := harness.NewClient(t, sandbox.WithHost("unix:///var/run/docker.sock"), sandbox.WithSwarm()) // the machine's
	if _, err := c.List(ctx, sandbox.ListOptions{}); !errors.Is(err, sandbox.ErrUnsupported) || !strings.Contains(err.Error(), "docker swarm init") {
		t.Errorf("List with an engine in no swarm: %v, want ErrUnsupported", err)
	}
}

// A volume that only one node has decides where a sandbox is.
func TestSandboxIsWhereItsVolumesAre(t *testing.T) {
	t.Parallel()
	c := client(t, 0)
	ctx, name := t.Context(), harness.UniqueName(t)
	last := fmt.Sprintf("node%d", len(addresses))
	sb, err := c.Create(ctx, small(name, sandbox.WithPlacement("node.hostname=="+last))...)
	if err != nil {
		t.Fatal(err)
	}
	harness.Remove(t, c, name)
	if err := sb.WriteFile(ctx, "/workspace/f", []byte("kept"), 0o644); err != nil {
		t.Fatal(err)
	}
	id := sb.ID()
	if _, err := sb.Delete(ctx, sandbox.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	volumes, err := c.OrphanedVolumes(ctx)
	i := slices.IndexFunc(volumes, func(v sandbox.Volume) bool { return strings.Contains(v.Name, id) })
	if err != nil || i < 0 {
		t.Fatalf("OrphanedVolumes has %v, %v, want the workspace of %s", volumes, err, id)
	}
	again, err := c.Create(ctx, small(name, sandbox.WithID(id))...)
	if err != nil {
		t.Fatalf("Create with a preserved workspace: %v", err)
	}
	if st, err := again.Summary(ctx); err != nil || st.Location != last || harness.Run(t, again, "cat", "/workspace/f") != "kept" {
		t.Errorf("it is on %q, %v; want its files on %s", st.Location, err, last)
	}
	if _, err := again.Delete(ctx, sandbox.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	report, err := c.CleanupOrphanedVolumes(ctx, sandbox.CleanupOptions{Select: func(v sandbox.Volume) bool { return v.Name == volumes[i].Name }})
	if err != nil || !slices.Equal(report.Removed, []string{volumes[i].Name}) {
		t.Errorf("CleanupOrphanedVolumes: %v, %v, want %s", report.Removed, err, volumes[i].Name)
	}
	if err := harness.Second(c.DeleteVolume(context.WithoutCancel(ctx), volumes[i].Name, sandbox.DeleteVolumeOptions{})); !errors.Is(err, sandbox.ErrVolumeNotFound) {
		t.Errorf("DeleteVolume of a removed one: %v, want ErrVolumeNotFound", err)
	}
}

// A client's sweep of a node frees the names that it has nothing of, and no other.
func TestSweepFreesNames(t *testing.T) {
	t.Parallel()
	c, own, ctx := client(t, 0), manager(t), t.Context()
	all, err := own.Nodes(ctx)
	if err != nil {
		t.Fatal(err)
	}
	kept, dead, young := harness.UniqueName(t), harness.UniqueName(t), harness.UniqueName(t)
	sb, err := c.Create(ctx, small(kept)...)
	if err != nil {
		t.Fatal(err)
	}
	harness.Remove(t, c, kept)
	sb.Detach()
	for name, age := range map[string]time.Duration{dead: claim.Lease + time.Second, young: -time.Hour} {
		en := record.Entry{Name: name, ID: name, Nonce: record.NewNonce(), Node: all[0].ID, Host: all[0].Hostname, CreatedAt: own.Now().Add(-age)}
		if err := own.CreateEntry(ctx, record.EntryName(name), en.Labels()); err != nil {
			t.Fatal(err)
		}
	}
	harness.Eventually(t, "the name of a dead creator is freed", func() bool {
		// Another client may have had this minute's turn.
		if err := own.RemoveVolume(ctx, record.SweepName(own.Now()), false); err != nil && !errors.Is(err, engine.ErrNotFound) {
			t.Fatal(err)
		}
		c := client(t, 0)
		if _, err := c.List(ctx, sandbox.ListOptions{}); err != nil {
			t.Fatal(err)
		}
		for range 20 {
			if _, err := own.FindEntry(ctx, record.EntryName(dead)); errors.Is(err, engine.ErrNotFound) {
				return true
			}
			time.Sleep(100 * time.Millisecond)
		}
		return false
	})
	if got := entriesOf(t, kept, young); len(got) != 2 {
		t.Errorf("of names with a sandbox and of a moment ago the swarm has %q, want both", got)
	}
	// Who asks for a name frees it at once.
	if _, err := c.Get(ctx, young); !errors.Is(err, sandbox.ErrNotFound) {
		t.Errorf("Get of a name without a sandbox: %v, want ErrNotFound", err)
	}
	if got := entriesOf(t, young); len(got) != 0 {
		t.Errorf("after a Get the swarm has %q", got)
	}
}
