package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/seed-1a2d6d8f/sandbox"
)

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
		o      sandbox.ListOptions
		l      listing
		states []string
	)
	c := &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls", "ps"},
		Short:   "List the sandboxes on the engine, the newest first",
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			for _, s := range states {
				o.States = append(o.States, sandbox.State(s))
			}
			infos, err := a.client.List(c.Context(), o)
			if err != nil {
				return err
			}
			return printList(a, l, infos, func(i sandbox.Info) string { return i.Name }, a.printInfos)
		},
	}
	l.flags(c)
	c.Flags().StringSliceVar(&states, "status", nil, "only sandboxes with this status: running, stopped, paused, creating, error")
	c.Flags().StringToStringVar(&o.Tags, "tag", nil, "only sandboxes with this tag")
	c.Flags().StringVar(&o.Prefix, "prefix", "", "only sandboxes whose name has this prefix")
	_ = c.RegisterFlagCompletionFunc("status", fixed("running", "stopped", "paused", "creating", "error"))
	return c
}

func (a *app) printInfos(infos []sandbox.Info) error {
	return printTable(a.stdout, "NAME\tID\tSTATUS\tIMAGE\tCREATED\tLOCATION\tPORTS\tTAGS", infos, func(i sandbox.Info) []any {
		return []any{i.Name, i.ID, status(i.State), i.Image, ago(i.CreatedAt), i.Location, portList(i.Ports), tagList(i.Tags)}
	})
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
	var f format
	c := &cobra.Command{
		Use:   "inspect NAME...",
		Short: "Print the details of sandboxes, as JSON, without resuming them",
		Long: `Print the details of sandboxes, as JSON, without resuming them: those of one as an object, those of
several in an array. "sandbox describe" prints them for people.`,
		Args:              cobra.MinimumNArgs(1),
		ValidArgsFunction: a.sandboxes,
		RunE: func(c *cobra.Command, names []string) error {
			all, err := a.inspectAll(c.Context(), names)
			switch {
			case f.parts != nil:
				err = errors.Join(err, printFormatted(a.stdout, f, all))
			case len(names) > 1:
				err = errors.Join(err, printJSONList(a.stdout, all))
			case len(all) == 1:
				err = errors.Join(err, printJSON(a.stdout, all[0]))
			}
			return err
		},
	}
	alwaysJSON(c)
	f.flag(c)
	return c
}

// inspectAll returns the details of those sandboxes that there are, and prints their warnings.
func (a *app) inspectAll(ctx context.Context, names []string) (all []sandbox.Status, err error) {
	for _, name := range names {
		st, e := a.client.Inspect(ctx, name)
		if e != nil {
			err = errors.Join(err, e)
			continue
		}
		a.warn(st)
		all = append(all, st)
	}
	return all, err
}

// alwaysJSON gives a subcommand that prints JSON anyway the flag that others have.
func alwaysJSON(c *cobra.Command) { c.Flags().Bool("json", true, "print JSON") }

// warn prints the warning of a sandbox's workspace, if there is one.
func (a *app) warn(st sandbox.Status) {
	if st.Workspace.Warning != "" {
		fmt.Fprintf(a.stderr, "sandbox: volume %s: %s\n", graphic(st.Workspace.Name), graphic(st.Workspace.Warning))
	}
}

// printStatus prints the details of a sandbox, and a warning if there is one.
func (a *app) printStatus(st sandbox.Status) error {
	a.warn(st)
	return printJSON(a.stdout, st)
}

func (a *app) startCommand() *cobra.Command {
	return a.sessionCommand("start", "Start the sessions of sandboxes that have none", a.sandboxesIn(sandbox.StateStopped), (*sandbox.Sandbox).Start)
}

func (a *app) stopCommand() *cobra.Command {
	return a.sessionCommand("stop", "End the sessions of sandboxes; their files are kept", a.sandboxesIn(sandbox.StateRunning, sandbox.StatePaused), (*sandbox.Sandbox).Stop)
}

// sessionCommand starts or stops sandboxes.
func (a *app) sessionCommand(verb, short string, complete cobra.CompletionFunc, do func(*sandbox.Sandbox, context.Context) (sandbox.State, error)) *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use:               verb + " NAME...",
		Short:             short,
		Args:              cobra.MinimumNArgs(1),
		ValidArgsFunction: complete,
		RunE: func(c *cobra.Command, names []string) error {
			return each(a, asJSON, names, func(name string) (done []outcome, err error) {
				err = a.withSandbox(c, name, func(sb *sandbox.Sandbox) error {
					state, err := do(sb, c.Context())
					if err == nil && (asJSON || !a.progress.quiet) {
						done = append(done, outcome{sb.Name(), state})
					}
					return err
				})
				return done, err
			})
		},
	}
	jsonFlag(c, &asJSON)
	return c
}

// An outcome is what a command has made of a session.
type outcome struct {
	Name   string        `json:"name"`
	Status sandbox.State `json:"status"`
}

func (s outcome) String() string { return "sandbox " + s.Name + ": " + string(s.Status) }

func (a *app) updateCommand() *cobra.Command {
	var (
		f      settingsFlags
		rm     removalFlags
		values env
		asJSON bool
	)
	c := &cobra.Command{
		Use:   "update [flags] NAME [-- COMMAND [ARG...]]",
		Short: "Change the settings of a sandbox",
		Long: `Change the settings of a sandbox. Those that are not given stay. The network policy, the limits
of CPU and memory, tags and the environment of commands apply at once; ports, mounts and the
main process COMMAND from the next session on. --mount and --volume replace all mounts. A
running sandbox that is made not persistent is removed when its session ends.`,
		Args:              cobra.MinimumNArgs(1),
		ValidArgsFunction: a.oneSandbox,
		RunE: func(c *cobra.Command, args []string) error {
			argv, err := mainProcess(c, args)
			if err != nil {
				return err
			}
			set, err := f.settings(c, argv)
			if err != nil {
				return err
			}
			if c.Flags().Changed("env") {
				set.Env = values.variables()
			}
			var opts []sandbox.UpdateOption
			for _, o := range rm.options() {
				opts = append(opts, o)
			}
			if len(opts) == 0 && reflect.ValueOf(set).IsZero() {
				return usageError{fmt.Errorf("sandbox: update %q: no change is given", args[0])}
			}
			opts = append(opts, sandbox.WithSettings(set))
			if err := a.client.CheckUpdate(opts...); err != nil {
				return err
			}
			if err := f.confirm(a, c, "Update the sandbox with these mounts?"); err != nil {
				return err
			}
			return a.change(c, asJSON, args[0], func(sb *sandbox.Sandbox) (string, error) {
				if err := sb.Update(c.Context(), opts...); err != nil || asJSON {
					return "", err
				}
				st, err := sb.Summary(c.Context())
				if len(st.Pending) == 0 {
					return "updated", err
				}
				return "updated; from the next session: " + strings.Join(st.Pending, ", "), err
			})
		},
	}
	values.flag(c, "set an environment variable of the sandbox's commands")
	f.changes(a, c)
	rm.flags(c)
	jsonFlag(c, &asJSON)
	bySubject(c)
	return c
}

// change calls fn with an existing sandbox, which is not resumed, and prints what fn has done, or with
// JSON the sandbox's details then.
func (a *app) change(c *cobra.Command, asJSON bool, name string, fn func(*sandbox.Sandbox) (done string, err error)) error {
	return a.withSandbox(c, name, func(sb *sandbox.Sandbox) error {
		done, err := fn(sb)
		if err != nil {
			return err
		}
		if !asJSON {
			return a.say("sandbox %s: %s", sb.Name(), done)
		}
		st, err := sb.Status(c.Context())
		if err != nil {
			return err
		}
		return a.printStatus(st)
	})
}

func (a *app) pruneCommand() *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use:   "prune",
		Short: "Remove leftovers of crashed programs and other versions",
		Args:  cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			report, err := a.client.Prune(c.Context())
			if err == nil && !asJSON && report.String() == "" {
				return a.say("nothing to remove")
			}
			return errors.Join(a.printReport(asJSON, report), err)
		},
	}
	jsonFlag(c, &asJSON)
	return c
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
					if r.key != "warnings" {
						fmt.Fprintf(t, "%s\t%s\n", r.label, graphic(r.text()))
					}
				}
				for _, w := range h.Warnings {
					fmt.Fprintf(t, "Warning\t%s\n", graphic(w.Text))
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

// text is the value for people.
func (r healthRow) text() string {
	switch v := r.value.(type) {
	case bool:
		return map[bool]string{true: "yes", false: "no"}[v]
	case int64:
		return bytesText(v)
	case []string:
		return strings.Join(v, ", ")
	}
	return fmt.Sprint(r.value)
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
		healthRow{"limits", "Limits", supported(s.Limits)}, healthRow{"networkPolicy", "Network policies", supported(s.NetworkPolicy)}, healthRow{"reflink", "Copies share blocks", supported(s.Reflink)},
		healthRow{"layers", "Forks without a commit", supported(s.Layers)}, healthRow{"sharedFiles", "Snapshots share files", supported(s.SharedFiles)},
		healthRow{"warnings", "Warnings", append([]sandbox.Warning{}, h.Warnings...)})
}

func (a *app) deleteCommand() *cobra.Command {
	var (
		o           sandbox.DeleteOptions
		yes, asJSON bool
	)
	c := &cobra.Command{
		Use:     "delete [--delete-volumes] [--snapshots] NAME...",
		Aliases: []string{"rm"},
		Short:   "Delete a sandbox, and report on its volumes",
		Long: `Delete a sandbox, and report on its volumes, a line for each. They are preserved unless
--delete-volumes is given. Its snapshots stay unless --snapshots is given. With either, a terminal is
asked for a confirmation.`,
		Args:              cobra.MinimumNArgs(1),
		ValidArgsFunction: a.sandboxes,
		RunE: func(c *cobra.Command, names []string) error {
			what := "sandbox"
			if o.Volumes {
				what += ", its volumes"
			}
			if o.Snapshots {
				what += ", its snapshots"
			}
			if err := a.confirmLoss(c.Context(), yes || !o.Volumes && !o.Snapshots, what, names); err != nil {
				return err
			}
			return each(a, asJSON, names, func(name string) ([]deletion, error) {
				report, err := a.client.Delete(c.Context(), name, o)
				done := deleted(name, report, err)
				if err == nil && !a.progress.quiet {
					done[0].gone = name
				}
				return done, err
			})
		},
	}
	c.Flags().BoolVar(&o.Volumes, "delete-volumes", false, "delete its volumes too")
	c.Flags().BoolVar(&o.Snapshots, "snapshots", false, "delete its snapshots too, except those whose files volumes share")
	yesFlag(c, &yes)
	jsonFlag(c, &asJSON)
	return c
}

// A deletion is what happened to the volumes and snapshots of one sandbox, or with one volume.
type deletion struct {
	Name string `json:"name"`
	sandbox.DeleteReport
	gone string // the sandbox that was to be deleted, and is
}

// String returns a line for each sandbox, volume and snapshot.
func (d deletion) String() string {
	var lines []string
	if d.gone != "" {
		lines = append(lines, "sandbox "+d.gone+": deleted")
	}
	for _, name := range d.Sandboxes {
		lines = append(lines, "sandbox "+name+": deleted")
	}
	if text := d.DeleteReport.String(); text != "" {
		lines = append(lines, text)
	}
	return strings.Join(lines, "\n")
}

// deleted returns the deletion, or nothing if it failed before it did anything.
func deleted(name string, report sandbox.DeleteReport, err error) []deletion {
	if err != nil && len(report.Volumes)+len(report.Sandboxes)+len(report.Snapshots) == 0 {
		return nil
	}
	report.Volumes = slices.Concat([]sandbox.VolumeOutcome{}, report.Volumes)
	return []deletion{{Name: name, DeleteReport: report}}
}

// printReport prints a report that is not empty, or any with JSON.
func (a *app) printReport(asJSON bool, report fmt.Stringer) error {
	if asJSON {
		return printJSON(a.stdout, report)
	}
	text := report.String()
	if text == "" {
		return nil
	}
	_, err := fmt.Fprintln(a.stdout, graphicLines(text))
	return err
}

// each calls fn for every name, prints what fn did in text if that has one, or all in one array of
// JSON, and joins the errors.
func each[T any](a *app, asJSON bool, names []string, fn func(name string) ([]T, error)) error {
	var (
		all  []T
		errs []error
	)
	for _, name := range names {
		done, err := fn(name)
		for _, d := range done {
			if text, is := any(d).(fmt.Stringer); is && !asJSON {
				errs = append(errs, a.printReport(false, text))
			}
		}
		all, errs = append(all, done...), append(errs, err)
	}
	if asJSON {
		errs = append(errs, printJSONList(a.stdout, all))
	}
	return errors.Join(errs...)
}
