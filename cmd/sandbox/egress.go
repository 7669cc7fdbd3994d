package main

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/seed-1a2d6d8f/sandbox"
)

const networkHelp = `what it may reach: allow-all, public-only, deny-all, or lists such as
"allow=registry.npmjs.org,*.github.com subnets.allow=10.1.0.0/16 subnets.deny=10.1.2.0/24"`

func (a *app) networkCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "network NAME [POLICY]",
		Short: "Tell what a sandbox may reach, or change it, in the running session too",
		Long:  "Tell what a sandbox may reach, or change it, in the running session too. POLICY is " + networkHelp + ".",
		Args:  cobra.RangeArgs(1, 2),
		RunE: func(c *cobra.Command, args []string) error {
			if len(args) == 1 {
				st, err := a.client.Inspect(c.Context(), args[0])
				if err != nil {
					return err
				}
				fmt.Fprintln(a.stdout, st.Network)
				return nil
			}
			policy, err := sandbox.ParseNetworkPolicy(args[1])
			if err != nil {
				return err
			}
			sb, err := a.client.Get(c.Context(), args[0], sandbox.WithoutResume())
			if err != nil {
				return err
			}
			err = sb.Update(c.Context(), sandbox.WithNetworkPolicy(policy))
			return errors.Join(err, sb.Detach())
		},
	}
}

func (a *app) egressCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "egress NAME",
		Short: "Tell what a sandbox tried to reach in its session, and what became of it",
		Args:  cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			sb, err := a.client.Get(c.Context(), args[0], sandbox.WithoutResume())
			if err != nil {
				return err
			}
			list, err := sb.Egress(c.Context())
			if err := errors.Join(err, sb.Detach()); err != nil {
				return err
			}
			w := tabwriter.NewWriter(a.stdout, 0, 0, 2, ' ', 0)
			fmt.Fprintln(w, "LAST\tOUTCOME\tNAME\tADDRESS\tPROTOCOL\tRULE\tCOUNT")
			for _, e := range list {
				outcome := "blocked"
				if e.Allowed {
					outcome = "allowed"
				}
				at := "-"
				if e.Address.IsValid() {
					at = netip.AddrPortFrom(e.Address, e.Port).String()
				}
				// The name is the sandbox's own word: nothing in it may reach the terminal as it is.
				fmt.Fprintf(w, "%s\t%s\t%+q\t%s\t%s\t%s\t%d\n", age(e.Last), outcome, e.Name, at, e.Protocol, cmp.Or(e.Rule, "-"), e.Count)
			}
			return w.Flush()
		},
	}
}
