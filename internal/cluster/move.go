package cluster

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/seed-1a2d6d8f/sandbox/internal/bound"
	"github.com/seed-1a2d6d8f/sandbox/internal/engine"
	"github.com/seed-1a2d6d8f/sandbox/internal/errdefs"
	"github.com/seed-1a2d6d8f/sandbox/internal/lifecycle"
	"github.com/seed-1a2d6d8f/sandbox/internal/machine"
	"github.com/seed-1a2d6d8f/sandbox/internal/record"
	"github.com/seed-1a2d6d8f/sandbox/internal/store"
)

// A move replaces the labels of the name's entry: the sandbox counts on the node that the entry names.
// The managers do so only if the entry is as it was found when the move began. So who finds the move's
// markers expired writes the same labels once more: after that a mover that lives nevertheless can't.

// A Move says what a move did.
type Move struct {
	From, To  string   // names of nodes
	Snapshots []string // IDs of those that stay on From
}

// Move moves a sandbox that does not run to the node of that name or ID.
func (e *Engines) Move(ctx context.Context, nameOrID, node string, report *machine.Reporter) (did Move, err error) {
	if e.o == nil {
		return did, fmt.Errorf("%w: the client is not for a swarm, see WithSwarm", errdefs.Unsupported)
	}
	to, err := e.target(ctx, node)
	if err != nil {
		return did, err
	}
	err = e.On(ctx, nameOrID, func(l *lifecycle.Client) error {
		rec, got, err := l.Store.AwaitCreated(ctx, nameOrID)
		if err != nil {
			return err
		}
		from, err := e.memberAt(ctx, l)
		if err != nil {
			return err
		}
		did.From, did.To = from.last().Name, to.last().Name
		if from == to {
			return nil
		}
		if err := to.takes(ctx, load{got.NanoCPUs, got.Memory}); err != nil {
			return err
		}
		en, err := e.entryToMove(ctx, from, rec)
		if err != nil {
			return err
		}
		if did.Snapshots, err = snapshotsOf(ctx, l, rec.ID); err != nil {
			return err
		}
		return to.with(ctx, func(there *lifecycle.Client) error {
			return l.Move(ctx, there, from.last().ID, rec, func(ctx context.Context, was, now record.Sandbox, previous string) (bool, error) {
				return e.switchTo(ctx, en, to, was, now, previous)
			}, report)
		})
	})
	e.forget(nameOrID)
	return did, err
}

// target returns the node of that name or ID, if it takes new work.
func (e *Engines) target(ctx context.Context, node string) (*member, error) {
	all, err := e.allNow(ctx)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, m := range all {
		n := m.last()
		names = append(names, n.Name)
		if n.Name != node && n.ID != node {
			continue
		}
		switch {
		case n.Down():
			return nil, errdefs.Classify(errdefs.EngineUnavailable, fmt.Errorf("node %s is down: %s", n.Name, n.Message))
		case !n.Active():
			return nil, fmt.Errorf("%w: node %s is paused or drained", errdefs.NoCapacity, n.Name)
		}
		return m, nil
	}
	return nil, errdefs.Invalid("no node has the name or ID %q: the swarm has %s", node, strings.Join(names, ", "))
}

// memberAt returns the node that a client is for.
func (e *Engines) memberAt(ctx context.Context, l *lifecycle.Client) (*member, error) {
	all, err := e.all(ctx)
	if err != nil {
		return nil, err
	}
	for _, m := range all {
		for _, opened := range m.opened() {
			if opened == l {
				return m, nil
			}
		}
	}
	return nil, fmt.Errorf("%w: the node of the sandbox has left the swarm", errdefs.EngineUnavailable)
}

// takes fails if a sandbox with such limits would not fit beside those that run on the node.
func (m *member) takes(ctx context.Context, l load) error {
	if err := m.count(ctx, true); err != nil {
		return err
	}
	if taken, limit := m.taken(), m.limit(); !taken.plus(l).fits(limit) {
		return noRoom(l, useOf(m.last(), taken, limit).Error())
	}
	return nil
}

// entryToMove returns the entry of a sandbox that is on a node. One without gets it, since its node
// may have joined the swarm later.
func (e *Engines) entryToMove(ctx context.Context, from *member, rec record.Sandbox) (entry, error) {
	en, err := e.named(ctx, rec.Name)
	if errors.Is(err, errdefs.NotFound) {
		if err := from.Claim(ctx, rec); err != nil {
			return en, err
		}
		en, err = e.named(ctx, rec.Name)
	}
	if err == nil && en.of.Deletes != nil {
		return en, fmt.Errorf("%w: %s", errdefs.NotFound, noted) // which On carries out
	}
	if err == nil && en.of.Nonce != rec.Nonce {
		err = fmt.Errorf("%w: in the swarm the name is that of a sandbox on node %s", errdefs.Exists, en.of.Host)
	}
	return en, err
}

// snapshotsOf returns the IDs of a sandbox's snapshots.
func snapshotsOf(ctx context.Context, l *lifecycle.Client, sandboxID string) (ids []string, err error) {
	all, _, err := l.Store.ListSnapshots(ctx)
	for _, s := range all {
		if s.SandboxID == sandboxID {
			ids = append(ids, s.ID)
		}
	}
	return ids, err
}

// switchTo makes the sandbox on the node to the one that counts, and removes the other one.
func (e *Engines) switchTo(ctx context.Context, en entry, to *member, was, now record.Sandbox, previous string) (moved bool, err error) {
	n, old := to.last(), en.of
	next := record.Entry{Name: now.Name, ID: now.ID, Nonce: now.Nonce, Node: n.ID, Host: n.Hostname, CreatedAt: old.CreatedAt,
		From: was.Nonce, Previous: previous}
	// Its reply may be lost, which Settle finds out. The end of ctx is no reason to leave that open.
	updateErr := bound.Finish(ctx, func(ctx context.Context) error { return e.update(ctx, en, next) })
	err = bound.Detached(ctx, store.UndoTimeout, "the swarm did not say whether the sandbox was moved", func(ctx context.Context) error {
		return engine.Retry(ctx, func() (err error) {
			moved, err = e.settle(ctx, now.Name, was.Nonce, old.Node)
			return err
		})
	})
	switch {
	case err != nil:
		return false, fmt.Errorf("%w: %w", store.ErrUnsettled, errors.Join(err, updateErr))
	case !moved && updateErr != nil:
		return false, updateErr
	}
	return moved, nil
}

// update replaces what an entry says, if it is as it was found.
func (e *Engines) update(ctx context.Context, en entry, next record.Entry) error {
	_, err := ask(ctx, e, func(m *engine.Engine) (struct{}, error) {
		return struct{}{}, m.UpdateEntry(ctx, en.found, next.Labels())
	})
	return err
}

// Settle implements [store.Cluster].
func (m *member) Settle(ctx context.Context, mk record.Marker) (moved bool, err error) {
	return m.e.settle(ctx, mk.Name, mk.From, mk.Node)
}

// settle says whether the sandbox with the nonce from, on the node with the ID at, was moved. If so it
// removes it there. Otherwise it is not moved any more.
func (e *Engines) settle(ctx context.Context, name, from, at string) (moved bool, err error) {
	for {
		en, err := e.named(ctx, name)
		switch {
		case errors.Is(err, errdefs.NotFound):
			return false, nil // somebody removed it: what it was about can't be replaced any more
		case err != nil:
			return false, err
		case en.of.Nonce == from:
			if err := e.update(ctx, en, en.of); err == nil {
				return false, nil
			} else if now, lookErr := e.named(ctx, name); lookErr != nil || now.found.Version == en.found.Version {
				return false, err
			}
			continue // it was replaced meanwhile
		case en.of.From != from:
			return false, nil
		}
		dropped, err := e.dropMoved(ctx, en, at)
		if err != nil || dropped {
			return dropped, err
		}
		// A session was started there at the last moment. It goes on there, and the copy is removed.
		back := record.Entry{Name: en.of.Name, ID: en.of.ID, Nonce: from, Node: at, CreatedAt: en.of.CreatedAt, Deletes: en.of.Deletes}
		if m, err := e.memberOf(ctx, back); err != nil {
			return false, err
		} else if m != nil {
			back.Host = m.last().Hostname
		}
		if err := e.update(ctx, en, back); err != nil {
			if now, lookErr := e.named(ctx, name); lookErr != nil || now.found.Version == en.found.Version {
				return false, err
			}
		}
	}
}

// dropMoved removes a sandbox on the node with the ID at that was moved to the node of the entry, see
// [store.Store.DropMoved].
func (e *Engines) dropMoved(ctx context.Context, en entry, at string) (dropped bool, err error) {
	here, err := e.memberOf(ctx, en.of)
	if err != nil {
		return false, err
	}
	there, err := e.memberOf(ctx, record.Entry{Node: at})
	if err != nil || there == nil {
		return there == nil, err // a node that has left the swarm has no sandboxes
	}
	var volumes []string
	if here != nil {
		err = here.with(ctx, func(l *lifecycle.Client) error {
			got, err := l.Engine.InspectContainer(ctx, record.ContainerName(en.of.Name))
			for _, m := range got.Mounts {
				if m.Type == "volume" {
					volumes = append(volumes, m.Name)
				}
			}
			return err
		})
	}
	if err != nil {
		return false, err
	}
	rec := record.Sandbox{Name: en.of.Name, ID: en.of.ID, Nonce: en.of.From}
	err = there.with(ctx, func(l *lifecycle.Client) (err error) {
		dropped, err = l.Store.DropMoved(ctx, rec, en.of.Previous, volumes)
		return err
	})
	return dropped, err
}
