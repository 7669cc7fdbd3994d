package fault

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"
)

func TestOwnLimitIsNoErrorOfTheCallersContext(t *testing.T) {
	t.Parallel()
	wait := func(ctx context.Context) error {
		<-ctx.Done()
		return Cancelled(ctx)
	}
	err := Within(t.Context(), time.Millisecond, "the guest did not answer", wait)
	if !errors.Is(err, EngineUnavailable) || errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "the guest did not answer within 1ms") {
		t.Errorf("a limit of ours: %v, want EngineUnavailable", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	if err := Within(ctx, time.Hour, "", wait); !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, EngineUnavailable) {
		t.Errorf("the caller's limit: %v, want DeadlineExceeded", err)
	}
	broken := errors.New("broken")
	if err := Within(t.Context(), time.Nanosecond, "", func(context.Context) error { return broken }); err != broken {
		t.Errorf("an error that is no limit's: %v, want it as it is", err)
	}
}
