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
	return s.rec.With(s.rev)
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

// tell has PID 1 of a session that has just started know what was changed since its
// container was made, and notes that it does.
func (s *Sandbox) tell(ctx context.Context, got engine.Container) error {
	rec := s.known()
	reply, err := s.ask(ctx, wire.Control{Op: wire.OpTimeout, Timeout: rec.Timeout(), Grace: stopTimeout(rec)})
	if err != nil {
		return fmt.Errorf("set the session's timeout: %w", err)
	}
	return s.revise(ctx, rec, endsAt(got.StartedAt, reply.Timeout))
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

// ExtendTimeout lets the present session end d later than it would by its timeout, at
// once and for every process that asks: see Status.ExpiresAt. Sessions to come have
// the timeout they had. A session without a timeout is left as it is. d is positive;
// without a session the error is [ErrNotRunning], and none is started. A paused
// session can't be extended: that is ErrNotRunning as well.
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
	got, err := s.current(ctx)
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
//
// WithVCPUs sets the memory as well unless WithMemory is given, as in [Create]. The
// environment can't be changed: it may be secret, and what changes is kept in labels.
// Neither can image, ports, mounts and main process, which are the container's.
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
	if err := set.checkUpdate(); err != nil {
		return err
	}
	got, err := s.current(ctx)
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
	undo, err := s.limit(ctx, got, set)
	if err != nil {
		return err
	}
	err = s.revise(ctx, s.known(), func(c *record.Changes) bool {
		return set.revise(c, s.rec, got)
	})
	if err != nil {
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
	problems := s.problems
	if s.given&changeTags != 0 {
		problems = append(problems, s.checkTags()...)
	}
	if len(problems) > 0 {
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
		err := insist(ctx, func() error { return s.eng.UpdateContainer(ctx, got.ID, was) })
		if err != nil && !errors.Is(err, engine.ErrNotFound) {
			return fmt.Errorf("the limits are changed all the same: %w", err)
		}
		return nil
	}
	err = insist(ctx, func() error {
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
func (s *settings) revise(c *record.Changes, made record.Sandbox, got engine.Container) bool {
	changed := s.given & (changeTags | changeTimeout | changeStopTimeout)
	if changed == 0 {
		return false
	}
	if hasSession(got) && changed != changeTags {
		// The running session keeps what it has; from here on only this says so.
		if c.Session == nil || !c.Session.StartedAt.Equal(got.StartedAt) {
			was := made.With(record.Revision{Changes: *c})
			c.Session = &record.Session{StartedAt: got.StartedAt, ExpiresAt: was.ExpiresAt(got.StartedAt)}
		}
	}
	if changed&changeTags != 0 {
		tags := maps.Clone(s.tags)
		c.Tags = &tags
	}
	if changed&changeTimeout != 0 {
		ms := s.timeout.Milliseconds()
		c.TimeoutMS = &ms
	}
	if changed&changeStopTimeout != 0 {
		ms := s.stopTimeout.Milliseconds()
		c.StopTimeoutMS = &ms
	}
	return true
}
