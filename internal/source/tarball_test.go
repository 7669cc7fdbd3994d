package source_test

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/internal/archive"
	"github.com/seed-1a2d6d8f/sandbox/internal/guest/trees"
	"github.com/seed-1a2d6d8f/sandbox/internal/source"
	"github.com/seed-1a2d6d8f/sandbox/test/harness"
)

// Hostile archives. Each error names the entry.
func TestHostileTarballs(t *testing.T) {
	t.Parallel()
	for name, x := range harness.HostileTarballs(t) {
		if x.Whole {
			continue
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if err := source.Tarball(x.Source).Fill(t.Context(), discard{}); !errors.Is(err, sandbox.ErrInvalidArgument) || !strings.Contains(err.Error(), x.Want) {
				t.Errorf("Check: %v, want an ErrInvalidArgument with %s", err, x.Want)
			}
		})
	}
}

// discard is a workspace that keeps nothing.
type discard struct{}

func (discard) Dir(context.Context, string) error { return nil }
func (discard) Bounds() *source.Bounds            { return nil }
func (discard) Report(string)                     {}
func (discard) LeftOut(archive.Report)            {}
func (discard) Place() string                     { return "" }

func (discard) Stream(ctx context.Context, _ string, write func(*trees.Writer) error) error {
	return write(trees.New(ctx, io.Discard))
}
