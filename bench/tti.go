package main

import (
	"context"
	crand "crypto/rand"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"sync"
	"time"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/internal/bound"
)

// Time to interactivity, as a public comparison of vendors measures it: from the request for a sandbox
// to the exit of "node -v" in it. Its deletion is not measured. There are 100 in sequence, 100 that are
// requested every 200 ms, and 100 at once, each
//   - from a pool, which is full before and fills again meanwhile,
//   - created in the ordinary way,
//   - with "docker run", beside it.
//
// Then jobs arrive at random, as those of independent users do: each creates a sandbox, runs five
// commands and closes it. They do not wait for each other, so a slow one delays none (an open loop), and
// the time counts from the arrival.
//
// With SVG=file both are drawn, see picture.go.
const (
	ttiCount   = 100
	ttiStagger = 200 * time.Millisecond
	// Each rate is tried for loadTime, and the pool then has loadPool sandboxes.
	loadTime = 40 * time.Second
	loadPool = 16
)

// loadRates are arrivals per second.
var loadRates = []float64{0.25, 0.5, 1, 1.5, 2, 3, 4}

// A run is the measurements of one way under one load.
type run struct {
	way, load string
	rate      float64 // arrivals per second, of a load that has one
	took      samples // ms, of those that succeeded
	failed    int
}

func (m *run) String() string {
	return fmt.Sprintf("%-10s %-9s median %7.1f ms, p95 %7.1f ms, p99 %7.1f ms, success %d of %d",
		m.load, m.way, m.took.median(), m.took.percentile(95), m.took.percentile(99), len(m.took), len(m.took)+m.failed)
}

// A use gets a sandbox, uses it and returns how to remove it, or nil if there is none.
type use func(ctx context.Context) (remove func() error, err error)

func tti(ctx context.Context, r *rig) (err error) {
	if _, err := r.warm(ctx); err != nil {
		return err
	}
	var runs, loads []*run
	for _, load := range []string{"sequence", "staggered", "burst"} {
		for _, name := range []string{"pool", "create", "docker run"} {
			m, err := r.ttiOf(ctx, name, load)
			if err != nil {
				return err
			}
			fmt.Println("TTI", m)
			runs = append(runs, m)
		}
	}
	for _, name := range []string{"pool", "create"} {
		for _, rate := range loadRates {
			m, err := r.loadOf(ctx, name, rate)
			if err != nil {
				return err
			}
			fmt.Println("LOAD", m)
			loads = append(loads, m)
		}
		if at := turn(loads, name); at > 0 {
			fmt.Printf("LOAD %s: its median is twice that of the lowest rate from %.3g per second on\n", name, at)
		}
	}
	if name := os.Getenv("SVG"); name != "" {
		return os.WriteFile(name, picture(runs, loads), 0o644)
	}
	return nil
}

// turn returns the lowest rate at which the median of a way is more than twice that of the lowest rate,
// or 0.
func turn(loads []*run, way string) float64 {
	first := 0.0
	for _, m := range loads {
		switch {
		case m.way != way:
		case first == 0:
			first = m.took.median()
		case m.took.median() > 2*first || m.failed > 0:
			return m.rate
		}
	}
	return 0
}

// creator returns what creates sandboxes in that way. size is that of a pool. The caller calls end, which
// returns its argument or else why the pool could not be closed.
func (r *rig) creator(ctx context.Context, way string, size int) (create func(context.Context) (*sandbox.Sandbox, error), end func(error) error, err error) {
	if way != "pool" {
		return func(ctx context.Context) (*sandbox.Sandbox, error) { return r.create(ctx) }, func(err error) error { return err }, nil
	}
	p, err := r.newPool(ctx, size)
	if err != nil {
		return nil, nil, err
	}
	end = func(err error) error {
		s := p.Stats()
		note("pool of %d: %d were handed over, %d created", s.Size, s.HandedOver, s.Created)
		return closed(p, err)
	}
	if err := full(ctx, p, size); err != nil {
		return nil, nil, end(err)
	}
	return func(ctx context.Context) (*sandbox.Sandbox, error) { return p.Create(ctx) }, end, nil
}

// running creates a sandbox and runs a command in it so many times.
func running(create func(context.Context) (*sandbox.Sandbox, error), times int, argv ...string) use {
	return func(ctx context.Context) (func() error, error) {
		sb, err := create(ctx)
		if err != nil {
			return nil, err
		}
		for range times {
			if err := sb.Command(ctx, argv[0], argv[1:]...).Run(); err != nil {
				return sb.Close, err
			}
		}
		return sb.Close, nil
	}
}

// dockerNode runs "node -v" in a new container.
func (r *rig) dockerNode() use {
	return func(ctx context.Context) (func() error, error) {
		name := "bench-" + r.id + "-" + strings.ToLower(crand.Text())
		remove := func() error {
			return r.api.call(context.WithoutCancel(ctx), "DELETE", "/containers/"+name+"?force=1", nil, nil)
		}
		return remove, r.dockerRun(ctx, name, sandbox.DefaultImage, "node", "-v")
	}
}

// dockerRun is "docker run" of a container that the rig removes at the end.
func (r *rig) dockerRun(ctx context.Context, name string, args ...string) error {
	cmd := exec.CommandContext(ctx, "docker", append([]string{"run", "--name", name, "--label", byHandLabel + "=" + r.id}, args...)...)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("docker run: %w: %s", err, out)
	}
	return nil
}

// ttiOf measures the times to interactivity of a way.
func (r *rig) ttiOf(ctx context.Context, way, load string) (_ *run, err error) {
	n := scaled(ttiCount)
	create, end, err := r.creator(ctx, way, n)
	if err != nil {
		return nil, err
	}
	defer func() { err = end(err) }()
	node := running(create, 1, "node", "-v")
	if way == "docker run" {
		node = r.dockerNode()
	}
	m := &run{way: way, load: load}
	pause := time.Duration(0)
	switch load {
	case "sequence":
		for range n {
			if err := m.arrive(ctx, 1, nil, node); err != nil {
				return nil, err
			}
		}
		return m, nil
	case "staggered":
		pause = ttiStagger
	}
	return m, m.arrive(ctx, n, func() time.Duration { return pause }, node)
}

// loadOf measures jobs that arrive at random, rate of them per second on average.
func (r *rig) loadOf(ctx context.Context, way string, rate float64) (_ *run, err error) {
	create, end, err := r.creator(ctx, way, scaled(loadPool))
	if err != nil {
		return nil, err
	}
	defer func() { err = end(err) }()
	m := &run{way: way, load: fmt.Sprintf("%.3g/s", rate), rate: rate}
	n := max(int(rate*loadTime.Seconds()*float64(scaled(100))/100), 3)
	rnd := rand.New(rand.NewPCG(1, 2)) // the same arrivals for each way
	return m, m.arrive(ctx, n, func() time.Duration { return time.Duration(rnd.ExpFloat64() / rate * float64(time.Second)) }, running(create, 5, "true"))
}

// arrive starts n uses with these pauses between their arrivals, measures each from its arrival on, and
// waits for all and for their removal.
func (m *run) arrive(ctx context.Context, n int, pause func() time.Duration, use use) error {
	var mu sync.Mutex
	var all sync.WaitGroup
	var errs []error
	at := time.Now()
	for i := range n {
		if i > 0 {
			at = at.Add(pause())
		}
		if bound.Sleep(ctx, time.Until(at)) != nil {
			break
		}
		arrived := at
		all.Go(func() {
			remove, err := use(ctx)
			took := float64(time.Since(arrived).Microseconds()) / 1000
			mu.Lock()
			if err != nil {
				m.failed++
				note("%s: %v", m.way, err)
			} else {
				m.took = append(m.took, took)
			}
			mu.Unlock()
			if remove != nil {
				if err := remove(); err != nil {
					mu.Lock()
					defer mu.Unlock()
					errs = append(errs, err)
				}
			}
		})
	}
	all.Wait()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return errors.Join(errs...)
}
