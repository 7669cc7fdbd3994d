package store

import (
	"context"
	"errors"
	"fmt"

	"github.com/seed-1a2d6d8f/sandbox/internal/bound"
	"github.com/seed-1a2d6d8f/sandbox/internal/claim"
	"github.com/seed-1a2d6d8f/sandbox/internal/engine"
	"github.com/seed-1a2d6d8f/sandbox/internal/errdefs"
	"github.com/seed-1a2d6d8f/sandbox/internal/record"
)

// ErrUnsettled is the error of a move of which the caller does not know whether it took place. Its
// markers stay on both nodes, and who finds them expired settles it.
var ErrUnsettled = errors.New("whether it was moved shows when all nodes answer: its next user finds out")

// HoldMove is Hold for a move from the engine's own node to another one.
func (s *Store) HoldMove(ctx context.Context, rec record.Sandbox, node string) (*claim.Claim, string, error) {
	return s.hold(ctx, rec, func(ctx context.Context, op string) (*claim.Claim, error) {
		return claim.TryMoveAway(ctx, s.Engine, rec, op, node, Holder())
	})
}

// settle is [Cluster.Settle]. Only a client of the swarm can read which node counts.
func (s *Store) settle(ctx context.Context, m record.Marker) (moved bool, err error) {
	if s.Cluster == nil {
		return false, fmt.Errorf("%w: %q was being moved to another node by %s: a client of the swarm has to finish that",
			errdefs.Unsupported, m.Name, m.Holder)
	}
	return s.Cluster.Settle(ctx, m)
}

// DropMoved removes a sandbox that was moved to another node: its container, and those of the volumes
// that are its own. It leaves it as it is, and returns false, if the container is not in its previous
// state any more: then there was a session of which the other node has nothing.
func (s *Store) DropMoved(ctx context.Context, rec record.Sandbox, previous string, volumes []string) (dropped bool, err error) {
	var got engine.Container
	err = bound.Poll(ctx, PollEvery, func() (done bool, err error) {
		got, err = s.Engine.InspectContainer(ctx, record.ContainerName(rec.Name))
		if made, ok := SandboxOf(got); errors.Is(err, engine.ErrNotFound) || err == nil && (!ok || made.Nonce != rec.Nonce) {
			dropped = true
			return true, nil
		}
		switch {
		case err != nil:
			return true, err
		case got.State == engine.StateRemoving:
			return false, nil
		case got.HasSession(), got.State != engine.StateDead && Fingerprint(got) != previous:
			return true, nil
		}
		// Without force the engine does not remove a container that has just been started.
		err = bound.Finish(ctx, func(ctx context.Context) error { return s.removeContainer(ctx, got.ID, got.State == engine.StateDead) })
		if errors.Is(err, engine.ErrConflict) || errors.Is(err, engine.ErrNotFound) {
			err = nil
		}
		return err != nil, err
	})
	if err != nil || !dropped {
		return false, err
	}
	s.dropRevisions(ctx, rec)
	if got.Image != "" {
		s.DropImageOf(ctx, got)
	}
	var errs []error
	for _, name := range volumes {
		v, err := s.Engine.InspectVolume(ctx, name)
		if errors.Is(err, engine.ErrNotFound) || err == nil && (!record.IsData(v.Name, v.Labels) || v.Labels[record.ID] != rec.ID) {
			continue
		}
		if err == nil {
			err = engine.Retry(ctx, func() error { return s.DropVolume(ctx, v) })
		}
		errs = append(errs, err)
	}
	return true, errors.Join(errs...)
}
