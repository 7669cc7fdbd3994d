package lifecycle

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// Whatever the order in which callers come, one of them makes the calls, and the others
// return after these have, with the same result.
func TestOneCallerMakesTheCallsOfAResume(t *testing.T) {
	t.Parallel()
	for range 200 {
		r, broken := newResumption(time.Now()), errors.New("broken")
		calls, returned := 0, false // unsynchronized on purpose: the race detector checks the order
		var callers sync.WaitGroup
		for range 8 {
			callers.Go(func() {
				err := r.finish(t.Context(), t.Context(), func(context.Context) error {
					calls++
					runtime.Gosched()
					returned = true
					return broken
				})
				if !errors.Is(err, broken) || !returned {
					t.Errorf("finish = %v, after the calls: %v; want their error", err, returned)
				}
			})
		}
		callers.Wait()
		if calls != 1 {
			t.Fatalf("%d callers made the calls, want 1", calls)
		}
		if r.isPending() {
			t.Fatal("the calls are pending after they were made")
		}
	}
}

// Whose context ends in its hook leaves the hook to the next caller.
func TestCallsThatACallerCutShortAreMadeAgain(t *testing.T) {
	t.Parallel()
	r := newResumption(time.Now())
	ctx, cancel := context.WithCancel(t.Context())
	err := r.finish(ctx, t.Context(), func(ctx context.Context) error {
		cancel()
		return ctx.Err()
	})
	if !errors.Is(err, context.Canceled) || !r.isPending() {
		t.Errorf("finish = %v, pending: %v; want Canceled, and that it is", err, r.isPending())
	}
	if err := r.finish(t.Context(), t.Context(), func(context.Context) error { return nil }); err != nil || r.isPending() {
		t.Errorf("the next caller: %v, pending: %v; want done", err, r.isPending())
	}
}

// Waiting callers learn of a hook that panics, and of a handle that it closes.
func TestCallersDoNotWaitForAHookThatIsGone(t *testing.T) {
	t.Parallel()
	r := newResumption(time.Now())
	func() {
		defer func() { recover() }()
		r.finish(t.Context(), t.Context(), func(context.Context) error { panic("hook") })
	}()
	if err := r.finish(t.Context(), t.Context(), nil); !errors.Is(err, errHookAborted) {
		t.Errorf("finish after a panic: %v, want errHookAborted", err)
	}
	r = newResumption(time.Now())
	r.finish(t.Context(), t.Context(), func(context.Context) error {
		life, end := context.WithCancel(t.Context())
		end()
		if err := r.finish(t.Context(), life, nil); err == nil {
			t.Error("a caller on a closed handle waits no more, but has no error")
		}
		return nil
	})
}

// While a session is being looked at or started again, a call in OnResume, whose context is not OnResume's, goes on. A call
// that began before OnResume was called waits.
func TestCallsInOnResumeDoNotWaitForIt(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newResumption(time.Now())
		h := &Handle{resumed: r, starting: true}
		h.life, h.endLife = context.WithCancel(t.Context())
		defer h.endLife()
		looked := make(chan struct{})
		look := h.flights.DoChan("resume", func() (any, error) {
			<-looked
			return r, nil
		})
		returned := false
		var earlier sync.WaitGroup
		err := r.finish(t.Context(), h.life, func(context.Context) error {
			earlier.Go(func() {
				if err := h.finishResumption(t.Context(), nil); err != nil || !returned {
					t.Errorf("a call that began before: %v, after OnResume: %v", err, returned)
				}
			})
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			inside := make(chan error, 1)
			go func() { inside <- h.finishResumption(ctx, r) }()
			synctest.Wait() // both wait for the look
			close(looked)
			err := <-inside
			synctest.Wait()
			returned = true
			return err
		})
		if err != nil {
			t.Errorf("a call in OnResume: %v", err)
		}
		earlier.Wait()
		<-look
	})
}
