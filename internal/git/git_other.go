//go:build !linux

package git

import (
	"os"
	"os/exec"
	"path/filepath"
)

// credentialCommand prints what handOver gave git.
func credentialCommand(temp string) string {
	return "cat '" + filepath.ToSlash(filepath.Join(temp, "home", "credentials")) + "'"
}

// handOver gives git the credentials in a file that only this user can read, as long as
// git runs: not every system has memory that a process can inherit.
func (r *runner) handOver(*exec.Cmd) (done func(), err error) {
	name := filepath.Join(r.temp, "home", "credentials")
	if err := os.WriteFile(name, r.credentials(), 0o600); err != nil {
		return nil, err
	}
	return func() { os.Remove(name) }, nil
}
