package main

import (
	"cmp"
	"errors"
	"fmt"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/seed-1a2d6d8f/sandbox"
)

// moment is a snapshot as --json prints it.
type moment struct {
	ID        string     `json:"id"`
	Name      string     `json:"name,omitempty"`
	Sandbox   string     `json:"sandbox"`
	SandboxID string     `json:"sandboxId"`
	Parent    string     `json:"parent,omitempty"`
	Image     string     `json:"image"`
	CreatedAt time.Time  `json:"createdAt"`
	ExpiresAt *time.Time `json:"expiresAt,omitempty"`
	SizeBytes int64      `json:"sizeBytes"`
	Volumes   []string   `json:"volumes,omitempty"` // that share its files
}

func momentOf(s sandbox.Snapshot) moment {
	m := moment{ID: s.ID, Name: s.Name, Sandbox: s.Sandbox, SandboxID: s.SandboxID, Parent: s.Parent, Image: s.Image,
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
		Short: "Store what a sandbox holds at this instant, and print the snapshot's ID",
		Long: `Store what a sandbox holds at this instant, and print the snapshot's ID. The sandbox is left
as it is. "sandbox run --snapshot ID" makes others of it.`,
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
			sb, err := a.client.Get(c.Context(), args[0], sandbox.WithoutResume())
			if err != nil {
				return err
			}
			snap, err := sb.Snapshot(c.Context(), opts...)
			if err == nil {
				fmt.Fprintln(a.stdout, snap.ID)
			}
			return errors.Join(err, sb.Detach())
		},
	}
	c.Flags().StringVar(&name, "name", "", "name it; several may have one name")
	c.Flags().DurationVar(&expiry, "expiry", 0, "have it removed after this long, such as 24h (default never)")
	c.Flags().IntVar(&keep, "keep-last", 0, "remove all other snapshots of the sandbox but the newest, so that so many stay (default all)")
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
				moments := []moment{}
				for _, s := range all {
					moments = append(moments, momentOf(s))
				}
				return printJSON(a.stdout, moments)
			}
			w := tabwriter.NewWriter(a.stdout, 0, 0, 2, ' ', 0)
			fmt.Fprintln(w, "ID\tNAME\tSANDBOX\tAGE\tMB\tSHARED\tPARENT")
			for _, s := range all {
				fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%.1f\t%d\t%s\n", s.ID, cmp.Or(s.Name, "-"), s.Sandbox, age(s.CreatedAt),
					float64(s.SizeBytes)/1e6, len(s.Volumes), cmp.Or(s.Parent, "-"))
			}
			return w.Flush()
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	c.Flags().StringVar(&of, "sandbox", "", "only those of the sandbox with this name or ID, which may be gone")
	c.Flags().StringVar(&name, "name", "", "only those of this name")
	c.AddCommand(&cobra.Command{
		Use:   "rm ID...",
		Short: "Delete a snapshot that no volume shares the files of",
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
		Short: "Make a sandbox with the files another one has at this instant, and print its name",
		Long: `Make a sandbox with the files another one has at this instant, and print its name. It stays,
and so does its session, until "sandbox stop" and "sandbox rm".`,
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
	c.Flags().StringVar(&name, "name", "", "name it (default its ID)")
	c.Flags().IntVar(&count, "count", 0, "make so many of one instant; a name gets -1, -2 … behind it")
	c.Flags().StringVar(&network, "network", "", "what it may reach, as of \"sandbox network\" (default what the other may)")
	return c
}
