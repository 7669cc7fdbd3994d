package fault_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/internal/claim"
	"github.com/seed-1a2d6d8f/sandbox/internal/guest/wire"
	"github.com/seed-1a2d6d8f/sandbox/internal/record"
	"github.com/seed-1a2d6d8f/sandbox/test/harness"
)

// Whatever call of the engine fails, an update of the policy that returned is in force;
// one that failed left the policy before, or is recorded and in force as soon as anybody
// connects; and the same update then works.
func TestPolicyUpdateSurvivesAFaultInAnyCall(t *testing.T) {
	var numbers atomic.Int64
	policies := func(n int64) sandbox.NetworkPolicy {
		return sandbox.NetworkPolicy{Subnets: sandbox.Subnets{Allow: []string{fmt.Sprintf("10.%d.%d.0/24", n>>8&0xff, n&0xff)}}}
	}
	var setting sync.Map // what each trial sets, by trial
	set := func(x *trial) sandbox.NetworkPolicy {
		n, _ := setting.LoadOrStore(x, numbers.Add(1))
		return policies(n.(int64))
	}
	enforced := func(x *trial, when string) {
		x.Helper()
		x.aside(func() {
			ctx, cancel := context.WithTimeout(context.Background(), harness.CallBound)
			defer cancel()
			got, err := x.eng.InspectContainer(ctx, record.ContainerName(x.name))
			if err != nil {
				x.Fatal(err)
			}
			rec, _ := record.Decode(got.Labels)
			if rec, err = claim.Latest(ctx, x.eng, rec); err != nil {
				x.Fatal(err)
			}
			reply, err := harness.AskPID1(ctx, x.eng, x.name, wire.Control{Op: wire.OpNetwork})
			if err != nil || reply.Network == nil || reply.Network.Version != rec.Network().Version {
				x.Errorf("%s: %s: PID 1 enforces %+v (%v), the record says %+v", x.where(), when, reply.Network, err, rec.Network())
			}
		})
	}
	testFaultsAtEvery(t, 6, operation{
		alters:  true,
		arrange: func(x *trial) { x.keptIn(sandbox.StateRunning) },
		open:    handle,
		act: func(ctx context.Context, x *trial) error {
			return x.sb.Update(ctx, sandbox.WithNetworkPolicy(set(x)))
		},
		done: func(x *trial) {
			var st sandbox.Status
			var err error
			x.aside(func() { st, err = x.clean.Inspect(context.Background(), x.name) })
			if err != nil || st.Network.String() != set(x).String() {
				x.Errorf("%s: it returned nil and the policy is %s, %v; want %s", x.where(), st.Network, err, set(x))
			}
			enforced(x, "it returned nil")
		},
		failed: func(x *trial) {
			x.aside(func() {
				ctx, cancel := context.WithTimeout(context.Background(), harness.CallBound)
				defer cancel()
				sb, err := x.clean.Get(ctx, x.name)
				if err != nil {
					x.Fatalf("%s: Get: %v", x.where(), err)
				}
				defer sb.Detach()
				if err := sb.Command(ctx, "true").Run(); err != nil {
					x.Errorf("%s: a command: %v", x.where(), err)
				}
			})
			enforced(x, fmt.Sprintf("after the error %v and a connection", x.err))
			if err := x.sb.Update(context.Background(), sandbox.WithNetworkPolicy(set(x))); err != nil {
				x.Errorf("after %s the same call: %v", x.where(), err)
			}
			enforced(x, "after the same call")
		},
	})
}

func guarded(x *trial) []sandbox.CreateOption {
	return []sandbox.CreateOption{
		sandbox.WithName(x.name), harness.Quick, sandbox.WithCommand("sleep", "1234"),
		sandbox.WithNetworkPolicy(sandbox.NetworkPolicy{Allow: []string{"a.example"}}),
	}
}

// With a policy for which the engine's own network is looked at first.
func TestCreateWithAPolicySurvivesAFaultInAnyCallSoak(t *testing.T) {
	harness.Soak(t)
	testFaultsAtEvery(t, 3, creation(guarded, create))
}

// A resume that fails in any call leaves a sandbox that resumes, under its policy.
func TestResumeUnderAPolicySurvivesAFaultInAnyCallSoak(t *testing.T) {
	harness.Soak(t)
	testFaults(t, again(operation{
		alters: true,
		arrange: func(x *trial) {
			x.name = x.kept
			ctx, cancel := context.WithTimeout(context.Background(), harness.CallBound)
			defer cancel()
			sb, err := x.clean.GetOrCreate(ctx, x.kept, guarded(x)...)
			if err != nil {
				x.Fatalf("the sandbox of the stand: %v", err)
			}
			defer sb.Detach()
			if _, err := sb.Stop(ctx); err != nil {
				x.Fatalf("the sandbox of the stand: %v", err)
			}
		},
		act: func(ctx context.Context, x *trial) (err error) {
			x.sb, err = x.c.Get(ctx, x.name)
			return err
		},
		done: func(x *trial) {
			x.usable()
			x.aside(func() {
				ctx, cancel := context.WithTimeout(context.Background(), harness.CallBound)
				defer cancel()
				if reply, err := harness.AskPID1(ctx, x.eng, x.name, wire.Control{Op: wire.OpStatus}); err != nil || reply.Network == nil || reply.Network.Version != 1 || reply.Main == nil || reply.Main.Pid == 0 {
					x.Errorf("%s: it returned nil and PID 1 says %+v, %v", x.where(), reply, err)
				}
			})
		},
	}))
}
