//go:build linux

package pid1

import (
	"errors"
	"io"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/seed-1a2d6d8f/sandbox/internal/guest/cmd/proc"
	"github.com/seed-1a2d6d8f/sandbox/internal/guest/wire"
)

// chownWorkspace gives a new workspace to its user: a new volume is root's. One that holds
// files or has another owner stays as it is. It is a mount point, so it can't be a link.
// The error of an unknown user is left for the first command to report.
func chownWorkspace(w wire.Workspace) error {
	if w.Path == "" || w.User == "" {
		return nil
	}
	id, err := proc.LookupUser(w.User)
	if err != nil || id.UID == 0 {
		return nil
	}
	dir, err := os.OpenFile(w.Path, unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	defer dir.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(dir.Fd()), &st); err != nil || st.Uid != 0 {
		return err
	}
	names, err := dir.Readdirnames(len(w.Mounts) + 1)
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	for _, name := range names {
		if !slices.Contains(w.Mounts, name) {
			return nil
		}
	}
	return dir.Chown(int(id.UID), int(id.GID))
}
