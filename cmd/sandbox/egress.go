package main

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"

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
				policy, err := a.policyOf(c, args[0])
				if err != nil {
					return err
				}
				if asJSON {
					return printJSON(a.stdout, map[string]any{"network": policy})
				}
				_, err = fmt.Fprintln(a.stdout, graphic(policy.String()))
				return err
			}
			policy, err := sandbox.ParseNetworkPolicy(args[1])
			if err != nil {
				return err
			}
			return a.change(c, asJSON, args[0], func(sb *sandbox.Sandbox) (string, error) {
				return "network policy " + policy.String(), sb.Update(c.Context(), sandbox.WithNetworkPolicy(policy))
			})
		},
	}
	jsonFlag(c, &asJSON)
	c.AddCommand(a.networkCheckCommand())
	return c
}

// errBlocked makes the exit code of a check.
var errBlocked = errors.New("sandbox: the policy does not allow all of them")

func (a *app) networkCheckCommand() *cobra.Command {
	var (
		policy, name string
		asJSON       bool
	)
	c := &cobra.Command{
		Use:   "check {--policy POLICY | --sandbox NAME} HOST[:PORT]...",
		Short: "Say whether a policy allows connections, and by which rule",
		Long: `Say whether a policy allows connections to hosts, and by which rule, without running anything. The
default port is 443. The exit code is 1 if one is not allowed.`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(c *cobra.Command, hosts []string) error {
			p, err := sandbox.ParseNetworkPolicy(policy)
			if c.Flags().Changed("sandbox") {
				p, err = a.policyOf(c, name)
			}
			if err != nil {
				return err
			}
			var list []verdict
			for _, host := range hosts {
				v, err := check(p, host)
				if err != nil {
					return err
				}
				list = append(list, v)
			}
			if asJSON {
				err = printJSONList(a.stdout, list)
			} else {
				err = printTable(a.stdout, "OUTCOME\tHOST\tPORT\tRULE", list, func(v verdict) []any { return []any{v.outcome(), v.Host, v.Port, v.Rule} })
			}
			if err == nil && slices.ContainsFunc(list, func(v verdict) bool { return !v.Allowed }) {
				err = errBlocked
			}
			return err
		},
	}
	c.Flags().StringVar(&policy, "policy", "", "a network policy, as for \"sandbox create --network\"")
	c.Flags().StringVar(&name, "sandbox", "", "the policy of this sandbox")
	c.MarkFlagsMutuallyExclusive("policy", "sandbox")
	c.MarkFlagsOneRequired("policy", "sandbox")
	jsonFlag(c, &asJSON)
	return c
}

// policyOf returns the policy of a sandbox.
func (a *app) policyOf(c *cobra.Command, name string) (policy sandbox.NetworkPolicy, err error) {
	err = a.withSandbox(c, name, func(sb *sandbox.Sandbox) error {
		st, err := sb.Summary(c.Context()) // an Inspect would measure usage
		policy = st.Network
		return err
	})
	return policy, err
}

// verdict is what a policy says about a connection.
type verdict struct {
	Host    string `json:"host"`
	Port    int    `json:"port"`
	Allowed bool   `json:"allowed"`
	Rule    string `json:"rule"`
}

func (v verdict) outcome() any {
	if v.Allowed {
		return "allowed"
	}
	return status("blocked")
}

func check(p sandbox.NetworkPolicy, text string) (v verdict, err error) {
	v = verdict{Host: text, Port: 443}
	if host, port, e := net.SplitHostPort(text); e == nil {
		v.Host = host
		if v.Port, err = strconv.Atoi(port); err != nil {
			return v, usageError{fmt.Errorf("%q: %q is not a port", text, port)}
		}
	}
	v.Allowed, v.Rule, err = p.Allows(v.Host, v.Port)
	return v, err
}

func (a *app) egressCommand() *cobra.Command {
	var l listing
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
				return printList(a, l, list, nil, a.printEgress)
			})
		},
	}
	l.flags(c)
	return c
}

func (a *app) printEgress(list []sandbox.Egress) error {
	return printTable(a.stdout, "LAST\tOUTCOME\tNAME\tADDRESS\tPROTOCOL\tRULE\tCOUNT", list, egressRow)
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
