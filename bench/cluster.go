package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync/atomic"

	"golang.org/x/sync/errgroup"

	"github.com/seed-1a2d6d8f/sandbox"
)

// A swarm is a client of the swarm that ci/cluster has started, beside those of its nodes alone.
type swarm struct {
	all  *sandbox.Client
	each []*sandbox.Client // of each node's engine
	tags sandbox.ChangeOption
}

// inSwarm calls fn with the clients, and deletes what it created.
func inSwarm(ctx context.Context, r *rig, fn func(*swarm) (float64, error)) (value float64, err error) {
	hosts := strings.Fields(os.Getenv("SANDBOX_CLUSTER"))
	s := &swarm{tags: r.tags()}
	open := func(opts ...sandbox.ClientOption) *sandbox.Client {
		c, openErr := sandbox.NewClient(opts...)
		err = errors.Join(err, openErr)
		return c
	}
	s.all = open(sandbox.WithHost(hosts[0]), sandbox.WithSwarm(sandbox.WithOvercommit(1000, 1000)))
	for _, host := range hosts {
		s.each = append(s.each, open(sandbox.WithHost(host)))
	}
	if err != nil {
		return 0, err
	}
	defer func() {
		for _, c := range append(s.each, s.all) {
			err = errors.Join(err, c.Close())
		}
	}()
	defer func() {
		// The rig removes what is on its own engine.
		infos, listErr := s.all.List(context.WithoutCancel(ctx), sandbox.ListOptions{Tags: map[string]string{tag: r.id}})
		var g errgroup.Group
		g.SetLimit(4)
		for _, i := range infos {
			g.Go(func() error {
				_, err := s.all.Delete(context.WithoutCancel(ctx), i.Name, sandbox.DeleteOptions{Volumes: true})
				return err
			})
		}
		err = errors.Join(err, listErr, g.Wait())
	}()
	return fn(s)
}

var created atomic.Int64

// create creates a sandbox without a limit that others would miss.
func (s *swarm) create(ctx context.Context, r *rig, c *sandbox.Client, opts ...sandbox.CreateOption) (*sandbox.Sandbox, error) {
	name := fmt.Sprintf("bench-%s-%d", r.id, created.Add(1))
	return c.Create(ctx, append(opts, sandbox.WithName(name), sandbox.WithVCPUs(0.125), sandbox.WithMemory(64<<20), s.tags, quick)...)
}

// on places a sandbox on the first node, so that both ways use the same engine.
var on = sandbox.WithPlacement("node.hostname==node1")

// clusterCreate compares a create in a swarm with one on the node's engine alone.
func clusterCreate(ctx context.Context, r *rig) (float64, error) {
	return inSwarm(ctx, r, func(s *swarm) (float64, error) {
		create := func(c *sandbox.Client, opts ...sandbox.CreateOption) func() (float64, error) {
			return timed(func() error {
				sb, err := s.create(ctx, r, c, opts...)
				if err == nil {
					err = sb.Detach()
				}
				return err
			})
		}
		swarms, engines, of, err := pairs(ctx, 3, 25, create(s.all, on), create(s.each[0]))
		note("create in a swarm of %d nodes: %v ms; on one engine: %v ms", len(s.each), swarms, engines)
		return of.median(), err
	})
}

// clusterExec compares a command in a sandbox of a swarm with one of the node's engine alone.
func clusterExec(ctx context.Context, r *rig) (float64, error) {
	return inSwarm(ctx, r, func(s *swarm) (float64, error) {
		run := func(c *sandbox.Client, opts ...sandbox.CreateOption) (func() (float64, error), error) {
			sb, err := s.create(ctx, r, c, opts...)
			if err != nil {
				return nil, err
			}
			return timed(func() error { return sb.Command(ctx, "true").Run() }), nil
		}
		inOne, err := run(s.all, on)
		if err != nil {
			return 0, err
		}
		onOne, err := run(s.each[0])
		if err != nil {
			return 0, err
		}
		swarms, engines, of, err := pairs(ctx, 20, 300, inOne, onOne)
		note("a command in a swarm: %v ms; on one engine: %v ms", swarms, engines)
		return of.median(), err
	})
}

// clusterGet compares the second and later gets by name in a swarm with those of one engine.
func clusterGet(ctx context.Context, r *rig) (float64, error) {
	return inSwarm(ctx, r, func(s *swarm) (float64, error) {
		sb, err := s.create(ctx, r, s.all, on)
		if err != nil {
			return 0, err
		}
		get := func(c *sandbox.Client) func() (float64, error) {
			return timed(func() error {
				got, err := c.Get(ctx, sb.Name())
				if err == nil {
					err = got.Detach()
				}
				return err
			})
		}
		swarms, engines, of, err := pairs(ctx, 10, 200, get(s.all), get(s.each[0]))
		note("get by name in a swarm: %v ms; on one engine: %v ms", swarms, engines)
		return of.median(), err
	})
}

// clusterList300 compares a list of 300 sandboxes on all nodes with the lists of their engines by
// clients of each, at the same time.
func clusterList300(ctx context.Context, r *rig) (float64, error) {
	return inSwarm(ctx, r, func(s *swarm) (float64, error) {
		const n = 300
		var creates errgroup.Group
		creates.SetLimit(6)
		for i := range n {
			creates.Go(func() error {
				sb, err := s.create(ctx, r, s.all, sandbox.WithPlacement(fmt.Sprintf("node.hostname==node%d", i%len(s.each)+1)))
				if err != nil {
					return err
				}
				defer sb.Detach()
				_, err = sb.Stop(ctx)
				return err
			})
		}
		if err := creates.Wait(); err != nil {
			return 0, err
		}
		count := func(c *sandbox.Client, want int) error {
			infos, err := c.List(ctx, sandbox.ListOptions{Prefix: "bench-" + r.id})
			if err == nil && len(infos) < want {
				err = fmt.Errorf("a list has %d sandboxes, want %d", len(infos), want)
			}
			return err
		}
		swarms, engines, of, err := pairs(ctx, 3, 30, timed(func() error { return count(s.all, n) }), timed(func() error {
			var lists errgroup.Group
			for _, c := range s.each {
				lists.Go(func() error { return count(c, n/len(s.each)) })
			}
			return lists.Wait()
		}))
		note("a list of %d sandboxes on %d nodes: %v ms; of each engine at the same time: %v ms", n, len(s.each), swarms, engines)
		return of.median(), err
	})
}
