package lifecycle_test

import (
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seed-1a2d6d8f/sandbox/internal/guest/wire"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/test/harness"
)

// A sandbox that could not be stopped or deleted still lives as long as its handle.
func TestLeaseIsKeptAfterAFailedStopOrDelete(t *testing.T) {
	t.Parallel()
	for name, x := range map[string]struct {
		refuse string
		end    func(*testing.T, *sandbox.Sandbox) error
	}{
		"Stop":   {"/stop", func(t *testing.T, sb *sandbox.Sandbox) error { _, err := sb.Stop(t.Context()); return err }},
		"Delete": {"/volumes/agent-sandbox-guest-", func(t *testing.T, sb *sandbox.Sandbox) error { _, err := sb.Delete(t.Context()); return err }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var refuse atomic.Bool
			host := harness.InFront(t, func(w http.ResponseWriter, r *http.Request) bool {
				if !refuse.Load() || !strings.Contains(r.URL.Path, x.refuse) {
					return false
				}
				harness.Refuse(w, "the disk does not answer")
				return true
			}, nil)
			c, eng := harness.NewClient(t, sandbox.WithHost(host)), harness.NewEngine(t)
			sb, err := c.Create(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer sb.Close()
			refuse.Store(true)
			if err := x.end(t, sb); err == nil {
				t.Fatalf("%s succeeded", name)
			}
			refuse.Store(false)
			left, renewals := time.Duration(0), 0
			harness.Eventually(t, "the lease is renewed", func() bool {
				reply, err := harness.AskPID1(t.Context(), eng, sb.Name(), wire.Control{Op: wire.OpStatus})
				if err != nil {
					t.Fatalf("the session: %v", err)
				}
				if left != 0 && reply.LeaseLeft > left {
					renewals++
				}
				left = reply.LeaseLeft
				time.Sleep(200 * time.Millisecond)
				return renewals >= 2 // the first may have been on its way
			})
		})
	}
}
