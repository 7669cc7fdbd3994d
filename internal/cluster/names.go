package cluster

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/seed-1a2d6d8f/sandbox/internal/bound"
	"github.com/seed-1a2d6d8f/sandbox/internal/claim"
	"github.com/seed-1a2d6d8f/sandbox/internal/engine"
	"github.com/seed-1a2d6d8f/sandbox/internal/errdefs"
	"github.com/seed-1a2d6d8f/sandbox/internal/lifecycle"
	"github.com/seed-1a2d6d8f/sandbox/internal/plan"
	"github.com/seed-1a2d6d8f/sandbox/internal/record"
	"github.com/seed-1a2d6d8f/sandbox/internal/store"
)

// The name of a sandbox is an entry in the swarm's store, of which the managers let nobody create two.
// A creator makes its marker on the node's engine first and the entry second, and the marker lasts
// until the container is complete. So an entry of which the node has neither is left over from a
// program that died, or from a deletion by a client without the swarm.

// entry is an entry with its ID in the swarm's store.
type entry struct {
	of    record.Entry
	found engine.Entry
}

// entryOf decodes what is in the store.
func entryOf(got engine.Entry) (entry, error) {
	en, ok := record.DecodeEntry(got.Labels)
	if !ok || got.Name != record.EntryName(en.Name) {
		return entry{}, &record.ForeignError{Kind: "config", Object: got.Name}
	}
	return entry{en, got}, nil
}

// named returns the entry of a name. The error is errdefs.NotFound if there is none.
func (e *Engines) named(ctx context.Context, name string) (entry, error) {
	got, err := ask(ctx, e, func(m *engine.Engine) (engine.Entry, error) { return m.FindEntry(ctx, record.EntryName(name)) })
	if errors.Is(err, engine.ErrNotFound) {
		return entry{}, errdefs.NotFound
	}
	if err != nil {
		return entry{}, err
	}
	return entryOf(got)
}

// entries lists the entries with these labels.
func (e *Engines) entries(ctx context.Context, labels ...string) ([]entry, error) {
	list, err := ask(ctx, e, func(m *engine.Engine) ([]engine.Entry, error) {
		return m.ListEntries(ctx, append([]string{record.Filter(record.Managed, "true")}, labels...)...)
	})
	var all []entry
	for _, got := range list {
		if en, err := entryOf(got); err == nil {
			all = append(all, en)
		}
	}
	return all, err
}

// find returns the entry of a sandbox of that name, else of that ID, and its node, which is nil if it
// has left the swarm.
func (e *Engines) find(ctx context.Context, nameOrID string) (entry, *member, error) {
	en, err := e.named(ctx, nameOrID)
	if errors.Is(err, errdefs.NotFound) {
		var list []entry
		if list, err = e.entries(ctx, record.Filter(record.ID, nameOrID)); err == nil && len(list) == 0 {
			err = errdefs.NotFound
		} else if err == nil {
			en = list[0]
		}
	}
	if err != nil {
		return en, nil, err
	}
	m, err := e.memberOf(ctx, en.of)
	return en, m, err
}

// memberOf returns the node of an entry, or nil if it has left the swarm. One that has joined again has
// another ID, and the same name.
func (e *Engines) memberOf(ctx context.Context, en record.Entry) (*member, error) {
	all, err := e.all(ctx)
	if err != nil {
		return nil, err
	}
	for _, is := range []func(engine.Node) bool{
		func(n engine.Node) bool { return n.ID == en.Node },
		func(n engine.Node) bool { return n.Hostname == en.Host },
	} {
		if i := slices.IndexFunc(all, func(m *member) bool { return is(m.last()) }); i >= 0 {
			return all[i], nil
		}
	}
	return nil, nil
}

// removeStale removes an entry if its node, m, has nothing of the sandbox, or has left the swarm. An entry
// whose node does not answer stays. A noted deletion is carried out before, whether it removed the entry or not.
func (e *Engines) removeStale(ctx context.Context, en entry, m *member) (removed bool, err error) {
	if m != nil && en.of.Deletes != nil {
		if err := e.carryOut(ctx, en, m); err != nil {
			return false, err
		}
	}
	if m != nil {
		stale := false
		err := m.with(ctx, func(l *lifecycle.Client) (err error) {
			stale, err = isStale(ctx, l, en.of)
			return err
		})
		if err != nil || !stale {
			return false, err
		}
	}
	return true, e.remove(ctx, en)
}

// remove removes an entry. A later one of its name stays.
func (e *Engines) remove(ctx context.Context, en entry) error {
	_, err := ask(ctx, e, func(m *engine.Engine) (struct{}, error) { return struct{}{}, m.RemoveEntry(ctx, en.found.ID) })
	if errors.Is(err, engine.ErrNotFound) {
		return nil
	}
	return err
}

// isStale reports whether an engine has nothing of an entry's sandbox. It waits until what a dead
// creator left is removed.
func isStale(ctx context.Context, l *lifecycle.Client, en record.Entry) (bool, error) {
	for {
		// The marker first: whoever removes it has made the container, or has removed that before.
		mk, found, err := claim.FindMarker(ctx, l.Engine, en.Name)
		if err != nil {
			return false, err
		}
		if found && mk.Nonce == en.Nonce {
			if !mk.Expired(l.Engine.Now()) {
				return false, nil
			}
			if err := l.Store.AwaitTakeOver(ctx, en.Name); err != nil {
				return false, err
			}
			continue
		}
		_, err = l.Store.Locate(ctx, en.Name)
		if errors.Is(err, engine.ErrNotFound) {
			return true, nil
		}
		return false, err
	}
}

// checkFree fails if the name or the ID of a new sandbox is known to be taken. It is a hint, which spares
// the work on a node: [member.Claim] decides.
func (e *Engines) checkFree(ctx context.Context, p *plan.Sandbox) error {
	if p.Name != p.ID {
		if err := e.checkTaken(ctx, p.Name, func(en entry) error {
			if en.of.Name != p.Name {
				return fmt.Errorf("%w: the name %q is the ID of sandbox %q", errdefs.Exists, p.Name, en.of.Name)
			}
			return fmt.Errorf("%w: on node %s", store.ErrNameTaken, en.of.Host)
		}); err != nil {
			return err
		}
	}
	if !p.GivenID {
		return nil
	}
	return e.checkTaken(ctx, p.ID, func(en entry) error {
		return fmt.Errorf("%w: the ID %q is the ID or the name of sandbox %q on node %s", errdefs.Exists, p.ID, en.of.Name, en.of.Host)
	})
}

// checkTaken calls taken with the entry of a name or ID, if there is one that is not stale.
func (e *Engines) checkTaken(ctx context.Context, nameOrID string, taken func(entry) error) error {
	en, m, err := e.find(ctx, nameOrID)
	if errors.Is(err, errdefs.NotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	if removed, err := e.removeStale(ctx, en, m); err != nil || !removed {
		return joined(taken(en), err)
	}
	return nil
}

// joined returns the error that a name is taken, with the reason why nobody knows of what.
func joined(taken, err error) error {
	if err == nil {
		return taken
	}
	return fmt.Errorf("%w: %w", taken, err)
}

// Claim implements [store.Cluster].
func (m *member) Claim(ctx context.Context, rec record.Sandbox) error {
	n := m.last()
	labels := record.Entry{Name: rec.Name, ID: rec.ID, Nonce: rec.Nonce, Node: n.ID, Host: n.Hostname, CreatedAt: rec.CreatedAt}.Labels()
	for {
		err := bound.Finish(ctx, func(ctx context.Context) error {
			_, err := ask(ctx, m.e, func(m *engine.Engine) (struct{}, error) {
				return struct{}{}, m.CreateEntry(ctx, record.EntryName(rec.Name), labels)
			})
			return err
		})
		if !errors.Is(err, engine.ErrConflict) {
			return err
		}
		en, err := m.e.named(ctx, rec.Name)
		switch {
		case errors.Is(err, errdefs.NotFound):
			continue // it is gone since
		case err != nil:
			return err
		case en.of.Nonce == rec.Nonce:
			return nil // the reply was lost
		}
		other, err := m.e.memberOf(ctx, en.of)
		removed := false
		if err == nil {
			removed, err = m.e.removeStale(ctx, en, other)
		}
		if err != nil || !removed {
			return joined(fmt.Errorf("%w: on node %s", store.ErrNameTaken, en.of.Host), err)
		}
	}
}

// Free implements [store.Cluster].
func (m *member) Free(ctx context.Context, rec record.Sandbox) error {
	m.e.forget(rec.Name)
	en, err := m.e.named(ctx, rec.Name)
	if errors.Is(err, errdefs.NotFound) {
		return nil
	}
	var foreign *record.ForeignError
	if errors.As(err, &foreign) || err == nil && en.of.Nonce != rec.Nonce {
		return nil // it is somebody else's
	}
	if err != nil {
		return err
	}
	return m.e.remove(ctx, en)
}

// Prune frees the names of sandboxes of which their node has nothing, and calls note for each.
func (e *Engines) Prune(ctx context.Context, note func(object string, err error)) error {
	if e.o == nil {
		return nil
	}
	list, err := e.entries(ctx, record.Filter(record.Role, record.RoleEntry))
	if err != nil {
		return err
	}
	var mu sync.Mutex
	at := map[*member][]entry{}
	for _, en := range list {
		m, err := e.memberOf(ctx, en.of)
		if err != nil {
			return err
		}
		at[m] = append(at[m], en)
	}
	for _, en := range at[nil] { // their nodes have left the swarm
		note("name "+en.of.Name, e.remove(ctx, en))
	}
	missing, err := e.each(ctx, func(ctx context.Context, m *member, l *lifecycle.Client) error {
		return e.free(ctx, m, l, at[m], func(object string, err error) {
			mu.Lock()
			defer mu.Unlock()
			note(object, err)
		})
	})
	return errors.Join(err, Unanswered(missing))
}

// Sweep implements [store.Cluster]. An entry that is younger than a marker's lease is left to who looks
// for the name.
func (m *member) Sweep(ctx context.Context) error {
	l, err := m.connect(ctx)
	if err != nil {
		return err
	}
	list, err := m.e.entries(ctx, record.Filter(record.Role, record.RoleEntry), record.Filter(record.Node, m.last().ID))
	if err != nil {
		return err
	}
	now := l.Engine.Now()
	list = slices.DeleteFunc(list, func(en entry) bool { return now.Sub(en.of.CreatedAt) < claim.Lease })
	return m.e.free(ctx, m, l, list, func(object string, err error) {
		if err != nil {
			l.Log.Warn("sweep", "object", object, "error", err)
		} else {
			l.Log.Info("swept", "object", object)
		}
	})
}

// free carries out the noted deletions of a node, removes those of its entries of which it has nothing, and
// calls note for each.
func (e *Engines) free(ctx context.Context, m *member, l *lifecycle.Client, list []entry, note func(name string, err error)) error {
	if len(list) == 0 {
		return nil
	}
	all, err := l.Store.List(ctx) // after the entries
	if err != nil {
		return err
	}
	there := map[string]bool{}
	for _, c := range all.Containers {
		there[c.Record.Name] = true
	}
	for _, en := range list {
		object := "name " + en.of.Name
		if en.of.Deletes != nil {
			object = "sandbox " + en.of.Name
		} else if _, marked := all.Markers[en.of.Name]; marked || there[en.of.Name] {
			continue
		}
		// The engine may have listed the containers before, and the markers after the end of a create.
		if removed, err := e.removeStale(ctx, en, m); removed || err != nil {
			note(object, err)
		}
	}
	return nil
}
