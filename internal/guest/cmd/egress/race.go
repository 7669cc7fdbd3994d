//go:build linux

package egress

import (
	"context"
	"time"
)

// race tries several ways to the same result. The next begins when one has failed, and when none
// has succeeded for delay.
type race[T any] struct {
	n       int
	delay   time.Duration
	slots   chan struct{} // bounds the attempts of all races beyond the first of each; nil bounds none
	try     func(ctx context.Context, i int) (T, error)
	discard func(T) // a success that came too late; nil does nothing
}

// run returns the first success and its number, or every failure; that of an attempt that did not
// begin is nil. All attempts have ended when it returns.
func (r *race[T]) run(ctx context.Context) (first T, number int, failed []error) {
	type result struct {
		got T
		i   int
		err error
	}
	ctx, cancel := context.WithCancel(ctx)
	results, pending := make(chan result), 0
	defer func() {
		cancel()
		for ; pending > 0; pending-- {
			if late := <-results; late.err == nil && r.discard != nil {
				r.discard(late.got)
			}
		}
	}()
	failed = make([]error, r.n)
	delay := time.NewTimer(0)
	defer delay.Stop()
	for begun := 0; (pending > 0 || begun < r.n) && ctx.Err() == nil; {
		var turn <-chan time.Time
		if begun < r.n {
			turn = delay.C
		}
		select {
		case <-ctx.Done():
		case <-turn:
			delay.Reset(r.delay)
			release, ok := r.enter(pending == 0)
			if !ok {
				continue
			}
			i := begun
			begun, pending = begun+1, pending+1
			go func() {
				defer release()
				got, err := r.try(ctx, i)
				results <- result{got, i, err}
			}()
		case one := <-results:
			pending--
			if one.err == nil {
				return one.got, one.i, nil
			}
			failed[one.i] = one.err
			delay.Reset(0)
		}
	}
	return first, 0, failed
}

// enter takes a slot for an attempt, unless it is the only one of its race.
func (r *race[T]) enter(only bool) (release func(), ok bool) {
	if only || r.slots == nil {
		return func() {}, true
	}
	select {
	case r.slots <- struct{}{}:
		return func() { <-r.slots }, true
	default:
		return nil, false
	}
}
