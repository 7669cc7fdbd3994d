package fault_test

import (
	"fmt"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/internal/engine"
	"github.com/seed-1a2d6d8f/sandbox/internal/enginetest"
	"github.com/seed-1a2d6d8f/sandbox/internal/record"
	"github.com/seed-1a2d6d8f/sandbox/test/harness"
)

// firstCopier returns which helper of a program's is the first that copies. Where the engine does
// not report a container's layer, another one has looked for it.
func firstCopier(t *testing.T, eng *engine.Engine) int {
	t.Helper()
	driver, err := eng.StorageDriver(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if driver == "overlayfs" { // of containerd's image store
		return 2
	}
	return 1
}

// killedWithHelper kills a program that copies a sandbox when its helper's container exists and
// has not been started.
func killedWithHelper(t *testing.T, verb, source string) {
	t.Helper()
	defer turn()()
	proxy, name := enginetest.NewProxy(t), harness.UniqueName(t)
	names := []string{name, name + "-1", name + "-2"}
	c, eng := harness.NewClient(t), harness.NewEngine(t)
	for _, n := range names {
		harness.Remove(t, c, n)
	}
	created := func() (helpers int) {
		for _, n := range append(names, source) {
			helpers += strings.Count(fmt.Sprint(harness.Objects(t, eng, harness.Named(n))), ".H (created)")
		}
		return helpers
	}
	before := created()
	var cmd *exec.Cmd
	ready := make(chan struct{})
	proxy.ArmAtNth(firstCopier(t, eng), "/attach", enginetest.RefuseBefore, func() { <-ready; cmd.Process.Kill() })
	cmd = harness.Process(t, "capturer", proxy.Host(), verb, source, name)
	cmd.Stderr = nil
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	close(ready)
	if err := cmd.Wait(); err == nil || !proxy.Fired() {
		t.Fatalf("%s was not killed: %v; its calls: %q", verb, err, proxy.Calls())
	}
	if helpers := created(); helpers != before+1 {
		t.Fatalf("%s left %d helpers, want 1; its calls: %q", verb, helpers-before, proxy.Calls())
	}
}

// A helper that was created and never started keeps no volume longer than its maker's lease: the
// deletion that meets it removes it.
func TestDeletionRemovesTheHelpersOfProgramsThatWereKilled(t *testing.T) {
	t.Parallel()
	c := harness.NewClient(t)
	sb := harness.CreateWith(t, c, nil)
	for _, verb := range []string{"Fork", "ForkN", "Snapshot"} {
		killedWithHelper(t, verb, sb.Name())
	}
	began := time.Now()
	report, err := c.Delete(t.Context(), sb.Name(), sandbox.DeleteOptions{Volumes: true})
	t.Logf("Delete took %v", time.Since(began).Round(time.Millisecond))
	if err != nil {
		t.Errorf("Delete of the source: %v; %v", err, report)
	}
}

// A program that is killed while it makes a new container for a changed sandbox leaves a helper,
// too, which goes with the change that the next caller finishes.
func TestHelperOfAKilledRemakeGoesWithTheChange(t *testing.T) {
	t.Parallel()
	c, eng, image := harness.NewClient(t), harness.NewEngine(t), harness.SmallImage(t)
	over := turn()
	defer over()
	sb := harness.CreateWith(t, c, nil, sandbox.WithImage(image))
	if _, err := sb.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	harness.Update(t, sb, sandbox.WithPorts(3000))
	proxy := enginetest.NewProxy(t)
	cmd := harness.Process(t, "starter", proxy.Host(), sb.Name())
	goOn := harness.Ready(t, cmd)
	proxy.ArmAtNth(firstCopier(t, eng), "/attach", enginetest.RefuseBefore, func() { cmd.Process.Kill() })
	goOn()
	if err := cmd.Wait(); err == nil || !proxy.Fired() {
		t.Fatalf("it was not killed: %v; its calls: %q", err, proxy.Calls())
	}
	over()
	// The next caller has helpers, too.
	var helpers []string
	for _, o := range harness.Objects(t, eng, harness.Named(sb.Name())) {
		if helper, is := strings.CutSuffix(o, ".H (created)"); is {
			helpers = append(helpers, helper)
		}
	}
	if len(helpers) == 0 {
		t.Fatalf("it left no helper: %q", harness.Objects(t, eng, harness.Named(sb.Name())))
	}
	again := next(t, sb.Name(), proxy.FiredAt(), "/attach")
	defer again.Detach()
	left := fmt.Sprint(harness.Objects(t, eng, harness.Named(sb.Name())))
	for _, helper := range helpers {
		if strings.Contains(left, helper) {
			t.Errorf("after the next start there is %s of %s", helper, left)
		}
	}
}

// A living program whose helper is removed before it starts, as the leftover of a dead one, makes
// it again.
func TestRemovedHelperIsMadeAgain(t *testing.T) {
	t.Parallel()
	sb := harness.CreateWith(t, harness.NewClient(t), nil)
	for _, at := range []string{"/attach", "/start"} {
		t.Run(at[1:], func(t *testing.T) {
			proxy, eng, name := enginetest.NewProxy(t), harness.NewEngine(t), harness.UniqueName(t)
			c := harness.NewClient(t, sandbox.WithHost(proxy.Host()))
			harness.Remove(t, c, name)
			removed := 0
			proxy.ArmAtNth(firstCopier(t, eng), at, enginetest.Cancel, func() {
				list, err := eng.ListContainers(t.Context(), engine.Filter{Labels: []string{record.Filter(record.Role, record.RoleHelper), harness.Named(name)}})
				if err != nil {
					t.Errorf("list helpers: %v", err)
				}
				for _, got := range list {
					if err := eng.RemoveContainer(t.Context(), got.ID, true); err != nil {
						t.Errorf("remove %s: %v", got.Name, err)
					}
					removed++
				}
			})
			fork, err := c.Fork(t.Context(), sb.Name(), sandbox.WithName(name), harness.Quick)
			if err != nil || removed != 1 {
				t.Fatalf("Fork with %d helpers removed: %v, want 1 and success", removed, err)
			}
			fork.Detach()
		})
	}
}
