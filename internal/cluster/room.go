package cluster

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/seed-1a2d6d8f/sandbox/internal/bound"
	"github.com/seed-1a2d6d8f/sandbox/internal/engine"
	"github.com/seed-1a2d6d8f/sandbox/internal/errdefs"
	"github.com/seed-1a2d6d8f/sandbox/internal/lifecycle"
	"github.com/seed-1a2d6d8f/sandbox/internal/plan"
	"github.com/seed-1a2d6d8f/sandbox/internal/record"
)

// A load is the limits of one or several sandboxes.
type load struct{ nanoCPUs, memory int64 }

func loadOf(p *plan.Sandbox) load { return load{int64(p.VCPUs * 1e9), p.Memory} }

func (l load) plus(more load) load { return load{l.nanoCPUs + more.nanoCPUs, l.memory + more.memory} }

func (l load) fits(limit load) bool { return l.nanoCPUs <= limit.nanoCPUs && l.memory <= limit.memory }

// share is how much of a limit is taken: that of CPUs or of memory, whichever is larger.
func (l load) share(limit load) float64 {
	return max(float64(l.nanoCPUs)/float64(max(limit.nanoCPUs, 1)), float64(l.memory)/float64(max(limit.memory, 1)))
}

func (l load) String() string {
	return fmt.Sprintf("%.4g CPUs and %d MiB", float64(l.nanoCPUs)/1e9, l.memory>>20)
}

// useOf says what the sandboxes of a node use.
func useOf(n engine.Node, used, limit load) error {
	return fmt.Errorf("node %s uses %.4g of %.4g CPUs and %d of %d MiB", n.Name,
		float64(used.nanoCPUs)/1e9, float64(limit.nanoCPUs)/1e9, used.memory>>20, limit.memory>>20)
}

// noRoom is the error that no node has room for a sandbox.
func noRoom(needed load, nodes ...string) error {
	return fmt.Errorf("%w: the sandbox needs %v: %s: stop a sandbox or add a node", errdefs.NoCapacity, needed, strings.Join(nodes, "; "))
}

// limit is what sandboxes may have on the node.
func (m *member) limit() load {
	n := m.last()
	return load{int64(float64(n.NanoCPUs) * m.e.o.CPUs), int64(float64(n.Memory) * m.e.o.Memory)}
}

// countedFor is how long a count of a node's sandboxes is good enough to choose a node. What this client creates
// meanwhile is added to it, others change little in that time, and before an error that no node has room they are
// counted again.
const countedFor = 5 * time.Second

// count counts the node's sandboxes. Unless now is set, a count of a moment ago is good enough, if the engine
// still answers.
func (m *member) count(ctx context.Context, now bool) error {
	leave, err := m.counting.Acquire(ctx)
	if err != nil {
		return err
	}
	defer leave()
	m.mu.Lock()
	fresh := time.Since(m.counted) < countedFor
	m.mu.Unlock()
	if fresh && !now {
		return m.with(ctx, func(l *lifecycle.Client) error { return l.Engine.Ping(ctx) })
	}
	began := time.Now()
	var all []session
	if err := m.with(ctx, func(l *lifecycle.Client) (err error) {
		all, err = m.sessions(ctx, l, "")
		return err
	}); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.load, m.counted = load{}, began
	for _, s := range all {
		if _, begun := m.begun[s.rec.Name]; !begun {
			m.load = m.load.plus(s.load)
		}
	}
	return nil
}

// taken is the load of the sandboxes that were counted, and of those that this client creates.
func (m *member) taken() load {
	m.mu.Lock()
	defer m.mu.Unlock()
	sum := m.load
	for _, l := range m.begun {
		sum = sum.plus(l)
	}
	return sum
}

// begin notes that this client creates a sandbox.
func (m *member) begin(name string, l load) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.begun[name] = l
}

// end notes that it has done so, or has failed to.
func (m *member) end(name string, created bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if created {
		m.load = m.load.plus(m.begun[name])
	}
	delete(m.begun, name)
}

// A NodeState is a node with what its sandboxes take.
type NodeState struct {
	Node                   engine.Node
	NanoCPUs, UsedNanoCPUs int64 // that sandboxes may have, and of those that run or are being created
	Memory, UsedMemory     int64
	Err                    error // of a node that did not answer
}

// Nodes lists the nodes of the swarm, and counts what their sandboxes take.
func (e *Engines) Nodes(ctx context.Context) ([]NodeState, error) {
	if e.o == nil {
		return nil, fmt.Errorf("%w: the client is not for a swarm, see WithSwarm", errdefs.Unsupported)
	}
	all, err := e.allNow(ctx)
	if err != nil {
		return nil, err
	}
	states := make([]NodeState, len(all))
	var counts errgroup.Group
	counts.SetLimit(atOnce)
	for i, m := range all {
		counts.Go(func() error {
			err := m.count(ctx, true)
			limit, used := m.limit(), load{}
			if err == nil {
				used = m.taken()
			}
			states[i] = NodeState{m.last(), limit.nanoCPUs, used.nanoCPUs, limit.memory, used.memory, err}
			return ctx.Err()
		})
	}
	return states, counts.Wait()
}

// A session is a sandbox that runs, or that is being created.
type session struct {
	rec      record.Sandbox
	creating bool // it does not run yet
	load     load
}

// before reports whether the creation of s began before that of another sandbox.
func (s session) before(rec record.Sandbox) bool {
	if at := s.rec.CreatedAt.Compare(rec.CreatedAt); at != 0 {
		return at < 0
	}
	return strings.Compare(s.rec.Nonce, rec.Nonce) < 0
}

// limitsFor is how long limits are used that were read from the engine. Every change by this module is a revision,
// after which they are read again; those by others, such as docker update, are seen after this time.
const limitsFor = time.Minute

// limits are the limits of a container, as they were read.
type limits struct {
	load
	revision string // the nonce of the sandbox's latest revision then
	read     time.Time
}

// sessions returns what takes room on an engine, but for the sandbox with the name except. The limits are those that
// the engine enforces.
func (m *member) sessions(ctx context.Context, l *lifecycle.Client, except string) (all []session, err error) {
	inventory, err := l.Store.List(ctx)
	if err != nil {
		return nil, err
	}
	m.mu.Lock()
	known := m.limits
	m.mu.Unlock()
	var mu sync.Mutex
	now := make(map[string]limits, len(known))
	g, own := errgroup.WithContext(ctx)
	g.SetLimit(8)
	for _, c := range inventory.Containers {
		creating := !c.Container.HasSession() && inventory.Pending(c.Record)
		if !c.IsSandbox || c.Record.Name == except || !creating && !c.Container.HasSession() {
			continue
		}
		g.Go(func() error {
			lim, revision := known[c.Container.ID], inventory.Revisions.Of(c.Record).Revision.Nonce
			if lim.read.IsZero() || lim.revision != revision || time.Since(lim.read) > limitsFor {
				lim = limits{revision: revision, read: time.Now()}
				got, err := l.Engine.InspectContainer(own, c.Container.ID) // lists have no limits
				if errors.Is(err, engine.ErrNotFound) {
					return nil
				}
				if err != nil {
					return err
				}
				lim.load = load{got.NanoCPUs, got.Memory}
			}
			mu.Lock()
			defer mu.Unlock()
			now[c.Container.ID] = lim
			all = append(all, session{c.Record, creating, lim.load})
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.limits = now
	return all, nil
}

// precedenceTime bounds how long a sandbox waits for others that were begun later and may have taken its
// room already.
const precedenceTime = 10 * time.Second

// Room implements [store.Cluster]. Two sandboxes that are created at the same moment see each other, or one
// sees the other. The one that was begun later gives way; the other one waits until it has, or runs.
func (m *member) Room(ctx context.Context, rec record.Sandbox, nanoCPUs, memory int64) error {
	l, err := m.connect(ctx)
	if err != nil {
		return err
	}
	own, limit, until := load{nanoCPUs, memory}, m.limit(), time.Now().Add(precedenceTime)
	for {
		all, err := m.sessions(ctx, l, rec.Name)
		if err != nil {
			return err
		}
		var taken, ahead load
		for _, s := range all {
			taken = taken.plus(s.load)
			if !s.creating || s.before(rec) {
				ahead = ahead.plus(s.load)
			}
		}
		switch {
		case taken.plus(own).fits(limit):
			return nil
		case !ahead.plus(own).fits(limit), time.Now().After(until):
			return noRoom(own, useOf(m.last(), taken, limit).Error())
		}
		if err := bound.Sleep(ctx, 50*time.Millisecond); err != nil {
			return err
		}
	}
}
