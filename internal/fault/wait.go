package fault

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Sleep waits for d, or fails when ctx ends first.
func Sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return Cancelled(ctx)
	case <-t.C:
		return nil
	}
}

// Within calls fn with a context that ends after limit. An error of fn because of that is an
// [EngineUnavailable] that says what did not happen in time. It is not context.DeadlineExceeded,
// which is the error of a caller's context.
func Within(ctx context.Context, limit time.Duration, what string, fn func(context.Context) error) error {
	own, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	err := fn(own)
	if errors.Is(err, context.DeadlineExceeded) && own.Err() != nil && ctx.Err() == nil {
		return Classify(EngineUnavailable, fmt.Errorf("%s within %v", what, limit))
	}
	return err
}

// Poll calls fn until it is done or fails, with a pause of that length between two calls.
func Poll(ctx context.Context, every time.Duration, fn func() (done bool, err error)) error {
	for {
		if done, err := fn(); done || err != nil {
			return err
		}
		if err := Sleep(ctx, every); err != nil {
			return err
		}
	}
}

// A Semaphore bounds how many callers hold it at once. Unlike a mutex, waiting for it ends
// with a context.
type Semaphore chan struct{}

// NewSemaphore returns a semaphore for n holders.
func NewSemaphore(n int) Semaphore { return make(Semaphore, n) }

// Acquire waits for a free place. The caller calls release.
func (s Semaphore) Acquire(ctx context.Context) (release func(), err error) {
	select {
	case s <- struct{}{}:
		return func() { <-s }, nil
	case <-ctx.Done():
		return nil, Cancelled(ctx)
	}
}
