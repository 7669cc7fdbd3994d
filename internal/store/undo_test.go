package store_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/seed-1a2d6d8f/sandbox/internal/engine"
	"github.com/seed-1a2d6d8f/sandbox/internal/errdefs"
	"github.com/seed-1a2d6d8f/sandbox/internal/store"
)

// What fails in an undo says what is left, and not what went wrong before.
func TestUndoKeepsTheClassOfTheError(t *testing.T) {
	lost := fmt.Errorf("%w: connection reset", engine.ErrUnavailable)
	inUse := fmt.Errorf("%w: by a container that is left", errdefs.VolumeInUse)
	for _, tt := range []struct {
		err, undo, want error
	}{
		{lost, inUse, errdefs.EngineUnavailable},
		{lost, lost, errdefs.EngineUnavailable},
		{nil, lost, errdefs.EngineUnavailable},
		{errdefs.Invalid("no such user"), inUse, errdefs.InvalidArgument},
		{errdefs.Invalid("no such user"), lost, errdefs.InvalidArgument},
	} {
		var u store.Undo
		u.Add("volume v", func(context.Context) error { return tt.undo })
		got := store.Classify(errors.Join(tt.err, u.Run(t.Context())))
		if !errors.Is(got, tt.want) || errors.Is(got, errdefs.VolumeInUse) {
			t.Errorf("%v, undone with %v: %v, want %v", tt.err, tt.undo, got, tt.want)
		}
		if !strings.Contains(got.Error(), "left behind: volume v: "+tt.undo.Error()) {
			t.Errorf("%v does not say what is left", got)
		}
	}
}
