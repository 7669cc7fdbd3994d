package lifecycle_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/internal/claim"
	"github.com/seed-1a2d6d8f/sandbox/internal/guest/wire"
	"github.com/seed-1a2d6d8f/sandbox/internal/record"
	"github.com/seed-1a2d6d8f/sandbox/test/harness"
)

// poolTag is the tag by which a test finds the sandboxes of its pool.
const poolTag = "pool"

// newPool returns a pool whose sandboxes have the tag poolTag with the value tag.
func newPool(t *testing.T, c *sandbox.Client, size int, opts ...sandbox.CreateOption) (p *sandbox.Pool, tag string) {
	t.Helper()
	tag = harness.UniqueName(t)
	opts = append([]sandbox.CreateOption{harness.Quick, sandbox.WithTags(map[string]string{poolTag: tag})}, opts...)
	p, err := c.NewPool(t.Context(), size, opts...)
	if err != nil {
		t.Fatalf("NewPool: %v", err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Errorf("Pool.Close: %v", err)
		}
	})
	return p, tag
}

// full waits until so many sandboxes wait in the pool.
func full(t *testing.T, p *sandbox.Pool, n int) {
	t.Helper()
	harness.Eventually(t, fmt.Sprintf("%d sandboxes wait in the pool", n), func() bool { return p.Stats().Ready == n })
}

// ofPool returns the names of the sandboxes with that tag.
func ofPool(t *testing.T, c *sandbox.Client, tag string) (names []string) {
	t.Helper()
	list, err := c.List(context.WithoutCancel(t.Context()), sandbox.ListOptions{Tags: map[string]string{poolTag: tag}})
	if err != nil {
		t.Fatalf("List: %v", err)
	}
	for _, i := range list {
		names = append(names, i.Name)
	}
	return names
}

// handedOver is a sandbox of the pool, which is closed when the test ends.
func handedOver(t *testing.T, p *sandbox.Pool, opts ...sandbox.PoolOption) *sandbox.Sandbox {
	t.Helper()
	sb, err := p.Create(t.Context(), opts...)
	if err != nil {
		t.Fatalf("Pool.Create: %v", err)
	}
	t.Cleanup(func() {
		if err := sb.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return sb
}

func TestSandboxOfAPoolEqualsACreatedOne(t *testing.T) {
	t.Parallel()
	c := harness.NewClient(t)
	ofBoth := []sandbox.CreateOption{sandbox.WithEnv(map[string]string{"A": "1", "B": "1"}), sandbox.WithIdleTimeout(time.Hour), sandbox.WithTimeout(time.Hour)}
	p, tag := newPool(t, c, 1, ofBoth...)
	full(t, p, 1)
	changes := []sandbox.LiveOption{
		sandbox.WithTags(map[string]string{"k": "v"}), sandbox.WithEnv(map[string]string{"B": "2"}), sandbox.WithNetworkPolicy(sandbox.DenyAll()),
		sandbox.WithTimeout(2 * time.Hour), sandbox.WithStopTimeout(2 * time.Second), sandbox.WithIdleTimeout(20 * time.Minute), sandbox.IgnoreDetached(),
	}
	var hand []sandbox.PoolOption
	create := append([]sandbox.CreateOption{sandbox.WithTags(map[string]string{poolTag: tag})}, ofBoth...)
	for _, o := range changes {
		hand, create = append(hand, o), append(create, o)
	}
	began := time.Now()
	got := handedOver(t, p, hand...)
	want, err := c.Create(t.Context(), create...)
	if err != nil {
		t.Fatalf("Create: %v", err)
	}
	defer want.Close()
	if s := p.Stats(); s.HandedOver != 1 || s.Created != 0 {
		t.Fatalf("Stats: %+v, want one that was handed over", s)
	}
	seen := func(sb *sandbox.Sandbox) (status any, env string) {
		t.Helper()
		env = harness.Run(t, sb, "sh", "-c", `echo "$A $B"; ls -A /workspace`)
		st, err := sb.Summary(t.Context())
		if err != nil {
			t.Fatalf("Summary: %v", err)
		}
		for _, at := range []time.Time{st.ExpiresAt.Add(-2 * time.Hour), st.IdleExpiresAt.Add(-20 * time.Minute)} {
			if at.Before(began.Add(-2*time.Second)) || at.After(time.Now().Add(2*time.Second)) {
				t.Errorf("%s: a timeout counts from %v, want from its creation, %v", sb, at, began)
			}
		}
		// What names this one sandbox, its times, and what its container does not have yet.
		st.ID, st.Name, st.CreatedAt, st.StartedAt, st.Uptime, st.ExpiresAt, st.IdleExpiresAt = "", "", time.Time{}, time.Time{}, 0, time.Time{}, time.Time{}
		st.Workspace, st.LogsEndpoint, st.Egress, st.Pending = sandbox.Volume{}, "", nil, nil
		text, err := json.Marshal(st)
		if err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(text, &status); err != nil {
			t.Fatal(err)
		}
		return status, env
	}
	gotStatus, gotEnv := seen(got)
	wantStatus, wantEnv := seen(want)
	if diff := cmp.Diff(wantStatus, gotStatus); diff != "" {
		t.Errorf("the status of one that is handed over is not one's that is created (-created +handed over):\n%s", diff)
	}
	if gotEnv != wantEnv || !strings.HasPrefix(gotEnv, "1 2") {
		t.Errorf("a command has %q, want %q", gotEnv, wantEnv)
	}
	if err := got.Command(t.Context(), "bash", "-c", "exec 3<>/dev/tcp/1.1.1.1/80").Run(); err == nil {
		t.Error("a connection is made with the network policy DenyAll")
	}
	reply, err := harness.AskPID1(t.Context(), harness.NewEngine(t), got.Name(), wire.Control{Op: wire.OpNetwork})
	if err != nil || reply.Network == nil || reply.Network.Version != 2 || reply.Network.Blocked == 0 {
		t.Errorf("PID 1 enforces %+v, %v, want version 2 of the policy and what it has blocked", reply.Network, err)
	}
}

// A hand-over without changes needs no engine: here it answers nothing meanwhile.
func TestHandOverCallsNoEngine(t *testing.T) {
	t.Parallel()
	var mu sync.RWMutex // held while the engine answers nothing
	host := harness.InFront(t, func(http.ResponseWriter, *http.Request) bool {
		mu.RLock()
		defer mu.RUnlock()
		return false
	}, nil)
	c := harness.NewClient(t, sandbox.WithHost(host))
	p, _ := newPool(t, c, 1)
	full(t, p, 1)
	mu.Lock()
	ctx, cancel := context.WithTimeout(t.Context(), harness.CallBound)
	defer cancel()
	sb, err := p.Create(ctx)
	var out []byte
	if err == nil {
		out, err = sb.Command(ctx, "echo", "here").Output()
	}
	mu.Unlock()
	if err != nil || string(out) != "here\n" {
		t.Fatalf("on an engine that does not answer a hand-over and a command return %q, %v", out, err)
	}
	if err := sb.Close(); err != nil {
		t.Error(err)
	}
}

func TestPoolHandsOverNothingThatIsDead(t *testing.T) {
	t.Parallel()
	c, eng := harness.NewClient(t), harness.NewEngine(t)
	for name, end := range map[string]func(id string) error{
		"killed":  func(id string) error { return eng.KillContainer(t.Context(), id, "KILL") },
		"removed": func(id string) error { return eng.RemoveContainer(t.Context(), id, true) },
		"paused":  func(id string) error { harness.Pause(t, eng, id); return nil },
	} {
		t.Run(name, func(t *testing.T) {
			size := 1
			if name == "killed" { // it goes on to the next one
				size = 2
			}
			p, tag := newPool(t, c, size)
			full(t, p, size)
			was := ofPool(t, c, tag)
			for _, one := range was {
				if err := end(record.ContainerName(one)); err != nil {
					t.Fatal(err)
				}
				if name == "removed" { // whoever removes a container leaves its volumes
					t.Cleanup(func() {
						if err := eng.RemoveVolume(context.Background(), record.WorkspaceName(one), false); err != nil {
							t.Error(err)
						}
					})
				}
			}
			sb := handedOver(t, p)
			if slices.Contains(was, sb.Name()) {
				t.Errorf("it handed over %s, which was %s", sb, name)
			}
			harness.Run(t, sb, "true")
			harness.Eventually(t, "the dead ones are gone and counted", func() bool {
				return p.Stats().Lost == size && !slices.ContainsFunc(ofPool(t, c, tag), func(s string) bool { return slices.Contains(was, s) })
			})
		})
	}
}

func TestEmptyPoolCreates(t *testing.T) {
	t.Parallel()
	c := harness.NewClient(t)
	p, tag := newPool(t, c, 1)
	sb := handedOver(t, p, sandbox.WithTags(map[string]string{"k": "v"}))
	if s := p.Stats(); s.Created != 1 || s.HandedOver != 0 {
		t.Errorf("Stats: %+v, want one that was created", s)
	}
	if got, want := harness.Status(t, sb).Tags, map[string]string{poolTag: tag, "k": "v"}; !cmp.Equal(got, want) {
		t.Errorf("it has the tags %v, want %v", got, want)
	}
}

func TestPersistentOneOfAPoolStays(t *testing.T) {
	t.Parallel()
	c := harness.NewClient(t)
	p, _ := newPool(t, c, 1)
	full(t, p, 1)
	sb := handedOver(t, p, sandbox.WithPersistent(true))
	harness.Remove(t, c, sb.Name())
	if s := p.Stats(); s.HandedOver != 1 {
		t.Errorf("Stats: %+v, want one that was handed over", s)
	}
	harness.Write(t, sb, "/workspace/f", "text")
	if err := sb.Close(); err != nil {
		t.Fatal(err)
	}
	again, err := c.Get(t.Context(), sb.Name())
	if err != nil {
		t.Fatalf("Get: %v", err)
	}
	defer again.Detach()
	if got := harness.Read(t, again, "/workspace/f"); got != "text" {
		t.Errorf("its file has %q", got)
	}
}

func TestTimeoutsOfAPoolCountFromTheHandOver(t *testing.T) {
	t.Parallel()
	c := harness.NewClient(t)
	const timeout, idle = 3 * time.Second, 2 * time.Second
	p, _ := newPool(t, c, 1, sandbox.WithTimeout(timeout), sandbox.WithIdleTimeout(idle))
	full(t, p, 1)
	time.Sleep(timeout + time.Second)
	if s := p.Stats(); s.Ready != 1 || s.Lost != 0 {
		t.Fatalf("after the timeout the pool is %+v", s)
	}
	began := time.Now()
	sb := handedOver(t, p)
	st := harness.Status(t, sb)
	over := st.ExpiresAt.IsZero() && time.Since(began) > idle // where the status took long, nobody used the session until then
	if !over && (st.ExpiresAt.Before(began.Add(timeout-time.Second)) || st.ExpiresAt.After(time.Now().Add(timeout+time.Second))) {
		t.Errorf("it expires at %v, want %v after %v", st.ExpiresAt, timeout, began)
	}
	err := sb.Command(t.Context(), "sleep", "60").Run()
	// Where the command took long to begin, the session was idle until then.
	if took := time.Since(began); !errors.Is(err, sandbox.ErrSessionLost) || took < idle-500*time.Millisecond {
		t.Errorf("after %v a command ended with %v, want the end of the session after %v, or %v without use", took, err, timeout, idle)
	}
}

func TestPoolClosesWhileItFills(t *testing.T) {
	t.Parallel()
	c := harness.NewClient(t)
	p, tag := newPool(t, c, 3)
	harness.Eventually(t, "the pool is being filled", func() bool { return p.Stats().Filling > 0 && len(ofPool(t, c, tag)) > 0 })
	for range 2 {
		if err := p.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	}
	if left := ofPool(t, c, tag); len(left) > 0 {
		t.Errorf("left after Close: %q", left)
	}
	if _, err := p.Create(t.Context()); !errors.Is(err, sandbox.ErrClosed) {
		t.Errorf("Create on a closed pool: %v, want ErrClosed", err)
	}
}

func TestCallersOfAPoolGetDifferentSandboxes(t *testing.T) {
	t.Parallel()
	c := harness.NewClient(t)
	p, tag := newPool(t, c, 3)
	full(t, p, 3)
	const callers = 5
	var g sync.WaitGroup
	got := make([]*sandbox.Sandbox, callers)
	for i := range got {
		g.Go(func() {
			sb, err := p.Create(t.Context(), sandbox.WithEnv(map[string]string{"I": fmt.Sprint(i)}))
			if err != nil {
				t.Errorf("Create: %v", err)
				return
			}
			got[i] = sb
			if out, err := sb.Command(t.Context(), "sh", "-c", "echo $I").Output(); err != nil || string(out) != fmt.Sprintln(i) {
				t.Errorf("a command of number %d prints %q, %v", i, out, err)
			}
		})
	}
	g.Wait()
	names := map[string]bool{}
	for _, sb := range got {
		if sb == nil {
			continue
		}
		names[sb.Name()] = true
		if err := sb.Close(); err != nil {
			t.Error(err)
		}
	}
	if s := p.Stats(); len(names) != callers || s.HandedOver+s.Created != callers || s.HandedOver < 3 {
		t.Errorf("%d callers got %d sandboxes; %+v", callers, len(names), s)
	}
	if err := p.Close(); err != nil {
		t.Error(err)
	}
	if left := ofPool(t, c, tag); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
}

func TestFillThatFailsIsTriedAgainLater(t *testing.T) {
	t.Parallel()
	c := harness.NewClient(t)
	refused := errors.New("refused")
	var fills atomic.Int32
	p, _ := newPool(t, c, 1, sandbox.OnCreate(func(context.Context, *sandbox.Sandbox) error {
		if fills.Add(1) == 1 {
			return refused
		}
		return nil
	}))
	harness.Eventually(t, "a fill has failed", func() bool { return p.Stats().Failed == 1 })
	failed := time.Now()
	if err := p.Stats().LastError; !errors.Is(err, refused) {
		t.Errorf("the last error is %v", err)
	}
	full(t, p, 1)
	if took := time.Since(failed); took < 900*time.Millisecond {
		t.Errorf("it was tried again within %v, want after a second", took)
	}
	if n := fills.Load(); n != 2 {
		t.Errorf("%d fills, want 2", n)
	}
}

func TestHandOverThatFailsLeavesNothing(t *testing.T) {
	t.Parallel()
	c := harness.NewClient(t)
	p, tag := newPool(t, c, 1)
	full(t, p, 1)
	was := ofPool(t, c, tag)
	sb, err := p.Create(t.Context(), sandbox.WithEnv(map[string]string{"A": "1"}), sandbox.WithVCPUs(1<<20))
	if err == nil || sb != nil {
		t.Fatalf("more CPUs than there are: %v, %v", sb, err)
	}
	if now := ofPool(t, c, tag); slices.Contains(now, was[0]) {
		t.Errorf("%s, which could not be changed, is left: %v", was[0], now)
	}
}

func TestPoolRefusesWhatIsForOne(t *testing.T) {
	t.Parallel()
	c := harness.Nowhere(t)
	for name, opt := range map[string]sandbox.CreateOption{
		"WithName": sandbox.WithName("a"), "WithID": sandbox.WithID("a"), "WithPersistent": sandbox.WithPersistent(true),
		"WithProgress": sandbox.WithProgress(func(sandbox.Progress) {}),
		"WithSource":   sandbox.WithSource(sandbox.Tarball{Reader: strings.NewReader("")}),
	} {
		if _, err := c.NewPool(t.Context(), 1, opt); !errors.Is(err, sandbox.ErrInvalidArgument) || !strings.Contains(err.Error(), name) {
			t.Errorf("NewPool with %s: %v, want an ErrInvalidArgument that names it", name, err)
		}
	}
	for _, size := range []int{-1, 0, 1 << 20} {
		if _, err := c.NewPool(t.Context(), size); !errors.Is(err, sandbox.ErrInvalidArgument) {
			t.Errorf("a pool of %d: %v", size, err)
		}
	}
	if _, err := c.NewPool(t.Context(), 1); !errors.Is(err, sandbox.ErrEngineUnavailable) {
		t.Errorf("without an engine: %v", err)
	}
}

func init() { harness.AddRole("pool", poolRole) }

// poolRole has a pool of two with the tag, of one for a hand-over with a name. It says so when it fills, when it is full, and at every
// hand-over, and goes on with these. If it is given a name and the host of an engine, it hands over one of
// that name and ends.
func poolRole(args []string) error {
	ctx := context.Background()
	opts := []sandbox.PoolOption{sandbox.WithEnv(map[string]string{"A": "1"}), sandbox.WithTimeout(time.Hour), sandbox.WithNetworkPolicy(sandbox.DenyAll())}
	var engine []sandbox.ClientOption
	named := len(args) > 1
	if named {
		opts, engine = append(opts, sandbox.WithName(args[1])), append(engine, sandbox.WithHost(args[2]))
	}
	c, err := harness.Open(engine...)
	if err != nil {
		return err
	}
	size := 2
	if named {
		size = 1
	}
	p, err := c.NewPool(ctx, size, harness.Quick, sandbox.WithTags(map[string]string{poolTag: args[0]}))
	if err != nil {
		return err
	}
	fmt.Println("fills")
	for p.Stats().Ready < size {
		time.Sleep(10 * time.Millisecond)
	}
	fmt.Println("full")
	for {
		fmt.Println("hands over")
		if _, err := p.Create(ctx, opts...); err != nil || named {
			return err
		}
	}
}

// deadPool waits until nothing of the pool of a process that has died is left.
func deadPool(t *testing.T, c *sandbox.Client, tag string) {
	t.Helper()
	for died := time.Now(); ; time.Sleep(2 * time.Second) {
		if time.Since(died) > claim.Lease { // before that a sweep has no reason to remove anything
			harness.Sweep(t)
		}
		left := ofPool(t, c, tag)
		if len(left) == 0 {
			return
		}
		if time.Since(died) > deathBound {
			t.Fatalf("%v after the end of its program, the pool's %q are left", deathBound, left)
		}
	}
}

func TestPoolOfAKilledProcessLeavesNothing(t *testing.T) {
	t.Parallel()
	c := harness.NewClient(t)
	var g sync.WaitGroup
	defer g.Wait()
	at := harness.Every(2)
	for i, kill := range []struct {
		when  string
		after time.Duration
	}{
		{"fills", 0}, {"fills", 100 * time.Millisecond}, {"fills", 400 * time.Millisecond}, {"full", 0},
		{"hands over", 0}, {"hands over", 5 * time.Millisecond}, {"hands over", 20 * time.Millisecond}, {"hands over", 300 * time.Millisecond},
	} {
		if !at(i) {
			continue
		}
		g.Go(func() {
			t.Run(fmt.Sprintf("%v after it %s", kill.after, kill.when), func(t *testing.T) {
				tag := harness.UniqueName(t)
				cmd := harness.Process(t, "pool", tag)
				said := lines(t, cmd)
				if err := cmd.Start(); err != nil {
					t.Fatal(err)
				}
				for line := range said {
					if line == kill.when {
						break
					}
				}
				time.Sleep(kill.after)
				cmd.Process.Kill()
				for range said {
				}
				cmd.Wait()
				deadPool(t, c, tag)
			})
		})
	}
}
