package link_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/internal/enginetest"
	"github.com/seed-1a2d6d8f/sandbox/test/harness"
)

// sshd is an OpenSSH server on a port of 127.0.0.1, behind which the engine is.
type sshd struct {
	pid  int
	log  *syncBuffer
	host string // of its engine
}

type syncBuffer struct {
	mu sync.Mutex
	bytes.Buffer
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.Buffer.Write(p)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.Buffer.String()
}

// connections is how many connections the server has accepted.
func (s *sshd) connections() int { return strings.Count(s.log.String(), "Accepted publickey") }

// newSSHD starts a server with these options, and returns a client of its engine. The ssh on PATH
// is OpenSSH's with the options of the client's configuration.
func newSSHD(t *testing.T, serverOptions []string, options ...string) (*sshd, *sandbox.Client) {
	t.Helper()
	enginetest.Need(t)
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	write := func(name string, mode os.FileMode, lines ...string) {
		t.Helper()
		if err := os.WriteFile(at(name), []byte(strings.Join(lines, "\n")+"\n"), mode); err != nil {
			t.Fatal(err)
		}
	}
	for _, key := range []string{"host", "mine"} {
		if out, err := exec.Command("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", at(key)).CombinedOutput(); err != nil {
			t.Fatalf("ssh-keygen: %v: %s", err, out)
		}
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address, port := l.Addr().String(), l.Addr().(*net.TCPAddr).Port
	l.Close()
	server := []string{
		"ListenAddress " + address, "HostKey " + at("host"), "AuthorizedKeysFile " + at("mine.pub"), "StrictModes no", "PidFile none",
		"UsePAM no", "PasswordAuthentication no", "KbdInteractiveAuthentication no", "PermitRootLogin yes",
	}
	server = append(server, serverOptions...)
	environment := "SetEnv SHLVL=1" // in another shell bash reads no .bashrc, which may take long on the machine of a developer
	if engine := os.Getenv("DOCKER_HOST"); engine != "" {
		environment += " DOCKER_HOST=" + engine
	}
	server = append(server, environment)
	write("sshd_config", 0o600, server...)
	known, err := os.ReadFile(at("host.pub"))
	if err != nil {
		t.Fatal(err)
	}
	write("known_hosts", 0o600, fmt.Sprintf("[127.0.0.1]:%d %s", port, known))
	write("ssh_config", 0o600, append([]string{
		"IdentityFile " + at("mine"), "IdentitiesOnly yes", "UserKnownHostsFile " + at("known_hosts"), "BatchMode yes"}, options...)...)
	program, err := exec.LookPath("ssh")
	if err != nil {
		t.Fatal(err)
	}
	// OpenSSH takes the home directory from the accounts, not from the environment.
	if err := os.Mkdir(at("bin"), 0o700); err != nil {
		t.Fatal(err)
	}
	write("bin/ssh", 0o700, "#!/bin/sh", "exec "+program+" -F "+at("ssh_config")+` "$@"`)
	t.Setenv("PATH", at("bin")+":"+os.Getenv("PATH"))

	if err := os.MkdirAll("/run/sshd", 0o755); err != nil { // where sshd confines itself
		t.Fatal(err)
	}
	s := &sshd{log: new(syncBuffer)}
	cmd := exec.Command("/usr/sbin/sshd", "-D", "-e", "-f", at("sshd_config"))
	cmd.Stderr = s.log
	// Sessions that are left keep its stderr open.
	cmd.WaitDelay = time.Second
	if err := cmd.Start(); err != nil {
		t.Fatalf("%v: ci/clients installs it", err)
	}
	s.pid = cmd.Process.Pid
	t.Cleanup(func() {
		s.signal(t, syscall.SIGKILL)
		cmd.Process.Kill()
		cmd.Wait()
	})
	harness.Eventually(t, "sshd listens", func() bool {
		conn, err := net.Dial("tcp", address)
		if err == nil {
			conn.Close()
		}
		return err == nil
	})
	me, err := user.Current()
	if err != nil {
		t.Fatal(err)
	}
	s.host = fmt.Sprintf("ssh://%s@127.0.0.1:%d", me.Username, port)
	return s, harness.NewClient(t, sandbox.WithHost(s.host))
}

// signal sends sig to the server's processes of each connection, which are called sshd-session since OpenSSH 9.8.
func (s *sshd) signal(t *testing.T, sig syscall.Signal) (n int) {
	t.Helper()
	all := []int{s.pid}
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		t.Fatal(err)
	}
	// All are found first: a process whose parent is killed gets another one.
	for i := 0; i < len(all); i++ {
		for _, file := range stats {
			text, _ := os.ReadFile(file)
			pid, rest, _ := strings.Cut(string(text), " (")
			name, rest, _ := strings.Cut(rest, ") ")
			if fields := strings.Fields(rest); strings.HasPrefix(name, "sshd") && len(fields) > 1 && fields[1] == strconv.Itoa(all[i]) {
				if id, err := strconv.Atoi(pid); err == nil {
					all = append(all, id)
				}
			}
		}
	}
	for _, id := range all[1:] {
		if syscall.Kill(id, sig) == nil {
			n++
		}
	}
	return n
}

// Creations at once take a few connections: each carries as many of them as the server
// allows, by default ten. If it allows one, ssh connects anew for each.
func TestCreationsOverSSH(t *testing.T) {
	own := []string{"ControlMaster auto", "ControlPersist 300", ""} // the test ends them before
	for name, test := range map[string]struct {
		server, options []string
		creations       int
		most            func(creations int) int // connections
	}{
		// Each first creation connects to its guest; calls share connections.
		"by default":                        {nil, nil, harness.Rounds(4, 16), few},
		"one session of a connection":       {[]string{"MaxSessions 1"}, nil, harness.Rounds(3, 16), twoEach},
		"without masters":                   {nil, []string{"ControlPath /nonexistent/s"}, harness.Rounds(3, 16), twoEach},
		"the user's master":                 {nil, slices.Clone(own), harness.Rounds(4, 16), func(creations int) int { return max(4, creations) }},
		"the user's master of all sessions": {[]string{"MaxSessions 100"}, slices.Clone(own), harness.Rounds(4, 16), few},
	} {
		t.Run(name, func(t *testing.T) {
			if len(test.options) == len(own) {
				test.options[2] = "ControlPath " + filepath.Join(shortDir(t), "s")
			}
			server, c := newSSHD(t, test.server, test.options...)
			creations := test.creations
			for try := 0; ; try++ {
				before := server.connections()
				err := createAtOnce(t, c, creations)
				n, most := server.connections()-before, test.most(creations)
				t.Logf("%d creations took %d connections: %v", creations, n, err)
				if err == nil && n <= most && n+try > 0 {
					break
				}
				if try == 4 || err != nil && !errors.Is(err, sandbox.ErrEngineUnavailable) {
					t.Errorf("%d creations took %d connections, want at most %d: %v", creations, n, most, err)
					break
				}
				// On a busy machine more calls wait for a connection at the same time, and several handshakes at once
				// may take longer than each may, which fewer do not.
				if err != nil {
					creations = max(1, creations/2)
				}
				if err := c.Close(); err != nil {
					t.Errorf("Close: %v", err)
				}
				c = harness.NewClient(t, sandbox.WithHost(server.host))
			}
			// Its master stays for ControlPersist.
			if len(test.options) != len(own) {
				server.closesCleanly(t, c)
			}
		})
	}
}

// few are the connections of creations that share them, twoEach of those that do not.
func few(int) int { return 4 }

func twoEach(creations int) int { return max(12, 2*creations) }

// createAtOnce creates so many sandboxes at once, after a first call.
func createAtOnce(t *testing.T, c *sandbox.Client, creations int) error {
	t.Helper()
	direct, began := harness.NewClient(t), time.Now()
	if _, err := c.ListVolumes(t.Context()); err != nil {
		return err
	}
	t.Logf("the first call took %v", time.Since(began).Round(time.Millisecond))
	var g errgroup.Group
	for range creations {
		name := harness.UniqueName(t)
		harness.Remove(t, direct, name)
		g.Go(func() error {
			sb, err := c.Create(t.Context(), sandbox.WithName(name), harness.Quick)
			if err != nil {
				return err
			}
			return sb.Detach()
		})
	}
	return g.Wait()
}

// shortDir is a directory whose name leaves room for a socket's.
func shortDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "cm")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// clients are the ssh processes of the server's clients that have word in their command line.
func (s *sshd) clients(t *testing.T, word string) (pids []int) {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	_, port, _ := strings.Cut(strings.TrimPrefix(s.host, "ssh://"), ":")
	for _, file := range files {
		line, _ := os.ReadFile(file)
		argv := strings.Split(string(line), "\x00")
		if slices.Contains(argv, "dial-stdio") && slices.Contains(argv, port) && strings.Contains(string(line), word) {
			pid, err := strconv.Atoi(strings.Split(file, "/")[2])
			if err != nil {
				t.Fatal(err)
			}
			pids = append(pids, pid)
		}
	}
	return pids
}

// closesCleanly closes a client all whose sandboxes are detached.
func (s *sshd) closesCleanly(t *testing.T, c *sandbox.Client) {
	t.Helper()
	began := time.Now()
	if err := c.Close(); err != nil {
		t.Errorf("Close: %v", err)
	}
	// A dial that no call waits for any more ends by itself.
	harness.Eventually(t, "no ssh process is left", func() bool { return len(s.clients(t, "")) == 0 })
	t.Logf("the client was closed within %v", time.Since(began).Round(time.Millisecond))
}

// Whether a program closes its client, with a server that is silent, too, or is killed: no ssh
// process stays.
func TestNoSSHProcessStays(t *testing.T) {
	tmp := shortDir(t)
	t.Setenv("TMPDIR", tmp)
	server, c := newSSHD(t, nil)
	sb := harness.Shared(t)
	left := func() []string {
		t.Helper()
		files, err := filepath.Glob(filepath.Join(tmp, "sandbox-ssh-*", "*"))
		if err != nil {
			t.Fatal(err)
		}
		return files
	}

	child := harness.Process(t, "over-ssh", server.host, sb.Name())
	out, err := child.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	if b := make([]byte, len("runs\n")); harness.Second(io.ReadFull(out, b)) != nil {
		t.Error("the program has ended")
	}
	if n := len(server.clients(t, "ControlMaster=yes")); n != 1 || len(left()) != 1 {
		t.Errorf("the program has %d masters and the sockets %q, want one", n, left())
	}
	harness.Kill(child)
	harness.Eventually(t, "the processes of a program that was killed end", func() bool { return len(server.clients(t, "")) == 0 })
	if files := left(); len(files) > 0 {
		t.Errorf("a program that was killed has left %q", files)
	}

	if _, err := c.ListVolumes(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := len(server.clients(t, "ControlMaster=yes")); n != 1 {
		t.Errorf("there are %d masters, want one", n)
	}
	server.signal(t, syscall.SIGSTOP)
	began := time.Now()
	server.closesCleanly(t, c)
	if took := time.Since(began); took > time.Minute {
		t.Errorf("to close took %v with a server that is silent", took)
	}
	if dirs, err := filepath.Glob(filepath.Join(tmp, "sandbox-ssh-*")); err != nil || len(dirs) > 1 {
		t.Errorf("left: %v, %v; want the empty directory of the program that was killed", dirs, err)
	}
}

func init() {
	harness.AddRole("over-ssh", func(args []string) error {
		c, err := harness.Open(sandbox.WithHost(args[0]))
		if err != nil {
			return err
		}
		sb, err := c.Get(context.Background(), args[1])
		if err != nil {
			return err
		}
		cmd := sb.Command(context.Background(), "sh", "-c", "echo runs; sleep 1000")
		cmd.Stdout = os.Stdout
		return cmd.Run()
	})
}

// The sessions of a master that is killed end, and the next command has a new one.
func TestKilledSSHMasterIsReplaced(t *testing.T) {
	server, c := newSSHD(t, nil)
	sb, err := c.Get(t.Context(), harness.Shared(t).Name())
	if err != nil {
		t.Fatal(err)
	}
	defer sb.Detach()
	for range 3 {
		if out := harness.Run(t, sb, "echo", "here"); out != "here" {
			t.Errorf("a command = %q", out)
		}
		masters := server.clients(t, "ControlMaster=yes")
		if len(masters) != 1 {
			t.Fatalf("there are %d masters, want one", len(masters))
		}
		cmd := sb.Command(t.Context(), "sleep", "1000")
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		if err := syscall.Kill(masters[0], syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		if err := cmd.Wait(); !errors.Is(err, sandbox.ErrEngineUnavailable) {
			t.Errorf("Wait = %v, want ErrEngineUnavailable", err)
		}
	}
	if out := harness.Run(t, sb, "echo", "again"); out != "again" {
		t.Errorf("a command = %q", out)
	}
}

// A connection that is dropped or hangs ends what uses it within 30 s.
func TestLostSSHConnectionEndsACommand(t *testing.T) {
	for name, sig := range map[string]syscall.Signal{"dropped": syscall.SIGKILL, "hanging": syscall.SIGSTOP} {
		t.Run(name, func(t *testing.T) {
			server, c := newSSHD(t, nil)
			sb, err := c.Get(t.Context(), harness.Shared(t).Name())
			if err != nil {
				t.Fatal(err)
			}
			defer sb.Detach()
			cmd := sb.Command(context.WithoutCancel(t.Context()), "cat")
			in, err := cmd.StdinPipe()
			if err != nil {
				t.Fatal(err)
			}
			defer in.Close()
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			if n := server.signal(t, sig); n == 0 {
				t.Fatal("the server has no connection")
			}
			began := time.Now()
			result := make(chan error, 1)
			go func() { result <- cmd.Wait() }()
			select {
			case err = <-result:
			case <-time.After(deadBound):
				t.Errorf("a command does not end %v after its connection was lost", deadBound)
				server.signal(t, syscall.SIGKILL)
				err = <-result
			}
			t.Logf("Wait returned after %v: %v", time.Since(began).Round(100*time.Millisecond), err)
			if !errors.Is(err, sandbox.ErrEngineUnavailable) || errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("Wait = %v, want ErrEngineUnavailable", err)
			}
			// The next command has a new connection.
			if out, err := sb.Command(t.Context(), "echo", "again").Output(); string(out) != "again\n" || err != nil {
				t.Errorf("the next command = %q, %v", out, err)
			}
		})
	}
}

// A call without a context that ends it fails within 30 s on a connection whose server is silent,
// also if it is repeated on a new one.
func TestSilentSSHServerEndsACall(t *testing.T) {
	server, c := newSSHD(t, nil)
	if _, err := c.ListVolumes(t.Context()); err != nil {
		t.Fatal(err)
	}
	server.signal(t, syscall.SIGSTOP)
	if err := syscall.Kill(server.pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	result := make(chan error, 1)
	go func() { result <- harness.Second(c.ListVolumes(context.WithoutCancel(t.Context()))) }()
	select {
	case err := <-result:
		t.Logf("after %v: %v", time.Since(began).Round(100*time.Millisecond), err)
		if !errors.Is(err, sandbox.ErrEngineUnavailable) || errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("ListVolumes = %v, want ErrEngineUnavailable", err)
		}
	case <-time.After(deadBound):
		t.Errorf("ListVolumes does not return within %v", deadBound)
		server.signal(t, syscall.SIGKILL)
		<-result
	}
}
