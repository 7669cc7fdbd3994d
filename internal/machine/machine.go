// Package machine runs our program on the engine's machine: it places the guest, runs helper
// containers, starts sandboxes' containers, and caches facts about the machine.
package machine

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/seed-1a2d6d8f/sandbox/internal/archive"
	"github.com/seed-1a2d6d8f/sandbox/internal/bound"
	"github.com/seed-1a2d6d8f/sandbox/internal/engine"
	"github.com/seed-1a2d6d8f/sandbox/internal/errdefs"
	"github.com/seed-1a2d6d8f/sandbox/internal/guest/wire"
	"github.com/seed-1a2d6d8f/sandbox/internal/store"
	"github.com/seed-1a2d6d8f/sandbox/internal/trace"
)

// A Machine is the engine's machine, as one client uses it. It is safe for concurrent use.
type Machine struct {
	Store  *store.Store
	Engine *engine.Engine // that of Store
	Log    *slog.Logger

	dns         []netip.Addr // see Options
	authorities string
	slots       *slots

	placing   bound.Semaphore // held while the guest is placed
	measuring bound.Semaphore // bounds the helpers that measure volumes
	counting  bound.Semaphore // bounds the sessions that count their files
	sizes     sharedSizes     // what both found
	samples   samples         // of what containers use
	facts     *facts

	stopped        sync.Map    // stoppedKey: see CheckStopped
	policyEnforced sync.Map    // OCI runtimes that have enforced a network policy
	otherKernel    atomic.Bool // the engine is known to run under another kernel
	noOverlays     atomic.Bool // the engine is known to mount no overlays

	mu    sync.Mutex
	guest Guest // known to be on the engine
}

// facts are what helpers have found out about an engine and its images. It takes a container each, so
// the clients of a program share them.
type facts struct {
	host       cached[wire.Probe] // of the machine's own network
	bridge     cached[wire.Probe] // of the network that containers have
	abilities  sync.Map           // *cached[wire.Abilities] by OCI runtime
	layers     cached[wire.Layer]
	users      sync.Map // that images have, by the image's ID and the user
	imagePaths sync.Map // what is at paths of images, see view
}

// factsOf has the facts about each engine, by its Key.
var factsOf sync.Map

// Forget drops the facts about an engine, given by its Key: the next client has to find them out. Tests of that need it.
func Forget(engine string) { factsOf.Delete(engine) }

// Options are a client's settings.
type Options struct {
	DNS         []netip.Addr // servers for the sandboxes; none for those of the engine
	Authorities string       // certificates in PEM, beside the public ones
	Creates     int          // limit of concurrent creates; 0 follows the CPUs
}

// New returns the machine of an engine.
func New(s *store.Store, o Options) *Machine {
	known, _ := factsOf.LoadOrStore(s.Engine.Key(), &facts{host: newCached[wire.Probe](), bridge: newCached[wire.Probe](), layers: newCached[wire.Layer]()})
	m := &Machine{
		Store: s, Engine: s.Engine, Log: s.Log, dns: o.DNS, authorities: o.Authorities, slots: &slots{limit: o.Creates}, facts: known.(*facts),
		placing: bound.NewSemaphore(1), measuring: bound.NewSemaphore(measureConcurrency), counting: bound.NewSemaphore(countConcurrency),
	}
	s.Empty = m.empty
	return m
}

// DNS returns the servers that containers get, none for the engine's own.
func (m *Machine) DNS() (servers []string) {
	for _, a := range m.dns {
		servers = append(servers, a.String())
	}
	return servers
}

// SetPolicyEnforced records that the engine enforced a policy in a container of that OCI
// runtime. Until then a create connects to the sandbox instead of leaving that to the first
// command, so that the create fails where policies can't be enforced.
func (m *Machine) SetPolicyEnforced(runtime string) {
	m.policyEnforced.Store(runtime, true)
}

// PolicyEnforced reports whether SetPolicyEnforced was called for the runtime.
func (m *Machine) PolicyEnforced(runtime string) bool {
	_, enforced := m.policyEnforced.Load(runtime)
	return enforced
}

// Limits returns a [errdefs.Unsupported] if the engine does not enforce limits, with cpus above 0 of
// that many CPUs, too.
func Limits(ctx context.Context, e *engine.Engine, cpus float64) error {
	err := e.CheckLimits(ctx, cpus)
	if errors.Is(err, engine.ErrUnsupported) {
		err = errdefs.Classify(errdefs.Unsupported, err)
	}
	return err
}

// OtherKernel reports whether the engine is known to run under another kernel than this
// process, so that it does not see this machine's directories.
func (m *Machine) OtherKernel() bool { return m.otherKernel.Load() }

// SetOtherKernel records that the engine runs under another kernel.
func (m *Machine) SetOtherKernel() { m.otherKernel.Store(true) }

// Overlays reports whether the engine can mount overlays, as far as is known. Podman mounts one for
// one container at a time.
func (m *Machine) Overlays() bool { return !m.noOverlays.Load() && !m.Engine.Podman() }

// SharedFiles returns a [errdefs.Unsupported] if volumes can't be overlays, as far as is known.
func (m *Machine) SharedFiles() error {
	switch {
	case m.Engine.Podman():
		return fmt.Errorf("%w: Podman mounts an overlay for one container at a time", errdefs.Unsupported)
	case !m.Overlays():
		return fmt.Errorf("%w: the engine could not mount an overlay as a volume", errdefs.Unsupported)
	}
	return nil
}

// DisableOverlays records that the engine can't mount overlays.
func (m *Machine) DisableOverlays() { m.noOverlays.Store(true) }

// slots bounds what concurrent creates make the engine do at once.
type slots struct {
	limit   int
	waiting atomic.Int64 // callers that wait for one

	mu  sync.Mutex
	sem bound.Semaphore
}

// A Slot is a create's share of the engine: it is held while the engine creates, fills and starts
// containers, and not during what may wait for anything else, such as a registry, another host,
// or the caller's own functions, which may create sandboxes themselves.
//
// Its holder never waits for another slot. It is not safe for concurrent use.
type Slot struct {
	slots   *slots
	sem     bound.Semaphore
	report  *Reporter
	release func() // nil while it is not held
}

// Slot waits for a slot, and reports that if there is none now. The caller releases it.
func (m *Machine) Slot(ctx context.Context, report *Reporter) (*Slot, error) {
	sem, err := m.slots.semaphore(ctx, m.Engine)
	if err != nil {
		return nil, err
	}
	s := &Slot{slots: m.slots, sem: sem, report: report}
	return s, s.acquire(ctx)
}

// Slots returns how many slots there are.
func (m *Machine) Slots(ctx context.Context) (int, error) {
	sem, err := m.slots.semaphore(ctx, m.Engine)
	return cap(sem), err
}

// SlotsWaited reports whether calls wait for a slot.
func (m *Machine) SlotsWaited() bool { return m.slots.waiting.Load() > 0 }

func (s *Slot) acquire(ctx context.Context) error {
	return trace.Do(ctx, trace.Slot, func(ctx context.Context) (err error) {
		s.slots.waiting.Add(1)
		defer s.slots.waiting.Add(-1)
		if len(s.sem) == cap(s.sem) {
			s.report.Report(Progress{Step: "wait", Text: fmt.Sprintf("%d others are being created", cap(s.sem))})
		}
		s.release, err = s.sem.Acquire(ctx)
		return err
	})
}

// Release gives the slot back. It may be called more than once.
func (s *Slot) Release() {
	if s.release != nil {
		s.release()
		s.release = nil
	}
}

// Without calls fn without the slot, and then waits for it again.
func (s *Slot) Without(ctx context.Context, fn func() error) error {
	s.Release()
	if err := fn(); err != nil {
		return err
	}
	return s.acquire(ctx)
}

func (s *slots) semaphore(ctx context.Context, eng *engine.Engine) (bound.Semaphore, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.sem != nil {
		return s.sem, nil
	}
	if s.limit == 0 {
		info, err := eng.Info(ctx)
		if err != nil {
			return nil, err
		}
		s.limit = min(max(3*info.NCPU, 2), 16)
	}
	s.sem = bound.NewSemaphore(s.limit)
	return s.sem, nil
}

// Progress reports one step of a long call. The root package documents its fields.
type Progress struct {
	Step, Text     string
	Current, Total int64
	Files          int64
}

// A Reporter calls a progress function, one call at a time and never after Silence, and adds up
// what was copied. The zero Reporter calls nothing.
type Reporter struct {
	mu     sync.Mutex
	fn     func(Progress)
	copied archive.Report
}

// NewReporter returns a reporter that calls fn, which may be nil.
func NewReporter(fn func(Progress)) *Reporter { return &Reporter{fn: fn} }

// Branch returns a reporter for one of several things that are made at once: it calls the same
// function, and begins with what was copied so far.
func (r *Reporter) Branch() *Reporter {
	return &Reporter{fn: r.Report, copied: r.Copied()}
}

// Report reports one step.
func (r *Reporter) Report(p Progress) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.fn != nil {
		r.fn(p)
	}
}

// AddCopied adds what a copy transferred and left out. Paths are those in the sandbox.
func (r *Reporter) AddCopied(c archive.Report) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.copied.Files, r.copied.Dirs, r.copied.Bytes = r.copied.Files+c.Files, r.copied.Dirs+c.Dirs, r.copied.Bytes+c.Bytes
	r.copied.Append(c)
}

// Copied returns what was copied so far.
func (r *Reporter) Copied() archive.Report {
	r.mu.Lock()
	defer r.mu.Unlock()
	c := r.copied
	c.Skipped = slices.Clone(c.Skipped)
	return c
}

// Silence ends the calls of the function.
func (r *Reporter) Silence() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.fn = nil
}
