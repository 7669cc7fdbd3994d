package ssh_test

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/test/harness"
)

// A server is an SSH server in a sandbox, on a port of 127.0.0.1.
type server struct {
	t      *testing.T
	sb     *sandbox.Sandbox
	name   string // "ours", or "sshd"
	port   int
	dir    string // of the client's files
	signer ssh.Signer
}

// sshdConfig is as Debian's, with what a test needs: no PAM, keys alone, and the variables that ours accepts.
const sshdConfig = `HostKey /opt/sshd/host
AuthorizedKeysFile /opt/sshd/authorized
StrictModes no
UsePAM no
PermitRootLogin yes
PermitUserEnvironment yes
PrintMotd yes
PasswordAuthentication no
KbdInteractiveAuthentication no
PrintLastLog no
PidFile none
AcceptEnv *
MaxSessions 100
Subsystem sftp /opt/sshd/sftp-server
`

// servers are our server and Debian's sshd in the same sandbox. sshd serves each connection on its standard input and output, as
// inetd has it do, and begins in the home directory: everybody's is the working directory here, where ours begins.
func servers(t *testing.T, opts ...sandbox.CreateOption) (ours, reference *server) {
	t.Helper()
	sb := harness.NewSandbox(t, append([]sandbox.CreateOption{
		sandbox.WithName(harness.UniqueName(t)), sandbox.WithWorkdir("/root"), sandbox.WithStopTimeout(time.Second)}, opts...)...)
	dir := t.TempDir()
	for _, key := range []string{"host", "mine"} {
		if out, err := exec.Command("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", filepath.Join(dir, key)).CombinedOutput(); err != nil {
			t.Fatalf("ssh-keygen: %v: %s (ci/clients installs it)", err, out)
		}
	}
	private, err := os.ReadFile(filepath.Join(dir, "mine"))
	if err != nil {
		t.Fatal(err)
	}
	signer, err := ssh.ParsePrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	giveSSHD(t, sb, dir)
	ours = &server{t: t, sb: sb, name: "ours", dir: dir, signer: signer}
	ours.port = listen(t, func(ctx context.Context, client net.Conn) error {
		conn, err := sb.SSH(ctx)
		if err != nil {
			return err
		}
		splice(client, conn)
		return nil
	})
	reference = &server{t: t, sb: sb, name: "sshd", dir: dir, signer: signer}
	reference.port = listen(t, func(ctx context.Context, client net.Conn) error {
		cmd := sb.Command(ctx, "/opt/sshd/sshd", "-i", "-f", "/opt/sshd/config")
		cmd.Env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
		cmd.Stdin, cmd.Stdout = client, client
		defer client.Close()
		cmd.Run() // its exit code says how the last client left
		return nil
	})
	return ours, reference
}

// python is this machine's Python, and the directory of its modules.
func python(t *testing.T) (program, modules string) {
	t.Helper()
	program, err := filepath.EvalSymlinks("/usr/bin/python3")
	if err != nil {
		t.Fatalf("%v (ci/clients installs it)", err)
	}
	return program, filepath.Join("/usr/lib", filepath.Base(program))
}

// giveSSHD puts this machine's sshd with all it needs into the sandbox, whose image has none, its rsync, and its Python, without modules.
func giveSSHD(t *testing.T, sb *sandbox.Sandbox, keys string) {
	t.Helper()
	python, _ := python(t)
	archive, loader := harness.Installed(t, "/usr/sbin/sshd", "/usr/lib/openssh/sftp-server", "/usr/bin/rsync", python, filepath.Join(keys, "host"), filepath.Join(keys, "mine.pub"))
	cmd := sb.Command(t.Context(), "sh", "-c", `set -e
mkdir -p /opt/sshd/lib /run/sshd; cd /opt/sshd; tar -x -C lib --transform 's,.*/,,'
mv lib/python* lib/python3
for program in sshd sftp-server rsync python3; do
	printf '#!/bin/sh\nexec /opt/sshd/lib/%s --library-path /opt/sshd/lib /opt/sshd/lib/%s "$@"\n' "$1" $program >$program
done
mv lib/host host; chown 0:0 host; mv lib/mine.pub authorized; chmod 755 sshd sftp-server rsync python3; ln -s /opt/sshd/rsync /usr/local/bin; chmod -R a+rX /opt/sshd
chmod 600 host; printf %s "$2" >config
grep -q ^sshd: /etc/passwd || echo 'sshd:x:109:65534::/run/sshd:/usr/sbin/nologin' >>/etc/passwd
sed -i 's/^node:!/node:*/' /etc/shadow; sed -i '/^node:/s,:/home/node:,:/root:,' /etc/passwd; chmod 755 /root
sed -i 's/^hosts:.*/hosts: files/' /etc/nsswitch.conf # sshd looks up its client, "UNKNOWN"
./sshd -t -f config`, "sh", loader, sshdConfig)
	cmd.Stdin = bytes.NewReader(archive)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("install sshd: %v\n%s", err, out)
	}
}

// listen serves connections to a new port of 127.0.0.1 until the test ends.
func listen(t *testing.T, serve func(context.Context, net.Conn) error) (port int) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	var all sync.WaitGroup
	t.Cleanup(func() {
		l.Close()
		cancel()
		all.Wait()
	})
	all.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			all.Go(func() {
				defer conn.Close()
				stop := context.AfterFunc(ctx, func() { conn.Close() })
				defer stop()
				if err := serve(ctx, conn); err != nil && ctx.Err() == nil {
					t.Errorf("serve a connection: %v", err)
				}
			})
		}
	})
	return l.Addr().(*net.TCPAddr).Port
}

// splice copies between two connections until the server's ends.
func splice(client, server net.Conn) {
	var in sync.WaitGroup
	in.Go(func() {
		copyAll(server, client)
		server.(interface{ CloseWrite() error }).CloseWrite()
	})
	copyAll(client, server)
	client.Close()
	server.Close()
	in.Wait()
}

func copyAll(to, from net.Conn) {
	buf := make([]byte, 64<<10)
	for {
		n, err := from.Read(buf)
		if n > 0 {
			if _, err := to.Write(buf[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// connect is a connection of golang.org/x/crypto/ssh as that user.
func (s *server) connect(t *testing.T, user string) *ssh.Client {
	t.Helper()
	client, err := ssh.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", s.port), &ssh.ClientConfig{
		User: user, Auth: []ssh.AuthMethod{ssh.PublicKeys(s.signer)}, HostKeyCallback: ssh.InsecureIgnoreHostKey()})
	if err != nil {
		t.Fatalf("%s: connect as %s: %v", s.name, user, err)
	}
	t.Cleanup(func() { client.Close() })
	return client
}

// run runs a shell's command line in the sandbox, by none of the servers.
func (s *server) run(t *testing.T, script string) string {
	t.Helper()
	return harness.Run(t, s.sb, "sh", "-c", script)
}
