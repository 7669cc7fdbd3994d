package ssh_test

import (
	"context"
	"embed"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/test/harness"
)

// scripts are what clients do, as scripts of the shell and of Python. They begin in a directory of their own with some files, and
// $THERE is an empty one in the sandbox.
//
//go:embed testdata
var scripts embed.FS

// volatile is what no two runs have in common: times of day, with the day, which may end between them, rates and key files.
var volatile = regexp.MustCompile(`([A-Z][a-z][a-z] [ \d]\d )?\d\d:\d\d(:\d\d)?|\d+(\.\d+)? ?[KM]?B/s|\d+%`)

// missing is what a shell, timeout or Python writes for a client that is not installed.
var missing = regexp.MustCompile(`.*(: not found\n|failed to run command|ModuleNotFoundError).*`)

// filesThere describes a directory in the sandbox.
const filesThere = `cd "$1" && find . -printf '%p %y %m %U:%G %n %l\n' | sort; find . -type f -exec md5sum {} + | sort; find . -newermt 2001-01-01 ! -newermt 2020-01-01 -printf '%p %TY\n' | sort`

func TestClientsFindWhatTheyFindAtSSHD(t *testing.T) {
	t.Parallel()
	_, modules := python(t) // what Ansible has run inside
	ours, sshd := servers(t, sandbox.WithMounts(sandbox.Mount{Source: modules, Target: modules, Mode: sandbox.RO}))
	files, err := scripts.ReadDir("testdata")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		t.Run(file.Name(), func(t *testing.T) {
			t.Parallel()
			script, err := scripts.ReadFile("testdata/" + file.Name())
			if err != nil {
				t.Fatal(err)
			}
			want, got := runClient(t, sshd, file.Name(), script), runClient(t, ours, file.Name(), script)
			if m := missing.FindString(want); m != "" {
				t.Errorf("%q: ci/clients installs what is missing", m)
			}
			if diff := cmp.Diff(strings.Split(want, "\n"), strings.Split(got, "\n")); diff != "" {
				t.Errorf("(-sshd +ours)\n%s", diff)
			}
		})
	}
}

// runClient returns what a script wrote and left on both sides.
func runClient(t *testing.T, s *server, name string, script []byte) string {
	t.Helper()
	dir, there := t.TempDir(), "/tmp/of-"+name+"/there" // nobody else changes the directory above
	harness.Run(t, s.sb, "sh", "-c", `rm -rf "$1"; mkdir -p "$1"`, "sh", there)
	for file, text := range map[string]string{
		"config": fmt.Sprintf("Host box\n\tHostName 127.0.0.1\n\tPort %d\n\tUser root\n\tIdentityFile %s/mine\n\tIdentitiesOnly yes\n\tBatchMode yes\n"+
			"\tStrictHostKeyChecking no\n\tUserKnownHostsFile /dev/null\n\tLogLevel ERROR\n", s.port, s.dir),
		"here/a": "first\n", "here/sub/b": strings.Repeat("b\n", 100_000), "here/two words": "x", "here/empty": "",
	} {
		file = filepath.Join(dir, file)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	at := time.Unix(1234567890, 0)
	if err := os.Chtimes(filepath.Join(dir, "here/a"), at, at); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 25*time.Minute)
	defer cancel()
	interpreter := "sh"
	if strings.HasSuffix(name, ".py") {
		interpreter = "/usr/bin/python3" // Debian's, which has Debian's packages
	}
	cmd := exec.CommandContext(ctx, interpreter, "-")
	cmd.Dir = dir
	cmd.Stdin = strings.NewReader(string(script))
	cmd.Env = append(os.Environ(), fmt.Sprint("PORT=", s.port), "KEY="+filepath.Join(s.dir, "mine"), "THERE="+there, "HOME="+dir, "LC_ALL=C", "LANG=C")
	cmd.WaitDelay = 5 * time.Minute // what a client leaves in the background ends by itself
	out, err := cmd.CombinedOutput()
	seen := volatile.ReplaceAllString(strings.ReplaceAll(string(out), fmt.Sprint(s.port), "PORT"), "…")
	here, err2 := exec.Command("sh", "-c", filesThere, "sh", filepath.Join(dir, "here")).CombinedOutput()
	return fmt.Sprintf("%s\n%v\nhere, %v:\n%s\nthere:\n%s", seen, err, err2, here, harness.Run(t, s.sb, "sh", "-c", filesThere, "sh", there))
}
