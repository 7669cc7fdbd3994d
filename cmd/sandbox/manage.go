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

// entry is the JSON of a sandbox in a list.
type entry struct {
	ID        string            `json:"id"`
	Name      string            `json:"name"`
	State     sandbox.State     `json:"state"`
	Image     string            `json:"image"`
	CreatedAt time.Time         `json:"createdAt"`
	Location  string            `json:"location"`
	Tags      map[string]string `json:"tags,omitempty"`
}

// detail is the JSON of inspect.
type detail struct {
	entry
	Source        string                    `json:"source,omitempty"`
	Reason        string                    `json:"reason,omitempty"`
	StartedAt     *time.Time                `json:"startedAt,omitempty"`
	UptimeSeconds float64                   `json:"uptimeSeconds,omitempty"`
	ExpiresAt     *time.Time                `json:"expiresAt,omitempty"`
	Ports         map[uint16]netip.AddrPort `json:"ports,omitempty"` // of this session
	Network       string                    `json:"network"`
}

func entryOf(i sandbox.Info) entry {
	return entry{i.ID, i.Name, i.State, i.Image, i.CreatedAt, i.Location, i.Tags}
}

func detailOf(s sandbox.Status) detail {
	d := detail{entry: entryOf(s.Info), Source: s.Source, Reason: s.Reason, UptimeSeconds: s.Uptime.Seconds(), Ports: s.Ports, Network: s.Network.String()}
	if !s.StartedAt.IsZero() {
		d.StartedAt = &s.StartedAt
	}
	if !s.ExpiresAt.IsZero() {
		d.ExpiresAt = &s.ExpiresAt
	}
	return d
}

func printJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(v)
}

// printJSONList prints the items, converted, as an array, which is empty and not null if
// there are none.
func printJSONList[T, J any](w io.Writer, items []T, convert func(T) J) error {
	list := []J{}
	for _, i := range items {
		list = append(list, convert(i))
	}
	return printJSON(w, list)
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
				return printJSONList(a.stdout, infos, entryOf)
			}
			return printTable(a.stdout, "NAME\tSTATE\tIMAGE\tAGE\tTAGS", infos, func(i sandbox.Info) []any {
				return []any{i.Name, i.State, i.Image, age(i.CreatedAt), tagList(i.Tags)}
			})
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	c.Flags().StringSliceVar(&states, "state", nil, "only sandboxes in this state: running, stopped, paused, creating, error")
	c.Flags().StringToStringVar(&tags, "tag", nil, "only sandboxes with this tag: KEY=VALUE")
	c.Flags().StringVar(&prefix, "prefix", "", "only sandboxes whose name has this prefix")
	return c
}

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

func (a *app) inspectCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "inspect NAME",
		Short: "Print the details of a sandbox, as JSON, without resuming it",
		Args:  cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			st, err := a.client.Inspect(c.Context(), args[0])
			if err != nil {
				return err
			}
			return printJSON(a.stdout, detailOf(st))
		},
	}
}

func (a *app) stopCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "stop NAME...",
		Short: "End the session of a sandbox; its files are kept",
		Args:  cobra.MinimumNArgs(1),
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

func (a *app) rmCommand() *cobra.Command {
	var volumes bool
	c := &cobra.Command{
		Use:   "rm [--volumes] NAME...",
		Short: "Delete a sandbox, and report on its volumes",
		Args:  cobra.MinimumNArgs(1),
		RunE: func(c *cobra.Command, names []string) error {
			return each(names, func(name string) error {
				report, err := a.client.Delete(c.Context(), name, sandbox.PreserveVolumes(!volumes))
				a.printReport(report)
				return err
			})
		},
	}
	c.Flags().BoolVar(&volumes, "volumes", false, "delete its volumes too")
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
