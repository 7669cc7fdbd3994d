//go:build linux

package pid1

import (
	"errors"
	"fmt"
	"path"

	"golang.org/x/sys/unix"

	"github.com/seed-1a2d6d8f/sandbox/internal/guest/wire"
)

// checkSelf fails if the path that PID 1 was started with, which the engine uses again for each
// connection, is not this program in a read-only mount of its own: no process in the sandbox can
// replace a mount point, but it can replace a link or a directory.
func checkSelf(self string, mounts mountTable) error {
	dir := path.Dir(self)
	if !path.IsAbs(self) || path.Dir(dir) != "/" {
		return fmt.Errorf("%s is not a path in a directory of the root", self)
	}
	var at, program, running unix.Stat_t
	if err := errors.Join(unix.Lstat(dir, &at), unix.Lstat(self, &program), unix.Stat(wire.Self, &running)); err != nil {
		return fmt.Errorf("%s: %w", self, err)
	}
	switch {
	case at.Mode&unix.S_IFMT != unix.S_IFDIR:
		return fmt.Errorf("%s is a symbolic link or a file", dir)
	case program.Dev != running.Dev || program.Ino != running.Ino:
		return fmt.Errorf("%s is another program", self)
	case !mounts.readOnly(dir):
		return fmt.Errorf("%s is not a read-only mount", dir)
	}
	return nil
}
