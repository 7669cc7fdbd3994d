package sandbox

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	"github.com/seed-1a2d6d8f/sandbox/internal/engine"
	"github.com/seed-1a2d6d8f/sandbox/internal/guest/wire"
	"github.com/seed-1a2d6d8f/sandbox/internal/record"
)

// known is the sandbox's record with those changes that the handle knows of.
func (s *Sandbox) known() record.Sandbox {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.made.With(s.rev)
}

// settings are those of the sandbox's present container.
func (s *Sandbox) settings() record.SandboxSettings {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.made.Settings
}

// added is the environment that commands have beyond the container's.
func (s *Sandbox) added() map[string]string {
	rec := s.known()
	env, err := rec.NewEnv()
	if err != nil {
		s.c.log.Warn("the environment is not as it was updated", "sandbox", rec.Name, "error", err)
	}
	return env
}

func (s *Sandbox) learn(rec record.Sandbox) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.rev = rec.Revision
}

// refresh is known with all changes there are.
func (s *Sandbox) refresh(ctx context.Context) (record.Sandbox, error) {
	rec, err := record.Latest(ctx, s.eng, s.known())
	if err == nil {
		s.learn(rec)
	}
	return rec, err
}

// revise changes the sandbox's record.
func (s *Sandbox) revise(ctx context.Context, rec record.Sandbox, change func(*record.Changes) bool) error {
	// Settled, so that the caller's end does not leave it open whether it was changed.
	rec, err := settle(ctx, func(ctx context.Context) (record.Sandbox, error) {
		return record.Revise(ctx, s.eng, rec, change)
	})
	if err != nil {
		return fmt.Errorf("change the record: %w", err)
	}
	s.learn(rec)
	return nil
}

// tell has a session that has just started begin, with what was changed since its
// container was made, and notes that it has.
func (s *Sandbox) tell(ctx context.Context, got engine.Container) error {
	conn, err := s.connect(ctx)
	if err != nil {
		return err
	}
	reply, err := s.beginOn(ctx, conn)
	if err != nil {
		return err
	}
	return s.revise(ctx, s.known(), endsAt(got.StartedAt, reply.Timeout))
}

// endsAt notes that the session that started then ends so long after it, or never.
// What is noted of it already is not made to come sooner.
func endsAt(started time.Time, after time.Duration) func(*record.Changes) bool {
	ends := record.Session{StartedAt: started}
	if after > 0 {
		ends.ExpiresAt = started.Add(after)
	}
	return func(c *record.Changes) bool {
		was := c.Session
		if was != nil && was.StartedAt.Equal(started) && (was.ExpiresAt.IsZero() || !ends.ExpiresAt.IsZero() && !was.ExpiresAt.Before(ends.ExpiresAt)) {
			return false
		}
		c.Session = &ends
		return true
	}
}

// thawed is the container as it is once nobody copies the sandbox, for which it is paused.
// One that somebody else has paused is told as it is.
func (s *Sandbox) thawed(ctx context.Context) (engine.Container, error) {
	got, err := s.current(ctx)
	if err != nil || got.State != engine.StatePaused {
		return got, err
	}
	if err := s.c.awaitThaw(ctx, s.eng, s.rec.Name); err != nil {
		return got, err
	}
	return s.current(ctx)
}

// ExtendTimeout lets the present session end d later than it would by its timeout, at
// once and for every process that asks: see Status.ExpiresAt. Sessions to come have
// the timeout they had. A session without a timeout is left as it is. d is positive;
// without a session the error is [ErrNotRunning], and none is started. A paused
// session can't be extended: that is ErrNotRunning as well, but while it is forked or
// made a snapshot of, for which this waits.
func (s *Sandbox) ExtendTimeout(ctx context.Context, d time.Duration) error {
	return fail("extend timeout", s.rec.Name, s.extendTimeout(ctx, d))
}

func (s *Sandbox) extendTimeout(ctx context.Context, d time.Duration) error {
	if err := s.usable(); err != nil {
		return err
	}
	if d <= 0 {
		return invalid("%v is not an extension: it takes more than 0", d)
	}
	got, err := s.thawed(ctx)
	if err != nil {
		return err
	}
	if got.State != engine.StateRunning {
		return fmt.Errorf("%w: it is %s", ErrNotRunning, stateOf(got.State))
	}
	rec, err := s.refresh(ctx)
	if err != nil {
		return err
	}
	if rec.Untold(got.StartedAt) {
		if err := s.tell(ctx, got); err != nil {
			return err
		}
	}
	// Not by connect, which would resume a session that ends just now.
	conn, err := s.linked(ctx)
	if errors.Is(err, errNoSession) {
		return fmt.Errorf("%w: %w", ErrNotRunning, err)
	}
	if err != nil {
		return err
	}
	reply, err := s.askOn(ctx, conn, wire.Control{Op: wire.OpExtend, Timeout: d, ID: record.NewNonce()})
	if err != nil {
		return err
	}
	if reply.Timeout == 0 {
		return nil
	}
	if err := s.revise(ctx, s.known(), endsAt(got.StartedAt, reply.Timeout)); err != nil {
		return fmt.Errorf("extended, but others can't see it: %w", err)
	}
	return nil
}

// Update changes the sandbox, for every process at once and, where it says so, for
// good. What it can change, and when that counts:
//
//	WithTags                   at once; the tags given replace all there were
//	WithVCPUs, WithMemory      at once, in the running session, and in those to come
//	WithStopTimeout            at once for Stop and Close, else from the next session
//	WithTimeout                from the next session; see ExtendTimeout for this one
//	WithNetworkPolicy          at once, in the running session, and in those to come
//	WithEnv                    at once for commands, from the next session for the main
//	                           process and SSH; it adds to what there was
//	WithPorts, WithCommand     from the next session; they replace what there was
//	WithMounts                 from the next session; the mounts given replace all there
//	                           were, none takes them away
//
// WithVCPUs sets the memory as well unless WithMemory is given, as in [Create]. Another
// handle's commands have a new environment once that handle has looked at the sandbox,
// with Status, Start or Update, or was got later. No label says the environment in the
// clear; whoever may inspect the container can read it all the same.
//
// What waits takes a new container, and the session that comes next, whoever starts it,
// is in that. It has the files of the old one: everything is kept but the log, and the old
// session's times and reason to end. An engine that does not show a container's own files
// on its disk has to commit them, which takes about 5 s for a gigabyte and keeps times to
// the second, of extended attributes capabilities alone, and no sockets. A directory that is
// to be copied ([RWCopy]) is copied then, by whoever starts the session; a copy that the
// sandbox has and that is given again stays as it is. The volume of a mount that is taken
// away is preserved. When what is to be mounted can't be had the session does not start,
// and the sandbox is as it was until it is updated once more.
//
// Of several who update at once none is lost: what they set differently is the later
// one's, and the rest is everybody's. When Update fails nothing has changed, unless
// the error is [ErrEngineUnavailable] or the end of ctx: then see [Sandbox.Status].
// It may be called on a stopped sandbox and does not start it.
func (s *Sandbox) Update(ctx context.Context, opts ...UpdateOption) error {
	return fail("update", s.rec.Name, s.update(ctx, opts))
}

func (s *Sandbox) update(ctx context.Context, opts []UpdateOption) error {
	if err := s.usable(); err != nil {
		return err
	}
	set := &settings{}
	for _, o := range opts {
		if o != nil {
			o.applyUpdate(set)
		}
	}
	set.maxPorts = s.c.limits.Ports
	if err := set.checkUpdate(); err != nil {
		return err
	}
	if err := checkAttached(ctx, s.eng, set.mounts); err != nil {
		return err
	}
	look := s.current
	if set.given&(changeNetwork|changeTimeout|changeStopTimeout) != 0 {
		look = s.thawed // the session may have to be asked
	}
	got, err := look(ctx)
	if err != nil {
		return err
	}
	rec, err := s.refresh(ctx)
	if err != nil {
		return err
	}
	if hasSession(got) && rec.Untold(got.StartedAt) && set.given&(changeTimeout|changeStopTimeout) != 0 {
		if err := s.tell(ctx, got); err != nil { // or this session would get what is for the next
			return err
		}
	}
	if set.given&changeNetwork != 0 {
		if err := s.reachable(ctx, got, set.network); err != nil {
			return err
		}
	}
	undo, err := s.limit(ctx, got, set)
	if err != nil {
		return err
	}
	if set.given&changeNetwork != 0 {
		if err := s.setNetwork(ctx, set); err != nil {
			return errors.Join(err, undo())
		}
	}
	rec = s.known()
	var sealing error
	err = s.revise(ctx, rec, func(c *record.Changes) (changed bool) {
		changed, sealing = set.revise(c, rec, got)
		return changed
	})
	if err = errors.Join(err, sealing); err != nil {
		return errors.Join(err, undo())
	}
	// An object of the same name could have taken the sandbox's place meanwhile, or it
	// is gone: then what was just made speaks for nobody.
	if _, err := s.current(ctx); errors.Is(err, ErrNotFound) {
		return errors.Join(err, record.DropRevisions(context.WithoutCancel(ctx), s.eng, s.rec))
	}
	return nil
}

func (s *settings) checkUpdate() error {
	if problems := append(s.problems, s.checkChanges()...); len(problems) > 0 {
		return classify(ErrInvalidArgument, errors.Join(problems...))
	}
	return nil
}

// limit sets the container's limits, which the engine itself remembers, and returns
// how to take that back.
func (s *Sandbox) limit(ctx context.Context, got engine.Container, set *settings) (undo func() error, err error) {
	undo = func() error { return nil }
	if set.given&(changeCPUs|changeMemory) == 0 {
		return undo, nil
	}
	var limits engine.Resources
	if set.given&changeCPUs != 0 {
		limits.NanoCPUs = int64(set.vcpus * 1e9)
		limits.Memory = int64(set.vcpus * float64(MemoryPerVCPU))
	}
	if set.given&changeMemory != 0 {
		limits.Memory = set.memory
	}
	limits.MemorySwap = limits.Memory
	undo = func() error {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeMargin)
		defer cancel()
		was := engine.Resources{NanoCPUs: got.NanoCPUs, Memory: got.Memory, MemorySwap: got.Memory}
		err := engine.Insist(ctx, func() error { return s.eng.UpdateContainer(ctx, got.ID, was) })
		if err != nil && !errors.Is(err, engine.ErrNotFound) {
			return fmt.Errorf("the limits are changed all the same: %w", err)
		}
		return nil
	}
	err = engine.Insist(ctx, func() error {
		_, err := settle(ctx, func(ctx context.Context) (struct{}, error) {
			return struct{}{}, s.eng.UpdateContainer(ctx, got.ID, limits)
		})
		return err
	})
	switch {
	case errors.Is(err, engine.ErrNotFound):
		return undo, ErrNotFound
	case err != nil && (ctx.Err() != nil || errors.Is(err, engine.ErrUnavailable)):
		return undo, errors.Join(fmt.Errorf("change limits: %w", err), undo())
	case err != nil:
		return undo, fmt.Errorf("change limits: %w", err)
	}
	return undo, nil
}

// revise writes into c what is the record's to keep, and reports whether that is
// anything.
func (s *settings) revise(c *record.Changes, rec record.Sandbox, got engine.Container) (bool, error) {
	if s.given&^(changeCPUs|changeMemory|changeNetwork) == 0 {
		return false, nil
	}
	rec.Revision.Changes = *c
	if hasSession(got) && s.given&(changeTimeout|changeStopTimeout) != 0 {
		// The running session keeps what it has; from here on only this says so.
		if c.Session == nil || !c.Session.StartedAt.Equal(got.StartedAt) {
			c.Session = &record.Session{StartedAt: got.StartedAt, ExpiresAt: rec.ExpiresAt(got.StartedAt)}
		}
	}
	if s.given&changeTags != 0 {
		tags := maps.Clone(s.tags)
		c.Tags = &tags
	}
	if s.given&changeTimeout != 0 {
		ms := s.timeout.Milliseconds()
		c.TimeoutMS = &ms
	}
	if s.given&changeStopTimeout != 0 {
		ms := s.stopTimeout.Milliseconds()
		c.StopTimeoutMS = &ms
	}
	if s.given&changePorts != 0 {
		ports := append([]uint16{}, s.published()...) // not nil, which is no change
		c.Ports = &ports
	}
	if s.given&changeCommand != 0 {
		c.Command = &s.command
	}
	if s.given&changeMounts != 0 {
		mounts := make([]record.Mount, len(s.mounts))
		for i, m := range s.mounts {
			mounts[i] = record.Mount{Source: m.Source, Volume: m.Volume, Target: m.Target, Mode: string(m.Mode)}
		}
		c.Mounts = &mounts
	}
	if s.given&changeEnv != 0 {
		env, err := rec.AddedEnv()
		if err != nil {
			return false, err
		}
		if env == nil {
			env = map[string]string{}
		}
		maps.Copy(env, s.env)
		if c.Env, err = rec.SealEnv(env); err != nil {
			return false, classify(ErrUnsupported, err)
		}
	}
	return true, nil
}
