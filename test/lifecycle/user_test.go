package lifecycle_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/internal/enginetest"
	"github.com/seed-1a2d6d8f/sandbox/test/harness"
)

// refusesUser checks that a call failed because there is no such user, and left nothing.
func refusesUser(t *testing.T, call, user, name string, err error) {
	t.Helper()
	if !errors.Is(err, sandbox.ErrInvalidArgument) || !strings.Contains(err.Error(), user) || !strings.Contains(err.Error(), "numeric ID") {
		t.Errorf("%s with user %s: %v, want ErrInvalidArgument that says what to do", call, user, err)
	}
	if left := harness.Objects(t, harness.NewEngine(t), harness.Named(name)); len(left) > 0 {
		t.Errorf("%s with user %s left %q", call, user, left)
	}
}

func TestCreateRefusesAUserThatTheImageLacks(t *testing.T) {
	t.Parallel()
	c, small := harness.NewClient(t), harness.SmallImage(t)
	for _, tt := range []struct{ image, user string }{
		{"", "nosuch"}, {"", "node:nosuch"}, {"", "1000:nosuch"}, {small, "root"}, {small, "nosuch"},
	} {
		name := harness.UniqueName(t)
		harness.Remove(t, c, name)
		opts := []sandbox.CreateOption{sandbox.WithName(name), sandbox.WithUser(tt.user), harness.Quick}
		if tt.image != "" {
			opts = append(opts, sandbox.WithImage(tt.image))
		}
		sb, err := c.Create(t.Context(), opts...)
		if err == nil {
			sb.Detach()
		}
		refusesUser(t, "Create", tt.user, name, err)
	}
	// The image's own user may be missing, too.
	for _, user := range []string{"nosuch", "nosuch:root", "0:nosuch"} {
		name := harness.UniqueName(t)
		harness.Remove(t, c, name)
		sb, err := c.Create(t.Context(), sandbox.WithName(name), sandbox.WithImage(harness.SmallImage(t, "USER "+user)), harness.Quick)
		if err == nil {
			sb.Detach()
		}
		refusesUser(t, "Create with an image", user, name, err)
	}
	// IDs need not be listed.
	sb := harness.CreateWith(t, c, nil, sandbox.WithImage(small), sandbox.WithUser("4242:4343"))
	if st, err := sb.Stat(t.Context(), "/workspace"); err != nil || st.Sys().(*sandbox.FileStat).UID != 4242 {
		t.Errorf("the workspace of 4242: %+v, %v", st, err)
	}
}

// The user may be one that was made inside, which goes with the files.
func TestUserThatWasMadeInside(t *testing.T) {
	t.Parallel()
	c := harness.NewClient(t)
	makeUser := func(ctx context.Context, sb *sandbox.Sandbox) error {
		cmd := sb.Command(ctx, "useradd", "--create-home", "agent")
		cmd.User = "root"
		return cmd.Run()
	}
	isAgent := func(what string, sb *sandbox.Sandbox) {
		t.Helper()
		if got := harness.Run(t, sb, "id", "-un"); got != "agent" {
			t.Errorf("commands of %s run as %q, want agent", what, got)
		}
	}
	hooked := harness.CreateWith(t, c, nil, sandbox.WithUser("agent"), sandbox.OnCreate(makeUser))
	isAgent("a sandbox whose OnCreate makes the user", hooked)

	sb := harness.CreateWith(t, c, nil)
	if err := makeUser(t.Context(), sb); err != nil {
		t.Fatal(err)
	}
	snap := harness.SnapshotOf(t, c, sb, sandbox.SnapshotOptions{})
	user := sandbox.WithUser("agent")
	name := harness.UniqueName(t)
	for _, n := range []string{name + "-a", name + "-b", name + "-1", name + "-2"} {
		harness.Remove(t, c, n)
	}
	fork, err := c.Fork(t.Context(), sb.Name(), sandbox.WithName(name+"-a"), user, harness.Quick)
	if err != nil {
		t.Fatalf("Fork: %v", err)
	}
	defer fork.Detach()
	isAgent("a fork", fork)
	from, err := c.Create(t.Context(), sandbox.WithName(name+"-b"), sandbox.WithSource(sandbox.FromSnapshot(snap.ID)), user, harness.Quick)
	if err != nil {
		t.Fatalf("Create from a snapshot: %v", err)
	}
	defer from.Detach()
	isAgent("a sandbox from a snapshot", from)
	many, err := c.ForkN(t.Context(), sb.Name(), 2, sandbox.WithName(name), user, harness.Quick)
	if err != nil {
		t.Fatalf("ForkN: %v", err)
	}
	for _, f := range many {
		if f.Err != nil {
			t.Fatalf("ForkN: %v", f.Err)
		}
		defer f.Sandbox.Detach()
		isAgent("one of several forks", f.Sandbox)
	}

	// A fork of such a fork inherits the user, and a user that neither has is refused.
	name = harness.UniqueName(t)
	harness.Remove(t, c, name)
	again, err := c.Fork(t.Context(), fork.Name(), sandbox.WithName(name), harness.Quick)
	if err != nil {
		t.Fatalf("Fork of a fork: %v", err)
	}
	defer again.Detach()
	isAgent("a fork of a fork", again)
	for call, act := range map[string]func(name string) error{
		"Fork": func(name string) error {
			return harness.Second(c.Fork(t.Context(), sb.Name(), sandbox.WithName(name), sandbox.WithUser("nosuch")))
		},
		"Create from a snapshot": func(name string) error {
			return harness.Second(c.Create(t.Context(), sandbox.WithName(name), sandbox.WithSource(sandbox.FromSnapshot(snap.ID)), sandbox.WithUser("nosuch")))
		},
	} {
		name := harness.UniqueName(t)
		harness.Remove(t, c, name)
		refusesUser(t, call, "nosuch", name, act(name))
	}
}

// A create reads no account file for the image's own user, but for the first of an image, or for a number.
func TestUsualUserIsNotLookedUp(t *testing.T) {
	t.Parallel()
	proxy, image := enginetest.NewProxy(t), harness.Image(t, harness.Tar(t, harness.TarFile("etc/passwd", "own:x:7:7::/:/bin/sh\n"), harness.TarFile("etc/group", "own:x:7:\n")), "USER own")
	c := harness.NewClient(t, sandbox.WithHost(proxy.Host()))
	create := func(opts ...sandbox.CreateOption) (reads int) {
		t.Helper()
		proxy.Arm(0, enginetest.None, nil)
		harness.CreateWith(t, c, nil, append(opts, sandbox.WithImage(image))...)
		calls := proxy.Calls()
		return len(slices.DeleteFunc(calls, func(call string) bool {
			return !strings.HasPrefix(call, "GET /containers/") || !strings.HasSuffix(call, "/archive")
		}))
	}
	create() // what is looked up once for a client
	if n := create(); n != 0 {
		t.Errorf("a create without a user reads %d files", n)
	}
	if n := create(sandbox.WithUser("own")); n != 0 {
		t.Errorf("a create with the image's user reads %d files", n)
	}
	if n := create(sandbox.WithUser("5:6")); n != 0 {
		t.Errorf("a create with IDs reads %d files", n)
	}
}
