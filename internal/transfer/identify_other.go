//go:build !linux

package transfer

import (
	"errors"

	"github.com/seed-1a2d6d8f/sandbox/internal/guest/wire"
)

// identify fails: containers run on Linux, so not on the machine of this process.
func identify(string) (wire.Identity, error) { return wire.Identity{}, errors.ErrUnsupported }
