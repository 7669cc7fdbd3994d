//go:build linux

package pid1

import (
	"io"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// stash writes the container's environment to a descriptor that survives execve.
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
