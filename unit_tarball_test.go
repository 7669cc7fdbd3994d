package sandbox_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/test/harness"
)

// E50, E52, E53: hostile archives. Each error names the entry.
func TestHostileTarballs(t *testing.T) {
	t.Parallel()
	for name, x := range harness.HostileTarballs(t) {
		if x.Whole {
			continue
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if err := x.Source.Check(t.Context()); !errors.Is(err, sandbox.ErrInvalidArgument) || !strings.Contains(err.Error(), x.Want) {
				t.Errorf("Check: %v, want an ErrInvalidArgument with %s", err, x.Want)
			}
		})
	}
}
