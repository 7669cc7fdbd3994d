package main

import (
	"cmp"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/seed-1a2d6d8f/sandbox"
)

// snapshotEntry is the JSON of a snapshot.
type snapshotEntry struct {
	ID        string     `json:"id"`
	Name      string     `json:"name,omitempty"`
	Sandbox   string     `json:"sandbox"`
	SandboxID string     `json:"sandboxId"`
	Parent    string     `json:"parent,omitempty"`
	Image     string     `json:"image"`
	CreatedAt time.Time  `json:"createdAt"`
	ExpiresAt *time.Time `json:"expiresAt,omitempty"`
	SizeBytes int64      `json:"sizeBytes"`
	Volumes   []string   `json:"volumes,omitempty"` // those that share its files
}

func snapshotEntryOf(s sandbox.Snapshot) snapshotEntry {
	m := snapshotEntry{ID: s.ID, Name: s.Name, Sandbox: s.Sandbox, SandboxID: s.SandboxID, Parent: s.Parent, Image: s.Image,
		CreatedAt: s.CreatedAt, SizeBytes: s.SizeBytes, Volumes: s.Volumes}
	if !s.ExpiresAt.IsZero() {
		m.ExpiresAt = &s.ExpiresAt
	}
	return m
}

func (a *app) snapshotCommand() *cobra.Command {
	var (
		name   string
		expiry time.Duration
		keep   int
	)
	c := &cobra.Command{
		Use:   "snapshot [flags] NAME",
		Short: "Take a snapshot of a sandbox's files, and print its ID",
		Long: `Take a snapshot of a sandbox's files, and print its ID. The sandbox does not change.
"sandbox run --snapshot ID" creates sandboxes from it.`,
		Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			opts := []sandbox.SnapshotOption{sandbox.WithProgress(a.progress())}
			set := c.Flags().Changed
			if set("name") {
				opts = append(opts, sandbox.WithSnapshotName(name))
			}
			if set("expiry") {
				opts = append(opts, sandbox.WithExpiry(expiry))
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
	c.Flags().DurationVar(&expiry, "expiry", 0, "remove it after this time, such as 24h (default never)")
	c.Flags().IntVar(&keep, "keep-last", 0, "keep this many snapshots of the sandbox and remove older ones (default all)")
	return c
}

func (a *app) snapshotsCommand() *cobra.Command {
	var (
		asJSON   bool
		of, name string
	)
	c := &cobra.Command{
		Use:   "snapshots",
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
				return printJSONList(a.stdout, all, snapshotEntryOf)
			}
			return printTable(a.stdout, "ID\tNAME\tSANDBOX\tAGE\tMB\tSHARED\tPARENT", all, func(s sandbox.Snapshot) []any {
				mb := fmt.Sprintf("%.1f", float64(s.SizeBytes)/1e6)
				return []any{s.ID, cmp.Or(s.Name, "-"), s.Sandbox, age(s.CreatedAt), mb, len(s.Volumes), cmp.Or(s.Parent, "-")}
			})
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	c.Flags().StringVar(&of, "sandbox", "", "only snapshots of the sandbox with this name or ID, which may be deleted")
	c.Flags().StringVar(&name, "name", "", "only snapshots with this name")
	c.AddCommand(&cobra.Command{
		Use:   "rm ID...",
		Short: "Delete a snapshot whose files no volume shares",
		Args:  cobra.MinimumNArgs(1),
		RunE: func(c *cobra.Command, ids []string) error {
			return each(ids, func(id string) error { return a.client.DeleteSnapshot(c.Context(), id) })
		},
	})
	return c
}

func (a *app) forkCommand() *cobra.Command {
	var (
		name    string
		count   int
		network string
	)
	c := &cobra.Command{
		Use:   "fork [flags] NAME",
		Short: "Create a sandbox with the current files of another one, and print its name",
		Long: `Create a sandbox with the current files of another one, and print its name. Its session runs
until "sandbox stop"; the sandbox is kept until "sandbox rm".`,
		Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			opts := []sandbox.ForkOption{sandbox.WithProgress(a.progress()), sandbox.WithPersistent(true)}
			if c.Flags().Changed("name") {
				opts = append(opts, sandbox.WithName(name))
			}
			if c.Flags().Changed("network") {
				policy, err := sandbox.ParseNetworkPolicy(network)
				if err != nil {
					return err
				}
				opts = append(opts, sandbox.WithNetworkPolicy(policy))
			}
			if !c.Flags().Changed("count") {
				sb, err := a.client.Fork(c.Context(), args[0], opts...)
				if err != nil {
					return err
				}
				fmt.Fprintln(a.stdout, sb.Name())
				return sb.Detach()
			}
			forks, err := a.client.ForkN(c.Context(), args[0], count, opts...)
			for _, f := range forks {
				if f.Sandbox != nil {
					fmt.Fprintln(a.stdout, f.Sandbox.Name())
					err = errors.Join(err, f.Sandbox.Detach())
				}
			}
			return err
		},
	}
	c.Flags().StringVar(&name, "name", "", "the new sandbox's name (default its ID)")
	c.Flags().IntVar(&count, "count", 0, "create this many with the same files; -1, -2 … is appended to the name")
	c.Flags().StringVar(&network, "network", "", "the network policy, see \"sandbox network\" (default that of the other sandbox)")
	return c
}
