package store

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/seed-1a2d6d8f/sandbox/internal/bound"
	"github.com/seed-1a2d6d8f/sandbox/internal/engine"
)

// The engine removes a tree by recursion, and holds a file for each level of it: a tree that is
// deeper than the engine may have files open stays, with its volume or container. So a removal that
// the engine began and could not finish is finished by a helper, and then repeated. Not before: only the
// engine checks for users and removes in one step.

// removeVolume removes a volume that nobody uses, with trees of any depth.
func (s *Store) removeVolume(ctx context.Context, name string) error {
	err := s.Engine.RemoveVolume(ctx, name, false)
	if s.Empty == nil || !engine.IsInternal(err) {
		return err
	}
	if e := s.Empty(ctx, engine.Mount{Type: "volume", Source: name}); e != nil {
		return errors.Join(err, fmt.Errorf("empty volume %s: %w", name, e))
	}
	// The helper has finished, but may not be gone.
	began := time.Now()
	return bound.Poll(ctx, PollEvery, func() (bool, error) {
		err := s.Engine.RemoveVolume(ctx, name, false)
		if errors.Is(err, engine.ErrConflict) && time.Since(began) < releaseTimeout {
			return false, nil
		}
		return true, err
	})
}

// removeContainer removes a container whose own layer may have trees of any depth. The engine is
// left with a dead one if it can't remove all files.
func (s *Store) removeContainer(ctx context.Context, id string, force bool) error {
	err := s.Engine.RemoveContainer(ctx, id, force)
	if s.Empty == nil || !engine.IsInternal(err) {
		return err
	}
	got, e := s.Engine.InspectContainer(ctx, id)
	if e != nil || got.State != engine.StateDead || got.Upper == "" {
		return err
	}
	if e := s.Empty(ctx, engine.Mount{Type: "bind", Source: got.Upper}); e != nil {
		return errors.Join(err, fmt.Errorf("empty the layer of %s: %w", got.Name, e))
	}
	return s.Engine.RemoveContainer(ctx, id, true)
}
