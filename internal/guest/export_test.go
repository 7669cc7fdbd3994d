package guest

import (
	"context"
	"time"
)

// Lasts reports whether a command or a connection lasts on the connection.
func (c *Conn) Lasts() bool { return c.usage.lasts() }

// KeepAliveEvery is KeepAlive with other intervals.
func (c *Conn) KeepAliveEvery(every Intervals, check func(context.Context, time.Duration) error) {
	c.slow = make(chan struct{}, 1)
	c.spawn(func() { c.keepAlive(every, check) })
}
