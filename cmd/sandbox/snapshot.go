package main

import (
	"cmp"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/seed-1a2d6d8f/sandbox"
)

func (a *app) snapshotCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "snapshot",
		Short: "Take, list and delete snapshots of sandboxes' files",
	}
	group(c)
	c.AddCommand(a.takeCommand(), a.listSnapshotsCommand(), a.showCommand(), a.deleteSnapshotCommand(), a.treeCommand())
	return c
}

func (a *app) takeCommand() *cobra.Command {
	var (
		o      sandbox.SnapshotOptions
		expiry duration
		asJSON bool
	)
	c := &cobra.Command{
		Use:   "create [flags] NAME",
		Short: "Take a snapshot of a sandbox's files, and print its ID",
		Long: `Take a snapshot of a sandbox's files, and print its ID. The sandbox does not change.
"sandbox run --snapshot ID" creates sandboxes from it.`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: a.oneSandbox,
		RunE: func(c *cobra.Command, args []string) error {
			o.Progress, o.Expiry = a.progress.show, time.Duration(expiry)
			if o.Expiry < 0 || o.KeepLast < 0 {
				return usagef("--expiry and --keep-last are not negative")
			}
			if err := o.Check(); err != nil {
				return usageError{err}
			}
			return a.withSandbox(c, args[0], func(sb *sandbox.Sandbox) error {
				snap, err := sb.Snapshot(c.Context(), o)
				if snap.Copied != nil {
					a.leftOut(*snap.Copied)
				}
				switch {
				case err != nil:
				case asJSON:
					err = printJSON(a.stdout, snap)
				default:
					_, err = fmt.Fprintln(a.stdout, snap.ID)
				}
				return err
			})
		},
	}
	c.Flags().StringVar(&o.Name, "name", "", "the snapshot's name, which need not be unique")
	c.Flags().Var(&expiry, "expiry", "remove it after this time, such as 24h or 7d (default never)")
	c.Flags().IntVar(&o.KeepLast, "keep-last", 0, "keep this many snapshots of the sandbox and remove older ones (default all)")
	jsonFlag(c, &asJSON)
	return c
}

func (a *app) listSnapshotsCommand() *cobra.Command {
	var (
		o sandbox.ListSnapshotsOptions
		l listing
	)
	c := &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "List the snapshots on the engine, the newest first",
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			all, err := a.client.ListSnapshots(c.Context(), o)
			if err != nil {
				return err
			}
			return printList(a, l, all, func(s sandbox.Snapshot) string { return s.ID }, a.printSnapshots)
		},
	}
	l.flags(c)
	c.Flags().StringVar(&o.Sandbox, "sandbox", "", "only snapshots of the sandbox with this name or ID, which may be deleted")
	c.Flags().StringVar(&o.Name, "name", "", "only snapshots with this name")
	_ = c.RegisterFlagCompletionFunc("sandbox", a.sandboxes)
	return c
}

func (a *app) printSnapshots(all []sandbox.Snapshot) error {
	return printTable(a.stdout, "ID\tNAME\tSANDBOX\tCREATED\tSIZE\tSHARED\tPARENT", all, func(s sandbox.Snapshot) []any {
		return []any{s.ID, s.Name, s.Sandbox, ago(s.CreatedAt), bytesText(s.SizeBytes), len(s.Volumes), s.Parent}
	})
}

func (a *app) deleteSnapshotCommand() *cobra.Command {
	var yes, asJSON bool
	c := &cobra.Command{
		Use:               "delete ID...",
		Aliases:           []string{"rm"},
		Short:             "Delete a snapshot whose files no volume shares, after a confirmation on a terminal",
		Args:              cobra.MinimumNArgs(1),
		ValidArgsFunction: a.snapshots,
		RunE: func(c *cobra.Command, ids []string) error {
			if err := a.confirmLoss(c.Context(), yes, "snapshot", ids); err != nil {
				return err
			}
			return each(a, asJSON, ids, func(id string) ([]deletedSnapshot, error) {
				if err := a.client.DeleteSnapshot(c.Context(), id); err != nil {
					return nil, err
				}
				if a.progress.quiet && !asJSON {
					return nil, nil
				}
				return []deletedSnapshot{{id, sandbox.VolumeDeleted}}, nil
			})
		},
	}
	yesFlag(c, &yes)
	jsonFlag(c, &asJSON)
	return c
}

type deletedSnapshot struct {
	ID     string `json:"id"`
	Status string `json:"status"`
}

func (d deletedSnapshot) String() string { return "snapshot " + d.ID + ": " + d.Status }

func (a *app) showCommand() *cobra.Command {
	c := &cobra.Command{
		Use:               "show ID",
		Short:             "Print the details of a snapshot, as JSON",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: inTurn(a.snapshots),
		RunE: func(c *cobra.Command, args []string) error {
			snap, err := a.client.GetSnapshot(c.Context(), args[0])
			if err != nil {
				return err
			}
			return printJSON(a.stdout, snap)
		},
	}
	alwaysJSON(c)
	return c
}

func (a *app) treeCommand() *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use:   "tree",
		Short: "Print the snapshots and sandboxes, each below the one that it came from",
		Args:  cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			roots, err := a.client.SnapshotTree(c.Context())
			if err != nil {
				return err
			}
			if asJSON {
				return printJSONList(a.stdout, roots)
			}
			var text strings.Builder
			for _, n := range roots {
				writeNode(&text, n, 0)
			}
			_, err = io.WriteString(a.stdout, text.String())
			return err
		},
	}
	jsonFlag(c, &asJSON)
	return c
}

func writeNode(out *strings.Builder, n *sandbox.SnapshotNode, depth int) {
	text := fmt.Sprintf("sandbox  %s  %s", graphic(n.Name), n.ID)
	if n.Kind == sandbox.SnapshotKind {
		text = fmt.Sprintf("snapshot  %s  %s  %s", n.ID, graphic(cmp.Or(n.Snapshot.Name, "-")), graphic(n.Sandbox))
	}
	fmt.Fprintf(out, "%s%s  %s\n", strings.Repeat("  ", depth), text, ago(n.CreatedAt))
	for _, child := range n.Children {
		writeNode(out, child, depth+1)
	}
}

func (a *app) rollbackCommand() *cobra.Command {
	var yes, asJSON bool
	c := &cobra.Command{
		Use:   "rollback NAME SNAPSHOT",
		Short: "Make a sandbox's files those of a snapshot, after a confirmation on a terminal",
		Long: `Make a sandbox's files those of a snapshot, which is named by its ID. Attached volumes and
mounted directories do not change. A running session ends with its commands, and another one is
started. The present files are lost: a terminal is asked for a confirmation.`,
		Args:              cobra.ExactArgs(2),
		ValidArgsFunction: inTurn(a.sandboxes, a.snapshots),
		RunE: func(c *cobra.Command, args []string) error {
			if err := a.confirmLoss(c.Context(), yes, "present files of sandbox", args[:1]); err != nil {
				return err
			}
			return a.change(c, asJSON, args[0], func(sb *sandbox.Sandbox) (string, error) {
				return "its files are those of snapshot " + args[1], sb.Rollback(c.Context(), args[1])
			})
		},
	}
	yesFlag(c, &yes)
	jsonFlag(c, &asJSON)
	return c
}
