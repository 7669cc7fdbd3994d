package fault_test

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/internal/engine"
	"github.com/seed-1a2d6d8f/sandbox/internal/enginetest"
	"github.com/seed-1a2d6d8f/sandbox/test/harness"
)

// changed is the fault loop's operation: the start of a session that takes a new container.
func changed(t *testing.T) operation {
	image := harness.SmallImage(t)
	port := func(x *trial) int { return 1000 + 10*x.k + int(x.fault) }
	return again(operation{
		alters: true,
		arrange: func(x *trial) {
			x.name = x.kept
			ctx := context.Background()
			sb, err := x.clean.GetOrCreate(ctx, x.name, sandbox.WithImage(image), harness.Quick)
			if err != nil {
				x.Fatal(err)
			}
			defer sb.Detach()
			x.files = putFiles(x, sb, x.Name())
			if _, err := sb.Stop(ctx); err != nil {
				x.Fatal(err)
			}
			if err := sb.Update(ctx, sandbox.WithPorts(port(x))); err != nil {
				x.Fatal(err)
			}
		},
		open: handle,
		act: func(ctx context.Context, x *trial) error {
			_, err := x.sb.Start(ctx)
			return err
		},
		done: func(x *trial) {
			x.is(sandbox.StateRunning)
			ctx, cancel := context.WithTimeout(context.Background(), harness.CallBound)
			defer cancel()
			files, err := harness.ReadFiles(ctx, x.sb)
			if err != nil || files != x.files {
				x.Errorf("%s: the files are\n%s\n%v, want\n%s", x.where(), files, err, x.files)
			}
			if _, err := x.sb.Port(ctx, port(x)); err != nil {
				x.Errorf("%s: it returned nil and port %d: %v", x.where(), port(x), err)
			}
		},
		after: func(x *trial) {
			for _, left := range halves(x, x.eng, x.name) {
				x.Errorf("%s: left: %s", x.where(), left)
			}
			if images := harness.Layers(x, x.eng, x.name); len(images) > 1 {
				x.Errorf("%s: images %+v", x.where(), images)
			}
		},
	})
}

// Whatever the engine has done and not told while a container is replaced,
// nothing is lost, and the same start without a fault does it.
func TestAChangedContainerSurvivesALostReplyOfAnyCall(t *testing.T) {
	at := harness.Every(7)
	testPlan(t, changed(t), func(k int, call string) []enginetest.Fault {
		if isRead(call) || !at(k) {
			return nil
		}
		return []enginetest.Fault{enginetest.LoseReply}
	})
}

// The same with every fault in every call.
func TestAChangedContainerSurvivesAFaultInAnyCallSoak(t *testing.T) {
	harness.Soak(t)
	testFaults(t, changed(t))
}

func init() {
	// starter starts the session of a sandbox on request.
	harness.AddRole("starter", func(args []string) error {
		ctx := context.Background()
		c, err := harness.Open(sandbox.WithHost(args[0]))
		if err != nil {
			return err
		}
		sb, err := c.Get(ctx, args[1], sandbox.WithoutResume())
		if err != nil {
			return err
		}
		fmt.Println("ready")
		if _, err := fmt.Scanln(); err != nil && err.Error() != "unexpected newline" {
			return err
		}
		_, err = sb.Start(ctx)
		return err
	})
}

// A program that is killed at any engine call of the replacement leaves a
// sandbox that the next caller gets whole, with what was changed.
func TestAChangedContainerSurvivesTheDeathOfWhoStartsIt(t *testing.T) {
	t.Parallel()
	eng, image := harness.NewEngine(t), harness.SmallImage(t)
	// Each has a sandbox of its own: a dead one's claim lasts for as long as its lease.
	trial := func(t *testing.T, at *moment) (calls []string) {
		over := turn()
		defer func() { over() }()
		c := harness.NewClient(t)
		sb, err := c.Create(t.Context(), sandbox.WithName(harness.UniqueName(t)), sandbox.WithImage(image), harness.Quick)
		if err != nil {
			t.Fatal(err)
		}
		harness.Remove(t, c, sb.Name())
		defer sb.Detach()
		before := putFiles(t, sb, t.Name())
		if _, err := sb.Stop(t.Context()); err != nil {
			t.Fatal(err)
		}
		harness.Update(t, sb, sandbox.WithPorts(3000))
		proxy := enginetest.NewProxy(t)
		cmd := harness.Process(t, "starter", proxy.Host(), sb.Name())
		goOn := harness.Ready(t, cmd)
		at.arm(proxy, harness.Raw(t, sb).ID, cmd)
		goOn()
		calls, k, call := dead(t, proxy, cmd)
		over()
		again := next(t, sb.Name(), k, call)
		over = turn()
		defer again.Detach()
		if after, err := harness.ReadFiles(t.Context(), again); err != nil || after != before {
			t.Errorf("the files were\n%s\nand are\n%s\n%v", before, after, err)
		}
		if _, err := again.Port(t.Context(), 3000); err != nil {
			t.Error(err)
		}
		if list, err := c.List(t.Context(), sandbox.ListOptions{Prefix: sb.Name()}); err != nil || len(list) != 1 {
			t.Errorf("List: %+v, %v, want one", list, err)
		}
		if images := harness.Layers(t, eng, sb.Name()); len(images) > 1 {
			t.Errorf("images %+v, want one at most", images)
		}
		noHalves(t, c, eng, sb.Name(), k, call)
		return calls
	}
	calls := trial(t, nil)
	t.Logf("calls: %q", calls)
	// Each waits for a lease.
	moments := []moment{{ending: "/rename", nth: 1}, {removal: true}, {ending: "/rename", nth: 2}}
	if harness.Soaking() {
		moments = everyCall(calls)
	}
	for _, at := range moments {
		t.Run(at.String(), func(t *testing.T) {
			t.Parallel()
			trial(t, &at)
		})
	}
}

// A moment is when a program is killed: at its call of that number, at the nth that ends so, or when it
// removes the sandbox's old container.
type moment struct {
	k       int
	ending  string
	nth     int
	removal bool
}

// everyCall has a moment for each call.
func everyCall(calls []string) (all []moment) {
	for i := range calls {
		all = append(all, moment{k: i + 1})
	}
	return all
}

func (m moment) String() string {
	switch {
	case m.k > 0:
		return fmt.Sprintf("%02d", m.k)
	case m.removal:
		return "removal"
	}
	return fmt.Sprintf("%s %d", m.ending[1:], m.nth)
}

// arm has the program killed at the moment, or at none if that is nil. old is the sandbox's container.
func (m *moment) arm(proxy *enginetest.Proxy, old string, cmd *exec.Cmd) {
	kill := func() { cmd.Process.Kill() }
	switch {
	case m == nil:
		proxy.Arm(0, enginetest.None, nil)
	case m.k > 0:
		proxy.Arm(m.k, enginetest.Cancel, kill)
	case m.removal:
		proxy.ArmAt("DELETE /containers/"+old, enginetest.Cancel, kill)
	default:
		proxy.ArmAtNth(m.nth, m.ending, enginetest.Cancel, kill)
	}
}

// dead waits until the program has ended, and returns its calls and the one at which it was killed. Busy
// helpers make some calls come in another order or number: one that makes fewer is over before.
func dead(t *testing.T, proxy *enginetest.Proxy, cmd *exec.Cmd) (calls []string, k int, call string) {
	t.Helper()
	err := cmd.Wait()
	calls, k = proxy.Calls(), proxy.FiredAt()
	proxy.Disarm()
	if k > 0 {
		call = calls[k-1]
	}
	if (err != nil) != (k > 0) {
		t.Errorf("killed at call %d of %q: %v", k, calls, err)
	}
	return calls, k, call
}

// next gets a sandbox as the next caller does, who asks again while the engine is too busy to answer in
// time.
func next(t *testing.T, name string, k int, call string) *sandbox.Sandbox {
	t.Helper()
	c := harness.NewClient(t)
	began := time.Now()
	for {
		sb, err := c.Get(t.Context(), name)
		if errors.Is(err, sandbox.ErrEngineUnavailable) && time.Since(began) < harness.CallBound {
			t.Logf("Get after %v: %v", time.Since(began), err)
			time.Sleep(time.Second)
			continue
		}
		if err != nil {
			t.Fatalf("Get after a death at call %d, %s: %v", k, call, err)
		}
		t.Logf("Get after a death at call %d, %s: %v", k, call, time.Since(began).Round(time.Millisecond))
		return sb
	}
}

// halves are what a replacement of a sandbox's container has while it is under way: a second container, and markers.
func halves(t testing.TB, eng *engine.Engine, name string) (found []string) {
	t.Helper()
	for _, o := range harness.Objects(t, eng, harness.Named(name)) {
		if strings.Contains(o, ".N (") || strings.Contains(o, ".U (") || strings.Contains(o, "pending") {
			found = append(found, o)
		}
	}
	return found
}

// noHalves checks that no second container and no marker of the sandbox is left. Once the marker of the
// sandbox is gone, those that it had for volumes are left to a sweep.
func noHalves(t *testing.T, c *sandbox.Client, eng *engine.Engine, name string, k int, call string) {
	t.Helper()
	left := func() []string { return halves(t, eng, name) }
	for until := time.Now().Add(harness.CallBound); len(left()) > 0 && strings.Contains(call, "pending") && time.Now().Before(until); time.Sleep(time.Second) {
		if _, err := c.Prune(t.Context()); err != nil {
			t.Errorf("Prune: %v", err)
		}
	}
	if left := left(); len(left) > 0 {
		t.Errorf("left after a death at call %d, %s: %q", k, call, left)
	}
}
