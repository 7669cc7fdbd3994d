//go:build !windows

package engine

import "syscall"

// ownSession keeps a Ctrl-C at the terminal, which this program may handle, from killing ssh.
func ownSession() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setsid: true} }
