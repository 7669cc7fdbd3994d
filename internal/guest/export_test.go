package guest

import (
	"context"
	"time"
)

// KeepAliveEvery is KeepAlive with other intervals.
func (c *Conn) KeepAliveEvery(every Intervals, check func(context.Context, time.Duration) error) {
	c.slow = make(chan struct{}, 1)
	c.spawn(func() { c.keepAlive(every, check) })
}
