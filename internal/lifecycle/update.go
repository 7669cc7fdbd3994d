package lifecycle

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/seed-1a2d6d8f/sandbox/internal/bound"
	"github.com/seed-1a2d6d8f/sandbox/internal/claim"
	"github.com/seed-1a2d6d8f/sandbox/internal/engine"
	"github.com/seed-1a2d6d8f/sandbox/internal/errdefs"
	"github.com/seed-1a2d6d8f/sandbox/internal/guest"
	"github.com/seed-1a2d6d8f/sandbox/internal/guest/wire"
	"github.com/seed-1a2d6d8f/sandbox/internal/machine"
	"github.com/seed-1a2d6d8f/sandbox/internal/plan"
	"github.com/seed-1a2d6d8f/sandbox/internal/policy"
	"github.com/seed-1a2d6d8f/sandbox/internal/record"
	"github.com/seed-1a2d6d8f/sandbox/internal/store"
)

// Update changes the settings of the sandbox that set has. The caller has checked them.
func (h *Handle) Update(ctx context.Context, set *plan.Sandbox) error {
	if err := h.CheckUsable(); err != nil {
		return err
	}
	got, err := h.prepareUpdate(ctx, set)
	if err != nil {
		return err
	}
	set.KeepCopies(h.known())
	if err := h.c.Store.CheckAttached(ctx, set.Mounts); err != nil {
		return err
	}
	undo, err := h.limit(ctx, got, set)
	if err != nil {
		return err
	}
	if set.Has(plan.Network) {
		if err := h.setNetwork(ctx, set); err != nil {
			return errors.Join(err, undo())
		}
	}
	if err := h.recordUpdate(ctx, got, set); err != nil {
		return errors.Join(err, undo())
	}
	if set.Has(plan.Idle) {
		if err := h.enforceIdle(ctx, got); err != nil {
			return err
		}
	}
	if set.Has(plan.Persistence) {
		err = h.applyPersistence(ctx, got, *set.Persistent)
	}
	// The sandbox may have been deleted meanwhile: then the new revision is an orphan.
	if _, err := h.Current(ctx); errors.Is(err, errdefs.NotFound) {
		return errors.Join(err, claim.DropRevisions(context.WithoutCancel(ctx), h.c.Engine, h.Record()))
	}
	return err
}

// errNoNetwork is the error of an update of a sandbox whose OCI runtime can't filter.
var errNoNetwork = fmt.Errorf("%w: it has no network, since its OCI runtime enforces no network policy: it can't get another policy than DenyAll, or published ports",
	errdefs.Unsupported)

// prepareUpdate returns the present container, ready for the update of set.
func (h *Handle) prepareUpdate(ctx context.Context, set *plan.Sandbox) (engine.Container, error) {
	current := h.Current
	if set.Has(plan.Network | plan.Timeout | plan.StopTimeout | plan.Persistence | plan.Idle) {
		current = h.awaitUnpaused // PID 1 may have to answer
	}
	got, err := current(ctx)
	if err != nil {
		return got, err
	}
	rec, err := h.Refresh(ctx)
	if err != nil {
		return got, err
	}
	if set.Has(plan.Persistence) && got.State == engine.StatePaused {
		return got, fmt.Errorf("%w: it is %s: it can't become persistent, or stop being so, now", errdefs.NotRunning, store.StateOf(got.State))
	}
	if got.NetworkMode == "none" && (set.Has(plan.Network) && set.Network.Mode != policy.DenyAll || len(set.Ports) > 0) {
		return got, errNoNetwork
	}
	if len(set.Without.Env) > 0 {
		image, err := h.c.Store.ImageOf(ctx, got)
		if err != nil {
			return got, err
		}
		set.Without.ImageEnv = image.Env
	}
	if got.HasSession() && rec.TimeoutsPending(got.StartedAt) && set.Has(plan.Timeout|plan.StopTimeout) {
		// Otherwise this session would get the timeouts of the next one.
		if err := h.applyChanges(ctx, got); err != nil && !(set.Has(plan.Network) && endsUnreached(set)) {
			return got, err
		}
	}
	if set.Has(plan.Network) {
		err = h.checkReachable(ctx, got, set)
	}
	if err == nil && set.Has(plan.Idle) && got.State == engine.StateRunning {
		err = h.checkIdle(ctx, set)
	}
	return got, err
}

// checkIdle returns why the running session could not get another idle timeout now, and notes the
// version of the one it has in set.
func (h *Handle) checkIdle(ctx context.Context, set *plan.Sandbox) error {
	conn, err := h.ConnectRunning(ctx)
	if errors.Is(err, ErrNoSession) {
		return nil // it ended just now
	}
	if err != nil {
		return err
	}
	reply, err := h.requestOn(ctx, conn, wire.Control{Op: wire.OpNetwork})
	if err != nil {
		return err
	}
	if reply.Idle == nil {
		return errIncomplete
	}
	set.Idle.Version = reply.Idle.Version
	return nil
}

// enforceIdle makes the session that runs, or that ran when the update began, enforce the recorded
// idle timeout. One that is paused gets it from whoever connects next.
func (h *Handle) enforceIdle(ctx context.Context, was engine.Container) error {
	if was.State != engine.StateRunning {
		return nil
	}
	own, cancel := bound.WithGrace(ctx)
	defer cancel()
	conn, err := h.ConnectRunning(own)
	var reply wire.Reply
	if err == nil {
		reply, err = h.requestOn(own, conn, wire.Control{Op: wire.OpNetwork})
	}
	if err == nil {
		err = h.applyIdle(own, conn, reply)
	}
	if err == nil || errors.Is(err, ErrNoSession) {
		return nil
	}
	if e := h.checkRunning(own); errors.Is(e, ErrNoSession) || errors.Is(e, errdefs.NotFound) {
		return nil // the next session gets it; Update finds a sandbox that is gone itself
	}
	return fmt.Errorf("the new idle timeout is recorded, but the running session may keep the one before until something connects to it: %w", err)
}

// recordUpdate writes a revision with the changes of set that the record has.
func (h *Handle) recordUpdate(ctx context.Context, got engine.Container, set *plan.Sandbox) error {
	rec := h.known()
	var sealErr error
	err := h.revise(ctx, rec, func(c *record.Changes) (changed bool) {
		changed, sealErr = set.Revise(c, rec, got)
		return changed
	})
	return errors.Join(err, sealErr)
}

// limit sets the container's limits, which the engine stores, and returns the undo.
func (h *Handle) limit(ctx context.Context, got engine.Container, set *plan.Sandbox) (undo func() error, err error) {
	undo = func() error { return nil }
	if !set.Has(plan.CPUs | plan.Memory) {
		return undo, nil
	}
	cpus := 0.0
	if set.Has(plan.CPUs) {
		cpus = set.VCPUs
	}
	if err := machine.Limits(ctx, h.c.Engine, cpus); err != nil {
		return undo, err
	}
	var limits engine.Resources
	if set.Has(plan.CPUs) {
		limits.NanoCPUs = int64(set.VCPUs * 1e9)
		limits.Memory = plan.MemoryOf(set.VCPUs)
	}
	if set.Has(plan.Memory) {
		limits.Memory = set.Memory
	}
	limits.MemorySwap = limits.Memory
	if cluster := h.c.Store.Cluster; cluster != nil && got.HasSession() {
		if err := cluster.Room(ctx, h.known(), cmp.Or(limits.NanoCPUs, got.NanoCPUs), cmp.Or(limits.Memory, got.Memory)); err != nil {
			return undo, err
		}
	}
	undo = func() error {
		was := engine.Resources{NanoCPUs: got.NanoCPUs, Memory: got.Memory, MemorySwap: got.Memory}
		err := bound.Detached(ctx, store.CloseMargin, "the engine did not change them back", func(ctx context.Context) error {
			return h.setLimits(ctx, got, was)
		})
		if err != nil && !errors.Is(err, errdefs.NotFound) {
			return fmt.Errorf("the limits stay changed: %w", err)
		}
		return nil
	}
	switch err = h.setLimits(ctx, got, limits); {
	case err == nil, errors.Is(err, errdefs.NotFound):
		return undo, err
	case ctx.Err() != nil, errors.Is(err, engine.ErrUnavailable), engine.IsInternal(err), errors.Is(err, errdefs.InvalidArgument):
		err = errors.Join(err, undo())
	}
	return undo, fmt.Errorf("change limits: %w", err)
}

// setLimits sets the limits of the sandbox, whose container was got. The engine fails if the session ends,
// or the container is replaced, at the same moment: then it sets them again. Where the session goes on the
// engine has refused them.
func (h *Handle) setLimits(ctx context.Context, got engine.Container, limits engine.Resources) error {
	for {
		err := engine.Retry(ctx, func() error {
			return bound.Finish(ctx, func(ctx context.Context) error { return h.c.Engine.UpdateContainer(ctx, got.ID, limits) })
		})
		if !errors.Is(err, engine.ErrNotFound) && !errors.Is(err, engine.ErrConflict) && !engine.IsInternal(err) {
			return err
		}
		wait := endReportTimeout
		if engine.IsInternal(err) && got.HasSession() {
			used, ok, e := h.c.Engine.Stats(ctx, got.ID)
			if ok && e == nil && limits.Memory > 0 && used.Memory > limits.Memory { // the kernel may refuse it
				return errdefs.Invalid("%d bytes of memory: the session uses %d: use more, or end commands and remove files in memory before", limits.Memory, used.Memory)
			}
			if ok && e == nil && used.Tasks > 0 {
				wait = 0
			}
		}
		now, e := h.awaitOtherThan(ctx, got, wait)
		switch {
		case errors.Is(e, errdefs.NotFound), e == nil && now.ID == "" && errors.Is(err, engine.ErrNotFound):
			return errdefs.NotFound
		case e != nil || now.ID == "":
			return errors.Join(err, e)
		}
		got = now
	}
}

// awaitOtherThan returns the present container once the session of got has ended, or another container
// has taken its place. If neither happens in time it returns a container without an ID.
func (h *Handle) awaitOtherThan(ctx context.Context, got engine.Container, wait time.Duration) (now engine.Container, err error) {
	deadline := time.Now().Add(wait)
	err = bound.Poll(ctx, store.PollEvery, func() (done bool, err error) {
		now, err = h.Current(ctx)
		if err != nil || now.ID != got.ID || now.HasSession() != got.HasSession() || !now.StartedAt.Equal(got.StartedAt) {
			return true, err
		}
		now = engine.Container{}
		return !got.HasSession() || !time.Now().Before(deadline), nil
	})
	return now, err
}

// endsUnreached reports whether an update ends a session that can't be reached. One to
// AllowAll does not: the session keeps a policy that is stricter. What a session enforces
// that can't be asked is unknown, so other policies are not compared with the record.
func endsUnreached(set *plan.Sandbox) bool {
	return !set.KeepSession && set.Network.Mode != policy.AllowAll
}

// checkReachable returns why a new policy could not be enforced now, before anything is
// changed. It prefetches the network facts, and connects to a running session unless the
// update ends one that can't be reached.
func (h *Handle) checkReachable(ctx context.Context, got engine.Container, set *plan.Sandbox) error {
	switch {
	case h.Record().Settings.Network == "":
		return fmt.Errorf("%w: the record has no network policy, so nothing inside enforces one", errdefs.Unsupported)
	case got.State == engine.StatePaused && !endsUnreached(set):
		return fmt.Errorf("%w: it is %s: its network can't be changed now", errdefs.NotRunning, store.StateOf(got.State))
	case got.State != engine.StateRunning:
		return nil
	}
	if set.Network.LooksUp() {
		if _, err := h.c.Machine.Network(ctx); err != nil {
			return fmt.Errorf("look at the engine's network: %w", err)
		}
	}
	if endsUnreached(set) {
		return nil
	}
	_, err := h.ConnectRunning(ctx)
	if errors.Is(err, ErrNoSession) {
		return nil // it ended just now
	}
	return err
}

// setNetwork records and enforces a new policy. It reverts one that PID 1 refuses, and ends a
// session that can't be reached.
func (h *Handle) setNetwork(ctx context.Context, set *plan.Sandbox) error {
	var was, now record.Network
	secrets := h.secretsFor(h.known().Network().Version)
	err := h.revise(ctx, h.known(), func(c *record.Changes) bool {
		was = h.Record().With(record.Revision{Changes: *c}).Network()
		now = record.Network{Policy: set.Network.String(), Version: was.Version + 1}
		c.Network = &now
		return true
	})
	if err != nil {
		return err
	}
	h.setSecrets(now.Version, set.Secrets)
	err = h.enforce(ctx, now.Version, endsUnreached(set))
	switch {
	case err == nil, errors.Is(err, errdefs.NotFound): // Update finds that itself
		return nil
	case machine.IsRefusal(err):
	case !endsUnreached(set), errors.Is(ctx.Err(), context.Canceled), errors.Is(err, errdefs.Closed), // the caller gave up
		errors.Is(err, errdefs.Unsupported),                                               // the next session would not enforce it either
		errors.Is(err, engine.ErrUnavailable) && !errors.Is(err, guest.ErrConnectionLost): // the session is not at fault
		return err
	default:
		return h.endUnreached(ctx, err)
	}
	again := record.Network{Policy: was.Policy, Version: now.Version + 1}
	taken := false
	e := h.revise(context.WithoutCancel(ctx), h.known(), func(c *record.Changes) bool {
		taken = c.Network != nil && c.Network.Version == now.Version // else another process has set a newer one
		if taken {
			c.Network = &again
		}
		return taken
	})
	if e != nil {
		return errors.Join(err, fmt.Errorf("it stays recorded: %w", e))
	}
	if taken {
		h.setSecrets(again.Version, secrets)
		e = h.enforce(ctx, again.Version, false)
	}
	return errors.Join(err, e)
}

// enforce makes the running session, if there is one, enforce the policy version that was just
// recorded. It goes on for CancelGrace after the end of ctx, since a recorded policy should be
// in force. If bounded, it takes at most reachTimeout.
func (h *Handle) enforce(ctx context.Context, version int64, bounded bool) error {
	own, cancel := bound.WithGrace(ctx)
	defer cancel()
	try := func(ctx context.Context) error {
		return engine.Retry(ctx, func() error {
			err := h.enforceNow(ctx, version)
			if errors.Is(err, guest.ErrConnectionLost) && !errors.Is(err, engine.ErrUnavailable) {
				err = errdefs.Classify(engine.ErrUnavailable, err) // to be tried again
			}
			return err
		})
	}
	var err error
	if bounded {
		err = bound.Within(own, reachTimeout, "the session did not answer", try)
	} else {
		err = try(own)
	}
	switch {
	case err == nil, machine.IsRefusal(err), errors.Is(err, errdefs.NotFound):
		return err
	case ctx.Err() != nil:
		err = errdefs.Cancelled(ctx)
	}
	return fmt.Errorf("the new network policy is recorded, but the running session may keep the one before until something connects to it: %w", err)
}

func (h *Handle) enforceNow(ctx context.Context, version int64) error {
	for {
		got, err := h.awaitUnpaused(ctx)
		if err != nil {
			return err
		}
		switch got.State {
		case engine.StateRunning:
		case engine.StatePaused:
			return fmt.Errorf("%w: it was paused during the call", errdefs.NotRunning)
		default:
			return nil // the next session gets the recorded policy
		}
		conn, err := h.ConnectRunning(ctx)
		if errors.Is(err, ErrNoSession) {
			if err := bound.Sleep(ctx, store.PollEvery); err != nil {
				return err
			}
			continue
		}
		if err != nil {
			return err
		}
		reply, err := h.beginSession(ctx, conn)
		if err != nil || reply.Network == nil || reply.Network.Version <= version {
			return err
		}
		rec := h.known()
		if n := rec.Network(); n.Version >= reply.Network.Version || n.Version > version {
			return nil // a later change is in force
		}
		// The revisions of PID 1's policy are gone. Continue from its version.
		err = h.revise(ctx, rec, func(c *record.Changes) bool {
			if c.Network == nil || c.Network.Version > version {
				return false
			}
			version = reply.Network.Version + 1
			c.Network = &record.Network{Policy: c.Network.Policy, Version: version}
			return true
		})
		if err != nil {
			return err
		}
		h.setSecrets(version, h.secretsFor(rec.Network().Version))
	}
}

const (
	// reachTimeout is how long an update tries to reach a session before it ends it. A busy
	// engine takes seconds for a connection.
	reachTimeout = 15 * time.Second
	// unreachedGrace is what the processes of such a session get between SIGTERM and SIGKILL.
	// The policy before is in force meanwhile, so it is not the sandbox's own.
	unreachedGrace = time.Second
)

// endUnreached ends a session that could not be made to enforce the recorded policy, which the
// next session gets. That takes the engine alone, and nothing inside of the sandbox.
func (h *Handle) endUnreached(ctx context.Context, why error) error {
	err := bound.Detached(ctx, unreachedGrace+store.CloseMargin, "the engine did not stop it", func(ctx context.Context) error {
		got, err := h.Current(ctx)
		if errors.Is(err, errdefs.NotFound) || err == nil && !got.HasSession() {
			return nil
		}
		if err == nil {
			err = engine.Retry(ctx, func() error { return h.c.Engine.StopContainer(ctx, got.ID, unreachedGrace) })
		}
		if err != nil && !errors.Is(err, engine.ErrNotFound) {
			return err
		}
		h.dropConn()
		h.c.Log.Warn("session ended: it could not be given its new network policy", "sandbox", h.Record().Name, "error", why)
		rec := h.known()
		err = h.revise(ctx, rec, func(c *record.Changes) bool {
			rec.Revision.Changes = *c
			c.Session = &record.Session{StartedAt: got.StartedAt, ExpiresAt: rec.ExpiresAt(got.StartedAt), Reason: record.ReasonPolicy}
			return true
		})
		if err != nil && !errors.Is(err, errdefs.NotFound) {
			h.c.Log.Warn("why the session ended is not recorded", "sandbox", h.Record().Name, "error", err)
		}
		return nil
	})
	if err != nil {
		return errors.Join(why, fmt.Errorf("end the session: %w", err))
	}
	return nil
}

// Extend makes the present session end d later.
func (h *Handle) Extend(ctx context.Context, d time.Duration) error {
	if err := h.CheckUsable(); err != nil {
		return err
	}
	if d <= 0 {
		return errdefs.Invalid("%v is not an extension: use more than 0", d)
	}
	got, err := h.awaitRunning(ctx)
	if err != nil {
		return err
	}
	rec, err := h.Refresh(ctx)
	if err != nil {
		return err
	}
	if rec.TimeoutsPending(got.StartedAt) {
		if err := h.applyChanges(ctx, got); err != nil {
			return err
		}
	}
	// Not Connect, which would resume a session that is just ending.
	conn, err := h.connectSession(ctx)
	if err != nil {
		return err
	}
	reply, err := h.requestOn(ctx, conn, wire.Control{Op: wire.OpExtend, Timeout: d, ID: record.NewNonce()})
	if errors.Is(err, guest.ErrConnectionLost) {
		return h.ExplainLost(ctx, err)
	}
	if err != nil {
		return err
	}
	if reply.Timeout == 0 {
		return nil
	}
	if err := h.revise(ctx, h.known(), sessionEnd(got.StartedAt, reply.Timeout)); err != nil {
		return fmt.Errorf("extended, but others can't see it: %w", err)
	}
	return nil
}
