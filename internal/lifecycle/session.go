package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/seed-1a2d6d8f/sandbox/internal/engine"
	"github.com/seed-1a2d6d8f/sandbox/internal/errdefs"
	"github.com/seed-1a2d6d8f/sandbox/internal/guest"
	"github.com/seed-1a2d6d8f/sandbox/internal/guest/wire"
	"github.com/seed-1a2d6d8f/sandbox/internal/machine"
	"github.com/seed-1a2d6d8f/sandbox/internal/plan"
	"github.com/seed-1a2d6d8f/sandbox/internal/policy"
	"github.com/seed-1a2d6d8f/sandbox/internal/record"
)

// sessionOrigin says who started a session.
type sessionOrigin int

const (
	firstStart sessionOrigin = iota // this handle, as the sandbox's first session
	resumed                         // this handle
	wasRunning                      // another process
)

// PID 1 starts with the network locked and the main process waiting, until a client sends it
// the policy (wire.Begin) and it enforces that. A client does so on every connection before
// it uses it. So it does not matter who started the session, or who died while starting it
// or during an Update.
//
// A process that begins a session reads the record after it saw the session run; one that
// changes the policy looks for a session after it changed the record; and PID 1 accepts no
// older version than the one it has. So no change is lost between the two.

// connectIfNeeded connects now, instead of on first use, when something depends on it: a main
// process waits for it, the session's timeouts differ from those it was started with, only
// this handle has the values of transforms, or it is not known yet whether the engine can
// enforce a policy.
func (h *Handle) connectIfNeeded(ctx context.Context, rec record.Sandbox, got engine.Container, how sessionOrigin) error {
	waiting := rec.StartPending(got.StartedAt) && (how == resumed || how == wasRunning && (!got.FinishedAt.IsZero() || rec.By != ""))
	var err error
	switch {
	case waiting || rec.TimeoutsPending(got.StartedAt):
		err = h.applyChanges(ctx, got)
	case how == firstStart && len(rec.Settings.Command) > 0, how == resumed && rec.IdlePending(), len(h.secretsFor(rec.Network().Version)) > 0,
		how != wasRunning && rec.Settings.Network != "" && !h.c.Machine.PolicyEnforced(h.runtime):
		_, err = h.ConnectRunning(ctx)
	}
	if how == resumed && machine.IsRefusal(err) {
		err = errors.Join(err, h.c.Store.StopContainer(ctx, got, rec)) // nothing runs in it
	}
	if errors.Is(err, ErrNoSession) && !errors.Is(err, errdefs.NotRunning) {
		err = fmt.Errorf("%w: %w", errdefs.NotRunning, err)
	}
	return err
}

// beginSession makes the session at the other end of conn enforce the policy in the record,
// and returns PID 1's last reply.
func (h *Handle) beginSession(ctx context.Context, conn *guest.Conn) (wire.Reply, error) {
	rec, err := h.Refresh(ctx)
	if err != nil {
		return wire.Reply{}, err
	}
	return h.beginSessionWith(ctx, conn, rec)
}

// beginSessionWith is beginSession with a record that was read after the session was seen to run.
func (h *Handle) beginSessionWith(ctx context.Context, conn *guest.Conn, rec record.Sandbox) (reply wire.Reply, err error) {
	h.mu.Lock()
	ask := !h.first // the session that this handle has just started has no policy yet
	h.first = false
	h.mu.Unlock()
	for try := 0; ; try++ {
		if try > 0 {
			if rec, err = h.Refresh(ctx); err != nil {
				return wire.Reply{}, err
			}
		}
		counts := rec.Network()
		secrets := h.secretsFor(counts.Version)
		if err := h.decideOn(ctx, conn, counts.Version, secrets); err != nil {
			return reply, err
		}
		if ask || try > 0 {
			reply, err = h.requestOn(ctx, conn, wire.Control{Op: wire.OpNetwork})
			if err != nil {
				return reply, err
			}
			if reply.Network == nil {
				return reply, errIncomplete
			}
			if reply.Network.Version > counts.Version && try == 0 {
				continue // it was changed since we read it
			}
			missing := func(x plan.Secret) bool { return slices.Contains(reply.Network.Missing, x.Sent.Pattern) }
			if v := reply.Network.Version; v > counts.Version || v == counts.Version && !slices.ContainsFunc(secrets, missing) {
				return reply, nil
			}
		}
		begin, err := h.beginMessage(ctx, rec)
		if err != nil {
			return reply, err
		}
		for _, x := range secrets {
			begin.Secrets = append(begin.Secrets, x.Sent)
		}
		reply, err = h.requestOn(ctx, conn, wire.Control{Op: wire.OpBegin, Begin: begin})
		switch {
		case err == nil:
			h.c.Machine.SetPolicyEnforced(h.runtime)
			return reply, nil
		case reply.Refused == wire.RefusedStale && try < 8:
		case reply.Refused == wire.RefusedUnsupported, reply.Refused == wire.RefusedPolicy:
			return reply, machine.NewRefusal(reply.Refused, reply.Error)
		default:
			return reply, fmt.Errorf("begin the session: %w", err)
		}
	}
}

// beginMessage returns what PID 1 needs of the record.
func (h *Handle) beginMessage(ctx context.Context, rec record.Sandbox) (*wire.Begin, error) {
	n := rec.Network()
	p, err := n.Parse()
	if err != nil {
		return nil, err
	}
	b := &wire.Begin{Timeout: rec.Timeout(), Grace: rec.Grace(), Version: n.Version, Policy: p}
	if !p.LooksUp() {
		return b, nil
	}
	facts, err := h.c.Machine.Network(ctx)
	if err != nil {
		return nil, fmt.Errorf("look at the engine's network: %w", err)
	}
	b.Protect, b.Upstream, b.Roots = facts.Protect, facts.Upstream, facts.Authorities
	return b, nil
}

// applyIdle makes the session at the other end of conn, of which reply is the latest, enforce the
// idle timeout in the record.
func (h *Handle) applyIdle(ctx context.Context, conn *guest.Conn, reply wire.Reply) error {
	i := h.known().Idle()
	if reply.Idle != nil && reply.Idle.Version >= i.Version {
		return nil
	}
	_, err := h.requestOn(ctx, conn, wire.Control{Op: wire.OpIdle, Idle: &wire.Idle{Timeout: i.Timeout(), IgnoreDetached: i.IgnoreDetached, Version: i.Version}})
	return err
}

// setSecrets keeps the secrets for the transforms of a version of the policy. They are never
// used for another version.
func (h *Handle) setSecrets(version int64, secrets []plan.Secret) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if version >= h.secretsOf {
		h.secrets, h.secretsOf = secrets, version
	}
}

func (h *Handle) secretsFor(version int64) []plan.Secret {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.secretsOf != version {
		return nil
	}
	return h.secrets
}

// acceptSecrets keeps those of the caller's secrets that the sandbox's policy transforms. If
// strict, all must be.
func (h *Handle) acceptSecrets(secrets []plan.Secret, strict bool) error {
	if len(secrets) == 0 {
		return nil
	}
	n := h.known().Network()
	p, err := n.Parse()
	if err != nil {
		return err
	}
	var some []plan.Secret
	for _, x := range secrets {
		if slices.Contains(p.Allow, policy.Name{Pattern: x.Sent.Pattern, Transform: true}) {
			if len(x.Sent.Headers) > 0 || x.Sent.Hook {
				some = append(some, x)
			}
		} else if strict {
			return errdefs.Invalid("WithTransform: the sandbox's policy does not transform %q", x.Sent.Pattern)
		}
	}
	h.setSecrets(n.Version, some)
	return nil
}

// applyChanges begins a session that waits in PID 1, with the settings changed since its
// container was created, and records that.
func (h *Handle) applyChanges(ctx context.Context, got engine.Container) error {
	conn, err := h.Connect(ctx)
	if err != nil {
		return err
	}
	reply, err := h.beginSession(ctx, conn)
	if err != nil {
		return err
	}
	return h.revise(ctx, h.known(), sessionEnd(got.StartedAt, reply.Timeout))
}

// sessionEnd returns a change that records when the session that started then ends, never for
// 0. It does not replace a later end.
func sessionEnd(started time.Time, after time.Duration) func(*record.Changes) bool {
	ends := record.Session{StartedAt: started}
	if after > 0 {
		ends.ExpiresAt = started.Add(after)
	}
	return func(c *record.Changes) bool {
		was := c.Session
		if was != nil && was.StartedAt.Equal(started) && (was.ExpiresAt.IsZero() || !ends.ExpiresAt.IsZero() && !was.ExpiresAt.Before(ends.ExpiresAt)) {
			return false
		}
		now := ends
		if was != nil && was.StartedAt.Equal(started) {
			now.TimeoutMS, now.StopTimeoutMS = was.TimeoutMS, was.StopTimeoutMS
		}
		c.Session = &now
		return true
	}
}
