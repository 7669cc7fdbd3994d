package lifecycle_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/internal/engine"
	"github.com/seed-1a2d6d8f/sandbox/internal/enginetest"
	"github.com/seed-1a2d6d8f/sandbox/internal/record"
	"github.com/seed-1a2d6d8f/sandbox/test/harness"
)

// takers are the calls that take a name or an ID.
func takers(c *sandbox.Client) map[string]func(ctx context.Context, name string) error {
	return map[string]func(ctx context.Context, name string) error{
		"Create(WithName)": func(ctx context.Context, name string) error {
			_, err := c.Create(ctx, sandbox.WithName(name))
			return err
		},
		"Create(WithID)": func(ctx context.Context, name string) error {
			_, err := c.Create(ctx, sandbox.WithID(name))
			return err
		},
		"GetOrCreate": func(ctx context.Context, name string) error {
			_, err := c.GetOrCreate(ctx, name)
			return err
		},
		"Get": func(ctx context.Context, name string) error {
			_, err := c.Get(ctx, name)
			return err
		},
		"Get(WithoutResume)": func(ctx context.Context, name string) error {
			_, err := c.Get(ctx, name, sandbox.WithoutResume())
			return err
		},
		"Inspect": func(ctx context.Context, name string) error {
			_, err := c.Inspect(ctx, name)
			return err
		},
		"Delete": func(ctx context.Context, name string) error {
			_, err := c.Delete(ctx, name, sandbox.DeleteOptions{})
			return err
		},
		"Delete(PreserveVolumes(false))": func(ctx context.Context, name string) error {
			_, err := c.Delete(ctx, name, sandbox.DeleteOptions{Volumes: true})
			return err
		},
	}
}

// The Docker client cleans paths, so a name with ".." is another object.
func TestNamesThatClimbReachNothing(t *testing.T) {
	t.Parallel()
	foreign := enginetest.NewForeign(t)
	proxy := enginetest.NewProxy(t)
	c := harness.NewClient(t, sandbox.WithHost(proxy.Host()))
	for _, name := range []string{
		"../containers/" + foreign.Victim, "../../v1.41/containers/" + foreign.Victim, "x/../../containers/" + foreign.Victim,
		"..%2fcontainers%2f" + foreign.Victim, `..\containers\` + foreign.Victim, "/" + foreign.Victim, foreign.Victim + "/../" + foreign.Victim,
		foreign.Victim + "?force=1", foreign.Victim + "#", ".", "..", "a/b", "../images/" + foreign.Image,
	} {
		for call, do := range takers(c) {
			if err := do(t.Context(), name); !errors.Is(err, sandbox.ErrInvalidArgument) || !strings.Contains(err.Error(), fmt.Sprintf("%q", name)) {
				t.Errorf("%s of %q = %v; want ErrInvalidArgument that quotes it", call, name, err)
			}
		}
	}
	if proxy.Count() != 0 {
		t.Errorf("the engine was called: %q", proxy.Calls())
	}
	foreign.Check(t)

	// The ID of a command, too, before it goes anywhere.
	sb := harness.Shared(t)
	if _, err := sb.Process(t.Context(), "../x"); !errors.Is(err, sandbox.ErrInvalidArgument) {
		t.Errorf("Process = %v; want ErrInvalidArgument", err)
	}
}

// Nobody's name is empty.
func TestEmptyNameIsInvalid(t *testing.T) {
	t.Parallel()
	for call, do := range takers(harness.Nowhere(t)) {
		if err := do(t.Context(), ""); !errors.Is(err, sandbox.ErrInvalidArgument) {
			t.Errorf("%s of no name = %v; want ErrInvalidArgument", call, err)
		}
	}
}

// The rule is strict, and the error says it.
func TestNamesFollowTheRule(t *testing.T) {
	t.Parallel()
	for _, name := range []string{
		"ünï", "名前", "a b", " a", "a ", "a/b", "a:b", "-a", ".a", "_a", "a\n", "a\nb", "a\x00", "a\t", "A", "aB", "a@b", "a,b", "a=b", "a\u200b", "\xff",
	} {
		for call, do := range takers(harness.Nowhere(t)) {
			err := do(t.Context(), name)
			if !errors.Is(err, sandbox.ErrInvalidArgument) || !strings.Contains(err.Error(), fmt.Sprintf("%q", name)) || !strings.Contains(err.Error(), record.NameRule) {
				t.Errorf("%s of %q = %v; want ErrInvalidArgument with the name quoted and the rule", call, name, err)
			}
		}
	}
	for _, name := range []string{"a", "0", "a..b", "a--b", "a__b", "a-", "a.", "a_", "0123456789ab", "abc123"} {
		for call, do := range takers(harness.Nowhere(t)) {
			if err := do(t.Context(), name); !errors.Is(err, sandbox.ErrEngineUnavailable) {
				t.Errorf("%s of %q = %v; want no complaint but that there is no engine", call, name, err)
			}
		}
	}
}

// 63 characters are the limit.
func TestNamesHaveALength(t *testing.T) {
	t.Parallel()
	for n, want := range map[int]error{63: sandbox.ErrEngineUnavailable, 64: sandbox.ErrInvalidArgument, 300: sandbox.ErrInvalidArgument} {
		for call, do := range takers(harness.Nowhere(t)) {
			if err := do(t.Context(), strings.Repeat("a", n)); !errors.Is(err, want) {
				t.Errorf("%s of %d characters = %v; want %v", call, n, err, want)
			}
		}
	}
}

// The longest name, with every character that a name may have, works on the engine.
func TestLongestNameWorks(t *testing.T) {
	t.Parallel()
	name := record.NewID() + "..--__" + strings.Repeat("x", 63-12-6)
	sb := harness.NewSandbox(t, sandbox.WithName(name), sandbox.WithID("i"+name[1:]))
	if got := harness.Run(t, sb, "echo", "ok"); got != "ok" || sb.Name() != name || sb.ID() != "i"+name[1:] {
		t.Errorf("name %q, ID %q, output %q", sb.Name(), sb.ID(), got)
	}
	if _, err := harness.NewEngine(t).InspectVolume(t.Context(), "agent-sandbox-"+sb.ID()); err != nil {
		t.Errorf("the volume of ID %q: %v", sb.ID(), err)
	}
}

// What calls that are given the name of an existing sandbox, or what looks like it, do.
func TestNamesOfOneSandbox(t *testing.T) {
	t.Parallel()
	c := harness.NewClient(t)
	sb := harness.NewSandbox(t, sandbox.WithName(harness.UniqueName(t)), sandbox.WithTags(map[string]string{"k": "first"}))
	for what, test := range map[string]func(*testing.T, *sandbox.Client, *sandbox.Sandbox){
		"names and IDs do not hide each other": testNamesAndIDsDoNotHideEachOther,
		"a taken ID is an error":               testTakenIDIsAnError,
		"container IDs are no names":           testContainerIDsAreNoNames,
		"GetOrCreate ignores options":          testGetOrCreateIgnoresOptions,
		"GetOrCreate refuses another policy":   testGetOrCreateRefusesAnotherPolicy,
	} {
		t.Run(what, func(t *testing.T) { test(t, c, sb) })
	}
}

// Names come first, and no name may hide an ID, nor an ID a name.
func testNamesAndIDsDoNotHideEachOther(t *testing.T, c *sandbox.Client, sb *sandbox.Sandbox) {
	for what, opts := range map[string][]sandbox.CreateOption{
		"a name that is another's ID":  {sandbox.WithName(sb.ID())},
		"an ID that is another's name": {sandbox.WithName(harness.UniqueName(t)), sandbox.WithID(sb.Name())},
	} {
		got, err := c.Create(t.Context(), opts...)
		if !errors.Is(err, sandbox.ErrExists) {
			t.Errorf("Create with %s = %v; want ErrExists", what, err)
		}
		if got != nil {
			harness.RemoveNow(t, c, got.Name())
		}
	}
	for _, ref := range []string{sb.Name(), sb.ID()} {
		if st, err := c.Inspect(t.Context(), ref); err != nil || st.ID != sb.ID() {
			t.Errorf("Inspect(%q) = %+v, %v; want sandbox %s", ref, st, err, sb.ID())
		}
	}
}

// An ID that is taken, as a generated one could be, is an error and takes nothing
// from its owner.
func testTakenIDIsAnError(t *testing.T, c *sandbox.Client, sb *sandbox.Sandbox) {
	eng := harness.NewEngine(t)
	harness.Run(t, sb, "touch", "mine")
	name := harness.UniqueName(t)
	if _, err := c.Create(t.Context(), sandbox.WithID(sb.ID()), sandbox.WithName(name)); !errors.Is(err, sandbox.ErrExists) {
		t.Errorf("Create with a taken ID = %v; want ErrExists", err)
	}
	if left := harness.Objects(t, eng, harness.Named(name)); len(left) > 0 {
		t.Errorf("left of the failed one: %q", left)
	}
	if got := harness.Run(t, sb, "ls"); got != "mine" {
		t.Errorf("its owner now sees %q", got)
	}
}

// Docker takes the beginning of a container's ID for the container.
func testContainerIDsAreNoNames(t *testing.T, c *sandbox.Client, sb *sandbox.Sandbox) {
	got, err := harness.NewEngine(t).InspectContainer(t.Context(), record.ContainerName(sb.Name()))
	if err != nil {
		t.Fatal(err)
	}
	for _, ref := range []string{got.ID[:12], got.ID[:4], got.ID[:63], sb.ID()[:11], sb.Name()[:8]} {
		for call, do := range takers(c) {
			if strings.HasPrefix(call, "Create") || call == "GetOrCreate" {
				continue
			}
			if err := do(t.Context(), ref); !errors.Is(err, sandbox.ErrNotFound) {
				t.Errorf("%s of %q = %v; want ErrNotFound", call, ref, err)
			}
		}
	}
	if got := harness.Run(t, sb, "echo", "alive"); got != "alive" {
		t.Errorf("it says %q", got)
	}
}

// A stricter policy that is not applied would be a promise that is not kept.
func testGetOrCreateRefusesAnotherPolicy(t *testing.T, c *sandbox.Client, made *sandbox.Sandbox) {
	for _, p := range []sandbox.NetworkPolicy{sandbox.DenyAll(), sandbox.PublicOnly(), {Allow: []string{"example.com"}}} {
		_, err := c.GetOrCreate(t.Context(), made.Name(), sandbox.WithNetworkPolicy(p))
		if !errors.Is(err, sandbox.ErrExists) || !strings.Contains(err.Error(), `"allow-all"`) || !strings.Contains(err.Error(), p.String()) || !strings.Contains(err.Error(), "Update") {
			t.Errorf("GetOrCreate with %v: %v, want ErrExists with both policies and the way", p, err)
		}
	}
	harness.Update(t, made, sandbox.WithNetworkPolicy(sandbox.DenyAll()))
	defer harness.Update(t, made, sandbox.WithNetworkPolicy(sandbox.AllowAll()))
	for p, want := range map[string]error{"deny-all": nil, "allow-all": sandbox.ErrExists} {
		policy, err := sandbox.ParseNetworkPolicy(p)
		if err != nil {
			t.Fatal(err)
		}
		sb, err := c.GetOrCreate(t.Context(), made.Name(), sandbox.WithNetworkPolicy(policy))
		if !errors.Is(err, want) {
			t.Errorf("GetOrCreate with %s after an update to deny-all: %v, want %v", p, err, want)
		}
		if err == nil {
			sb.Detach()
		}
	}
}

// Labels can't change, and options of an existing sandbox are ignored, with a word of it.
func testGetOrCreateIgnoresOptions(t *testing.T, c *sandbox.Client, made *sandbox.Sandbox) {
	before := harness.Raw(t, made).Config
	var said []string
	progress := sandbox.WithProgress(func(p sandbox.Progress) {
		if p.Step == "settings" {
			said = append(said, p.Text)
		}
	})
	same, err := c.GetOrCreate(t.Context(), made.Name(), sandbox.WithTags(map[string]string{"k": "first"}), sandbox.WithVCPUs(1), sandbox.WithImage(sandbox.DefaultImage), progress)
	if err != nil || len(said) > 0 {
		t.Fatalf("GetOrCreate with the settings that it has: %v, %q", err, said)
	}
	same.Detach()
	sb, err := c.GetOrCreate(t.Context(), made.Name(), sandbox.WithTags(map[string]string{"k": "second"}), sandbox.WithVCPUs(2), sandbox.WithEnv(map[string]string{"NEW": "1"}), progress)
	if err != nil {
		t.Fatalf("GetOrCreate: %v", err)
	}
	if len(said) != 1 || !strings.HasSuffix(said[0], ": environment, tags, CPUs") {
		t.Errorf("reported: %q, want what differs", said)
	}
	defer sb.Detach()
	if st := harness.Status(t, sb); st.Tags["k"] != "first" || sb.ID() != made.ID() {
		t.Errorf("Status = %+v; want it as it was made", st)
	}
	if diff := cmp.Diff(before, harness.Raw(t, sb).Config); diff != "" {
		t.Errorf("its configuration changed (-was +is):\n%s", diff)
	}
	if _, err := c.Create(t.Context(), sandbox.WithName(made.Name())); !errors.Is(err, sandbox.ErrExists) {
		t.Errorf("Create = %v; want ErrExists", err)
	}
}

// Both exist here, made by hand.
func TestNameIsLookedUpBeforeID(t *testing.T) {
	t.Parallel()
	c, eng := harness.NewClient(t), harness.NewEngine(t)
	ref := record.NewID()
	other := harness.UniqueName(t)
	handMade(t, eng, record.ContainerName(other), other, ref)
	handMade(t, eng, record.ContainerName(ref), ref, record.NewID())
	if st, err := c.Inspect(t.Context(), ref); err != nil || st.Name != ref {
		t.Errorf("Inspect(%q) = %+v, %v; want the one of that name", ref, st, err)
	}
}

// A name held by a stranger's container.
func TestForeignContainerKeepsItsName(t *testing.T) {
	t.Parallel()
	foreign := enginetest.NewForeign(t)
	c := harness.NewClient(t)
	ctx, cancel := context.WithTimeout(t.Context(), harness.CallBound)
	defer cancel()
	if _, err := c.Create(ctx, sandbox.WithName(foreign.Name)); !errors.Is(err, sandbox.ErrForeign) || !strings.Contains(err.Error(), "agent-sandbox-"+foreign.Name) {
		t.Errorf("Create = %v; want ErrForeign that names the container", err)
	}
	if _, err := c.GetOrCreate(ctx, foreign.Name); !errors.Is(err, sandbox.ErrForeign) {
		t.Errorf("GetOrCreate = %v; want ErrForeign", err)
	}
	for call, do := range takers(c) {
		if strings.HasPrefix(call, "Create") || call == "GetOrCreate" {
			continue
		}
		if err := do(ctx, foreign.Name); !errors.Is(err, sandbox.ErrNotFound) {
			t.Errorf("%s = %v; want ErrNotFound", call, err)
		}
	}
	foreign.Check(t)
}

// A name is free while the engine is still removing the container.
func TestCreateWaitsForARemovalInProgress(t *testing.T) {
	t.Parallel()
	c, eng := harness.NewClient(t), harness.NewEngine(t)
	name := harness.UniqueName(t)
	harness.Remove(t, c, name)
	sb, err := c.Create(t.Context(), sandbox.WithName(name))
	if err != nil {
		t.Fatalf("Create: %v", err)
	}
	removed := make(chan error, 1)
	go func() { removed <- eng.RemoveContainer(t.Context(), record.ContainerName(name), true) }()
	again := func() (*sandbox.Sandbox, error) { return c.Create(t.Context(), sandbox.WithName(name)) }
	next, err := again()
	for errors.Is(err, sandbox.ErrExists) { // the removal has not begun
		next, err = again()
	}
	if err != nil {
		t.Errorf("Create = %v; want it to wait", err)
	} else if next.ID() == sb.ID() {
		t.Errorf("both have the ID %s", sb.ID())
	}
	if err := <-removed; err != nil {
		t.Error(err)
	}
	sb.Detach()
	if _, err := eng.InspectVolume(t.Context(), record.WorkspaceName(sb.ID())); err == nil {
		eng.RemoveVolume(t.Context(), record.WorkspaceName(sb.ID()), false)
	}
	if next != nil {
		next.Detach()
	}
}

// handMade makes a stopped container with the labels of a sandbox that was never
// started.
func handMade(t *testing.T, eng *engine.Engine, container, name, id string) string {
	t.Helper()
	l := map[string]string{record.Managed: "true", record.Name: name, record.ID: id}
	got, err := eng.CreateContainer(t.Context(), engine.ContainerSpec{
		Name: container, Image: sandbox.DefaultImage, Labels: l, Entrypoint: []string{"sleep", "1000"}, NetworkMode: "none",
	})
	if err != nil {
		t.Fatalf("make container %s: %v", container, err)
	}
	t.Cleanup(func() {
		if err := eng.RemoveContainer(context.Background(), got, true); err != nil && !errors.Is(err, engine.ErrNotFound) {
			t.Errorf("remove container %s: %v", container, err)
		}
	})
	return got
}
