// Package bound waits until a context ends, and bounds calls.
//
//   - [Sleep] waits for a time, and [Poll] until something is done.
//   - [Within] makes a call that has a limit. [Detached] makes one that goes on when the caller's
//     context has ended, and [Outlive] returns the context for it.
//   - [Finish] makes a call that changes something: it goes on for a moment when the context ends.
//   - A [Semaphore] bounds how many calls there are at a time.
//
// All of them report the end of the caller's context as [errdefs.Cancelled] does, and a limit of ours as
// [errdefs.EngineUnavailable]. To try again after a lost reply is engine.Retry.
package bound

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/seed-1a2d6d8f/sandbox/internal/errdefs"
)

// Sleep waits for d, or fails when ctx ends first.
func Sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return errdefs.Cancelled(ctx)
	case <-t.C:
		return nil
	}
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

// Within calls fn with a context that ends after limit. An error of fn because of that is a
// [errdefs.EngineUnavailable] that says what did not happen in time. It is not
// context.DeadlineExceeded, which is the error of a caller's context.
func Within(ctx context.Context, limit time.Duration, what string, fn func(context.Context) error) error {
	own, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	err := fn(own)
	if errors.Is(err, context.DeadlineExceeded) && own.Err() != nil && ctx.Err() == nil {
		return errdefs.Classify(errdefs.EngineUnavailable, fmt.Errorf("%s within %v", what, limit))
	}
	return err
}

type finalKey struct{}

// FinalDeadline returns ctx with its deadline as one that also ends the contexts of [Outlive].
func FinalDeadline(ctx context.Context) context.Context {
	d, ok := ctx.Deadline()
	if !ok {
		return ctx
	}
	return context.WithValue(ctx, finalKey{}, d)
}

// Outlive returns a context that ends after limit, whether or not ctx has ended, or at the final
// deadline of ctx.
func Outlive(ctx context.Context, limit time.Duration) (context.Context, context.CancelFunc) {
	at := time.Now().Add(limit)
	if final, ok := ctx.Value(finalKey{}).(time.Time); ok && final.Before(at) {
		at = final
	}
	return context.WithDeadline(context.WithoutCancel(ctx), at)
}

// Detached is [Within] with a context of [Outlive]. Its error names the time that there was.
func Detached(ctx context.Context, limit time.Duration, what string, fn func(context.Context) error) error {
	began := time.Now()
	own, cancel := Outlive(ctx, limit)
	defer cancel()
	err := fn(own)
	if errors.Is(err, context.DeadlineExceeded) && own.Err() != nil {
		at, _ := own.Deadline()
		return errdefs.Classify(errdefs.EngineUnavailable, fmt.Errorf("%s within %v", what, at.Sub(began).Round(time.Millisecond)))
	}
	return err
}

// CancelGrace is how long a call that changes something may go on after its context has ended.
const CancelGrace = 500 * time.Millisecond

// WithGrace returns a context that ends CancelGrace after ctx does.
func WithGrace(ctx context.Context) (context.Context, context.CancelFunc) {
	own, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		_ = Sleep(own, CancelGrace)
		cancel()
	})
	return own, func() { stop(); cancel() }
}

// Finish makes a call that changes something on the engine, with CancelGrace after the end
// of ctx. The engine carries a call out whether or not anybody waits for the reply: one
// abandoned at once could take effect after the undo has looked for its results.
func Finish(ctx context.Context, call func(context.Context) error) error {
	if ctx.Err() != nil {
		return errdefs.Cancelled(ctx)
	}
	own, cancel := WithGrace(ctx)
	defer cancel()
	err := call(own)
	if err != nil && own.Err() != nil {
		err = errdefs.Cancelled(ctx)
	}
	return err
}

// FinishCall is [Finish] for a call that returns a value.
func FinishCall[T any](ctx context.Context, call func(context.Context) (T, error)) (got T, err error) {
	err = Finish(ctx, func(ctx context.Context) (err error) {
		got, err = call(ctx)
		return err
	})
	return got, err
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
		return nil, errdefs.Cancelled(ctx)
	}
}
