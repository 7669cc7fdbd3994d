package machine

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"github.com/seed-1a2d6d8f/sandbox/internal/bound"
	"github.com/seed-1a2d6d8f/sandbox/internal/engine"
	"github.com/seed-1a2d6d8f/sandbox/internal/errdefs"
	"github.com/seed-1a2d6d8f/sandbox/internal/guest/wire"
	"github.com/seed-1a2d6d8f/sandbox/internal/policy"
)

// NetworkFacts are the facts about the engine's network that PID 1 needs.
type NetworkFacts struct {
	Protect     []netip.Prefix // the machine's own addresses
	Upstream    []netip.Addr   // the DNS servers that containers get
	Authorities string         // certificates in PEM, beside the public ones
}

// cacheTime is how long the result of a helper is used: machines move between networks, and
// a probe costs a container.
const cacheTime = 10 * time.Minute

// Network returns the facts of the engine's network. PID 1 gets the DNS servers with them, and reads
// none from its container's files, which a session may have written.
func (m *Machine) Network(ctx context.Context) (NetworkFacts, error) {
	var dns wire.Probe
	var dnsErr error
	var wg sync.WaitGroup
	ask := len(m.dns) == 0
	if ask {
		wg.Go(func() { dns, dnsErr = m.probe(ctx, &m.facts.bridge, "bridge") })
	}
	machine, err := m.probe(ctx, &m.facts.host, "host")
	wg.Wait()
	if err := errors.Join(err, dnsErr); err != nil {
		return NetworkFacts{}, err
	}
	s := NetworkFacts{Authorities: m.authorities}
	none, err := policy.Policy{Mode: policy.DenyAll}.Compile()
	if err != nil {
		return s, err
	}
	for _, a := range machine.Addresses {
		if none.Addr(a) != policy.Protected {
			s.Protect = append(s.Protect, netip.PrefixFrom(a, a.BitLen()))
		}
	}
	if len(s.Protect) > wire.MaxProtect {
		return s, fmt.Errorf("the machine has %d public addresses; up to %d can be protected", len(s.Protect), wire.MaxProtect)
	}
	s.Upstream = append(dns.Servers, m.dns...)
	if len(s.Upstream) == 0 {
		return s, errors.New("containers on the default bridge get no DNS server that others could ask: name one with WithDNS")
	}
	return s, nil
}

// probe runs a helper in one of the engine's networks.
func (m *Machine) probe(ctx context.Context, cache *cached[wire.Probe], network string) (wire.Probe, error) {
	return cache.get(ctx, m, func(spec *engine.ContainerSpec) {
		spec.NetworkDisabled, spec.NetworkMode = false, network
		spec.Entrypoint = append(spec.Entrypoint, wire.VerbProbe)
	})
}

// Abilities are what an engine can't do for the containers of an OCI runtime, and why. An error is
// nil if it can.
type Abilities struct {
	Policy  error // network policies, other than by having no network
	Reflink error // copies of files that share blocks
	Layer   error // keep files outside of volumes when a container ends
}

// Abilities tries what the engine supports with an OCI runtime; "" is the engine's default.
func (m *Machine) Abilities(ctx context.Context, runtime string) (a Abilities, err error) {
	fresh := newCached[wire.Abilities]()
	cache, _ := m.facts.abilities.LoadOrStore(runtime, &fresh)
	got, err := cache.(*cached[wire.Abilities]).get(ctx, m, func(spec *engine.ContainerSpec) {
		own := m.knownGuest().Mount(wire.Dir) // any volume will do
		own.ReadOnly = false
		spec.Mounts = []engine.Mount{own}
		spec.CapAdd = append(spec.CapAdd, "NET_ADMIN")
		spec.Runtime, spec.ReadonlyRootfs = runtime, false
		spec.Entrypoint = append(spec.Entrypoint, wire.VerbTry, wire.Dir)
	})
	if err != nil {
		return a, err
	}
	if got.Policy != "" {
		a.Policy = NewRefusal(wire.RefusedUnsupported, got.Policy)
	}
	if got.Reflink != "" {
		a.Reflink = fmt.Errorf("%w: files in the engine's volumes can't share blocks: %s: put them on a disk with XFS or Btrfs", errdefs.Unsupported, got.Reflink)
	}
	if got.Volatile {
		a.Layer = fmt.Errorf("%w: with this OCI runtime all files outside of volumes are lost when a sandbox stops or is forked: "+
			`configure gVisor's in the engine's daemon.json with "runtimeArgs": ["--overlay2=none"]`, errdefs.Unsupported)
	}
	return a, nil
}

// cached is the result of a helper, for cacheTime.
type cached[T any] struct {
	lock bound.Semaphore // of the other fields
	at   time.Time
	got  T
}

func newCached[T any]() cached[T] { return cached[T]{lock: bound.NewSemaphore(1)} }

// get returns the cached result, or that of a new helper.
func (c *cached[T]) get(ctx context.Context, m *Machine, adjust func(*engine.ContainerSpec)) (got T, err error) {
	release, err := c.lock.Acquire(ctx)
	if err != nil {
		return got, err
	}
	defer release()
	if !c.at.IsZero() && time.Since(c.at) < cacheTime {
		return c.got, nil
	}
	if err := m.query(ctx, adjust, &got); err != nil {
		return got, err
	}
	c.got, c.at = got, time.Now()
	return got, nil
}

// Prefetch fills the cache of [Machine.Network] in the background, if a session under the
// policy needs it; wait returns when that is done. A failure is not reported: the session's
// own call of Network will fail, too.
func (m *Machine) Prefetch(ctx context.Context, p policy.Policy) (wait func()) {
	if !p.LooksUp() {
		return func() {}
	}
	var wg sync.WaitGroup
	wg.Go(func() { _, _ = m.Network(ctx) })
	return wg.Wait
}

// refusal is the error of a policy that PID 1 could not enforce.
type refusal struct{ kind, reason string }

// NewRefusal returns the error for PID 1's refusal of a policy.
func NewRefusal(kind, reason string) error { return &refusal{kind, reason} }

func (e *refusal) Error() string {
	if e.kind != wire.RefusedUnsupported {
		return "this network policy can't be enforced: " + e.reason
	}
	return "network policies can't be enforced on this engine, and nothing runs without: " + e.reason +
		": it takes a Linux kernel with nftables (nf_tables, nft_ct, nft_redir, nft_reject_inet), and an OCI runtime, such as runc, that lets a container with NET_ADMIN use it; " +
		"a sandbox of another OCI runtime can have the policy DenyAll without published ports, which gives it no network"
}

func (e *refusal) Unwrap() error { return errdefs.Unsupported }

// IsRefusal reports whether err is from NewRefusal.
func IsRefusal(err error) bool {
	var r *refusal
	return errors.As(err, &r)
}
