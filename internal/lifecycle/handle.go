package lifecycle

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/singleflight"

	"github.com/seed-1a2d6d8f/sandbox/internal/archive"
	"github.com/seed-1a2d6d8f/sandbox/internal/bound"
	"github.com/seed-1a2d6d8f/sandbox/internal/claim"
	"github.com/seed-1a2d6d8f/sandbox/internal/engine"
	"github.com/seed-1a2d6d8f/sandbox/internal/errdefs"
	"github.com/seed-1a2d6d8f/sandbox/internal/guest"
	"github.com/seed-1a2d6d8f/sandbox/internal/guest/wire"
	"github.com/seed-1a2d6d8f/sandbox/internal/machine"
	"github.com/seed-1a2d6d8f/sandbox/internal/plan"
	"github.com/seed-1a2d6d8f/sandbox/internal/record"
	"github.com/seed-1a2d6d8f/sandbox/internal/store"
	"github.com/seed-1a2d6d8f/sandbox/internal/trace"
)

// A Handle is one caller's handle on a sandbox. It is safe for concurrent use.
type Handle struct {
	c        *Client
	rec      record.Sandbox
	name     atomic.Pointer[string] // that the sandbox has got from a pool, in place of rec's
	onResume []Hook
	report   *machine.Reporter
	runtime  string // the container's OCI runtime
	first    bool   // the handle started the first session

	neverResume bool

	mu        sync.Mutex
	owner     bool            // the sandbox lives as long as this handle
	made      record.Sandbox  // rec, but with the settings of the present container
	rev       record.Revision // what has changed since, as far as this handle knows
	container string          // the engine's ID of it
	env       []string        // the container's whole environment
	conn      *guest.Conn     // to the guest, while there is one
	secrets   []plan.Secret   // what transforms set, in version secretsOf of the policy
	secretsOf int64
	deciding  *deciding     // set while the functions of secrets may be called
	lease     *lease        // of a sandbox that is not persistent
	leaseID   string        // of the lease that is kept, or was last
	resumed   *resumption   // the latest session that this handle started again
	starting  bool          // it is starting one now
	closed    bool          // for callers
	deleted   bool          // closed by Delete on this handle
	released  bool          // nothing may be started any more
	ending    chan struct{} // closed when Close has finished; nil before Close
	closeErr  error

	does    chan struct{}      // has a value for each call of these functions
	flights singleflight.Group // connects and resumes
	work    sync.WaitGroup     // callers that wait for a flight
	servers fileServers
	life    context.Context // of flights; ends with the handle
	endLife context.CancelFunc
}

// handle returns a handle on a sandbox with this container.
func (c *Client) handle(rec record.Sandbox, got engine.Container, onResume []Hook, report *machine.Reporter) *Handle {
	h := &Handle{c: c, rec: rec, report: report, onResume: onResume, made: rec, rev: rec.Revision, runtime: got.Runtime, container: got.ID, env: got.Env,
		does: make(chan struct{}, wire.MaxHooks)}
	h.life, h.endLife = context.WithCancel(context.Background())
	return h
}

// connection returns the connection to the guest that the handle has, or nil.
func (h *Handle) connection() *guest.Conn {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.conn
}

// containerID returns the engine's ID of the sandbox's container.
func (h *Handle) containerID() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.container
}

// Client returns the handle's client.
func (h *Handle) Client() *Client { return h.c }

// Record returns the sandbox's record as it was when the handle was opened, with the name that it
// has got from a pool since. It may be called while h.mu is held.
func (h *Handle) Record() record.Sandbox {
	rec := h.rec
	if name := h.name.Load(); name != nil {
		rec.Name = *name
	}
	return rec
}

// setName changes the name in the record. The container has it already.
func (h *Handle) setName(name string) {
	h.name.Store(&name)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.made.Name = name
}

// Trace returns the attributes of the sandbox for spans.
func (h *Handle) Trace() []trace.Attr {
	h.mu.Lock()
	defer h.mu.Unlock()
	return []trace.Attr{trace.Name(h.Record().Name), trace.ID(h.Record().ID), trace.Container(h.container), trace.Image(h.made.Settings.Image)}
}

// Copied returns what was copied into the sandbox by the call that opened the handle, and by calls
// on it that started sessions.
func (h *Handle) Copied() archive.Report { return h.report.Copied() }

// Mounts returns the mounts of the present container.
func (h *Handle) Mounts() []record.Mount { return slices.Clone(h.settings().Mounts) }

// Workdir returns the directory of commands that set none.
func (h *Handle) Workdir() string { return cmp.Or(h.Record().Settings.Workdir, record.Workspace) }

// Environ returns the container's environment without what updates removed of it since, and what
// they added.
func (h *Handle) Environ() (env []string, added map[string]string) {
	rec := h.known()
	added, removed, err := rec.NewEnv()
	if err != nil {
		h.c.Log.Warn("the environment is not as it was updated", "sandbox", rec.Name, "error", err)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(h.env), func(kv string) bool {
		k, _, _ := strings.Cut(kv, "=")
		return slices.Contains(removed, k)
	}), added
}

// known returns the sandbox's record with the changes that the handle has seen.
func (h *Handle) known() record.Sandbox {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.made.With(h.rev)
}

// settings returns those of the sandbox's present container.
func (h *Handle) settings() record.SandboxSettings {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.made.Settings
}

// setRevision records a revision that was read or made while the handle had the revision was. Another
// goroutine may have recorded a later one. Lower numbers replace it only if all revisions were
// removed, after which they begin anew.
func (h *Handle) setRevision(was, now record.Revision) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if now.N >= h.rev.N || now.N < was.N && was.N == h.rev.N {
		h.rev = now
	}
}

// Refresh returns the sandbox's record with all changes.
func (h *Handle) Refresh(ctx context.Context) (record.Sandbox, error) {
	was := h.known()
	rec, err := claim.Latest(ctx, h.c.Engine, was)
	if err != nil {
		return rec, err
	}
	h.setRevision(was.Revision, rec.Revision)
	return rec.With(h.known().Revision), nil
}

// revise changes the sandbox's record.
func (h *Handle) revise(ctx context.Context, rec record.Sandbox, change func(*record.Changes) bool) error {
	// Finished, so that after the end of ctx it is known whether the record was changed.
	now, err := bound.FinishCall(ctx, func(ctx context.Context) (record.Sandbox, error) {
		return claim.Revise(ctx, h.c.Engine, rec, change)
	})
	if err != nil {
		return fmt.Errorf("change the record: %w", err)
	}
	h.setRevision(rec.Revision, now.Revision)
	h.c.Store.SweepInTurn() // also removes revisions that nobody needs any more
	return nil
}

// Current returns the sandbox's present container, which another process may have replaced. A
// sandbox with another ID is another one: the error is errdefs.NotFound.
func (h *Handle) Current(ctx context.Context) (engine.Container, error) {
	got, err := h.c.Store.Locate(ctx, h.Record().Name)
	if errors.Is(err, engine.ErrNotFound) {
		return got, h.c.Store.Gone(ctx, h.Record())
	}
	if err != nil {
		return got, err
	}
	rec, ok := store.SandboxOf(got)
	if !ok || rec.ID != h.Record().ID || got.State == engine.StateRemoving {
		return got, errdefs.NotFound
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.container != got.ID {
		h.made = rec
	}
	h.container, h.env = got.ID, got.Env
	return got, nil
}

// awaitUnpaused returns the present container once nobody copies the sandbox. It may still be
// paused by somebody else.
func (h *Handle) awaitUnpaused(ctx context.Context) (engine.Container, error) {
	got, err := h.Current(ctx)
	if err != nil || got.State != engine.StatePaused {
		return got, err
	}
	if err := h.c.Store.AwaitUnpause(ctx, h.Record().Name); err != nil {
		return got, err
	}
	return h.Current(ctx)
}

// awaitRunning is awaitUnpaused for a call that needs a running session.
func (h *Handle) awaitRunning(ctx context.Context) (engine.Container, error) {
	got, err := h.awaitUnpaused(ctx)
	if err == nil && got.State != engine.StateRunning {
		err = fmt.Errorf("%w: it is %s", errdefs.NotRunning, store.StateOf(got.State))
	}
	return got, err
}

// CheckUsable returns why the caller can't use the handle any more, or nil.
func (h *Handle) CheckUsable() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case h.deleted:
		return errdefs.NotFound
	case h.closed:
		return errdefs.Closed
	}
	return nil
}

// release ends everything that the handle runs, and waits for that.
func (h *Handle) release() {
	h.endAll()
	h.work.Wait()
}

// releaseFor is release, but waits for calls that revert what they did no longer than d.
func (h *Handle) releaseFor(d time.Duration) {
	h.endAll()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		h.work.Wait()
	}()
	select {
	case <-ended:
	case <-time.After(d):
	}
}

func (h *Handle) endAll() {
	h.stopLease()
	h.mu.Lock()
	h.closed, h.released = true, true
	h.mu.Unlock()
	h.endLife()
	h.dropConn()
}

// stopLease ends the renewal of the lease.
func (h *Handle) stopLease() {
	h.mu.Lock()
	l := h.lease
	h.lease = nil
	h.mu.Unlock()
	if l != nil {
		l.stop()
	}
}
