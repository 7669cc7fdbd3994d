package link_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/internal/enginetest"
	"github.com/seed-1a2d6d8f/sandbox/test/harness"
)

// A limit of the library's own is no error of the caller's context, and the other way round.
func TestOwnLimitsAreNotTheCallers(t *testing.T) {
	t.Parallel()
	made := harness.Shared(t)
	for what, test := range map[string]struct {
		limit      time.Duration // of the caller
		want, deny error
	}{
		"ours":         {0, sandbox.ErrEngineUnavailable, context.DeadlineExceeded},
		"the caller's": {time.Second, context.DeadlineExceeded, sandbox.ErrEngineUnavailable},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			proxy := enginetest.NewProxy(t)
			sb, err := harness.NewClient(t, sandbox.WithHost(proxy.Host())).Get(t.Context(), made.Name())
			if err != nil {
				t.Fatal(err)
			}
			defer sb.Detach()
			ctx := context.WithoutCancel(t.Context())
			if test.limit > 0 {
				var cancel context.CancelFunc
				ctx, cancel = context.WithTimeout(ctx, test.limit)
				defer cancel()
			}
			proxy.StallAll(true)
			defer proxy.StallAll(false)
			began := time.Now()
			err = sb.Command(ctx, "true").Run()
			t.Logf("after %v: %v", time.Since(began).Round(100*time.Millisecond), err)
			if !errors.Is(err, test.want) || errors.Is(err, test.deny) {
				t.Errorf("a command = %v, want %v", err, test.want)
			}
		})
	}
}
