//go:build unix

package git

import (
	"os/exec"
	"syscall"
)

// alone gives git a session of its own: no terminal to ask at, and everything it starts
// ends with it.
func alone(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
}
