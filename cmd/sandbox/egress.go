package main

import (
	"cmp"
	"fmt"
	"net/netip"

	"github.com/spf13/cobra"

	"github.com/seed-1a2d6d8f/sandbox"
)

const networkHelp = `the network policy: allow-all, public-only, deny-all, or lists such as
"allow=registry.npmjs.org,*.github.com subnets.allow=10.1.0.0/16 subnets.deny=10.1.2.0/24"`

func (a *app) networkCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "network NAME [POLICY]",
		Short: "Print a sandbox's network policy, or change it, in the running session too",
		Long:  "Print a sandbox's network policy, or change it, in the running session too. POLICY is " + networkHelp + ".",
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
			return a.withSandbox(c, args[0], func(sb *sandbox.Sandbox) error {
				return sb.Update(c.Context(), sandbox.WithNetworkPolicy(policy))
			})
		},
	}
}

func (a *app) egressCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "egress NAME",
		Short: "List the connections that a sandbox attempted in its session, allowed or blocked",
		Args:  cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			return a.withSandbox(c, args[0], func(sb *sandbox.Sandbox) error {
				list, err := sb.Egress(c.Context())
				if err != nil {
					return err
				}
				return printTable(a.stdout, "LAST\tOUTCOME\tNAME\tADDRESS\tPROTOCOL\tRULE\tCOUNT", list, egressRow)
			})
		},
	}
}

func egressRow(e sandbox.Egress) []any {
	outcome, address := "blocked", "-"
	if e.Allowed {
		outcome = "allowed"
	}
	if e.Address.IsValid() {
		address = netip.AddrPortFrom(e.Address, e.Port).String()
	}
	// The sandbox chooses the name: quote it, so that it can't control the terminal.
	name := fmt.Sprintf("%+q", e.Name)
	return []any{age(e.Last), outcome, name, address, e.Protocol, cmp.Or(e.Rule, "-"), e.Count}
}
