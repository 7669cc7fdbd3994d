package store

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	"github.com/seed-1a2d6d8f/sandbox/internal/bound"
	"github.com/seed-1a2d6d8f/sandbox/internal/claim"
	"github.com/seed-1a2d6d8f/sandbox/internal/engine"
	"github.com/seed-1a2d6d8f/sandbox/internal/errdefs"
	"github.com/seed-1a2d6d8f/sandbox/internal/record"
)

// ImageOf returns the image that the container of a sandbox was made from.
func (s *Store) ImageOf(ctx context.Context, got engine.Container) (engine.Image, error) {
	image, err := s.Engine.InspectImage(ctx, got.ImageID)
	if errors.Is(err, engine.ErrNotFound) {
		return image, fmt.Errorf("%w: the sandbox's image %s was removed, as \"docker rmi -f\" does: pull or load the one with ID %s again",
			errdefs.ImageNotFound, got.Image, got.ImageID)
	}
	if err != nil {
		return image, fmt.Errorf("the sandbox's image: %w", err)
	}
	return image, nil
}

// Commit commits a container, whose image is given, to the image ref. It flattens an image
// that has many layers.
func (s *Store) Commit(ctx context.Context, got engine.Container, image engine.Image, ref string, labels map[string]string) (engine.Image, error) {
	labels = maps.Clone(labels)
	record.Mask(labels, image.Labels)
	committed, err := bound.FinishCall(ctx, func(ctx context.Context) (engine.Image, error) {
		if image.Layers >= maxLayers {
			return s.Engine.FlattenContainer(ctx, got.ID, ref, labels, func(setting string) {
				s.Log.Warn("a setting of the image is lost: it has a line break", "image", got.Image, "setting", setting)
			})
		}
		return s.Engine.CommitContainer(ctx, got.ID, ref, labels)
	})
	if err != nil {
		return committed, err
	}
	return committed, engine.Retry(ctx, func() error { return s.dropUntagged(ctx, labels[record.Nonce]) })
}

// Uncommit reverts a commit, which may have failed halfway.
func (s *Store) Uncommit(ctx context.Context, ref, nonce string) error {
	return errors.Join(s.DropLayer(ctx, ref), s.dropUntagged(ctx, nonce))
}

// dropUntagged removes the untagged images that a commit left: it was repeated after a lost
// reply, or could not remove an intermediate image.
func (s *Store) dropUntagged(ctx context.Context, nonce string) error {
	images, err := s.Engine.ListImages(ctx, record.Filter(record.Managed, "true"), record.Filter(record.Nonce, nonce))
	if err != nil {
		return err
	}
	var errs []error
	for _, i := range images {
		if len(i.Tags) == 0 {
			errs = append(errs, s.DropLayer(ctx, i.ID))
		}
	}
	return errors.Join(errs...)
}

// maxLayers is the number of layers from which on an image is flattened. The engine refuses
// the 125th, and starts get slower long before.
const maxLayers = 64

// DropLayer removes an image of ours unless it is in use.
func (s *Store) DropLayer(ctx context.Context, ref string) error {
	err := s.Engine.RemoveImage(ctx, ref, false)
	if errors.Is(err, engine.ErrNotFound) || errors.Is(err, engine.ErrConflict) {
		return nil
	}
	return err
}

// DropImageOf is dropImage for a container that was removed or replaced. An image that it
// can't remove is left for Prune, and logged.
func (s *Store) DropImageOf(ctx context.Context, got engine.Container) {
	ctx, cancel := bound.Outlive(ctx, UndoTimeout)
	defer cancel()
	err := engine.Retry(ctx, func() error { return s.dropImage(ctx, got.Image) })
	if err != nil {
		s.Log.Warn("left for Prune", "image", got.Image, "error", err)
	}
}

// dropImage removes the image of a container that is gone, if it was committed for a
// container, or for a snapshot that is gone, and is not in use.
func (s *Store) dropImage(ctx context.Context, ref string) error {
	if gone, err := s.snapshotGone(ctx, ref); err != nil || !gone && !record.IsLayer(ref) {
		return err
	}
	return s.DropLayer(ctx, ref)
}

// snapshotGone reports whether ref is the image of a snapshot that is gone.
func (s *Store) snapshotGone(ctx context.Context, ref string) (bool, error) {
	id, is := record.SnapshotOfImage(ref)
	if !is {
		return false, nil
	}
	// The record is created before the marker is removed.
	if _, marked, err := claim.FindMarker(ctx, s.Engine, record.SnapshotMarker(id)); err != nil || marked {
		return false, err
	}
	_, err := s.FindSnapshot(ctx, id)
	if errors.Is(err, errdefs.SnapshotNotFound) {
		return true, nil
	}
	return false, err
}

// dropLayers removes the layer images with that label that are not in use.
func (s *Store) dropLayers(ctx context.Context, label string) error {
	images, err := s.Engine.ListImages(ctx, record.Filter(record.Managed, "true"), record.Filter(record.Role, record.RoleLayer), label)
	if err != nil {
		return err
	}
	var errs []error
	for _, i := range images {
		refs, err := s.removableRefs(ctx, i)
		errs = append(errs, err)
		for _, ref := range refs {
			errs = append(errs, s.DropLayer(ctx, ref))
		}
	}
	return errors.Join(errs...)
}

// removableRefs returns the references to remove an image by: none if a snapshot uses it.
// Then it keeps all its tags, since the engine removes a tag that a container uses as long
// as there is another one.
func (s *Store) removableRefs(ctx context.Context, i engine.Image) ([]string, error) {
	for _, tag := range i.Tags {
		if _, is := record.SnapshotOfImage(tag); is {
			if gone, err := s.snapshotGone(ctx, tag); err != nil || !gone {
				return nil, err
			}
		}
	}
	if len(i.Tags) == 0 {
		return []string{i.ID}, nil
	}
	return i.Tags, nil
}

// PruneLayers removes the images of failed changes that no snapshot uses, and those of
// snapshots that are gone. It reports each.
func (s *Store) PruneLayers(ctx context.Context, all Inventory, report func(string, error)) error {
	images, err := s.Engine.ListImages(ctx)
	if err != nil {
		return err
	}
	remove := func(ref string) {
		// The engine keeps an image that a container uses.
		if err := s.Engine.RemoveImage(ctx, ref, false); !errors.Is(err, engine.ErrNotFound) && !errors.Is(err, engine.ErrConflict) {
			report("image "+ref, err)
		}
	}
	now := s.Engine.Now()
	for _, i := range images {
		// The image committed for a snapshot has a tag.
		if record.Is(i.Labels, record.RoleLayer) || record.Is(i.Labels, record.RoleFrozen) && len(i.Tags) == 0 {
			created, _ := time.Parse(time.RFC3339Nano, i.Labels[record.CreatedAt])
			if now.Sub(created) >= minOrphanAge && !all.claimed(i.Labels[record.By]) && !all.claimed(i.Labels[record.Nonce]) {
				refs, err := s.removableRefs(ctx, i)
				if err != nil {
					return err
				}
				for _, ref := range refs {
					remove(ref)
				}
			}
		}
		// Most snapshots only tag the image of their sandbox, which has no label of ours.
		for _, tag := range i.Tags {
			gone, err := s.snapshotGone(ctx, tag)
			if err != nil {
				return err
			}
			if gone {
				remove(tag)
			}
		}
	}
	return nil
}
