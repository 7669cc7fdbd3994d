package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/seed-1a2d6d8f/sandbox"
)

func printJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(v)
}

// printJSONList prints the items as an array, which is empty and not null if there are none.
func printJSONList[T any](w io.Writer, items []T) error {
	return printJSON(w, slices.Concat([]T{}, items))
}

// graphic returns s, or s quoted if it contains anything but graphic characters: what comes
// from a sandbox, an image or a label must not control the terminal.
func graphic(s string) string {
	if utf8.ValidString(s) && !strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsGraphic(r) }) {
		return s
	}
	return strconv.QuoteToGraphic(s)
}

// graphicLines is graphic for each line of s.
func graphicLines(s string) string {
	lines := strings.Split(s, "\n")
	for i, line := range lines {
		lines[i] = graphic(line)
	}
	return strings.Join(lines, "\n")
}

// printTable prints a row of cells for each item.
func printTable[T any](w io.Writer, header string, items []T, row func(T) []any) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, header)
	for _, i := range items {
		var cells []string
		for _, cell := range row(i) {
			cells = append(cells, graphic(fmt.Sprint(cell)))
		}
		fmt.Fprintln(t, strings.Join(cells, "\t"))
	}
	return t.Flush()
}

// withSandbox calls fn with an existing sandbox, which is not resumed.
func (a *app) withSandbox(c *cobra.Command, name string, fn func(*sandbox.Sandbox) error) error {
	sb, err := a.client.Get(c.Context(), name, sandbox.WithoutResume())
	if err != nil {
		return err
	}
	return errors.Join(fn(sb), sb.Detach())
}

func (a *app) listCommand() *cobra.Command {
	var (
		asJSON bool
		states []string
		tags   map[string]string
		prefix string
	)
	c := &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "List the sandboxes on the engine, the newest first",
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			opts := []sandbox.ListOption{sandbox.NamePrefix(prefix)}
			for _, s := range states {
				opts = append(opts, sandbox.StatusFilter(sandbox.State(s)))
			}
			for _, k := range slices.Sorted(maps.Keys(tags)) {
				opts = append(opts, sandbox.TagFilter(k, tags[k]))
			}
			infos, err := a.client.List(c.Context(), opts...)
			if err != nil {
				return err
			}
			if asJSON {
				return printJSONList(a.stdout, infos)
			}
			return printTable(a.stdout, "NAME\tID\tSTATUS\tIMAGE\tCREATED\tLOCATION\tPORTS\tTAGS", infos, func(i sandbox.Info) []any {
				return []any{i.Name, i.ID, i.State, i.Image, ago(i.CreatedAt), i.Location, portList(i.Ports), tagList(i.Tags)}
			})
		},
	}
	jsonFlag(c, &asJSON)
	c.Flags().StringSliceVar(&states, "status", nil, "only sandboxes with this status: running, stopped, paused, creating, error")
	c.Flags().StringToStringVar(&tags, "tag", nil, "only sandboxes with this tag: KEY=VALUE")
	c.Flags().StringVar(&prefix, "prefix", "", "only sandboxes whose name has this prefix")
	return c
}

// ago says how long ago t was.
func ago(t time.Time) string { return age(t) + " ago" }

func age(since time.Time) string {
	switch d := time.Since(since); {
	case d < 2*time.Minute:
		return fmt.Sprintf("%ds", max(0, int(d.Seconds())))
	case d < 2*time.Hour:
		return fmt.Sprintf("%dm", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh", int(d.Hours()))
	default:
		return fmt.Sprintf("%dd", int(d.Hours()/24))
	}
}

func tagList(tags map[string]string) string {
	var list []string
	for _, k := range slices.Sorted(maps.Keys(tags)) {
		list = append(list, graphic(k)+"="+graphic(tags[k]))
	}
	return strings.Join(list, ",")
}

// portList lists the published ports as address->port.
func portList(ports map[uint16]netip.AddrPort) string {
	var list []string
	for _, p := range slices.Sorted(maps.Keys(ports)) {
		list = append(list, fmt.Sprintf("%v->%d", ports[p], p))
	}
	return strings.Join(list, ",")
}

func (a *app) inspectCommand() *cobra.Command {
	c := &cobra.Command{
		Use:               "inspect NAME",
		Short:             "Print the details of a sandbox, as JSON, without resuming it",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: a.oneSandbox,
		RunE: func(c *cobra.Command, args []string) error {
			st, err := a.client.Inspect(c.Context(), args[0])
			if err != nil {
				return err
			}
			if st.Workspace.Warning != "" {
				fmt.Fprintln(a.stderr, "sandbox:", graphic(st.Workspace.Warning))
			}
			return printJSON(a.stdout, st)
		},
	}
	// It is what is printed anyway; other subcommands have the flag.
	c.Flags().Bool("json", true, "print JSON")
	return c
}

func (a *app) startCommand() *cobra.Command {
	return &cobra.Command{
		Use:               "start NAME...",
		Short:             "Start the session of a sandbox, if it has none",
		Args:              cobra.MinimumNArgs(1),
		ValidArgsFunction: a.sandboxes,
		RunE: func(c *cobra.Command, names []string) error {
			return each(names, func(name string) error {
				return a.withSandbox(c, name, func(sb *sandbox.Sandbox) error {
					_, err := sb.Start(c.Context())
					return err
				})
			})
		},
	}
}

func (a *app) updateCommand() *cobra.Command {
	var (
		f      changeFlags
		values env
	)
	c := &cobra.Command{
		Use:   "update [flags] NAME [-- COMMAND [ARG...]]",
		Short: "Change the settings of a sandbox",
		Long: `Change the settings of a sandbox. Those that are not given stay. The network policy, the limits
of CPU and memory, tags and the environment of commands apply at once; ports, mounts and the
main process COMMAND from the next session on. --mount and --volume replace all mounts.`,
		Args:              cobra.MinimumNArgs(1),
		ValidArgsFunction: a.oneSandbox,
		RunE: func(c *cobra.Command, args []string) error {
			changes, err := f.options(c)
			if err != nil {
				return err
			}
			argv, err := mainProcess(c, args)
			if err != nil {
				return err
			}
			var opts []sandbox.UpdateOption
			for _, o := range changes {
				opts = append(opts, o)
			}
			if c.Flags().Changed("env") {
				opts = append(opts, sandbox.WithEnv(values.variables()))
			}
			if len(argv) > 0 {
				opts = append(opts, sandbox.WithCommand(argv...))
			}
			if len(opts) == 0 {
				return fmt.Errorf("sandbox: update %q: no change is given", args[0])
			}
			if mounts, err := f.mounted(); err != nil {
				return err
			} else if len(mounts) > 0 {
				plan := sandbox.Plan{Name: args[0], Mounts: mounts}
				if err := a.confirm(c.Context(), f.yes, plan.String(), "Update the sandbox with these mounts?"); err != nil {
					return err
				}
			}
			return a.withSandbox(c, args[0], func(sb *sandbox.Sandbox) error { return sb.Update(c.Context(), opts...) })
		},
	}
	values.flag(c, "set an environment variable of the sandbox's commands")
	f.flags(c)
	return c
}

func (a *app) stopCommand() *cobra.Command {
	return &cobra.Command{
		Use:               "stop NAME...",
		Short:             "End the session of a sandbox; its files are kept",
		Args:              cobra.MinimumNArgs(1),
		ValidArgsFunction: a.sandboxes,
		RunE: func(c *cobra.Command, names []string) error {
			return each(names, func(name string) error {
				return a.withSandbox(c, name, func(sb *sandbox.Sandbox) error {
					_, err := sb.Stop(c.Context())
					return err
				})
			})
		},
	}
}

func (a *app) pruneCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "prune",
		Short: "Remove leftovers of crashed programs and other versions",
		Args:  cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			report, err := a.client.Prune(c.Context())
			a.printReport(report)
			return err
		},
	}
}

func (a *app) healthCommand() *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use:   "health",
		Short: "Say whether the engine can be used, and what it supports",
		Args:  cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			h, err := a.client.CheckHealth(c.Context())
			if err != nil {
				return err
			}
			var support sandbox.Support
			if h.Healthy {
				if support, err = a.client.CheckSupport(c.Context()); err != nil {
					return err
				}
			}
			rows := healthRows(h, support)
			if asJSON {
				all := map[string]any{}
				for _, r := range rows {
					all[r.key] = r.value
				}
				err = printJSON(a.stdout, all)
			} else {
				t := tabwriter.NewWriter(a.stdout, 0, 0, 2, ' ', 0)
				for _, r := range rows {
					fmt.Fprintf(t, "%s\t%s\n", r.label, graphic(fmt.Sprint(r.value)))
				}
				err = t.Flush()
			}
			if !h.Healthy {
				err = errors.Join(errors.New("sandbox: the engine can't be used"), err)
			}
			return err
		},
	}
	jsonFlag(c, &asJSON)
	return c
}

type healthRow struct {
	key, label string
	value      any
}

func healthRows(h sandbox.Health, s sandbox.Support) []healthRow {
	rows := []healthRow{{"healthy", "Healthy", h.Healthy}, {"host", "Host", h.Host}}
	if !h.Healthy {
		return append(rows, healthRow{"guidance", "What to do", h.Guidance})
	}
	supported := func(err error) string {
		if err != nil {
			return err.Error()
		}
		return "supported"
	}
	return append(rows,
		healthRow{"version", "Engine", h.Version}, healthRow{"apiVersion", "API", h.APIVersion},
		healthRow{"os", "System", h.OS}, healthRow{"arch", "Architecture", h.Arch}, healthRow{"kernel", "Kernel", h.Kernel},
		healthRow{"cpus", "CPUs", h.CPUs}, healthRow{"memoryBytes", "Memory", h.Memory},
		healthRow{"storageDriver", "Storage driver", h.StorageDriver}, healthRow{"cgroupVersion", "Cgroup version", h.CgroupVersion},
		healthRow{"rootless", "Rootless", h.Rootless}, healthRow{"runtimes", "OCI runtimes", s.Runtimes},
		healthRow{"networkPolicy", "Network policies", supported(s.NetworkPolicy)}, healthRow{"reflink", "Copies share blocks", supported(s.Reflink)})
}

func (a *app) deleteCommand() *cobra.Command {
	var volumes, asJSON bool
	c := &cobra.Command{
		Use:     "delete [--delete-volumes] NAME...",
		Aliases: []string{"rm"},
		Short:   "Delete a sandbox, and report on its volumes",
		Long: `Delete a sandbox, and report on its volumes, a line for each. They are preserved unless
--delete-volumes is given.`,
		Args:              cobra.MinimumNArgs(1),
		ValidArgsFunction: a.sandboxes,
		RunE: func(c *cobra.Command, names []string) error {
			var outcomes []sandbox.VolumeOutcome
			err := each(names, func(name string) error {
				report, err := a.client.Delete(c.Context(), name, sandbox.PreserveVolumes(!volumes))
				if asJSON {
					outcomes = append(outcomes, report.Volumes...)
				} else {
					a.printReport(report)
				}
				return err
			})
			if asJSON {
				err = errors.Join(err, printJSONList(a.stdout, outcomes))
			}
			return err
		},
	}
	c.Flags().BoolVar(&volumes, "delete-volumes", false, "delete its volumes too")
	jsonFlag(c, &asJSON)
	return c
}

// printReport prints a report that is not empty.
func (a *app) printReport(report fmt.Stringer) {
	if text := report.String(); text != "" {
		fmt.Fprintln(a.stdout, graphicLines(text))
	}
}

// each calls fn for every name, and joins the errors.
func each(names []string, fn func(string) error) error {
	var errs []error
	for _, name := range names {
		errs = append(errs, fn(name))
	}
	return errors.Join(errs...)
}
