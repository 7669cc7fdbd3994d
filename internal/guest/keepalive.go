package guest

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/seed-1a2d6d8f/sandbox/internal/bound"
	"github.com/seed-1a2d6d8f/sandbox/internal/guest/wire"
)

// Intervals are those of keepalives.
type Intervals struct {
	Silent time.Duration // without a byte of the guest while a command or a connection lasts, after which it is asked for one
	Idle   time.Duration // the same while none does: nobody waits for the guest
	Answer time.Duration // that it gets for that, and how often the silence is checked after it
}

// Keepalive are the intervals of all connections. Only tests change them, before they connect.
var Keepalive = Intervals{Silent: 12 * time.Second, Idle: 2 * time.Minute, Answer: 10 * time.Second}

// slowAnswer is how long a call waits for an answer before the guest is asked for a sign of
// life, and how long that may take before the silence is checked for the first time.
const slowAnswer = time.Second

// usage is what lasts on a connection and inside its channels: commands and connections.
type usage struct {
	n     atomic.Int64
	began chan struct{} // has a value when there may be the first
}

func newUsage() *usage { return &usage{began: make(chan struct{}, 1)} }

// while calls f, which returns when a command or a connection has ended.
func (u *usage) while(f func()) {
	if u.n.Add(1) == 1 {
		select {
		case u.began <- struct{}{}:
		default:
		}
	}
	defer u.n.Add(-1)
	f()
}

func (u *usage) lasts() bool { return u.n.Load() > 0 }

// KeepAlive requests a sign of life of the guest whenever it has sent nothing for
// as long as Keepalive says, or a call waits for an answer. While none comes, check is called every
// Keepalive.Answer with the time since the request, and says why the connection is useless.
// Its error ends the connection; nil waits on. If the first call comes before Keepalive.Answer
// has passed its error is ignored. check's context ends with the connection. KeepAlive
// is called once, before the connection is used.
func (c *Conn) KeepAlive(check func(ctx context.Context, silent time.Duration) error) {
	c.slow = make(chan struct{}, 1)
	c.spawn(func() { c.keepAlive(Keepalive, check) })
}

func (c *Conn) keepAlive(every Intervals, check func(context.Context, time.Duration) error) {
	ctx := c.life
	for ctx.Err() == nil {
		patience, silent := every.Answer, every.Idle
		if c.usage.lasts() {
			silent = every.Silent
		}
		select {
		case <-ctx.Done():
			return
		case <-c.slow:
			patience = min(slowAnswer, patience)
		case <-c.usage.began:
			continue
		case <-time.After(silent - c.quiet()):
			if c.quiet() < silent {
				continue
			}
		}
		heard, asked := c.st.heard.Load(), time.Now()
		c.ping()
		for wait := patience; ; {
			if bound.Sleep(ctx, wait) != nil {
				return
			}
			if c.st.heard.Load() != heard {
				break
			}
			silent := time.Since(asked)
			err := check(ctx, silent)
			if silent < every.Answer {
				wait = every.Answer - time.Since(asked)
				continue
			}
			if err != nil && c.st.heard.Load() == heard {
				c.giveUp(err)
				return
			}
			wait = every.Answer
		}
	}
}

// quiet returns how long the guest has sent nothing.
func (c *Conn) quiet() time.Duration {
	return time.Since(c.st.began) - time.Duration(c.st.heard.Load())
}

// ping requests a reply from the guest, unless one is awaited already. Guests that don't know
// the request refuse it, which will do.
func (c *Conn) ping() {
	if !c.pinging.CompareAndSwap(false, true) {
		return
	}
	c.spawn(func() {
		defer c.pinging.Store(false)
		c.ssh.SendRequest(wire.RequestKeepalive, true, nil)
	})
}

// giveUp ends the connection because of why.
func (c *Conn) giveUp(why error) {
	c.mu.Lock()
	c.why = why
	c.mu.Unlock()
	c.rw.Close() // first: nobody reads what is kept
	c.ssh.Close()
}

// reportSlow makes keepAlive ping the guest now, because a call waits for an answer.
func (c *Conn) reportSlow() {
	select {
	case c.slow <- struct{}{}:
	default:
	}
}
