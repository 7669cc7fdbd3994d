package sandbox

import (
	"context"
	"errors"
	"time"

	"github.com/seed-1a2d6d8f/sandbox/internal/errdefs"
	"github.com/seed-1a2d6d8f/sandbox/internal/lifecycle"
	"github.com/seed-1a2d6d8f/sandbox/internal/plan"
	"github.com/seed-1a2d6d8f/sandbox/internal/record"
	"github.com/seed-1a2d6d8f/sandbox/internal/store"
	"github.com/seed-1a2d6d8f/sandbox/internal/trace"
)

// A Sandbox is a handle on a sandbox: a named, isolated Linux environment in a Docker
// Engine. It is safe for concurrent use. Any number of handles, in any number of
// processes, may refer to the same sandbox.
//
// The caller that got the handle closes it: [Sandbox.Close] ends the session,
// [Sandbox.Detach] leaves it running.
type Sandbox struct {
	fileCalls
	h *lifecycle.Handle
}

// newSandbox wraps a handle. A Sandbox has no state of its own: two around one handle are
// interchangeable.
func newSandbox(h *lifecycle.Handle) *Sandbox {
	if h == nil {
		return nil
	}
	return &Sandbox{fileCalls: newFileCalls(h, h.Record().Settings.User), h: h}
}

// traced wraps a handle, and says in span which sandbox it is on.
func traced(span *trace.Span, h *lifecycle.Handle) *Sandbox {
	if h != nil {
		span.Set(h.Trace()...)
	}
	return newSandbox(h)
}

// ID returns the sandbox's ID.
func (s *Sandbox) ID() string { return s.h.Record().ID }

// Name returns the sandbox's name. Without [WithName] that is its ID.
func (s *Sandbox) Name() string { return s.name }

// String returns the name.
func (s *Sandbox) String() string { return s.Name() }

// Copied returns what was copied into the sandbox by the call that returned the handle, and what
// of it was left out: the files of a [Source], of directories in mode [RWCopy], and of the sandbox
// or snapshot that it was made of. Calls on the handle that start a session after an
// [Sandbox.Update], and [Sandbox.Rollback], add to it. Files that a fork shares with its snapshot
// are not counted. Paths are those in the sandbox. The log of the client's logger, and [Progress],
// have the first names at the time of the copy.
func (s *Sandbox) Copied() CopyReport { return reportOf(s.h.Copied()) }

// Create creates a sandbox and starts its session. It returns when the sandbox can be
// used. The caller closes the handle, see [Sandbox.Close]. If Create fails, or ctx ends
// during the call, nothing is left behind.
//
// Without options the sandbox is unnamed and not persistent, and has [DefaultImage], one
// CPU and 2048 MiB of memory. If the name is taken the error is [ErrExists].
func Create(ctx context.Context, opts ...CreateOption) (*Sandbox, error) {
	return defaultClient().Create(ctx, opts...)
}

// Create is [Create] on the client's engine.
func (c *Client) Create(ctx context.Context, opts ...CreateOption) (_ *Sandbox, err error) {
	s := c.settings()
	apply(opts, func(o CreateOption) { o.applyCreate(s) })
	ctx, span := trace.Start(ctx, "sandbox.create")
	defer span.End(&err)
	defer wrap(&err, "create", s.Name) // nobody knows a name that is made up
	if err := s.Complete(); err != nil {
		return nil, err
	}
	e, err := c.connect(ctx)
	if err != nil {
		return nil, err
	}
	o := s.request()
	defer o.Report.Silence()
	h, err := e.Create(ctx, o)
	return traced(span, h), err
}

// GetOrCreate returns the sandbox of that name and resumes it, or creates it. Of any
// number of concurrent callers in any number of processes, one creates the sandbox and
// calls OnCreate; the others wait and get the same sandbox. A [WithName] of another name is an
// [ErrInvalidArgument].
//
// If it exists with another network policy than one that is given, the error is [ErrExists] and
// names both: [Sandbox.Update] changes the policy. Other options that only apply to its creation are
// not applied; those that differ are logged, and reported as [Progress].
func GetOrCreate(ctx context.Context, name string, opts ...CreateOption) (*Sandbox, error) {
	return defaultClient().GetOrCreate(ctx, name, opts...)
}

// GetOrCreate is [GetOrCreate] on the client's engine.
func (c *Client) GetOrCreate(ctx context.Context, name string, opts ...CreateOption) (_ *Sandbox, err error) {
	ctx, span := trace.Start(ctx, "sandbox.get_or_create", trace.Name(name))
	defer span.End(&err)
	defer wrap(&err, "get or create", name)
	s := c.settings()
	apply(opts, func(o CreateOption) { o.applyCreate(s) })
	if s.Name != "" && s.Name != name {
		s.problem("WithName: %q is not %q, the name of this call", s.Name, name)
	}
	WithName(name).applyCreate(s)
	if err := s.Complete(); err != nil {
		return nil, err
	}
	e, err := c.connect(ctx)
	if err != nil {
		return nil, err
	}
	o := s.request()
	defer o.Report.Silence()
	h, err := e.GetOrCreate(ctx, o)
	return traced(span, h), err
}

// Get returns a handle on the sandbox with that name, or else that ID. It resumes a
// stopped sandbox, unless given [WithoutResume], and waits for one that is being created.
// If there is none the error is [ErrNotFound].
func Get(ctx context.Context, nameOrID string, opts ...GetOption) (*Sandbox, error) {
	return defaultClient().Get(ctx, nameOrID, opts...)
}

// Get is [Get] on the client's engine.
func (c *Client) Get(ctx context.Context, nameOrID string, opts ...GetOption) (_ *Sandbox, err error) {
	ctx, span := trace.Start(ctx, "sandbox.get", trace.Name(nameOrID))
	defer span.End(&err)
	defer wrap(&err, "get", nameOrID)
	if err := checkName(nameOrID); err != nil {
		return nil, err
	}
	s := c.settings()
	apply(opts, func(o GetOption) { o.applyGet(s) })
	if len(s.Problems) > 0 {
		return nil, errdefs.Classify(ErrInvalidArgument, errors.Join(s.Problems...))
	}
	o := s.request()
	defer o.Report.Silence()
	var h *lifecycle.Handle
	err = c.withSandbox(ctx, nameOrID, func(l *lifecycle.Client) (err error) {
		h, err = l.Get(ctx, nameOrID, lifecycle.GetOptions{OnResume: o.OnResume, WithoutResume: s.withoutResume, NeverResume: s.neverResume, Report: o.Report, Secrets: s.Secrets, Strict: true})
		return err
	})
	return traced(span, h), err
}

// Start starts a session if the sandbox has none, and returns [StateRunning]. A running
// session is not changed; one that is paused is unpaused, and its commands go on.
func (s *Sandbox) Start(ctx context.Context) (_ State, err error) {
	ctx, span := trace.Start(ctx, "sandbox.start", s.h.Trace()...)
	defer span.End(&err)
	defer wrap(&err, "start", s.Name())
	if err := s.h.Start(ctx); err != nil {
		return "", err
	}
	return StateRunning, nil
}

// Stop ends the session: every process gets SIGTERM, and SIGKILL if it has not exited
// after the stop timeout (30 s, see [WithStopTimeout]). The files are kept and the handle
// can still be used. Stopping a stopped sandbox is no error. If ctx ends first, the
// session ends nevertheless. A sandbox that is not persistent is removed one hour after
// it was stopped, unless its handle uses it again.
func (s *Sandbox) Stop(ctx context.Context) (_ State, err error) {
	ctx, span := trace.Start(ctx, "sandbox.stop", s.h.Trace()...)
	defer span.End(&err)
	defer wrap(&err, "stop", s.Name())
	if err := s.h.Stop(ctx); err != nil {
		return "", err
	}
	return StateStopped, nil
}

// Close ends the session, and removes the sandbox if it is not persistent. It takes no
// context, so that it can be deferred: it takes at most the stop timeout and 30 s, and what
// is left then is removed by a later [Create] or [List]. It is idempotent and safe for
// concurrent use; after [Sandbox.Delete], or if the sandbox is gone, it returns nil. A failure
// is returned and also logged, since defer drops it.
func (s *Sandbox) Close() error {
	return trace.Do(context.Background(), "sandbox.close", func(context.Context) error {
		return s.h.Close(func(err error) error { return fail("close", s.Name(), err) })
	}, s.h.Trace()...)
}

// Detach releases the handle and leaves the session running. A sandbox that is not
// persistent is then removed when its session ends. The handle can't be used afterwards.
// Detached commands continue.
func (s *Sandbox) Detach() error {
	return trace.Do(context.Background(), "sandbox.detach", func(context.Context) error {
		return fail("detach", s.Name(), s.h.Detach())
	}, s.h.Trace()...)
}

// ExtendTimeout prolongs the current session by d, at once and for every process, see
// [Status.ExpiresAt]. The timeout of later sessions does not change. A session without a
// timeout is not changed. d is positive. Without a session the error is [ErrNotRunning],
// and none is started. For a paused session the error is ErrNotRunning too, unless a fork
// or a snapshot pauses it: ExtendTimeout waits for that to end.
func (s *Sandbox) ExtendTimeout(ctx context.Context, d time.Duration) (err error) {
	ctx, span := trace.Start(ctx, "sandbox.extend_timeout", s.h.Trace()...)
	defer span.End(&err)
	defer wrap(&err, "extend timeout", s.Name())
	return s.h.Extend(ctx, d)
}

// Update changes the sandbox, for every process and permanently. What it can change, and
// when the change applies:
//
//	WithTags, WithoutTag       at once; WithTags replaces all tags
//	WithPersistent             at once
//	WithVCPUs, WithMemory      at once, in the running session, and in later ones
//	WithStopTimeout            at once for Stop and Close, otherwise from the next session
//	WithTimeout                from the next session; for this one see ExtendTimeout
//	WithNetworkPolicy          at once, in the running session, and in later ones
//	WithIdleTimeout            at once, in the running session, and in later ones
//	WithEnv, WithoutEnv        at once for commands, from the next session for the main
//	                           process and SSH; WithEnv adds to the environment
//	WithPorts, WithCommand     from the next session; replace the previous value
//	WithMounts, WithoutMount   from the next session; WithMounts replaces all mounts; with
//	                           no arguments it removes them
//
// WithVCPUs also sets the memory unless WithMemory is given, as in [Create]. If the session uses more
// than that, its kernel refuses it, which is an [ErrInvalidArgument], or kills processes. Commands of
// another handle get a new environment after that handle called Status, Start or Update,
// or if it was opened later. Labels contain the environment only encrypted, but whoever
// may inspect the container can read it.
//
// A sandbox that is made persistent no longer needs the handle that created it: Close of that
// handle keeps the files from now on, and its session goes on if the handle's program dies. If
// this program dies in between, the session may end, and the files stay. One that is made not
// persistent exists as long as this handle; without a session it is removed one hour after it
// was stopped, which may be at once. While the session is paused the error is [ErrNotRunning].
//
// Changed ports, mounts, main process or environment need a new container. Whoever starts
// the next session creates it, with the files of the old one; only the log and the old
// session's times and reason are lost. Engines that do not show a container's own files
// on their disk commit them instead: that takes about 5 s for a gigabyte, keeps times to
// the second and, of the extended attributes, only capabilities, and loses sockets.
// Directories in mode [RWCopy] are copied at that moment, by the process that starts the
// session; a copy that the sandbox already has and that is given again is kept. The
// volume of a removed mount is preserved. If a mount is unavailable the session does not
// start, and the sandbox stays as it was until another Update.
//
// A network policy other than [AllowAll] always takes effect: if the session can't be
// reached within 15 s or the deadline of ctx, because it is paused, is at its process limit
// or does not answer, Update records the policy, ends the session through the engine
// (SIGTERM, and SIGKILL a second later) and returns nil. The policy applies from the next
// session on. [Status.Reason] is then "network policy", and the client's logger gets a
// warning. If ctx is cancelled meanwhile the session goes on, and Update returns an error.
// [WithoutStop] disables that: then Update returns an error. A session that is paused for a
// fork or a snapshot is waited for.
//
// Concurrent updates are merged: of a setting that several change, the last one wins; all
// other changes apply. If Update fails nothing has changed, unless the error is
// [ErrEngineUnavailable] or the context's: then check [Sandbox.Status]. Update does not
// start a stopped sandbox.
func (s *Sandbox) Update(ctx context.Context, opts ...UpdateOption) (err error) {
	ctx, span := trace.Start(ctx, "sandbox.update", s.h.Trace()...)
	defer span.End(&err)
	defer wrap(&err, "update", s.Name())
	if err := s.h.CheckUsable(); err != nil {
		return err
	}
	set := settingsOn(s.h.Client())
	if err := set.update(opts); err != nil {
		return err
	}
	return s.h.Update(ctx, &set.Sandbox)
}

// CheckUpdate returns all that is wrong with the options for any sandbox, as [Sandbox.Update] does. It does
// not ask the engine.
func (c *Client) CheckUpdate(opts ...UpdateOption) (err error) {
	defer wrap(&err, "update", "")
	return c.settings().update(opts)
}

// update applies the options of an update.
func (s *settings) update(opts []UpdateOption) error {
	apply(opts, func(o UpdateOption) { o.applyUpdate(s) })
	return s.CheckUpdate()
}

// Delete removes a sandbox permanently: it stops the session gracefully, removes the
// container and frees the name. Volumes and snapshots are preserved unless the
// options say otherwise. The report lists each volume, also if there is an error. Of several concurrent
// calls one succeeds; the others wait for it and return [ErrNotFound]. In a swarm a deletion that
// can't reach the sandbox's node is [ErrEngineUnavailable] and is carried out later, as the error says.
func Delete(ctx context.Context, nameOrID string, o DeleteOptions) (DeleteReport, error) {
	return defaultClient().Delete(ctx, nameOrID, o)
}

// Delete is [Delete] on the client's engine.
func (c *Client) Delete(ctx context.Context, nameOrID string, o DeleteOptions) (report DeleteReport, err error) {
	ctx, span := trace.Start(ctx, "sandbox.delete", trace.Name(nameOrID))
	defer span.End(&err)
	defer wrap(&err, "delete", nameOrID)
	if err := checkName(nameOrID); err != nil {
		return DeleteReport{}, err
	}
	e, err := c.connect(ctx)
	if err != nil {
		return DeleteReport{}, err
	}
	err = e.Delete(ctx, nameOrID, record.Deletion(o), func(l *lifecycle.Client) error {
		rec, got, err := l.Store.AwaitCreated(ctx, nameOrID)
		if err != nil {
			return err
		}
		outcomes, err := l.Store.DeleteFound(ctx, rec, got, o.reclaim())
		report, err = o.finish(ctx, l, rec.ID, outcomes, err)
		return err
	})
	return report, err
}

// Delete removes the sandbox permanently, see [Delete]. Later calls on the handle return
// [ErrNotFound], except Close and Detach.
func (s *Sandbox) Delete(ctx context.Context, o DeleteOptions) (_ DeleteReport, err error) {
	ctx, span := trace.Start(ctx, "sandbox.delete", s.h.Trace()...)
	defer span.End(&err)
	defer wrap(&err, "delete", s.Name())
	outcomes, err := s.h.Delete(ctx, o.reclaim())
	if in := s.h.Client().Store.Cluster; in != nil && ctx.Err() == nil && errors.Is(store.Classify(err), ErrEngineUnavailable) {
		err = in.DeleteLater(ctx, s.h.Record(), record.Deletion(o), err)
	}
	return o.finish(ctx, s.h.Client(), s.ID(), outcomes, err)
}

// DeleteOptions say what [Delete] deletes beside the sandbox. The zero value keeps its volumes and
// snapshots.
type DeleteOptions struct {
	// Volumes deletes the workspace, the copies, the volumes that the image declares and the
	// attached volumes, except volumes that another sandbox mounts. So it does with copies, and
	// volumes that an image declares, whose mount an update took away: after an update that changed
	// the container it lists the engine's volumes. Otherwise they are preserved:
	// [WithID] adopts a preserved workspace and volumes that the image declares, and [WithMounts]
	// attaches any volume.
	Volumes bool
	// Snapshots deletes the sandbox's snapshots once the sandbox is gone. A snapshot whose files
	// volumes share stays in any case: [DeleteReport.Snapshots] says so, and it is no error. If a
	// snapshot can't be deleted the sandbox is gone nevertheless: [ListSnapshots] finds what is
	// left.
	Snapshots bool
}

func (o DeleteOptions) reclaim() store.Reclaim {
	if o.Volumes {
		return store.DropAll
	}
	return store.KeepVolumes
}

// finish deletes the snapshots of a sandbox if that is asked for and the sandbox is gone, and
// returns the report.
func (o DeleteOptions) finish(ctx context.Context, l *lifecycle.Client, id string, outcomes []store.Outcome, err error) (DeleteReport, error) {
	report := deleteReport(outcomes, nil)
	if err != nil || !o.Snapshots {
		return report, err
	}
	dropped, err := l.Store.DropSnapshotsOf(ctx, id)
	for _, d := range dropped {
		report.Snapshots = append(report.Snapshots, SnapshotOutcome{ID: d.Name, Status: d.Status, Reason: d.Reason})
	}
	return report, err
}

// A Pool has sandboxes that run already, and hands them over in milliseconds. It is safe for
// concurrent use. The caller closes it.
//
// What waits in a pool are ordinary unnamed sandboxes, which [List] lists and which need memory. They
// live as long as the program that has the pool: 30 s after its death their sessions end, and a sweep
// removes them.
type Pool struct {
	c    *Client
	opts []CreateOption
	p    *lifecycle.Pool
}

// maxPool bounds the size of a pool: more is a mistake, and the engine's machine would not take it.
const maxPool = 10_000

// NewPool returns a pool of size sandboxes with these options. It connects to the engine and returns;
// the pool fills in the background, and again after each [Pool.Create]. As many fills run at once as the
// engine has CPUs, and they wait while other calls of the client wait for [Limits].Creates. A fill that
// fails is repeated after 1 s, and twice that each time, up to a minute: see [Pool.Stats].
//
// The options prepare the sandboxes beforehand: a [Source], mounts, and [OnCreate], which is called for
// each fill. [WithName], [WithID], [WithPersistent] of true, [WithProgress] and a [Tarball] with a Reader are
// [ErrInvalidArgument]. ctx bounds this call only.
func NewPool(ctx context.Context, size int, opts ...CreateOption) (*Pool, error) {
	return defaultClient().NewPool(ctx, size, opts...)
}

// NewPool is [NewPool] on the client's engine. Close the pool before the client.
func (c *Client) NewPool(ctx context.Context, size int, opts ...CreateOption) (_ *Pool, err error) {
	ctx, span := trace.Start(ctx, "sandbox.new_pool")
	defer span.End(&err)
	defer wrap(&err, "new pool", "")
	if size < 1 || size > maxPool {
		return nil, errdefs.Invalid("a pool of %d sandboxes: use 1 to %d", size, maxPool)
	}
	p := &Pool{c: c, opts: append([]CreateOption{}, opts...)}
	s := p.settings()
	for _, o := range []struct {
		name  string
		given bool
	}{{"WithName", s.Name != ""}, {"WithID", s.ID != ""}, {"WithPersistent", s.Persistent != nil && *s.Persistent}, {"WithProgress", s.progress != nil}} {
		if o.given {
			s.problem("%s: it is for one sandbox, and these are the options of all sandboxes of a pool", o.name)
		}
	}
	if t, is := s.from.(Tarball); is && t.Reader != nil {
		s.problem("WithSource: a Reader can be read once, and a pool needs its source for each sandbox: use Path or URL")
	}
	if err := s.Complete(); err != nil {
		return nil, err
	}
	e, err := c.connect(ctx)
	if err != nil {
		return nil, err
	}
	p.p, err = lifecycle.NewPool(ctx, e.Own(), size, p.request, e.Create, func(err error) error { return fail("close", "", err) })
	if err != nil {
		return nil, err
	}
	return p, nil
}

// settings returns the settings of the pool's options.
func (p *Pool) settings() *settings {
	s := p.c.settings()
	apply(p.opts, func(o CreateOption) { o.applyCreate(s) })
	return s
}

// request returns what a fill creates.
func (p *Pool) request() (*lifecycle.CreateOptions, error) {
	s := p.settings()
	if err := s.Complete(); err != nil {
		return nil, err
	}
	return s.request(), nil
}

// Create returns a sandbox of the pool, with the given options in addition to the pool's. It is as if
// [Create] had made it with all of them: the caller closes the handle, and
// no other caller gets the sandbox. If none waits, Create creates it in the ordinary way.
//
// Without options the engine is not called. The options are applied as by [Sandbox.Update], in some
// milliseconds each, before Create returns. If one can't be applied Create fails, and the sandbox is
// removed: none is handed over half-changed. A sandbox whose session ended while it waited, or that does
// not answer, is removed as well, and Create takes the next.
//
// The timeouts of [WithTimeout] and [WithIdleTimeout], the pool's too, count from here. What differs
// from a new sandbox:
//   - [Info].CreatedAt, [Status].StartedAt and Uptime tell of the time in the pool, too.
//   - [OnCreate] of the pool's options ran before. Its files, detached commands and [Sandbox.Egress] are the
//     only ones from before.
//   - Its hostname is its ID, also if it gets a name, until a later session has a new container.
//   - The main process of [WithCommand] runs since before. It and SSH sessions do not have the
//     variables of a [WithEnv] given here; all commands do.
//
// With [WithName] the sandbox gets the name, and is persistent unless [WithPersistent] says otherwise. If
// another sandbox has the name the error is [ErrExists], and the one of the pool goes on to wait. Until
// Create returns other callers see a sandbox of that name that is being created; if the program dies
// meanwhile, the next sweep removes it. In a swarm, see [WithSwarm], a sandbox with a name is created in
// the ordinary way.
func (p *Pool) Create(ctx context.Context, opts ...PoolOption) (_ *Sandbox, err error) {
	given, all := p.c.settings(), p.settings()
	for _, s := range []*settings{given, all} {
		apply(opts, func(o PoolOption) { o.applyPool(s) })
	}
	name := all.Name
	ctx, span := trace.Start(ctx, "sandbox.pool.create")
	defer span.End(&err)
	defer wrap(&err, "create", all.Name)
	if err := given.CheckUpdate(); err != nil {
		return nil, err
	}
	if err := all.Complete(); err != nil {
		return nil, err
	}
	h, err := p.p.Create(ctx, name, changes(given, all), all.request())
	return traced(span, h), err
}

// changes returns what the options of a call, given, change of a sandbox of the pool. All are its
// settings then.
func changes(given, all *settings) *plan.Sandbox {
	set := &plan.Sandbox{
		Tags: all.Tags, Env: all.Env, VCPUs: all.VCPUs, Memory: all.Memory, Persistent: all.Persistent,
		Timeout: all.Timeout, StopTimeout: all.StopTimeout, Idle: all.Idle, Network: all.Network, Secrets: all.Secrets,
		Given: given.Given,
	}
	if set.Has(plan.CPUs | plan.Memory) {
		set.Given |= all.Given & (plan.CPUs | plan.Memory) // CPUs alone would also change the memory
	}
	set.Given &^= plan.Persistence
	if *set.Persistent { // one that waits is not
		set.Given |= plan.Persistence
	}
	return set
}

// PoolStats tell how full a [Pool] is, and what has become of its sandboxes.
type PoolStats struct {
	// Size is the pool's, Ready counts the sandboxes that wait in it and Filling those that are
	// being created for it.
	Size    int `json:"size"`
	Ready   int `json:"ready"`
	Filling int `json:"filling"`
	// HandedOver counts the sandboxes of [Pool.Create] that waited in the pool, and Created those
	// that it created in the ordinary way.
	HandedOver int `json:"handedOver"`
	Created    int `json:"created"`
	// Lost counts the sandboxes that ended while they waited.
	Lost int `json:"lost"`
	// Failed counts the fills that failed. LastError is the error of the last one, or nil.
	Failed    int   `json:"failed"`
	LastError error `json:"-"`
}

// Stats returns the pool's state, and its counters since NewPool.
func (p *Pool) Stats() PoolStats {
	s := p.p.Stats()
	return PoolStats{
		Size: p.p.Size(), Ready: s.Ready, Filling: s.Filling, HandedOver: s.HandedOver, Created: s.Created,
		Lost: s.Lost, Failed: s.Failed, LastError: fail("create", "", s.LastError),
	}
}

// Close ends the fills and removes the sandboxes that wait. Those that were handed over stay. It waits
// for hand-overs, and returns when nothing of the pool is left, or an error that joins what could not
// be removed: a later sweep removes that. It takes no context, as [Sandbox.Close], is idempotent and
// safe for concurrent use. Afterwards [Pool.Create] fails with [ErrClosed].
func (p *Pool) Close() error {
	return trace.Do(context.Background(), "sandbox.pool.close", func(context.Context) error { return p.p.Close() })
}
