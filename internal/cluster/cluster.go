// Package cluster says which engine a call is for. Without a swarm that is the client's own. In a
// swarm, the managers have the list of nodes and the names of sandboxes; each node's engine has the
// sandboxes that are on it, and decides what fits.
package cluster

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/seed-1a2d6d8f/sandbox/internal/bound"
	"github.com/seed-1a2d6d8f/sandbox/internal/engine"
	"github.com/seed-1a2d6d8f/sandbox/internal/errdefs"
	"github.com/seed-1a2d6d8f/sandbox/internal/lifecycle"
	"github.com/seed-1a2d6d8f/sandbox/internal/record"
	"github.com/seed-1a2d6d8f/sandbox/internal/store"
)

// Options are those of a swarm.
type Options struct {
	// Host returns the address of a node's engine; "" is for the default: the address of the node,
	// in the way that the client's own engine is reached. It may be nil.
	Host func(engine.Node) string
	// CPUs and Memory are how many times the CPUs and the memory of a node sandboxes may have.
	CPUs, Memory float64
	// Engine are the options of connections to nodes, without an address.
	Engine engine.Options
	// On returns the client of a node.
	On func(*engine.Engine, store.Cluster) *lifecycle.Client
}

// Engines are those that a client works on. They are safe for concurrent use.
type Engines struct {
	own  *lifecycle.Client
	o    *Options // nil without a swarm
	self *member  // the node of own; nil without a swarm

	listing bound.Semaphore // held while nodes are listed
	placing sync.Mutex      // held while a node is chosen
	leader  leaderless

	mu      sync.Mutex
	nodes   []engine.Node // as last listed
	listed  time.Time
	members map[string]*member // by node ID
	places  map[string]*member // of sandboxes by name or ID, as last seen
	closed  bool
}

// One returns the engine of a client without a swarm.
func One(own *lifecycle.Client) *Engines { return &Engines{own: own} }

// Swarm returns the engines of the swarm that own is a manager of. If it fails, own may be closed.
func Swarm(ctx context.Context, own *engine.Engine, o Options) (*Engines, error) {
	node, managers, err := own.SwarmNode(ctx)
	switch {
	case err != nil:
		return nil, err
	case node.ID == "":
		return nil, fmt.Errorf("%w: the engine at %s is in no swarm: run docker swarm init there", errdefs.Unsupported, own.Host())
	case !node.Manager:
		return nil, fmt.Errorf("%w: the engine at %s is no manager of its swarm: use one that is, or run docker node promote", errdefs.Unsupported, own.Host())
	}
	e := &Engines{o: &o, listing: bound.NewSemaphore(1), members: map[string]*member{}, places: map[string]*member{}}
	e.self = newMember(e, node)
	e.own = o.On(own, e.self)
	e.self.client = e.own
	if o.Host == nil { // which may need the names of nodes
		for _, n := range managers {
			e.members[n.ID] = newMember(e, n)
		}
		e.nodes = managers // which answer, or don't, if there is no leader
	}
	e.members[node.ID] = e.self
	if _, err = e.list(ctx, true); err != nil {
		return nil, errors.Join(err, e.Close())
	}
	for _, m := range e.members {
		for _, l := range m.opened() {
			l.Location = m.last().Name
		}
	}
	return e, nil
}

// Own returns the client of the engine at the client's own address.
func (e *Engines) Own() *lifecycle.Client { return e.own }

// Close closes all connections.
func (e *Engines) Close() error {
	clients := []*lifecycle.Client{e.own}
	e.mu.Lock()
	e.closed = true
	for _, m := range e.members {
		if m != e.self {
			clients = append(clients, m.opened()...)
		}
	}
	e.mu.Unlock()
	var errs []error
	for _, l := range clients {
		l.Store.Close()
		errs = append(errs, l.Engine.Close())
	}
	return errors.Join(errs...)
}

// listFor is how long a list of nodes is used.
const listFor = 2 * time.Second

// list returns the nodes of the swarm. Unless now is set, a list of a moment ago is good enough.
func (e *Engines) list(ctx context.Context, now bool) ([]engine.Node, error) {
	leave, err := e.listing.Acquire(ctx)
	if err != nil {
		return nil, err
	}
	defer leave()
	e.mu.Lock()
	nodes, fresh := e.nodes, time.Since(e.listed) < listFor
	e.mu.Unlock()
	if fresh && !now {
		return nodes, nil
	}
	nodes, err = ask(ctx, e, func(m *engine.Engine) ([]engine.Node, error) { return m.Nodes(ctx) })
	if err != nil {
		return nil, err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.nodes, e.listed = nodes, time.Now()
	for _, n := range nodes {
		if e.members[n.ID] == nil {
			e.members[n.ID] = newMember(e, n)
		}
		e.members[n.ID].set(n)
	}
	return nodes, nil
}

// all returns the members of the swarm, by a list of a moment ago if there is one.
func (e *Engines) all(ctx context.Context) ([]*member, error) { return e.membersOf(e.list(ctx, false)) }

// allNow is all, by a list that is read now.
func (e *Engines) allNow(ctx context.Context) ([]*member, error) {
	return e.membersOf(e.list(ctx, true))
}

func (e *Engines) membersOf(nodes []engine.Node, err error) ([]*member, error) {
	if err != nil {
		return nil, err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	all := make([]*member, 0, len(nodes))
	for _, n := range nodes {
		all = append(all, e.members[n.ID])
	}
	return all, nil
}

// Missing is a node that did not answer.
type Missing struct {
	Node engine.Node
	Err  error
}

// Unanswered returns the errors of nodes that did not answer.
func Unanswered(missing []Missing) error {
	var errs []error
	for _, m := range missing {
		errs = append(errs, m.Err)
	}
	return errors.Join(errs...)
}

// atOnce bounds the nodes that one call asks at the same time.
const atOnce = 32

// Each calls fn with the client of each node, several at the same time. Nodes that don't answer are
// returned; any other error of fn is the call's.
func (e *Engines) Each(ctx context.Context, fn func(context.Context, *lifecycle.Client) error) ([]Missing, error) {
	if e.o == nil {
		return nil, fn(ctx, e.own)
	}
	return e.each(ctx, func(ctx context.Context, _ *member, l *lifecycle.Client) error { return fn(ctx, l) })
}

func (e *Engines) each(ctx context.Context, fn func(context.Context, *member, *lifecycle.Client) error) ([]Missing, error) {
	all, err := e.all(ctx)
	if err != nil {
		return nil, err
	}
	var mu sync.Mutex
	var missing []Missing
	var g errgroup.Group
	g.SetLimit(atOnce)
	for _, m := range all {
		g.Go(func() error {
			err := m.with(ctx, func(l *lifecycle.Client) error { return fn(ctx, m, l) })
			if isUnavailable(err) && ctx.Err() == nil {
				mu.Lock()
				defer mu.Unlock()
				missing = append(missing, Missing{m.last(), err})
				return nil
			}
			return err
		})
	}
	err = g.Wait()
	slices.SortFunc(missing, func(a, b Missing) int { return cmp.Compare(a.Node.Name, b.Node.Name) })
	return missing, err
}

func isUnavailable(err error) bool {
	return errors.Is(store.Classify(err), errdefs.EngineUnavailable)
}

// On calls fn with the client of the engine that has the sandbox of that name or ID. That is the
// client's own if the swarm knows of none: it may have been created before the engine joined, or by a
// client without a swarm. fn may be called again if it returns that there is no such sandbox.
func (e *Engines) On(ctx context.Context, nameOrID string, fn func(*lifecycle.Client) error) error {
	_, err := e.on(ctx, nameOrID, fn, false)
	return err
}

// on is On. It returns the node that answered, or did not. A noted deletion is carried out first, unless fn is
// a deletion.
func (e *Engines) on(ctx context.Context, nameOrID string, fn func(*lifecycle.Client) error, deletes bool) (*member, error) {
	if e.o == nil {
		return nil, fn(e.own)
	}
	if m := e.recall(nameOrID); m != nil {
		err := m.with(ctx, fn)
		if err != nil {
			e.forget(nameOrID)
		}
		if !errors.Is(err, errdefs.NotFound) {
			return m, err
		}
	}
	for {
		en, m, err := e.find(ctx, nameOrID)
		if errors.Is(err, errdefs.NotFound) {
			return e.self, e.self.with(ctx, fn)
		}
		if err == nil && m != nil && en.of.Deletes != nil && !deletes {
			if err := e.carryOut(ctx, en, m); err != nil {
				return m, err
			}
			continue
		}
		if err == nil && m != nil {
			err = m.with(ctx, fn)
			if err == nil {
				e.remember(nameOrID, m)
			}
			if !errors.Is(err, errdefs.NotFound) {
				return m, err
			}
		}
		if err != nil && m == nil {
			return nil, err
		}
		// The sandbox was deleted, and perhaps created elsewhere since.
		if removed, e := e.removeStale(ctx, en, m); e != nil || !removed {
			return m, errors.Join(err, e)
		}
	}
}

// maxRemembered bounds the sandboxes whose nodes are remembered.
const maxRemembered = 4096

// remember notes that a node has a sandbox. While the node has one of that name or ID nobody else has
// to be asked: one that was moved is not there any more.
func (e *Engines) remember(nameOrID string, m *member) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.places) >= maxRemembered {
		clear(e.places)
	}
	e.places[nameOrID] = m
}

func (e *Engines) recall(nameOrID string) *member {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.places[nameOrID]
}

func (e *Engines) forget(nameOrID string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.places, nameOrID)
}

// Holding calls fn with the client of the node that has the volume, and with the client's own if none
// has it.
func (e *Engines) Holding(ctx context.Context, volume string, fn func(*lifecycle.Client) error) error {
	if e.o == nil {
		return fn(e.own)
	}
	some, err := e.holders(ctx, []string{volume})
	if err != nil {
		return err
	}
	if len(some) == 0 {
		return fn(e.own)
	}
	return some[0].with(ctx, fn)
}

// holders returns the members that have all of the volumes. It fails if there is none and one that did
// not answer may be it.
func (e *Engines) holders(ctx context.Context, volumes []string) ([]*member, error) {
	var mu sync.Mutex
	var some []*member
	missing, err := e.each(ctx, func(ctx context.Context, m *member, l *lifecycle.Client) error {
		for _, v := range volumes {
			if _, err := l.Engine.InspectVolume(ctx, v); errors.Is(err, engine.ErrNotFound) {
				return nil
			} else if err != nil {
				return err
			}
		}
		mu.Lock()
		defer mu.Unlock()
		some = append(some, m)
		return nil
	})
	if err == nil && len(some) == 0 {
		err = Unanswered(missing)
	}
	return some, err
}

// Entries returns what is known of the sandboxes on nodes that don't answer.
func (e *Engines) Entries(ctx context.Context, missing []Missing) ([]record.Entry, error) {
	if len(missing) == 0 {
		return nil, nil
	}
	list, err := e.entries(ctx, record.Filter(record.Role, record.RoleEntry))
	if err != nil {
		return nil, err
	}
	var some []record.Entry
	for _, en := range list {
		if i := slices.IndexFunc(missing, func(m Missing) bool { return m.Node.ID == en.of.Node }); i >= 0 {
			en.of.Host = missing[i].Node.Name
			some = append(some, en.of)
		}
	}
	return some, nil
}
