package lifecycle_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/internal/claim"
	"github.com/seed-1a2d6d8f/sandbox/internal/engine"
	"github.com/seed-1a2d6d8f/sandbox/internal/enginetest"
	"github.com/seed-1a2d6d8f/sandbox/internal/record"
	"github.com/seed-1a2d6d8f/sandbox/test/harness"
)

func init() {
	harness.AddRole("get-or-create", getOrCreateRole)
	harness.AddRole("stuck-creator", stuckCreatorRole)
}

// note appends a line to a file that several processes write.
func note(file, line string) error {
	f, err := os.OpenFile(file, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.WriteString(line + "\n")
	return errors.Join(err, f.Close())
}

func notes(t *testing.T, file string) []string {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	return strings.Fields(string(b))
}

// getOrCreateRole calls GetOrCreate of a name from n goroutines and prints the ID that
// each got. OnCreate notes its call in a file.
func getOrCreateRole(args []string) error {
	name, file := args[0], args[1]
	n, err := strconv.Atoi(args[2])
	if err != nil {
		return err
	}
	c, err := harness.Open()
	if err != nil {
		return err
	}
	defer c.Close()
	var g errgroup.Group
	for range n {
		g.Go(func() error {
			sb, err := c.GetOrCreate(context.Background(), name, harness.Quick, sandbox.OnCreate(func(_ context.Context, sb *sandbox.Sandbox) error {
				return note(file, sb.ID())
			}))
			if err != nil {
				return err
			}
			fmt.Println(sb.ID())
			return sb.Detach()
		})
	}
	return g.Wait()
}

// stuckCreatorRole never returns from OnCreate.
func stuckCreatorRole(args []string) error {
	name, file := args[0], args[1]
	_, err := sandbox.GetOrCreate(context.Background(), name, harness.Quick, sandbox.OnCreate(func(_ context.Context, sb *sandbox.Sandbox) error {
		if err := note(file, sb.ID()); err != nil {
			return err
		}
		select {}
	}))
	return err
}

func TestGetOrCreateOfManyProcessesMakesOneSandbox(t *testing.T) {
	t.Parallel()
	goroutines, processes := harness.Rounds(4, 8), harness.Rounds(3, 8)
	name, file := harness.UniqueName(t), filepath.Join(t.TempDir(), "created")
	harness.Remove(t, harness.NewClient(t), name)
	var mu sync.Mutex
	got := map[string]int{}
	var g errgroup.Group
	for range processes {
		g.Go(func() error {
			out, err := harness.Process(t, "get-or-create", name, file, strconv.Itoa(goroutines)).Output()
			mu.Lock()
			defer mu.Unlock()
			for id := range strings.FieldsSeq(string(out)) {
				got[id]++
			}
			return err
		})
	}
	if err := g.Wait(); err != nil {
		t.Error(err)
	}
	made := notes(t, file)
	if len(made) != 1 {
		t.Fatalf("OnCreate was called for %q, want one call", made)
	}
	if len(got) != 1 || got[made[0]] != processes*goroutines {
		t.Errorf("callers got %v, want %d of %s", got, processes*goroutines, made[0])
	}
}

// Of two Creates of one name at once one wins.
func TestOneOfTwoCreatesOfAName(t *testing.T) {
	t.Parallel()
	clean, eng := harness.NewClient(t), harness.NewEngine(t)
	for round := range harness.Rounds(1, 20) {
		name := harness.UniqueName(t)
		harness.Remove(t, clean, name)
		var errs [2]error
		var ids [2]string
		var g sync.WaitGroup
		for i := range errs {
			c := harness.NewClient(t)
			g.Go(func() {
				sb, err := c.Create(t.Context(), sandbox.WithName(name), harness.Quick)
				if errs[i] = err; err == nil {
					ids[i] = sb.ID()
					sb.Detach()
				}
			})
		}
		g.Wait()
		winner := 0
		if errs[0] != nil {
			winner = 1
		}
		if errs[winner] != nil || !errors.Is(errs[1-winner], sandbox.ErrExists) {
			t.Fatalf("round %d: got %v and %v, want nil and ErrExists", round, errs[winner], errs[1-winner])
		}
		st, err := clean.Inspect(t.Context(), name)
		if err != nil || st.ID != ids[winner] || st.State != sandbox.StateRunning {
			t.Errorf("round %d: the winner %s is %+v, %v", round, ids[winner], st, err)
		}
		if left := harness.Objects(t, eng, harness.Named(name)); len(left) != 2 {
			t.Errorf("round %d: there is %q, want the winner's container and volume", round, left)
		}
		harness.RemoveNow(t, clean, name)
	}
}

// The compare-and-swap that all of it stands on, on the real engine.
func TestOneOfFiftyClaims(t *testing.T) {
	t.Parallel()
	eng := harness.NewEngine(t)
	for round := range harness.Rounds(1, 20) {
		name := harness.UniqueName(t)
		var mu sync.Mutex
		var won []string
		held := map[string]int{}
		var g sync.WaitGroup
		begin := make(chan struct{})
		for range 50 {
			nonce := record.NewNonce()
			g.Go(func() {
				<-begin
				mine, err := claim.Try(t.Context(), eng, name, nonce, "a test")
				var other *claim.TakenError
				mu.Lock()
				defer mu.Unlock()
				switch {
				case err == nil:
					mine.Stop()
					won = append(won, nonce)
				case errors.As(err, &other):
					held[other.Marker.Nonce]++
				default:
					t.Errorf("round %d: Try: %v", round, err)
				}
			})
		}
		close(begin)
		g.Wait()
		if len(won) != 1 || held[won[0]] != 49 {
			t.Errorf("round %d: %d won, the others saw %v", round, len(won), held)
		}
		for _, nonce := range won {
			if err := claim.Drop(t.Context(), eng, name, nonce, ""); err != nil {
				t.Errorf("round %d: Drop: %v", round, err)
			}
		}
	}
}

// dead leaves on the engine what a creator left that died long ago: a container that
// was never started, its workspace, and a marker. It returns the marker. The marker
// comes last, since from then on any other test's sweep may take all three.
func dead(t *testing.T, eng *engine.Engine, name string) record.Marker {
	t.Helper()
	long := time.Now().Add(-time.Hour)
	rec := record.Sandbox{ID: record.NewID(), Name: name, Nonce: record.NewNonce(), CreatedAt: long, Persistent: true}
	marker := record.Base(record.RolePending, rec.Nonce, long)
	marker[record.Name], marker[record.Holder] = name, "process 1 on a machine that is gone"
	marker[record.Until] = long.Add(claim.Lease).UTC().Format(time.RFC3339Nano)
	labels, err := rec.Labels()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := eng.CreateContainer(t.Context(), engine.ContainerSpec{
		Name: record.ContainerName(name), Image: sandbox.DefaultImage, Labels: labels, NetworkMode: "none",
		Mounts: []engine.Mount{{Type: "volume", Source: record.WorkspaceName(rec.ID), Target: "/workspace",
			NoCopy: true, VolumeLabels: rec.VolumeLabels(record.RoleWorkspace)}},
	}); err != nil {
		t.Fatal(err)
	}
	made, err := eng.CreateVolume(t.Context(), "agent-sandbox-pending."+name, marker)
	if err != nil {
		t.Fatal(err)
	}
	found := claim.Markers([]engine.Volume{made})
	if len(found) != 1 || found[0].Nonce != rec.Nonce || !found[0].Expired(time.Now()) {
		t.Fatalf("the dead creator's marker is %+v", found)
	}
	return found[0]
}

// Several find the marker of a dead creator at once.
func TestOneOfSeveralTakesOverFromADeadCreator(t *testing.T) {
	t.Parallel()
	clean, eng := harness.NewClient(t), harness.NewEngine(t)
	name := harness.UniqueName(t)
	harness.Remove(t, clean, name)
	m := dead(t, eng, name)
	var mu sync.Mutex
	calls, ids := 0, map[string]bool{}
	var g errgroup.Group
	for range 4 {
		c := harness.NewClient(t)
		g.Go(func() error {
			sb, err := c.GetOrCreate(t.Context(), name, harness.Quick, sandbox.OnCreate(func(context.Context, *sandbox.Sandbox) error {
				mu.Lock()
				defer mu.Unlock()
				calls++
				return nil
			}))
			if err != nil {
				return err
			}
			mu.Lock()
			ids[sb.ID()] = true
			mu.Unlock()
			return sb.Detach()
		})
	}
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
	if calls != 1 || len(ids) != 1 {
		t.Errorf("OnCreate was called %d times, callers got %v", calls, ids)
	}
	if left := harness.Objects(t, eng, harness.OfNonce(m.Nonce)); len(left) > 0 {
		t.Errorf("left of the dead creator: %q", left)
	}
}

// Who makes a container from an image that we committed gets our labels with it, and
// keeps the container when what is ours is cleared.
func TestContainerOfACommittedImageStays(t *testing.T) {
	t.Parallel()
	clean, eng := harness.NewClient(t), harness.NewEngine(t)
	name := harness.UniqueName(t)
	harness.Remove(t, clean, name)
	nonce := record.NewNonce()
	var strangers []string
	for _, role := range []string{record.RoleLayer, record.RoleFrozen} {
		labels := record.Base(role, nonce, time.Now())
		id, err := eng.CreateContainer(t.Context(), engine.ContainerSpec{Name: harness.UniqueName(t), Image: sandbox.DefaultImage, Labels: labels, NetworkMode: "none"})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := eng.RemoveContainer(context.Background(), id, true); err != nil {
				t.Errorf("the stranger's container: %v", err)
			}
		})
		strangers = append(strangers, id)
	}
	long := time.Now().Add(-time.Hour)
	marker := record.Base(record.RolePending, nonce, long)
	marker[record.Name], marker[record.Holder] = name, "process 1 on a machine that is gone"
	marker[record.Until] = long.Add(claim.Lease).UTC().Format(time.RFC3339Nano)
	if _, err := eng.CreateVolume(t.Context(), "agent-sandbox-pending."+name, marker); err != nil {
		t.Fatal(err)
	}
	sb, err := clean.Create(t.Context(), sandbox.WithName(name), harness.Quick)
	if err != nil {
		t.Fatal(err)
	}
	if err := sb.Close(); err != nil {
		t.Error(err)
	}
	for _, id := range strangers {
		if _, err := eng.InspectContainer(t.Context(), id); err != nil {
			t.Errorf("a stranger's container: %v", err)
		}
	}
}

// A creator who died stands in the way of nobody.
func TestCreateTakesOverFromADeadCreator(t *testing.T) {
	t.Parallel()
	clean, eng := harness.NewClient(t), harness.NewEngine(t)
	name := harness.UniqueName(t)
	harness.Remove(t, clean, name)
	m := dead(t, eng, name)
	if _, err := clean.Get(t.Context(), name); !errors.Is(err, sandbox.ErrNotFound) {
		t.Errorf("Get of a sandbox that was never made: %v, want ErrNotFound", err)
	}
	sb, err := clean.Create(t.Context(), sandbox.WithName(name), harness.Quick)
	if err != nil {
		t.Fatal(err)
	}
	sb.Detach()
	if left := harness.Objects(t, eng, harness.OfNonce(m.Nonce)); len(left) > 0 {
		t.Errorf("left of the dead creator: %q", left)
	}
}

// The name was taken over and is being made anew (A, B, A again) while a slow
// caller still has the dead marker in mind.
func TestSlowTakeOverLeavesTheNextCreatorAlone(t *testing.T) {
	t.Parallel()
	eng := harness.NewEngine(t)
	name := harness.UniqueName(t)
	m := dead(t, eng, name)
	harness.Remove(t, harness.NewClient(t), name)
	if err := claim.TakeOver(t.Context(), eng, m, record.NewNonce(), "the quick", func(ctx context.Context) error {
		got, err := eng.InspectContainer(ctx, record.ContainerName(name))
		if errors.Is(err, engine.ErrNotFound) {
			return nil // another test's sweep was quicker than the quick
		}
		if err != nil {
			return err
		}
		return errors.Join(eng.RemoveContainer(ctx, got.ID, true), eng.RemoveVolume(ctx, got.Mounts[0].Name, false))
	}); err != nil {
		t.Fatalf("TakeOver: %v", err)
	}
	mine, err := claim.Try(t.Context(), eng, name, record.NewNonce(), "the next")
	if err != nil {
		t.Fatalf("Try: %v", err)
	}
	err = claim.TakeOver(t.Context(), eng, m, record.NewNonce(), "the slow", func(context.Context) error {
		return errors.New("it cleared")
	})
	if err != nil {
		t.Errorf("TakeOver of what was taken over: %v, want nil and nothing done", err)
	}
	if err := mine.Commit(t.Context()); err != nil {
		t.Errorf("Commit of the next creator: %v", err)
	}
}

// The name belongs to somebody else's container.
func TestGetOrCreateOfAForeignNameFailsAtOnce(t *testing.T) {
	t.Parallel()
	f := enginetest.NewForeign(t)
	c := harness.NewClient(t)
	ctx, cancel := context.WithTimeout(t.Context(), harness.CallBound)
	defer cancel()
	if sb, err := c.GetOrCreate(ctx, f.Name, harness.Quick); sb != nil || !errors.Is(err, sandbox.ErrForeign) {
		t.Errorf("GetOrCreate = %v, %v, want ErrForeign", sb, err)
	}
	if sb, err := c.Create(ctx, sandbox.WithName(f.Name), harness.Quick); sb != nil || !errors.Is(err, sandbox.ErrForeign) {
		t.Errorf("Create = %v, %v, want ErrForeign", sb, err)
	}
	if _, err := c.Get(ctx, f.Name); !errors.Is(err, sandbox.ErrNotFound) {
		t.Errorf("Get: %v, want ErrNotFound", err)
	}
	if _, err := c.Delete(ctx, f.Name, sandbox.DeleteOptions{}); !errors.Is(err, sandbox.ErrNotFound) {
		t.Errorf("Delete: %v, want ErrNotFound", err)
	}
}

// The marker's name belongs to somebody else's volume.
func TestGetOrCreateWithAForeignMarkerFailsAtOnce(t *testing.T) {
	t.Parallel()
	eng, c := harness.NewEngine(t), harness.NewClient(t)
	name := harness.UniqueName(t)
	marker := "agent-sandbox-pending." + name
	if _, err := eng.CreateVolume(t.Context(), marker, map[string]string{"whose": "another's"}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := eng.RemoveVolume(context.Background(), marker, false); err != nil {
			t.Errorf("the foreign volume: %v", err)
		}
	})
	ctx, cancel := context.WithTimeout(t.Context(), harness.CallBound)
	defer cancel()
	if sb, err := c.GetOrCreate(ctx, name, harness.Quick); sb != nil || !errors.Is(err, sandbox.ErrForeign) {
		t.Errorf("GetOrCreate = %v, %v, want ErrForeign", sb, err)
	}
	if left := harness.Objects(t, eng, harness.Named(name)); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
}

// Others wait for the creator, as long as they care to.
func TestGetWaitsForACreatorAsLongAsItsContext(t *testing.T) {
	t.Parallel()
	c := harness.NewClient(t)
	name := harness.UniqueName(t)
	harness.Remove(t, c, name)
	inside, goOn := make(chan struct{}), make(chan struct{})
	var g errgroup.Group
	g.Go(func() error {
		sb, err := c.Create(t.Context(), sandbox.WithName(name), harness.Quick, sandbox.OnCreate(func(ctx context.Context, _ *sandbox.Sandbox) error {
			close(inside)
			select {
			case <-goOn:
			case <-ctx.Done():
			}
			return nil
		}))
		if err != nil {
			return err
		}
		return sb.Detach()
	})
	select {
	case <-inside:
	case <-time.After(harness.CallBound):
		t.Fatal("OnCreate was not called")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if _, err := c.Get(ctx, name); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Get of a sandbox in the making: %v, want DeadlineExceeded", err)
	}
	close(goOn)
	sb, err := c.Get(t.Context(), name)
	if err != nil {
		t.Errorf("Get: %v", err)
	} else {
		sb.Detach()
	}
	if err := g.Wait(); err != nil {
		t.Error(err)
	}
}

func TestOneOfSeveralDeletesWins(t *testing.T) {
	t.Parallel()
	clean, eng := harness.NewClient(t), harness.NewEngine(t)
	for round, preserve := range []bool{false, true} {
		name := harness.UniqueName(t)
		sb, err := clean.Create(t.Context(), sandbox.WithName(name), harness.Quick)
		if err != nil {
			t.Fatal(err)
		}
		harness.Remove(t, clean, name)
		var mu sync.Mutex
		won := 0
		var g sync.WaitGroup
		for range 4 {
			c := harness.NewClient(t)
			g.Go(func() {
				_, err := c.Delete(t.Context(), name, sandbox.DeleteOptions{Volumes: !preserve})
				mu.Lock()
				defer mu.Unlock()
				if err == nil {
					won++
				} else if !errors.Is(err, sandbox.ErrNotFound) {
					t.Errorf("round %d: Delete: %v, want nil or ErrNotFound", round, err)
				}
			})
		}
		g.Wait()
		if won != 1 {
			t.Errorf("round %d: %d Deletes returned nil, want 1", round, won)
		}
		if preserve {
			if err := eng.RemoveVolume(t.Context(), record.WorkspaceName(sb.ID()), false); err != nil {
				t.Errorf("round %d: the preserved workspace: %v", round, err)
			}
		}
		if err := sb.Close(); err != nil {
			t.Errorf("round %d: Close after Delete: %v, want nil", round, err)
		}
		harness.Gone(t, clean, eng, name)
	}
}

// A sandbox that is being deleted does not come back.
func TestStartDoesNotSaveASandboxFromDelete(t *testing.T) {
	t.Parallel()
	clean, eng := harness.NewClient(t), harness.NewEngine(t)
	for round := range harness.Rounds(1, 20) {
		name := harness.UniqueName(t)
		sb, err := clean.Create(t.Context(), sandbox.WithName(name), harness.Quick)
		if err != nil {
			t.Fatal(err)
		}
		harness.Remove(t, clean, name)
		if _, err := sb.Stop(t.Context()); err != nil {
			t.Fatal(err)
		}
		var g sync.WaitGroup
		g.Go(func() {
			// Started and at once stopped by the Delete is what ErrNotRunning says.
			_, err := sb.Start(t.Context())
			if err != nil && !errors.Is(err, sandbox.ErrNotFound) && !errors.Is(err, sandbox.ErrNotRunning) {
				t.Errorf("round %d: Start: %v, want nil, ErrNotFound or ErrNotRunning", round, err)
			}
		})
		g.Go(func() {
			if _, err := clean.Delete(t.Context(), name, sandbox.DeleteOptions{Volumes: true}); err != nil {
				t.Errorf("round %d: Delete: %v", round, err)
			}
		})
		g.Wait()
		if err := sb.Close(); err != nil {
			t.Errorf("round %d: Close: %v", round, err)
		}
		harness.Gone(t, clean, eng, name)
	}
}

// The name is free as soon as Delete returns, and as good as free before.
func TestNameIsFreeAtOnceAfterDelete(t *testing.T) {
	t.Parallel()
	c := harness.NewClient(t)
	name := harness.UniqueName(t)
	harness.Remove(t, c, name)
	last := ""
	for round := range harness.Rounds(2, 10) {
		sb, err := c.Create(t.Context(), sandbox.WithName(name), harness.Quick)
		if err != nil {
			t.Fatalf("round %d: Create: %v", round, err)
		}
		if sb.ID() == last {
			t.Errorf("round %d: the ID %s came back", round, last)
		}
		last = sb.ID()
		if _, err := sb.Delete(t.Context(), sandbox.DeleteOptions{Volumes: true}); err != nil {
			t.Fatalf("round %d: Delete: %v", round, err)
		}
	}
}

func TestErrorOfOnCreateUndoesTheSandbox(t *testing.T) {
	t.Parallel()
	c, eng := harness.NewClient(t), harness.NewEngine(t)
	name := harness.UniqueName(t)
	harness.Remove(t, c, name)
	why := errors.New("no licence")
	var seen *sandbox.Sandbox
	sb, err := c.Create(t.Context(), sandbox.WithName(name), harness.Quick, sandbox.OnCreate(func(_ context.Context, sb *sandbox.Sandbox) error {
		seen = sb
		return why
	}))
	if sb != nil || !errors.Is(err, why) {
		t.Errorf("Create = %v, %v, want the error of OnCreate", sb, err)
	}
	if left := harness.Objects(t, eng, harness.Named(name)); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
	if _, err := seen.Status(t.Context()); !errors.Is(err, sandbox.ErrClosed) {
		t.Errorf("Status on the handle that OnCreate had: %v, want ErrClosed", err)
	}
}

// The panic goes on once everything is cleaned up.
func TestPanicOfOnCreateUndoesTheSandbox(t *testing.T) {
	t.Parallel()
	c, eng := harness.NewClient(t), harness.NewEngine(t)
	name := harness.UniqueName(t)
	harness.Remove(t, c, name)
	func() {
		defer func() {
			if p := recover(); p != "help" {
				t.Errorf("recovered %v, want the panic of OnCreate", p)
			}
			if left := harness.Objects(t, eng, harness.Named(name)); len(left) > 0 {
				t.Errorf("left when the panic arrives: %q", left)
			}
		}()
		c.Create(t.Context(), sandbox.WithName(name), harness.Quick, sandbox.OnCreate(func(context.Context, *sandbox.Sandbox) error {
			panic("help")
		}))
		t.Error("Create returned")
	}()
	sb, err := c.Create(t.Context(), sandbox.WithName(name), harness.Quick)
	if err != nil {
		t.Fatalf("the same client after the panic: %v", err)
	}
	sb.Detach()
}

// lines of a process's output, as they come.
func lines(t *testing.T, cmd *exec.Cmd) <-chan string {
	t.Helper()
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	c := make(chan string, 100)
	go func() {
		defer close(c)
		for s := bufio.NewScanner(out); s.Scan(); {
			c <- s.Text()
		}
	}()
	return c
}
