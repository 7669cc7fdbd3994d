package sandbox

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/seed-1a2d6d8f/sandbox/internal/engine"
	"github.com/seed-1a2d6d8f/sandbox/internal/guest"
	"github.com/seed-1a2d6d8f/sandbox/internal/guest/wire"
	"github.com/seed-1a2d6d8f/sandbox/internal/policy"
	"github.com/seed-1a2d6d8f/sandbox/internal/record"
)

// How a session begins. PID 1 starts with the network locked and the main process held
// back, until it is told which policy counts (wire.Begin). Every connection to the guest
// sees to that before it is used, so it does not matter who started the session, or who
// died in the middle of it or of an Update.
//
// Nothing is lost between those who begin a session and those who change the policy at
// the same time: who begins it reads the record after the session was seen to run, who
// changes the record looks for a session afterwards, and PID 1 takes no version older
// than the one it has.

// arrival is how a session came to be known.
type arrival int

const (
	made    arrival = iota // it is the sandbox's first, and we started it
	resumed                // we started it
	found                  // it runs
)

// commence has a session begin, where that can't be left to whoever connects to it first:
// when a main process waits for it or files have to be there before, when its timeouts are
// not those that it was started with, when only this handle has what transforms set, and
// when it is not known yet that the engine can enforce a policy at all.
func (s *Sandbox) commence(ctx context.Context, rec record.Sandbox, got engine.Container, how arrival) error {
	waiting := rec.Unbegun(got.StartedAt) && (how == resumed || how == found && (!got.FinishedAt.IsZero() || rec.By != ""))
	var err error
	switch {
	case waiting || rec.Untold(got.StartedAt):
		err = s.tell(ctx, got)
	case how == made && (s.inlay != nil || len(rec.Settings.Command) > 0), len(s.secretsFor(rec.Network().Version)) > 0,
		how != found && rec.Settings.Network != "" && !s.c.provenFor(s.runtime):
		_, err = s.linked(ctx)
	}
	if how == resumed && refused(err) {
		err = errors.Join(err, stopContainer(ctx, s.eng, got, rec)) // nothing runs in it
	}
	if errors.Is(err, errNoSession) && !errors.Is(err, ErrNotRunning) {
		err = fmt.Errorf("%w: %w", ErrNotRunning, err)
	}
	return err
}

// beginOn sees to it that the session at the other end of conn enforces the policy that
// the record has now, and returns what PID 1 said last.
func (s *Sandbox) beginOn(ctx context.Context, conn *guest.Conn) (wire.Reply, error) {
	for try := 0; ; try++ {
		rec, err := s.refresh(ctx)
		if err != nil {
			return wire.Reply{}, err
		}
		reply, err := s.askOn(ctx, conn, wire.Control{Op: wire.OpNetwork})
		if reply.Network == nil && reply.Error != "" {
			return s.beginOld(ctx, conn, rec)
		}
		if err != nil {
			return reply, err
		}
		if reply.Network == nil {
			return reply, errNoPolicies
		}
		counts := rec.Network()
		if reply.Network.Version > counts.Version && try == 0 {
			continue // it was changed since we read it
		}
		secrets := s.secretsFor(counts.Version)
		missing := func(x wire.Secret) bool { return slices.Contains(reply.Network.Missing, x.Pattern) }
		if v := reply.Network.Version; v > counts.Version || v == counts.Version && !slices.ContainsFunc(secrets, missing) {
			return reply, nil
		}
		begin, err := s.beginning(ctx, rec)
		if err != nil {
			return reply, err
		}
		begin.Secrets = secrets
		reply, err = s.askOn(ctx, conn, wire.Control{Op: wire.OpBegin, Begin: begin})
		switch {
		case err == nil:
			s.c.enforces(s.runtime)
			return reply, nil
		case reply.Refused == wire.RefusedStale && try < 8:
		case reply.Refused == wire.RefusedUnsupported, reply.Refused == wire.RefusedPolicy:
			return reply, &refusal{reply.Refused, reply.Error}
		default:
			return reply, fmt.Errorf("begin the session: %w", err)
		}
	}
}

// refusal says that PID 1 could not put a policy in force.
type refusal struct{ kind, reason string }

func (e *refusal) Error() string {
	if e.kind != wire.RefusedUnsupported {
		return "this network policy can't be enforced: " + e.reason
	}
	return "network policies can't be enforced on this engine, and nothing runs without: " + e.reason +
		": it takes a Linux kernel with nftables (nf_tables, nft_ct, nft_redir, nft_reject_inet), and an OCI runtime, such as runc, that lets a container with NET_ADMIN use it"
}

func (e *refusal) Unwrap() error { return ErrUnsupported }

// errNoPolicies is for sandboxes from before there were policies.
var errNoPolicies = fmt.Errorf("%w: the sandbox was made by an earlier version, whose PID 1 keeps no network policy", ErrUnsupported)

func refused(err error) bool {
	var r *refusal
	return errors.As(err, &r)
}

// beginOld is for sessions whose PID 1 is from before there were policies: it has started
// the main process already, and of timeouts only the first that it is told counts.
func (s *Sandbox) beginOld(ctx context.Context, conn *guest.Conn, rec record.Sandbox) (wire.Reply, error) {
	if rec.Network().Policy != "" {
		return wire.Reply{}, errNoPolicies
	}
	return s.askOn(ctx, conn, wire.Control{Op: wire.OpTimeout, Timeout: rec.Timeout(), Grace: stopTimeout(rec)})
}

// reachable reports why a new policy could not be put in force now, before anything is
// changed. A session that runs is connected to, and thereby begun; and what it will have
// to be told of the engine's network is looked at.
func (s *Sandbox) reachable(ctx context.Context, got engine.Container, p policy.Policy) error {
	switch {
	case s.rec.Settings.Network == "":
		return errNoPolicies
	case got.State == engine.StatePaused:
		return fmt.Errorf("%w: it is %s, and its network can't be changed meanwhile", ErrNotRunning, stateOf(got.State))
	case got.State != engine.StateRunning:
		return nil
	}
	if looksUp(p) {
		if _, err := s.c.surroundings(ctx, s.eng, !got.FinishedAt.IsZero()); err != nil {
			return fmt.Errorf("look at the engine's network: %w", err)
		}
	}
	_, err := s.linked(ctx)
	if errors.Is(err, errNoSession) {
		return nil // it ended just now
	}
	return err
}

// setNetwork records a new policy and puts it in force. One that PID 1 refuses is taken
// back.
func (s *Sandbox) setNetwork(ctx context.Context, set *settings) error {
	var was, now record.Network
	secrets := s.secretsFor(s.known().Network().Version)
	err := s.revise(ctx, s.known(), func(c *record.Changes) bool {
		was = s.rec.With(record.Revision{Changes: *c}).Network()
		now = record.Network{Policy: set.network.String(), Version: was.Version + 1}
		c.Network = &now
		return true
	})
	if err != nil {
		return err
	}
	s.keepSecrets(now.Version, set.secrets)
	err = s.enforce(ctx, now.Version)
	if errors.Is(err, ErrNotFound) {
		return nil // Update sees that by itself
	}
	if !refused(err) {
		return err
	}
	again := record.Network{Policy: was.Policy, Version: now.Version + 1}
	taken := false
	e := s.revise(context.WithoutCancel(ctx), s.known(), func(c *record.Changes) bool {
		taken = c.Network != nil && c.Network.Version == now.Version // else somebody has set another since
		if taken {
			c.Network = &again
		}
		return taken
	})
	if e != nil {
		return errors.Join(err, fmt.Errorf("and it is recorded all the same: %w", e))
	}
	if taken {
		s.keepSecrets(again.Version, secrets)
		e = s.enforce(ctx, again.Version)
	}
	return errors.Join(err, e)
}

// enforce puts the policy of that version, which has just been recorded, in force in the
// session that runs, if there is one. It goes on for a moment after the caller's end,
// since what is recorded should hold.
func (s *Sandbox) enforce(ctx context.Context, version int64) error {
	own, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	defer context.AfterFunc(ctx, func() {
		_ = pause(own, settleTime)
		cancel()
	})()
	again := func(err error) error {
		if errors.Is(err, guest.ErrConnectionLost) && !errors.Is(err, engine.ErrUnavailable) {
			return classify(engine.ErrUnavailable, err)
		}
		return err
	}
	err := engine.Insist(own, func() error { return again(s.enforceNow(own, version)) })
	switch {
	case err == nil, refused(err), errors.Is(err, ErrNotFound):
		return err
	case own.Err() != nil:
		err = cancelled(ctx)
	}
	return fmt.Errorf("the new network policy is recorded, but the running session may keep the one before until something connects to it: %w", err)
}

func (s *Sandbox) enforceNow(ctx context.Context, version int64) error {
	for {
		got, err := s.thawed(ctx)
		if err != nil {
			return err
		}
		switch got.State {
		case engine.StateRunning:
		case engine.StatePaused:
			return fmt.Errorf("%w: it was paused meanwhile", ErrNotRunning)
		default:
			return nil // the next session begins with what is recorded
		}
		conn, err := s.linked(ctx)
		if errors.Is(err, errNoSession) {
			if err := pause(ctx, stillThere); err != nil {
				return err
			}
			continue
		}
		if err != nil {
			return err
		}
		reply, err := s.beginOn(ctx, conn)
		if err != nil || reply.Network == nil || reply.Network.Version <= version {
			return err
		}
		rec := s.known()
		if n := rec.Network(); n.Version >= reply.Network.Version || n.Version > version {
			return nil // another change came later, and holds
		}
		// The revisions that PID 1 heard of are gone. Go on from its number.
		err = s.revise(ctx, rec, func(c *record.Changes) bool {
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
		s.keepSecrets(version, s.secretsFor(rec.Network().Version))
	}
}

// beginning is what a session is told of the record.
func (s *Sandbox) beginning(ctx context.Context, rec record.Sandbox) (*wire.Begin, error) {
	n := rec.Network()
	p, err := policyOf(n)
	if err != nil {
		return nil, err
	}
	b := &wire.Begin{Timeout: rec.Timeout(), Grace: stopTimeout(rec), Version: n.Version, Policy: p}
	if !looksUp(p) {
		return b, nil
	}
	got, err := s.current(ctx)
	if err != nil {
		return nil, err
	}
	surroundings, err := s.c.surroundings(ctx, s.eng, !got.FinishedAt.IsZero())
	if err != nil {
		return nil, fmt.Errorf("look at the engine's network: %w", err)
	}
	b.Protect, b.Upstream, b.Roots = surroundings.protect, surroundings.upstream, s.c.authorities
	return b, nil
}

// policyOf reads a recorded policy. A sandbox from before there were any allows all.
func policyOf(n record.Network) (policy.Policy, error) {
	if n.Policy == "" {
		return policy.Policy{Mode: policy.AllowAll}, nil
	}
	p, err := policy.Parse(n.Policy)
	if err != nil {
		return p, fmt.Errorf("the recorded network policy can't be read: %w", err)
	}
	return p, nil
}

// looksUp reports whether PID 1 looks names up under the policy. Then it must know what
// nobody inside could have told it: which addresses are the engine's machine's, and whom
// to ask.
func looksUp(p policy.Policy) bool {
	return p.Mode == policy.PublicOnly || len(p.Allow) > 0
}

// keepSecrets has the handle remember what the transforms of a version of the policy set.
// What was given for one version is never used for another.
func (s *Sandbox) keepSecrets(version int64, secrets []wire.Secret) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if version >= s.secretsOf {
		s.secrets, s.secretsOf = secrets, version
	}
}

func (s *Sandbox) secretsFor(version int64) []wire.Secret {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.secretsOf != version {
		return nil
	}
	return s.secrets
}

// supply takes what was given to get the sandbox, for those names that its policy
// transforms; all of them must be, when strict.
func (s *Sandbox) supply(secrets []wire.Secret, strict bool) error {
	if len(secrets) == 0 {
		return nil
	}
	n := s.known().Network()
	p, err := policyOf(n)
	if err != nil {
		return err
	}
	var some []wire.Secret
	for _, x := range secrets {
		if slices.Contains(p.Allow, policy.Name{Pattern: x.Pattern, Transform: true}) {
			some = append(some, x)
		} else if strict {
			return invalid("WithTransform: the sandbox's policy does not transform %q", x.Pattern)
		}
	}
	s.keepSecrets(n.Version, some)
	return nil
}

// enforces notes that the engine enforced a policy in a container of that runtime, and
// provenFor asks. Until then a new sandbox's connection is not left to its first command,
// so that it is the making that fails where nothing can be enforced.
func (c *Client) enforces(runtime string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.proven == nil {
		c.proven = map[string]bool{}
	}
	c.proven[runtime] = true
}

func (c *Client) provenFor(runtime string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.proven[runtime]
}

// surroundings are what PID 1 is told of the engine's network.
type surroundings struct {
	protect  []netip.Prefix // the machine's own addresses
	upstream []netip.Addr   // the DNS servers that containers get
}

// servers are those of WithDNS.
func (c *Client) servers() (all []string) {
	for _, a := range c.dns {
		all = append(all, a.String())
	}
	return all
}

// seen is what a helper saw, for as long as probeAge.
type seen[T any] struct {
	looking gate // held by who reads and writes
	at      time.Time
	got     T
}

// probeAge is how long what a helper saw counts: machines move between networks, and
// looking takes a container.
const probeAge = 10 * time.Minute

// surroundings returns what is around the sandboxes of the engine. The DNS servers are
// asked for only when servers is set: in its first session PID 1 knows better.
func (c *Client) surroundings(ctx context.Context, eng *engine.Engine, servers bool) (surroundings, error) {
	var dns wire.Probe
	var dnsErr error
	var looking sync.WaitGroup
	servers = servers && len(c.dns) == 0
	if servers {
		looking.Go(func() { dns, dnsErr = c.probe(ctx, eng, &c.bridge, "bridge") })
	}
	machine, err := c.probe(ctx, eng, &c.machine, "host")
	looking.Wait()
	if err := errors.Join(err, dnsErr); err != nil {
		return surroundings{}, err
	}
	var s surroundings
	none, err := policy.Policy{Mode: policy.DenyAll}.Compile()
	if err != nil {
		return s, err
	}
	for _, a := range machine.Addresses {
		if none.Addr(a) != policy.Protected {
			s.protect = append(s.protect, netip.PrefixFrom(a, a.BitLen()))
		}
	}
	if len(s.protect) > wire.MaxProtect {
		return s, fmt.Errorf("the machine has %d public addresses; up to %d can be protected", len(s.protect), wire.MaxProtect)
	}
	s.upstream = append(dns.Servers, c.dns...)
	if servers && len(s.upstream) == 0 {
		return s, errors.New("containers on the default bridge get no DNS server")
	}
	return s, nil
}

// probe runs a helper in one of the engine's networks and returns what it saw there.
func (c *Client) probe(ctx context.Context, eng *engine.Engine, kept *seen[wire.Probe], network string) (wire.Probe, error) {
	return probe(ctx, c, eng, kept, func(spec *engine.ContainerSpec) {
		spec.NetworkDisabled, spec.NetworkMode = false, network
		spec.Entrypoint = append(spec.Entrypoint, wire.VerbProbe)
	})
}

// probe returns what a helper saw, which says it in one line of JSON.
func probe[T any](ctx context.Context, c *Client, eng *engine.Engine, kept *seen[T], adjust func(*engine.ContainerSpec)) (got T, err error) {
	leave, err := kept.looking.enter(ctx)
	if err != nil {
		return got, err
	}
	defer leave()
	if !kept.at.IsZero() && time.Since(kept.at) < probeAge {
		return kept.got, nil
	}
	if _, err := c.ensureGuest(ctx, eng, &reporter{}); err != nil {
		return got, err
	}
	h := helper{c: c, eng: eng, nonce: record.NewNonce(), report: &reporter{}}
	defer func() {
		if err != nil {
			err = errors.Join(err, h.undo.run(ctx))
		}
	}()
	spec := h.spec()
	adjust(&spec)
	err = h.follow(ctx, spec, nil, func(line []byte) (bool, error) { return true, json.Unmarshal(line, &got) })
	if err != nil {
		return got, err
	}
	kept.got, kept.at = got, time.Now()
	return got, nil
}

// decisions counts what the session's PID 1 has let through and not, as far as that is
// known without a new connection.
func (s *Sandbox) decisions(ctx context.Context) *EgressCount {
	s.mu.Lock()
	conn := s.link
	s.mu.Unlock()
	if conn == nil || conn.Err() != nil {
		return nil
	}
	reply, err := s.askOn(ctx, conn, wire.Control{Op: wire.OpNetwork})
	if err != nil || reply.Network == nil {
		return nil
	}
	return &EgressCount{Allowed: reply.Network.Allowed, Blocked: reply.Network.Blocked}
}

// foresee is Client.foresee for a session of a sandbox that has had one.
func (s *Sandbox) foresee(ctx context.Context) (wait func()) {
	p, _ := policyOf(s.known().Network())
	return s.c.foresee(ctx, s.eng, p, true)
}

// foresee has ready what a session under the policy will have to be told, beside its
// start; wait returns when it has looked. Whoever needs it looks again where this failed.
func (c *Client) foresee(ctx context.Context, eng *engine.Engine, p policy.Policy, servers bool) (wait func()) {
	if !looksUp(p) {
		return func() {}
	}
	var looking sync.WaitGroup
	looking.Go(func() { _, _ = c.surroundings(ctx, eng, servers) })
	return looking.Wait
}
