package cluster

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/seed-1a2d6d8f/sandbox/internal/bound"
	"github.com/seed-1a2d6d8f/sandbox/internal/engine"
	"github.com/seed-1a2d6d8f/sandbox/internal/errdefs"
	"github.com/seed-1a2d6d8f/sandbox/internal/lifecycle"
)

// A member is a node of the swarm, with the connection to its engine.
type member struct {
	e *Engines

	connecting bound.Semaphore // held while connecting
	counting   bound.Semaphore // held while counting sandboxes
	copying    bound.Semaphore // held while an image is copied to the node

	mu      sync.Mutex
	node    engine.Node // as last listed
	client  *lifecycle.Client
	host    string // the address that client was opened with
	earlier []*lifecycle.Client

	load    load // of its sandboxes, but those of begun, when they were last counted
	counted time.Time
	begun   map[string]load   // by name: what this client is creating there
	limits  map[string]limits // by container: replaced, never changed
}

func newMember(e *Engines, n engine.Node) *member {
	return &member{e: e, node: n, connecting: bound.NewSemaphore(1), counting: bound.NewSemaphore(1), copying: bound.NewSemaphore(1), begun: map[string]load{}}
}

// set notes what the managers say about the node.
func (m *member) set(n engine.Node) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.node = n
}

// last returns what the managers last said about the node.
func (m *member) last() engine.Node {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.node
}

// opened returns all clients that were opened. No other is opened after the Engines are closed.
func (m *member) opened() (all []*lifecycle.Client) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.client != nil {
		all = append(all, m.client)
	}
	return append(all, m.earlier...)
}

// with calls fn with the client of the node. Errors of an engine that does not answer name the node.
func (m *member) with(ctx context.Context, fn func(*lifecycle.Client) error) error {
	l, err := m.connect(ctx)
	if err != nil {
		return err
	}
	return m.explain(fn(l))
}

// explain adds the node's name to the error of an engine that does not answer.
func (m *member) explain(err error) error {
	if !isUnavailable(err) {
		return err
	}
	return fmt.Errorf("node %s: %w", m.last().Name, err)
}

// The time for a connection to a node's engine: short if the swarm does not hear from the node, which
// may be wrong.
const (
	openTime     = 10 * time.Second
	openTimeDown = 2 * time.Second
)

// connect returns the client of the node. Errors are not cached.
func (m *member) connect(ctx context.Context) (*lifecycle.Client, error) {
	if m == m.e.self {
		return m.client, nil
	}
	leave, err := m.connecting.Acquire(ctx)
	if err != nil {
		return nil, err
	}
	defer leave()
	m.mu.Lock()
	n, l, was := m.node, m.client, m.host
	m.mu.Unlock()
	host := ""
	if m.e.o.Host != nil {
		host = m.e.o.Host(n)
	}
	at := host
	if at == "" {
		at = n.Addr
	}
	if l != nil && at == was {
		return l, nil
	}
	eng, err := m.open(ctx, n, host)
	if err != nil {
		return nil, unreached(n, err)
	}
	l = m.e.o.On(eng, m)
	m.e.mu.Lock()
	defer m.e.mu.Unlock()
	if m.e.closed {
		return nil, errors.Join(errdefs.Closed, eng.Close())
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.client != nil {
		m.earlier = append(m.earlier, m.client) // there may be handles on it
	}
	l.Location = n.Name
	m.client, m.host = l, at
	return l, nil
}

func (m *member) open(ctx context.Context, n engine.Node, host string) (*engine.Engine, error) {
	o := m.e.o.Engine
	o.DialTimeout = openTime
	if n.Down() {
		o.DialTimeout = openTimeDown
	}
	if host == "" {
		return m.e.own.Engine.Beside(ctx, n.Addr, o)
	}
	o.Host = host
	return engine.Open(ctx, o)
}

// unreached is the error of a node whose engine can't be connected to, in one line.
func unreached(n engine.Node, err error) error {
	var tried *engine.UnreachableError
	if errors.As(err, &tried) {
		last := tried.Tried[len(tried.Tried)-1]
		err = errdefs.Classify(errdefs.EngineUnavailable, fmt.Errorf("%s: %w", last.Host, last.Err))
	}
	if n.Down() {
		return fmt.Errorf("node %s, which the swarm does not hear from (%s): %w", n.Name, n.Message, err)
	}
	return fmt.Errorf("node %s: %w", n.Name, err)
}
