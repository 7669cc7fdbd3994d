//go:build linux

package main

import (
	"errors"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/seed-1a2d6d8f/sandbox/internal/guest/wire"
)

// giveWorkspace gives a new workspace to the user it is for: a volume begins as
// root's. One that holds anything, or is somebody's, is left as it is. It is a mount
// point, so nothing inside can have put a link in its place. A user the sandbox does
// not know is the first command's error to report.
func giveWorkspace(w wire.Workspace) error {
	if w.Path == "" || w.User == "" {
		return nil
	}
	id, err := lookupUser(w.User)
	if err != nil || id.uid == 0 {
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
	return dir.Chown(int(id.uid), int(id.gid))
}

// stash puts the container's environment into a descriptor that the next program of
// this process inherits.
func stash(environ []string) (int, error) {
	fd, err := unix.MemfdCreate("environ", unix.MFD_CLOEXEC)
	if err != nil {
		return -1, err
	}
	file := os.NewFile(uintptr(fd), "environ")
	if _, err := file.WriteString(strings.Join(environ, "\x00")); err != nil {
		return -1, err
	}
	if _, err := file.Seek(0, io.SeekStart); err != nil {
		return -1, err
	}
	// The duplicate stays open in the next program.
	return unix.Dup(fd)
}

func unstash(fd string) ([]string, error) {
	n, err := strconv.Atoi(fd)
	if err != nil {
		return nil, err
	}
	file := os.NewFile(uintptr(n), "environ")
	defer file.Close()
	text, err := io.ReadAll(file)
	if err != nil || len(text) == 0 {
		return nil, err
	}
	return strings.Split(string(text), "\x00"), nil
}
