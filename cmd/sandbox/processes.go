package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/seed-1a2d6d8f/sandbox"
)

func (a *app) processesCommand() *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use:   "processes NAME",
		Short: "List the detached commands of a sandbox, of this session and earlier ones",
		Long: `List the detached commands of a sandbox, of this session and earlier ones, without resuming it.
The arguments are known of this session's alone.`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: a.oneSandbox,
		RunE: func(c *cobra.Command, args []string) error {
			return a.withSandbox(c, args[0], func(sb *sandbox.Sandbox) error {
				list, err := sb.Processes(c.Context())
				if err != nil {
					return err
				}
				if asJSON {
					return printJSONList(a.stdout, list)
				}
				return printTable(a.stdout, "ID\tSTARTED\tSTATUS\tUSER\tCOMMAND", list, func(p sandbox.ProcessInfo) []any {
					return []any{p.ID, ago(p.StartedAt), status(processStatus(p)), p.User, strings.Join(append([]string{p.Path}, p.Args[min(1, len(p.Args)):]...), " ")}
				})
			})
		},
	}
	jsonFlag(c, &asJSON)
	return c
}

// processStatus says whether a command runs, or how it ended.
func processStatus(p sandbox.ProcessInfo) string {
	switch {
	case p.Running:
		return "running"
	case p.ExitCode == nil:
		return "ended"
	case p.TimedOut:
		return "timed out"
	case p.Signal != 0:
		return fmt.Sprintf("signal %d", p.Signal)
	}
	return fmt.Sprintf("exited (%d)", *p.ExitCode)
}
