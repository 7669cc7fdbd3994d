package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/seed-1a2d6d8f/sandbox/conform"
)

func (a *app) conformCommand() *cobra.Command {
	var (
		o      conform.Options
		asJSON bool
	)
	c := &cobra.Command{
		Use:   "conform [--image IMAGE] [--oci-runtime NAME] [--only PART]",
		Short: "Check what the engine does for sandboxes, a capability a line",
		Long: `Use every capability once on this engine, and say of each whether it works, is refused and
why, or is broken. Takes a minute or two, and removes what it made, and what "sandbox prune"
removes, which is one of the checks. If something is broken the exit code is 1.`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			o.Done = func(r conform.Result) {
				fmt.Fprintf(a.stderr, "%s: %s\n", r.Check, r.Outcome)
			}
			report, err := conform.Run(c.Context(), a.client, o)
			if err != nil {
				return err
			}
			if asJSON {
				err = printJSON(a.stdout, report)
			} else {
				_, err = fmt.Fprint(a.stdout, graphicLines(report.String()))
			}
			if n := report.Count(conform.Broken); err == nil && n > 0 {
				err = fmt.Errorf("sandbox: %d of %d checks found something broken", n, len(report.Results))
			}
			return err
		},
	}
	c.Flags().StringVar(&o.Image, "image", "", "the sandboxes' image (default the one of create)")
	c.Flags().StringVar(&o.OCIRuntime, "oci-runtime", "", "the OCI runtime of the sandboxes (default the engine's)")
	c.Flags().StringArrayVar(&o.Only, "only", nil, "only checks that have this in their names; may be given several times")
	jsonFlag(c, &asJSON)
	return c
}
