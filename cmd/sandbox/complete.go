package main

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/seed-1a2d6d8f/sandbox"
)

// completionTime bounds a completion: a shell waits for it. Tests wait longer.
var completionTime = 2 * time.Second

// names returns what list lists and the arguments do not have yet.
func (a *app) names(c *cobra.Command, args []string, prefix string, list func(context.Context) ([]string, error)) ([]string, cobra.ShellCompDirective) {
	ctx, cancel := context.WithTimeout(c.Context(), completionTime)
	defer cancel()
	if err := a.connect(); err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	all, err := list(ctx)
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	return slices.DeleteFunc(all, func(name string) bool {
		// A label may contain anything, and the shell prints it.
		return !strings.HasPrefix(name, prefix) || slices.Contains(args, name) || graphic(name) != name
	}), cobra.ShellCompDirectiveNoFileComp
}

// sandboxes completes the names of sandboxes.
func (a *app) sandboxes(c *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
	return a.names(c, args, prefix, func(ctx context.Context) (names []string, err error) {
		infos, err := a.client.List(ctx, sandbox.ListOptions{Prefix: prefix})
		for _, i := range infos {
			names = append(names, i.Name)
		}
		return names, err
	})
}

// oneSandbox completes the first argument only.
func (a *app) oneSandbox(c *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
	return inTurn(a.sandboxes)(c, args, prefix)
}

// snapshots completes the IDs of snapshots.
func (a *app) snapshots(c *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
	return a.names(c, args, prefix, func(ctx context.Context) (ids []string, err error) {
		all, err := a.client.ListSnapshots(ctx, sandbox.ListSnapshotsOptions{})
		for _, s := range all {
			ids = append(ids, s.ID)
		}
		return ids, err
	})
}

// orphanedVolumes completes the names of volumes that no sandbox uses: those to delete or to
// attach. The list of all volumes takes too long, since their files are counted for it.
func (a *app) orphanedVolumes(c *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
	return a.names(c, args, prefix, func(ctx context.Context) (names []string, err error) {
		volumes, err := a.client.OrphanedVolumes(ctx)
		for _, v := range volumes {
			names = append(names, v.Name)
		}
		return names, err
	})
}

// paths completes a sandbox's name to NAME:, and files of this machine.
func (a *app) paths(c *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 1 || strings.ContainsAny(prefix, ":/") {
		return nil, cobra.ShellCompDirectiveDefault
	}
	names, _ := a.sandboxes(c, nil, prefix)
	for i := range names {
		names[i] += ":"
	}
	return names, cobra.ShellCompDirectiveNoSpace
}

// inTurn completes each argument in its own way, and those after the last as the shell does.
func inTurn(each ...cobra.CompletionFunc) cobra.CompletionFunc {
	return func(c *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
		if len(args) >= len(each) {
			return nil, cobra.ShellCompDirectiveDefault
		}
		return each[len(args)](c, nil, prefix)
	}
}

// fixed completes one of the words.
func fixed(words ...string) cobra.CompletionFunc {
	return cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp)
}
