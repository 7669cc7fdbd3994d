//go:build !linux

package guest

import (
	"errors"
	"fmt"
	"io/fs"
)

// Errno returns the error for a Linux error number. This system numbers errors differently.
func Errno(n int) error { return linuxErrno(n) }

type linuxErrno int

var linuxErrnos = map[linuxErrno]string{
	1: "operation not permitted", 2: "no such file or directory", 5: "input/output error",
	6: "no such device or address", 9: "bad file descriptor", 11: "resource temporarily unavailable",
	12: "cannot allocate memory", 13: "permission denied", 16: "device or resource busy", 17: "file exists",
	18: "invalid cross-device link", 20: "not a directory", 21: "is a directory", 22: "invalid argument",
	23: "too many open files in system", 24: "too many open files", 26: "text file busy", 27: "file too large",
	28: "no space left on device", 29: "illegal seek", 30: "read-only file system", 31: "too many links",
	36: "file name too long", 38: "function not implemented", 39: "directory not empty",
	40: "too many levels of symbolic links", 95: "operation not supported", 122: "disk quota exceeded",
}

func (e linuxErrno) Error() string {
	if text, ok := linuxErrnos[e]; ok {
		return text
	}
	return fmt.Sprintf("errno %d", int(e))
}

// Is matches the portable errors of package fs.
func (e linuxErrno) Is(target error) bool {
	switch target {
	case fs.ErrPermission:
		return e == 1 || e == 13
	case fs.ErrNotExist:
		return e == 2
	case fs.ErrExist:
		return e == 17 || e == 39
	case errors.ErrUnsupported:
		return e == 38 || e == 95
	}
	return false
}
