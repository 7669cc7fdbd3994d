//go:build linux

package copytree

import (
	"os"

	"golang.org/x/sys/unix"
)

// TryReflink reports why files in dir can't share blocks, nil if they can. It leaves no
// file behind.
func TryReflink(dir string) error {
	var files [2]*os.File
	for i := range files {
		fd, err := unix.Open(dir, unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC, 0o600)
		if err != nil {
			return &os.PathError{Op: "make a file", Path: dir, Err: err}
		}
		files[i] = os.NewFile(uintptr(fd), dir)
		defer files[i].Close()
	}
	if _, err := files[0].Write(make([]byte, 64<<10)); err != nil {
		return err
	}
	return os.NewSyscallError("clone a file", unix.IoctlFileClone(int(files[1].Fd()), int(files[0].Fd())))
}
