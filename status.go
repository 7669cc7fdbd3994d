package sandbox

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"iter"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/seed-1a2d6d8f/sandbox/internal/bound"
	"github.com/seed-1a2d6d8f/sandbox/internal/cluster"
	"github.com/seed-1a2d6d8f/sandbox/internal/engine"
	"github.com/seed-1a2d6d8f/sandbox/internal/errdefs"
	"github.com/seed-1a2d6d8f/sandbox/internal/lifecycle"
	"github.com/seed-1a2d6d8f/sandbox/internal/machine"
	"github.com/seed-1a2d6d8f/sandbox/internal/plan"
	"github.com/seed-1a2d6d8f/sandbox/internal/record"
	"github.com/seed-1a2d6d8f/sandbox/internal/store"
	"github.com/seed-1a2d6d8f/sandbox/internal/trace"
)

// State is the state of a sandbox.
type State string

// The states. The engine's states map to them: created to StateCreating, restarting to
// StateRunning, exited and removing to StateStopped, dead to StateError.
const (
	StateCreating State = store.Creating // it is being created
	StateRunning  State = store.Running  // it has a session
	StatePaused   State = store.Paused   // its session is paused
	StateStopped  State = store.Stopped  // it has files and no session
	StateError    State = store.Failed   // the engine reports a failure

	// StateUnreachable is that of a sandbox on a node of a swarm that does not answer, in [List].
	// Its name, ID, location and time of creation are known, and nothing else.
	StateUnreachable State = "unreachable"
)

// Info describes a sandbox in [List].
type Info struct {
	ID        string    `json:"id"`
	Name      string    `json:"name"`
	State     State     `json:"status"`
	Image     string    `json:"image"`
	CreatedAt time.Time `json:"createdAt"`
	// Location is where the engine runs: "local", or its host. In a swarm it is the name of the node.
	Location string            `json:"location"`
	Tags     map[string]string `json:"tags,omitempty"`
	// Ports are the published ports ([WithPorts]) and their addresses in this session.
	// Nil without a session or ports.
	Ports map[uint16]netip.AddrPort `json:"ports,omitempty"`
	// Settings are the settings of the next session, as last changed by [Sandbox.Update]. Name, ID,
	// image, tags, network policy and environment are nil in it, because [Info] and [Status] have
	// them. In [List] the limits and the OCI runtime are nil, too: only the container has them, so
	// that a record never differs from what the engine enforces, and List inspects no container.
	// Elsewhere a limit that is nil is none, as on an engine that can't limit.
	Settings Settings `json:"settings"`
	// Pending names the settings that Update changed and that wait for the next session, sorted:
	// "command", "env" (commands have it), "mounts", "ports", "stopTimeout" (Stop and Close have it)
	// or "timeout". [List] does not know of the timeouts.
	Pending []string `json:"pending,omitempty"`
}

// Status describes one sandbox in detail.
type Status struct {
	Info
	// Source describes where the sandbox's first files came from, without secrets: "git
	// https://… at v1", "tarball …", "directory …", "snapshot …", "fork of …". It is
	// empty for an empty workspace.
	Source string `json:"source,omitempty"`
	// Reason says why the sandbox is not running: "stopped", "timeout", "idle timeout", "abandoned" (its
	// handle's process died, or could not renew its lease), "out of memory", "network changed" (by a
	// process from outside, such as one of "docker exec"), "network policy" (an
	// [Sandbox.Update] of the policy could not reach the session), or how PID 1 failed. It
	// is empty while the sandbox runs. A session that had to be killed at its end is "out of memory" as
	// well if the kernel had killed a command in it for memory: engines don't tell the two apart.
	Reason string `json:"reason,omitempty"`
	// StartedAt is when the current or the last session started. Zero if there was none.
	StartedAt time.Time `json:"startedAt,omitzero"`
	// EndedAt is when the last session ended, by the engine's clock. Zero while one runs, and if
	// there was none.
	EndedAt time.Time `json:"endedAt,omitzero"`
	// Uptime is the duration of the current session, by the engine's clock; 0 without
	// one. In JSON it is uptimeMs, in milliseconds.
	Uptime time.Duration `json:"-"`
	// ExpiresAt is when the timeout ends the session. Zero without one.
	ExpiresAt time.Time `json:"expiresAt,omitzero"`
	// IdleExpiresAt is when the idle timeout ends the session, unless something uses it
	// before. It is zero while something does, without a session, from [Inspect], and from a
	// handle that is not connected.
	IdleExpiresAt time.Time `json:"idleExpiresAt,omitzero"`
	// Workspace is the volume at /workspace. Its files are counted for the size. Its
	// Sandboxes are this one alone: [ListVolumes] knows of others that mount it.
	Workspace Volume `json:"workspace"`
	// Volumes are the volumes at the directories that the image declares. The Source of each is its
	// directory. As in Workspace, their Sandboxes are this one alone.
	Volumes []Volume `json:"volumes,omitempty"`
	// Usage is the session's current resource usage. Nil without a session, and on an engine
	// without cgroups.
	Usage *Usage `json:"usage"`
	// Network is the recorded network policy, without the values of its transforms: see
	// WithNetworkPolicy.
	Network NetworkPolicy `json:"network"`
	// Env are the names of the variables of [WithEnv], sorted. Their values are not shown.
	Env []string `json:"env,omitempty"`
	// Egress counts the decisions of the session's PID 1; [Sandbox.Egress] lists them. It
	// is nil without a session, from [Inspect], and from a handle that is not connected,
	// for example because it has run no command.
	Egress *EgressCount `json:"egress,omitempty"`
	// Copied is [Sandbox.Copied], if the status is from a handle that has copied anything.
	Copied *CopyReport `json:"copied,omitempty"`
	// LogsEndpoint is the path at which package sandboxhttp serves the sandbox's log:
	// /sandboxes/<id>/logs.
	LogsEndpoint string `json:"logsEndpoint"`
}

// statusJSON is a Status as it is in JSON.
type statusJSON struct {
	plainStatus
	UptimeMS int64 `json:"uptimeMs"`
}

type plainStatus Status

// MarshalJSON encodes the status with names in lower camel case.
func (s Status) MarshalJSON() ([]byte, error) {
	return json.Marshal(statusJSON{plainStatus(s), s.Uptime.Milliseconds()})
}

// UnmarshalJSON decodes what MarshalJSON has encoded.
func (s *Status) UnmarshalJSON(b []byte) error {
	var got statusJSON
	err := json.Unmarshal(b, &got)
	got.Uptime = time.Duration(got.UptimeMS) * time.Millisecond
	*s = Status(got.plainStatus)
	return err
}

// Usage is the resource usage of a session at one moment.
type Usage struct {
	// CPUPercent is the mean since the client measured the session before, if that is at most 30 s
	// ago, and otherwise over a tenth of a second: 100 is one busy CPU, 200 is two.
	CPUPercent float64 `json:"cpuPercent"`
	// MemoryBytes is the memory of processes and tmpfs, without the kernel's file cache,
	// and MemoryLimit its limit.
	MemoryBytes int64 `json:"memoryBytes"`
	MemoryLimit int64 `json:"memoryLimit"`
	// Processes counts processes and threads, including PID 1's own.
	Processes int `json:"processes"`
	// NetworkReceived and NetworkSent are bytes since the session started.
	NetworkReceived int64 `json:"networkReceived"`
	NetworkSent     int64 `json:"networkSent"`
}

// List lists the sandboxes on the engine, newest first, then by name. It takes two engine
// calls, whatever the number of sandboxes. Leftovers of crashed programs are removed in the
// background, see the package documentation.
func List(ctx context.Context, o ListOptions) ([]Info, error) {
	return defaultClient().List(ctx, o)
}

// List is [List] on the client's engine.
func (c *Client) List(ctx context.Context, o ListOptions) (_ []Info, err error) {
	ctx, span := trace.Start(ctx, "sandbox.list")
	defer span.End(&err)
	defer wrap(&err, "list", "")
	if err := o.check(); err != nil {
		return nil, err
	}
	infos, missing, err := eachEngine(ctx, c, o.list)
	if err != nil {
		return nil, err
	}
	unreachable, err := c.unreachable(ctx, o, missing)
	infos = append(infos, unreachable...)
	slices.SortFunc(infos, func(a, b Info) int {
		return cmp.Or(b.CreatedAt.Compare(a.CreatedAt), cmp.Compare(a.Name, b.Name), cmp.Compare(a.ID, b.ID))
	})
	return infos, err
}

// list lists the sandboxes of one engine.
func (o ListOptions) list(ctx context.Context, l *lifecycle.Client) (infos []Info, _ error) {
	err := o.each(ctx, l, func(i Info, _ engine.Container) { infos = append(infos, i) })
	l.Store.SweepInTurn()
	return infos, err
}

// each calls fn for each sandbox of one engine that o selects.
func (o ListOptions) each(ctx context.Context, l *lifecycle.Client, fn func(Info, engine.Container)) error {
	all, err := l.Store.List(ctx)
	if err != nil {
		return err
	}
	for _, got := range all.Containers {
		if !got.HasRecord || all.Abandoned(got.Record) {
			continue
		}
		i := infoOf(l, all.Revisions.Of(got.Record), got.Container)
		if all.Pending(got.Record) {
			i.State = StateCreating
		}
		if o.match(i) {
			fn(i, got.Container)
		}
	}
	return nil
}

// unreachable lists what is known of the sandboxes on nodes that did not answer. With a filter for tags,
// which nobody knows then, there is an error instead.
func (c *Client) unreachable(ctx context.Context, o ListOptions, missing []cluster.Missing) (infos []Info, err error) {
	if len(missing) == 0 {
		return nil, nil
	}
	if len(o.Tags) > 0 {
		return nil, cluster.Unanswered(missing)
	}
	e, err := c.connect(ctx)
	if err != nil {
		return nil, err
	}
	entries, err := e.Entries(ctx, missing)
	for _, en := range entries {
		i := Info{ID: en.ID, Name: en.Name, State: StateUnreachable, CreatedAt: en.CreatedAt, Location: en.Host}
		if o.match(i) {
			infos = append(infos, i)
		}
	}
	return infos, err
}

// ListOptions select what [List] lists. The zero value selects every sandbox.
type ListOptions struct {
	// States selects the sandboxes in one of these states; empty selects all.
	States []State
	// Tags selects the sandboxes that have all of these tags, with these values.
	Tags map[string]string
	// Prefix selects the sandboxes whose name begins with it.
	Prefix string
}

func (o ListOptions) check() error {
	for _, s := range o.States {
		switch s {
		case StateCreating, StateRunning, StatePaused, StateStopped, StateError, StateUnreachable:
		default:
			return errdefs.Invalid("state %q: use creating, running, paused, stopped, error or unreachable", s)
		}
	}
	return nil
}

func (o ListOptions) match(i Info) bool {
	if len(o.States) > 0 && !slices.Contains(o.States, i.State) || !strings.HasPrefix(i.Name, o.Prefix) {
		return false
	}
	for k, v := range o.Tags {
		if got, ok := i.Tags[k]; !ok || got != v {
			return false
		}
	}
	return true
}

// Inspect returns the status of a sandbox without resuming it.
func Inspect(ctx context.Context, nameOrID string) (Status, error) {
	return defaultClient().Inspect(ctx, nameOrID)
}

// Inspect is [Inspect] on the client's engine.
func (c *Client) Inspect(ctx context.Context, nameOrID string) (st Status, err error) {
	ctx, span := trace.Start(ctx, "sandbox.inspect", trace.Name(nameOrID))
	defer span.End(&err)
	defer wrap(&err, "inspect", nameOrID)
	if err := checkName(nameOrID); err != nil {
		return Status{}, err
	}
	err = c.withSandbox(ctx, nameOrID, func(l *lifecycle.Client) error {
		rec, got, err := l.Store.Find(ctx, nameOrID)
		if err != nil {
			return err
		}
		st, err = statusOf(ctx, l, rec, got, true)
		return err
	})
	return st, err
}

// Status returns the current status of the sandbox. It does not resume it. It takes a
// tenth of a second, to measure CPU usage, or longer if counting the workspace's files
// takes longer.
func (s *Sandbox) Status(ctx context.Context) (_ Status, err error) {
	ctx, span := trace.Start(ctx, "sandbox.status", s.h.Trace()...)
	defer span.End(&err)
	return s.status(ctx, true)
}

// Summary is [Sandbox.Status] without what takes time to measure: Usage is nil, and the sizes of
// volumes are [UnknownSize].
func (s *Sandbox) Summary(ctx context.Context) (_ Status, err error) {
	ctx, span := trace.Start(ctx, "sandbox.summary", s.h.Trace()...)
	defer span.End(&err)
	return s.status(ctx, false)
}

func (s *Sandbox) status(ctx context.Context, measure bool) (_ Status, err error) {
	defer wrap(&err, "status", s.Name())
	if err := s.h.CheckUsable(); err != nil {
		return Status{}, err
	}
	got, err := s.h.Current(ctx)
	if err != nil {
		return Status{}, err
	}
	rec, err := s.h.Refresh(ctx)
	if err != nil {
		return Status{}, err
	}
	st, err := statusOf(ctx, s.h.Client(), rec, got, measure)
	if copied := s.Copied(); copied.Files+copied.Directories+int64(len(copied.Skipped)) > 0 {
		st.Copied = &copied
	}
	if err == nil && got.State == engine.StateRunning {
		if r, known := s.h.Report(ctx); known {
			if r.Network != nil {
				st.Egress = &EgressCount{Allowed: r.Network.Allowed, Blocked: r.Network.Blocked}
			}
			if r.Idle != nil && r.Idle.Left > 0 {
				st.IdleExpiresAt = s.h.Client().Engine.Now().Add(min(r.Idle.Left, *st.Settings.IdleTimeout))
			}
		}
	}
	return st, err
}

func statusOf(ctx context.Context, l *lifecycle.Client, rec record.Sandbox, got engine.Container, measure bool) (Status, error) {
	// Counting files takes long, so it runs concurrently.
	var volume Volume
	var declared []Volume
	var counting sync.WaitGroup
	was := got
	counting.Go(func() { volume = workspace(ctx, l, rec, was, measure) })
	counting.Go(func() { declared = declaredVolumes(ctx, l, rec, measure) })
	var set *plan.Sandbox
	counting.Go(func() { set = inspectSettings(ctx, l, rec, was) })
	defer counting.Wait()
	var using *Usage
	if measure && got.HasSession() {
		u, err := l.Machine.UsageOf(ctx, got.ID)
		if err != nil {
			return Status{}, err
		}
		using = (*Usage)(u)
		if using == nil { // the session ended meanwhile
			if got, err = l.Engine.InspectContainer(ctx, got.ID); errors.Is(err, engine.ErrNotFound) {
				return Status{}, ErrNotFound
			} else if err != nil {
				return Status{}, err
			}
		}
	}
	counting.Wait()
	if ctx.Err() != nil {
		return Status{}, errdefs.Cancelled(ctx)
	}
	st := Status{
		Info: infoOf(l, rec, got), Source: rec.Settings.Source, StartedAt: got.StartedAt, Usage: using, Workspace: volume, Volumes: declared,
		LogsEndpoint: "/sandboxes/" + rec.ID + "/logs",
	}
	st.Settings, st.Env = settingsOf(set), slices.Sorted(maps.Keys(set.Env))
	if !got.HasSession() && !got.StartedAt.IsZero() {
		st.EndedAt = got.FinishedAt
	}
	if p, err := rec.Network().Parse(); err == nil {
		st.Network = networkPolicyOf(p)
	}
	switch st.State {
	case StateRunning, StatePaused:
		st.Uptime = max(0, l.Engine.Now().Sub(got.StartedAt))
		st.ExpiresAt = rec.ExpiresAt(got.StartedAt)
	case StateStopped:
		st.Reason = cmp.Or(rec.Reason(got.StartedAt), store.ReasonOf(got))
	case StateError:
		st.Reason = cmp.Or(got.Error, "the engine reports "+got.State)
	}
	return st, nil
}

func infoOf(l *lifecycle.Client, rec record.Sandbox, got engine.Container) Info {
	i := Info{
		ID: rec.ID, Name: rec.Name, State: stateOf(got.State), Image: cmp.Or(rec.Settings.Image, got.Image),
		CreatedAt: rec.CreatedAt, Location: l.Location, Tags: rec.Tags, Settings: settingsOf(plan.Recorded(rec)), Pending: rec.PendingChanges(got.StartedAt),
	}
	if i.CreatedAt.IsZero() {
		i.CreatedAt = got.CreatedAt
	}
	if i.State == StateCreating && rec.By != "" {
		i.State = StateStopped // a replacement that was not started yet
	}
	if len(got.Ports) > 0 {
		i.Ports = got.Ports
	}
	return i
}

func stateOf(container string) State { return State(store.StateOf(container)) }

// workspace describes the sandbox's workspace volume as far as that is possible.
func workspace(ctx context.Context, l *lifecycle.Client, rec record.Sandbox, got engine.Container, measure bool) Volume {
	vol, err := l.Engine.InspectVolume(ctx, record.WorkspaceName(rec.ID))
	if err != nil || !record.IsData(vol.Name, vol.Labels) {
		var unknown Volume
		unknown.setSize(machine.Size{Own: UnknownSize})
		return unknown
	}
	inside := func(m engine.MountPoint) bool { return strings.HasPrefix(m.Target, Workspace+"/") }
	var sizes map[string]machine.Size
	// From inside, files that are shared with a snapshot can't be told from others.
	if _, shares := vol.Overlay(); measure && got.State == engine.StateRunning && !shares && !slices.ContainsFunc(got.Mounts, inside) {
		if n, err := l.Machine.WorkspaceSize(ctx, got.ID, rec); err == nil {
			sizes = map[string]machine.Size{vol.Name: {Own: n}}
		}
	}
	if measure && sizes == nil {
		sizes = l.Machine.Sizes(ctx, []engine.Volume{vol})
	}
	v := newVolume(vol, sizes)
	v.Sandboxes, v.InUse = []string{rec.Name}, true
	return v
}

// declaredVolumes describes the volumes that the sandbox's image declares, as far as that is possible.
func declaredVolumes(ctx context.Context, l *lifecycle.Client, rec record.Sandbox, measure bool) (volumes []Volume) {
	var found []engine.Volume
	for _, m := range rec.Settings.Declared {
		vol, err := l.Engine.InspectVolume(ctx, m.Volume)
		if err == nil && record.IsData(vol.Name, vol.Labels) {
			found = append(found, vol)
		}
	}
	var sizes map[string]machine.Size
	if measure {
		sizes = l.Machine.Sizes(ctx, found)
	}
	for _, vol := range found {
		v := newVolume(vol, sizes)
		v.Sandboxes, v.InUse = []string{rec.Name}, true
		volumes = append(volumes, v)
	}
	return volumes
}

// inspectSettings returns the settings of the next session of a sandbox whose container was inspected. What can't be
// read is left out.
func inspectSettings(ctx context.Context, l *lifecycle.Client, rec record.Sandbox, got engine.Container) *plan.Sandbox {
	// The variables of the image are not of WithEnv.
	image, err := l.Engine.InspectImage(ctx, got.ImageID)
	p, e := plan.FromRecord(rec, got, image)
	if e != nil {
		p = plan.Recorded(rec)
	} else if err != nil {
		p.Env = nil
	}
	if err = errors.Join(err, e); err != nil && ctx.Err() == nil {
		l.Log.Warn("not all settings could be read", "sandbox", rec.Name, "error", err)
	}
	return p
}

// ListUsage returns what the sandboxes that o selects use now, by ID. It measures up to 256 sandboxes at
// the same time, a tenth of a second each if the client has not measured it in the last 30 s, and counts no
// files. Sandboxes without a session, those whose session ends meanwhile, and those of engines without
// cgroups are left out.
func ListUsage(ctx context.Context, o ListOptions) (map[string]Usage, error) {
	return defaultClient().ListUsage(ctx, o)
}

// ListUsage is [ListUsage] on the client's engine. In a swarm nodes that do not answer are left out.
func (c *Client) ListUsage(ctx context.Context, o ListOptions) (_ map[string]Usage, err error) {
	ctx, span := trace.Start(ctx, "sandbox.list_usage")
	defer span.End(&err)
	defer wrap(&err, "list usage", "")
	if err := o.check(); err != nil {
		return nil, err
	}
	each, _, err := eachEngine(ctx, c, o.usage)
	if err != nil {
		return nil, err
	}
	all := map[string]Usage{}
	for _, some := range each {
		maps.Copy(all, some)
	}
	return all, nil
}

// usage measures the sandboxes of one engine.
func (o ListOptions) usage(ctx context.Context, l *lifecycle.Client) ([]map[string]Usage, error) {
	containers := map[string]string{} // IDs of containers, by those of sandboxes
	err := o.each(ctx, l, func(i Info, got engine.Container) {
		if got.HasSession() {
			containers[i.ID] = got.ID
		}
	})
	if err != nil {
		return nil, err
	}
	measured, err := l.Machine.UsageOfEach(ctx, slices.Collect(maps.Values(containers)))
	if err != nil {
		return nil, err
	}
	all := map[string]Usage{}
	for id, container := range containers {
		if u, ok := measured[container]; ok {
			all[id] = Usage(u)
		}
	}
	return []map[string]Usage{all}, nil
}

// Defaults are what a client creates without options, and what it can create from.
type Defaults struct {
	// Settings are those of a sandbox with a name that is created without options.
	Settings Settings `json:"settings"`
	// Runtimes are the identifiers for [WithRuntime], with their images.
	Runtimes map[string]string `json:"runtimes"`
	// Images are the tags of the images that the engine has, sorted, without those of this package. In a
	// swarm they are those of the client's own engine.
	Images []string `json:"images"`
	// OCIRuntimes are the names for [WithOCIRuntime] that the engine knows, sorted.
	OCIRuntimes []string `json:"ociRuntimes"`
	// MaxPorts is how many ports a sandbox may publish, see [Limits].
	MaxPorts int `json:"maxPorts"`
}

// GetDefaults returns the defaults, for programs that ask people for settings. It takes two engine calls.
func GetDefaults(ctx context.Context) (Defaults, error) { return defaultClient().GetDefaults(ctx) }

// GetDefaults is [GetDefaults] of a client: with its limits and runtimes, and its engine's images.
func (c *Client) GetDefaults(ctx context.Context) (_ Defaults, err error) {
	ctx, span := trace.Start(ctx, "sandbox.get_defaults")
	defer span.End(&err)
	defer wrap(&err, "get defaults", "")
	l, err := c.ownEngine(ctx)
	if err != nil {
		return Defaults{}, err
	}
	images, err := l.Engine.ListImages(ctx)
	if err != nil {
		return Defaults{}, err
	}
	info, err := l.Engine.Info(ctx)
	if err != nil {
		return Defaults{}, err
	}
	p := &plan.Sandbox{Persistent: new(true), MaxPorts: c.limits.Ports, Runtimes: c.runtimes}
	if err := p.Complete(); err != nil {
		return Defaults{}, err
	}
	set := settingsOf(p)
	set.Image, set.Network = new(p.Image), new(AllowAll())
	d := Defaults{Settings: set, Runtimes: p.AllRuntimes(), Images: []string{}, OCIRuntimes: slices.Sorted(slices.Values(info.Runtimes)), MaxPorts: p.PortLimit()}
	for _, i := range images {
		for _, tag := range i.Tags {
			if !record.IsOwnImage(engine.Repository(tag)) {
				d.Images = append(d.Images, tag)
			}
		}
	}
	slices.Sort(d.Images)
	return d, nil
}

// EventKind says what happened to a sandbox.
type EventKind string

// The kinds of events.
const (
	EventCreated EventKind = "created" // it can be used; it is either running, and EventStarted follows, or stopped
	EventStarted EventKind = "started" // its session started
	EventStopped EventKind = "stopped" // its session ended
	EventDeleted EventKind = "deleted" // it is there no more
	EventDenied  EventKind = "denied"  // its network policy did not let it connect, see Event.Egress

	// EventSync is the first event, and the first after events may have been missed, because the
	// connection to an engine was lost: what List returns from now on, later events add to. Sandboxes
	// that were created, deleted, started or stopped meanwhile have their events, with the time at
	// which they were noticed; what was undone meanwhile has none.
	EventSync EventKind = "sync"
)

// Event is something that happened to a sandbox.
type Event struct {
	Kind EventKind `json:"event"`
	// Time is when it was noticed, by this machine's clock.
	Time time.Time `json:"time"`
	// ID, Name and Tags are the sandbox's. An EventSync has none.
	ID   string            `json:"id,omitempty"`
	Name string            `json:"name,omitempty"`
	Tags map[string]string `json:"tags,omitempty"`
	// Egress is what an EventDenied is about. Its Count is of the session so far.
	Egress *Egress `json:"egress,omitempty"`
}

// WatchOptions select events. The zero value selects those of all sandboxes but EventDenied.
type WatchOptions struct {
	ListOptions
	// Denied adds EventDenied. For it each running sandbox is asked for its connections every 5 s,
	// without resuming it. An idle timeout may count that as a use.
	Denied bool
}

const (
	watchRest    = 10 * time.Second       // between looks at an engine that reports no change
	watchPending = 500 * time.Millisecond // while a sandbox is being created
	watchRetry   = time.Second            // before a lost connection is made again
	watchDenied  = 5 * time.Second
)

// Watch returns what happens to the sandboxes of the client's engine from now on, beginning with an
// EventSync. States of [WatchOptions] are not used. It follows the engine's own events and connects again
// when they break off: then an EventSync says that some may have been missed. It lists the sandboxes after
// each of the engine's events, and every 10 s, for changes of which the engine has reported none. A change that is undone
// within a moment may have no events. Events of one sandbox are in order.
//
// The sequence ends when ctx does or the client is closed, with the error as its last value. Leaving
// the loop releases all resources. Ranging over it again watches again. A loop that is slow delays
// later events, and loses none but those that are undone meanwhile.
func (c *Client) Watch(ctx context.Context, o WatchOptions) iter.Seq2[Event, error] {
	return func(yield func(Event, error) bool) {
		var err error
		ctx, span := trace.Start(ctx, "sandbox.watch")
		defer span.End(&err) // also if yield panics
		if err := o.check(); err != nil {
			yield(Event{}, fail("watch", "", err))
			return
		}
		if len(o.States) > 0 {
			yield(Event{}, fail("watch", "", errdefs.Invalid("WatchOptions: States is for List")))
			return
		}
		ctx, cancel := context.WithCancel(ctx)
		w := &watcher{c: c, o: o, wake: make(chan struct{}, 1), following: map[*lifecycle.Client]bool{}, ended: map[string]bool{}, restarted: map[string]bool{}, denied: map[string]time.Time{}}
		defer w.work.Wait()
		defer cancel()
		err = w.run(ctx, func(e Event) bool { return yield(e, nil) })
		if errors.Is(err, errLeft) {
			err = nil
		} else if err != nil {
			yield(Event{}, fail("watch", "", err))
		}
	}
}

// Watch is [Client.Watch] with the default client.
func Watch(ctx context.Context, o WatchOptions) iter.Seq2[Event, error] {
	return defaultClient().Watch(ctx, o)
}

// errLeft: the caller has left the loop.
var errLeft = errors.New("left")

// A watcher compares what there is whenever an engine reports a change, so that an event is never about
// a container that is only part of a change, such as one that replaces another.
type watcher struct {
	c    *Client
	o    WatchOptions
	work sync.WaitGroup
	wake chan struct{}

	mu        sync.Mutex
	following map[*lifecycle.Client]bool
	ended     map[string]bool // the sandboxes whose session has ended, unless that was seen in a look
	restarted map[string]bool // those of them that have a new one
	missed    bool            // changes since the last look

	known  map[string]Info // by ID
	looked time.Time       // when connections were last asked for
	denied map[string]time.Time
}

func (w *watcher) run(ctx context.Context, yield func(Event) bool) error {
	for {
		if err := w.follow(ctx); err != nil {
			return err
		}
		w.mu.Lock()
		missed := w.missed
		w.missed = false
		w.mu.Unlock()
		infos, err := w.c.List(ctx, w.o.ListOptions)
		switch {
		case errors.Is(err, ErrClosed), ctx.Err() != nil, err != nil && w.known == nil:
			return errors.Join(err, context.Cause(ctx))
		case err != nil:
			w.lose()
		default:
			if !w.compare(infos, missed, yield) {
				return errLeft
			}
		}
		wait := watchRest
		if err != nil || slices.ContainsFunc(infos, func(i Info) bool { return i.State == StateCreating }) {
			wait = watchPending
		}
		if w.o.Denied {
			if !w.askDenied(ctx, infos, yield) {
				return errLeft
			}
			wait = min(wait, watchDenied)
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-w.wake:
		case <-time.After(wait):
		}
	}
}

// lose notes that changes may have been missed.
func (w *watcher) lose() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.missed = true
}

func (w *watcher) change(id string, e engine.Event) {
	w.mu.Lock()
	switch {
	case e.Ended:
		w.ended[id] = true
	case e.Started && w.ended[id]:
		w.restarted[id] = true
	}
	w.mu.Unlock()
	select {
	case w.wake <- struct{}{}:
	default: // it has been woken
	}
}

// hasRestarted reports whether a sandbox has got a new session without a look in between.
func (w *watcher) hasRestarted(id string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.restarted[id]
}

// noticed forgets the changes of a sandbox whose events are there.
func (w *watcher) noticed(id string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.ended, id)
	delete(w.restarted, id)
}

// follow follows the changes of engines that are new, and waits for these, so that no change is
// missed between them and the first look.
func (w *watcher) follow(ctx context.Context) error {
	clients, _, err := eachEngine(ctx, w.c, func(_ context.Context, l *lifecycle.Client) ([]*lifecycle.Client, error) {
		return []*lifecycle.Client{l}, nil
	})
	if err != nil && w.known == nil || errors.Is(err, ErrClosed) {
		return err
	}
	for _, l := range clients {
		w.mu.Lock()
		is := w.following[l]
		w.following[l] = true
		w.mu.Unlock()
		if is {
			continue
		}
		ready := make(chan struct{})
		w.work.Go(func() {
			var once sync.Once
			for ctx.Err() == nil {
				l.Store.Events(ctx, func() {
					first := false
					once.Do(func() { close(ready); first = true })
					if !first {
						w.change("", engine.Event{}) // a look, for what was missed
					}
				}, w.change)
				w.lose()
				once.Do(func() { close(ready) })
				bound.Sleep(ctx, watchRetry)
			}
		})
		select {
		case <-ready:
		case <-ctx.Done():
		}
	}
	return nil
}

// compare yields what has changed since the last look.
func (w *watcher) compare(infos []Info, missed bool, yield func(Event) bool) bool {
	now := map[string]Info{}
	first := w.known == nil
	if (first || missed) && !yield(Event{Kind: EventSync, Time: time.Now()}) {
		return false
	}
	send := func(i Info, kinds ...EventKind) bool {
		if len(kinds) > 0 {
			w.noticed(i.ID)
		}
		for _, kind := range kinds {
			if !yield(Event{Kind: kind, Time: time.Now(), ID: i.ID, Name: i.Name, Tags: maps.Clone(i.Tags)}) {
				return false
			}
		}
		return true
	}
	for _, i := range slices.Backward(infos) { // the oldest first
		was, had := w.known[i.ID]
		if i.State == StateCreating || i.State == StateUnreachable {
			if had {
				now[i.ID] = was
			}
			continue
		}
		now[i.ID] = i
		var kinds []EventKind
		switch up := hasSession(i); {
		case !had && up:
			kinds = []EventKind{EventCreated, EventStarted}
		case !had:
			kinds = []EventKind{EventCreated}
		case hasSession(was) && up && w.hasRestarted(i.ID):
			kinds = []EventKind{EventStopped, EventStarted}
		case hasSession(was) && !up:
			kinds = []EventKind{EventStopped}
		case !hasSession(was) && up:
			kinds = []EventKind{EventStarted}
		}
		if !first && !send(i, kinds...) {
			return false
		}
	}
	for id, was := range w.known {
		if _, still := now[id]; still {
			continue
		}
		kinds := []EventKind{EventDeleted}
		if hasSession(was) {
			kinds = []EventKind{EventStopped, EventDeleted}
		}
		delete(w.denied, id)
		if !send(was, kinds...) {
			return false
		}
	}
	w.known = now
	return true
}

func hasSession(i Info) bool { return i.State == StateRunning || i.State == StatePaused }

// askDenied yields the connections that policies did not allow since the last look.
func (w *watcher) askDenied(ctx context.Context, infos []Info, yield func(Event) bool) bool {
	if time.Since(w.looked) < watchDenied {
		return true
	}
	begin := w.looked.IsZero()
	w.looked = time.Now()
	for _, i := range infos {
		if i.State != StateRunning {
			continue
		}
		last, seen := w.denied[i.ID]
		for _, e := range w.egressOf(ctx, i.ID) {
			if e.Allowed || !e.Last.After(last) {
				continue
			}
			if e.Last.After(w.denied[i.ID]) {
				w.denied[i.ID] = e.Last
			}
			if begin && !seen { // from before
				continue
			}
			if !yield(Event{Kind: EventDenied, Time: time.Now(), ID: i.ID, Name: i.Name, Tags: maps.Clone(i.Tags), Egress: &e}) {
				return false
			}
		}
	}
	return true
}

// egressOf returns nothing for a sandbox that does not answer: it may have ended.
func (w *watcher) egressOf(ctx context.Context, id string) []Egress {
	ctx, cancel := context.WithTimeout(ctx, watchDenied)
	defer cancel()
	sb, err := w.c.Get(ctx, id, NeverResume())
	if err != nil {
		return nil
	}
	defer sb.Detach()
	list, _ := sb.Egress(ctx)
	return list
}
