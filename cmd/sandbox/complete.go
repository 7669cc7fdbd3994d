package main

import (
	"context"
	_ "embed"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/seed-1a2d6d8f/sandbox"
)

//go:embed completion.bash
var bashCompletion string

// ownBashCompletion has the command for completion print a script for bash that, unlike the library's,
// takes no package of the shell's.
func ownBashCompletion(root *cobra.Command) {
	root.InitDefaultCompletionCmd()
	bash, _, err := root.Find([]string{"completion", "bash"})
	if err != nil {
		panic(err)
	}
	group(bash.Parent())
	bash.Long = "Print a script for bash 4.1 and later that completes what is typed after sandbox."
	bash.RunE = func(c *cobra.Command, _ []string) error {
		script := bashCompletion
		if plain, err := c.Flags().GetBool("no-descriptions"); err != nil || plain {
			script = strings.ReplaceAll(script, cobra.ShellCompRequestCmd+" ", cobra.ShellCompNoDescRequestCmd+" ")
		}
		_, err := io.WriteString(c.OutOrStdout(), script)
		return err
	}
}

// completionTime bounds a completion: a shell waits for it. Tests wait longer.
var completionTime = 2 * time.Second

// names returns what list lists and the arguments do not have yet. A tab and a description may follow a name.
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
	return slices.DeleteFunc(all, func(word string) bool {
		name, description, _ := strings.Cut(word, "\t")
		// A label may contain anything, and the shell prints it.
		return !strings.HasPrefix(name, prefix) || slices.Contains(args, name) || graphic(name+description) != name+description
	}), cobra.ShellCompDirectiveNoFileComp
}

// sandboxes completes the names of sandboxes.
func (a *app) sandboxes(c *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
	return a.sandboxesIn()(c, args, prefix)
}

// sandboxesIn completes the names of sandboxes in one of these states, or in any.
func (a *app) sandboxesIn(states ...sandbox.State) cobra.CompletionFunc {
	return func(c *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
		return a.names(c, args, prefix, func(ctx context.Context) (names []string, err error) {
			infos, err := a.client.List(ctx, sandbox.ListOptions{Prefix: prefix, States: states})
			for _, i := range infos {
				names = append(names, i.Name)
			}
			return names, err
		})
	}
}

// defaults completes what choose takes of what sandboxes can be created from.
func (a *app) defaults(choose func(sandbox.Defaults) []string) cobra.CompletionFunc {
	return func(c *cobra.Command, _ []string, prefix string) ([]string, cobra.ShellCompDirective) {
		return a.names(c, nil, prefix, func(ctx context.Context) ([]string, error) {
			d, err := a.client.GetDefaults(ctx)
			return choose(d), err
		})
	}
}

// oneSandbox completes the first argument only.
func (a *app) oneSandbox(c *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
	return inTurn(a.sandboxes)(c, args, prefix)
}

// runtimes are the words for --runtime, with their images.
func runtimes(d sandbox.Defaults) (words []string) {
	for _, name := range slices.Sorted(maps.Keys(d.Runtimes)) {
		words = append(words, name+"\t"+d.Runtimes[name])
	}
	return words
}

// snapshots completes the IDs of snapshots, which a shell shows with their names, sandboxes and ages.
func (a *app) snapshots(c *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
	return a.names(c, args, prefix, func(ctx context.Context) (ids []string, err error) {
		all, err := a.client.ListSnapshots(ctx, sandbox.ListSnapshotsOptions{})
		for _, s := range all {
			ids = append(ids, s.ID+"\t"+strings.TrimSpace(fmt.Sprintf("%s of %s, %s", s.Name, s.Sandbox, ago(s.CreatedAt))))
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
