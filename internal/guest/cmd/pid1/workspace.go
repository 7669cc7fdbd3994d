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

// chownWorkspace gives a new workspace to the user it is for: a volume begins as
// root's. One that holds anything, or is somebody's, is left as it is. It is a mount
// point, so nothing inside can have put a link in its place. A user the sandbox does
// not know is the first command's error to report.
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
