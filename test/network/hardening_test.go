package network_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/test/harness"
)

// forkToTheLimit starts processes until it may not, and ends those it has started: commands
// count against the same limit, so none could start beside them.
const forkToTheLimit = `
	for (1..100) {
		my $pid = fork;
		last unless defined $pid;
		if (!$pid) { sleep 100; exit }
		push @children, $pid;
	}
	print @children < 100 ? "refused after " : "all ", scalar @children;
	kill "KILL", @children;
	1 while wait != -1;
`

// WithPidsLimit bounds what a fork bomb can be, and leaves the sandbox usable. An engine that can't
// enforce it refuses.
func TestPidsLimitBoundsForks(t *testing.T) {
	t.Parallel()
	c := harness.NewClient(t)
	support, err := c.CheckSupport(t.Context())
	if err != nil {
		t.Fatalf("CheckSupport: %v", err)
	}
	if support.Limits != nil {
		if _, err := c.Create(t.Context(), sandbox.WithPidsLimit(64)); !errors.Is(err, sandbox.ErrUnsupported) {
			t.Errorf("Create where there are no limits (%v): %v, want ErrUnsupported", support.Limits, err)
		}
		return
	}
	sb := harness.NewSandbox(t, sandbox.WithName(harness.UniqueName(t)), sandbox.WithPidsLimit(64))
	got, err := harness.NewEngine(t).InspectContainer(t.Context(), "agent-sandbox-"+sb.Name())
	if err != nil || got.PidsLimit != 64 {
		t.Errorf("the container's limit is %d (%v), want 64", got.PidsLimit, err)
	}
	out := harness.Run(t, sb, "perl", "-e", forkToTheLimit)
	if !strings.HasPrefix(out, "refused after ") {
		t.Errorf("a hundred processes started under a limit of 64: %s", out)
	}
	if got := harness.Run(t, sb, "echo", "alive"); got != "alive" {
		t.Errorf("after the fork bomb: %q", got)
	}
}

func TestDefaultPidsLimit(t *testing.T) {
	t.Parallel()
	sb := harness.Shared(t)
	got, err := harness.NewEngine(t).InspectContainer(t.Context(), "agent-sandbox-"+sb.Name())
	if err != nil || got.PidsLimit != sandbox.DefaultPidsLimit {
		t.Errorf("the container's limit is %d (%v), want %d", got.PidsLimit, err, sandbox.DefaultPidsLimit)
	}
}

func TestOCIRuntimeIsTheEngines(t *testing.T) {
	t.Parallel()
	c := harness.NewClient(t)
	_, err := c.Create(t.Context(), sandbox.WithOCIRuntime("no-such-runtime"))
	if !errors.Is(err, sandbox.ErrUnsupported) || !strings.Contains(err.Error(), "runc") {
		t.Errorf("WithOCIRuntime of none: %v, want ErrUnsupported with those there are", err)
	}
	sb := harness.NewSandbox(t, sandbox.WithOCIRuntime("runc"))
	got, err := harness.NewEngine(t).InspectContainer(t.Context(), "agent-sandbox-"+sb.Name())
	if err != nil || got.Runtime != "runc" {
		t.Errorf("the container's runtime is %q (%v), want runc", got.Runtime, err)
	}
}

// Under an OCI runtime that can't filter, as gVisor's, a sandbox has no network at all, or is refused.
func TestOCIRuntimeWithoutAFilter(t *testing.T) {
	t.Parallel()
	c := harness.NewClient(t, harness.Behind(t, harness.WithoutFilter))
	h, err := c.CheckHealth(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(h.Runtimes, func(name string) bool { return name == "io.containerd.runc.v2" })
	if i < 0 {
		t.Fatalf("the engine has no other name for runc, only %q", h.Runtimes)
	}
	runtime := sandbox.WithOCIRuntime(h.Runtimes[i])
	ports := []sandbox.CreateOption{runtime, sandbox.WithNetworkPolicy(sandbox.DenyAll()), sandbox.WithPorts(8080)}
	for _, opts := range [][]sandbox.CreateOption{{runtime}, ports} {
		name := harness.UniqueName(t)
		if _, err := c.Create(t.Context(), append(opts, sandbox.WithName(name))...); !errors.Is(err, sandbox.ErrUnsupported) || !strings.Contains(err.Error(), "DenyAll") {
			t.Errorf("with %d options: %v, want ErrUnsupported that says what there is", len(opts), err)
			harness.RemoveNow(t, c, name)
		}
	}
	name := harness.UniqueName(t)
	harness.Remove(t, harness.NewClient(t), name)
	sb, err := c.Create(t.Context(), runtime, sandbox.WithName(name), sandbox.WithNetworkPolicy(sandbox.DenyAll()))
	if err != nil {
		t.Fatal(err)
	}
	defer sb.Detach()
	devices := func() {
		t.Helper()
		if got := harness.Run(t, sb, "ls", "/sys/class/net"); got != "lo" {
			t.Errorf("its network devices: %q, want none but lo", got)
		}
	}
	devices()
	for _, change := range []sandbox.UpdateOption{sandbox.WithNetworkPolicy(sandbox.AllowAll()), sandbox.WithPorts(8080)} {
		if err := sb.Update(t.Context(), change); !errors.Is(err, sandbox.ErrUnsupported) {
			t.Errorf("Update: %v, want ErrUnsupported", err)
		}
	}
	// A new container for what was changed has none, either.
	if err := sb.Update(t.Context(), sandbox.WithEnv(map[string]string{"K": "v"})); err != nil {
		t.Fatal(err)
	}
	if _, err := sb.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := harness.Run(t, sb, "sh", "-c", "echo $K"); got != "v" {
		t.Errorf("after an update K is %q", got)
	}
	devices()
	fork, err := c.Fork(t.Context(), name, sandbox.WithName(harness.UniqueName(t)))
	if err != nil {
		t.Fatal(err)
	}
	harness.Remove(t, harness.NewClient(t), fork.Name())
	defer fork.Detach()
	if got := harness.Run(t, fork, "ls", "/sys/class/net"); got != "lo" {
		t.Errorf("the fork's network devices: %q, want none but lo", got)
	}
}

func TestHardeningOptionsAreChecked(t *testing.T) {
	t.Parallel()
	_, err := harness.NewClient(t).Create(t.Context(), sandbox.WithPidsLimit(3), sandbox.WithOCIRuntime(""))
	if !errors.Is(err, sandbox.ErrInvalidArgument) || !strings.Contains(err.Error(), "WithPidsLimit") || !strings.Contains(err.Error(), "WithOCIRuntime") {
		t.Errorf("Create with two wrong options: %v, want both complaints", err)
	}
}

// Sockets of AF_VSOCK lead to the hypervisor, past every network: they are refused, and so
// is nothing that programs need. Engines before 23 would let them through.
func TestSocketsToTheHypervisorAreRefused(t *testing.T) {
	t.Parallel()
	sb := harness.Shared(t)
	try := func(family string) string {
		t.Helper()
		return harness.Run(t, sb, "perl", "-e", `use Socket; socket(my $s, `+family+`, SOCK_STREAM, 0) and print "made" or print $!`)
	}
	if got := try("40"); got != "Operation not permitted" { // not: no such family
		t.Errorf("a socket of AF_VSOCK: %s", got)
	}
	for _, family := range []string{"AF_INET", "AF_INET6", "AF_UNIX"} {
		if got := try(family); got != "made" {
			t.Errorf("a socket of %s: %s", family, got)
		}
	}
	// What it lets pass by capability is what it was without it.
	const rest = "node -p 6*7; cd $(mktemp -d); git init -q r && git -C r status -s && echo git; chroot / true && echo chroot; unshare -Ur true 2>/dev/null || echo no user namespace; unshare -m true 2>/dev/null || echo no mounts"
	if got := harness.Run(t, sb, "sh", "-c", rest); got != "42\ngit\nchroot\nno user namespace\nno mounts" {
		t.Errorf("node, git and what root may do: %q", got)
	}
}
