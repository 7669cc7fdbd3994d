package lifecycle

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/seed-1a2d6d8f/sandbox/internal/bound"
	"github.com/seed-1a2d6d8f/sandbox/internal/errdefs"
	"github.com/seed-1a2d6d8f/sandbox/internal/guest"
	"github.com/seed-1a2d6d8f/sandbox/internal/guest/wire"
	"github.com/seed-1a2d6d8f/sandbox/internal/plan"
)

// A Pool has sandboxes of the same settings that run and that nobody uses yet, and hands them over.
// They are ordinary sandboxes that live as long as their handles: if this program dies, their
// leases expire, and a sweep removes them.
type Pool struct {
	c       *Client
	size    int
	fills   int // at once
	request func() (*CreateOptions, error)
	create  func(context.Context, *CreateOptions) (*Handle, error)
	wrap    func(error) error // for errors of Close

	life context.Context // of fills
	end  context.CancelFunc
	wake chan struct{}
	work sync.WaitGroup // the loop, fills, hand-overs and removals

	mu      sync.Mutex
	ready   []*member // the oldest first
	stats   PoolStats
	direct  int // ordinary creates that run: fills wait for them
	backoff time.Duration
	retryAt time.Time
	closed  bool
	done    chan struct{} // closed when Close has finished; nil before Close
	err     error         // of Close
}

// A member is a sandbox that waits in a pool.
type member struct {
	h     *Handle
	taken chan struct{} // closed when it leaves the pool
}

// PoolStats are a pool's counters. The root package documents them under the same names.
type PoolStats struct {
	Ready, Filling                    int
	HandedOver, Created, Lost, Failed int
	LastError                         error
}

const (
	// A fill that failed is tried again after firstBackoff, and twice that each time, up to lastBackoff.
	firstBackoff, lastBackoff = time.Second, time.Minute
	// yieldEvery is how often a fill looks whether calls still wait for the engine.
	yieldEvery = 20 * time.Millisecond
)

// NewPool returns a pool of that size, which is being filled. request returns what to create, and create
// creates it; wrap is for errors of handles' Close.
func NewPool(ctx context.Context, c *Client, size int, request func() (*CreateOptions, error),
	create func(context.Context, *CreateOptions) (*Handle, error), wrap func(error) error) (*Pool, error) {
	slots, err := c.Machine.Slots(ctx)
	if err != nil {
		return nil, err
	}
	// Creating is bound by the engine's CPUs, of which there are a third as many as slots.
	p := &Pool{c: c, size: size, fills: max(slots/3, 1), request: request, create: create, wrap: wrap, wake: make(chan struct{}, 1)}
	p.life, p.end = context.WithCancel(context.Background())
	p.work.Go(p.run)
	return p, nil
}

// Size returns how many sandboxes the pool has when it is full.
func (p *Pool) Size() int { return p.size }

// Stats returns the counters.
func (p *Pool) Stats() PoolStats {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.stats
	s.Ready = len(p.ready)
	return s
}

// run fills the pool until Close.
func (p *Pool) run() {
	for {
		wait := p.startFills()
		select {
		case <-p.life.Done():
			return
		case <-p.wake:
		case <-time.After(wait):
		}
	}
}

// startFills starts what fills are due, and returns when to look again unless p.wake says so before.
func (p *Pool) startFills() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	for len(p.ready)+p.stats.Filling < p.size && p.stats.Filling < p.fills && p.direct == 0 && !p.closed {
		if wait := time.Until(p.retryAt); wait > 0 {
			return wait
		}
		if p.c.Machine.SlotsWaited() {
			return yieldEvery
		}
		p.stats.Filling++
		p.work.Go(p.fill)
	}
	return time.Hour
}

func (p *Pool) wakeUp() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// fill makes one sandbox, and puts it into the pool.
func (p *Pool) fill() {
	h, conn, err := p.make(p.life)
	p.mu.Lock()
	p.stats.Filling--
	keep := err == nil && p.add(h, conn)
	switch {
	case keep:
		p.backoff, p.retryAt = 0, time.Time{}
	case err != nil && !p.closed:
		p.stats.Failed++
		p.stats.LastError = err
		p.backoff = min(max(2*p.backoff, firstBackoff), lastBackoff)
		p.retryAt = time.Now().Add(p.backoff)
		p.c.Log.Warn("pool not filled", "error", err, "again", p.backoff)
	}
	p.mu.Unlock()
	if err == nil && !keep {
		p.noteClose(h.Close(p.wrap))
	}
	p.wakeUp()
}

// add lets a sandbox wait in the pool, unless that is closed. The caller holds p.mu.
func (p *Pool) add(h *Handle, conn *guest.Conn) bool {
	if p.closed {
		return false
	}
	m := &member{h, make(chan struct{})}
	p.ready = append(p.ready, m)
	p.work.Go(func() { p.watch(m, conn) })
	return true
}

// make returns a sandbox that is connected and whose timeouts do not run.
func (p *Pool) make(ctx context.Context) (*Handle, *guest.Conn, error) {
	o, err := p.request()
	if err != nil {
		return nil, nil, err
	}
	o.Plan.Pooled = true
	h, err := p.create(ctx, o)
	o.Report.Silence()
	if err != nil {
		return nil, nil, err
	}
	conn, err := h.ConnectRunning(ctx)
	if err == nil {
		_, err = h.requestOn(ctx, conn, wire.Control{Op: wire.OpTimeouts, Timeouts: &wire.Timeouts{Suspended: true}})
	}
	if err != nil {
		return nil, nil, errors.Join(err, h.Close(p.wrap))
	}
	return h, conn, nil
}

// watch removes a sandbox whose connection ends while it waits.
func (p *Pool) watch(m *member, conn *guest.Conn) {
	select {
	case <-m.taken:
		return
	case <-conn.Done():
	}
	p.mu.Lock()
	i := slices.Index(p.ready, m)
	if i >= 0 {
		p.ready = slices.Delete(p.ready, i, i+1)
		p.stats.Lost++
	}
	p.mu.Unlock()
	if i >= 0 {
		p.wakeUp()
		m.h.Close(p.wrap)
	}
}

// take returns the sandbox that waits for longest, or nil. The caller calls p.work.Done for one.
func (p *Pool) take() (*Handle, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, errdefs.Closed
	}
	if len(p.ready) == 0 {
		return nil, nil
	}
	m := p.ready[0]
	p.ready = slices.Delete(p.ready, 0, 1)
	close(m.taken)
	p.work.Add(1)
	return m.h, nil
}

// Create hands a sandbox over with the name, unless that is empty, and the changes of set. It creates
// the one of o if none waits, and in a swarm if it has a name: there the entry of the name the sandbox
// waits under can't be given another one.
func (p *Pool) Create(ctx context.Context, name string, set *plan.Sandbox, o *CreateOptions) (*Handle, error) {
	if name != "" && p.c.Store.Cluster != nil {
		return p.createDirectly(ctx, o)
	}
	for ctx.Err() == nil {
		h, err := p.take()
		if err != nil {
			return nil, err
		}
		if h == nil {
			return p.createDirectly(ctx, o)
		}
		ok, err := p.handOver(ctx, h, name, set)
		switch {
		case err != nil:
			return nil, err
		case ok:
			return h, nil
		}
	}
	return nil, errdefs.Cancelled(ctx)
}

// handOver gives a sandbox that was taken the name and the changes of set. If ok is false it has been
// removed, or is being removed, or waits again since another one has the name. Without an error the
// caller takes another one.
func (p *Pool) handOver(ctx context.Context, h *Handle, name string, set *plan.Sandbox) (ok bool, err error) {
	defer p.wakeUp()
	defer p.work.Done()
	err = h.handOver(ctx, name, set)
	lost := ctx.Err() == nil && isLost(err)
	waits := false
	p.mu.Lock()
	switch {
	case err == nil:
		p.stats.HandedOver++
	case errors.Is(err, errdefs.Exists):
		waits = p.add(h, h.connection())
	case lost:
		p.stats.Lost++
	}
	p.mu.Unlock()
	switch {
	case err == nil:
		return true, nil
	case waits:
		return false, err
	case lost:
		p.work.Go(func() { h.Close(p.wrap) }) // the caller does not wait for it
		return false, nil
	}
	return false, errors.Join(err, h.Close(p.wrap))
}

// createDirectly creates a sandbox the ordinary way. Fills wait meanwhile.
func (p *Pool) createDirectly(ctx context.Context, o *CreateOptions) (*Handle, error) {
	p.mu.Lock()
	closed := p.closed
	if !closed {
		p.direct++
	}
	p.mu.Unlock()
	if closed {
		return nil, errdefs.Closed
	}
	created := 0
	defer func() { // also when a hook panics
		p.mu.Lock()
		p.direct--
		p.stats.Created += created
		p.mu.Unlock()
		p.wakeUp()
	}()
	h, err := p.create(ctx, o)
	if err == nil {
		created = 1
	}
	return h, err
}

// Close ends the fills, waits for hand-overs, and removes the sandboxes that wait.
func (p *Pool) Close() error {
	p.mu.Lock()
	if p.closed {
		done := p.done
		p.mu.Unlock()
		<-done
		return p.err
	}
	p.closed, p.done = true, make(chan struct{})
	waiting := p.ready
	p.ready = nil
	for _, m := range waiting {
		close(m.taken)
		p.work.Add(1)
	}
	p.mu.Unlock()
	defer close(p.done)
	p.end()
	places := bound.NewSemaphore(4 * p.fills)
	for _, m := range waiting {
		go func() {
			defer p.work.Done()
			leave, _ := places.Acquire(context.Background())
			defer leave()
			p.noteClose(m.h.Close(p.wrap))
		}()
	}
	p.work.Wait()
	return p.err
}

// noteClose adds an error of a handle's Close to the one of the pool's.
func (p *Pool) noteClose(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.err = errors.Join(p.err, err)
}
