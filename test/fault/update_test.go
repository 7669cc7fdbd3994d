package fault_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/internal/engine"
)

// Whatever call of the engine fails, limits and tags are both as they were or
// both as they were to be, and the same update then works.
func TestUpdateSurvivesAFaultInAnyCall(t *testing.T) {
	var numbers atomic.Int64
	var setting sync.Map // what each trial sets, by trial
	memoryOf := func(n int64) int64 { return 64<<20 + n<<12 }
	now := func(x *trial) (tag string, memory int64) {
		x.Helper()
		st, err := x.look()
		if err != nil {
			x.Fatal(err)
		}
		var got engine.Container
		x.aside(func() { got, err = x.eng.InspectContainer(context.Background(), "agent-sandbox-"+x.name) })
		if err != nil {
			x.Fatal(err)
		}
		return st.Tags["n"], got.Memory
	}
	set := func(x *trial, n int64) error {
		return x.sb.Update(context.Background(), sandbox.WithMemory(memoryOf(n)), sandbox.WithTags(map[string]string{"n": fmt.Sprint(n)}))
	}
	testFaults(t, operation{
		alters:  true,
		arrange: func(x *trial) { x.keptIn(sandbox.StateStopped) },
		open: func(x *trial) error {
			if err := handle(x); err != nil {
				return err
			}
			n := numbers.Add(2)
			setting.Store(x, n)
			var err error
			x.aside(func() {
				var sb *sandbox.Sandbox
				if sb, err = x.clean.Get(context.Background(), x.name, sandbox.WithoutResume()); err == nil {
					err = errors.Join(sb.Update(context.Background(), sandbox.WithMemory(memoryOf(n)), sandbox.WithTags(map[string]string{"n": fmt.Sprint(n)})), sb.Detach())
				}
			})
			return err
		},
		act: func(ctx context.Context, x *trial) error {
			n, _ := setting.Load(x)
			return x.sb.Update(ctx, sandbox.WithMemory(memoryOf(n.(int64)+1)), sandbox.WithTags(map[string]string{"n": fmt.Sprint(n.(int64) + 1)}))
		},
		done: func(x *trial) {
			n, _ := setting.Load(x)
			if tag, memory := now(x); tag != fmt.Sprint(n.(int64)+1) || memory != memoryOf(n.(int64)+1) {
				x.Errorf("%s: it returned nil with tag %s and memory %d", x.where(), tag, memory)
			}
		},
		failed: func(x *trial) {
			n, _ := setting.Load(x)
			tag, memory := now(x)
			if tag != fmt.Sprint(n) || memory != memoryOf(n.(int64)) {
				x.Errorf("%s: after the error %v tag %s and memory %d, want those of %d", x.where(), x.err, tag, memory, n)
			}
			if err := set(x, n.(int64)+1); err != nil {
				x.Errorf("after %s the same call: %v", x.where(), err)
			}
		},
	})
}
