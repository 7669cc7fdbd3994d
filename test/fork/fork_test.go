package fork_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sync/errgroup"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/internal/enginetest"
	"github.com/seed-1a2d6d8f/sandbox/internal/record"
	"github.com/seed-1a2d6d8f/sandbox/test/harness"
)

// forked is a fork that is removed with all it has when the test ends.
func forked(t *testing.T, c *sandbox.Client, source string, opts ...sandbox.ForkOption) *sandbox.Sandbox {
	t.Helper()
	sb, err := c.Fork(t.Context(), source, opts...)
	if err != nil {
		t.Fatalf("Fork: %v", err)
	}
	harness.Remove(t, c, sb.Name())
	t.Cleanup(func() { sb.Detach() })
	return sb
}

// forkedN are forks of one moment, which are removed with all they have when the test ends.
func forkedN(t *testing.T, c *sandbox.Client, source string, n int, opts ...sandbox.ForkOption) (forks []*sandbox.Sandbox) {
	t.Helper()
	results, err := c.ForkN(t.Context(), source, n, opts...)
	for _, r := range results {
		if r.Sandbox != nil {
			harness.Remove(t, c, r.Sandbox.Name())
			t.Cleanup(func() { r.Sandbox.Detach() })
			forks = append(forks, r.Sandbox)
		}
	}
	if err != nil || len(forks) != n {
		t.Fatalf("ForkN = %+v, %v", results, err)
	}
	return forks
}

// stock is the shared sandbox with a file in its workspace and one outside of volumes, for tests that
// only copy it.
func stock(t *testing.T) *sandbox.Sandbox {
	t.Helper()
	sb := harness.Shared(t)
	stocked.Do(func() { harness.Run(t, sb, "sh", "-ec", "echo below >/workspace/below; echo b >/etc/b") })
	return sb
}

var stocked sync.Once

// byCommit runs a test with files copied on the engine's disk, and with a commit, as on
// engines that show none.
func byCommit(t *testing.T, test func(t *testing.T, c *sandbox.Client, exact bool)) {
	t.Run("copied", func(t *testing.T) { t.Parallel(); test(t, harness.NewClient(t), true) })
	t.Run("committed", func(t *testing.T) {
		t.Parallel()
		c := harness.NewClient(t, harness.Behind(t, harness.WithoutLayers))
		test(t, c, false)
	})
}

// trees are a place in the container's own files and one in each volume.
var trees = []string{"/var/tree", "/workspace/tree", "/the copy"}

// grow makes a sandbox with every kind of file in each of trees, and files of its image
// changed and gone.
func grow(t *testing.T, c *sandbox.Client, opts ...sandbox.CreateOption) *sandbox.Sandbox {
	t.Helper()
	sb := harness.CreateWith(t, c, []sandbox.Mount{{Source: harness.TreeOfEverything(t), Target: "/the copy"}}, opts...)
	harness.Run(t, sb, "sh", "-ec", `cp -a '/the copy' /var/tree; cp -a '/the copy' /workspace/tree
		echo b >/etc/b; rm /etc/motd; rm -r /usr/share/doc; mkdir /usr/share/doc; echo new >/usr/share/doc/new; echo more >>/etc/profile; mv /usr/share/info /usr/share/info2
		chmod 1751 /var/tmp; ln /etc/b /etc/b2; mkfifo /etc/fifo; chown 5:6 /mnt
		touch -d @1100000000 /etc/b /etc/profile /usr/share/doc/new # see spoil`)
	return sb
}

// files is all there is to know of the sandbox's files. What a commit loses is not there
// unless it is to be exact.
func files(t *testing.T, sb *sandbox.Sandbox, exact bool) []string {
	t.Helper()
	var all []string
	for i, tree := range trees {
		if i > 0 {
			exact = true // volumes are
		}
		// Storage drivers outside of the kernel count the links that they have seen.
		script := "cd '" + tree + "' && find . -exec stat {} + >/dev/null; " + harness.Manifest
		if !exact {
			script = strings.ReplaceAll(script, "%T@", "%Ts") + " | grep -v ^SCHILY.xattr.user || true"
		}
		all = append(all, "tree "+tree)
		all = append(all, strings.Split(harness.Run(t, sb, "sh", "-c", script), "\n")...)
	}
	rest := `cd / && find etc mnt usr/share/doc usr/share/info2 var/tmp root opt srv ! -type d -printf '%p|%y|%m|%U:%G|%Ts|%l|%n|%s\n' -o -printf '%p|d|%m|%U:%G\n' | grep -vE '^etc/(hosts|hostname|resolv.conf|mtab)' | sort; ls -d etc/motd usr/share/info 2>&1; cat etc/profile usr/share/doc/new`
	return append(all, strings.Split(harness.Run(t, sb, "sh", "-c", rest), "\n")...)
}

func wantSameFiles(t *testing.T, source, fork *sandbox.Sandbox, exact bool) {
	t.Helper()
	if diff := cmp.Diff(files(t, source, exact), files(t, fork, exact)); diff != "" {
		t.Errorf("files (-source +fork):\n%s", diff)
	}
}

// wantOwnWays writes to files in both, and neither may see what the other has written.
func wantOwnWays(t *testing.T, source, fork *sandbox.Sandbox, files ...string) {
	t.Helper()
	for _, p := range files {
		harness.Run(t, source, "sh", "-c", "echo source >'"+p+"'")
		harness.Run(t, fork, "sh", "-c", "echo fork >'"+p+"'")
		if a, b := harness.Run(t, source, "cat", p), harness.Run(t, fork, "cat", p); a != "source" || b != "fork" {
			t.Errorf("%s is %q in the source and %q in the fork", p, a, b)
		}
	}
}

// A fork has all that its source has, in the container and in each volume,
// and from then on neither sees the other. What the source is doing it goes on doing, and one
// that is stopped is left so.
func TestForkHasEverythingAndGoesItsOwnWay(t *testing.T) {
	t.Parallel()
	byCommit(t, func(t *testing.T, c *sandbox.Client, exact bool) {
		source := grow(t, c)
		sleeper := source.Command(t.Context(), "sleep", "1000")
		if err := sleeper.Start(); err != nil {
			t.Fatal(err)
		}
		fork := forked(t, c, source.Name())
		wantSameFiles(t, source, fork, exact)
		wantOwnWays(t, source, fork, "/etc/b", "/workspace/tree/empty", "/the copy/empty")
		if err := sleeper.Kill(); err != nil {
			t.Errorf("the source's command: %v", err)
		}
		sleeper.Wait()

		want := files(t, source, exact)
		if _, err := source.Stop(t.Context()); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, files(t, forked(t, c, source.ID()), exact)); diff != "" {
			t.Errorf("files (-stopped source +fork):\n%s", diff)
		}
		if st, err := source.Status(t.Context()); err != nil || st.State != sandbox.StateStopped {
			t.Errorf("the source is %v, %v, want it stopped", st.State, err)
		}
	})
}

// A fork is made as its source was, and options take the place of what that has.
func TestForkInheritsWhatOptionsDoNotSay(t *testing.T) {
	t.Parallel()
	c := harness.NewClient(t)
	volume := "agent-sandbox-" + stock(t).ID()
	dir := harness.HostDir(t, map[string]string{"f": "x"})
	mounts := []sandbox.Mount{{Source: dir, Target: "/ro", Mode: sandbox.RO}, {Source: dir, Target: "/c"}, {Volume: volume, Target: "/v", Mode: sandbox.RW}}
	source := harness.CreateWith(t, c, mounts, sandbox.WithEnv(map[string]string{"A": "1", "PATH": "/usr/bin:/bin:/x"}), sandbox.WithTags(map[string]string{"k": "v"}),
		sandbox.WithPorts(3000), sandbox.WithVCPUs(0.5), sandbox.WithMemory(300<<20), sandbox.WithUser("node"), sandbox.WithWorkdir("/tmp/w"))
	fork := forked(t, c, source.Name())
	script := "id -un; pwd; env | grep -E '^(A|PATH)='; cat /sys/fs/cgroup/memory.max /sys/fs/cgroup/memory/memory.limit_in_bytes 2>/dev/null; stat -c %U /workspace"
	if a, b := harness.Run(t, source, "sh", "-c", script), harness.Run(t, fork, "sh", "-c", script); a != b {
		t.Errorf("the source has\n%s\nand the fork\n%s", a, b)
	}
	if st, err := fork.Status(t.Context()); err != nil || st.Tags["k"] != "v" || len(st.Ports) != 1 {
		t.Errorf("Status of the fork = %+v, %v", st, err)
	}
	got := fork.Mounts()
	if len(got) != 3 || got[0] != mounts[0] || got[2] != mounts[2] || got[1].Source != dir || got[1].Volume == source.Mounts()[1].Volume {
		t.Errorf("mounts of the fork = %+v, of the source %+v", got, source.Mounts())
	}
	vols, err := c.ListVolumes(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if !slices.ContainsFunc(vols, func(v sandbox.Volume) bool {
		return v.Name == got[1].Volume && v.Role == "fork" && v.CreatedBy == "fork" && slices.Equal(v.Sandboxes, []string{fork.Name()})
	}) {
		t.Errorf("the fork's volume is not listed as one")
	}
	name := harness.UniqueName(t)
	other := forked(t, c, source.Name(), sandbox.WithName(name), sandbox.WithEnv(map[string]string{"B": "2"}), sandbox.WithTags(nil),
		sandbox.WithMounts(sandbox.Mount{Source: dir, Target: "/d", Mode: sandbox.RO}), sandbox.WithUser("root"), sandbox.WithMemory(200<<20))
	if out := harness.Run(t, other, "sh", "-c", "echo $A$B; id -un; ls -A /c /v; cat /d/f"); out != "2\nroot\n/c:\n\n/v:\nx" {
		t.Errorf("the fork with options says %q", out)
	}
	if other.Name() != name || len(other.Mounts()) != 1 {
		t.Errorf("the fork with options is %q with mounts %v", other.Name(), other.Mounts())
	}
}

// What can't be a source is refused, and nothing is made.
func TestForkOfNothing(t *testing.T) {
	t.Parallel()
	c := harness.NewClient(t)
	for _, name := range []string{"", "../containers/x", "A"} {
		if _, err := c.Fork(t.Context(), name); !errors.Is(err, sandbox.ErrInvalidArgument) {
			t.Errorf("Fork(%q) = %v, want ErrInvalidArgument", name, err)
		}
	}
	if _, err := c.Fork(t.Context(), harness.UniqueName(t)); !errors.Is(err, sandbox.ErrNotFound) {
		t.Errorf("Fork of nothing = %v, want ErrNotFound", err)
	}
	if _, err := c.Fork(t.Context(), harness.UniqueName(t), sandbox.WithName("../x")); !errors.Is(err, sandbox.ErrInvalidArgument) {
		t.Errorf("Fork with a bad name = %v, want ErrInvalidArgument", err)
	}
	source := stock(t)
	if _, err := c.Fork(t.Context(), source.Name(), sandbox.WithName(source.Name())); !errors.Is(err, sandbox.ErrExists) {
		t.Errorf("Fork under the source's name = %v, want ErrExists", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := c.Fork(ctx, source.Name()); !errors.Is(err, context.Canceled) {
		t.Errorf("Fork with a context that has ended = %v", err)
	}
}

// A fork is kept as a new sandbox is: if it has a name, whatever its source is.
func TestForkWithoutANameIsNotPersistent(t *testing.T) {
	t.Parallel()
	c := harness.NewClient(t)
	source := harness.NewSandbox(t, sandbox.WithName(harness.UniqueName(t)), sandbox.WithImage(harness.SmallImage(t)))
	for _, tt := range []struct {
		opts []sandbox.ForkOption
		want bool
	}{
		{nil, false},
		{[]sandbox.ForkOption{sandbox.WithPersistent(true)}, true},
		{[]sandbox.ForkOption{sandbox.WithName(harness.UniqueName(t))}, true},
		{[]sandbox.ForkOption{sandbox.WithName(harness.UniqueName(t)), sandbox.WithPersistent(false)}, false},
	} {
		if got := *harness.Status(t, forked(t, c, source.Name(), tt.opts...)).Settings.Persistent; got != tt.want {
			t.Errorf("a fork with %d options: persistent %t, want %t", len(tt.opts), got, tt.want)
		}
	}
	for _, fork := range forkedN(t, c, source.Name(), 2) {
		if *harness.Status(t, fork).Settings.Persistent {
			t.Error("a fork of two is persistent")
		}
	}
}

// What has to ask a session that the engine has paused for a copy waits until that is done. The source
// stands still no longer than the copy takes: that its volumes still exist is checked afterwards.
func TestWhatAsksTheSessionWaitsForAFork(t *testing.T) {
	t.Parallel()
	c := harness.NewClient(t)
	source := harness.CreateWith(t, c, []sandbox.Mount{{Source: t.TempDir(), Target: "/d", Mode: sandbox.RWCopy}}, sandbox.WithTimeout(time.Hour))
	forker, asker := enginetest.NewProxy(t), enginetest.NewProxy(t)
	forker.PartNetworks()
	paused, goOn := make(chan struct{}), make(chan struct{})
	thaw := sync.OnceFunc(func() { close(goOn) })
	defer thaw()
	forker.ArmAt("/unpause", enginetest.Cancel, func() { close(paused); <-goOn })
	var g errgroup.Group
	g.Go(func() error {
		sb, err := harness.NewClient(t, sandbox.WithHost(forker.Host())).Fork(t.Context(), source.Name())
		if err == nil {
			harness.Remove(t, c, sb.Name())
			err = sb.Detach()
		}
		return err
	})
	<-paused
	// A handle that is not connected: it can't have noticed anything else.
	sb, err := harness.NewClient(t, sandbox.WithHost(asker.Host())).Get(t.Context(), source.Name(), sandbox.WithoutResume())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { sb.Detach() })
	asks := []func() error{
		func() error { return sb.ExtendTimeout(t.Context(), time.Minute) },
		func() error { return sb.Update(t.Context(), sandbox.WithNetworkPolicy(sandbox.DenyAll())) },
		func() error { return sb.Update(t.Context(), sandbox.WithTimeout(2*time.Hour)) },
		func() error { _, err := sb.Egress(t.Context()); return err },
	}
	before := len(asker.Calls())
	for i, ask := range asks {
		g.Go(func() error {
			if err := ask(); err != nil {
				return fmt.Errorf("call %d while it is forked: %w", i, err)
			}
			return nil
		})
	}
	harness.Eventually(t, "all of them look whether it is still paused", func() bool {
		looks := 0
		for _, call := range asker.Calls()[before:] {
			if strings.HasSuffix(call, "pending."+source.Name()+".P") {
				looks++
			}
		}
		return looks > len(asks)
	})
	thaw()
	if err := g.Wait(); err != nil {
		t.Error(err)
	}
	calls := forker.Calls()
	from := slices.IndexFunc(calls, func(call string) bool { return strings.HasSuffix(call, "/pause") })
	to := slices.IndexFunc(calls, func(call string) bool { return strings.HasSuffix(call, "/unpause") })
	if from < 0 || to < from {
		t.Fatalf("the engine did not pause and unpause the source: %q", calls)
	}
	for _, look := range []string{"GET /volumes/" + record.WorkspaceName(source.ID()), "GET /volumes/" + source.Mounts()[0].Volume} {
		if slices.Contains(calls[from:to], look) {
			t.Errorf("%s during the pause: %q", look, calls[from:to])
		}
		if !slices.Contains(calls[to:], look) {
			t.Errorf("no %s after the pause: %q", look, calls[to:])
		}
	}
}
