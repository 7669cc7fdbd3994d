//go:build !linux

package git

import (
	"os"
	"os/exec"
	"path/filepath"
)

// credentialCommand is the shell command that prints what passCredentials prepared.
func credentialCommand(temp string) string {
	return "cat '" + filepath.ToSlash(filepath.Join(temp, "home", "credentials")) + "'"
}

// passCredentials passes git the credentials in a file that only this user can read, while
// git runs: not every system has anonymous files.
func (r *runner) passCredentials(*exec.Cmd) (done func(), err error) {
	name := filepath.Join(r.temp, "home", "credentials")
	if err := os.WriteFile(name, r.credentials(), 0o600); err != nil {
		return nil, err
	}
	return func() { os.Remove(name) }, nil
}
