package sandbox

import (
	"cmp"
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"

	"github.com/seed-1a2d6d8f/sandbox/internal/engine"
	"github.com/seed-1a2d6d8f/sandbox/internal/guest"
	"github.com/seed-1a2d6d8f/sandbox/internal/guest/wire"
	"github.com/seed-1a2d6d8f/sandbox/internal/record"
)

// A Sandbox is a handle on a sandbox: a named, isolated Linux environment that lives
// in a Docker Engine. It is safe for concurrent use, and any number of handles in any
// number of processes may be on the same sandbox.
//
// Whoever got the handle closes it: [Sandbox.Close] ends the session, [Sandbox.Detach]
// leaves it running.
type Sandbox struct {
	c        *Client
	eng      *engine.Engine
	rec      record.Sandbox
	onResume []hook
	runtime  string // the container's OCI runtime
	owner    bool   // the sandbox lives as long as this handle
	inlay    *inlay // what its first session has to be given before it begins, or nil

	mu        sync.Mutex
	made      record.Sandbox  // rec, with the settings of the present container
	rev       record.Revision // what has changed since, as far as this handle knows
	mounts    []Mount
	container string        // the engine's ID of it
	env       []string      // the container's whole environment
	link      *guest.Conn   // connection to the guest, while there is one
	secrets   []wire.Secret // what transforms set, in version secretsOf of the policy
	secretsOf int64
	tether    *tether       // renews the lease of a sandbox that is not persistent
	closed    bool          // for callers
	deleted   bool          // and why: by Delete on this handle
	released  bool          // for ourselves: nothing new may begin
	ending    chan struct{} // closed when Close has finished; nil before Close
	closeErr  error

	flights singleflight.Group // connecting and resuming, shared by who needs it
	work    sync.WaitGroup     // who is waiting for a flight
	servers fileServers
	life    context.Context // what flights run on; ends with the handle
	die     context.CancelFunc
}

// handle makes a Sandbox of what the engine showed.
func (c *Client) handle(eng *engine.Engine, rec record.Sandbox, got engine.Container) *Sandbox {
	s := &Sandbox{c: c, eng: eng, rec: rec, made: rec, rev: rec.Revision, mounts: mountsOf(rec, got), runtime: got.Runtime, container: got.ID, env: got.Env}
	s.life, s.die = context.WithCancel(context.Background())
	return s
}

// ID returns the sandbox's ID.
func (s *Sandbox) ID() string { return s.rec.ID }

// Name returns the sandbox's name; an unnamed one is named by its ID.
func (s *Sandbox) Name() string { return s.rec.Name }

// String returns the name.
func (s *Sandbox) String() string { return s.rec.Name }

// Create is [Create] on the client's engine.
func (c *Client) Create(ctx context.Context, opts ...CreateOption) (*Sandbox, error) {
	s := createSettings(opts)
	s.maxPorts = c.limits.Ports
	if err := s.check(); err != nil {
		return nil, fail("create", s.name, err)
	}
	sb, err := c.create(ctx, s)
	return sb, fail("create", s.name, err)
}

// errNameTaken is the ErrExists that a GetOrCreate waits for.
var errNameTaken = fmt.Errorf("%w", ErrExists)

func (c *Client) create(ctx context.Context, s *settings) (*Sandbox, error) {
	eng, err := c.engine(ctx)
	if err != nil {
		return nil, err
	}
	c.sweepIfDue(ctx, eng)
	place := &place{c: c, eng: eng}
	if err := place.enter(ctx); err != nil {
		return nil, err
	}
	defer place.leave()
	for asked := false; ; asked = true {
		if err := available(ctx, eng, s); err != nil {
			return nil, err
		}
		if err := checkAttached(ctx, eng, s.mounts); err != nil {
			return nil, err
		}
		if !asked {
			if err := s.confirmed(); err != nil {
				return nil, err
			}
		}
		sb, err := c.newBuild(eng, s, place).run(ctx)
		if errors.Is(err, errAnew) && ctx.Err() == nil {
			continue
		}
		var held *record.HeldError
		if !errors.As(err, &held) {
			return sb, err
		}
		switch m, found, err := record.Look(ctx, eng, s.name); {
		case err != nil:
			return nil, err
		case found && !m.Expired(eng.Now()):
			return nil, fmt.Errorf("%w: %w", errNameTaken, held)
		case found:
			if err := c.takeOver(ctx, eng, m); err != nil {
				return nil, err
			}
		}
		if err := pause(ctx, 20*time.Millisecond); err != nil {
			return nil, err
		}
	}
}

// available reports why the name or the ID can't be had, before anything is made.
func available(ctx context.Context, eng *engine.Engine, s *settings) error {
	if err := nameTaken(ctx, eng, s.name); err != nil {
		if !errors.Is(err, ErrExists) {
			return err
		}
		// A dead creator's container is not a sandbox: the claim will find its marker.
		if m, found, e := record.Look(ctx, eng, s.name); e != nil || !found || !m.Expired(eng.Now()) {
			return errors.Join(errNameTaken, e)
		}
	}
	if s.name == s.id {
		return nil
	}
	// A name that is another sandbox's ID, or an ID that is another's name, would hide it.
	if got, err := eng.InspectVolume(ctx, record.WorkspaceName(s.name)); err == nil && record.Is(got.Labels, record.RoleWorkspace) {
		users, err := eng.ListContainers(ctx, engine.Filter{Volume: got.Name})
		if err != nil {
			return err
		}
		for _, u := range users {
			if r, ok := record.Decode(u.Labels); ok && r.ID == s.name && r.Name != s.name {
				return fmt.Errorf("%w: %q is the ID of sandbox %q", ErrExists, s.name, r.Name)
			}
		}
	} else if err != nil && !errors.Is(err, engine.ErrNotFound) {
		return err
	}
	err := nameTaken(ctx, eng, s.id)
	if errors.Is(err, ErrExists) {
		return fmt.Errorf("%w: ID %q is another sandbox's name", ErrExists, s.id)
	}
	return err
}

// GetOrCreate is [GetOrCreate] on the client's engine.
func (c *Client) GetOrCreate(ctx context.Context, name string, opts ...CreateOption) (*Sandbox, error) {
	s := createSettings(append(opts[:len(opts):len(opts)], WithName(name)))
	s.maxPorts = c.limits.Ports
	if err := s.check(); err != nil {
		return nil, fail("get or create", name, err)
	}
	sb, err := c.getOrCreate(ctx, s)
	return sb, fail("get or create", name, err)
}

func (c *Client) getOrCreate(ctx context.Context, s *settings) (*Sandbox, error) {
	for {
		sb, err := c.get(ctx, s.name, s)
		if !errors.Is(err, ErrNotFound) {
			return sb, err
		}
		sb, err = c.create(ctx, s)
		if !errors.Is(err, errNameTaken) {
			return sb, err
		}
		// Another caller is the creator. Wait for it in get, then use what it made.
		if err := pause(ctx, 20*time.Millisecond); err != nil {
			return nil, err
		}
	}
}

// Get is [Get] on the client's engine.
func (c *Client) Get(ctx context.Context, nameOrID string, opts ...GetOption) (*Sandbox, error) {
	if err := checkName(nameOrID); err != nil {
		return nil, fail("get", nameOrID, err)
	}
	s := &settings{}
	for _, o := range opts {
		if o != nil {
			o.applyGet(s)
		}
	}
	if len(s.problems) > 0 {
		return nil, fail("get", nameOrID, classify(ErrInvalidArgument, errors.Join(s.problems...)))
	}
	sb, err := c.get(ctx, nameOrID, s)
	return sb, fail("get", nameOrID, err)
}

func (c *Client) get(ctx context.Context, nameOrID string, s *settings) (*Sandbox, error) {
	eng, err := c.engine(ctx)
	if err != nil {
		return nil, err
	}
	rec, got, err := c.findSettled(ctx, eng, nameOrID)
	if err != nil {
		return nil, err
	}
	sb := c.handle(eng, rec, got)
	sb.onResume = s.onResume
	if err := sb.supply(s.secrets, s.given&changeNetwork != 0); err != nil || s.withoutResume {
		if err != nil {
			sb.release()
			return nil, err
		}
		return sb, nil
	}
	report := &reporter{fn: s.progress}
	defer report.silence()
	if got.State != engine.StateRunning {
		report.report(Progress{Step: "start", Text: "resuming"})
		if err := sb.resume(ctx); err != nil {
			sb.release()
			return nil, err
		}
		return sb, nil
	}
	// Somebody else may have started it, or died while starting it.
	if err := sb.commence(ctx, rec, got, found); err != nil {
		sb.release()
		return nil, err
	}
	return sb, nil
}

// find returns the sandbox of that name, else of that ID, with what has changed since
// it was made.
func find(ctx context.Context, eng *engine.Engine, nameOrID string) (record.Sandbox, engine.Container, error) {
	rec, got, err := findMade(ctx, eng, nameOrID)
	if err != nil {
		return rec, got, err
	}
	rec, err = record.Latest(ctx, eng, rec)
	return rec, got, err
}

// findMade is find without what has changed. What a caller passes is never taken for
// a container of its own, and what is found must say that it is the one: Docker would
// also match the beginning of a container's ID.
func findMade(ctx context.Context, eng *engine.Engine, nameOrID string) (record.Sandbox, engine.Container, error) {
	inspect := func(name string, is func(record.Sandbox) bool) (record.Sandbox, engine.Container, error) {
		got, err := locate(ctx, eng, name)
		if err != nil {
			return record.Sandbox{}, got, err
		}
		rec, ok := isSandbox(got)
		if !ok || rec.Name != name || !is(rec) {
			return rec, got, engine.ErrNotFound
		}
		return rec, got, nil
	}
	rec, got, err := inspect(nameOrID, func(r record.Sandbox) bool { return r.Name == nameOrID })
	if !errors.Is(err, engine.ErrNotFound) {
		return rec, got, err
	}
	isID := func(r record.Sandbox) bool { return r.ID == nameOrID }
	// The workspace is named by the ID and tells the name its maker had.
	vol, err := eng.InspectVolume(ctx, record.WorkspaceName(nameOrID))
	if err == nil && record.Is(vol.Labels, record.RoleWorkspace) && record.ValidName(vol.Labels[record.Name]) {
		rec, got, err = inspect(vol.Labels[record.Name], isID)
		if !errors.Is(err, engine.ErrNotFound) {
			return rec, got, err
		}
	} else if err != nil && !errors.Is(err, engine.ErrNotFound) {
		return rec, got, err
	}
	// An adopted workspace tells the name of the sandbox before.
	list, err := eng.ListContainers(ctx, engine.Filter{Labels: []string{
		record.Filter(record.Managed, "true"), record.Filter(record.ID, nameOrID)}})
	if err != nil {
		return rec, got, err
	}
	for _, l := range list {
		if r, ok := record.Decode(l.Labels); ok && isID(r) && record.ValidName(r.Name) {
			rec, got, err = inspect(r.Name, isID)
			if !errors.Is(err, engine.ErrNotFound) {
				return rec, got, err
			}
		}
	}
	return record.Sandbox{}, engine.Container{}, ErrNotFound
}

// findSettled is find for a caller that needs the sandbox made: it waits while
// somebody makes it.
func (c *Client) findSettled(ctx context.Context, eng *engine.Engine, nameOrID string) (record.Sandbox, engine.Container, error) {
	wait := 20 * time.Millisecond
	for {
		rec, got, err := find(ctx, eng, nameOrID)
		name := rec.Name
		if errors.Is(err, ErrNotFound) {
			name = nameOrID // perhaps its container is still to come
		} else if err != nil {
			return rec, got, err
		}
		m, found, lookErr := record.Look(ctx, eng, name)
		var foreign *record.ForeignError
		switch {
		case errors.As(lookErr, &foreign):
			// Somebody's volume with our marker's name marks nothing.
			return rec, got, err
		case lookErr != nil:
			return rec, got, lookErr
		case !found, ctx.Value(building{}) == name:
			return rec, got, err
		case m.Expired(eng.Now()) && m.Of != "":
			if err := c.takeOver(ctx, eng, m); err != nil {
				return rec, got, err
			}
		case m.Expired(eng.Now()):
			return rec, got, fmt.Errorf("%w: its creation was abandoned by %s", ErrNotFound, m.Holder)
		}
		if err := pause(ctx, wait); err != nil {
			return rec, got, err
		}
		wait = min(2*wait, 250*time.Millisecond)
	}
}

// current looks at the sandbox's container as it is now. The container may have been
// replaced by another process; a sandbox with another ID is not this one.
func (s *Sandbox) current(ctx context.Context) (engine.Container, error) {
	got, err := locate(ctx, s.eng, s.rec.Name)
	if errors.Is(err, engine.ErrNotFound) {
		return got, ErrNotFound
	}
	if err != nil {
		return got, err
	}
	rec, ok := isSandbox(got)
	if !ok || rec.ID != s.rec.ID || got.State == engine.StateRemoving {
		return got, ErrNotFound
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.container != got.ID {
		s.made, s.mounts = rec, mountsOf(rec, got)
	}
	s.container, s.env = got.ID, got.Env
	return got, nil
}

// usable says why callers can't use the handle any more, or nil.
func (s *Sandbox) usable() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.deleted:
		return ErrNotFound
	case s.closed:
		return ErrClosed
	}
	return nil
}

// Start starts the sandbox's session if it has none, and returns [StateRunning]. A
// session that runs is left as it is.
func (s *Sandbox) Start(ctx context.Context) (State, error) {
	if err := s.usable(); err != nil {
		return "", fail("start", s.rec.Name, err)
	}
	got, err := s.current(ctx)
	if err != nil {
		return "", fail("start", s.rec.Name, err)
	}
	if got.State == engine.StateRunning {
		s.begin(nil)
		return StateRunning, nil
	}
	if err := s.resume(ctx); err != nil {
		return "", fail("start", s.rec.Name, err)
	}
	return StateRunning, nil
}

type resumingKey struct{}

// resume starts the session, once for concurrent callers and on a context of its own.
func (s *Sandbox) resume(ctx context.Context) error {
	if ctx.Value(resumingKey{}) == s {
		return nil // OnResume uses the sandbox: it runs already
	}
	_, err := s.share(ctx, "resume", remakeTimeout, func(ctx context.Context) (any, error) {
		s.dropLink()
		if err := s.upToDate(ctx); err != nil {
			return nil, err
		}
		ctx, cancel := context.WithTimeout(ctx, undoTimeout)
		defer cancel()
		return nil, s.resumeOnce(ctx)
	})
	return err
}

// upToDate has the container be as the sandbox's next session needs it.
func (s *Sandbox) upToDate(ctx context.Context) error {
	for {
		got, err := s.current(ctx)
		if err != nil {
			return err
		}
		rec, err := s.refresh(ctx)
		if err != nil {
			return err
		}
		if hasSession(got) || !isNext(got, rec) && !rec.Outdated() {
			return nil
		}
		err = s.c.remake(ctx, s.eng, rec, &reporter{})
		var held *record.HeldError
		if errors.As(err, &held) {
			err = s.c.settleHeld(ctx, s.eng, rec.Name)
		}
		if err != nil {
			return err
		}
	}
}

func (s *Sandbox) resumeOnce(ctx context.Context) error {
	wait := s.foresee(ctx)
	err := startContainer(ctx, s.eng, s.c, s.rec.Name)
	wait()
	if err != nil {
		return err
	}
	got, err := s.current(ctx)
	if err != nil {
		return err
	}
	if got.State != engine.StateRunning {
		return fmt.Errorf("%w: the session ended as it began: %s", ErrNotRunning, ended(got))
	}
	s.c.log.Info("session resumed", "sandbox", s.rec.Name)
	s.begin(nil)
	ctx = context.WithValue(ctx, resumingKey{}, s)
	rec, err := s.refresh(ctx)
	if err != nil {
		return err
	}
	if err := s.commence(ctx, rec, got, resumed); err != nil {
		return err
	}
	for _, fn := range s.onResume {
		if err := fn(ctx, s); err != nil {
			return fmt.Errorf("OnResume: %w", err)
		}
	}
	return nil
}

// busyTime is how long a start waits for volumes that are busy, see [engine.ErrBusy].
const busyTime = 10 * time.Second

// startContainer starts a container of ours. Should the guest's volume have been
// removed since it was made, it is filled again: that is the one thing a container
// can't start without and which is not its own.
func startContainer(ctx context.Context, eng *engine.Engine, c *Client, name string) error {
	got, err := locate(ctx, eng, name)
	if errors.Is(err, engine.ErrNotFound) {
		return ErrNotFound
	}
	if err != nil {
		return err
	}
	if got.State == engine.StatePaused {
		return c.unpause(ctx, eng, got)
	}
	for began := time.Now(); ; {
		err = eng.StartContainer(ctx, got.ID)
		if !errors.Is(err, engine.ErrBusy) || time.Since(began) > busyTime {
			break
		}
		if e := pause(ctx, stillThere); e != nil {
			return errors.Join(e, err)
		}
	}
	if err == nil || ctx.Err() != nil || errors.Is(err, engine.ErrUnavailable) {
		return err
	}
	if now, e := eng.InspectContainer(ctx, got.ID); errors.Is(e, engine.ErrNotFound) || e == nil && now.State == engine.StateRemoving {
		// Somebody is deleting it, or has put another in its place.
		if next, e := locate(ctx, eng, name); e == nil && next.ID != got.ID && next.Labels[record.Nonce] == got.Labels[record.Nonce] {
			return startContainer(ctx, eng, c, name)
		}
		return ErrNotFound
	}
	c.setGuest(guestVolume{})
	if _, e := c.ensureGuest(ctx, eng, &reporter{}); e != nil {
		return errors.Join(err, e)
	}
	if eng.StartContainer(ctx, got.ID) == nil {
		return nil
	}
	return fmt.Errorf("start container %s: %w", got.Name, err)
}

// ended says how a session ended.
func ended(got engine.Container) string {
	switch {
	case got.Error != "":
		return got.Error
	case got.OOMKilled:
		return "out of memory"
	}
	return fmt.Sprintf("exit code %d", got.ExitCode)
}

// begin is called when a session is known to run: a handle that owns the sandbox
// keeps its lease from then on; or from when after is closed, for which a lease has some
// seconds: a connection costs the engine a fifth of a start, and who makes many at once
// has no use for one before all are there.
func (s *Sandbox) begin(after <-chan struct{}) {
	if !s.owner {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.tether == nil && !s.closed {
		s.tether = newTether(s, after)
	}
}

// Stop ends the session: every process gets SIGTERM, and SIGKILL when it is still
// there after the stop timeout (30 s, see [WithStopTimeout]). Files stay, the handle
// stays usable. Stopping a stopped sandbox is no error. When ctx ends first the
// session still ends. A sandbox that is not persistent is kept for an hour after its
// handle stopped it, should the handle not be heard of again.
func (s *Sandbox) Stop(ctx context.Context) (State, error) {
	if err := s.usable(); err != nil {
		return "", fail("stop", s.rec.Name, err)
	}
	if err := s.stop(ctx); err != nil {
		return "", fail("stop", s.rec.Name, err)
	}
	return StateStopped, nil
}

func (s *Sandbox) stop(ctx context.Context) error {
	s.letGo()
	got, err := s.current(ctx)
	if err != nil {
		return err
	}
	rec, err := s.refresh(ctx)
	if err != nil {
		return err
	}
	if err := stopContainer(ctx, s.eng, got, rec); err != nil {
		return err
	}
	s.dropLink()
	return nil
}

// stopContainer ends the session of a container and returns when it has ended.
func stopContainer(ctx context.Context, eng *engine.Engine, got engine.Container, rec record.Sandbox) error {
	switch got.State {
	case engine.StateExited, engine.StateCreated, engine.StateDead:
		return nil
	}
	// The kernel drops a signal that reaches a PID 1 before it has a handler for it. So
	// a session that has only just begun, and does not end, is told again; one that has
	// heard does not mind.
	stopped, cancel := context.WithCancel(ctx)
	var again sync.WaitGroup
	if eng.Now().Sub(got.StartedAt) < startingTime {
		again.Go(func() {
			if pause(stopped, tellAgain) == nil {
				_ = eng.KillContainer(stopped, got.ID, "SIGTERM")
			}
		})
	}
	err := eng.StopContainer(ctx, got.ID, stopTimeout(rec))
	cancel()
	again.Wait()
	if errors.Is(err, engine.ErrNotFound) {
		return ErrNotFound
	}
	return err
}

const (
	// startingTime is how long PID 1 may take, on a busy engine, to be set up.
	startingTime = 5 * time.Second
	// tellAgain is when a session that is still there is told once more to end.
	tellAgain = 500 * time.Millisecond
)

func stopTimeout(rec record.Sandbox) time.Duration {
	return cmp.Or(rec.StopTimeout(), DefaultStopTimeout)
}

// closeMargin is what Close may take beyond the stop timeout.
const closeMargin = 15 * time.Second

// Close ends the session, and removes the sandbox when it is not persistent. It takes
// no context, so that it can be deferred: it is bounded by the stop timeout and 15 s.
// It is idempotent, may be called from many goroutines, and is no error after
// [Sandbox.Delete] or when the sandbox is gone. A failure is returned and logged,
// since defer drops it.
func (s *Sandbox) Close() error {
	s.mu.Lock()
	if s.ending != nil {
		ending := s.ending
		s.mu.Unlock()
		<-ending
		return s.closeErr
	}
	s.ending = make(chan struct{})
	already := s.closed // detached or deleted
	s.closed = true
	s.mu.Unlock()
	defer close(s.ending)

	s.release()
	if already {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), stopTimeout(s.known())+closeMargin)
	defer cancel()
	err := s.end(ctx)
	if err != nil && !errors.Is(err, ErrNotFound) {
		s.closeErr = fail("close", s.rec.Name, err)
		s.c.log.LogAttrs(ctx, slog.LevelError, "sandbox not closed", slog.String("sandbox", s.rec.Name), slog.Any("error", s.closeErr))
	}
	return s.closeErr
}

func (s *Sandbox) end(ctx context.Context) error {
	if s.rec.Persistent {
		return engine.Insist(ctx, func() error {
			got, err := s.current(ctx)
			if err != nil {
				return err
			}
			return stopContainer(ctx, s.eng, got, s.known())
		})
	}
	_, err := s.c.delete(ctx, s.eng, s.known(), dropOwn)
	return err
}

// Detach lets go of the handle and leaves the session running, also of a sandbox that
// is not persistent: it then ends with its session. The handle can't be used any more;
// detached commands go on.
func (s *Sandbox) Detach() error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil
	}
	s.closed = true
	s.mu.Unlock()

	var err error
	if s.owner {
		ctx, cancel := context.WithTimeout(context.Background(), closeMargin)
		defer cancel()
		s.letGo()
		err = engine.Insist(ctx, func() error { return s.control(ctx, wire.Control{Op: wire.OpRelease}) })
		if errors.Is(err, ErrNotRunning) || errors.Is(err, ErrNotFound) {
			err = nil // there is no session to leave running
		}
	}
	s.release()
	return fail("detach", s.rec.Name, err)
}

// release ends what the handle has running and returns when it has ended.
func (s *Sandbox) release() {
	s.letGo()
	s.mu.Lock()
	s.closed, s.released = true, true
	s.mu.Unlock()
	s.die()
	s.dropLink()
	s.work.Wait()
}

// letGo ends the renewal of the lease.
func (s *Sandbox) letGo() {
	s.mu.Lock()
	t := s.tether
	s.tether = nil
	s.mu.Unlock()
	if t != nil {
		t.stop()
	}
}

// Delete removes the sandbox for good, see [Delete]. What is called on the handle
// afterwards is [ErrNotFound], but for Close and Detach.
func (s *Sandbox) Delete(ctx context.Context, opts ...DeleteOption) (DeleteReport, error) {
	if err := s.usable(); err != nil {
		return DeleteReport{}, fail("delete", s.rec.Name, err)
	}
	s.letGo()
	report, err := s.c.delete(ctx, s.eng, s.known(), deleteSettings(opts).fate)
	if err == nil || errors.Is(err, ErrNotFound) {
		s.mu.Lock()
		s.deleted = true
		s.mu.Unlock()
		s.release()
	}
	return report, fail("delete", s.rec.Name, err)
}

// Delete is [Delete] on the client's engine.
func (c *Client) Delete(ctx context.Context, nameOrID string, opts ...DeleteOption) (DeleteReport, error) {
	if err := checkName(nameOrID); err != nil {
		return DeleteReport{}, fail("delete", nameOrID, err)
	}
	eng, err := c.engine(ctx)
	if err != nil {
		return DeleteReport{}, fail("delete", nameOrID, err)
	}
	rec, _, err := c.findSettled(ctx, eng, nameOrID)
	if err != nil {
		return DeleteReport{}, fail("delete", nameOrID, err)
	}
	report, err := c.delete(ctx, eng, rec, deleteSettings(opts).fate)
	return report, fail("delete", nameOrID, err)
}

// control sends one signed request to PID 1.
func (s *Sandbox) control(ctx context.Context, req wire.Control) error {
	_, err := s.ask(ctx, req)
	return err
}

func (s *Sandbox) ask(ctx context.Context, req wire.Control) (wire.Reply, error) {
	conn, err := s.connect(ctx)
	if err != nil {
		return wire.Reply{}, err
	}
	reply, err := s.askOn(ctx, conn, req)
	if errors.Is(err, guest.ErrConnectionLost) && ctx.Err() == nil {
		// It was broken before, and nobody had noticed. A session that still runs takes
		// another one.
		s.unlink(conn)
		again, e := s.linked(ctx)
		if errors.Is(e, errNoSession) {
			return reply, err
		}
		if e != nil {
			return reply, e
		}
		return s.askOn(ctx, again, req)
	}
	return reply, err
}

func (s *Sandbox) askOn(ctx context.Context, conn *guest.Conn, req wire.Control) (wire.Reply, error) {
	if len(s.rec.ControlKey) != ed25519.SeedSize {
		return wire.Reply{}, fmt.Errorf("%w: the sandbox was made without a control key", ErrUnsupported)
	}
	reply, err := conn.Control(ctx, ed25519.NewKeyFromSeed(s.rec.ControlKey), req)
	if err == nil && reply.Error != "" {
		err = fmt.Errorf("PID 1 refused %s: %s", req.Op, reply.Error)
	}
	return reply, err
}

// mainStarted waits until PID 1 knows whether the main process could be started.
func (s *Sandbox) mainStarted(ctx context.Context) error {
	reply, err := s.ask(ctx, wire.Control{Op: wire.OpStatus})
	if err != nil {
		return err
	}
	if reply.Main != nil && reply.Main.Start != nil {
		cmd := s.rec.Settings.Command
		return fmt.Errorf("main process: %w", startError(cmd[0], s.rec.Settings.Workdir, reply.Main.Start))
	}
	return nil
}

// A tether keeps the lease of a sandbox that lives as long as its handle.
type tether struct {
	cancel context.CancelFunc
	done   sync.WaitGroup
}

func newTether(s *Sandbox, after <-chan struct{}) *tether {
	ctx, cancel := context.WithCancel(context.Background())
	t := &tether{cancel: cancel}
	t.done.Go(func() {
		if after != nil {
			select {
			case <-after:
			case <-time.After(leaseRenewal):
			case <-ctx.Done():
			}
		}
		s.renew(ctx)
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.tether == t {
			s.tether = nil // the session ended; the next one gets its own
		}
	})
	return t
}

func (t *tether) stop() {
	t.cancel()
	t.done.Wait()
}

func (s *Sandbox) renew(ctx context.Context) {
	for wait := time.Duration(0); pause(ctx, wait) == nil; {
		try, cancel := context.WithTimeout(ctx, leaseRenewal)
		err := s.control(try, wire.Control{Op: wire.OpLease, Lease: leaseTime})
		cancel()
		switch {
		case err == nil:
			wait = leaseRenewal
		case errors.Is(err, ErrNotRunning) && s.frozen(ctx):
			wait = time.Second // PID 1 gives us a moment once it is thawed
		case errors.Is(err, ErrNotFound), errors.Is(err, ErrNotRunning), errors.Is(err, ErrUnsupported):
			return
		default:
			// Until the lease runs out there is time to try again.
			wait = 2 * time.Second
			if ctx.Err() == nil {
				s.c.log.Warn("lease not renewed", "sandbox", s.rec.Name, "error", err)
			}
		}
	}
}

// frozen reports whether there is a session and it is paused.
func (s *Sandbox) frozen(ctx context.Context) bool {
	got, err := s.current(ctx)
	return err == nil && got.State == engine.StatePaused
}
