package guest

import "syscall"

// Errno is the error of a Linux error number.
func Errno(n int) error { return syscall.Errno(n) }
