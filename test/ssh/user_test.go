package ssh_test

import (
	"os/user"
	"strings"
	"testing"

	"golang.org/x/crypto/ssh"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/test/harness"
)

// enter connects to our server as that user, and returns the error of a refusal with what the server said.
func enter(t *testing.T, sb *sandbox.Sandbox, name string) (client *ssh.Client, said string, err error) {
	t.Helper()
	raw, err := sb.SSH(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { raw.Close() })
	conn, chans, reqs, err := ssh.NewClientConn(raw, sb.Name(), &ssh.ClientConfig{
		User: name, HostKeyCallback: ssh.InsecureIgnoreHostKey(),
		BannerCallback: func(text string) error {
			said += text
			return nil
		},
	})
	if err != nil {
		return nil, said, err
	}
	return ssh.NewClient(conn, chans, reqs), said, nil
}

func TestSSHLogsInTheUserThatIsNamed(t *testing.T) {
	t.Parallel()
	me, err := user.Current()
	if err != nil {
		t.Fatal(err)
	}
	of := map[string]*sandbox.Sandbox{
		"":     harness.NewSandbox(t, harness.Quick),
		"node": harness.NewSandbox(t, harness.Quick, sandbox.WithUser("node"), sandbox.WithEnv(map[string]string{"HOME": "/tmp", "USER": "somebody"})),
	}
	for _, tt := range []struct{ sandboxUser, name, want string }{
		{"", "", "root 0 root root /root"},
		{"", me.Username, "root 0 root root /root"},
		{"", "node", "node 1000 node node /home/node"},
		{"", "1000", "node 1000 node node /home/node"},
		{"", "node:root", "node 0 node node /home/node"},
		{"", "12345", "12345 0   /"},
		{"node", "", "node 1000 somebody node /tmp"},
		{"node", me.Username, "node 1000 somebody node /tmp"},
		{"node", "node", "node 1000 somebody node /tmp"},
		{"node", "0", "root 0 root root /root"},
		{"node", "daemon", "daemon 1 daemon daemon /usr/sbin"},
	} {
		client, said, err := enter(t, of[tt.sandboxUser], tt.name)
		if err != nil {
			t.Errorf("%q in a sandbox of %q: %v %s", tt.name, tt.sandboxUser, err, said)
			continue
		}
		session, err := client.NewSession()
		if err != nil {
			t.Fatal(err)
		}
		out, err := session.Output(`echo "$(id -un 2>/dev/null | grep . || id -u) $(id -G) $USER $LOGNAME $HOME"`)
		if got := strings.TrimSpace(string(out)); got != tt.want || err != nil {
			t.Errorf("%q in a sandbox of %q is %q, %v, want %q", tt.name, tt.sandboxUser, got, err, tt.want)
		}
		client.Close()
	}
	for _, name := range []string{"nobody-here", "node:no-such-group", "-1", "node "} {
		if client, said, err := enter(t, of[""], name); err == nil {
			client.Close()
			t.Errorf("%q was let in", name)
		} else if !strings.Contains(said, "sandbox: no ") && !strings.Contains(said, "sandbox: ID -1 is not ") {
			t.Errorf("%q was refused with %v, saying %q, want why", name, err, said)
		}
	}
}
