package cluster_test

import (
	"context"
	"errors"
	"fmt"
	"net/http/httptest"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/internal/enginetest"
	"github.com/seed-1a2d6d8f/sandbox/sandboxhttp"
	"github.com/seed-1a2d6d8f/sandbox/test/harness"
)

// place writes files of all kinds to a directory, and to one of the image.
const place = `cd /workspace && mkdir -p d/e && echo one >d/f && chmod 4751 d/f && chown 12:34 d/f && ln d/f d/e/hard && ln -s ../d/f soft && ln -s /nowhere dangling &&
	mkfifo -m 640 pipe && truncate -s 1M sparse && echo end >>sparse && touch -d '2001-02-03 04:05:06.123456789' d/f d && touch -h -d '2002-02-03 04:05:06.5' soft &&
	mkdir -p /opt/own/deep && echo two >/opt/own/deep/f && chmod 600 /opt/own/deep/f && chown 56:78 /opt/own /opt/own/deep/f && ln /opt/own/deep/f /opt/own/hard &&
	ln -s deep/f /opt/own/soft && touch -d '2003-02-03 04:05:06.987654321' /opt/own/deep/f /opt/own/deep && echo more >>/etc/profile && rm /etc/issue &&
	rm -r /etc/apt && mkdir /etc/apt && echo new >/etc/apt/new && chmod 1777 /mnt`

// seen prints what place has written, with mode, owner, links and times.
const seen = `cd /workspace; find . /opt /etc/apt /etc/profile /etc/issue /mnt -printf '%p %y %m %U:%G %n %s %T@ %l\n' 2>/dev/null | sort; cat d/e/hard soft /opt/own/soft /etc/profile /etc/apt/new | sha256sum; tail -c 4 sparse; ls -1i d/f d/e/hard | cut -d' ' -f1 | uniq | wc -l`

// A sandbox that is moved has the same files, settings and identity on the other node, and the first
// one has nothing of it.
func TestMovedSandboxIsTheSame(t *testing.T) {
	nodes(t, 3)
	c, other := client(t, 0), client(t, 2)
	ctx, name := t.Context(), harness.UniqueName(t)
	sb, err := c.Create(ctx, sandbox.WithName(name), harness.Quick, sandbox.WithPlacement("node.hostname==node1"), sandbox.WithTags(map[string]string{"a": "b"}),
		sandbox.WithEnv(map[string]string{"LIKE": "this"}), sandbox.WithUser("0"), sandbox.WithVCPUs(0.25), sandbox.WithMemory(96<<20),
		sandbox.WithMounts(sandbox.Mount{Source: t.TempDir(), Target: "/copied", Mode: sandbox.RWCopy}))
	if err != nil {
		t.Fatal(err)
	}
	harness.Remove(t, c, name)
	harness.Run(t, sb, "sh", "-ec", place+" && echo c >/copied/f")
	if err := sb.Update(ctx, sandbox.WithTags(map[string]string{"a": "c"}), sandbox.WithEnv(map[string]string{"AND": "that"}), sandbox.WithNetworkPolicy(sandbox.DenyAll())); err != nil {
		t.Fatal(err)
	}
	before := harness.Run(t, sb, "sh", "-c", seen)
	snap, err := sb.Snapshot(ctx, sandbox.SnapshotOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.DeleteSnapshot(context.Background(), snap.ID); err != nil {
			t.Error(err)
		}
	})
	if _, err := c.Move(ctx, name, "node2"); !errors.Is(err, sandbox.ErrVolumeInUse) || !strings.Contains(err.Error(), "stop it first") {
		t.Errorf("Move of a running one: %v, want ErrVolumeInUse", err)
	}
	if _, err := other.Get(ctx, name); err != nil { // which remembers where it is
		t.Fatal(err)
	}
	if _, err := sb.Stop(ctx); err != nil {
		t.Fatal(err)
	}
	was, err := c.Inspect(ctx, name)
	if err != nil {
		t.Fatal(err)
	}
	if report, err := c.Move(ctx, name, "node1"); err != nil || report.From != "node1" || report.To != "node1" {
		t.Errorf("Move to its own node: %+v, %v", report, err)
	}
	report, err := c.Move(ctx, name, "node2")
	if err != nil || report.From != "node1" || report.To != "node2" || !slices.Equal(report.Snapshots, []string{snap.ID}) {
		t.Fatalf("Move: %+v, %v, want from node1 to node2 and the snapshot", report, err)
	}
	for _, left := range everything(t) {
		if strings.HasPrefix(left, "1 ") && !strings.Contains(left, "entry") && (strings.Contains(left, name) || strings.Contains(left, sb.ID())) && !strings.Contains(left, snap.ID) {
			t.Errorf("left on node1: %s", left)
		}
	}
	if strange := inconsistent(t, []string{name}); len(strange) > 0 && !onlySnapshots(strange, snap.ID) {
		t.Errorf("after Move: %s", strings.Join(strange, "; "))
	}
	now, err := other.Inspect(ctx, name)
	if err != nil || now.Location != "node2" || now.State != sandbox.StateStopped || now.ID != was.ID || !now.CreatedAt.Equal(was.CreatedAt) || now.Tags["a"] != "c" ||
		now.Image != was.Image || !slices.Equal(now.Env, was.Env) {
		t.Errorf("Inspect: %+v, %v, before it %+v", now, err, was)
	}
	if diff := cmp.Diff(was.Settings, now.Settings); diff != "" {
		t.Errorf("settings (-before +after):\n%s", diff)
	}
	for _, ref := range []string{name, sb.ID()} {
		again, err := other.Get(ctx, ref)
		if err != nil {
			t.Fatalf("Get(%q): %v", ref, err)
		}
		if after := harness.Run(t, again, "sh", "-c", seen); after != before {
			t.Errorf("files after the move:\n%s\nbefore it:\n%s", after, before)
		}
		if got := harness.Run(t, again, "sh", "-c", "echo $LIKE $AND $(cat /copied/f)"); got != "this that c" {
			t.Errorf("environment and copy: %q", got)
		}
		again.Detach()
	}
	if got, err := c.GetSnapshot(ctx, snap.ID); err != nil || got.SandboxID != sb.ID() {
		t.Errorf("GetSnapshot: %+v, %v", got, err)
	}
	again, err := c.Get(ctx, name)
	if err != nil {
		t.Fatal(err)
	}
	if err := again.Rollback(ctx, snap.ID); !errors.Is(err, sandbox.ErrSnapshotNotFound) {
		t.Errorf("Rollback to a snapshot of another node: %v, want ErrSnapshotNotFound", err)
	}
	if _, err := again.Stop(ctx); err != nil {
		t.Fatal(err)
	}
	if _, err := other.Move(ctx, sb.ID(), "node1"); err != nil {
		t.Fatalf("Move back, by ID: %v", err)
	}
	back, err := c.Get(ctx, name)
	if err != nil {
		t.Fatal(err)
	}
	if after := harness.Run(t, back, "sh", "-c", seen); after != before {
		t.Errorf("files after the move back:\n%s\nbefore it:\n%s", after, before)
	}
	if err := back.Rollback(ctx, snap.ID); err != nil {
		t.Errorf("Rollback after the move back: %v", err)
	}
	if _, err := back.Delete(ctx, sandbox.DeleteOptions{Volumes: true}); err != nil {
		t.Error(err)
	}
}

// onlySnapshots reports whether all is about the volumes of a snapshot.
func onlySnapshots(strange []string, id string) bool {
	return !slices.ContainsFunc(strange, func(s string) bool { return !strings.Contains(s, id) })
}

// What can't be moved, and where nothing can be moved to, is refused, and nothing changes.
func TestMoveIsRefused(t *testing.T) {
	nodes(t, 3)
	c, ctx := client(t, 0), t.Context()
	make := func(opts ...sandbox.CreateOption) *sandbox.Sandbox {
		t.Helper()
		name := harness.UniqueName(t)
		sb, err := c.Create(ctx, append(small(name, sandbox.WithPlacement("node.hostname==node1")), opts...)...)
		if err != nil {
			t.Fatal(err)
		}
		harness.Remove(t, c, name)
		if _, err := sb.Stop(ctx); err != nil {
			t.Fatal(err)
		}
		return sb
	}
	plain := make()
	attached := harness.UniqueName(t)
	owner := make(sandbox.WithMounts(sandbox.Mount{Source: t.TempDir(), Target: "/v", Mode: sandbox.RWCopy}))
	volumes, err := c.ListVolumes(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range volumes {
		if strings.Contains(v.Name, owner.ID()+"-rwcopy") {
			attached = v.Name
		}
	}
	withVolume := make(sandbox.WithMounts(sandbox.Mount{Volume: attached, Target: "/v", Mode: sandbox.RW}))
	withDir := make(sandbox.WithMounts(sandbox.Mount{Source: "/etc", Target: "/m", Mode: sandbox.RO, Remote: true}))
	docker(t, "node", "update", "--availability", "drain", "node3")
	t.Cleanup(func() { docker(t, "node", "update", "--availability", "active", "node3") })
	before := everything(t)
	for what, step := range map[string]struct {
		c          *sandbox.Client
		name, node string
		want       error
		text       string
	}{
		"no such node":       {c, plain.Name(), "node9", sandbox.ErrInvalidArgument, "node1, node2, node3"},
		"a drained node":     {c, plain.Name(), "node3", sandbox.ErrNoCapacity, "drained"},
		"no room":            {client(t, 0, sandbox.WithOvercommit(0.001, 1)), plain.Name(), "node2", sandbox.ErrNoCapacity, "node2"},
		"no such sandbox":    {c, "no-such-sandbox", "node2", sandbox.ErrNotFound, ""},
		"no swarm":           {onNode(t, "node1"), plain.Name(), "node2", sandbox.ErrUnsupported, "WithSwarm"},
		"an attached volume": {c, withVolume.Name(), "node2", sandbox.ErrInvalidArgument, attached},
		"a directory":        {c, withDir.Name(), "node2", sandbox.ErrInvalidArgument, "/etc"},
		"an invalid name":    {c, "No", "node2", sandbox.ErrInvalidArgument, ""},
	} {
		if _, err := step.c.Move(ctx, step.name, step.node); !errors.Is(err, step.want) || !strings.Contains(fmt.Sprint(err), step.text) {
			t.Errorf("%s: %v, want %v with %q", what, err, step.want, step.text)
		}
	}
	if after := everything(t); !slices.Equal(before, after) {
		t.Errorf("calls that were refused left\n%q, before them there was\n%q", after, before)
	}
	// The name may be in use there without the swarm's knowledge.
	stranger := onNode(t, "node2")
	if _, err := stranger.Create(ctx, small(plain.Name())...); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Move(ctx, plain.Name(), "node2"); !errors.Is(err, sandbox.ErrExists) {
		t.Errorf("Move to a node that has another sandbox of that name: %v, want ErrExists", err)
	}
	if _, err := stranger.Delete(ctx, plain.Name(), sandbox.DeleteOptions{Volumes: true}); err != nil {
		t.Error(err)
	}
	if st, err := c.Inspect(ctx, plain.Name()); err != nil || st.Location != "node1" || st.State != sandbox.StateStopped {
		t.Errorf("Inspect after refused moves: %s on %s, %v", st.State, st.Location, err)
	}
}

// A server moves a sandbox, and goes on with it on the other node.
func TestServerMovesASandbox(t *testing.T) {
	nodes(t, 3)
	c, ctx, name := client(t, 0), t.Context(), harness.UniqueName(t)
	sb, err := c.Create(ctx, small(name, sandbox.WithPlacement("node.hostname==node1"))...)
	if err != nil {
		t.Fatal(err)
	}
	harness.Remove(t, c, name)
	sb.Detach()
	h := sandboxhttp.Handler(c, sandboxhttp.WithoutAuthorization())
	for _, step := range []struct {
		path, body string
		code       int
		want       string
	}{
		{"exec", `{"command": ["sh", "-c", "echo moved >f"], "wait": true}`, 200, `"exitCode":0`},
		{"move", `{"node": "node2"}`, 409, "stop it first"},
		{"stop", `{}`, 200, "stopped"},
		{"move", `{"node": "node2"}`, 200, `{"from":"node1","to":"node2","snapshots":[]}`},
		{"start", `{}`, 200, "running"},
		{"exec", `{"command": ["cat", "f"], "wait": true}`, 200, "moved"},
	} {
		r := httptest.NewRequestWithContext(ctx, "POST", "http://localhost/sandboxes/"+name+"/"+step.path, strings.NewReader(step.body))
		r.Header.Set("Content-Type", "application/json")
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if w.Code != step.code || !strings.Contains(strings.ReplaceAll(w.Body.String(), " ", ""), strings.ReplaceAll(step.want, " ", "")) {
			t.Fatalf("%s %s: %d %s, want %d with %s", step.path, step.body, w.Code, w.Body, step.code, step.want)
		}
	}
}

// stoppedOnNode1 is a stopped sandbox on node1, whose /workspace/f says what.
func stoppedOnNode1(t *testing.T, c *sandbox.Client, what string) *sandbox.Sandbox {
	t.Helper()
	name := harness.UniqueName(t)
	sb, err := c.Create(t.Context(), small(name, sandbox.WithPlacement("node.hostname==node1"))...)
	if err != nil {
		t.Fatal(err)
	}
	harness.Remove(t, c, name)
	harness.Run(t, sb, "sh", "-c", "echo "+what+" >/workspace/f")
	if _, err := sb.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	return sb
}

// A sandbox that is started when its copy is complete goes on where it is, and the copy is removed.
func TestMoveGivesWayToAStart(t *testing.T) {
	nodes(t, 3)
	c, ctx := client(t, 0), t.Context()
	sb := stoppedOnNode1(t, c, "before")
	name, proxy := sb.Name(), enginetest.NewProxyTo(t, addresses[0])
	mover := harness.NewClient(t, sandbox.WithHost(proxy.Host()), sandbox.WithSwarm(sandbox.WithNodeHost(hostOf)))
	proxy.ArmAt("/update", enginetest.None, func() { // of the entry
		if out, err := sb.Command(ctx, "sh", "-c", "cat /workspace/f; echo after >>/workspace/f").Output(); err != nil || string(out) != "before\n" {
			t.Errorf("a session that began in the last moment reads %q, %v", out, err)
		}
	})
	if _, err := mover.Move(ctx, name, "node2"); !errors.Is(err, sandbox.ErrVolumeInUse) || !strings.Contains(err.Error(), "was started during the call") {
		t.Errorf("Move: %v, want ErrVolumeInUse", err)
	}
	if !proxy.Fired() {
		t.Error("the entry was not updated")
	}
	if strange := inconsistent(t, []string{name}); len(strange) > 0 {
		t.Errorf("after Move: %s", strings.Join(strange, "; "))
	}
	again, err := c.Get(ctx, name)
	if err != nil {
		t.Fatal(err)
	}
	if out := harness.Run(t, again, "cat", "/workspace/f"); out != "before\nafter" {
		t.Errorf("its file says %q", out)
	}
	if st, err := again.Summary(ctx); err != nil || st.Location != "node1" {
		t.Errorf("it is on %s, %v", st.Location, err)
	}
}

// A mover that sleeps until its markers were taken over moves nothing any more, though its last write was on its way.
func TestMoverThatSleptMovesNothing(t *testing.T) {
	nodes(t, 3)
	c, ctx := client(t, 0), t.Context()
	sb := stoppedOnNode1(t, c, "kept")
	name, proxy := sb.Name(), enginetest.NewProxyTo(t, addresses[0])
	mover := harness.Process(t, "mortal", proxy.Host(), addresses[1], "move", name)
	goOn := harness.Ready(t, mover)
	copied := 0 // objects on node2 as the entry is about to be replaced
	proxy.ArmAt("/update", enginetest.None, func() {
		if err := mover.Process.Signal(syscall.SIGSTOP); err != nil {
			t.Error(err)
		}
		there := func() int { return len(harness.Objects(t, engineOf(t, "node2"), harness.Named(name))) }
		copied = there()
		for deadline := time.Now().Add(3 * time.Minute); there() > 0 && time.Now().Before(deadline); time.Sleep(time.Second) {
			if _, err := c.Prune(ctx); err != nil {
				t.Errorf("Prune: %v", err)
			}
		}
		if err := mover.Process.Signal(syscall.SIGCONT); err != nil {
			t.Error(err)
		}
	})
	goOn()
	if err := mover.Wait(); err == nil {
		t.Error("a mover whose markers were taken over has moved the sandbox")
	}
	if copied == 0 || !proxy.Fired() {
		t.Errorf("node2 had %d objects of the sandbox, and the entry was replaced: %v", copied, proxy.Fired())
	}
	if strange := inconsistent(t, []string{name}); len(strange) > 0 {
		t.Errorf("after the mover: %s", strings.Join(strange, "; "))
	}
	if out := harness.Run(t, sb, "cat", "/workspace/f"); out != "kept" {
		t.Errorf("its file says %q", out)
	}
}
