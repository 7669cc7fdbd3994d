package cluster

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/seed-1a2d6d8f/sandbox/internal/engine"
	"github.com/seed-1a2d6d8f/sandbox/internal/errdefs"
	"github.com/seed-1a2d6d8f/sandbox/internal/lifecycle"
)

// CopyImage implements [store.Cluster]. The image of the client's own engine has precedence: users
// build images there.
func (m *member) CopyImage(ctx context.Context, ref string, fits func(engine.Image) bool, from func(node string)) (engine.Image, error) {
	leave, err := m.copying.Acquire(ctx)
	if err != nil {
		return engine.Image{}, err
	}
	defer leave()
	to, err := m.connect(ctx)
	if err != nil {
		return engine.Image{}, err
	}
	if img, err := to.Engine.InspectImage(ctx, ref); !errors.Is(err, engine.ErrNotFound) {
		return img, err // somebody else copied it
	}
	source, img, err := m.e.withImage(ctx, m, ref, fits)
	if err != nil {
		return img, err
	}
	// An image by its ID or digest alone is not found by that name after a copy, but by its ID.
	if img, err := to.Engine.InspectImage(ctx, img.ID); !errors.Is(err, engine.ErrNotFound) && !engine.IsTag(ref) {
		return img, err
	}
	from(source.last().Name)
	if err := source.with(ctx, func(l *lifecycle.Client) error { return copyImage(ctx, l.Engine, to.Engine, ref, img.ID) }); err != nil {
		return img, fmt.Errorf("copy %s from node %s: %w", ref, source.last().Name, err)
	}
	copied, err := to.Engine.InspectImage(ctx, ref)
	if errors.Is(err, engine.ErrNotFound) {
		copied, err = to.Engine.InspectImage(ctx, img.ID)
	}
	if errors.Is(err, engine.ErrNotFound) {
		err = fmt.Errorf("%w: %s was copied from node %s, and this engine finds it neither by that name nor by its ID %s there: use a tag: %w",
			errdefs.ImageNotFound, ref, source.last().Name, img.ID, err)
	}
	return copied, err
}

// copyImage streams an image from one engine to another.
func copyImage(ctx context.Context, from, to *engine.Engine, ref, id string) error {
	if !engine.IsTag(ref) {
		ref = id
	}
	tar, err := from.SaveImage(ctx, ref)
	if err != nil {
		return err
	}
	return to.LoadImage(ctx, tar) // which closes it
}

// withImage returns a member beside m that has an image that fits, and the image.
func (e *Engines) withImage(ctx context.Context, m *member, ref string, fits func(engine.Image) bool) (*member, engine.Image, error) {
	var mu sync.Mutex
	images := map[*member]engine.Image{}
	missing, err := e.each(ctx, func(ctx context.Context, other *member, l *lifecycle.Client) error {
		if other == m {
			return nil
		}
		img, err := l.Engine.InspectImage(ctx, ref)
		if errors.Is(err, engine.ErrNotFound) || err == nil && !fits(img) {
			return nil
		}
		if err != nil {
			return err
		}
		mu.Lock()
		defer mu.Unlock()
		images[other] = img
		return nil
	})
	if err != nil {
		return nil, engine.Image{}, err
	}
	if img, found := images[e.self]; found {
		return e.self, img, nil
	}
	for other, img := range images {
		return other, img, nil
	}
	return nil, engine.Image{}, joined(fmt.Errorf("%w: no other node has it", errdefs.ImageNotFound), Unanswered(missing))
}
