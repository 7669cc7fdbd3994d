package cluster

import (
	"context"
	"errors"
	"fmt"

	"github.com/seed-1a2d6d8f/sandbox/internal/errdefs"
	"github.com/seed-1a2d6d8f/sandbox/internal/lifecycle"
	"github.com/seed-1a2d6d8f/sandbox/internal/record"
	"github.com/seed-1a2d6d8f/sandbox/internal/store"
)

// A deletion that can't reach its node is noted in the entry of the name, by a replacement of its labels. The
// entry has the sandbox's nonce, and the managers replace it only if it is as it was found: so the note
// is about that sandbox and no later one. Who finds it and reaches the node carries it out: a call
// that looks the name up, Prune, or a sweep of the node. The entry goes with the sandbox.

// Delete calls fn, which deletes the sandbox of that name or ID, with the client of the engine that
// has it. If its node does not answer the deletion is noted.
func (e *Engines) Delete(ctx context.Context, nameOrID string, what record.Deletion, fn func(*lifecycle.Client) error) error {
	m, err := e.on(ctx, nameOrID, fn, true)
	if m == nil || !isUnavailable(err) || ctx.Err() != nil {
		return err
	}
	return e.note(ctx, nameOrID, what, err, func(_ entry, at *member) bool { return at == m })
}

// DeleteLater implements [store.Cluster].
func (m *member) DeleteLater(ctx context.Context, rec record.Sandbox, what record.Deletion, cause error) error {
	return m.e.note(ctx, rec.Name, what, m.explain(cause), func(en entry, at *member) bool { return at == m && en.of.Nonce == rec.Nonce })
}

const (
	noted    = "the swarm has noted its deletion, which the next Delete, Prune or sweep that reaches the node carries out"
	notNoted = "the swarm has not noted its deletion: call Delete again"
)

// note notes the deletion of a sandbox in its entry, if is returns true for that and its node. It returns the
// cause, with what becomes of the deletion.
func (e *Engines) note(ctx context.Context, nameOrID string, what record.Deletion, cause error, is func(entry, *member) bool) error {
	for {
		en, m, err := e.find(ctx, nameOrID)
		if err != nil || m == nil || !is(en, m) {
			return fmt.Errorf("%w; %s", cause, notNoted)
		}
		next := en.of
		next.Deletes = &what
		if err := e.update(ctx, en, next); err == nil {
			return fmt.Errorf("%w; %s", cause, noted)
		}
		if now, err := e.named(ctx, en.of.Name); err != nil || now.found.Version == en.found.Version {
			return fmt.Errorf("%w; %s", cause, notNoted)
		}
	}
}

// carryOut deletes the sandbox of an entry with a noted deletion, and the entry.
func (e *Engines) carryOut(ctx context.Context, en entry, m *member) error {
	err := m.with(ctx, func(l *lifecycle.Client) error {
		rec, got, err := l.Store.AwaitCreated(ctx, en.of.Name)
		if errors.Is(err, errdefs.NotFound) {
			return e.remove(ctx, en)
		}
		if err != nil {
			return err
		}
		if rec.Nonce != en.of.Nonce { // a client without the swarm has deleted it, and created another one
			next := en.of
			next.Deletes = nil
			return e.update(ctx, en, next)
		}
		reclaim := store.KeepVolumes
		if en.of.Deletes.Volumes {
			reclaim = store.DropAll
		}
		_, err = l.Store.DeleteFound(ctx, rec, got, reclaim)
		if errors.Is(err, errdefs.NotFound) {
			return nil // somebody else did
		}
		if err == nil && en.of.Deletes.Snapshots {
			_, err = l.Store.DropSnapshotsOf(ctx, rec.ID)
		}
		return err
	})
	if isUnavailable(err) {
		return fmt.Errorf("%w; %s", err, noted)
	}
	return err
}
