package main

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/seed-1a2d6d8f/sandbox"
)

func (a *app) volumeCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "volume",
		Short: "List and delete the volumes of sandboxes",
	}
	group(c)
	c.AddCommand(
		a.volumesCommand("list", "List the volumes of sandboxes: workspaces and copies of directories", a.listVolumes),
		a.volumesCommand("orphans", "List the volumes that no sandbox uses", a.orphans),
		a.deleteVolumeCommand(), a.cleanupCommand())
	return c
}

func (a *app) listVolumes(c *cobra.Command) ([]sandbox.Volume, error) {
	return a.client.ListVolumes(c.Context())
}

func (a *app) orphans(c *cobra.Command) ([]sandbox.Volume, error) {
	return a.client.OrphanedVolumes(c.Context())
}

func (a *app) volumesCommand(use, short string, list func(*cobra.Command) ([]sandbox.Volume, error)) *cobra.Command {
	var l listing
	c := &cobra.Command{
		Use:   use,
		Short: short,
		Args:  cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			volumes, err := list(c)
			if err != nil {
				return err
			}
			return printList(a, l, volumes, func(v sandbox.Volume) string { return v.Name }, a.printVolumes)
		},
	}
	if use == "list" {
		c.Aliases = []string{"ls"}
	}
	l.flags(c)
	return c
}

func (a *app) printVolumes(volumes []sandbox.Volume) error {
	err := printTable(a.stdout, "NAME\tROLE\tSIZE\tSHARED\tCREATED\tSOURCE\tSTATUS\tSANDBOXES", volumes, func(v sandbox.Volume) []any {
		return []any{v.Name, v.Role, v.Size, sharedText(v), ago(v.CreatedAt), v.Source, status(v.State()), strings.Join(v.Sandboxes, ",")}
	})
	for _, v := range volumes {
		if v.Warning != "" {
			fmt.Fprintf(a.stderr, "sandbox: volume %s: %s\n", graphic(v.Name), graphic(v.Warning))
		}
	}
	return err
}

// sharedText is the size of the files that a volume shares, for people; empty if it shares none.
func sharedText(v sandbox.Volume) string {
	switch {
	case v.SharedBytes == 0:
		return ""
	case v.SharedBytes < 0:
		return "unknown"
	}
	return bytesText(v.SharedBytes)
}

func (a *app) deleteVolumeCommand() *cobra.Command {
	var force, yes, asJSON bool
	c := &cobra.Command{
		Use:               "delete [--force] NAME...",
		Aliases:           []string{"rm"},
		Short:             "Delete a volume that no sandbox uses, after a confirmation on a terminal",
		Args:              cobra.MinimumNArgs(1),
		ValidArgsFunction: a.orphanedVolumes,
		RunE: func(c *cobra.Command, names []string) error {
			what := "volume"
			if force {
				what = "volume, and the sandboxes that use it"
			}
			if err := a.confirmLoss(c.Context(), yes, what, names); err != nil {
				return err
			}
			return each(a, asJSON, names, func(name string) ([]deletion, error) {
				report, err := a.client.DeleteVolume(c.Context(), name, sandbox.DeleteVolumeOptions{Force: force})
				return deleted(name, report, err), err
			})
		},
	}
	c.Flags().BoolVar(&force, "force", false, "first delete the sandboxes that use it")
	yesFlag(c, &yes)
	jsonFlag(c, &asJSON)
	return c
}

func (a *app) cleanupCommand() *cobra.Command {
	var (
		names, roles        []string
		minAge              duration
		dryRun, yes, asJSON bool
	)
	c := &cobra.Command{
		Use:   "cleanup",
		Short: "Delete the volumes that no sandbox uses, after a confirmation",
		Long: `Delete the volumes that no sandbox uses, after a confirmation. These are also volumes that were
preserved when their sandbox was deleted.`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			o := sandbox.CleanupOptions{Roles: roles, MinAge: time.Duration(minAge), DryRun: dryRun}
			if c.Flags().Changed("name") {
				o.Select = func(v sandbox.Volume) bool { return slices.Contains(names, v.Name) }
			}
			if !dryRun {
				o.Confirm = func(volumes []sandbox.Volume) error {
					if len(volumes) == 0 {
						return nil
					}
					var what strings.Builder
					for _, v := range volumes {
						fmt.Fprintf(&what, "volume %s (%s, %s, %s)\n", v.Name, v.Role, v.Size, cmp.Or(v.Source, "created "+ago(v.CreatedAt)))
					}
					return a.confirm(c.Context(), yes, strings.TrimSuffix(what.String(), "\n"), "Delete these volumes?")
				}
			}
			report, err := a.client.CleanupOrphanedVolumes(c.Context(), o)
			if err == nil || len(report.Removed)+len(report.Failed) > 0 {
				err = errors.Join(a.printReport(asJSON, cleanup{report}), err)
			}
			return err
		},
	}
	c.Flags().StringSliceVar(&names, "name", nil, "only volumes of this name")
	c.Flags().StringSliceVar(&roles, "role", nil, "only volumes of this role: workspace, rwcopy, fork, image")
	c.Flags().Var(&minAge, "min-age", "only volumes that were created at least this long ago, such as 7d")
	c.Flags().BoolVar(&dryRun, "dry-run", false, "only list what would be deleted")
	yesFlag(c, &yes)
	_ = c.RegisterFlagCompletionFunc("name", a.orphanedVolumes)
	_ = c.RegisterFlagCompletionFunc("role", fixed("workspace", "rwcopy", "fork", "image"))
	jsonFlag(c, &asJSON)
	return c
}

// A cleanup is a report that ends with the space that was freed.
type cleanup struct{ sandbox.CleanupReport }

func (c cleanup) String() string {
	verb := "freed"
	if c.DryRun {
		verb = "would free"
	}
	return strings.TrimPrefix(fmt.Sprintf("%s\n%s %s", c.CleanupReport, verb, bytesText(c.FreedBytes)), "\n")
}

// bytesText is a number of bytes for people, as in [sandbox.Volume.Size].
func bytesText(n int64) string {
	if n < 1024 {
		return fmt.Sprintf("%d B", n)
	}
	units := []string{"KB", "MB", "GB", "TB", "PB"}
	value, unit := float64(n)/1024, 0
	for value >= 1023.95 && unit < len(units)-1 { // it would print as 1024.0
		value, unit = value/1024, unit+1
	}
	return fmt.Sprintf("%.1f %s", value, units[unit])
}
