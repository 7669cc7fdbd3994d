package link_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/internal/enginetest"
	"github.com/seed-1a2d6d8f/sandbox/internal/record"
	"github.com/seed-1a2d6d8f/sandbox/test/harness"
)

// Close takes at most the stop timeout and 30 s, also where the engine does not remove a
// volume. What is left is removed by a sweep.
func TestCloseHasOneDeadline(t *testing.T) {
	t.Parallel()
	proxy := enginetest.NewProxy(t)
	sb, err := harness.NewClient(t, sandbox.WithHost(proxy.Host())).Create(t.Context(), harness.Quick)
	if err != nil {
		t.Fatal(err)
	}
	proxy.ArmAt("DELETE /volumes/"+record.WorkspaceName(sb.ID()), enginetest.Stall, nil)
	began := time.Now()
	err = sb.Close()
	took := time.Since(began)
	t.Logf("Close took %v: %v", took.Round(100*time.Millisecond), err)
	if !proxy.Fired() {
		t.Fatal("Close removed no volume")
	}
	if took > 55*time.Second {
		t.Errorf("Close took %v, want at most 31 s and what a busy machine adds", took)
	}
	if !errors.Is(err, sandbox.ErrEngineUnavailable) || errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Close = %v, want ErrEngineUnavailable", err)
	}
	var late harness.Late
	late.Add(sb.Name())
	late.Check(t, harness.NewClient(t), harness.NewEngine(t))
}
