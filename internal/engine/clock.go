package engine

import (
	"net/http"
	"sync/atomic"
	"time"
)

// clockSlack is the difference below which two clocks count as equal: the Date of replies
// is in whole seconds.
const clockSlack = 2 * time.Second

type clock struct{ offset atomic.Int64 }

func (c *clock) now() time.Time {
	return time.Now().Add(time.Duration(c.offset.Load()))
}

// learn updates the offset from the Date header of a reply that arrived at at.
func (c *clock) learn(date string, at time.Time) {
	t, err := http.ParseTime(date)
	if err != nil {
		return
	}
	// The header is truncated to the second: the middle of it is the best estimate.
	seen := t.Add(500 * time.Millisecond).Sub(at)
	if seen.Abs() < clockSlack {
		c.offset.Store(0)
		return
	}
	// Keep the offset while it is within the slack, so that Now does not jitter.
	if have := time.Duration(c.offset.Load()); (seen - have).Abs() >= clockSlack {
		c.offset.Store(int64(seen))
	}
}
