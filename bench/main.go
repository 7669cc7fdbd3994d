// Bench measures the overhead of the library over the engine's own calls:
//
//	go run ./bench                         all figures, some minutes
//	ONLY=create_vs_floor go run ./bench    one figure, or several with commas between
//	go run ./bench tti                     times to interactivity, see tti.go
//
// The figures that take longest, of many sandboxes, are measured only if ONLY names them.
// SCALE=0.1 makes them, and tti, ten times smaller, to try them.
//
// With RUNTIME=runsc the sandboxes of most figures have that OCI runtime, and no network, which
// is what it can enforce.
//
// "ci/cluster go run ./bench" measures the figures of a swarm instead.
//
// Each figure is a line "BENCH name value unit" on stdout: the median over rounds. Each round
// measures all ways, one right after the other, in alternating order; the first rounds of most
// figures warm up. Details of each figure go to stderr.
//
// Nothing is deleted during measurements: file systems are slow for a while after a mass
// deletion. ext4 without a journal passes over inodes that were freed in the last minute, or six
// if they are not on the disk yet (recently_deleted in the kernel's fs/ext4/ialloc.c): run sync and
// wait a minute before a run. Everything created is removed at the end, also after Ctrl-C.
package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"math"
	"os"
	"os/signal"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/internal/bound"
	"github.com/seed-1a2d6d8f/sandbox/internal/engine"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	run := bench
	switch {
	case len(os.Args) == 3 && os.Args[1] == childArg:
		run = func(ctx context.Context) error { return child(ctx, os.Args[2]) }
	case len(os.Args) == 2 && os.Args[1] == "tti":
		run = func(ctx context.Context) error { return measured(ctx, tti) }
	}
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// figure is one line of the result.
type figure struct {
	name, unit string
	measure    func(context.Context, *rig) (float64, error)
}

// longFigures are measured only if they are named.
var longFigures = []figure{
	{"create_200_at_once_vs_serial", "ratio", create200},
	{"idle_sandbox_MiB_over_docker_run", "MiB", idleMemory},
	{"idle_500_cpu_percent", "percent", idleCPU},
	{"pool_create_exec_p99_ms", "ms", poolExecP99},
}

var figures = []figure{
	// First: its baseline, the engine's disk usage, looks at every file of every container and volume.
	{"list_volumes_500_vs_engine", "ratio", listVolumes500},
	{"exec_true_vs_engine_exec", "ratio", execTrue},
	{"exec_64_concurrent_vs_engine", "ratio", exec64},
	{"create_vs_floor", "ratio", createVsFloor},
	{"pool_create_exec_vs_create_exec", "ratio", poolVsCreate},
	{"pool_create_named_vs_create_exec", "ratio", poolNamedVsCreate},
	{"pool_create_exec_ms", "ms", poolExecMedian},
	{"stdout_1GiB_vs_engine_exec", "ratio", stdout1GiB},
	{"read_4KiB_vs_engine_archive", "ratio", read4K},
	{"write_4KiB_vs_engine_archive", "ratio", write4K},
	{"copyin_10k_files_vs_host_cp", "ratio", in10k.vsHostCopy},
	{"copyin_10k_files_vs_docker_cp", "ratio", in10k.vsDockerCopy},
	{"copyout_10k_files_vs_host_cp", "ratio", out10k.vsHostCopy},
	{"copyout_10k_files_vs_docker_cp", "ratio", out10k.vsDockerCopy},
	{"copyin_1GiB_vs_host_cp", "ratio", in1GiB.vsHostCopy},
	{"copyin_1GiB_vs_docker_cp", "ratio", in1GiB.vsDockerCopy},
	{"copyout_1GiB_vs_host_cp", "ratio", out1GiB.vsHostCopy},
	{"copyout_1GiB_vs_docker_cp", "ratio", out1GiB.vsDockerCopy},
	{"http_rps_via_dial_vs_published_port", "ratio", httpDial},
	{"dial_256MiB_vs_published_port", "ratio", bulkDial},
	{"rwcopy_10k_small_vs_host_cp", "ratio", rwcopy(small, false)},
	{"rwcopy_gosrc_vs_host_cp", "ratio", rwcopy(goSrc, false)},
	{"rwcopy_1GiB_vs_host_cp", "ratio", rwcopy(gibibyte, false)},
	{"rwcopy_10k_small_streamed_vs_host_cp", "ratio", rwcopy(small, true)},
	{"rwcopy_gosrc_streamed_vs_host_cp", "ratio", rwcopy(goSrc, true)},
	{"rwcopy_1GiB_streamed_vs_host_cp", "ratio", rwcopy(gibibyte, true)},
	{"fork_small_vs_create", "ratio", forkSmall},
	{"fork_first_vs_create", "ratio", forkFirst},
	{"fork_gosrc_vs_host_cp", "ratio", forkGoSrc},
	{"create_from_snapshot_1GiB_vs_create_empty", "ratio", createFromSnapshot},
	{"fork_8_vs_fork_1", "ratio", fork8},
	{"commit_skipped_when_clean", "commits", commitSkipped},
	{"fork_pause_ms", "ms", forkPause},
	{"fork_pause_vs_engine_pause", "ratio", forkPauseVsEngine},
	{"create_at_10k_vs_empty", "ratio", createAt10k},
	{"get_at_10k_vs_empty", "ratio", getAt10k},
	{"list_10k_vs_engine", "ratio", list10k},
	{"create_policy_vs_allowall", "ratio", createPolicy},
	{"policy_update_ms", "ms", policyUpdate},
	{"tls_connect_proxied_vs_direct_ms", "ms", tlsConnect},
	{"proxied_throughput_vs_direct", "ratio", throughput},
	{"pid1_rss_idle_MiB", "MiB", rssPID1},
	{"rss_client_100_sandboxes", "MiB", rss100}, // last, since its sandboxes go on running
}

// clusterFigures are those of a swarm, which ci/cluster starts: "ci/cluster go run ./bench" measures these and
// no others.
var clusterFigures = []figure{
	{"cluster_create_vs_create", "ratio", clusterCreate},
	{"cluster_exec_vs_exec", "ratio", clusterExec},
	{"cluster_get_vs_get", "ratio", clusterGet},
	{"cluster_list_300_vs_engines", "ratio", clusterList300},
}

// rig is the state shared by the measurements.
type rig struct {
	id     string // of this run; a label of everything it creates
	client *sandbox.Client
	api    *api
	host   string
	facts  engine.Info
	local  bool // the engine's processes are on this machine

	runtime string // OCI runtime of the sandboxes, or the engine's default one

	dirs      []string // to remove at the end
	snapshots []string // to delete after the sandboxes that share their files

	copied map[string]copyTimes // by what a copying is

	shared *sandbox.Sandbox // warm, for figures that need no new one
}

func bench(ctx context.Context) error {
	chosen, some := figures, slices.Concat(figures, longFigures)
	all := slices.Concat(some, clusterFigures)
	if os.Getenv("SANDBOX_CLUSTER") != "" {
		chosen, some = clusterFigures, clusterFigures
	}
	if only := os.Getenv("ONLY"); only != "" {
		named := func(f figure) bool { return slices.Contains(strings.Split(only, ","), f.name) }
		chosen = slices.DeleteFunc(slices.Clone(some), func(f figure) bool { return !named(f) })
		if !slices.ContainsFunc(all, named) {
			var names []string
			for _, f := range all {
				names = append(names, f.name)
			}
			return fmt.Errorf("ONLY=%s: no such figure among %s", only, strings.Join(names, ", "))
		}
	}
	return measured(ctx, func(ctx context.Context, r *rig) error {
		for _, f := range chosen {
			note("")
			began := time.Now()
			value, err := f.measure(ctx, r)
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			if err != nil {
				return fmt.Errorf("%s: %w", f.name, err)
			}
			fmt.Printf("BENCH %s %.4g %s\n", f.name, value, f.unit)
			note("took %v", time.Since(began).Round(time.Second))
		}
		return nil
	})
}

// measured calls measure with a new rig, and removes what that has created.
func measured(ctx context.Context, measure func(context.Context, *rig) error) (err error) {
	began := time.Now()
	r, err := newRig(ctx)
	if err != nil {
		return err
	}
	r.describe()
	defer func() {
		note("cleaning up")
		err = errors.Join(err, r.remove(), r.client.Close())
		note("took %v in total", time.Since(began).Round(time.Second))
	}()
	return measure(ctx, r)
}

// scaled returns n times SCALE, at least 1.
func scaled(n int) int {
	scale, err := strconv.ParseFloat(os.Getenv("SCALE"), 64)
	if err != nil {
		scale = 1
	}
	return max(int(math.Round(float64(n)*scale)), 1)
}

// note prints a detail of a figure.
func note(format string, args ...any) {
	fmt.Fprintln(os.Stderr, strings.TrimSpace("# "+fmt.Sprintf(format, args...)))
}

func newRig(ctx context.Context) (*rig, error) {
	eng, err := engine.Open(ctx, engine.Options{})
	if err != nil {
		return nil, err
	}
	defer eng.Close()
	r := &rig{id: strings.ToLower(rand.Text()[:12]), host: eng.Host(), local: eng.Location() == "local", runtime: os.Getenv("RUNTIME"), copied: map[string]copyTimes{}}
	if r.facts, err = eng.Info(ctx); err != nil {
		return nil, err
	}
	if r.api, err = newAPI(eng.Host(), eng.APIVersion()); err != nil {
		return nil, err
	}
	r.client, err = sandbox.NewClient()
	return r, err
}

// describe prints the engine and machine.
func (r *rig) describe() {
	f := r.facts
	note("engine %s (API %s) at %s, storage driver %s, cgroup v%s, runtime %s",
		f.Version, f.APIVersion, r.host, f.StorageDriver, f.CgroupVersion, f.DefaultRuntime)
	note("%d cores, %d MiB, %s, kernel %s, client built with %s",
		f.NCPU, f.MemTotal>>20, f.OS, f.Kernel, runtime.Version())
}

const tag = "bench"

// tags mark the sandboxes that remove deletes.
func (r *rig) tags() sandbox.ChangeOption { return sandbox.WithTags(map[string]string{tag: r.id}) }

// quick shortens the deletion of sandboxes at the end.
var quick = sandbox.WithStopTimeout(2 * time.Second)

// create creates a sandbox with the OCI runtime that was chosen.
func (r *rig) create(ctx context.Context, opts ...sandbox.CreateOption) (*sandbox.Sandbox, error) {
	if r.runtime != "" {
		opts = append(opts, sandbox.WithOCIRuntime(r.runtime), sandbox.WithNetworkPolicy(sandbox.DenyAll()))
	}
	return r.client.Create(ctx, append(opts, r.tags(), quick)...)
}

// warm returns the sandbox shared by figures, with its connection made.
func (r *rig) warm(ctx context.Context) (*sandbox.Sandbox, error) {
	if r.shared != nil {
		return r.shared, nil
	}
	sb, err := r.create(ctx)
	if err != nil {
		return nil, err
	}
	r.shared = sb
	return sb, sb.Command(ctx, "true").Run()
}

// container is the name of a sandbox's container.
func container(sb *sandbox.Sandbox) string { return "agent-sandbox-" + sb.Name() }

// remove deletes everything of this run: tagged sandboxes and objects made with plain calls.
func (r *rig) remove() error {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	infos, err := r.client.List(ctx, sandbox.ListOptions{Tags: map[string]string{tag: r.id}})
	errs := []error{err, r.removeByHand(ctx)}
	for _, dir := range r.dirs {
		errs = append(errs, os.RemoveAll(dir))
	}
	var (
		mu sync.Mutex
		g  errgroup.Group
	)
	g.SetLimit(4)
	for _, i := range infos {
		g.Go(func() error {
			_, err := r.client.Delete(ctx, i.Name, sandbox.DeleteOptions{Volumes: true})
			if !errors.Is(err, sandbox.ErrNotFound) {
				mu.Lock()
				defer mu.Unlock()
				errs = append(errs, err)
			}
			return nil // go on with the others
		})
	}
	g.Wait()
	for _, id := range r.snapshots {
		errs = append(errs, r.client.DeleteSnapshot(ctx, id))
	}
	// A list sweeps the files that forks of ForkN shared.
	_, err = r.client.List(ctx, sandbox.ListOptions{})
	return errors.Join(append(errs, err)...)
}

// samples are measurements of one operation.
type samples []float64

func (s samples) median() float64 {
	sorted := slices.Sorted(slices.Values(s))
	n := len(sorted)
	switch {
	case n == 0:
		return 0
	case n%2 == 1:
		return sorted[n/2]
	}
	return (sorted[n/2-1] + sorted[n/2]) / 2
}

// percentile returns the least sample that p percent are not above.
func (s samples) percentile(p float64) float64 {
	if len(s) == 0 {
		return 0
	}
	return slices.Sorted(slices.Values(s))[max(int(math.Ceil(p/100*float64(len(s))))-1, 0)]
}

// String returns the median and the range.
func (s samples) String() string {
	return fmt.Sprintf("%.3g (%.3g to %.3g, n=%d)", s.median(), slices.Min(s), slices.Max(s), len(s))
}

// rounds measures each way in each of n rounds, after warmup rounds that are dropped.
func rounds(ctx context.Context, warmup, n int, ways ...func() (float64, error)) ([]samples, error) {
	got := make([]samples, len(ways))
	for round := range warmup + n {
		for i := range ways {
			if ctx.Err() != nil {
				return nil, context.Cause(ctx)
			}
			if round%2 == 1 {
				i = len(ways) - 1 - i
			}
			took, err := ways[i]()
			if err != nil {
				return nil, err
			}
			if round >= warmup {
				got[i] = append(got[i], took)
			}
		}
	}
	return got, nil
}

// pairs are rounds of two ways, and the ratios a/b of each round.
func pairs(ctx context.Context, warmup, n int, a, b func() (float64, error)) (as, bs, of samples, err error) {
	got, err := rounds(ctx, warmup, n, a, b)
	if err != nil {
		return nil, nil, nil, err
	}
	return got[0], got[1], ratios(got[0], got[1]), nil
}

// ratios returns a/b of each round.
func ratios(as, bs samples) (all samples) {
	for i := range as {
		all = append(all, as[i]/bs[i])
	}
	return all
}

// timed returns a function that measures fn, in milliseconds.
func timed(fn func() error) func() (float64, error) {
	return func() (float64, error) { return milliseconds(fn) }
}

// milliseconds measures fn.
func milliseconds(fn func() error) (float64, error) {
	began := time.Now()
	err := fn()
	return float64(time.Since(began).Microseconds()) / 1000, err
}

// rested is timed after a rest: a fork's helper and a source's pause leave the engine work
// for some 200 ms, which would count for the next measurement.
func rested(ctx context.Context, fn func() error) func() (float64, error) {
	return func() (float64, error) {
		if err := bound.Sleep(ctx, 500*time.Millisecond); err != nil {
			return 0, err
		}
		return milliseconds(fn)
	}
}

// used measures the creation of a sandbox until the exit of its first command.
func used(ctx context.Context, create func() (*sandbox.Sandbox, error)) func() (float64, error) {
	return rested(ctx, func() error {
		sb, err := create()
		if err != nil {
			return err
		}
		return sb.Command(ctx, "true").Run()
	})
}
