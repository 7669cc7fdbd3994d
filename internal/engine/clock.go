package engine

import (
	"net/http"
	"sync/atomic"
	"time"
)

// clockSlack is the difference below which two clocks count as agreeing: the
// engine dates its replies to the second.
const clockSlack = 2 * time.Second

type clock struct{ offset atomic.Int64 }

func (c *clock) now() time.Time {
	return time.Now().Add(time.Duration(c.offset.Load()))
}

// learn takes the Date header of a reply that has just come in.
func (c *clock) learn(date string, at time.Time) {
	t, err := http.ParseTime(date)
	if err != nil {
		return
	}
	// The header is cut to the second: the middle of it is the best guess.
	seen := t.Add(500 * time.Millisecond).Sub(at)
	if seen.Abs() < clockSlack {
		c.offset.Store(0)
		return
	}
	// Keep what we have while it agrees, so that Now does not jitter.
	if have := time.Duration(c.offset.Load()); (seen - have).Abs() >= clockSlack {
		c.offset.Store(int64(seen))
	}
}
