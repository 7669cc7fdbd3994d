package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/seed-1a2d6d8f/sandbox"
)

// entry is a sandbox as --json prints it.
type entry struct {
	ID        string            `json:"id"`
	Name      string            `json:"name"`
	State     sandbox.State     `json:"state"`
	Image     string            `json:"image"`
	CreatedAt time.Time         `json:"createdAt"`
	Location  string            `json:"location"`
	Tags      map[string]string `json:"tags,omitempty"`
}

// detail is what inspect prints.
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
				entries := []entry{}
				for _, i := range infos {
					entries = append(entries, entryOf(i))
				}
				return printJSON(a.stdout, entries)
			}
			w := tabwriter.NewWriter(a.stdout, 0, 0, 2, ' ', 0)
			fmt.Fprintln(w, "NAME\tSTATE\tIMAGE\tAGE\tTAGS")
			for _, i := range infos {
				fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", i.Name, i.State, i.Image, age(i.CreatedAt), tagList(i.Tags))
			}
			return w.Flush()
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	c.Flags().StringSliceVar(&states, "state", nil, "only those in a state: running, stopped, paused, creating, error")
	c.Flags().StringToStringVar(&tags, "tag", nil, "only those with a tag: KEY=VALUE")
	c.Flags().StringVar(&prefix, "prefix", "", "only those whose name begins so")
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
		list = append(list, k+"="+tags[k])
	}
	return strings.Join(list, ",")
}

func (a *app) inspectCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "inspect NAME",
		Short: "Tell of a sandbox, as JSON, without resuming it",
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
		Short: "End the session of a sandbox; its files stay",
		Args:  cobra.MinimumNArgs(1),
		RunE: func(c *cobra.Command, names []string) error {
			return each(names, func(name string) error {
				sb, err := a.client.Get(c.Context(), name, sandbox.WithoutResume())
				if err != nil {
					return err
				}
				_, err = sb.Stop(c.Context())
				return errors.Join(err, sb.Detach())
			})
		},
	}
}

func (a *app) pruneCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "prune",
		Short: "Remove what crashed programs left and what other versions need no more",
		Args:  cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			report, err := a.client.Prune(c.Context())
			if text := report.String(); text != "" {
				fmt.Fprintln(a.stdout, text)
			}
			return err
		},
	}
}

func (a *app) rmCommand() *cobra.Command {
	var volumes bool
	c := &cobra.Command{
		Use:   "rm [--volumes] NAME...",
		Short: "Remove a sandbox, and tell what became of its volumes",
		Args:  cobra.MinimumNArgs(1),
		RunE: func(c *cobra.Command, names []string) error {
			return each(names, func(name string) error {
				report, err := a.client.Delete(c.Context(), name, sandbox.PreserveVolumes(!volumes))
				if text := report.String(); text != "" {
					fmt.Fprintln(a.stdout, text)
				}
				return err
			})
		},
	}
	c.Flags().BoolVar(&volumes, "volumes", false, "delete its volumes, too")
	return c
}

// each does fn for every name, also after one failed.
func each(names []string, fn func(string) error) error {
	var errs []error
	for _, name := range names {
		errs = append(errs, fn(name))
	}
	return errors.Join(errs...)
}
