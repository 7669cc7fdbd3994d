package exec_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/crypto/ssh"
	"golang.org/x/sys/unix"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/internal/enginetest"
	"github.com/seed-1a2d6d8f/sandbox/test/harness"
)

// cli builds the command line program, once for all tests, and returns a path to run
// it by. The file itself is removed already: this process holds the last link.
var cli = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "sandbox")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(dir)
	program := filepath.Join(dir, "sandbox")
	if out, err := exec.Command("go", "build", "-o", program, "../../cmd/sandbox").CombinedOutput(); err != nil {
		return "", fmt.Errorf("%w\n%s", err, out)
	}
	fd, err := unix.Open(program, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), fd), err
})

// An openSSH is a sandbox as the programs of OpenSSH reach it.
type openSSH struct {
	t      *testing.T
	sb     *sandbox.Sandbox
	host   string // as ssh_config knows it
	config string
}

func newOpenSSH(t *testing.T, opts ...sandbox.CreateOption) *openSSH {
	t.Helper()
	return openSSHTo(t, harness.NewSandbox(t, append(opts, sandbox.WithName(harness.UniqueName(t)), sandbox.WithStopTimeout(time.Second))...))
}

func openSSHTo(t *testing.T, sb *sandbox.Sandbox) *openSSH {
	t.Helper()
	enginetest.Need(t)
	for _, program := range []string{"ssh", "scp", "sftp", "rsync", "git"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Fatalf("%v: ci/clients installs it", err)
		}
	}
	program, err := cli()
	if err != nil {
		t.Fatal(err)
	}
	o := &openSSH{t: t, sb: sb, host: sb.Name() + ".sandbox", config: filepath.Join(t.TempDir(), "config")}
	config := fmt.Sprintf("Host *.sandbox\n\tProxyCommand %s proxy %%n\n\tStrictHostKeyChecking accept-new\n\tUserKnownHostsFile %s\n\tLogLevel ERROR\n",
		program, filepath.Join(t.TempDir(), "known_hosts"))
	if err := os.WriteFile(o.config, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	return o
}

// command is one of the programs, told how to reach sandboxes. %s in an argument is
// the sandbox.
func (o *openSSH) command(program string, args ...string) *exec.Cmd {
	all := []string{"-F", o.config}
	for _, a := range args {
		all = append(all, strings.ReplaceAll(a, "%s", o.host))
	}
	ctx, cancel := context.WithTimeout(o.t.Context(), 10*time.Minute)
	o.t.Cleanup(cancel)
	return exec.CommandContext(ctx, program, all...)
}

// must runs a command that has to succeed, and returns what it wrote.
func must(t *testing.T, cmd *exec.Cmd) string {
	t.Helper()
	var stderr bytes.Buffer
	if cmd.Stderr == nil {
		cmd.Stderr = &stderr
	}
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%q: %v\n%s%s", cmd.Args, err, out, &stderr)
	}
	return string(out)
}

// ssh runs a command line in the sandbox.
func (o *openSSH) ssh(commandLine string) string {
	o.t.Helper()
	return must(o.t, o.command("ssh", "%s", commandLine))
}

// rsh is what rsync and git are to reach sandboxes with.
func (o *openSSH) rsh() string { return "ssh -F " + o.config }

// What the programs of OpenSSH, and those that use them, do in the same sandbox.
func TestOpenSSH(t *testing.T) {
	t.Parallel()
	o := newOpenSSH(t)
	for what, test := range map[string]func(*testing.T, *openSSH){
		"exit codes":        testSSHPassesExitCodesOn,
		"stdout and stderr": testSSHKeepsStdoutAndStderrApart,
		"stdin":             testSSHPassesStdinOnByteForByte,
		"a terminal":        testSSHGivesATerminalWithSizeAndKeys,
		"a shell":           testSSHShellReadsWhatIsTyped,
		"scp":               testSCPCopiesTreesBothWays,
		"sftp":              testSFTPDoesABatch,
		"rsync":             testRsyncMovesNothingTheSecondTime,
		"git":               testGitClonesAndPushes,
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			o := *o
			o.t = t
			test(t, &o)
		})
	}
}

func testSSHPassesExitCodesOn(t *testing.T, o *openSSH) {
	for script, want := range map[string]int{
		"exit 0":         0,
		"exit 7":         7,
		"no-such":        127,
		"/etc/passwd":    126,
		"kill -TERM $$":  255, // all that OpenSSH makes of a signal
		"echo x; exit 3": 3,
	} {
		cmd := o.command("ssh", "%s", script)
		cmd.Run()
		if got := cmd.ProcessState.ExitCode(); got != want {
			t.Errorf("ssh %q: exit code %d, want %d", script, got, want)
		}
	}
}

func testSSHKeepsStdoutAndStderrApart(t *testing.T, o *openSSH) {
	var stderr bytes.Buffer
	cmd := o.command("ssh", "%s", "echo out; echo err >&2")
	cmd.Stderr = &stderr
	if out := must(t, cmd); out != "out\n" || stderr.String() != "err\n" {
		t.Errorf("stdout %q, stderr %q, want out and err", out, &stderr)
	}
}

func testSSHPassesStdinOnByteForByte(t *testing.T, o *openSSH) {
	want := make([]byte, 8<<20)
	rand.Read(want)
	cmd := o.command("ssh", "%s", "cat")
	cmd.Stdin = bytes.NewReader(want)
	if got := must(t, cmd); got != string(want) {
		t.Errorf("cat gave back %d bytes, want the %d random ones", len(got), len(want))
	}
}

func TestSSHSessionIsTheSandboxUsers(t *testing.T) {
	t.Parallel()
	o := newOpenSSH(t, sandbox.WithUser("node"), sandbox.WithWorkdir("/home/node"), sandbox.WithEnv(map[string]string{"GREETING": "hello there"}))
	got := strings.Split(o.ssh(`id -un; pwd; echo "$HOME" "$USER" "$SHELL"; echo "$GREETING"; node -p 6*7`), "\n")
	want := []string{"node", "/home/node", "/home/node node /bin/bash", "hello there", "42", ""}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("session (-want +got):\n%s", diff)
	}
	if got := o.ssh("grep -o 'NoNewPrivs:.*' /proc/self/status"); !strings.HasSuffix(got, "\t1\n") {
		t.Errorf("a session of a user says %q, want no new privileges", got)
	}
	if got := must(t, o.command("ssh", "-o", "SetEnv=LC_FRUIT=plum", "%s", `echo "$LC_FRUIT"`)); got != "plum\n" {
		t.Errorf("SetEnv arrives as %q, want plum", got)
	}
}

// tty starts a program on a terminal of 33 rows and 111 columns.
func tty(t *testing.T, cmd *exec.Cmd) (master *os.File) {
	t.Helper()
	fd, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	master = os.NewFile(uintptr(fd), "terminal")
	t.Cleanup(func() { master.Close() })
	n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0)
	unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: 33, Col: 111})
	slave, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer slave.Close()
	cmd.Stdin, cmd.Stdout, cmd.Stderr = slave, slave, slave
	cmd.Env = append(os.Environ(), "TERM=vt220")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return master
}

func testSSHGivesATerminalWithSizeAndKeys(t *testing.T, o *openSSH) {
	cmd := o.command("ssh", "-t", "%s", `trap 'echo now $(stty size)' WINCH; trap 'echo bye; exit 9' INT; echo "$TERM" $(stty size); while :; do sleep 0.05; done`)
	master := tty(t, cmd)
	var seen bytes.Buffer
	until := func(text string) {
		t.Helper()
		master.SetReadDeadline(time.Now().Add(5 * time.Minute))
		buf := make([]byte, 1024)
		for !strings.Contains(seen.String(), text) {
			n, err := master.Read(buf)
			seen.Write(buf[:n])
			if err != nil {
				inside, _ := o.sb.Command(t.Context(), "sh", "-c", "for t in /dev/pts/[0-9]*; do stty -F $t -a; done; ps -ef").CombinedOutput()
				t.Fatalf("the terminal shows %q, %v, want %q; inside there are\n%s", &seen, err, text, inside)
			}
		}
	}
	until("vt220 33 111")
	if raw, err := master.SyscallConn(); err == nil {
		raw.Control(func(fd uintptr) {
			unix.IoctlSetWinsize(int(fd), unix.TIOCSWINSZ, &unix.Winsize{Row: 44, Col: 122})
		})
	}
	// A client that looks for signals and then waits for input misses one that comes between.
	resized := make(chan struct{})
	var again sync.WaitGroup
	again.Go(func() {
		for {
			select {
			case <-time.After(2 * time.Second):
				cmd.Process.Signal(syscall.SIGWINCH)
			case <-resized:
				return
			}
		}
	})
	func() {
		defer again.Wait()
		defer close(resized)
		until("now 44 122")
	}()
	master.Write([]byte{3}) // Ctrl-C
	until("bye")
	cmd.Wait()
	if got := cmd.ProcessState.ExitCode(); got != 9 {
		t.Errorf("exit code %d after Ctrl-C, want the trap's 9", got)
	}
}

func testSSHShellReadsWhatIsTyped(t *testing.T, o *openSSH) {
	cmd := o.command("ssh", "-tt", "%s")
	cmd.Stdin = strings.NewReader("echo $((6*7)); exit 5\n")
	out, _ := cmd.Output()
	if !strings.Contains(string(out), "42") || cmd.ProcessState.ExitCode() != 5 {
		t.Errorf("the shell wrote %q and exited with %d, want 42 and 5", out, cmd.ProcessState.ExitCode())
	}
}

// goSSH connects another client that we did not write: golang.org/x/crypto/ssh.
func goSSH(t *testing.T, sb *sandbox.Sandbox) *ssh.Client {
	t.Helper()
	raw, err := sb.SSH(t.Context())
	if err != nil {
		t.Fatalf("SSH: %v", err)
	}
	conn, chans, reqs, err := ssh.NewClientConn(raw, sb.Name(), &ssh.ClientConfig{HostKeyCallback: ssh.InsecureIgnoreHostKey()})
	if err != nil {
		raw.Close()
		t.Fatal(err)
	}
	client := ssh.NewClient(conn, chans, reqs)
	t.Cleanup(func() { client.Close() })
	return client
}

func TestSSHSignalsReachTheCommandAndEndIt(t *testing.T) {
	t.Parallel()
	client := goSSH(t, harness.Shared(t))
	for _, test := range []struct {
		signal ssh.Signal
		trap   string
		check  func(*ssh.ExitError) bool
	}{
		{ssh.SIGTERM, "", func(e *ssh.ExitError) bool { return e.Signal() == "TERM" }},
		{ssh.SIGKILL, "", func(e *ssh.ExitError) bool { return e.Signal() == "KILL" }},
		{ssh.SIGUSR1, "trap 'exit 6' USR1;", func(e *ssh.ExitError) bool { return e.ExitStatus() == 6 && e.Signal() == "" }},
	} {
		session, err := client.NewSession()
		if err != nil {
			t.Fatal(err)
		}
		out, err := session.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := session.Start(test.trap + "echo ready; while :; do sleep 0.05; done"); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(out, make([]byte, 6)); err != nil {
			t.Fatal(err)
		}
		if err := session.Signal(test.signal); err != nil {
			t.Errorf("Signal(%s): %v", test.signal, err)
		}
		var exit *ssh.ExitError
		if err := session.Wait(); !errors.As(err, &exit) || !test.check(exit) {
			t.Errorf("after signal %s the command ended with %v", test.signal, err)
		}
	}
}

func TestSSHAnswersKeepalivesAndRefusesTheRest(t *testing.T) {
	t.Parallel()
	client := goSSH(t, harness.Shared(t))
	if _, _, err := client.SendRequest("keepalive@openssh.com", true, nil); err != nil {
		t.Errorf("keepalive: %v, want an answer", err)
	}
	if l, err := client.Listen("tcp", "127.0.0.1:0"); err == nil {
		l.Close()
		t.Error("forwarding from the sandbox was granted, want it refused")
	}
	session, err := client.NewSession()
	if err != nil {
		t.Fatal(err)
	}
	defer session.Close()
	if err := session.RequestSubsystem("netconf"); err == nil {
		t.Error("an unknown subsystem was granted, want it refused")
	}
	if ok, err := session.SendRequest("auth-agent-req@openssh.com", true, nil); ok || err != nil {
		t.Errorf("agent forwarding: %v, %v, want it refused", ok, err)
	}
	if out, err := session.Output("echo still fine"); string(out) != "still fine\n" || err != nil {
		t.Errorf("a command after all that: %q, %v", out, err)
	}
}

func TestSSHResumesAStoppedSandboxAndKeepsItsHostKey(t *testing.T) {
	t.Parallel()
	o := newOpenSSH(t)
	o.ssh("echo kept > file") // accepts the host key, and will accept no other
	if _, err := o.sb.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := o.ssh("cat file"); got != "kept\n" {
		t.Errorf("after the stop the file holds %q, want kept", got)
	}
}

func TestSSHWithoutAShellSaysSo(t *testing.T) {
	t.Parallel()
	o := newOpenSSH(t)
	harness.Run(t, o.sb, "rm", "/bin/sh", "/bin/bash")
	var stderr bytes.Buffer
	cmd := o.command("ssh", "%s", "true")
	cmd.Stderr = &stderr
	cmd.Run()
	if got := cmd.ProcessState.ExitCode(); got != 127 || !strings.Contains(stderr.String(), `"/bin/sh"`) {
		t.Errorf("ssh without a shell: exit code %d, stderr %q, want 127 and the shell's name", got, &stderr)
	}
}

func TestSSHOfNoSandboxFailsWithOurWords(t *testing.T) {
	t.Parallel()
	o := openSSHTo(t, harness.Shared(t))
	var stderr bytes.Buffer
	cmd := o.command("ssh", "no-such-sandbox.sandbox", "true")
	cmd.Stderr = &stderr
	cmd.Run()
	if got := cmd.ProcessState.ExitCode(); got != 255 || !strings.Contains(stderr.String(), "Sandbox not found") {
		t.Errorf("ssh to no sandbox: exit code %d, stderr %q, want 255 and that it was not found", got, &stderr)
	}
}

func TestSSHClientThatVanishesTakesItsCommandAlong(t *testing.T) {
	t.Parallel()
	o := openSSHTo(t, harness.Shared(t))
	o.ssh("nohup sleep 1101 >/dev/null 2>&1 &") // this one asked to stay
	cmd := o.command("ssh", "%s", "sleep 1102; true")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	runs := func(what string) func() bool {
		return func() bool { return o.sb.Command(t.Context(), "pgrep", "-fx", what).Run() == nil }
	}
	harness.Eventually(t, "the command runs", runs("sleep 1102"))
	cmd.Process.Kill()
	cmd.Wait()
	harness.Eventually(t, "the command has ended", func() bool { return !runs("sleep 1102")() })
	if !runs("sleep 1101")() {
		t.Error("what was in the background is gone, want it to live as long as the session")
	}
}

func TestSSHEndsWithTheSession(t *testing.T) {
	t.Parallel()
	o := newOpenSSH(t)
	cmd := o.command("ssh", "%s", "echo ready; sleep 1000")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(out, make([]byte, 6)); err != nil {
		t.Fatal(err)
	}
	if _, err := o.sb.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	defer time.AfterFunc(time.Minute, func() { cmd.Process.Kill() }).Stop()
	cmd.Wait()
	if got := cmd.ProcessState.ExitCode(); got != 255 {
		t.Errorf("ssh ended with code %d within a minute of the session, want 255", got)
	}
}

// plant makes a tree of some files with different modes, times, names and links.
func plant(t *testing.T, dir string) {
	t.Helper()
	for i, name := range []string{"a", "with space", "sub/b", "sub/deep/c", "umlaut-ü", "empty", "big"} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		content := strings.Repeat(name, i)
		if name == "big" {
			content = strings.Repeat("0123456789abcdef", 64<<10)
		}
		if err := os.WriteFile(path, []byte(content), 0o600+fs.FileMode(i%2)*0o155); err != nil {
			t.Fatal(err)
		}
		at := time.Unix(1700000000+int64(i), 0)
		if err := os.Chtimes(path, at, at); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("sub/b", filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
}

// look describes a tree, links followed or not.
func look(t *testing.T, dir string, follow bool) map[string]string {
	t.Helper()
	tree := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		name, _ := filepath.Rel(dir, path)
		info, err := os.Lstat(path)
		if err != nil {
			return err
		}
		if info.Mode()&fs.ModeSymlink != 0 && !follow {
			to, err := os.Readlink(path)
			tree[name] = "-> " + to
			return err
		}
		content, err := os.ReadFile(path)
		tree[name] = fmt.Sprintf("%d bytes, %x", len(content), content[:min(len(content), 32)])
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return tree
}

func testSCPCopiesTreesBothWays(t *testing.T, o *openSSH) {
	there, back := t.TempDir(), t.TempDir()
	plant(t, there)
	must(t, o.command("scp", "-r", there, "%s:/tmp/tree"))
	must(t, o.command("scp", "-r", "%s:/tmp/tree", filepath.Join(back, "tree")))
	if diff := cmp.Diff(look(t, there, true), look(t, filepath.Join(back, "tree"), true)); diff != "" {
		t.Errorf("after scp there and back (-want +got):\n%s", diff)
	}
}

func testSFTPDoesABatch(t *testing.T, o *openSSH) {
	dir := t.TempDir()
	plant(t, dir)
	cmd := o.command("sftp", "-b", "-", "%s")
	cmd.Dir = dir
	cmd.Stdin = strings.NewReader(`pwd
put big
ls -l big
mkdir box
rename big box/larger
symlink larger box/short
chmod 640 box/larger
df -h
get box/larger fetched
put -r sub box/sub
get -r box/sub again
rm box/short
-rmdir box
`)
	out := must(t, cmd)
	if !strings.Contains(out, "Remote working directory: /workspace") {
		t.Errorf("sftp wrote %q, want it to begin in /workspace", out)
	}
	got := look(t, dir, false)
	if got["fetched"] != got["big"] || got["again/deep/c"] != got["sub/deep/c"] {
		t.Errorf("what came back is not what went there: %v", got)
	}
	if got := harness.Run(t, o.sb, "stat", "-c", "%a %s", "box/larger"); got != "640 1048576" {
		t.Errorf("the file inside is %q, want 640 1048576", got)
	}
}

// giveRsync puts the machine's rsync with all it needs into the sandbox, whose image
// may have none.
func giveRsync(t *testing.T, sb *sandbox.Sandbox) {
	t.Helper()
	archive, loader := harness.Installed(t, "/usr/bin/rsync")
	script := `set -e
mkdir -p /opt/rsync; tar -x -C /opt/rsync --transform 's,.*/,,'
printf '#!/bin/sh\nexec /opt/rsync/%s --library-path /opt/rsync /opt/rsync/rsync "$@"\n' "$1" > /usr/local/bin/rsync
chmod 755 /usr/local/bin/rsync; rsync --version`
	cmd := sb.Command(t.Context(), "sh", "-c", script, "sh", loader)
	cmd.Stdin = bytes.NewReader(archive)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("install rsync: %v\n%s", err, out)
	}
}

func testRsyncMovesNothingTheSecondTime(t *testing.T, o *openSSH) {
	giveRsync(t, o.sb)
	there, back := t.TempDir(), t.TempDir()
	plant(t, there)
	for _, way := range [][2]string{{there + "/", o.host + ":/tmp/synced/"}, {o.host + ":/tmp/synced/", back + "/"}} {
		for round, want := range []string{"7", "0"} {
			cmd := exec.CommandContext(t.Context(), "rsync", "-a", "--stats", "-e", o.rsh(), way[0], way[1])
			out := must(t, cmd)
			if line := "Number of regular files transferred: " + want + "\n"; !strings.Contains(out, line) {
				t.Errorf("rsync -a %s %s, round %d:\n%s\nwant %q", way[0], way[1], round+1, out, line)
			}
		}
	}
	if diff := cmp.Diff(look(t, there, false), look(t, back, false)); diff != "" {
		t.Errorf("after rsync there and back (-want +got):\n%s", diff)
	}
}

func testGitClonesAndPushes(t *testing.T, o *openSSH) {
	harness.Run(t, o.sb, "git", "init", "--bare", "--initial-branch=main", "/workspace/repo.git")
	dir := t.TempDir()
	git := func(args ...string) string {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), "git", args...)
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "GIT_SSH_COMMAND="+o.rsh(), "GIT_CONFIG_GLOBAL=/dev/null",
			"GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a@b", "GIT_COMMITTER_NAME=a", "GIT_COMMITTER_EMAIL=a@b")
		return must(t, cmd)
	}
	url := o.host + ":/workspace/repo.git"
	git("clone", "-q", url, "one")
	if err := os.WriteFile(filepath.Join(dir, "one", "file"), []byte("pushed"), 0o644); err != nil {
		t.Fatal(err)
	}
	git("-C", "one", "checkout", "-q", "-b", "main")
	git("-C", "one", "add", "file")
	git("-C", "one", "commit", "-q", "-m", "first")
	git("-C", "one", "push", "-q", "origin", "main")
	git("clone", "-q", "ssh://"+o.host+"/workspace/repo.git", "two")
	if got, err := os.ReadFile(filepath.Join(dir, "two", "file")); string(got) != "pushed" || err != nil {
		t.Errorf("the second clone has %q, %v, want what was pushed from the first", got, err)
	}
	if got, want := harness.Run(t, o.sb, "git", "-C", "/workspace/repo.git", "rev-parse", "main"), strings.TrimSpace(git("-C", "one", "rev-parse", "HEAD")); got != want {
		t.Errorf("main inside is %s, want %s", got, want)
	}
}

func TestSSHForwardsToServersInside(t *testing.T) {
	t.Parallel()
	o := newOpenSSH(t, sandbox.WithCommand("node", "-e", fiveServers))
	if err := o.sb.WaitPort(t.Context(), 3000); err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "L") // a socket's path is short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	web, echo := filepath.Join(dir, "web"), filepath.Join(dir, "echo")
	cmd := o.command("ssh", "-N", "-o", "ExitOnForwardFailure=yes", "-L", web+":localhost:3000", "-L", echo+":/tmp/echo.sock", "%s")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
	})
	harness.Eventually(t, "ssh -L listens", func() bool {
		_, err := os.Stat(echo)
		return err == nil
	})
	client := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", web)
	}}}
	defer client.CloseIdleConnections()
	if got := fetch(t, client, "http://localhost/z"); got != "http /z" {
		t.Errorf("GET by ssh -L = %q, want http /z", got)
	}
	conn, err := net.Dial("unix", echo)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	echoed(t, conn, "hello")
}

func TestSSHConnectionEndsWithItsHandle(t *testing.T) {
	t.Parallel()
	sb := harness.NewSandbox(t)
	conn, err := sb.SSH(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := sb.Detach(); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadAll(conn); !errors.Is(err, net.ErrClosed) {
		t.Errorf("Read after Detach = %v, want ErrClosed", err)
	}
	if _, err := sb.SSH(t.Context()); !errors.Is(err, sandbox.ErrClosed) {
		t.Errorf("SSH after Detach = %v, want ErrClosed", err)
	}
}
