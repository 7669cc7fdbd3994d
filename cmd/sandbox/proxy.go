package main

import (
	"errors"
	"io"
	"net"

	"github.com/spf13/cobra"
)

func (a *app) proxyCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "proxy NAME",
		Short: "Join stdin and stdout to an SSH server in a sandbox, for OpenSSH's ProxyCommand",
		Long: `Join stdin and stdout to an SSH server in a sandbox, resumed if it is stopped. It is for
OpenSSH's ProxyCommand, as in this part of ~/.ssh/config:

	Host *.sandbox
		ProxyCommand sandbox proxy $(basename %n .sandbox)
		StrictHostKeyChecking accept-new

Then "ssh build-42.sandbox", scp, sftp, rsync and git reach the sandbox build-42. Each
sandbox has a host key of its own: one that is deleted and made again has another, and
"ssh-keygen -R build-42.sandbox" makes OpenSSH forget the old one.`,
		Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) (err error) {
			sb, err := a.client.Get(c.Context(), args[0])
			if err != nil {
				return err
			}
			defer func() { err = a.after(err, sb.Detach()) }()
			conn, err := sb.SSH(c.Context())
			if err != nil {
				return err
			}
			defer conn.Close()
			return a.join(c, conn)
		},
	}
}

// join carries bytes until the sandbox's side has ended, or ours has and the rest of
// theirs has come.
func (a *app) join(c *cobra.Command, conn net.Conn) error {
	in := make(chan error, 1)
	go func() {
		_, err := io.Copy(conn, a.stdin)
		in <- errors.Join(err, conn.(interface{ CloseWrite() error }).CloseWrite())
	}()
	out := make(chan error, 1)
	go func() {
		_, err := io.Copy(a.stdout, conn)
		out <- err
	}()
	select {
	case err := <-out:
		return err // reading stdin may block for ever
	case <-c.Context().Done():
		return c.Context().Err()
	}
}
