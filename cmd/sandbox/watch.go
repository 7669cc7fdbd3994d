package main

import (
	"encoding/json"

	"github.com/spf13/cobra"

	"github.com/seed-1a2d6d8f/sandbox"
)

func (a *app) watchCommand() *cobra.Command {
	var o sandbox.WatchOptions
	c := &cobra.Command{
		Use:   "watch",
		Short: "Print what happens to sandboxes, an object of JSON in each line",
		Long: `Print what happens to sandboxes from now on, an object of JSON in each line, until it is interrupted:
"created", "started", "stopped", "deleted" and, with --denied, "denied". The first event is "sync", and so is
the first after some may have been missed, because the connection to the engine was lost.`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			out := json.NewEncoder(a.stdout)
			for e, err := range a.client.Watch(c.Context(), o) {
				if err != nil {
					return err
				}
				if err := out.Encode(e); err != nil {
					return err
				}
			}
			return nil
		},
	}
	c.Flags().StringToStringVar(&o.Tags, "tag", nil, "only sandboxes with this tag")
	c.Flags().StringVar(&o.Prefix, "prefix", "", "only sandboxes whose name has this prefix")
	c.Flags().BoolVar(&o.Denied, "denied", false, "also connections that network policies did not allow")
	alwaysJSON(c)
	return c
}
