package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/seed-1a2d6d8f/sandbox"
)

// execTrue compares the shortest command on a connected handle with the engine's own exec of
// it in the same container.
func execTrue(ctx context.Context, r *rig) (float64, error) {
	sb, err := r.warm(ctx)
	if err != nil {
		return 0, err
	}
	ours, theirs, ratios, err := pairs(ctx, 5, 40,
		func() (float64, error) { return milliseconds(sb.Command(ctx, "true").Run) },
		timed(func() error { return second(r.api.exec(ctx, container(sb), "true")) }))
	if err != nil {
		return 0, err
	}
	note("exec true: a command takes %v ms, the engine's exec %v ms", ours, theirs)
	return ratios.median(), nil
}

// exec64 compares commands per second, 64 at a time in one sandbox.
func exec64(ctx context.Context, r *rig) (float64, error) {
	const at, rounds = 64, 4
	sb, err := r.warm(ctx)
	if err != nil {
		return 0, err
	}
	ours, theirs, ratios, err := pairs(ctx, 1, 5,
		rate(at, rounds, func() error { return sb.Command(ctx, "true").Run() }),
		rate(at, 1, func() error { return second(r.api.exec(ctx, container(sb), "true")) }))
	if err != nil {
		return 0, err
	}
	note("exec 64 at once: %v commands per second, the engine's exec %v", ours, theirs)
	return ratios.median(), nil
}

// rate measures calls of fn per second: goroutines that call it n times each.
func rate(goroutines, n int, fn func() error) func() (float64, error) {
	return func() (float64, error) {
		took, err := milliseconds(func() error {
			var g errgroup.Group
			for range goroutines {
				g.Go(func() error {
					for range n {
						if err := fn(); err != nil {
							return err
						}
					}
					return nil
				})
			}
			return g.Wait()
		})
		return float64(goroutines*n) / took * 1000, err
	}
}

// createVsFloor compares the creation of a sandbox, until the first command's exit, with the
// minimum of calls to the engine: create a volume, create the same container, start it, run
// the command.
func createVsFloor(ctx context.Context, r *rig) (float64, error) {
	sb, err := r.warm(ctx) // it also brings image and guest to the engine
	if err != nil {
		return 0, err
	}
	same, err := r.twinOf(ctx, container(sb))
	if err != nil {
		return 0, err
	}
	var made int
	ours, theirs, ratios, err := pairs(ctx, 2, 15,
		used(ctx, func() (*sandbox.Sandbox, error) { return r.create(ctx) }),
		rested(ctx, func() error {
			made++
			name := fmt.Sprintf("bench-%s-%d", r.id, made)
			if err := same.make(ctx, r.api, r.id, name); err != nil {
				return err
			}
			return second(r.api.exec(ctx, name, "true"))
		}))
	if err != nil {
		return 0, err
	}
	note("create: %v ms to the first command's exit, the engine's calls alone %v ms", ours, theirs)
	return ratios.median(), nil
}

// stdout1GiB compares the throughput of a command's output.
func stdout1GiB(ctx context.Context, r *rig) (float64, error) {
	const size = 1 << 30
	argv := []string{"dd", "if=/dev/zero", "bs=1M", fmt.Sprint("count=", size>>20), "status=none"}
	sb, err := r.warm(ctx)
	if err != nil {
		return 0, err
	}
	var use [2]cost
	speed := func(use *cost, fn func() (int64, error)) (float64, error) {
		before := r.spent()
		took, err := milliseconds(func() error {
			n, err := fn()
			if err == nil && n != size {
				err = fmt.Errorf("got %d bytes, want %d", n, size)
			}
			return err
		})
		use.add(r.spent(), before, took/1000)
		return size / 1e6 / (took / 1000), err
	}
	ours, theirs, ratios, err := pairs(ctx, 0, 3,
		func() (float64, error) {
			return speed(&use[0], func() (int64, error) {
				var n counter
				cmd := sb.Command(ctx, argv[0], argv[1:]...)
				cmd.Stdout = &n
				err := cmd.Run()
				return int64(n), err
			})
		},
		func() (float64, error) {
			return speed(&use[1], func() (int64, error) { return r.api.exec(ctx, container(sb), argv...) })
		})
	if err != nil {
		return 0, err
	}
	note("stdout of 1 GiB: %v MB/s, the engine's exec %v MB/s", ours, theirs)
	if r.local {
		// If all cores are busy, the CPU is the bottleneck.
		note("for each GiB ours took          %s", use[0].describe(r.facts.NCPU))
		note("for each GiB engine's exec took %s", use[1].describe(r.facts.NCPU))
	}
	return ratios.median(), nil
}

// counter counts the bytes written to it.
type counter int64

func (c *counter) Write(p []byte) (int, error) {
	*c += counter(len(p))
	return len(p), nil
}

// watched are the processes that copy a command's output.
var watched = []string{"dockerd", "containerd", "containerd-shim", "guest", "bench"}

// A process is one of those watched, with its CPU time so far.
type process struct {
	name string
	cpu  float64 // seconds
}

// spent returns the CPU time of each watched process by its ID, and under "" that of the
// whole machine.
func (r *rig) spent() map[string]process {
	const tick = 100 // clock ticks per second, on every Linux
	all := map[string]process{}
	if !r.local {
		return all
	}
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, file := range stats {
		// pid (name) state …, utime and stime being fields 14 and 15
		text, err := os.ReadFile(file)
		open, end := bytes.IndexByte(text, '('), bytes.LastIndexByte(text, ')')
		if err != nil || open < 0 || end < open {
			continue // it has ended
		}
		p := process{name: string(text[open+1 : end])}
		fields := strings.Fields(string(text[end+1:]))
		if len(fields) < 13 || !slices.Contains(watched, p.name) {
			continue
		}
		for _, f := range fields[11:13] {
			n, _ := strconv.ParseFloat(f, 64)
			p.cpu += n / tick
		}
		all[file] = p
	}
	text, _ := os.ReadFile("/proc/stat")
	line, _, _ := strings.Cut(string(text), "\n")
	var sum process
	for i, f := range strings.Fields(line) {
		// cpu user nice system idle iowait irq softirq steal …
		if n, err := strconv.ParseFloat(f, 64); err == nil && i != 4 && i != 5 && i < 8 {
			sum.cpu += n / tick
		}
	}
	all[""] = sum
	return all
}

// cost sums up the CPU time of several runs.
type cost struct {
	runs    int
	seconds float64
	cpu     map[string]float64 // by name; "" is the whole machine
}

func (c *cost) add(now, before map[string]process, seconds float64) {
	if c.cpu == nil {
		c.cpu = map[string]float64{}
	}
	for id, p := range now {
		c.cpu[p.name] += p.cpu - before[id].cpu
	}
	c.runs++
	c.seconds += seconds
}

func (c *cost) describe(cores int) string {
	runs := float64(c.runs)
	var b strings.Builder
	for _, name := range watched {
		fmt.Fprintf(&b, "%s %.2f, ", name, c.cpu[name]/runs)
	}
	fmt.Fprintf(&b, "everything %.2f CPU seconds in %.2f s, %.0f%% of %d cores",
		c.cpu[""]/runs, c.seconds/runs, 100*c.cpu[""]/c.seconds/float64(cores), cores)
	return b.String()
}
