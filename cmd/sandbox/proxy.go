package main

import (
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"unicode"

	"github.com/spf13/cobra"
)

// hostSuffix is what ssh_config recognises the host names of sandboxes by. A sandbox whose own
// name ends in it is reached with the suffix twice.
const hostSuffix = ".sandbox"

func (a *app) proxyCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "proxy NAME",
		Short: "Connect stdin and stdout to an SSH server in a sandbox, for OpenSSH's ProxyCommand",
		Long: `Connect stdin and stdout to an SSH server in a sandbox, resumed if it is stopped. NAME may end
in ".sandbox". Use it as OpenSSH's ProxyCommand, as in this part of ~/.ssh/config:

	Host *.sandbox
		ProxyCommand sandbox proxy %n
		StrictHostKeyChecking accept-new

Then "ssh build-42.sandbox", scp, sftp, rsync and git reach the sandbox build-42, as its user.
"ssh node@build-42.sandbox" is the user node; your own name means the sandbox's user, "0@" is root. Each
sandbox has its own host key. After a sandbox is deleted and created again, remove the old
key with "ssh-keygen -R build-42.sandbox".

ssh passes the ProxyCommand to a shell. OpenSSH 9.6 and later refuse host names with
characters that mean something to it; with earlier versions don't use host names from
others, such as the URLs of a repository's submodules.`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: a.oneSandbox,
		RunE: func(c *cobra.Command, args []string) (err error) {
			// Get refuses everything but a sandbox's name or ID before it asks the engine.
			sb, err := a.client.Get(c.Context(), strings.TrimSuffix(args[0], hostSuffix))
			if err != nil {
				return err
			}
			defer func() { err = a.after(err, sb.Detach()) }()
			conn, err := sb.SSH(c.Context())
			if err != nil {
				return err
			}
			defer conn.Close()
			if err = a.join(c, conn); c.Context().Err() != nil {
				return nil // ssh ends its ProxyCommand by SIGHUP
			}
			return err
		},
	}
}

func (a *app) sshConfigCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "ssh-config",
		Short: "Print the part of ~/.ssh/config with which ssh reaches sandboxes",
		Long: `Print the part of ~/.ssh/config with which ssh, scp, sftp, rsync and git reach a sandbox as
NAME.sandbox; see "sandbox proxy --help".`,
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			self, err := os.Executable()
			if err != nil {
				return err
			}
			command := sshQuote(self)
			if a.host != "" {
				command += " --host " + sshQuote(a.host)
			}
			if a.swarm {
				command += " --swarm"
			}
			_, err = fmt.Fprintf(a.stdout, "Host *%s\n\tProxyCommand %s proxy %%n\n\tStrictHostKeyChecking accept-new\n", hostSuffix, command)
			return err
		},
	}
}

// sshQuote quotes s for the shell that ssh passes its ProxyCommand to, and for ssh, which
// replaces what follows a percent sign.
func sshQuote(s string) string {
	s = strings.ReplaceAll(s, "%", "%%")
	if strings.IndexFunc(s, func(r rune) bool {
		return !strings.ContainsRune("/._-:@+=,%", r) && (r > unicode.MaxASCII || !unicode.IsLetter(r) && !unicode.IsDigit(r))
	}) < 0 {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

// join copies between stdin, stdout and conn until the sandbox closes its side. The end of
// stdin closes only ours.
func (a *app) join(c *cobra.Command, conn net.Conn) error {
	go func() {
		io.Copy(conn, a.stdin)
		conn.(interface{ CloseWrite() error }).CloseWrite()
	}()
	out := make(chan error, 1)
	go func() {
		_, err := io.Copy(a.stdout, conn)
		out <- err
	}()
	select {
	case err := <-out:
		return err // don't wait for stdin, which may block for ever
	case <-c.Context().Done():
		return c.Context().Err()
	}
}
