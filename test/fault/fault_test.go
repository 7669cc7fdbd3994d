package fault_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime/pprof"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/internal/claim"
	"github.com/seed-1a2d6d8f/sandbox/internal/engine"
	"github.com/seed-1a2d6d8f/sandbox/internal/enginetest"
	"github.com/seed-1a2d6d8f/sandbox/internal/machine"
	"github.com/seed-1a2d6d8f/sandbox/internal/record"
	"github.com/seed-1a2d6d8f/sandbox/internal/store"
	"github.com/seed-1a2d6d8f/sandbox/test/harness"
)

const (
	// patience is the deadline of a caller whose engine stalls, and undoBound how long it
	// may take to undo what was done until then.
	patience  = 3 * time.Second
	undoBound = harness.CallBound
	// stands is how many trials run at once, of all tests together: more only make the engine slower. If
	// they alter their stand's sandbox there is one for trialsEach, since it takes long to make.
	stands     = 4
	trialsEach = 6
	// retryEvery is at which of a plain run's trials what could not be made is made.
	retryEvery = 16
	// spare is how far the loop goes beyond the calls that a run without a fault made:
	// a lease is renewed in the background, when it pleases, and a fault makes calls.
	spare = 1
)

// An operation is what the fault loop makes fail, call by call.
type operation struct {
	// arrange brings about, past the proxy, what the operation expects to find.
	arrange func(x *trial)
	// open gets the handle that the operation is on, before anything fails.
	open func(x *trial) error
	act  func(ctx context.Context, x *trial) error
	// done checks what the operation promises when it returned nil, failed what it
	// promises when it did not.
	done, failed func(x *trial)
	// after takes away, past the proxy, what is no leftover.
	after func(x *trial)
	// noContext: there is nothing to cancel.
	noContext bool
	// alters: the stand's sandbox does not stay as it was, so that no other test can have it.
	alters bool
}

// A stand is where trials run, one at a time.
type stand struct {
	clean *sandbox.Client // past the proxy
	eng   *engine.Engine
	proxy *enginetest.Proxy
	top   *testing.T       // of the whole loop
	kept  string           // a sandbox that trials share, and tests, too, see keptName
	saved sandbox.Snapshot // a snapshot that they share, if there is one
	old   string           // the files that it has, if they matter
}

// A trial is one operation with one fault in one of its calls.
type trial struct {
	*testing.T
	*stand
	op    *operation
	k     int
	fault enginetest.Fault
	retry bool // what could not be made is made: in a plain run by one trial of retryEvery

	name     string
	volume   string          // what the operation is about, if it is
	c        *sandbox.Client // through the proxy
	sb       *sandbox.Sandbox
	pool     *sandbox.Pool        // which is closed after the operation
	snap     sandbox.Snapshot     // that it makes or deletes
	forks    []sandbox.ForkResult // that it makes
	files    string               // of the stand's sandbox, if they matter
	err      error                // what the operation returned
	closeErr error                // what Close of the pool returned
	undone   bool                 // it took less time than an undo may take
	late     *harness.Late

	labels context.Context // carries the label of the trial's goroutines
}

// atOnce has a place for each trial that runs, whichever test it is of.
var atOnce = make(chan struct{}, stands)

// turn waits until fewer than stands trials run. Who waits for a lease gives its place back meanwhile;
// over may be called more than once.
func turn() (over func()) {
	atOnce <- struct{}{}
	return sync.OnceFunc(func() { <-atOnce })
}

// testFaults runs the operation once, counting its calls, and then again for each of them
// with a fault in it, of one class at one call and of another at the next: nobody hears the
// call, nobody hears of its reply, the caller does not wait for it any more. A soak test has
// all the faults there are at every call.
func testFaults(t *testing.T, op operation) { testFaultsAtEvery(t, 1, op) }

// testFaultsAtEvery is testFaults at every nth call of a plain run, for operations that take long
// or whose calls others make, too.
func testFaultsAtEvery(t *testing.T, n int, op operation) {
	at := harness.Every(n)
	testPlan(t, op, func(k int, call string) []enginetest.Fault {
		if harness.Soaking() {
			return enginetest.Faults
		}
		if !at(k) {
			return nil
		}
		f := classes(call)
		if isRead(call) {
			f = f[1:]
		}
		if op.noContext {
			f = f[:len(f)-1]
		}
		return f[k/n%len(f):][:1]
	})
}

// testStallsAtEvery runs the operation with an engine that does not answer one call: every nth of a plain run.
func testStallsAtEvery(t *testing.T, n int, op operation) {
	at := harness.Every(n)
	testPlan(t, op, func(k int, _ string) []enginetest.Fault {
		if !at(k) {
			return nil
		}
		return []enginetest.Fault{enginetest.Stall}
	})
}

// classes are a fault of each class. A read that is refused, or whose reply is lost, is
// made again by package net/http and seen by nobody; one that is cut is not.
func classes(call string) []enginetest.Fault {
	vain := enginetest.LoseReply
	if isRead(call) {
		vain = enginetest.CutReply
	}
	return []enginetest.Fault{enginetest.RefuseBefore, vain, enginetest.Cancel}
}

func isRead(call string) bool {
	return strings.HasPrefix(call, "GET ") || strings.HasPrefix(call, "HEAD ")
}

// testPlan runs the operation once without a fault, and then with each fault of the plan.
func testPlan(t *testing.T, op operation, plan func(k int, call string) []enginetest.Fault) {
	t.Helper()
	clean, eng := harness.NewClient(t), harness.NewEngine(t)
	strangers := foreign(t)
	began := time.Now()
	strange := harness.StrayImages(t, eng)
	l := &harness.Late{}
	// The stand that was used last is used next: each may have a sandbox to make.
	var mu sync.Mutex
	var free, all []*stand
	take := func() *stand {
		mu.Lock()
		defer mu.Unlock()
		if n := len(free); n > 0 {
			s := free[n-1]
			free = free[:n-1]
			return s
		}
		s := &stand{clean: clean, eng: eng, proxy: enginetest.NewProxy(t), top: t, kept: keptName(t, clean, op.alters)}
		all = append(all, s)
		return s
	}
	give := func(s *stand) {
		mu.Lock()
		defer mu.Unlock()
		free = append(free, s)
	}
	var names []string // of the sandboxes of all trials
	try := func(k int, fault enginetest.Fault, retry bool) (calls []string) {
		defer turn()()
		s, name := take(), harness.UniqueName(t)
		defer give(s)
		mu.Lock()
		names = append(names, name, s.kept)
		mu.Unlock()
		t.Run(fmt.Sprintf("%02d %v", k, fault), func(t *testing.T) {
			x := &trial{T: t, stand: s, op: &op, k: k, fault: fault, retry: retry, name: name, late: l}
			calls = x.run()
		})
		return calls
	}
	sweepIfDue(t, eng)
	calls := try(0, enginetest.None, false)
	faults := planned(t, &op, calls, plan)
	retried := rand.IntN(min(retryEvery, len(faults)))
	var g errgroup.Group
	g.SetLimit(stands)
	if op.alters {
		g.SetLimit(min(stands, 1+len(faults)/trialsEach))
	}
	for i, f := range faults {
		retry := harness.Soaking() || i%retryEvery == retried
		g.Go(func() error { try(f.k, f.fault, retry); return nil })
	}
	g.Wait()
	l.Check(t, clean, eng)
	mine := func(container, of string) bool {
		ofOurs := func(prefix string) bool { return strings.HasPrefix(of, prefix) }
		return slices.ContainsFunc(names, ofOurs) || slices.ContainsFunc(all, func(s *stand) bool { return s.proxy.Made(container) })
	}
	harness.NoHelpers(t, eng, began, mine)
	noMarkers(t, eng, began, func(of string) bool { return mine(record.ContainerName(of), of) })
	harness.NoImages(t, eng, strange)
	strangers.Check(t)
	t.Logf("%d calls, %d trials in %v: %s", len(calls), len(faults), time.Since(began).Round(time.Second), strings.Join(calls, ", "))
}

// sweepIfDue sweeps in the turn of the run that counts calls, which would make more of them than
// the operation needs.
func sweepIfDue(t *testing.T, eng *engine.Engine) {
	t.Helper()
	due, err := claim.TrySweep(t.Context(), eng, record.NewNonce(), t.Name())
	if err != nil {
		t.Fatalf("ask for the sweep: %v", err)
	}
	if due {
		harness.Sweep(t)
	}
}

// A plannedFault is a fault in call k.
type plannedFault struct {
	k     int
	fault enginetest.Fault
}

// planned lists the faults of a plan for an operation that makes these calls.
func planned(t *testing.T, op *operation, calls []string, plan func(k int, call string) []enginetest.Fault) (faults []plannedFault) {
	t.Helper()
	if len(calls) == 0 {
		t.Fatalf("no calls were counted")
	}
	for k := 1; k <= len(calls)+spare; k++ {
		call := ""
		if k <= len(calls) {
			call = calls[k-1]
		}
		for _, fault := range plan(k, call) {
			if fault != enginetest.Cancel || !op.noContext {
				faults = append(faults, plannedFault{k, fault})
			}
		}
	}
	if len(faults) == 0 {
		t.Fatalf("the plan has no fault in any of %q", calls)
	}
	return faults
}

// run makes the trial and returns the engine calls of the operation.
func (x *trial) run() (calls []string) {
	if x.op.arrange != nil {
		x.op.arrange(x)
	}
	// Goroutines inherit the label, so what is left of this trial can be told from its
	// neighbours'.
	mark := x.Name()
	pprof.Do(context.Background(), pprof.Labels("trial", mark), func(ctx context.Context) {
		var err error
		x.labels = ctx
		machine.Forget(x.proxy.Host()) // each trial makes all calls
		if x.c, err = harness.Open(sandbox.WithHost(x.proxy.Host())); err != nil {
			x.Fatalf("NewClient: %v", err)
		}
		if x.op.open != nil {
			if err := x.op.open(x); err != nil {
				x.Fatalf("before the fault: %v", err)
			}
		}
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		bound := harness.CallBound
		if x.fault == enginetest.Stall {
			ctx, cancel = context.WithTimeout(ctx, patience)
			defer cancel()
			bound = patience + undoBound
		}
		// On a busy machine its time may be over before that call, and those of the undo are none of
		// the operation's.
		x.proxy.ArmUntil(ctx, x.k, x.fault, func() {
			if x.fault == enginetest.Cancel {
				cancel()
			}
		})
		began := time.Now()
		x.err = x.within(bound, mark, func() error { return x.op.act(ctx, x) })
		x.undone = time.Since(began) < store.UndoTimeout
		calls = x.proxy.Calls()
		x.classify()
		x.proxy.Disarm()
		if x.err == nil && x.op.done != nil {
			x.op.done(x)
		}
		if x.err != nil && x.op.failed != nil {
			x.op.failed(x)
		}
		if x.sb != nil {
			if err := x.sb.Detach(); err != nil {
				x.Errorf("Detach: %v", err)
			}
		}
		if x.pool != nil {
			x.closeErr = x.pool.Close()
		}
		if err := x.c.Close(); err != nil {
			x.Errorf("Client.Close: %v", err)
		}
	})
	if left := harness.LabelledGoroutines(mark, harness.GoneBound); left != "" {
		x.Errorf("goroutines are left:\n%s", left)
	}
	if x.op.after != nil {
		x.op.after(x)
	}
	return calls
}

// within fails the test when fn takes longer, and waits for it all the same.
func (x *trial) within(d time.Duration, mark string, fn func() error) error {
	x.Helper()
	result := make(chan error, 1)
	go func() { result <- fn() }()
	select {
	case err := <-result:
		return err
	case <-time.After(d):
		x.Errorf("it has not returned after %v; calls so far: %q; it is at\n%s", d, x.proxy.Calls(), harness.LabelledGoroutines(mark, 0))
		return <-result
	}
}

// classify checks that the error is of the class that the fault deserves.
func (x *trial) classify() {
	x.Helper()
	if x.err == nil {
		return
	}
	if x.fault == enginetest.Stall && !x.proxy.Fired() {
		return
	}
	if x.k == 0 || !x.proxy.Fired() {
		x.Errorf("without a fault: %v", x.err)
		return
	}
	want := sandbox.ErrEngineUnavailable
	switch x.fault {
	case enginetest.Cancel:
		want = context.Canceled
	case enginetest.Stall:
		want = context.DeadlineExceeded
	}
	if !errors.Is(x.err, want) {
		x.Errorf("%s: got %v, want %v", x.where(), x.err, want)
	}
	if want != sandbox.ErrEngineUnavailable && errors.Is(x.err, sandbox.ErrEngineUnavailable) {
		x.Errorf("%s: got %v; a caller that cancelled blames the engine", x.where(), x.err)
	}
}

// where names the call that failed.
func (x *trial) where() string {
	if calls := x.proxy.Calls(); 0 < x.k && x.k <= len(calls) {
		return fmt.Sprintf("%v at call %d, %s", x.fault, x.k, calls[x.k-1])
	}
	return "without a fault"
}

// nothing is gone for a trial. An undo that took all of its time leaves the rest to a sweep.
func (x *trial) nothing() {
	x.Helper()
	if x.err != nil && !x.undone {
		x.late.Add(x.name)
		return
	}
	if !harness.Gone(x, x.clean, x.eng, x.name) {
		x.Logf("%s; the operation returned %v; its calls: %q", x.where(), x.err, x.proxy.Calls())
	}
}

// noMarkers checks that no marker that this process made since then is left to expire, of those that are
// mine by the name of their sandbox. Those of others come and go, or are renewed.
func noMarkers(t *testing.T, eng *engine.Engine, since time.Time, mine func(of string) bool) {
	t.Helper()
	held := func() []record.Marker {
		volumes, err := eng.ListVolumes(t.Context(), record.Filter(record.Role, record.RolePending))
		if err != nil {
			t.Fatalf("list markers: %v", err)
		}
		return claim.Markers(volumes)
	}
	here := fmt.Sprintf("process %d on ", os.Getpid())
	left := slices.DeleteFunc(held(), func(m record.Marker) bool {
		return !strings.HasPrefix(m.Holder, here) || !mine(m.Name) || m.Until.Before(since.Add(claim.Lease-2*time.Second))
	})
	for ; len(left) > 0; time.Sleep(50 * time.Millisecond) {
		now := held()
		left = slices.DeleteFunc(left, func(m record.Marker) bool { return !slices.Contains(now, m) })
		for _, m := range left {
			if m.Expired(eng.Now()) {
				t.Errorf("the marker of %q is left", m.Name)
				return
			}
		}
	}
}

// look lists the trial's sandbox past the proxy.
func (x *trial) look() (info sandbox.Info, err error) {
	x.aside(func() { info, err = x.listed(x.name) })
	return info, err
}

// listed lists the sandbox of that name. An inspection would count the files of its workspace, too,
// for which it takes a connection or, without a session, a helper.
func (x *trial) listed(name string) (sandbox.Info, error) {
	ctx, cancel := context.WithTimeout(context.Background(), harness.CallBound)
	defer cancel()
	list, err := x.clean.List(ctx, sandbox.ListOptions{Prefix: name})
	if err != nil {
		return sandbox.Info{}, err
	}
	i := slices.IndexFunc(list, func(info sandbox.Info) bool { return info.Name == name })
	if i < 0 {
		return sandbox.Info{}, sandbox.ErrNotFound
	}
	return list[i], nil
}

// aside runs what is not the trial's own: its goroutines may stay.
func (x *trial) aside(fn func()) {
	pprof.Do(context.Background(), pprof.Labels("trial", ""), func(context.Context) { fn() })
	pprof.SetGoroutineLabels(x.labels)
}

// usable checks that the sandbox runs and a command in it does.
func (x *trial) usable() {
	x.Helper()
	st, err := x.look()
	if err != nil || st.State != sandbox.StateRunning {
		x.Errorf("%s: it returned nil and the sandbox is %q, %v", x.where(), st.State, err)
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), harness.CallBound)
	defer cancel()
	if err := x.sb.Command(ctx, "true").Run(); err != nil {
		x.Errorf("%s: it returned nil and a command fails: %v", x.where(), err)
	}
}

// deleted deletes the trial's sandbox and checks that nothing is left of it.
func (x *trial) deleted() {
	x.Helper()
	harness.RemoveNow(x.T, x.clean, x.name)
	x.nothing()
}

// creatable makes the sandbox that could not be made, if that is to be tried, and deletes
// it.
func (x *trial) creatable(opts ...sandbox.CreateOption) { x.makeable(opts, create) }

func (x *trial) makeable(opts []sandbox.CreateOption, act func(context.Context, *trial, []sandbox.CreateOption) (*sandbox.Sandbox, error)) {
	x.Helper()
	if !x.retry || x.err != nil && !x.undone {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), harness.CallBound)
	defer cancel()
	x.c = x.clean
	sb, err := act(ctx, x, opts)
	if err != nil {
		x.Errorf("after %s the same call: %v", x.where(), err)
		return
	}
	sb.Detach()
	x.deleted()
}

// keptIn has the sandbox that the stand's trials share in the state.
func (x *trial) keptIn(want sandbox.State) {
	x.Helper()
	x.name = x.kept
	if info, err := x.listed(x.kept); err == nil && info.State == want {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), harness.CallBound)
	defer cancel()
	sb, err := x.clean.GetOrCreate(ctx, x.kept, harness.Quick)
	if err != nil {
		x.Fatalf("the sandbox of the stand: %v", err)
	}
	defer sb.Detach()
	if want == sandbox.StateRunning {
		return
	}
	if is, err := sb.Stop(ctx); is != want || err != nil {
		x.Fatalf("the sandbox of the stand: got %q, %v, want %q", is, err, want)
	}
}

// creation is an operation that makes the sandbox with the options.
func creation(opts func(x *trial) []sandbox.CreateOption, act func(context.Context, *trial, []sandbox.CreateOption) (*sandbox.Sandbox, error)) operation {
	return operation{
		act: func(ctx context.Context, x *trial) (err error) {
			x.sb, err = act(ctx, x, opts(x))
			return err
		},
		done: func(x *trial) { x.usable() },
		failed: func(x *trial) {
			if x.sb != nil {
				x.Errorf("%s: a handle beside the error %v", x.where(), x.err)
			}
		},
		after: func(x *trial) {
			if x.err == nil {
				x.deleted()
				return
			}
			x.nothing()
			x.makeable(opts(x), act)
		},
	}
}

func create(ctx context.Context, x *trial, opts []sandbox.CreateOption) (*sandbox.Sandbox, error) {
	return x.c.Create(ctx, opts...)
}

func plain(x *trial) []sandbox.CreateOption {
	return []sandbox.CreateOption{sandbox.WithName(x.name), harness.Quick}
}

// unnamed is a sandbox without a name whose ID we know all the same.
func unnamed(x *trial) []sandbox.CreateOption {
	return []sandbox.CreateOption{sandbox.WithID(x.name), harness.Quick}
}

func rich(x *trial) []sandbox.CreateOption {
	return []sandbox.CreateOption{
		sandbox.WithName(x.name), harness.Quick, sandbox.WithCommand("sleep", "1000"),
		sandbox.WithTags(map[string]string{"k": "v"}), sandbox.WithEnv(map[string]string{"A": "b"}),
		sandbox.OnCreate(func(ctx context.Context, sb *sandbox.Sandbox) error {
			return sb.Command(ctx, "touch", "made").Run()
		}),
	}
}

func TestCreateSurvivesAFaultInAnyCall(t *testing.T) {
	testFaults(t, creation(plain, create))
}

func TestCreateOfAnUnnamedSandboxSurvivesAFaultInAnyCall(t *testing.T) {
	testFaultsAtEvery(t, 12, creation(unnamed, create))
}

// A fault in every call of a Create with a main process and an OnCreate that runs a command.
func TestCreateWithOnCreateSurvivesAFaultInAnyCallSoak(t *testing.T) {
	harness.Soak(t)
	testFaults(t, creation(rich, create))
}

func TestGetOrCreateOfAnAbsentSandboxSurvivesAFaultInAnyCall(t *testing.T) {
	testFaultsAtEvery(t, 12, creation(plain, func(ctx context.Context, x *trial, opts []sandbox.CreateOption) (*sandbox.Sandbox, error) {
		return x.c.GetOrCreate(ctx, x.name, opts...)
	}))
}

// again checks that the same call without a fault does it.
func again(op operation) operation {
	op.failed = func(x *trial) {
		if x.sb != nil && op.open == nil {
			x.Errorf("%s: a handle beside the error %v", x.where(), x.err)
		}
		ctx, cancel := context.WithTimeout(context.Background(), harness.CallBound)
		defer cancel()
		if err := op.act(ctx, x); err != nil {
			x.Errorf("after %s the same call: %v", x.where(), err)
			return
		}
		if op.done != nil {
			op.done(x)
		}
	}
	return op
}

// getting is an operation that returns the stand's sandbox, running.
func getting(from sandbox.State, act func(ctx context.Context, x *trial) (*sandbox.Sandbox, error)) operation {
	return again(operation{
		arrange: func(x *trial) { x.keptIn(from) },
		act: func(ctx context.Context, x *trial) (err error) {
			x.sb, err = act(ctx, x)
			return err
		},
		done: func(x *trial) { x.usable() },
	})
}

func get(ctx context.Context, x *trial) (*sandbox.Sandbox, error) { return x.c.Get(ctx, x.name) }

func getOrCreate(ctx context.Context, x *trial) (*sandbox.Sandbox, error) {
	return x.c.GetOrCreate(ctx, x.name, harness.Quick)
}

func TestGetOfAStoppedSandboxSurvivesAFaultInAnyCall(t *testing.T) {
	testFaultsAtEvery(t, 7, getting(sandbox.StateStopped, get))
}

func TestGetOfARunningSandboxSurvivesAFaultInAnyCall(t *testing.T) {
	testFaultsAtEvery(t, 2, getting(sandbox.StateRunning, get))
}

func TestGetOrCreateOfAStoppedSandboxSurvivesAFaultInAnyCall(t *testing.T) {
	testFaultsAtEvery(t, 9, getting(sandbox.StateStopped, getOrCreate))
}

func TestGetOrCreateOfARunningSandboxSurvivesAFaultInAnyCall(t *testing.T) {
	testFaultsAtEvery(t, 3, getting(sandbox.StateRunning, getOrCreate))
}

// handle opens the trial's sandbox without starting it.
func handle(x *trial) (err error) {
	x.sb, err = x.c.Get(context.Background(), x.name, sandbox.WithoutResume())
	return err
}

// is checks the state of the trial's sandbox.
func (x *trial) is(want sandbox.State) {
	x.Helper()
	st, err := x.look()
	if err != nil || st.State != want {
		x.Errorf("%s: it returned nil and the sandbox is %q, %v, want %q", x.where(), st.State, err, want)
	}
}

func TestStartSurvivesAFaultInAnyCall(t *testing.T) {
	testFaultsAtEvery(t, 6, again(operation{
		arrange: func(x *trial) { x.keptIn(sandbox.StateStopped) },
		open:    handle,
		act: func(ctx context.Context, x *trial) error {
			_, err := x.sb.Start(ctx)
			return err
		},
		done: func(x *trial) { x.usable() },
	}))
}

var stopping = again(operation{
	arrange: func(x *trial) { x.keptIn(sandbox.StateRunning) },
	open:    handle,
	act: func(ctx context.Context, x *trial) error {
		_, err := x.sb.Stop(ctx)
		return err
	},
	done: func(x *trial) { x.is(sandbox.StateStopped) },
})

func TestStopSurvivesAFaultInAnyCall(t *testing.T) { testFaults(t, stopping) }

func TestCloseOfAPersistentSandboxSurvivesAFaultInAnyCall(t *testing.T) {
	testFaultsAtEvery(t, 2, operation{
		arrange:   func(x *trial) { x.keptIn(sandbox.StateRunning) },
		open:      handle,
		act:       func(_ context.Context, x *trial) error { return x.sb.Close() },
		done:      func(x *trial) { x.is(sandbox.StateStopped) },
		noContext: true,
	})
}

// It waits for leases, beside other tests.
func TestCloseOfAnUnnamedSandboxSurvivesAFaultInAnyCall(t *testing.T) {
	t.Parallel()
	testFaultsAtEvery(t, 4, operation{
		open:      create1(unnamed),
		act:       func(_ context.Context, x *trial) error { return x.sb.Close() },
		noContext: true,
		after: func(x *trial) {
			if x.err == nil {
				x.nothing()
				x.creatable(unnamed(x)...)
			} else {
				x.late.Add(x.name) // nobody renews its lease any more
			}
		},
	})
}

func TestDetachSurvivesAFaultInAnyCall(t *testing.T) {
	testFaultsAtEvery(t, 3, operation{
		open: func(x *trial) error {
			err := create1(unnamed)(x)
			x.proxy.CloseAll() // a handle that is connected needs no call
			return err
		},
		act:       func(_ context.Context, x *trial) error { return x.sb.Detach() },
		noContext: true,
		done:      func(x *trial) { x.is(sandbox.StateRunning) },
		after:     func(x *trial) { x.deleted() },
	})
}

// create1 makes the trial's sandbox.
func create1(opts func(x *trial) []sandbox.CreateOption) func(x *trial) error {
	return func(x *trial) (err error) {
		x.sb, err = x.c.Create(context.Background(), opts(x)...)
		return err
	}
}

// deletion is an operation that deletes the trial's sandbox.
func deletion(preserve bool, del func(ctx context.Context, x *trial) (sandbox.DeleteReport, error)) operation {
	return operation{
		arrange: func(x *trial) {
			sb, err := x.clean.Create(context.Background(), plain(x)...)
			if err != nil {
				x.Fatalf("Create: %v", err)
			}
			sb.Detach()
		},
		act: func(ctx context.Context, x *trial) error {
			report, err := del(ctx, x)
			if want := map[bool]string{true: sandbox.VolumePreserved, false: sandbox.VolumeDeleted}[preserve]; err == nil &&
				(len(report.Volumes) != 1 || report.Volumes[0].Status != want) {
				x.Errorf("%s: the report is %q, want one volume %s", x.where(), report, want)
			}
			return err
		},
		done: func(x *trial) {
			if _, err := x.look(); !errors.Is(err, sandbox.ErrNotFound) {
				x.Errorf("%s: it returned nil and a look for the sandbox: %v, want ErrNotFound", x.where(), err)
			}
		},
		failed: func(x *trial) {
			x.aside(func() {
				if _, err := x.clean.Delete(context.Background(), x.name, sandbox.DeleteOptions{Volumes: !preserve}); err != nil && !errors.Is(err, sandbox.ErrNotFound) {
					x.Errorf("after %s the same Delete: %v", x.where(), err)
				}
			})
		},
		after: func(x *trial) {
			if preserve {
				// The workspace is what is to be left, and all that is.
				left := harness.Objects(x, x.eng, harness.Named(x.name))
				if len(left) != 1 || !strings.HasPrefix(left[0], "volume ") || strings.Contains(left[0], "pending") {
					x.Errorf("%s: left after a Delete that preserves volumes: %q", x.where(), left)
				}
				for _, o := range left {
					x.eng.RemoveVolume(context.Background(), strings.TrimPrefix(o, "volume "), false)
				}
			}
			x.nothing()
			x.creatable(plain(x)...)
		},
	}
}

func deletePreserving(ctx context.Context, x *trial) (sandbox.DeleteReport, error) {
	return x.c.Delete(ctx, x.name, sandbox.DeleteOptions{})
}

func deleteAll(ctx context.Context, x *trial) (sandbox.DeleteReport, error) {
	return x.c.Delete(ctx, x.name, sandbox.DeleteOptions{Volumes: true})
}

func TestDeleteThatPreservesVolumesSurvivesAFaultInAnyCall(t *testing.T) {
	testFaultsAtEvery(t, 7, deletion(true, deletePreserving))
}

func TestDeleteSurvivesAFaultInAnyCall(t *testing.T) {
	testFaults(t, deletion(false, deleteAll))
}

func TestDeleteOnAHandleSurvivesAFaultInAnyCallSoak(t *testing.T) {
	harness.Soak(t)
	op := deletion(false, func(ctx context.Context, x *trial) (sandbox.DeleteReport, error) {
		return x.sb.Delete(ctx, sandbox.DeleteOptions{Volumes: true})
	})
	op.open = handle
	testFaultsAtEvery(t, 2, op)
}

func TestListSurvivesAFaultInAnyCall(t *testing.T) {
	testFaultsAtEvery(t, 2, again(operation{
		arrange: func(x *trial) { x.keptIn(sandbox.StateRunning) },
		act: func(ctx context.Context, x *trial) error {
			list, err := x.c.List(ctx, sandbox.ListOptions{Prefix: x.name})
			if err == nil && (len(list) != 1 || list[0].Name != x.name || list[0].State != sandbox.StateRunning) {
				x.Errorf("%s: List = %+v", x.where(), list)
			}
			return err
		},
	}))
}

// An engine that does not answer holds a caller no longer than the
// caller's own deadline.
func TestCreateOnAStalledEngineEndsWithItsDeadline(t *testing.T) {
	t.Parallel()
	testStallsAtEvery(t, 9, creation(plain, create))
}

func TestGetOnAStalledEngineEndsWithItsDeadline(t *testing.T) {
	t.Parallel()
	testStallsAtEvery(t, 6, getting(sandbox.StateStopped, get))
}

func TestStopOnAStalledEngineEndsWithItsDeadline(t *testing.T) {
	t.Parallel()
	testStallsAtEvery(t, 2, stopping)
}
