package lifecycle_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/internal/claim"
	"github.com/seed-1a2d6d8f/sandbox/internal/engine"
	"github.com/seed-1a2d6d8f/sandbox/internal/guest/wire"
	"github.com/seed-1a2d6d8f/sandbox/internal/provision"
	"github.com/seed-1a2d6d8f/sandbox/internal/record"
	"github.com/seed-1a2d6d8f/sandbox/test/harness"
)

const (
	// deathBound is when a sandbox whose owner died must have ended.
	deathBound = 5 * time.Minute
)

func init() { harness.AddRole("owner", ownerRole) }

// ownerRole makes an unnamed sandbox of the given ID, says so, and sits there. With
// "detach" it lets go of it first.
func ownerRole(args []string) error {
	sb, err := sandbox.Create(context.Background(), sandbox.WithID(args[0]), harness.Quick)
	if err != nil {
		return err
	}
	if len(args) > 1 && args[1] == "detach" {
		if err := sb.Detach(); err != nil {
			return err
		}
	}
	fmt.Println("ready")
	select {}
}

// ownedBy returns when another process has made the sandbox.
func ownedBy(t *testing.T, args ...string) (kill func()) {
	t.Helper()
	cmd := harness.Process(t, "owner", args...)
	said := lines(t, cmd)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	kill = sync.OnceFunc(func() {
		cmd.Process.Kill()
		for range said {
		}
		cmd.Wait()
	})
	t.Cleanup(kill)
	select {
	case line := <-said:
		if line != "ready" {
			t.Fatalf("the owner said %q", line)
		}
	case <-time.After(harness.CallBound):
		t.Fatal("the owner does not get ready")
	}
	return kill
}

// What takes as long as a lease is waited for together.
func TestLease(t *testing.T) {
	t.Parallel()
	var g sync.WaitGroup
	defer g.Wait()
	for name, test := range map[string]func(*testing.T){
		"of a killed process ends its sandbox":        testKilledOwner,
		"of a detached sandbox needs no renewal":      testDetachedOutlivesItsProcess,
		"of an idle handle is renewed":                testIdleHandle,
		"of a killed creator passes to another":       testKilledCreator,
		"of a stopped sandbox is taken up by a Start": testStoppedThenStarted,
	} {
		g.Go(func() { t.Run(name, test) })
	}
}

func testKilledOwner(t *testing.T) {
	c, eng := harness.NewClient(t), harness.NewEngine(t)
	id := harness.UniqueName(t)
	harness.Remove(t, c, id)
	kill := ownedBy(t, id)
	kill()
	// The guest's server ends first, and PID 1 hears of it.
	harness.Eventually(t, "the lease of a dead owner is short", func() bool {
		left := harness.LeaseOf(t, eng, id)
		if left == 0 {
			t.Fatal("the session has no lease")
		}
		return left <= provision.LeaseTime
	})
	// A lease lasts longer than a test should.
	for _, req := range []wire.Control{{Op: wire.OpRelease}, {Op: wire.OpLease, Lease: time.Second}} {
		if _, err := harness.AskPID1(t.Context(), eng, id, req); err != nil {
			t.Fatalf("shorten the lease: %v", err)
		}
	}
	died := time.Now()
	for {
		got, err := eng.InspectContainer(t.Context(), record.ContainerName(id))
		if errors.Is(err, engine.ErrNotFound) {
			break // another process of these tests has swept
		}
		if err != nil {
			t.Fatal(err)
		}
		if got.State == engine.StateExited {
			break
		}
		if time.Since(died) > deathBound {
			t.Fatalf("%v after the end of its lease the container is %s", deathBound, got.State)
		}
		time.Sleep(100 * time.Millisecond)
	}
	harness.Sweep(t)
	list, err := c.List(t.Context(), sandbox.ListOptions{Prefix: id})
	if err != nil || len(list) > 0 {
		t.Errorf("List = %v, %v, want no abandoned sandbox", list, err)
	}
	harness.Gone(t, c, eng, id)
}

func testDetachedOutlivesItsProcess(t *testing.T) {
	c := harness.NewClient(t)
	id := harness.UniqueName(t)
	harness.Remove(t, c, id)
	kill := ownedBy(t, id, "detach")
	kill()
	before, err := c.Inspect(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	if left := harness.LeaseOf(t, harness.NewEngine(t), id); left != 0 {
		t.Errorf("the session has a lease, with %v left", left)
	}
	harness.Sweep(t)
	st, err := c.Inspect(t.Context(), id)
	if err != nil || st.State != sandbox.StateRunning || !st.StartedAt.Equal(before.StartedAt) {
		t.Errorf("after its owner's death it is %q, %v, want the same session running", st.State, err)
	}
}

func testIdleHandle(t *testing.T) {
	c := harness.NewClient(t)
	sb, err := c.Create(t.Context(), harness.Quick)
	if err != nil {
		t.Fatal(err)
	}
	defer sb.Close()
	harness.Renewed(t, harness.NewEngine(t), sb.Name())
	st, err := sb.Status(t.Context())
	if err != nil || st.State != sandbox.StateRunning {
		t.Errorf("without a call it is %q, %v, want it running", st.State, err)
	}
	if got := harness.Run(t, sb, "echo", "still here"); got != "still here" {
		t.Errorf("echo = %q", got)
	}
}

// The session of a Start has a lease of its own.
func testStoppedThenStarted(t *testing.T) {
	c := harness.NewClient(t)
	sb, err := c.Create(t.Context(), harness.Quick)
	if err != nil {
		t.Fatal(err)
	}
	defer sb.Close()
	harness.Run(t, sb, "sh", "-c", "echo kept > file")
	if _, err := sb.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	harness.Sweep(t) // a stopped sandbox is nobody's to sweep
	if _, err := sb.Start(t.Context()); err != nil {
		t.Fatalf("Start: %v", err)
	}
	harness.Renewed(t, harness.NewEngine(t), sb.Name())
	if got := harness.Run(t, sb, "cat", "file"); got != "kept" {
		t.Errorf("the file says %q", got)
	}
}

// The creator is killed inside OnCreate.
func testKilledCreator(t *testing.T) {
	c, eng := harness.NewClient(t), harness.NewEngine(t)
	name, file := harness.UniqueName(t), filepath.Join(t.TempDir(), "created")
	harness.Remove(t, c, name)
	creator := harness.StartProcess(t, "stuck-creator", name, file)
	harness.Eventually(t, "OnCreate was called", func() bool { return len(notes(t, file)) == 1 })
	m, found, err := claim.FindMarker(t.Context(), eng, name)
	if err != nil || !found {
		t.Fatalf("the creator's marker: %v, %v", found, err)
	}
	waiting := harness.Process(t, "get-or-create", name, file, "2")
	said := lines(t, waiting)
	if err := waiting.Start(); err != nil {
		t.Fatal(err)
	}
	defer harness.Kill(waiting)
	select {
	case line := <-said:
		t.Fatalf("a caller got %q while the creator lived", line)
	case <-time.After(time.Second):
	}
	harness.Kill(creator)
	var got []string
	for deadline := time.After(deathBound); len(got) < 2; {
		select {
		case line, ok := <-said:
			if !ok {
				t.Fatalf("the waiting process ended after %q", got)
			}
			got = append(got, line)
		case <-deadline:
			t.Fatalf("%v after the creator's death nobody took over", deathBound)
		}
	}
	made := notes(t, file)
	if len(made) != 2 || made[0] == made[1] || got[0] != made[1] || got[1] != made[1] {
		t.Errorf("OnCreate was called for %q, callers got %q, want both the second", made, got)
	}
	if left := harness.Objects(t, eng, harness.OfNonce(m.Nonce)); len(left) > 0 {
		t.Errorf("left of the dead attempt: %q", left)
	}
}
