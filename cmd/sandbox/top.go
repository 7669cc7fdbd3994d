package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/seed-1a2d6d8f/sandbox"
)

func (a *app) topCommand() *cobra.Command {
	var (
		o            sandbox.ListOptions
		every        = duration(2 * time.Second)
		once, asJSON bool
	)
	c := &cobra.Command{
		Use:   "top",
		Short: "Print what the running sandboxes use, again and again on a terminal",
		Long: `Print what the running sandboxes use, those with the busiest CPUs first: on a terminal again and again, until
it is interrupted, and otherwise once. With --json each sandbox is an object in a line.`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if every <= 0 {
				return usagef("--interval: the value is too small")
			}
			live := !once && !asJSON && a.interactive(a.stdout)
			for {
				rows, err := a.usages(c, o)
				if err == nil {
					err = a.printUsages(rows, asJSON, live)
				}
				if err != nil || !live {
					return err
				}
				select {
				case <-c.Context().Done():
					return c.Context().Err()
				case <-time.After(time.Duration(every)):
				}
			}
		},
	}
	c.Flags().BoolVar(&once, "once", false, "print one table, on a terminal, too")
	c.Flags().Var(&every, "interval", "the time between two tables on a terminal")
	c.Flags().StringToStringVar(&o.Tags, "tag", nil, "only sandboxes with this tag")
	c.Flags().StringVar(&o.Prefix, "prefix", "", "only sandboxes whose name has this prefix")
	jsonFlag(c, &asJSON)
	return c
}

// usageRow is what one sandbox uses.
type usageRow struct {
	Name string `json:"name"`
	ID   string `json:"id"`
	sandbox.Usage
}

// usages returns what the sandboxes use that run.
func (a *app) usages(c *cobra.Command, o sandbox.ListOptions) (rows []usageRow, err error) {
	used, err := a.client.ListUsage(c.Context(), o)
	if err != nil {
		return nil, err
	}
	infos, err := a.client.List(c.Context(), o)
	for _, i := range infos {
		if u, ok := used[i.ID]; ok {
			rows = append(rows, usageRow{i.Name, i.ID, u})
		}
	}
	slices.SortFunc(rows, func(x, y usageRow) int {
		return cmp.Or(cmp.Compare(y.CPUPercent, x.CPUPercent), strings.Compare(x.Name, y.Name))
	})
	return rows, err
}

// printUsages prints a table, from the top of a terminal if it is live, or a line of JSON for each row.
func (a *app) printUsages(rows []usageRow, asJSON, live bool) error {
	if asJSON {
		var errs []error
		for _, r := range rows {
			text, err := json.Marshal(r)
			if err == nil {
				_, err = fmt.Fprintln(a.stdout, graphicJSON(string(text)))
			}
			errs = append(errs, err)
		}
		return errors.Join(errs...)
	}
	var sum sandbox.Usage
	for _, r := range rows {
		sum.CPUPercent, sum.MemoryBytes = sum.CPUPercent+r.CPUPercent, sum.MemoryBytes+r.MemoryBytes
	}
	if live {
		if _, err := fmt.Fprintf(a.stdout, "\x1b[H\x1b[2J%s  %s: %.0f%% of a CPU, %s of memory\n\n", time.Now().Format(time.TimeOnly),
			count(int64(len(rows)), "running sandbox"), sum.CPUPercent, bytesText(sum.MemoryBytes)); err != nil {
			return err
		}
	}
	return printTable(a.stdout, "NAME\tID\tCPU\tMEMORY\tLIMIT\tPROCESSES\tRECEIVED\tSENT", rows, func(r usageRow) []any {
		limit := ""
		if r.MemoryLimit > 0 {
			limit = bytesText(r.MemoryLimit)
		}
		return []any{r.Name, r.ID, fmt.Sprintf("%.1f%%", r.CPUPercent), bytesText(r.MemoryBytes), limit, r.Processes, bytesText(r.NetworkReceived), bytesText(r.NetworkSent)}
	})
}
