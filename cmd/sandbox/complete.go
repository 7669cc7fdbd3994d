package main

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	"github.com/seed-1a2d6d8f/sandbox"
)

// completionTime bounds a completion: a shell waits for it.
const completionTime = 2 * time.Second

// sandboxes completes the names of sandboxes.
func (a *app) sandboxes(c *cobra.Command, _ []string, prefix string) ([]string, cobra.ShellCompDirective) {
	ctx, cancel := context.WithTimeout(c.Context(), completionTime)
	defer cancel()
	if err := a.connect(); err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	infos, err := a.client.List(ctx, sandbox.NamePrefix(prefix))
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	var names []string
	for _, i := range infos {
		names = append(names, i.Name)
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

// oneSandbox completes the first argument only.
func (a *app) oneSandbox(c *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveDefault
	}
	return a.sandboxes(c, args, prefix)
}
