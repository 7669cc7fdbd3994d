package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/internal/bound"
)

// create200 compares 200 creations at once with as many one by one, of which it measures 20. The figure
// is a failure if any creation fails. A note has the same of the engine's calls alone.
func create200(ctx context.Context, r *rig) (float64, error) {
	sb, err := r.warm(ctx)
	if err != nil {
		return 0, err
	}
	same, err := r.twinOf(ctx, container(sb))
	if err != nil {
		return 0, err
	}
	var made atomic.Int32
	if _, err := r.atOnce("the engine's calls alone", scaled(200), func() error {
		return same.make(ctx, r.api, r.id, fmt.Sprintf("bench-%s-%d", r.id, made.Add(1)))
	}); err != nil {
		return 0, err
	}
	if err := r.removeByHand(ctx); err != nil {
		return 0, err
	}
	return r.atOnce("create", scaled(200), func() error { return second(r.create(ctx)) })
}

// atOnce compares n calls of fn at once with as many one by one, of which it measures 20.
func (r *rig) atOnce(what string, n int, fn func() error) (float64, error) {
	var single, each samples
	for range 20 {
		took, err := milliseconds(fn)
		if err != nil {
			return 0, err
		}
		single = append(single, took)
	}
	var mu sync.Mutex
	var failed atomic.Int32
	all, err := milliseconds(func() error {
		return r.many(n, func() error {
			took, err := milliseconds(fn)
			if err != nil {
				failed.Add(1)
				return err
			}
			mu.Lock()
			defer mu.Unlock()
			each = append(each, took)
			return nil
		})
	})
	if err != nil {
		return 0, fmt.Errorf("%s: %d of %d failed: %w", what, failed.Load(), n, err)
	}
	ratio := all / (float64(n) * single.median())
	note("%s: one by one %v ms; %d at once %.0f ms, ratio %.3f, each of them %v ms, p99 %.0f ms", what, single, n, all, ratio, each, each.percentile(99))
	return ratio, nil
}

// many calls fn n times at once, and joins the errors.
func (r *rig) many(n int, fn func() error) error {
	var g errgroup.Group
	errs := make([]error, n)
	for i := range n {
		g.Go(func() error { errs[i] = fn(); return nil })
	}
	g.Wait()
	return errors.Join(errs...)
}

// idleSandboxes are sandboxes, each used once, that nobody uses any more.
func (r *rig) idleSandboxes(ctx context.Context, n int) ([]*sandbox.Sandbox, error) {
	all := make([]*sandbox.Sandbox, n)
	var g errgroup.Group
	g.SetLimit(8)
	for i := range all {
		g.Go(func() (err error) {
			if all[i], err = r.create(ctx); err != nil {
				return err
			}
			return all[i].Command(ctx, "true").Run()
		})
	}
	return all, g.Wait()
}

// sleepers are containers that sleep, and returns their names.
func (r *rig) sleepers(ctx context.Context, n int) (names []string, err error) {
	var g errgroup.Group
	g.SetLimit(8)
	for i := range n {
		name := fmt.Sprintf("bench-%s-sleep-%d", r.id, i)
		names = append(names, name)
		g.Go(func() error { return r.dockerRun(ctx, name, "-d", sandbox.DefaultImage, "sleep", "infinity") })
	}
	return names, g.Wait()
}

// idleMemory compares the memory of an idle sandbox with that of a container that sleeps: of the
// processes in it and of the engine's for it, each page that several share being counted in parts. What
// the kernel and the daemons have for a container is not in it.
func idleMemory(ctx context.Context, r *rig) (float64, error) {
	if !r.local {
		return 0, errors.New("the memory of processes needs an engine on this machine")
	}
	n := scaled(100)
	boxes, err := r.idleSandboxes(ctx, n)
	if err != nil {
		return 0, err
	}
	var names []string
	for _, sb := range boxes {
		names = append(names, container(sb))
	}
	plain, err := r.sleepers(ctx, n)
	if err != nil {
		return 0, err
	}
	if err := bound.Sleep(ctx, 10*time.Second); err != nil {
		return 0, err
	}
	ours, err := r.memories(ctx, names)
	if err != nil {
		return 0, err
	}
	theirs, err := r.memories(ctx, plain)
	if err != nil {
		return 0, err
	}
	note("memory of each of %d: an idle sandbox %v MiB, docker run … sleep %v MiB", n, ours, theirs)
	return ours.median() - theirs.median(), nil
}

// memories returns the memory of each container's processes and of the engine's process for it, in MiB.
func (r *rig) memories(ctx context.Context, containers []string) (all samples, err error) {
	children := map[int][]int{}
	parent := map[int]int{}
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, file := range stats {
		text, err := os.ReadFile(file)
		end := bytes.LastIndexByte(text, ')')
		if err != nil || end < 0 {
			continue // it has ended
		}
		fields := strings.Fields(string(text[end+1:]))
		pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(file)))
		if parent[pid], err = strconv.Atoi(fields[1]); err == nil {
			children[parent[pid]] = append(children[parent[pid]], pid)
		}
	}
	for _, name := range containers {
		var got struct{ State struct{ Pid int } }
		if err := r.api.call(ctx, "GET", "/containers/"+name+"/json", nil, &got); err != nil {
			return nil, err
		}
		// The engine's process is the parent of all that run in the container, those of execs too.
		var sum float64
		for queue := []int{parent[got.State.Pid]}; len(queue) > 0; queue = queue[1:] {
			mib, err := procMiB(queue[0], "smaps_rollup", "Pss:")
			if err != nil {
				return nil, err
			}
			sum += mib
			queue = append(queue, children[queue[0]]...)
		}
		all = append(all, sum)
	}
	return all, nil
}

// idleCPU measures the CPU time of 500 sandboxes that nobody uses, as a percentage of one CPU, beyond that of
// as many containers that sleep, whose processes of the engine are never quite idle: of this program, the
// engine, and everything that runs for the sandboxes. The engine has to be the only one on its machine.
func idleCPU(ctx context.Context, r *rig) (float64, error) {
	if !r.local {
		return 0, errors.New("the CPU time of processes needs an engine on this machine")
	}
	const settle, watch = 30 * time.Second, 2 * time.Minute
	use := func() (c cost, err error) {
		before, began := r.spent(), time.Now()
		err = bound.Sleep(ctx, watch)
		c.add(r.spent(), before, time.Since(began).Seconds())
		return c, err
	}
	percent := func(c cost) (sum float64) {
		for _, name := range watched {
			sum += c.cpu[name]
		}
		return 100 * sum / c.seconds
	}
	none, err := use()
	if err != nil {
		return 0, err
	}
	n := scaled(500)
	if _, err := r.sleepers(ctx, n); err != nil {
		return 0, err
	}
	if err := bound.Sleep(ctx, settle); err != nil {
		return 0, err
	}
	plain, err := use()
	if err != nil {
		return 0, err
	}
	if _, err := r.idleSandboxes(ctx, n); err != nil {
		return 0, err
	}
	if err := bound.Sleep(ctx, settle); err != nil {
		return 0, err
	}
	both, err := use()
	if err != nil {
		return 0, err
	}
	theirs, ours := percent(plain)-percent(none), percent(both)-percent(plain)
	note("without containers: %s", none.describe(r.facts.NCPU))
	note("with %d that sleep: %s", n, plain.describe(r.facts.NCPU))
	note("with %d idle sandboxes beside them: %s", n, both.describe(r.facts.NCPU))
	note("percent of a CPU: %d idle sandboxes %.2f, docker run … sleep %.2f", n, ours, theirs)
	return ours - theirs, nil
}
