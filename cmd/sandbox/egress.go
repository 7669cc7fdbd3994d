package main

import (
	"fmt"
	"net/netip"

	"github.com/spf13/cobra"

	"github.com/seed-1a2d6d8f/sandbox"
)

const networkHelp = `the network policy: allow-all, public-only, deny-all, or lists such as
"allow=registry.npmjs.org,*.github.com subnets.allow=10.1.0.0/16 subnets.deny=10.1.2.0/24"`

func (a *app) networkCommand() *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use:               "network NAME [POLICY]",
		Short:             "Print a sandbox's network policy, or change it, in the running session too",
		Long:              "Print a sandbox's network policy, or change it, in the running session too. POLICY is\n" + networkHelp + ".",
		Args:              cobra.RangeArgs(1, 2),
		ValidArgsFunction: inTurn(a.sandboxes, policies),
		RunE: func(c *cobra.Command, args []string) error {
			if len(args) == 1 {
				st, err := a.client.Inspect(c.Context(), args[0])
				if err != nil {
					return err
				}
				if asJSON {
					return printJSON(a.stdout, map[string]any{"network": st.Network})
				}
				_, err = fmt.Fprintln(a.stdout, graphic(st.Network.String()))
				return err
			}
			policy, err := sandbox.ParseNetworkPolicy(args[1])
			if err != nil {
				return err
			}
			return a.change(c, asJSON, args[0], func(sb *sandbox.Sandbox) error {
				return sb.Update(c.Context(), sandbox.WithNetworkPolicy(policy))
			})
		},
	}
	jsonFlag(c, &asJSON)
	return c
}

func (a *app) egressCommand() *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use:               "egress NAME",
		Short:             "List the connections that a sandbox attempted in its session, allowed or blocked",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: a.oneSandbox,
		RunE: func(c *cobra.Command, args []string) error {
			return a.withSandbox(c, args[0], func(sb *sandbox.Sandbox) error {
				list, err := sb.Egress(c.Context())
				if err != nil {
					return err
				}
				if asJSON {
					return printJSONList(a.stdout, list)
				}
				return printTable(a.stdout, "LAST\tOUTCOME\tNAME\tADDRESS\tPROTOCOL\tRULE\tCOUNT", list, egressRow)
			})
		},
	}
	jsonFlag(c, &asJSON)
	return c
}

func egressRow(e sandbox.Egress) []any {
	outcome, address := status("blocked"), ""
	if e.Allowed {
		outcome = "allowed"
	}
	if e.Failure != "" {
		outcome = status("allowed, " + e.Failure)
	}
	if e.Address.IsValid() {
		address = netip.AddrPortFrom(e.Address, e.Port).String()
	}
	// The sandbox chooses the name: quote it, so that it can't control the terminal.
	name := fmt.Sprintf("%+q", e.Name)
	return []any{age(e.Last), outcome, name, address, e.Protocol, e.Rule, e.Count}
}
