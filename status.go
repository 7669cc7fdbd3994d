package sandbox

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/seed-1a2d6d8f/sandbox/internal/engine"
	"github.com/seed-1a2d6d8f/sandbox/internal/guest/wire"
	"github.com/seed-1a2d6d8f/sandbox/internal/record"
)

// State is what a sandbox is doing.
type State string

// The states. The engine's own words map to them: created is StateCreating,
// restarting StateRunning, exited and removing StateStopped, dead StateError.
const (
	StateCreating State = "creating" // somebody is making it
	StateRunning  State = "running"  // it has a session
	StatePaused   State = "paused"   // its session is frozen
	StateStopped  State = "stopped"  // it has files and no session
	StateError    State = "error"    // the engine gave up on it
)

// Running and its neighbours are the states under the names that read well in a filter.
const (
	Creating = StateCreating
	Running  = StateRunning
	Paused   = StatePaused
	Stopped  = StateStopped
)

func stateOf(s string) State {
	switch s {
	case engine.StateCreated:
		return StateCreating
	case engine.StateRunning, engine.StateRestarting:
		return StateRunning
	case engine.StatePaused:
		return StatePaused
	case engine.StateExited, engine.StateRemoving:
		return StateStopped
	}
	return StateError
}

// Info is what a list tells of a sandbox.
type Info struct {
	ID, Name  string
	State     State
	Image     string
	CreatedAt time.Time
	// Location is where the engine runs: "local", or its host.
	Location string
	Tags     map[string]string
}

// Status is what [Inspect] tells of a sandbox.
type Status struct {
	Info
	// Source says where the sandbox's first files came from, for people and without what is
	// secret: "git https://… at v1", "tarball …", "directory …", "snapshot …", "fork of …".
	// Empty is an empty workspace.
	Source string
	// Reason says why the sandbox is not running: "stopped", "timeout", "abandoned",
	// "out of memory", or how PID 1 failed. Empty while it runs.
	Reason string
	// StartedAt is when the present session began, or the last one. Zero if there
	// was none.
	StartedAt time.Time
	// Uptime is how long the session has been running, by the engine's clock; 0
	// without one.
	Uptime time.Duration
	// ExpiresAt is when the session's timeout ends it. Zero without one.
	ExpiresAt time.Time
	// Ports are the published ports ([WithPorts]) and where each is reached in this
	// session. Nil without a session or ports.
	Ports map[uint16]netip.AddrPort
	// Workspace is the volume at /workspace with the size of its files, which are
	// counted for it.
	Workspace Volume
	// Usage is what the session uses now. Nil without one.
	Usage *Usage
	// Network is the network policy, as recorded: see WithNetworkPolicy. What its transforms
	// set is not in it.
	Network NetworkPolicy
	// Egress counts what the session's PID 1 decided; [Sandbox.Egress] tells more. Nil
	// without a session, and unless it is asked of a handle that is connected, by a
	// command for example.
	Egress *EgressCount
	// LogsEndpoint is the path at which package sandboxhttp serves the sandbox's log:
	// /sandboxes/<id>/logs.
	LogsEndpoint string
}

// Usage is what a session uses at one moment.
type Usage struct {
	// CPUPercent is the share of one CPU over the last tenth of a second: 100 is one
	// CPU kept busy, 200 is two.
	CPUPercent float64
	// MemoryBytes is what processes and tmpfs take, without files cached by the kernel,
	// and MemoryLimit how much they may.
	MemoryBytes, MemoryLimit int64
	// Processes counts processes and threads, PID 1's own included.
	Processes int
	// NetworkReceived and NetworkSent are bytes since the session began.
	NetworkReceived, NetworkSent int64
}

// A ListOption narrows [List].
type ListOption func(*listSettings)

type listSettings struct {
	states   []State
	tags     map[string]string
	prefix   string
	problems []error
}

// StatusFilter keeps the sandboxes in one of the states.
func StatusFilter(states ...State) ListOption {
	return func(l *listSettings) {
		for _, s := range states {
			switch s {
			case StateCreating, StateRunning, StatePaused, StateStopped, StateError:
			default:
				l.problems = append(l.problems, invalid("state %q; there is creating, running, paused, stopped, error", s))
			}
		}
		l.states = append(l.states, states...)
	}
}

// TagFilter keeps the sandboxes with that tag. Several must all hold.
func TagFilter(key, value string) ListOption {
	return func(l *listSettings) {
		if l.tags == nil {
			l.tags = map[string]string{}
		}
		if was, ok := l.tags[key]; ok && was != value {
			l.problems = append(l.problems, invalid("tag %q is asked to be both %q and %q", key, was, value))
		}
		l.tags[key] = value
	}
}

// NamePrefix keeps the sandboxes whose name begins so.
func NamePrefix(prefix string) ListOption {
	return func(l *listSettings) { l.prefix = prefix }
}

func (l *listSettings) match(i Info) bool {
	if len(l.states) > 0 && !slices.Contains(l.states, i.State) || !strings.HasPrefix(i.Name, l.prefix) {
		return false
	}
	for k, v := range l.tags {
		if got, ok := i.Tags[k]; !ok || got != v {
			return false
		}
	}
	return true
}

// List is [List] on the client's engine.
func (c *Client) List(ctx context.Context, opts ...ListOption) ([]Info, error) {
	l := &listSettings{}
	for _, o := range opts {
		if o != nil {
			o(l)
		}
	}
	if len(l.problems) > 0 {
		return nil, fail("list", "", l.problems[0])
	}
	eng, err := c.engine(ctx)
	if err != nil {
		return nil, fail("list", "", err)
	}
	all, err := look(ctx, eng)
	if err != nil {
		return nil, fail("list", "", err)
	}
	gone := c.sweep(ctx, eng, all, nil)
	infos := []Info{}
	for _, got := range all.containers {
		rec, ok := record.Decode(got.Labels)
		// A container made from an image of a sandbox inherits its labels, not its name.
		if !ok || !record.OurName(got.Name) || gone[got.ID] {
			continue
		}
		i := info(eng, all.revisions.Of(rec), got)
		if all.pending(rec, eng.Now()) {
			i.State = StateCreating
		}
		if l.match(i) {
			infos = append(infos, i)
		}
	}
	slices.SortFunc(infos, func(a, b Info) int {
		return cmp.Or(b.CreatedAt.Compare(a.CreatedAt), cmp.Compare(a.Name, b.Name), cmp.Compare(a.ID, b.ID))
	})
	return infos, nil
}

func info(eng *engine.Engine, rec record.Sandbox, got engine.Container) Info {
	i := Info{
		ID: rec.ID, Name: rec.Name, State: stateOf(got.State), Image: cmp.Or(rec.Settings.Image, got.Image),
		CreatedAt: rec.CreatedAt, Location: eng.Location(), Tags: rec.Tags,
	}
	if i.CreatedAt.IsZero() {
		i.CreatedAt = got.CreatedAt
	}
	if i.State == StateCreating && rec.By != "" {
		i.State = StateStopped // it has the files of the container before
	}
	return i
}

// Inspect is [Inspect] on the client's engine.
func (c *Client) Inspect(ctx context.Context, nameOrID string) (Status, error) {
	if err := checkName(nameOrID); err != nil {
		return Status{}, fail("inspect", nameOrID, err)
	}
	eng, err := c.engine(ctx)
	if err != nil {
		return Status{}, fail("inspect", nameOrID, err)
	}
	rec, got, err := find(ctx, eng, nameOrID)
	if err != nil {
		return Status{}, fail("inspect", nameOrID, err)
	}
	st, err := c.status(ctx, eng, rec, got)
	return st, fail("inspect", nameOrID, err)
}

// Status tells of the sandbox as it is now. It does not resume it. It takes a tenth of
// a second, to see what the CPUs do, or as long as it takes to count the workspace's
// files.
func (s *Sandbox) Status(ctx context.Context) (Status, error) {
	if err := s.usable(); err != nil {
		return Status{}, fail("status", s.rec.Name, err)
	}
	got, err := s.current(ctx)
	if err != nil {
		return Status{}, fail("status", s.rec.Name, err)
	}
	rec, err := s.refresh(ctx)
	if err != nil {
		return Status{}, fail("status", s.rec.Name, err)
	}
	st, err := s.c.status(ctx, s.eng, rec, got)
	if err == nil && got.State == engine.StateRunning {
		st.Egress = s.decisions(ctx)
	}
	return st, fail("status", s.rec.Name, err)
}

func (c *Client) status(ctx context.Context, eng *engine.Engine, rec record.Sandbox, got engine.Container) (Status, error) {
	// The size takes as long as there are files, so it is counted meanwhile.
	var workspace Volume
	var counting sync.WaitGroup
	was := got
	counting.Go(func() { workspace = c.workspace(ctx, eng, rec, was) })
	defer counting.Wait()
	var using *Usage
	if hasSession(got) {
		var err error
		if using, err = usage(ctx, eng, got.ID); err != nil {
			return Status{}, err
		}
		if using == nil { // it ended while we looked
			if got, err = eng.InspectContainer(ctx, got.ID); errors.Is(err, engine.ErrNotFound) {
				return Status{}, ErrNotFound
			} else if err != nil {
				return Status{}, err
			}
		}
	}
	counting.Wait()
	if ctx.Err() != nil {
		return Status{}, cancelled(ctx)
	}
	st := Status{
		Info: info(eng, rec, got), Source: rec.Settings.Source, StartedAt: got.StartedAt, Usage: using, Workspace: workspace,
		LogsEndpoint: "/sandboxes/" + rec.ID + "/logs",
	}
	if p, err := policyOf(rec.Network()); err == nil {
		st.Network = networkPolicyOf(p)
	}
	switch st.State {
	case StateRunning, StatePaused:
		st.Ports = bound(rec, got)
		st.Uptime = max(0, eng.Now().Sub(got.StartedAt))
		st.ExpiresAt = rec.ExpiresAt(got.StartedAt)
	case StateStopped:
		st.Reason = reason(got)
	case StateError:
		st.Reason = cmp.Or(got.Error, "the engine reports "+got.State)
	}
	return st, nil
}

// workspace tells of the sandbox's workspace volume, as far as that can be told.
func (c *Client) workspace(ctx context.Context, eng *engine.Engine, rec record.Sandbox, got engine.Container) Volume {
	vol, err := eng.InspectVolume(ctx, record.WorkspaceName(rec.ID))
	if err != nil || !record.IsData(vol.Name, vol.Labels) {
		return Volume{SizeBytes: UnknownSize, Size: sizeText(UnknownSize)}
	}
	inside := func(m engine.MountPoint) bool { return strings.HasPrefix(m.Target, Workspace+"/") }
	var sizes map[string]int64
	if got.State == engine.StateRunning && !slices.ContainsFunc(got.Mounts, inside) {
		if n, err := countInside(ctx, eng, got.ID); err == nil {
			sizes = map[string]int64{vol.Name: n}
		}
	}
	if sizes == nil {
		sizes = c.sizes(ctx, eng, []engine.Volume{vol})
	}
	v := describe(vol, sizes)
	v.Sandboxes, v.InUse = []string{rec.Name}, true
	if users, err := usersOf(ctx, eng, vol.Name); err == nil {
		v.Sandboxes = users.names()
	}
	return v
}

// countInside adds up the workspace's files from within the session, which is cheaper
// than a helper of its own.
func countInside(ctx context.Context, eng *engine.Engine, container string) (int64, error) {
	stream, err := eng.Exec(ctx, container, engine.ExecSpec{Argv: []string{wire.Path, wire.VerbDu, Workspace}, User: "0:0", Dir: "/"})
	if err != nil {
		return 0, err
	}
	defer stream.Close()
	defer context.AfterFunc(ctx, func() { stream.Close() })()
	var got wire.Sizes
	if err := json.NewDecoder(io.LimitReader(stream, 1<<10)).Decode(&got); err != nil {
		return 0, err
	}
	if len(got.Bytes) != 1 || got.Bytes[0] < 0 {
		return 0, errors.New("the guest could not count")
	}
	return got.Bytes[0], nil
}

func hasSession(got engine.Container) bool {
	return got.State == engine.StateRunning || got.State == engine.StatePaused
}

// cpuSample is the time between the two looks that CPU use is told from.
const cpuSample = 100 * time.Millisecond

// usage returns nil when the container does not run.
func usage(ctx context.Context, eng *engine.Engine, id string) (*Usage, error) {
	look := func() (engine.Stats, bool, error) {
		got, ok, err := eng.Stats(ctx, id)
		// Between two states an engine refuses; what has ended has no usage.
		if errors.Is(err, engine.ErrNotFound) || errors.Is(err, engine.ErrConflict) {
			return got, false, nil
		}
		return got, ok, err
	}
	first, ok, err := look()
	if err != nil || !ok {
		return nil, err
	}
	if err := pause(ctx, cpuSample); err != nil {
		return nil, err
	}
	last, ok, err := look()
	if err != nil || !ok {
		return nil, err
	}
	u := &Usage{
		MemoryBytes: last.Memory, MemoryLimit: last.Limit, Processes: int(last.Tasks),
		NetworkReceived: last.Received, NetworkSent: last.Sent,
	}
	if passed := last.Read.Sub(first.Read); passed > 0 {
		u.CPUPercent = max(0, 100*float64(last.CPU-first.CPU)/float64(passed))
	}
	return u, nil
}

// reason says why a session ended, from what PID 1 left as its exit code.
func reason(got engine.Container) string {
	switch {
	case got.OOMKilled && got.ExitCode == 137:
		return "out of memory"
	case got.ExitCode == wire.CodeTimeout:
		return "timeout"
	case got.ExitCode == wire.CodeLease:
		return "abandoned"
	case got.ExitCode == wire.CodeStopped, got.ExitCode == 137 && got.Error == "":
		return "stopped"
	}
	return ended(got)
}
