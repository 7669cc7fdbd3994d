//go:build !linux

package sandbox

import (
	"errors"

	"github.com/seed-1a2d6d8f/sandbox/internal/guest/wire"
)

// identify fails: an engine's containers run on a Linux, so on another machine than this
// process.
func identify(string) (wire.Identity, error) { return wire.Identity{}, errors.ErrUnsupported }
