package main

import (
	"github.com/spf13/cobra"
)

func (a *app) moveCommand() *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use:   "move NAME NODE",
		Short: "Move a stopped sandbox to another node of a swarm; takes --swarm",
		Long: `Move a stopped sandbox to another node of a swarm, by the node's name or ID, with all of its files. They are
streamed through this program. Its snapshots stay where they are.`,
		Args: cobra.ExactArgs(2),
		ValidArgsFunction: func(c *cobra.Command, args []string, toComplete string) ([]string, cobra.ShellCompDirective) {
			if len(args) > 0 {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			return a.oneSandbox(c, args, toComplete)
		},
		RunE: func(c *cobra.Command, args []string) error {
			report, err := a.client.Move(c.Context(), args[0], args[1])
			if err != nil {
				return err
			}
			if asJSON {
				return printJSON(a.stdout, report)
			}
			switch n := len(report.Snapshots); {
			case report.From == report.To:
				return a.say("sandbox %s: is on %s already", args[0], report.To)
			case n > 0:
				return a.say("sandbox %s: moved to %s; its snapshots stay on %s: %d", args[0], report.To, report.From, n)
			}
			return a.say("sandbox %s: moved to %s", args[0], report.To)
		},
	}
	jsonFlag(c, &asJSON)
	return c
}
