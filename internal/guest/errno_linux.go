package guest

import "syscall"

// Errno returns the error for a Linux error number.
func Errno(n int) error { return syscall.Errno(n) }
