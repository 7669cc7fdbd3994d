package fault_test

import (
	"context"
	"testing"
	"time"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/internal/enginetest"
	"github.com/seed-1a2d6d8f/sandbox/test/harness"
)

// poolOf is a pool of the trial's, whose sandboxes its name finds as a tag.
func (x *trial) poolOf(ctx context.Context) (*sandbox.Pool, error) {
	return x.c.NewPool(ctx, 1, harness.Quick, sandbox.WithTags(map[string]string{"trial": x.name}))
}

// filled waits until the trial's pool has a sandbox, or returns why a fill with the fault failed. A busy
// engine may fail others.
func (x *trial) filled() error {
	for deadline := time.Now().Add(harness.CallBound); ; time.Sleep(5 * time.Millisecond) {
		switch s := x.pool.Stats(); {
		case s.Ready == 1:
			return nil
		case s.LastError != nil && (x.proxy.Fired() || time.Now().After(deadline)):
			return s.LastError
		}
	}
}

// poolSandboxes returns the names of the trial's pool's sandboxes.
func (x *trial) poolSandboxes() (names []string) {
	x.Helper()
	x.aside(func() {
		ctx, cancel := context.WithTimeout(context.Background(), harness.CallBound)
		defer cancel()
		list, err := x.clean.List(ctx, sandbox.ListOptions{Tags: map[string]string{"trial": x.name}})
		if err != nil {
			x.Errorf("List: %v", err)
		}
		for _, i := range list {
			names = append(names, i.Name)
		}
	})
	return names
}

// noPool checks that nothing of the trial's pool is left, but for what could not be removed when
// the pool was closed: that goes when its leases are over.
func (x *trial) noPool() {
	x.Helper()
	names := x.poolSandboxes()
	if x.closeErr == nil && len(names) > 0 {
		x.Errorf("%s: after Close of the pool %q are left", x.where(), names)
	}
	for _, name := range names {
		x.late.Add(name)
	}
}

// A fill that fails leaves nothing, and the next one fills the pool.
func TestPoolFillSurvivesAFaultInAnyCall(t *testing.T) {
	t.Parallel()
	testFaultsAtEvery(t, 9, operation{
		noContext: true, // a fill has one of its own
		act: func(ctx context.Context, x *trial) error {
			p, err := x.poolOf(ctx)
			if err != nil {
				return err
			}
			x.pool = p
			return x.filled()
		},
		failed: func(x *trial) {
			if x.pool == nil {
				return
			}
			deadline := time.Now().Add(harness.CallBound)
			for ; x.pool.Stats().Ready == 0; time.Sleep(20 * time.Millisecond) {
				if time.Now().After(deadline) {
					x.Errorf("%s: the pool stays empty: %+v", x.where(), x.pool.Stats())
					return
				}
			}
		},
		after: func(x *trial) { x.noPool() },
	})
}

// What Create returns is changed as was asked for; else it fails, and what it could not change is gone.
func TestPoolCreateSurvivesAFaultInAnyCall(t *testing.T) {
	t.Parallel()
	testFaultsAtEvery(t, 6, handingOver(func(*trial) sandbox.PoolOption { return sandbox.WithPersistent(false) }))
}

// A name or persistence is not half given either.
func TestPoolCreateWithANameSurvivesAFaultInAnyCall(t *testing.T) {
	t.Parallel()
	testFaultsAtEvery(t, 9, handingOver(func(x *trial) sandbox.PoolOption { return sandbox.WithName(x.name) }))
}

func TestPoolCreatePersistentSurvivesAFaultInAnyCall(t *testing.T) {
	t.Parallel()
	testFaultsAtEvery(t, 11, handingOver(func(*trial) sandbox.PoolOption { return sandbox.WithPersistent(true) }))
}

// openPool makes the trial's pool, and fills it.
func openPool(x *trial) (err error) {
	x.proxy.Arm(0, enginetest.None, nil)
	if x.pool, err = x.poolOf(context.Background()); err != nil {
		return err
	}
	return x.filled()
}

// handingOver is a Create of a pool, with one more option.
func handingOver(more func(x *trial) sandbox.PoolOption) operation {
	return operation{
		open: openPool,
		act: func(ctx context.Context, x *trial) (err error) {
			x.sb, err = x.pool.Create(ctx, sandbox.WithTags(map[string]string{"is": "changed"}), sandbox.WithEnv(map[string]string{"A": "1"}),
				sandbox.WithNetworkPolicy(sandbox.DenyAll()), sandbox.WithTimeout(time.Hour), sandbox.WithIdleTimeout(time.Hour), more(x))
			return err
		},
		done: func(x *trial) {
			ctx, cancel := context.WithTimeout(context.Background(), harness.CallBound)
			defer cancel()
			out, err := x.sb.Command(ctx, "sh", "-c", "echo $A").Output()
			if err != nil || string(out) != "1\n" {
				x.Errorf("%s: a command prints %q, %v", x.where(), out, err)
			}
			st, err := x.sb.Summary(ctx)
			if err != nil || st.Tags["is"] != "changed" || st.Network.String() != "deny-all" || st.ExpiresAt.IsZero() || *st.Settings.IdleTimeout != time.Hour {
				x.Errorf("%s: it is %+v, %v", x.where(), st, err)
			}
			if err := x.sb.Close(); err != nil {
				x.Errorf("%s: Close: %v", x.where(), err)
			}
			if err != nil || *st.Settings.Persistent {
				x.aside(func() { harness.RemoveNow(x.T, x.clean, x.sb.Name()) })
			}
		},
		failed: func(x *trial) {
			if x.sb != nil {
				x.Errorf("%s: a handle beside the error %v", x.where(), x.err)
			}
		},
		after: func(x *trial) { x.noPool() },
	}
}

func TestPoolCloseSurvivesAFaultInAnyCall(t *testing.T) {
	t.Parallel()
	testFaultsAtEvery(t, 5, operation{
		noContext: true,
		open:      openPool,
		act:       func(_ context.Context, x *trial) error { return x.pool.Close() },
		after:     func(x *trial) { x.noPool() },
	})
}
