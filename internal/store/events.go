package store

import (
	"context"

	"github.com/seed-1a2d6d8f/sandbox/internal/engine"
	"github.com/seed-1a2d6d8f/sandbox/internal/record"
)

// Events calls fn for each change of the state of a sandbox's container, with the sandbox's ID, as
// [engine.Engine.Events] does.
func (s *Store) Events(ctx context.Context, ready func(), fn func(id string, event engine.Event)) error {
	return s.Engine.Events(ctx, []string{record.Filter(record.Managed, "true")}, ready, func(e engine.Event) {
		fn(e.Labels[record.ID], e)
	})
}
