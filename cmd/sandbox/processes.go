package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/seed-1a2d6d8f/sandbox"
)

func (a *app) processesCommand() *cobra.Command {
	var l listing
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
				return printList(a, l, list, func(p sandbox.ProcessInfo) string { return p.ID }, a.printProcesses)
			})
		},
	}
	l.flags(c)
	return c
}

func (a *app) printProcesses(list []sandbox.ProcessInfo) error {
	return printTable(a.stdout, "ID\tSTARTED\tSTATUS\tUSER\tCOMMAND", list, func(p sandbox.ProcessInfo) []any {
		return []any{p.ID, ago(p.StartedAt), status(processStatus(p)), p.User, strings.Join(append([]string{p.Path}, p.Args[min(1, len(p.Args)):]...), " ")}
	})
}

func (a *app) killCommand() *cobra.Command {
	var (
		signal string
		asJSON bool
	)
	c := &cobra.Command{
		Use:   "kill [flags] NAME ID...",
		Short: "End detached commands of a sandbox",
		Long: `End detached commands of a sandbox, by the IDs that "sandbox exec --detach" and "sandbox processes"
print. All processes that a command started are killed, too. With --signal a signal is sent to the
command's process group instead.`,
		Args:              cobra.MinimumNArgs(2),
		ValidArgsFunction: a.oneSandbox,
		RunE: func(c *cobra.Command, args []string) error {
			var sig os.Signal // nil kills
			if c.Flags().Changed("signal") {
				var err error
				if sig, err = sandbox.ParseSignal(signal); err != nil {
					return err
				}
			}
			return a.withSandbox(c, args[0], func(sb *sandbox.Sandbox) error {
				done := []killed{}
				var errs []error
				for _, id := range args[1:] {
					if err := end(c.Context(), sb, id, sig); err != nil {
						errs = append(errs, fmt.Errorf("%w: %s", err, graphic(id)))
						continue
					}
					if done = append(done, killed{id}); !asJSON {
						_, err := fmt.Fprintln(a.stdout, id)
						errs = append(errs, err)
					}
				}
				if asJSON {
					errs = append(errs, printJSONList(a.stdout, done))
				}
				return errors.Join(errs...)
			})
		},
	}
	c.Flags().StringVarP(&signal, "signal", "s", "", "send this signal to the command's process group: TERM, INT, 15 … (default: kill all)")
	jsonFlag(c, &asJSON)
	return c
}

type killed struct {
	ID string `json:"id"`
}

// end kills a detached command, or sends it a signal if there is one.
func end(ctx context.Context, sb *sandbox.Sandbox, id string, sig os.Signal) error {
	cmd, err := sb.Process(ctx, id)
	switch {
	case err != nil:
		return err
	case sig == nil:
		return cmd.Kill()
	}
	return cmd.Signal(sig)
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
	case p.OutOfMemory:
		return "out of memory"
	case p.Signal != 0:
		return fmt.Sprintf("signal %d", p.Signal)
	}
	return fmt.Sprintf("exited (%d)", *p.ExitCode)
}
