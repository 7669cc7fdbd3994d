package bound_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed-1a2d6d8f/sandbox/internal/bound"
	"github.com/seed-1a2d6d8f/sandbox/internal/errdefs"
)

func TestOwnLimitIsNoErrorOfTheCallersContext(t *testing.T) {
	t.Parallel()
	wait := func(ctx context.Context) error {
		<-ctx.Done()
		return errdefs.Cancelled(ctx)
	}
	err := bound.Within(t.Context(), time.Millisecond, "the guest did not answer", wait)
	if !errors.Is(err, errdefs.EngineUnavailable) || errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "the guest did not answer within 1ms") {
		t.Errorf("a limit of ours: %v, want EngineUnavailable", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	if err := bound.Within(ctx, time.Hour, "", wait); !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, errdefs.EngineUnavailable) {
		t.Errorf("the caller's limit: %v, want DeadlineExceeded", err)
	}
	broken := errors.New("broken")
	if err := bound.Within(t.Context(), time.Nanosecond, "", func(context.Context) error { return broken }); err != broken {
		t.Errorf("an error that is no limit's: %v, want it as it is", err)
	}
}

// What outlives its caller's context ends at its own limit, or at the final deadline that a caller gave.
func TestDetachedEndsAtTheFinalDeadline(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		wait := func(ctx context.Context) error {
			<-ctx.Done()
			return errdefs.Cancelled(ctx)
		}
		for _, final := range []bool{false, true} {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			want := time.Hour
			if final {
				ctx, want = bound.FinalDeadline(ctx), time.Minute
			}
			gone, end := context.WithCancel(ctx)
			end()
			began := time.Now()
			err := bound.Detached(gone, time.Hour, "it did not end", wait)
			if took := time.Since(began); took != want || !errors.Is(err, errdefs.EngineUnavailable) || errors.Is(err, context.DeadlineExceeded) ||
				!strings.HasSuffix(err.Error(), fmt.Sprintf("it did not end within %v", want)) {
				t.Errorf("with a final deadline: %v: %v after %v, want EngineUnavailable after %v", final, err, took, want)
			}
			cancel()
		}
	})
}

// A call that changes something is not begun after the end of its context, and goes on for
// CancelGrace when that ends meanwhile.
func TestFinishGoesOnForTheGrace(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		why := errors.New("enough")
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(time.Second, func() { cancel(why) })
		for what, test := range map[string]struct {
			takes, ends time.Duration
			want        error
		}{
			"in time":         {time.Second / 2, time.Second / 2, nil},
			"in the grace":    {time.Second + bound.CancelGrace/2, time.Second + bound.CancelGrace/2, nil},
			"after the grace": {time.Hour, time.Second + bound.CancelGrace, why},
		} {
			ctx, cancel := context.WithCancelCause(t.Context())
			time.AfterFunc(time.Second, func() { cancel(why) })
			began := time.Now()
			got, err := bound.FinishCall(ctx, func(ctx context.Context) (string, error) { return "made", bound.Sleep(ctx, test.takes) })
			if took := time.Since(began); !errors.Is(err, test.want) || took != test.ends || got != "made" {
				t.Errorf("%s: %q, %v after %v; want %v after %v", what, got, err, took, test.want, test.ends)
			}
			cancel(nil)
		}
		<-ctx.Done()
		if err := bound.Finish(ctx, func(context.Context) error { t.Error("it began"); return nil }); !errors.Is(err, context.Canceled) {
			t.Errorf("after the end: %v, want context.Canceled", err)
		}
	})
}

// A place is free again after release, and waiting for one ends with the context.
func TestSemaphore(t *testing.T) {
	t.Parallel()
	s := bound.NewSemaphore(1)
	release, err := s.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	why := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(why)
	if _, err := s.Acquire(ctx); !errors.Is(err, context.Canceled) || !errors.Is(err, why) {
		t.Errorf("Acquire of what is held, after the end: %v, want context.Canceled and its cause", err)
	}
	release()
	if release, err = s.Acquire(t.Context()); err != nil {
		t.Error(err)
	}
	release()
}
