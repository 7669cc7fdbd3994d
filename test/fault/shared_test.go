package fault_test

import (
	"context"
	"sync"
	"testing"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/internal/enginetest"
	"github.com/seed-1a2d6d8f/sandbox/test/harness"
)

// shared is what tests use one after the other, since the engine is slow to make it.
var shared struct {
	sync.Mutex
	foreign *enginetest.Foreign
	kept    []string // sandboxes of stands of tests that have ended
}

func init() {
	harness.AtEnd(func() {
		c, err := harness.Open()
		if err != nil {
			return
		}
		defer c.Close()
		for _, name := range shared.kept {
			c.Delete(context.Background(), name, sandbox.DeleteOptions{Volumes: true})
		}
	})
}

// foreign returns objects of somebody else's, which no test of the package may touch.
func foreign(t *testing.T) *enginetest.Foreign {
	t.Helper()
	shared.Lock()
	defer shared.Unlock()
	if shared.foreign == nil {
		shared.foreign = enginetest.NewForeign(lasting{t})
	}
	return shared.foreign
}

// lasting is a test for what is to last until the package's last test has ended.
type lasting struct{ testing.TB }

func (lasting) Cleanup(f func()) { harness.AtEnd(f) }

// keptName is the name of a sandbox for the trials of one stand, which need not exist. It is that
// of a test before, if there is one and this test does not alter it.
func keptName(t *testing.T, clean *sandbox.Client, alters bool) (name string) {
	t.Helper()
	shared.Lock()
	defer shared.Unlock()
	if n := len(shared.kept); n > 0 && !alters {
		name, shared.kept = shared.kept[n-1], shared.kept[:n-1]
	} else {
		name = harness.UniqueName(t)
	}
	t.Cleanup(func() {
		if alters || t.Failed() {
			harness.RemoveNow(t, clean, name)
			return
		}
		shared.Lock()
		defer shared.Unlock()
		shared.kept = append(shared.kept, name)
	})
	return name
}
