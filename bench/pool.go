package main

import (
	"context"
	"fmt"
	"time"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/internal/bound"
)

// newPool returns a pool of the sandboxes that r.create makes.
func (r *rig) newPool(ctx context.Context, size int) (*sandbox.Pool, error) {
	opts := []sandbox.CreateOption{r.tags(), quick}
	if r.runtime != "" {
		opts = append(opts, sandbox.WithOCIRuntime(r.runtime), sandbox.WithNetworkPolicy(sandbox.DenyAll()))
	}
	return r.client.NewPool(ctx, size, opts...)
}

// full waits until so many sandboxes wait in the pool, and no fill runs.
func full(ctx context.Context, p *sandbox.Pool, n int) error {
	for {
		s := p.Stats()
		switch {
		case s.Ready == n && s.Filling == 0:
			return nil
		case s.LastError != nil:
			return s.LastError
		}
		if err := bound.Sleep(ctx, 20*time.Millisecond); err != nil {
			return err
		}
	}
}

// handedOver measures the creation of a sandbox from a full pool until the exit of its first command.
func handedOver(ctx context.Context, p *sandbox.Pool, opts ...sandbox.PoolOption) func() (float64, error) {
	return func() (float64, error) {
		if err := full(ctx, p, p.Stats().Size); err != nil {
			return 0, err
		}
		return used(ctx, func() (*sandbox.Sandbox, error) { return p.Create(ctx, opts...) })()
	}
}

// poolVsCreate compares the creation of a sandbox from a pool with the ordinary one, each until the
// first command's exit.
func poolVsCreate(ctx context.Context, r *rig) (float64, error) {
	return r.pooledVsCreate(ctx, func() []sandbox.PoolOption { return nil })
}

// poolNamedVsCreate is poolVsCreate for a sandbox that gets a name from the pool, and so is persistent.
func poolNamedVsCreate(ctx context.Context, r *rig) (float64, error) {
	n := 0
	return r.pooledVsCreate(ctx, func() []sandbox.PoolOption {
		n++
		return []sandbox.PoolOption{sandbox.WithName(fmt.Sprintf("bench-%s-pool-%d", r.id, n))}
	})
}

func (r *rig) pooledVsCreate(ctx context.Context, opts func() []sandbox.PoolOption) (_ float64, err error) {
	if _, err := r.warm(ctx); err != nil {
		return 0, err
	}
	p, err := r.newPool(ctx, 1)
	if err != nil {
		return 0, err
	}
	defer func() { err = closed(p, err) }()
	ours, theirs, ratios, err := pairs(ctx, 1, 9,
		func() (float64, error) { return handedOver(ctx, p, opts()...)() },
		func() (float64, error) {
			if err := full(ctx, p, 1); err != nil { // a fill would take its time
				return 0, err
			}
			return used(ctx, func() (*sandbox.Sandbox, error) { return r.create(ctx) })()
		})
	if err != nil {
		return 0, err
	}
	note("pool: %v ms to the first command's exit, created %v ms", ours, theirs)
	return ratios.median(), nil
}

// poolExec measures the creation of a sandbox from a full pool until the first command's exit.
func (r *rig) poolExec(ctx context.Context, rounds int) (all samples, err error) {
	p, err := r.newPool(ctx, 1)
	if err != nil {
		return nil, err
	}
	defer func() { err = closed(p, err) }()
	for range rounds {
		took, err := handedOver(ctx, p)()
		if err != nil {
			return nil, err
		}
		all = append(all, took)
	}
	note("pool: %v ms to the first command's exit", all)
	return all, nil
}

func poolExecMedian(ctx context.Context, r *rig) (float64, error) {
	all, err := r.poolExec(ctx, 25)
	return all.median(), err
}

func poolExecP99(ctx context.Context, r *rig) (float64, error) {
	all, err := r.poolExec(ctx, scaled(100))
	return all.percentile(99), err
}

// closed closes a pool, and returns err or else why that failed.
func closed(p *sandbox.Pool, err error) error {
	if e := p.Close(); err == nil {
		err = e
	}
	return err
}
