//go:build !windows

package engine

import "syscall"

// ownSession keeps a terminal's Ctrl-C from killing the connection under a
// program that handles it.
func ownSession() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setsid: true} }
