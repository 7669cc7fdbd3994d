package store

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/seed-1a2d6d8f/sandbox/internal/bound"
	"github.com/seed-1a2d6d8f/sandbox/internal/engine"
	"github.com/seed-1a2d6d8f/sandbox/internal/errdefs"
	"github.com/seed-1a2d6d8f/sandbox/internal/record"
)

// UndoTimeout bounds a whole undo, which runs on a context that outlives the caller's. Only tests
// change it.
var UndoTimeout = 60 * time.Second

// Undo is a stack of steps that revert what was done. A step registers its undo before it
// runs: when a reply is lost nobody knows whether it took effect.
type Undo struct {
	steps []undoStep
}

type undoStep struct {
	what  string
	run   func(context.Context) error
	guard bool // of what newer steps made
}

// Add registers how to revert a step that is about to run.
func (u *Undo) Add(what string, run func(context.Context) error) {
	u.steps = append(u.steps, undoStep{what: what, run: run})
}

// AddGuard registers how to remove what tells others that something is unfinished. It stays if anything that was made
// after it can't be removed, so that the next sweep finds that.
func (u *Undo) AddGuard(what string, run func(context.Context) error) {
	u.steps = append(u.steps, undoStep{what: what, run: run, guard: true})
}

// Run reverts all steps, newest first, and joins the failures, of which [engine.ErrUnavailable] is the only class. After a
// failure no guard is removed. A step that fails because ctx has ended runs once more, on a context of UndoTimeout.
func (u *Undo) Run(ctx context.Context) error {
	own, cancel := bound.Outlive(ctx, UndoTimeout)
	defer cancel()
	var errs []error
	guarded := false
	for _, s := range slices.Backward(u.steps) {
		if s.guard && len(errs) > 0 {
			guarded = true
			continue
		}
		err := ctx.Err()
		if err == nil {
			err = engine.Retry(ctx, func() error { return s.run(ctx) })
		}
		if ctx.Err() != nil {
			err = engine.Retry(own, func() error { return s.run(own) })
		}
		if err != nil {
			if !errors.Is(err, engine.ErrUnavailable) {
				err = errors.New(err.Error()) // the class of what is undone is that of its own error
			}
			errs = append(errs, fmt.Errorf("left behind: %s: %w", s.what, err))
		}
	}
	u.steps = nil
	if guarded {
		errs = append(errs, errors.New("the next sweep removes it"))
	}
	return errors.Join(errs...)
}

// Forget drops all steps without running them.
func (u *Undo) Forget() { u.steps = nil }

// MakeVolume creates a volume, as an overlay over other files if overlay is not nil. Its undo
// removes the volume with this name and the nonce in labels. If the name is taken by another
// volume the error is a *record.ForeignError.
func (s *Store) MakeVolume(ctx context.Context, u *Undo, name string, labels map[string]string, overlay *engine.Overlay) (engine.Volume, error) {
	nonce := labels[record.Nonce]
	u.Add("volume "+name, func(ctx context.Context) error { return s.RemoveVolume(ctx, name, nonce) })
	v, err := bound.FinishCall(ctx, func(ctx context.Context) (engine.Volume, error) {
		if overlay != nil {
			return s.Engine.CreateOverlay(ctx, name, labels, *overlay)
		}
		return s.Engine.CreateVolume(ctx, name, labels)
	})
	if err != nil {
		return v, fmt.Errorf("make volume %s: %w", name, err)
	}
	if v.Labels[record.Nonce] != nonce {
		return v, &record.ForeignError{Kind: "volume", Object: name}
	}
	return v, nil
}

// CreateContainer creates a container. Its undo removes the one with this name and nonce.
func (s *Store) CreateContainer(ctx context.Context, u *Undo, spec engine.ContainerSpec, nonce string) (string, error) {
	replyLost := false
	u.Add("container "+spec.Name, func(ctx context.Context) error {
		if replyLost {
			if err := s.awaitLateCreate(ctx, spec, nonce); err != nil {
				return err
			}
		}
		return s.RemoveContainer(ctx, spec.Name, nonce)
	})
	id, err := bound.FinishCall(ctx, func(ctx context.Context) (string, error) { return s.Engine.CreateContainer(ctx, spec) })
	replyLost = err != nil && (ctx.Err() != nil || errors.Is(err, engine.ErrUnavailable))
	if errors.Is(err, engine.ErrConflict) {
		u.steps = u.steps[:len(u.steps)-1] // the name is taken: nothing was created
	}
	return id, err
}

// awaitLateCreate returns when a create whose reply was lost can't produce the container any
// more. The engine reserves the name first and shows the container last; in between only
// another create of that name, which conflicts, reveals it.
func (s *Store) awaitLateCreate(ctx context.Context, spec engine.ContainerSpec, nonce string) error {
	probe := engine.ContainerSpec{Name: spec.Name, Image: spec.Image, Entrypoint: spec.Entrypoint, NetworkMode: "none"}
	probe.Labels = s.HelperLabels(nonce)
	return bound.Poll(ctx, PollEvery, func() (bool, error) {
		_, err := s.Engine.InspectContainer(ctx, spec.Name)
		if !errors.Is(err, engine.ErrNotFound) {
			return true, err
		}
		if _, err = s.Engine.CreateContainer(ctx, probe); !errors.Is(err, engine.ErrConflict) {
			return true, err
		}
		return false, nil
	})
}

// RemoveContainer removes the container if it carries the nonce, and waits until it is gone.
// It inspects by ref and removes by the ID found, so it never removes another container.
func (s *Store) RemoveContainer(ctx context.Context, ref, nonce string) error {
	return bound.Poll(ctx, PollEvery, func() (bool, error) {
		got, err := s.Engine.InspectContainer(ctx, ref)
		if errors.Is(err, engine.ErrNotFound) {
			return true, nil
		}
		if err != nil {
			return true, err
		}
		// A container inherits the labels of its image: one with the role of an image was
		// created by a user from an image of ours.
		if !record.Is(got.Labels, "", record.RoleSandbox, record.RoleHelper) || got.Labels[record.Nonce] != nonce {
			return true, nil
		}
		err = s.removeContainer(ctx, got.ID, true)
		if errors.Is(err, engine.ErrConflict) {
			return false, nil // being removed by another process; until it is gone its volumes can't be
		}
		if errors.Is(err, engine.ErrNotFound) {
			err = nil
		}
		return true, err
	})
}

// RemoveVolume removes the volume if it carries the nonce, and waits for a container that
// is being removed to release it.
func (s *Store) RemoveVolume(ctx context.Context, name, nonce string) error {
	got, err := s.Engine.InspectVolume(ctx, name)
	if errors.Is(err, engine.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	if got.Labels[record.Managed] != "true" || got.Labels[record.Nonce] != nonce {
		return nil
	}
	return s.DropVolume(ctx, got)
}

// DropVolume is RemoveUnusedVolume for a volume that may be gone, and whose labels are known if it
// may be an overlay.
func (s *Store) DropVolume(ctx context.Context, v engine.Volume) error {
	err := s.removeUnused(ctx, v)
	if errors.Is(err, errdefs.VolumeNotFound) {
		return nil
	}
	return err
}

// HelperLabels returns the labels of a short-lived container, which a Sweep removes if it
// is left.
func (s *Store) HelperLabels(nonce string) map[string]string {
	l := record.Base(record.RoleHelper, nonce, s.Engine.Now())
	l[record.Until] = s.Engine.Now().Add(5 * time.Minute).UTC().Format(time.RFC3339Nano)
	return l
}
