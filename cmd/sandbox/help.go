package main

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// addGroups adds the verbs to the root, by subject.
func (a *app) addGroups(root *cobra.Command) {
	for _, g := range []struct {
		title string
		verbs []*cobra.Command
	}{
		{"Sandboxes", []*cobra.Command{a.createCommand(), a.runCommand(), a.listCommand(), a.describeCommand(), a.inspectCommand(),
			a.startCommand(), a.stopCommand(), a.updateCommand(), a.networkCommand(), a.deleteCommand()}},
		{"Commands and files", []*cobra.Command{a.execCommand(), a.shellCommand(), a.processesCommand(), a.killCommand(), a.logsCommand(), a.cpCommand(),
			a.proxyCommand(), a.sshConfigCommand()}},
		{"Snapshots and forks", []*cobra.Command{a.forkCommand(), a.snapshotCommand(), a.rollbackCommand()}},
		{"Usage and events", []*cobra.Command{a.topCommand(), a.egressCommand(), a.watchCommand()}},
		{"Volumes and engine", []*cobra.Command{a.volumeCommand(), a.nodeCommand(), a.moveCommand(), a.healthCommand(), a.pruneCommand(), a.conformCommand()}},
		{"Serving", []*cobra.Command{a.serveCommand(), a.mcpCommand()}},
		{"This program", []*cobra.Command{a.versionCommand()}},
	} {
		root.AddGroup(&cobra.Group{ID: g.title, Title: g.title + ":"})
		for _, c := range g.verbs {
			c.GroupID = g.title
			root.AddCommand(c)
		}
		root.SetHelpCommandGroupID(g.title) // the last one stays
		root.SetCompletionCommandGroupID(g.title)
	}
	root.SetUsageFunc(usage)
	exemplify(root)
}

// exemplify gives a command and those below it their examples.
func exemplify(c *cobra.Command) {
	if text := strings.Trim(examples[c.CommandPath()], "\n"); text != "" {
		c.Example = "  " + strings.ReplaceAll(text, "\n", "\n  ")
	}
	for _, sub := range c.Commands() {
		exemplify(sub)
	}
}

// usage prints the part of a command's help that follows its description.
func usage(c *cobra.Command) error {
	var b strings.Builder
	b.WriteString("Usage:\n")
	if c.Runnable() && !isGroup(c) {
		fmt.Fprintf(&b, "  %s\n", c.UseLine())
	}
	if c.HasAvailableSubCommands() {
		fmt.Fprintf(&b, "  %s [command]\n", c.CommandPath())
	}
	if len(c.Aliases) > 0 {
		fmt.Fprintf(&b, "\nAliases:\n  %s\n", c.NameAndAliases())
	}
	if c.HasExample() {
		fmt.Fprintf(&b, "\nExamples:\n%s\n", c.Example)
	}
	if c.HasAvailableSubCommands() {
		b.WriteString(verbsText(c))
	}
	if c.HasAvailableLocalFlags() {
		b.WriteString(flagsText(c.LocalFlags(), "Flags", c.Annotations[annotationSubjects] != ""))
	}
	if c.HasAvailableInheritedFlags() {
		b.WriteString(flagsText(c.InheritedFlags(), "Global Flags", false))
	}
	if c.HasAvailableSubCommands() {
		fmt.Fprintf(&b, "\nUse %q for more information about a command.\n", c.CommandPath()+" [command] --help")
	}
	_, err := fmt.Fprint(c.OutOrStderr(), b.String())
	return err
}

// verbsText lists the subcommands, by group if there are groups.
func verbsText(c *cobra.Command) string {
	var b strings.Builder
	list := func(title, group string) {
		fmt.Fprintf(&b, "\n%s\n", title)
		for _, sub := range c.Commands() {
			if sub.GroupID == group && (sub.IsAvailableCommand() || sub.Name() == "help") {
				fmt.Fprintf(&b, "  %-*s %s\n", sub.NamePadding(), sub.Name(), sub.Short)
			}
		}
	}
	for _, g := range c.Groups() {
		list(g.Title, g.ID)
	}
	if len(c.Groups()) == 0 {
		list("Commands:", "")
	}
	return b.String()
}

// annotationSubjects is that of commands whose help has the flags by subject.
const annotationSubjects = "subjects"

func bySubject(c *cobra.Command) { c.Annotations = map[string]string{annotationSubjects: "yes"} }

// subjects has the order of the flags in the help of commands with many.
var subjects = []struct {
	title string
	flags []string
}{
	{"Image and limits", []string{"image", "runtime", "oci-runtime", "vcpus", "memory", "pids-limit", "storage", "gpus"}},
	{"Workspace and mounts", []string{"git", "revision", "depth", "tarball", "strip", "from", "snapshot", "mount", "volume", "without-mount", "remote-mounts", "yes"}},
	{"Commands", []string{"interactive", "tty", "env", "without-env", "user", "workdir"}},
	{"Network", []string{"network", "port"}},
	{"Lifetime", []string{"persistent", "timeout", "idle-timeout", "stop-timeout"}},
	{"Names, tags and place", []string{"name", "count", "tag", "without-tag", "placement"}},
}

// flagsText lists flags below a title, or by subject, and the rest below the title.
func flagsText(flags *pflag.FlagSet, title string, bySubject bool) string {
	parts := []struct {
		title string
		flags []*pflag.Flag
	}{}
	all := pflag.NewFlagSet("", pflag.ContinueOnError)
	all.SortFlags = false
	add := func(title string, choose func(*pflag.Flag) bool) {
		var chosen []*pflag.Flag
		flags.VisitAll(func(f *pflag.Flag) {
			if !f.Hidden && all.Lookup(f.Name) == nil && choose(f) {
				chosen = append(chosen, f)
			}
		})
		if len(chosen) == 0 {
			return
		}
		parts = append(parts, struct {
			title string
			flags []*pflag.Flag
		}{title, chosen})
		for _, f := range chosen {
			all.AddFlag(forPeople(f))
		}
	}
	if bySubject {
		for _, s := range subjects {
			add(s.title, func(f *pflag.Flag) bool { return slices.Contains(s.flags, f.Name) })
		}
	}
	add(title, func(*pflag.Flag) bool { return true })
	// All are laid out together, so that all parts have the same columns.
	lines := strings.SplitAfter(all.FlagUsages(), "\n")
	var b strings.Builder
	for _, p := range parts {
		fmt.Fprintf(&b, "\n%s:\n", p.title)
		for range p.flags {
			b.WriteString(lines[0])
			lines = lines[1:]
			for len(lines) > 0 && strings.HasPrefix(lines[0], strings.Repeat(" ", 8)) { // the text goes on
				b.WriteString(lines[0])
				lines = lines[1:]
			}
		}
	}
	return b.String()
}

// values has the names of the flags' values in the help. Others are named by their type.
var values = map[string]string{
	"allow-host": "NAME", "command": "ID", "env": "KEY[=VALUE]", "from": "DIRECTORY", "git": "URL", "host": "ADDRESS", "image": "IMAGE", "listen": "ADDRESS",
	"gpus": "GPU,…", "mount": "SOURCE:TARGET[:MODE]", "name": "NAME", "network": "POLICY", "oci-runtime": "NAME", "only": "PART", "placement": "CONSTRAINT", "policy": "POLICY",
	"pool": "IMAGE=N", "port": "PORT", "prefix": "PREFIX", "preview-domain": "DOMAIN", "revision": "REVISION", "role": "ROLE", "runtime": "RUNTIME",
	"sandbox": "NAME", "signal": "SIGNAL", "since": "TIME", "snapshot": "ID", "socket": "PATH", "source-address": "PREFIX", "status": "STATUS", "tag": "KEY=VALUE",
	"tarball": "ARCHIVE", "token-file": "FILE", "trusted-proxy": "PREFIX", "user": "USER[:GROUP]", "volume": "NAME:TARGET[:MODE]", "without-env": "KEY", "without-mount": "TARGET",
	"without-tag": "KEY", "workdir": "DIRECTORY",
}

// kinds has the names of values by their types.
var kinds = map[string]string{"bool": "bool", "duration": "DURATION", "float64": "N", "int": "N", "lines": "N", "size": "SIZE", "template": "TEMPLATE"}

// forPeople is a flag as the help shows it.
func forPeople(f *pflag.Flag) *pflag.Flag {
	shown := *f
	kind := f.Value.Type()
	name := kinds[kind]
	if name == "" || kind != "bool" && kind != "duration" && kind != "size" && values[f.Name] != "" {
		name = values[f.Name]
	}
	if kind == "int" {
		name = "N"
	}
	shown.Value = kindOf{f.Value, cmp.Or(name, kind)}
	shown.DefValue = strings.Trim(f.DefValue, "[]") // of lists
	return &shown
}

// kindOf is a flag's value whose type has another name.
type kindOf struct {
	pflag.Value
	kind string
}

func (k kindOf) Type() string { return k.kind }
