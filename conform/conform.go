// Package conform checks what a container engine does for sandboxes: each capability of package
// sandbox is used once, and found to work, to be refused with a reason, or to be broken. It uses
// the public API only. "sandbox conform" prints its table, and [sandboxtest.Conform] makes each
// check a test.
//
// [sandboxtest.Conform]: https://pkg.go.dev/github.com/seed-1a2d6d8f/sandbox/sandboxtest#Conform
package conform

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/seed-1a2d6d8f/sandbox"
)

// An Outcome is what a check found.
type Outcome string

// The outcomes of a check.
const (
	// Works: everything was as documented.
	Works Outcome = "works"
	// Refused: the call failed with [sandbox.ErrUnsupported], which tells why.
	Refused Outcome = "refused"
	// Broken: a call failed in another way, or its result was wrong.
	Broken Outcome = "broken"
	// NotRun: the check lacks something, such as a program in the image, that is not the
	// engine's to provide.
	NotRun Outcome = "not run"
)

// A Result is that of one check.
type Result struct {
	// Check names the capability, such as "fork of a running sandbox".
	Check   string  `json:"check"`
	Outcome Outcome `json:"outcome"`
	// Reason says why the outcome is not [Works], or what is different on this engine
	// although it is.
	Reason string `json:"reason,omitempty"`
	// Took is how long the check took. In JSON it is tookMs, in milliseconds.
	Took time.Duration `json:"-"`
}

// MarshalJSON adds tookMs.
func (r Result) MarshalJSON() ([]byte, error) {
	type plain Result
	return json.Marshal(struct {
		plain
		TookMs int64 `json:"tookMs"`
	}{plain(r), r.Took.Milliseconds()})
}

// UnmarshalJSON reads what MarshalJSON writes.
func (r *Result) UnmarshalJSON(b []byte) error {
	type plain Result
	all := struct {
		*plain
		TookMs int64 `json:"tookMs"`
	}{plain: (*plain)(r)}
	err := json.Unmarshal(b, &all)
	r.Took = time.Duration(all.TookMs) * time.Millisecond
	return err
}

// A Report is what [Run] found.
type Report struct {
	Engine  sandbox.Health `json:"engine"`
	Results []Result       `json:"results"`
	// Kernel is what the check "kernel surface" found in detail.
	Kernel []KernelCall `json:"kernel,omitempty"`
}

// Count returns how many checks had the outcome.
func (r Report) Count(o Outcome) int {
	n := 0
	for _, result := range r.Results {
		if result.Outcome == o {
			n++
		}
	}
	return n
}

// String returns the table of all results, a line each, and a line that sums up.
func (r Report) String() string {
	var b bytes.Buffer
	e := r.Engine
	fmt.Fprintf(&b, "Engine %s (API %s), %s, %s/%s, kernel %s, cgroup v%s\n", e.Version, e.APIVersion, e.StorageDriver, e.OS, e.Arch, e.Kernel, e.CgroupVersion)
	t := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	for _, result := range r.Results {
		fmt.Fprintf(t, "%s\t%s\t%.1fs\t%s\n", result.Check, result.Outcome, result.Took.Seconds(), strings.ReplaceAll(result.Reason, "\n", " "))
	}
	t.Flush()
	fmt.Fprintf(&b, "%d work, %d are refused, %d are broken, %d did not run\n", r.Count(Works), r.Count(Refused), r.Count(Broken), r.Count(NotRun))
	return b.String()
}

// Options select what [Run] does. The zero value runs all checks.
type Options struct {
	// Image is the sandboxes' image, by default [sandbox.DefaultImage]. It needs sh and the
	// usual programs of a Linux distribution, and bash for network policies.
	Image string
	// OCIRuntime is that of the sandboxes, see [sandbox.WithOCIRuntime]. Default: the engine's.
	OCIRuntime string
	// Only selects the checks that have one of these in their names. Default: all.
	Only []string
	// Done is called after each check, on Run's goroutine. It may be nil.
	Done func(Result)
}

// checkTimeout bounds one check: an order of magnitude above the slowest one's time on a slow
// engine.
const checkTimeout = 3 * time.Minute

// Checks returns the names of all checks, in their order.
func Checks() []string {
	var names []string
	for _, c := range checks {
		names = append(names, c.name)
	}
	return names
}

// Run runs the checks on the client's engine, one after the other, and removes what they made. One
// of them is [sandbox.Client.Prune], which removes leftovers of other programs as well.
// It takes a minute or two. The error is the context's, or says that the engine can't be used at
// all; what a check found is in the report alone.
func Run(ctx context.Context, c *sandbox.Client, o Options) (report Report, err error) {
	report.Results = []Result{}
	if report.Engine, err = c.CheckHealth(ctx); err != nil {
		return report, err
	}
	if !report.Engine.Healthy {
		return report, fmt.Errorf("the engine can't be used: %s", report.Engine.Guidance)
	}
	r := &run{client: c, opts: []sandbox.CreateOption{sandbox.WithStopTimeout(2 * time.Second)}, host: report.Engine.Host, prefix: "conform-" + strings.ToLower(rand.Text()[:8])}
	if o.Image != "" {
		r.opts = append(r.opts, sandbox.WithImage(o.Image))
	}
	if o.OCIRuntime != "" {
		r.opts = append(r.opts, sandbox.WithOCIRuntime(o.OCIRuntime))
	}
	// Another kernel is inside, or the engine has been given another profile.
	r.otherKernel = o.OCIRuntime != "" || slices.ContainsFunc(report.Engine.Warnings, func(w sandbox.Warning) bool { return w.Subject == "seccomp" })
	defer func() { err = errors.Join(err, r.clean(context.WithoutCancel(ctx))) }()
	for _, check := range checks {
		if len(o.Only) > 0 && !slices.ContainsFunc(o.Only, func(part string) bool { return strings.Contains(check.name, part) }) {
			continue
		}
		start := time.Now()
		result := r.one(ctx, check)
		if ctx.Err() != nil {
			return report, context.Cause(ctx)
		}
		result.Check, result.Took = check.name, time.Since(start)
		report.Results = append(report.Results, result)
		if o.Done != nil {
			o.Done(result)
		}
	}
	report.Kernel = r.kernel
	return report, nil
}

// A check uses one capability, in the sandbox that in returns; nil is none. Its error is what was wrong,
// and an [sandbox.ErrUnsupported] a refusal.
type check struct {
	name string
	in   func(ctx context.Context, r *run) (*sandbox.Sandbox, error)
	do   func(ctx context.Context, r *run, sb *sandbox.Sandbox) error
}

// shared returns the sandbox that checks share, which they leave as it was.
func shared(ctx context.Context, r *run) (*sandbox.Sandbox, error) { return r.use(ctx) }

// with returns a new sandbox with the options.
func with(opts ...sandbox.CreateOption) func(context.Context, *run) (*sandbox.Sandbox, error) {
	return func(ctx context.Context, r *run) (*sandbox.Sandbox, error) { return r.create(ctx, opts...) }
}

// serving returns a new sandbox with the options and a server on port 8080.
func serving(opts ...sandbox.CreateOption) func(context.Context, *run) (*sandbox.Sandbox, error) {
	return func(ctx context.Context, r *run) (*sandbox.Sandbox, error) { return r.serve(ctx, opts...) }
}

// prints is a check that runs a script, and compares what it prints.
func prints(script, want string) func(context.Context, *run, *sandbox.Sandbox) error {
	return func(ctx context.Context, _ *run, sb *sandbox.Sandbox) error { return expect(ctx, sb, script, want) }
}

// A run is one call of [Run].
type run struct {
	client *sandbox.Client
	opts   []sandbox.CreateOption // of all its sandboxes
	host   string
	prefix string // of the names of its sandboxes
	n      int

	offline   bool             // all sandboxes have DenyAll
	shared    *sandbox.Sandbox // for checks that leave nothing in it
	original  *original        // nil until it is made, and while it is not as it was
	names     []string         // of all sandboxes
	snapshots []string
	closers   []func() error
	note      string // of the current check

	kernel      []KernelCall
	otherKernel bool
}

// missing is an outcome [NotRun], as an error.
type missing string

func (m missing) Error() string { return string(m) }

func (r *run) one(ctx context.Context, c check) (result Result) {
	ctx, cancel := context.WithTimeoutCause(ctx, checkTimeout, fmt.Errorf("it took longer than %v", checkTimeout))
	defer cancel()
	r.note = ""
	var sb *sandbox.Sandbox
	var err error
	if c.in != nil {
		sb, err = c.in(ctx, r)
	}
	if err == nil {
		err = c.do(ctx, r, sb)
	}
	var no missing
	switch {
	case err == nil:
		return Result{Outcome: Works, Reason: r.note}
	case errors.As(err, &no):
		return Result{Outcome: NotRun, Reason: no.Error()}
	case errors.Is(err, sandbox.ErrUnsupported):
		return Result{Outcome: Refused, Reason: err.Error()}
	default:
		return Result{Outcome: Broken, Reason: err.Error()}
	}
}

// name returns the name for a sandbox that the run removes at its end.
func (r *run) name() string {
	r.n++
	name := fmt.Sprintf("%s-%d", r.prefix, r.n)
	r.names = append(r.names, name)
	return name
}

// create creates a sandbox for the current check.
func (r *run) create(ctx context.Context, opts ...sandbox.CreateOption) (*sandbox.Sandbox, error) {
	make := func() (*sandbox.Sandbox, error) {
		return r.client.Create(ctx, slices.Concat(r.opts, []sandbox.CreateOption{sandbox.WithName(r.name())}, opts)...)
	}
	sb, err := make()
	if before := r.opts; errors.Is(err, sandbox.ErrUnsupported) && !r.offline {
		r.opts = append(slices.Clip(before), sandbox.WithNetworkPolicy(sandbox.DenyAll()))
		if other, e := make(); e == nil {
			sb, err, r.offline, r.note = other, nil, true, "only with the network policy DenyAll, which all that follow have"
		} else {
			r.opts = before
		}
	}
	if err != nil {
		return nil, fmt.Errorf("create a sandbox: %w", err)
	}
	r.closers = append(r.closers, sb.Detach)
	return sb, nil
}

// use returns the sandbox that checks share.
func (r *run) use(ctx context.Context) (*sandbox.Sandbox, error) {
	if r.shared != nil {
		return r.shared, nil
	}
	sb, err := r.create(ctx)
	if err == nil {
		r.shared = sb
	}
	return sb, err
}

// clean removes everything that the run made.
func (r *run) clean(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	var errs []error
	for _, name := range slices.Backward(r.names) {
		if _, err := r.client.Delete(ctx, name, sandbox.DeleteOptions{Volumes: true}); err != nil && !errors.Is(err, sandbox.ErrNotFound) {
			errs = append(errs, fmt.Errorf("remove sandbox %s: %w", name, err))
		}
	}
	for _, id := range slices.Backward(r.snapshots) {
		if err := r.client.DeleteSnapshot(ctx, id); err != nil && !errors.Is(err, sandbox.ErrSnapshotNotFound) {
			errs = append(errs, fmt.Errorf("remove snapshot %s: %w", id, err))
		}
	}
	for _, c := range r.closers {
		if err := c(); err != nil && !errors.Is(err, sandbox.ErrClosed) && !errors.Is(err, sandbox.ErrNotFound) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// shell runs a script and returns its stdout.
func shell(ctx context.Context, sb *sandbox.Sandbox, script string) (string, error) {
	out, err := sb.Command(ctx, "sh", "-c", script).Output()
	if exit := (*sandbox.ExitError)(nil); errors.As(err, &exit) {
		err = fmt.Errorf("sh -c %q: %w: %s", script, err, bytes.TrimSpace(exit.Stderr))
	}
	return string(out), err
}

// expect fails unless the script prints want.
func expect(ctx context.Context, sb *sandbox.Sandbox, script, want string) error {
	got, err := shell(ctx, sb, script)
	if err != nil {
		return err
	}
	if got != want {
		return fmt.Errorf("sh -c %q printed %q instead of %q", script, got, want)
	}
	return nil
}
