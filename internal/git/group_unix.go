//go:build unix

package git

import (
	"os/exec"
	"syscall"
)

// setSession starts git in a session of its own: it has no terminal to prompt at, and its
// processes are killed with it.
func setSession(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
}
