package fault_test

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/seed-1a2d6d8f/sandbox"
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
			for _, left := range harness.Objects(x, x.eng, harness.Named(x.name)) {
				if strings.Contains(left, ".N (") || strings.Contains(left, ".U (") || strings.Contains(left, "pending") {
					x.Errorf("%s: left: %s", x.where(), left)
				}
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
	at := everyNth(3)
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
	trial := func(t *testing.T, k int, call string) (calls []string) {
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
		fault := enginetest.Cancel
		if k == 0 {
			fault = enginetest.None
		}
		proxy.Arm(k, fault, func() { cmd.Process.Kill() })
		goOn()
		err = cmd.Wait()
		calls = proxy.Calls()
		proxy.Disarm()
		if (err != nil) != (k > 0) {
			t.Errorf("killed at call %d, %s: %v", k, call, err)
		}
		began := time.Now()
		again, err := harness.NewClient(t).Get(t.Context(), sb.Name())
		if err != nil {
			t.Fatalf("Get after a death at call %d, %s: %v", k, call, err)
		}
		defer again.Detach()
		t.Logf("Get after a death at call %d, %s: %v", k, call, time.Since(began).Round(time.Millisecond))
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
		for _, left := range harness.Objects(t, eng, harness.Named(sb.Name())) {
			if strings.Contains(left, ".N (") || strings.Contains(left, ".U (") || strings.Contains(left, "pending") {
				t.Errorf("left: %s", left)
			}
		}
		return calls
	}
	calls := trial(t, 0, "")
	t.Logf("calls: %q", calls)
	renamed := false
	for i, call := range calls {
		// The others are for the soak test: each waits for a lease.
		renamed = renamed || strings.Contains(call, "/rename")
		some := strings.Contains(call, "/rename") || renamed && strings.HasPrefix(call, "DELETE /containers")
		if some || os.Getenv("SANDBOX_SOAK") != "" {
			t.Run(fmt.Sprintf("%02d", i+1), func(t *testing.T) {
				t.Parallel()
				trial(t, i+1, call)
			})
		}
	}
}
