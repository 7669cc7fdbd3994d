package ssh_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/test/harness"
)

// regress is where Debian's package openssh-tests has OpenSSH's own tests, scripts that run ssh, scp and sftp against a server.
const regress = "/usr/lib/openssh/regress"

// regressScripts are the names of OpenSSH's tests that run, in a plain run and only in a soak. The others are left out:
//   - tests without a server: of keys, agents, client configurations and moduli;
//   - tests that write a configuration of sshd: banner, envpass, forcecommand, principals, chroot, limits on users and keys, login
//     times, rekeying, choices of algorithms;
//   - tests that expect the server in the network of the client: forwarding, multiplex, keyscan;
//   - proxy-connect, because "user:style" is a user and a group here.
var regressScripts = struct{ plain, others []string }{
	[]string{"broken-pipe", "connect-uri", "exit-status-signal", "sftp-badcmds", "sftp-batch", "sftp-cmds", "sftp-glob", "sftp-perm"},
	[]string{"connect", "exit-status", "scp", "scp-uri", "sftp", "sftp-uri", "stderr-after-eof", "stderr-data", "transfer", "yes-head"},
}

// sshdStand is the program that OpenSSH's tests run as sshd. With -t it accepts every configuration, and with -i it connects standard
// input and output to the server under test. As a daemon it only writes its PID file: the server under test listens on the port already.
const sshdStand = `#!/bin/bash
for a; do case $a in -t) exit;; -T|-V) exec /usr/sbin/sshd "$@";; esac; done
for a; do if [ "$a" = -i ]; then exec "$SPLICE"; fi; done
pidfile=$(awk '$1 == "PidFile" { print $2 }' "$2")
bash -c 'echo $$ >"$1"; trap "rm -f $1; exit" TERM; while [ -e "$1" ]; do sleep 0.1; done' bash "$pidfile" </dev/null >/dev/null 2>&1 &
while [ ! -s "$pidfile" ]; do sleep 0.05; done
`

func TestOpenSSHsOwnTests(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	ours, sshd := servers(t, sandbox.WithMounts(sandbox.Mount{Source: dir, Target: dir, Mode: sandbox.RW})) // whose files both sides compare
	scripts, with := regressScripts.plain, []*server{ours}
	if harness.Soaking() {
		scripts, with = slices.Concat(scripts, regressScripts.others), []*server{sshd, ours}
	}
	for _, script := range scripts {
		t.Run(script, func(t *testing.T) {
			t.Parallel()
			for _, s := range with {
				if out, err := runRegress(t, s, filepath.Join(dir, s.name, script), script); err != nil || !strings.Contains(out, "\nok ") {
					t.Errorf("%s: %v\n%s", s.name, err, out)
				}
			}
		})
	}
}

// runRegress runs one of OpenSSH's tests in a directory of its own, and returns what it says.
func runRegress(t *testing.T, s *server, dir, script string) (string, error) {
	t.Helper()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"mkdtemp", "netcat", "modpipe", "config.h"} {
		if err := os.Symlink(filepath.Join(regress, name), filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	write := func(name, text string) string {
		name = filepath.Join(dir, name)
		if err := os.WriteFile(name, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
		return name
	}
	ssh := write("ssh-any-key", "#!/bin/sh\nexec /usr/bin/ssh -oStrictHostKeyChecking=no -oUserKnownHostsFile=/dev/null -oGlobalKnownHostsFile=/dev/null -oIdentitiesOnly=yes -oIdentityFile="+filepath.Join(s.dir, "mine")+` "$@"`+"\n")
	splice := write("splice", fmt.Sprintf("#!/bin/bash\nexec %s/netcat 127.0.0.1 %d\n", regress, s.port))
	ctx, cancel := context.WithTimeout(t.Context(), 25*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "sh", filepath.Join(regress, "test-exec.sh"), dir, filepath.Join(regress, script+".sh"))
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "TEST_SHELL=sh", "BUILDDIR="+regress, "SPLICE="+splice, fmt.Sprint("TEST_SSH_PORT=", s.port),
		"TEST_SSH_SSH="+ssh, "TEST_SSH_SSHD="+write("sshd", sshdStand), "TEST_SSH_UNSAFE_PERMISSIONS=1", "TEST_SSH_SFTPSERVER=/usr/lib/openssh/sftp-server", "HOME="+dir, "USER=root", "LOGNAME=root")
	cmd.WaitDelay = 5 * time.Minute
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	if err != nil {
		log, _ := os.ReadFile(filepath.Join(dir, "failed-regress.log"))
		out.Write(log)
	}
	return "\n" + out.String(), err
}
