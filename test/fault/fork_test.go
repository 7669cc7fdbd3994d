package fault_test

import (
	"context"
	"fmt"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/internal/claim"
	"github.com/seed-1a2d6d8f/sandbox/internal/engine"
	"github.com/seed-1a2d6d8f/sandbox/internal/enginetest"
	"github.com/seed-1a2d6d8f/sandbox/internal/guest/wire"
	"github.com/seed-1a2d6d8f/sandbox/internal/record"
	"github.com/seed-1a2d6d8f/sandbox/test/harness"
)

// beside is an operation of another sandbox than the stand's, which is there in the state
// and has to be in that state afterwards, whatever happens.
func beside(op operation, state sandbox.State) operation {
	arrange := op.arrange
	op.arrange = func(x *trial) {
		name := x.name
		x.keptIn(state)
		x.name = name
		if arrange != nil {
			arrange(x)
		}
	}
	after := op.after
	op.after = func(x *trial) {
		x.untouched(state)
		if after != nil {
			after(x)
		}
	}
	return op
}

// untouched checks that the stand's sandbox is as it was and that nobody means to unpause
// it.
func (x *trial) untouched(want sandbox.State) {
	x.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), harness.CallBound)
	defer cancel()
	if info, err := x.listed(x.kept); err != nil || info.State != want {
		x.Errorf("%s: the source is %q, %v, want it %q", x.where(), info.State, err, want)
	}
	if m, found, err := claim.FindPause(ctx, x.eng, x.kept); err != nil || found {
		x.Errorf("%s: there is a pause of %v, %v", x.where(), m, err)
	}
}

// committing has an operation go by commit, as on engines that show no container's own
// files, and the stand's sandbox have something to commit.
func committing(op operation) operation {
	op.alters = true
	arrange := op.arrange
	op.arrange = func(x *trial) {
		arrange(x)
		sb, err := x.clean.Get(context.Background(), x.kept)
		if err != nil {
			x.Fatal(err)
		}
		defer sb.Detach()
		if err := sb.Command(context.Background(), "touch", "/etc/b").Run(); err != nil {
			x.Fatal(err)
		}
	}
	open := op.open
	op.open = func(x *trial) error {
		x.proxy.HideLayers()
		if open == nil {
			return nil
		}
		return open(x)
	}
	return op
}

func forking(state sandbox.State) operation {
	return beside(creation(plain, func(ctx context.Context, x *trial, _ []sandbox.CreateOption) (*sandbox.Sandbox, error) {
		return x.c.Fork(ctx, x.kept, sandbox.WithName(x.name), harness.Quick)
	}), state)
}

// A source is never left paused, and nothing is left of a fork.
func TestForkSurvivesAFaultInAnyCall(t *testing.T) {
	testFaults(t, forking(sandbox.StateRunning))
}

func TestForkOfAStoppedSandboxSurvivesAFaultInAnyCallSoak(t *testing.T) {
	harness.Soak(t)
	testFaults(t, forking(sandbox.StateStopped))
}

// A fork by commit that fails leaves no image.
func TestForkByCommitSurvivesAFaultInAnyCallSoak(t *testing.T) {
	harness.Soak(t)
	testFaults(t, committing(forking(sandbox.StateRunning)))
}

// forkingMany is an operation that makes n forks at once. One that can't be made does not
// keep the others.
func forkingMany(n int) operation {
	fork := func(ctx context.Context, x *trial) (err error) {
		x.forks, err = x.c.ForkN(ctx, x.kept, n, sandbox.WithName(x.name), harness.Quick)
		return err
	}
	release := func(x *trial) {
		x.Helper()
		for i, r := range x.forks {
			if (r.Sandbox == nil) == (r.Err == nil) {
				x.Errorf("%s: fork %d is %v, %v", x.where(), i, r.Sandbox, r.Err)
			}
			if r.Sandbox == nil {
				continue
			}
			ctx, cancel := context.WithTimeout(context.Background(), harness.CallBound)
			if err := r.Sandbox.Command(ctx, "true").Run(); err != nil {
				x.Errorf("%s: a command in fork %d: %v", x.where(), i, err)
			}
			cancel()
			if err := r.Sandbox.Detach(); err != nil {
				x.Errorf("Detach: %v", err)
			}
		}
	}
	forgotten := func(x *trial) {
		x.Helper()
		for i := range n {
			name := fmt.Sprintf("%s-%d", x.name, i+1)
			if i < len(x.forks) && x.forks[i].Err == nil {
				harness.RemoveNow(x.T, x.clean, name)
			}
			if x.err != nil && !x.undone {
				x.late.Add(name)
				continue
			}
			if !harness.Gone(x, x.clean, x.eng, name) {
				x.Logf("%s; ForkN returned %v; its calls: %q", x.where(), x.err, x.proxy.Calls())
			}
		}
		x.onlyItself()
	}
	return beside(operation{
		act: fork,
		done: func(x *trial) {
			if len(x.forks) != n {
				x.Errorf("%s: it returned nil and %d results", x.where(), len(x.forks))
			}
			release(x)
		},
		failed: func(x *trial) {
			if len(x.forks) != 0 && len(x.forks) != n {
				x.Errorf("%s: %d results, want none or %d", x.where(), len(x.forks), n)
			}
			release(x)
		},
		after: func(x *trial) {
			forgotten(x)
			if x.err == nil || !x.retry {
				return
			}
			ctx, cancel := context.WithTimeout(context.Background(), harness.CallBound)
			defer cancel()
			x.c = x.clean
			if err := fork(ctx, x); err != nil {
				x.Errorf("after %s the same call: %v", x.where(), err)
			}
			release(x)
			forgotten(x)
		},
	}, sandbox.StateRunning)
}

// Whichever forks there are, the source is not paused, and what they
// shared goes with the last of them.
func TestForkNSurvivesAFaultInAnyCall(t *testing.T) {
	testFaultsAtEvery(t, 40, forkingMany(2))
}

func init() {
	// capturer copies a sandbox in one of the ways there are.
	harness.AddRole("capturer", func(args []string) error {
		ctx := context.Background()
		c, err := harness.Open(sandbox.WithHost(args[0]))
		if err != nil {
			return err
		}
		switch source, name := args[2], args[3]; args[1] {
		case "Fork":
			_, err = c.Fork(ctx, source, sandbox.WithName(name), harness.Quick)
		case "ForkN":
			_, err = c.ForkN(ctx, source, 2, sandbox.WithName(name), harness.Quick)
		case "Snapshot":
			var sb *sandbox.Sandbox
			if sb, err = c.Get(ctx, source); err == nil {
				_, err = sb.Snapshot(ctx, sandbox.SnapshotOptions{Name: name})
			}
		}
		return err
	})
}

// A program that is killed while the processes of its source are held keeps them no longer: its
// helper ends with it, or hears nothing from it any more, or PID 1 nothing from the helper.
func TestSourceOfAProgramThatIsKilledDuringAHoldGoesOn(t *testing.T) {
	t.Parallel()
	for what, before := range map[string]func(t *testing.T, proxy *enginetest.Proxy, eng *engine.Engine, name string){
		"its connections closed":     func(*testing.T, *enginetest.Proxy, *engine.Engine, string) {},
		"its connections not closed": func(_ *testing.T, proxy *enginetest.Proxy, _ *engine.Engine, _ string) { proxy.StallStreams(true) },
		"its helper frozen":          func(t *testing.T, _ *enginetest.Proxy, eng *engine.Engine, name string) { freezeHelper(t, eng, name) },
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			c, eng := harness.NewClient(t), harness.NewEngine(t)
			sb, name := harness.CreateWith(t, c, nil), harness.UniqueName(t)
			harness.Run(t, sb, "touch", "/etc/b") // there is something to commit
			harness.Remove(t, c, name)
			proxy := enginetest.NewProxy(t)
			proxy.HideLayers()
			var cmd *exec.Cmd
			ready, held := make(chan struct{}), make(chan struct{})
			ran := make(chan error, 1)
			proxy.ArmAt("/commit", enginetest.RefuseBefore, func() {
				<-ready
				go func() { ran <- sb.Command(t.Context(), "true").Run() }()
				select {
				case err := <-ran:
					t.Errorf("a command ran during a hold: %v", err)
				case <-time.After(200 * time.Millisecond): // for it to run, if it could
				}
				before(t, proxy, eng, name)
				cmd.Process.Kill()
				close(held)
			})
			cmd = harness.StartProcess(t, "capturer", proxy.Host(), "Fork", sb.Name(), name)
			close(ready)
			if err := cmd.Wait(); err == nil || !proxy.Fired() {
				t.Fatalf("it was not killed: %v; its calls: %q", err, proxy.Calls())
			}
			<-held
			died := time.Now()
			select {
			case err := <-ran:
				t.Logf("the source went on after %v", time.Since(died).Round(time.Millisecond))
				if err != nil {
					t.Errorf("the command: %v", err)
				}
			case <-time.After(wire.HoldSilence + harness.GoneBound):
				t.Errorf("the source does not go on, want it to after %v", wire.HoldSilence)
				proxy.StallStreams(false)
				<-ran
			}
			if st, err := c.Inspect(t.Context(), sb.Name()); err != nil || st.State != sandbox.StateRunning {
				t.Errorf("the source is %q, %v", st.State, err)
			}
			harness.Eventually(t, "nothing is left but the source", func() bool {
				harness.Sweep(t)
				return len(harness.Objects(t, eng, harness.Named(sb.Name()))) == 2 && len(harness.Objects(t, eng, harness.Named(name))) == 0
			})
		})
	}
}

// freezeHelper pauses the helper that copies to a sandbox, until a sweep removes it.
func freezeHelper(t *testing.T, eng *engine.Engine, name string) {
	t.Helper()
	all, err := eng.ListContainers(t.Context(), engine.Filter{Labels: []string{record.Filter(record.Role, record.RoleHelper), record.Filter(record.Name, name)}})
	if err != nil || len(all) != 1 {
		t.Errorf("the helpers: %+v, %v", all, err)
		return
	}
	harness.Pause(t, eng, all[0].ID)
	t.Cleanup(func() { eng.UnpauseContainer(context.Background(), all[0].ID) })
}

// When a program is killed while its source is paused, the source goes on 30 s
// later at the most, as soon as somebody looks for it, and a sweep has the rest.
func TestSourceOfAProgramThatIsKilledGoesOn(t *testing.T) {
	t.Parallel()
	nexts := map[string]func(ctx context.Context, c *sandbox.Client, sb *sandbox.Sandbox) error{
		"Get": func(ctx context.Context, c *sandbox.Client, sb *sandbox.Sandbox) error {
			got, err := c.Get(ctx, sb.Name())
			if err != nil {
				return err
			}
			return got.Detach()
		},
		"sweep": func(ctx context.Context, c *sandbox.Client, sb *sandbox.Sandbox) error {
			for ; ctx.Err() == nil; time.Sleep(100 * time.Millisecond) {
				harness.Sweep(t)
				list, err := c.List(ctx, sandbox.ListOptions{Prefix: sb.Name(), States: []sandbox.State{sandbox.StateRunning}})
				if err != nil || len(list) > 0 {
					return err
				}
			}
			return ctx.Err()
		},
		"command": func(ctx context.Context, _ *sandbox.Client, sb *sandbox.Sandbox) error {
			return sb.Command(ctx, "true").Run()
		},
		"command of a new handle": func(ctx context.Context, c *sandbox.Client, sb *sandbox.Sandbox) error {
			got, err := c.Get(ctx, sb.Name(), sandbox.WithoutResume())
			if err != nil {
				return err
			}
			defer got.Detach()
			return got.Command(ctx, "true").Run()
		},
	}
	for _, trial := range []struct {
		verb, at string
		fault    enginetest.Fault
		next     string
		soak     bool
	}{
		{"Fork", "/unpause", enginetest.RefuseBefore, "Get", false},
		{"Fork", "/unpause", enginetest.RefuseBefore, "sweep", false},
		{"Fork", "/unpause", enginetest.RefuseBefore, "command", false},
		{"Fork", "/unpause", enginetest.RefuseBefore, "command of a new handle", true},
		{"Fork", "/pause", enginetest.LoseReply, "Get", true},
		{"ForkN", "/unpause", enginetest.RefuseBefore, "Get", true},
		{"ForkN", "/pause", enginetest.LoseReply, "command", true},
		{"Snapshot", "/unpause", enginetest.RefuseBefore, "Get", true},
		{"Snapshot", "/pause", enginetest.LoseReply, "sweep", true},
	} {
		if trial.soak && !harness.Soaking() {
			continue
		}
		t.Run(trial.verb+trial.at+" "+trial.next, func(t *testing.T) {
			t.Parallel()
			c, eng := harness.NewClient(t), harness.NewEngine(t)
			sb, name := harness.CreateWith(t, c, nil), harness.UniqueName(t)
			harness.Run(t, sb, "true") // it is connected
			for _, made := range []string{name, name + "-1", name + "-2"} {
				harness.Remove(t, c, made)
			}
			proxy := enginetest.NewProxy(t)
			proxy.PartNetworks()
			var cmd *exec.Cmd
			ready := make(chan struct{})
			proxy.ArmAt(trial.at, trial.fault, func() { <-ready; cmd.Process.Kill() })
			cmd = harness.StartProcess(t, "capturer", proxy.Host(), trial.verb, sb.Name(), name)
			close(ready)
			if err := cmd.Wait(); err == nil || !proxy.Fired() {
				t.Fatalf("it was not killed: %v; its calls: %q", err, proxy.Calls())
			}
			died := time.Now()
			harness.Eventually(t, "the source is paused", func() bool {
				got, err := eng.InspectContainer(t.Context(), record.ContainerName(sb.Name()))
				return err == nil && got.State == engine.StatePaused
			})
			ctx, cancel := context.WithTimeout(t.Context(), claim.Lease+2*harness.GoneBound)
			defer cancel()
			err := nexts[trial.next](ctx, c, sb)
			took := time.Since(died)
			t.Logf("%s after %v", trial.next, took.Round(time.Millisecond))
			if err != nil || took > claim.Lease+2*harness.GoneBound {
				t.Errorf("%s after %v: %v, want the source to go on within %v", trial.next, took, err, claim.Lease)
			}
			if st, err := c.Inspect(t.Context(), sb.Name()); err != nil || st.State != sandbox.StateRunning {
				t.Errorf("the source is %q, %v", st.State, err)
			}
			harness.Run(t, sb, "true")
			var left []string
			defer func() {
				if t.Failed() {
					t.Logf("there is %q", left)
				}
			}()
			harness.Eventually(t, "nothing is left but the source", func() bool {
				harness.Sweep(t)
				left = harness.Objects(t, eng, harness.Named(sb.Name()))
				for _, made := range []string{name, name + "-1", name + "-2"} {
					left = append(left, harness.Objects(t, eng, harness.Named(made))...)
				}
				return len(left) == 2
			})
			if all, err := c.ListSnapshots(t.Context(), sandbox.ListSnapshotsOptions{}); err != nil || strings.Contains(fmt.Sprint(all), sb.Name()) {
				t.Errorf("ListSnapshots = %+v, %v", all, err)
			}
		})
	}
}
