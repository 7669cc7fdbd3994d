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
	"sync"
	"sync/atomic"

	"github.com/seed-1a2d6d8f/sandbox"
)

// execTrue: the shortest command on a warm handle, against the engine's own exec of it
// in the same container.
func execTrue(ctx context.Context, r *rig) (float64, error) {
	sb, err := r.warm(ctx)
	if err != nil {
		return 0, err
	}
	ours, theirs, ratios, err := pairs(ctx, 5, 40,
		func() (float64, error) { return milliseconds(sb.Command(ctx, "true").Run) },
		func() (float64, error) {
			return milliseconds(func() error { _, err := r.api.exec(ctx, container(sb), "true"); return err })
		})
	if err != nil {
		return 0, err
	}
	note("exec true: a command takes %v ms, the engine's exec %v ms", ours, theirs)
	return ratios.median(), nil
}

// exec64: commands per second with 64 at once in one sandbox.
func exec64(ctx context.Context, r *rig) (float64, error) {
	const at, rounds = 64, 4
	sb, err := r.warm(ctx)
	if err != nil {
		return 0, err
	}
	// rate starts at goroutines that run fn n times each, all at once.
	rate := func(n int, fn func() error) (float64, error) {
		var (
			wg     sync.WaitGroup
			failed atomic.Pointer[error]
		)
		took, _ := milliseconds(func() error {
			for range at {
				wg.Go(func() {
					for range n {
						if err := fn(); err != nil {
							failed.Store(&err)
							return
						}
					}
				})
			}
			wg.Wait()
			return nil
		})
		if err := failed.Load(); err != nil {
			return 0, *err
		}
		return float64(at*n) / took * 1000, nil
	}
	ours, theirs, ratios, err := pairs(ctx, 1, 7,
		func() (float64, error) { return rate(rounds, func() error { return sb.Command(ctx, "true").Run() }) },
		func() (float64, error) {
			return rate(1, func() error { _, err := r.api.exec(ctx, container(sb), "true"); return err })
		})
	if err != nil {
		return 0, err
	}
	note("exec 64 at once: %v commands per second, the engine's exec %v", ours, theirs)
	return ratios.median(), nil
}

// createVsFloor: from nothing to a first command's exit, against the calls to the
// engine that this takes at the least: make a volume, make the same container, start
// it, run the command.
func createVsFloor(ctx context.Context, r *rig) (float64, error) {
	sb, err := r.warm(ctx) // which also has image and guest on the engine
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
			_, err := r.api.exec(ctx, name, "true")
			return err
		}))
	if err != nil {
		return 0, err
	}
	note("create: %v ms to the first command's exit, the engine's calls alone %v ms", ours, theirs)
	return ratios.median(), nil
}

// stdout1GiB: bytes per second of a command's output.
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
				err = fmt.Errorf("%d bytes came, not %d", n, size)
			}
			return err
		})
		use.add(r.spent(), before, took/1000)
		return size / 1e6 / (took / 1000), err
	}
	ours, theirs, ratios, err := pairs(ctx, 1, 5,
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
		// What bounds it, told by who is busy: when all cores are, CPU does.
		note("for each GiB ours took          %s", use[0].tell(r.facts.NCPU))
		note("for each GiB engine's exec took %s", use[1].tell(r.facts.NCPU))
	}
	return ratios.median(), nil
}

// counter counts what is written to it.
type counter int64

func (c *counter) Write(p []byte) (int, error) {
	*c += counter(len(p))
	return len(p), nil
}

// watched are the processes that bytes pass through on their way to us.
var watched = []string{"dockerd", "containerd", "containerd-shim", "guest", "bench"}

// A process is one of those watched, and what it has used so far.
type process struct {
	name string
	cpu  float64 // seconds
}

// spent returns what each watched process has used, by its ID; under "" is everything
// that runs on the machine.
func (r *rig) spent() map[string]process {
	const tick = 100 // clock ticks per second, on every Linux there is
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

// cost adds up what several runs took.
type cost struct {
	runs    int
	seconds float64
	cpu     map[string]float64 // by name; "" is everything
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

func (c *cost) tell(cores int) string {
	runs := float64(c.runs)
	var b strings.Builder
	for _, name := range watched {
		fmt.Fprintf(&b, "%s %.2f, ", name, c.cpu[name]/runs)
	}
	fmt.Fprintf(&b, "everything %.2f CPU seconds in %.2f s, %.0f%% of %d cores",
		c.cpu[""]/runs, c.seconds/runs, 100*c.cpu[""]/c.seconds/float64(cores), cores)
	return b.String()
}
