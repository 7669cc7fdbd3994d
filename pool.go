package sandbox

import (
	"context"

	"github.com/seed-1a2d6d8f/sandbox/internal/errdefs"
	"github.com/seed-1a2d6d8f/sandbox/internal/lifecycle"
	"github.com/seed-1a2d6d8f/sandbox/internal/plan"
	"github.com/seed-1a2d6d8f/sandbox/internal/trace"
)

// A Pool has sandboxes that run already, and hands them over in milliseconds. It is safe for
// concurrent use. The caller closes it.
//
// What waits in a pool are ordinary unnamed sandboxes, which [List] lists and which need memory. They
// live as long as the program that has the pool: 30 s after its death their sessions end, and a sweep
// removes them.
type Pool struct {
	c    *Client
	opts []CreateOption
	p    *lifecycle.Pool
}

// maxPool bounds the size of a pool: more is a mistake, and the engine's machine would not take it.
const maxPool = 10_000

// NewPool returns a pool of size sandboxes with these options. It connects to the engine and returns;
// the pool fills in the background, and again after each [Pool.Create]. As many fills run at once as the
// engine has CPUs, and they wait while other calls of the client wait for [Limits].Creates. A fill that
// fails is repeated after 1 s, and twice that each time, up to a minute: see [Pool.Stats].
//
// The options prepare the sandboxes beforehand: a [Source], mounts, and [OnCreate], which is called for
// each fill. [WithName], [WithID], [WithPersistent] of true, [WithProgress] and a [Tarball] with a Reader are
// [ErrInvalidArgument]. ctx bounds this call only.
func NewPool(ctx context.Context, size int, opts ...CreateOption) (*Pool, error) {
	return defaultClient().NewPool(ctx, size, opts...)
}

// NewPool is [NewPool] on the client's engine. Close the pool before the client.
func (c *Client) NewPool(ctx context.Context, size int, opts ...CreateOption) (_ *Pool, err error) {
	ctx, span := trace.Start(ctx, "sandbox.new_pool")
	defer span.End(&err)
	defer wrap(&err, "new pool", "")
	if size < 1 || size > maxPool {
		return nil, errdefs.Invalid("a pool of %d sandboxes: use 1 to %d", size, maxPool)
	}
	p := &Pool{c: c, opts: append([]CreateOption{}, opts...)}
	s := p.settings()
	for _, o := range []struct {
		name  string
		given bool
	}{{"WithName", s.Name != ""}, {"WithID", s.ID != ""}, {"WithPersistent", s.Persistent != nil && *s.Persistent}, {"WithProgress", s.progress != nil}} {
		if o.given {
			s.problem("%s: it is for one sandbox, and these are the options of all sandboxes of a pool", o.name)
		}
	}
	if t, is := s.from.(Tarball); is && t.Reader != nil {
		s.problem("WithSource: a Reader can be read once, and a pool needs its source for each sandbox: use Path or URL")
	}
	if err := s.Complete(); err != nil {
		return nil, err
	}
	e, err := c.connect(ctx)
	if err != nil {
		return nil, err
	}
	p.p, err = lifecycle.NewPool(ctx, e.Own(), size, p.request, e.Create, func(err error) error { return fail("close", "", err) })
	if err != nil {
		return nil, err
	}
	return p, nil
}

// settings returns the settings of the pool's options.
func (p *Pool) settings() *settings {
	s := p.c.settings()
	apply(p.opts, func(o CreateOption) { o.applyCreate(s) })
	return s
}

// request returns what a fill creates.
func (p *Pool) request() (*lifecycle.CreateOptions, error) {
	s := p.settings()
	if err := s.Complete(); err != nil {
		return nil, err
	}
	return s.request(), nil
}

// Create returns a sandbox of the pool, with the given options in addition to the pool's. It is as if
// [Create] had made it with all of them: the caller closes the handle, and
// no other caller gets the sandbox. If none waits, Create creates it in the ordinary way.
//
// Without options the engine is not called. The options are applied as by [Sandbox.Update], in some
// milliseconds each, before Create returns. If one can't be applied Create fails, and the sandbox is
// removed: none is handed over half-changed. A sandbox whose session ended while it waited, or that does
// not answer, is removed as well, and Create takes the next.
//
// The timeouts of [WithTimeout] and [WithIdleTimeout], the pool's too, count from here. What differs
// from a new sandbox:
//   - [Info].CreatedAt, [Status].StartedAt and Uptime tell of the time in the pool, too.
//   - [OnCreate] of the pool's options ran before. Its files, detached commands and [Sandbox.Egress] are the
//     only ones from before.
//   - Its hostname is its ID, also if it gets a name, until a later session has a new container.
//   - The main process of [WithCommand] runs since before. It and SSH sessions do not have the
//     variables of a [WithEnv] given here; all commands do.
//
// With [WithName] the sandbox gets the name, and is persistent unless [WithPersistent] says otherwise. If
// another sandbox has the name the error is [ErrExists], and the one of the pool goes on to wait. Until
// Create returns other callers see a sandbox of that name that is being created; if the program dies
// meanwhile, the next sweep removes it. In a swarm, see [WithSwarm], a sandbox with a name is created in
// the ordinary way.
func (p *Pool) Create(ctx context.Context, opts ...PoolOption) (_ *Sandbox, err error) {
	given, all := p.c.settings(), p.settings()
	for _, s := range []*settings{given, all} {
		apply(opts, func(o PoolOption) { o.applyPool(s) })
	}
	name := all.Name
	ctx, span := trace.Start(ctx, "sandbox.pool.create")
	defer span.End(&err)
	defer wrap(&err, "create", all.Name)
	if err := given.CheckUpdate(); err != nil {
		return nil, err
	}
	if err := all.Complete(); err != nil {
		return nil, err
	}
	h, err := p.p.Create(ctx, name, changes(given, all), all.request())
	return traced(span, h), err
}

// changes returns what the options of a call, given, change of a sandbox of the pool. All are its
// settings then.
func changes(given, all *settings) *plan.Sandbox {
	set := &plan.Sandbox{
		Tags: all.Tags, Env: all.Env, VCPUs: all.VCPUs, Memory: all.Memory, Persistent: all.Persistent,
		Timeout: all.Timeout, StopTimeout: all.StopTimeout, Idle: all.Idle, Network: all.Network, Secrets: all.Secrets,
		Given: given.Given,
	}
	if set.Has(plan.CPUs | plan.Memory) {
		set.Given |= all.Given & (plan.CPUs | plan.Memory) // CPUs alone would also change the memory
	}
	set.Given &^= plan.Persistence
	if *set.Persistent { // one that waits is not
		set.Given |= plan.Persistence
	}
	return set
}

// PoolStats tell how full a [Pool] is, and what has become of its sandboxes.
type PoolStats struct {
	// Size is the pool's, Ready counts the sandboxes that wait in it and Filling those that are
	// being created for it.
	Size    int `json:"size"`
	Ready   int `json:"ready"`
	Filling int `json:"filling"`
	// HandedOver counts the sandboxes of [Pool.Create] that waited in the pool, and Created those
	// that it created in the ordinary way.
	HandedOver int `json:"handedOver"`
	Created    int `json:"created"`
	// Lost counts the sandboxes that ended while they waited.
	Lost int `json:"lost"`
	// Failed counts the fills that failed. LastError is the error of the last one, or nil.
	Failed    int   `json:"failed"`
	LastError error `json:"-"`
}

// Stats returns the pool's state, and its counters since NewPool.
func (p *Pool) Stats() PoolStats {
	s := p.p.Stats()
	return PoolStats{
		Size: p.p.Size(), Ready: s.Ready, Filling: s.Filling, HandedOver: s.HandedOver, Created: s.Created,
		Lost: s.Lost, Failed: s.Failed, LastError: fail("create", "", s.LastError),
	}
}

// Close ends the fills and removes the sandboxes that wait. Those that were handed over stay. It waits
// for hand-overs, and returns when nothing of the pool is left, or an error that joins what could not
// be removed: a later sweep removes that. It takes no context, as [Sandbox.Close], is idempotent and
// safe for concurrent use. Afterwards [Pool.Create] fails with [ErrClosed].
func (p *Pool) Close() error {
	return trace.Do(context.Background(), "sandbox.pool.close", func(context.Context) error { return p.p.Close() })
}
