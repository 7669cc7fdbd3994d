package git

import (
	"bytes"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// trusted is the configuration that git gets: nothing but safe.directory.
func (r *runner) trusted() string { return filepath.Join(r.temp, "trusted") }

// trust takes over which repositories of others git may read by the user's configuration: git
// takes that from a configuration file only.
func (r *runner) trust() error {
	var out strings.Builder
	if r.repo.Scheme == "file" {
		for _, dir := range r.safeDirectories() {
			out.WriteString("[safe]\n\tdirectory = \"" + configEscapes.Replace(dir) + "\"\n")
		}
	}
	return os.WriteFile(r.trusted(), []byte(out.String()), 0o600)
}

var configEscapes = strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`, "\t", `\t`)

// safeDirectories are the values of safe.directory in the machine's and the user's configuration.
// An empty one cancels those before it.
func (r *runner) safeDirectories() []string {
	cmd := exec.CommandContext(r.ctx, r.program, "config", "--null", "--type=path", "--get-all", "safe.directory")
	cmd.Dir = r.temp
	cmd.Env = append(variables(inherited...), variables("HOME", "XDG_CONFIG_HOME", "GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM", "GIT_CONFIG_NOSYSTEM")...)
	cmd.Env = append(cmd.Env, "GIT_DIR="+r.gitDir(), "LC_ALL=C")
	cmd.WaitDelay = waitDelay
	var list []string
	out, _ := cmd.Output() // it fails if there are none
	for value := range bytes.SplitSeq(bytes.TrimSuffix(out, []byte{0}), []byte{0}) {
		if len(out) > 0 {
			list = append(list, string(value))
		}
	}
	return list
}

// openUp gives the clone the permissions of a umask of 022, whatever this program's is: the users of
// a sandbox are no users of this machine.
func (r *runner) openUp() error {
	return filepath.WalkDir(r.dir, func(file string, d fs.DirEntry, err error) error {
		if err != nil || !d.IsDir() && !d.Type().IsRegular() {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		is := info.Mode().Perm()
		if want := is&0o700 | is&0o500>>3 | is&0o500>>6; is != want {
			return os.Chmod(file, want)
		}
		return nil
	})
}
