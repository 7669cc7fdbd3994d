package main

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/seed-1a2d6d8f/sandbox"
)

func (a *app) snapshotCommand() *cobra.Command {
	// Before there were subcommands, "sandbox snapshot NAME" took one.
	c := a.takeCommand()
	c.Use = "snapshot"
	c.Short = "Take, list and delete snapshots of sandboxes' files"
	c.Long = `Take, list and delete snapshots of sandboxes' files. "sandbox snapshot NAME" is short for
"sandbox snapshot create NAME".`
	take := a.takeCommand()
	take.Use = "create [flags] NAME"
	c.AddCommand(take, a.listSnapshotsCommand("list"), a.showCommand(), a.deleteSnapshotCommand("delete"), a.treeCommand())
	return c
}

// snapshotsCommand is the former spelling of "snapshot list" and "snapshot delete".
func (a *app) snapshotsCommand() *cobra.Command {
	c := a.listSnapshotsCommand("snapshots")
	c.Hidden = true
	c.AddCommand(a.deleteSnapshotCommand("delete"))
	return c
}

func (a *app) takeCommand() *cobra.Command {
	var (
		name   string
		expiry duration
		keep   int
	)
	c := &cobra.Command{
		Short: "Take a snapshot of a sandbox's files, and print its ID",
		Long: `Take a snapshot of a sandbox's files, and print its ID. The sandbox does not change.
"sandbox run --snapshot ID" creates sandboxes from it.`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: a.oneSandbox,
		RunE: func(c *cobra.Command, args []string) error {
			opts := []sandbox.SnapshotOption{sandbox.WithProgress(a.progress())}
			set := c.Flags().Changed
			if set("name") {
				opts = append(opts, sandbox.WithSnapshotName(name))
			}
			if set("expiry") {
				opts = append(opts, sandbox.WithExpiry(time.Duration(expiry)))
			}
			if set("keep-last") {
				opts = append(opts, sandbox.WithKeepLast(keep))
			}
			return a.withSandbox(c, args[0], func(sb *sandbox.Sandbox) error {
				snap, err := sb.Snapshot(c.Context(), opts...)
				if err == nil {
					fmt.Fprintln(a.stdout, snap.ID)
				}
				return err
			})
		},
	}
	c.Flags().StringVar(&name, "name", "", "the snapshot's name, which need not be unique")
	c.Flags().Var(&expiry, "expiry", "remove it after this time, such as 24h or 7d (default never)")
	c.Flags().IntVar(&keep, "keep-last", 0, "keep this many snapshots of the sandbox and remove older ones (default all)")
	return c
}

func (a *app) listSnapshotsCommand(use string) *cobra.Command {
	var (
		asJSON   bool
		of, name string
	)
	c := &cobra.Command{
		Use:   use,
		Short: "List the snapshots on the engine, the newest first",
		Args:  cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			var opts []sandbox.ListSnapshotsOption
			if c.Flags().Changed("sandbox") {
				opts = append(opts, sandbox.OfSandbox(of))
			}
			if c.Flags().Changed("name") {
				opts = append(opts, sandbox.SnapshotNamed(name))
			}
			all, err := a.client.ListSnapshots(c.Context(), opts...)
			if err != nil {
				return err
			}
			if asJSON {
				return printJSONList(a.stdout, all)
			}
			return printTable(a.stdout, "ID\tNAME\tSANDBOX\tCREATED\tSIZE\tSHARED\tPARENT", all, func(s sandbox.Snapshot) []any {
				return []any{s.ID, cmp.Or(s.Name, "-"), s.Sandbox, ago(s.CreatedAt), bytesText(s.SizeBytes), len(s.Volumes), cmp.Or(s.Parent, "-")}
			})
		},
	}
	jsonFlag(c, &asJSON)
	c.Flags().StringVar(&of, "sandbox", "", "only snapshots of the sandbox with this name or ID, which may be deleted")
	c.Flags().StringVar(&name, "name", "", "only snapshots with this name")
	return c
}

func (a *app) deleteSnapshotCommand(use string) *cobra.Command {
	return &cobra.Command{
		Use:     use + " ID...",
		Aliases: []string{"rm"},
		Short:   "Delete a snapshot whose files no volume shares",
		Args:    cobra.MinimumNArgs(1),
		RunE: func(c *cobra.Command, ids []string) error {
			return each(ids, func(id string) error { return a.client.DeleteSnapshot(c.Context(), id) })
		},
	}
}

func (a *app) showCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "show ID",
		Short: "Print the details of a snapshot, as JSON",
		Args:  cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			all, err := a.client.ListSnapshots(c.Context())
			if err != nil {
				return err
			}
			i := slices.IndexFunc(all, func(s sandbox.Snapshot) bool { return s.ID == args[0] })
			if i < 0 {
				return fmt.Errorf("sandbox: show %q: %w", args[0], sandbox.ErrSnapshotNotFound)
			}
			return printJSON(a.stdout, all[i])
		},
	}
}

func (a *app) treeCommand() *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use:   "tree",
		Short: "Print the snapshots, each below the one that its sandbox was created from",
		Args:  cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			all, err := a.client.ListSnapshots(c.Context())
			if err != nil {
				return err
			}
			roots := snapshotTree(all)
			if asJSON {
				return printJSON(a.stdout, roots)
			}
			for _, n := range roots {
				a.printNode(n, 0)
			}
			return nil
		},
	}
	jsonFlag(c, &asJSON)
	return c
}

// snapshotNode is the JSON of a snapshot in a tree.
type snapshotNode struct {
	sandbox.Snapshot
	Children []*snapshotNode `json:"children"`
}

// snapshotTree returns the snapshots whose parent is not among them, with all the others below
// them, the oldest first.
func snapshotTree(all []sandbox.Snapshot) []*snapshotNode {
	nodes := map[string]*snapshotNode{}
	for _, s := range all {
		nodes[s.ID] = &snapshotNode{s, []*snapshotNode{}}
	}
	roots := []*snapshotNode{}
	for _, s := range slices.Backward(all) {
		if parent := nodes[s.Parent]; parent != nil && parent != nodes[s.ID] {
			parent.Children = append(parent.Children, nodes[s.ID])
		} else {
			roots = append(roots, nodes[s.ID])
		}
	}
	return roots
}

func (a *app) printNode(n *snapshotNode, depth int) {
	line := fmt.Sprintf("%s%s  %s  %s  %s", strings.Repeat("  ", depth), n.ID, graphic(cmp.Or(n.Name, "-")), graphic(n.Sandbox), ago(n.CreatedAt))
	fmt.Fprintln(a.stdout, line)
	for _, child := range n.Children {
		a.printNode(child, depth+1)
	}
}
