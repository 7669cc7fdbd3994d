package lifecycle

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// The error of a call that began before says nothing about the present: the engine may run again.
func TestJoinedCallsErrorIsNotOfThisOne(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := &Handle{}
		h.life, h.endLife = context.WithCancel(t.Context())
		defer h.endLife()
		errPast := errors.New("it was down")
		calls := 0
		connect := func(context.Context) (any, error) {
			if calls++; calls > 1 {
				return "connected", nil
			}
			time.Sleep(time.Second)
			return nil, errPast
		}
		first := make(chan error, 1)
		go func() {
			_, err := h.share(t.Context(), "connect", time.Minute, connect)
			first <- err
		}()
		synctest.Wait()
		if got, err := h.share(t.Context(), "connect", time.Minute, connect); err != nil || got != "connected" {
			t.Errorf("the call that joined: %v, %v; want a connection", got, err)
		}
		if err := <-first; !errors.Is(err, errPast) {
			t.Errorf("the call that failed: %v, want its own error", err)
		}
		if calls != 2 {
			t.Errorf("%d calls, want 2", calls)
		}
	})
}
