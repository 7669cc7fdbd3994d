package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/seed-1a2d6d8f/sandbox"
)

func (a *app) nodeCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "node",
		Short: "List the nodes of a swarm; takes --swarm",
	}
	group(c)
	c.AddCommand(a.listNodesCommand())
	return c
}

func (a *app) listNodesCommand() *cobra.Command {
	var l listing
	c := &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "List the nodes, with the room that they have for sandboxes",
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			nodes, err := a.client.Nodes(c.Context())
			if err != nil {
				return err
			}
			return printList(a, l, nodes, func(n sandbox.NodeStatus) string { return n.Name }, a.printNodes)
		},
	}
	l.flags(c)
	return c
}

func (a *app) printNodes(nodes []sandbox.NodeStatus) error {
	role := map[bool]string{true: "manager", false: "worker"}
	err := printTable(a.stdout, "NAME\tADDRESS\tROLE\tSTATE\tAVAILABILITY\tCPUS\tMEMORY", nodes, func(n sandbox.NodeStatus) []any {
		cpus, memory := fmt.Sprintf("%.4g of %.4g used", n.UsedCPUs, n.CPUs), bytesText(n.UsedMemory)+" of "+bytesText(n.Memory)+" used"
		if n.Error != "" {
			cpus, memory = "", "does not answer"
		}
		return []any{n.Name, n.Addr, role[n.Manager], n.State, n.Availability, cpus, memory}
	})
	for _, n := range nodes {
		if n.Error != "" {
			fmt.Fprintf(a.stderr, "sandbox: %s\n", graphic(n.Error))
		}
	}
	return err
}
