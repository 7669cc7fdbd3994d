package lifecycle_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sync/errgroup"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/internal/engine"
	"github.com/seed-1a2d6d8f/sandbox/internal/record"
	"github.com/seed-1a2d6d8f/sandbox/test/harness"
)

func init() {
	harness.AddRole("namer", namerRole)
	harness.AddRole("finder", finderRole)
}

// named hands over a sandbox of the pool with a name, which is removed when the test ends.
func named(t *testing.T, c *sandbox.Client, p *sandbox.Pool, opts ...sandbox.PoolOption) *sandbox.Sandbox {
	t.Helper()
	name := harness.UniqueName(t)
	harness.Remove(t, c, name)
	sb := handedOver(t, p, append(opts, sandbox.WithName(name))...)
	if s := p.Stats(); s.HandedOver != 1 || s.Created != 0 {
		t.Fatalf("Stats: %+v, want one that was handed over", s)
	}
	if sb.Name() != name || sb.ID() == name {
		t.Fatalf("it has the name %q and the ID %q, want the name %q", sb.Name(), sb.ID(), name)
	}
	return sb
}

// finderRole says which sandboxes have these names or IDs, and what a file in each has.
func finderRole(args []string) error {
	ctx := context.Background()
	for _, nameOrID := range args {
		sb, err := sandbox.Get(ctx, nameOrID)
		if err != nil {
			return err
		}
		text, err := sb.ReadFile(ctx, "/workspace/f")
		if err != nil {
			return err
		}
		fmt.Println(sb.Name(), sb.ID(), string(text))
		if err := sb.Detach(); err != nil {
			return err
		}
	}
	return nil
}

// found fails unless everybody finds a sandbox that a pool has named, under its name and its ID only.
func found(t *testing.T, c *sandbox.Client, sb *sandbox.Sandbox, tag string) {
	t.Helper()
	if names := ofPool(t, c, tag); !slices.Equal(names, []string{sb.Name()}) {
		t.Errorf("the list has %q of the pool, want %q", names, sb.Name())
	}
	st := harness.Status(t, sb)
	if st.Name != sb.Name() || !*st.Settings.Persistent || !slices.Equal(st.Workspace.Sandboxes, []string{sb.Name()}) {
		t.Errorf("its status is %+v", st)
	}
	out, err := harness.Process(t, "finder", sb.Name(), sb.ID()).Output()
	line := fmt.Sprintf("%s %s text\n", sb.Name(), sb.ID())
	if err != nil || string(out) != line+line {
		t.Errorf("another process finds %q, %v, want %q by name and by ID", out, err, line)
	}
	for what, opts := range map[string][]sandbox.CreateOption{
		"its name": {sandbox.WithName(sb.Name())}, "its ID as a name": {sandbox.WithName(sb.ID())}, "its ID": {sandbox.WithID(sb.ID())},
	} {
		if _, err := c.Create(t.Context(), append(opts, harness.Quick)...); !errors.Is(err, sandbox.ErrExists) {
			t.Errorf("Create with %s: %v, want ErrExists", what, err)
		}
	}
}

func TestNameFromAPoolIsAName(t *testing.T) {
	t.Parallel()
	c := harness.NewClient(t)
	p, tag := newPool(t, c, 1)
	full(t, p, 1)
	sb := named(t, c, p, sandbox.WithTags(map[string]string{"k": "v"}), sandbox.WithEnv(map[string]string{"A": "1"}))
	harness.Write(t, sb, "/workspace/f", "text")
	harness.Write(t, sb, "/root/f", "outside")
	full(t, p, 1)
	if _, err := p.Create(t.Context(), sandbox.WithName(sb.Name())); !errors.Is(err, sandbox.ErrExists) {
		t.Errorf("a second one of that name: %v, want ErrExists", err)
	}
	if s := p.Stats(); s.Ready != 1 || s.Lost != 0 {
		t.Errorf("after that the pool is %+v, want that its sandbox waits on", s)
	}
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	found(t, c, sb, tag)
	// It is persistent: the next session, which gets a new container, has its files, its tags and its name.
	for range 2 {
		if _, err := sb.Stop(t.Context()); err != nil {
			t.Fatal(err)
		}
		harness.Sweep(t)
		if out := harness.Run(t, sb, "sh", "-c", "cat /root/f; echo $A"); out != "outside1" {
			t.Errorf("in the next session a command prints %q", out)
		}
		found(t, c, sb, tag)
	}
	if got, want := harness.Status(t, sb).Tags, map[string]string{poolTag: tag, "k": "v"}; !cmp.Equal(got, want) {
		t.Errorf("it has the tags %v, want %v", got, want)
	}
	id := sb.ID()
	harness.RemoveNow(t, c, sb.Name())
	for _, nameOrID := range []string{sb.Name(), id} {
		if _, err := c.Inspect(t.Context(), nameOrID); !errors.Is(err, sandbox.ErrNotFound) {
			t.Errorf("%s after its deletion: %v", nameOrID, err)
		}
	}
	if left := harness.Objects(t, harness.NewEngine(t), record.Filter(record.ID, id)); len(left) > 0 {
		t.Errorf("left of it: %q", left)
	}
}

// One that is not persistent ends with its handle, and its forks and snapshots are like any other's.
func TestNamedOneOfAPoolThatIsNotPersistent(t *testing.T) {
	t.Parallel()
	c := harness.NewClient(t)
	p, _ := newPool(t, c, 1)
	full(t, p, 1)
	sb := named(t, c, p, sandbox.WithPersistent(false))
	harness.Write(t, sb, "/workspace/f", "text")
	fork, err := sb.Fork(t.Context())
	if err != nil {
		t.Fatalf("Fork: %v", err)
	}
	defer fork.Close()
	if text := harness.Read(t, fork, "/workspace/f"); text != "text" {
		t.Errorf("its fork has %q", text)
	}
	if err := sb.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Inspect(t.Context(), sb.Name()); !errors.Is(err, sandbox.ErrNotFound) {
		t.Errorf("after Close: %v, want ErrNotFound", err)
	}
}

// A container of another program is none of ours for having a sandbox's labels and a name like one.
func TestContainerWithLabelsOfAPooledOneIsNoSandbox(t *testing.T) {
	t.Parallel()
	c, eng := harness.NewClient(t), harness.NewEngine(t)
	p, tag := newPool(t, c, 1)
	full(t, p, 1)
	was := ofPool(t, c, tag)
	got, err := eng.InspectContainer(t.Context(), record.ContainerName(was[0]))
	if err != nil {
		t.Fatal(err)
	}
	name := harness.UniqueName(t)
	id, err := eng.CreateContainer(t.Context(), engine.ContainerSpec{Name: record.ContainerName(name), Image: got.Image, Labels: got.Labels})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := eng.RemoveContainer(context.Background(), id, true); err != nil {
			t.Error(err)
		}
	}()
	if _, err := c.Inspect(t.Context(), name); !errors.Is(err, sandbox.ErrNotFound) {
		t.Errorf("Inspect of %s: %v, want ErrNotFound", name, err)
	}
}

// requestText returns what a request is about: the method, the path and the body.
func requestText(r *http.Request) string {
	body, _ := io.ReadAll(r.Body)
	r.Body = io.NopCloser(bytes.NewReader(body))
	return r.Method + " " + r.URL.Path + " " + string(body)
}

// What can't be applied is not handed over, and nothing of it stays: no name, and no sandbox.
func TestNamedHandOverThatFailsLeavesNothing(t *testing.T) {
	t.Parallel()
	var refused atomic.Pointer[regexp.Regexp]
	host := harness.InFront(t, func(w http.ResponseWriter, r *http.Request) bool {
		which := refused.Load()
		if which == nil || !which.MatchString(requestText(r)) {
			return false
		}
		harness.Refuse(w, "no")
		return true
	}, nil)
	c, eng := harness.NewClient(t, sandbox.WithHost(host)), harness.NewEngine(t)
	p, tag := newPool(t, c, 1)
	for what, fail := range map[string]struct {
		refused string
		opt     sandbox.PoolOption
		unnamed bool
	}{
		"a rename that the engine refuses":          {refused: "POST .*/rename", opt: sandbox.WithTags(map[string]string{"k": "v"})},
		"limits that the engine refuses":            {refused: "POST .*/update", opt: sandbox.WithMemory(512 << 20)},
		"more CPUs than there are":                  {opt: sandbox.WithVCPUs(1 << 20)},
		"a policy that can't be recorded":           {refused: "POST .*/volumes/create .*[.]rev-", opt: sandbox.WithNetworkPolicy(sandbox.DenyAll())},
		"a policy for which the network is unknown": {refused: "POST .*/containers/create", opt: sandbox.WithNetworkPolicy(sandbox.PublicOnly())},
		"persistence that can't be recorded":        {refused: `POST .*/volumes/create .*persistent\\":true`, opt: sandbox.WithPersistent(true), unnamed: true},
		"timeouts after persistence was recorded":   {refused: `POST .*/volumes/create .*"timeout_ms`, opt: sandbox.WithTimeout(time.Hour)},
	} {
		t.Run(what, func(t *testing.T) {
			full(t, p, 1)
			was := ofPool(t, c, tag)[0]
			name, opts := was, []sandbox.PoolOption{fail.opt}
			if !fail.unnamed {
				name = harness.UniqueName(t)
				opts = append(opts, sandbox.WithName(name))
			}
			if fail.refused != "" {
				refused.Store(regexp.MustCompile(fail.refused))
			}
			sb, err := p.Create(t.Context(), opts...)
			refused.Store(nil)
			if err == nil || sb != nil {
				t.Fatalf("got %v, %v, want an error", sb, err)
			}
			for _, one := range []string{name, was} {
				if _, err := c.Inspect(t.Context(), one); !errors.Is(err, sandbox.ErrNotFound) {
					t.Errorf("Inspect of %s: %v, want ErrNotFound", one, err)
				}
				if _, err := eng.InspectVolume(t.Context(), record.MarkerName(one)); !errors.Is(err, engine.ErrNotFound) {
					t.Errorf("the marker of %s: %v", one, err)
				}
			}
			if left := harness.Objects(t, eng, record.Filter(record.ID, was)); len(left) > 0 {
				t.Errorf("after %v it left %q", err, left)
			}
		})
	}
}

// A process dies at a step of a named hand-over, before or after the engine has carried it out: nothing
// is left after a sweep, and the name is free.
func TestProcessThatDiesInANamedHandOverLeavesNoName(t *testing.T) {
	t.Parallel()
	const step = "X-Step"
	c := harness.NewClient(t)
	var g sync.WaitGroup
	defer g.Wait()
	for what, at := range map[string]struct {
		request string
		after   bool
		rare    bool // the engine has what it has in the row before
	}{
		"after the marker":             {request: "POST .*/volumes/create .*agent-sandbox-pending[.]t-", after: true},
		"before the rename":            {request: "POST .*/rename", rare: true},
		"after the rename":             {request: "POST .*/rename", after: true},
		"after it is persistent":       {request: `POST .*/volumes/create .*persistent\\":true`, after: true},
		"before the end of its marker": {request: "DELETE .*/volumes/agent-sandbox-pending[.]t-"},
	} {
		if at.rare && !harness.Soaking() {
			continue
		}
		g.Go(func() {
			t.Run(what, func(t *testing.T) {
				which := regexp.MustCompile(at.request)
				reached, dead := make(chan struct{}, 10), make(chan struct{})
				host := harness.InFront(t, func(_ http.ResponseWriter, r *http.Request) bool {
					if !which.MatchString(requestText(r)) {
						return false
					}
					r.Header.Set(step, "reached")
					if !at.after {
						reached <- struct{}{}
						<-dead
					}
					return !at.after
				}, func(r *http.Response) error {
					if r.Request.Header.Get(step) != "" {
						reached <- struct{}{}
						<-dead
					}
					return nil
				})
				tag, name := harness.UniqueName(t), harness.UniqueName(t)
				cmd := harness.StartProcess(t, "pool", tag, name, host)
				<-reached
				harness.Kill(cmd)
				close(dead)
				deadPool(t, c, tag)
				sb, err := c.Create(t.Context(), harness.Quick, sandbox.WithName(name), sandbox.WithPersistent(false))
				if err != nil {
					t.Fatalf("Create with the name: %v", err)
				}
				if err := sb.Close(); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// namerRole tries to create sandboxes of these names, from a pool or in the ordinary way, and says which
// ones it got.
func namerRole(args []string) error {
	ctx := context.Background()
	c, err := harness.Open()
	if err != nil {
		return err
	}
	defer c.Close()
	create := func(name string) (*sandbox.Sandbox, error) {
		return c.Create(ctx, harness.Quick, sandbox.WithName(name))
	}
	if tag := args[0]; tag != "" {
		p, err := c.NewPool(ctx, harness.Rounds(1, 2), harness.Quick, sandbox.WithTags(map[string]string{poolTag: tag}))
		if err != nil {
			return err
		}
		defer p.Close()
		create = func(name string) (*sandbox.Sandbox, error) {
			for p.Stats().Ready == 0 {
				if err := p.Stats().LastError; err != nil {
					return nil, err
				}
				time.Sleep(10 * time.Millisecond)
			}
			return p.Create(ctx, sandbox.WithName(name))
		}
	}
	for _, name := range args[1:] {
		sb, err := create(name)
		if errors.Is(err, sandbox.ErrExists) {
			continue
		}
		if err != nil {
			return err
		}
		fmt.Println(name, sb.ID())
		if err := sb.Detach(); err != nil {
			return err
		}
	}
	return nil
}

func TestOneOfManyCreatorsGetsANameFromAPoolOrNot(t *testing.T) {
	t.Parallel()
	c := harness.NewClient(t)
	tag := harness.UniqueName(t)
	names := make([]string, harness.Rounds(2, 4))
	for i := range names {
		names[i] = harness.UniqueName(t)
		harness.Remove(t, c, names[i])
	}
	var g errgroup.Group
	var mu sync.Mutex
	got := map[string][]string{} // IDs by name
	for i := range harness.Rounds(3, 8) {
		of := tag
		if i%4 == 2 {
			of = ""
		}
		g.Go(func() error {
			out, err := harness.Process(t, "namer", append([]string{of}, names...)...).Output()
			mu.Lock()
			defer mu.Unlock()
			for line := range strings.Lines(string(out)) {
				name, id, _ := strings.Cut(strings.TrimSpace(line), " ")
				got[name] = append(got[name], id)
			}
			return err
		})
	}
	if err := g.Wait(); err != nil {
		t.Error(err)
	}
	for _, name := range names {
		st, err := c.Inspect(t.Context(), name)
		if err != nil || len(got[name]) != 1 || st.ID != got[name][0] {
			t.Errorf("%s: %q got it; Inspect: %s, %v", name, got[name], st.ID, err)
		}
	}
	if left := slices.DeleteFunc(ofPool(t, c, tag), func(s string) bool { return slices.Contains(names, s) }); len(left) > 0 {
		t.Errorf("%q of the pools are left", left)
	}
}
