package main

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// otherVerbs has what to write instead of verbs that other programs have.
var otherVerbs = map[string]string{
	"attach": "sandbox logs --follow", "bash": "sandbox shell", "checkpoint": "sandbox snapshot create", "clone": "sandbox fork", "commit": "sandbox snapshot create",
	"df": "sandbox volume list", "events": "sandbox watch", "image": "docker image", "images": "docker images", "info": "sandbox health", "new": "sandbox create",
	"nodes": "sandbox node list", "port": "sandbox describe", "pull": "docker pull", "restart": "sandbox stop, and sandbox start", "restore": "sandbox rollback",
	"rmi": "docker rmi", "sh": "sandbox shell", "snapshots": "sandbox snapshot list", "ssh": "sandbox shell", "stats": "sandbox top", "tree": "sandbox snapshot tree",
	"volumes": "sandbox volume list",
}

// suggestion names the subcommand that was probably meant, after a semicolon.
func suggestion(c *cobra.Command, arg string) string {
	if other := otherVerbs[arg]; other != "" && !c.HasParent() {
		return fmt.Sprintf("; did you mean %q?", other)
	}
	best, distance := "", 3
	for _, sub := range c.Commands() {
		if sub.Name() == arg || sub.HasAlias(arg) {
			return "; write it without -- before it"
		}
		if !sub.IsAvailableCommand() {
			continue
		}
		for _, word := range append([]string{sub.Name()}, sub.Aliases...) {
			d := edits(arg, word)
			if len(arg) > 1 && strings.HasPrefix(word, arg) {
				d = 0
			}
			if d < min(distance, len(word)) {
				best, distance = word, d
			}
		}
	}
	if best == "" {
		return ""
	}
	return fmt.Sprintf("; did you mean %q?", best)
}

// edits is how many characters have to be added, removed or changed to make b of a.
func edits(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		last := row[0] // of the row before
		row[0] = i + 1
		for j := range len(b) {
			change := last
			if a[i] != b[j] {
				change++
			}
			last = row[j+1]
			row[j+1] = min(change, last+1, row[j]+1)
		}
	}
	return row[len(b)]
}

// otherFlags has what to write instead of flags of docker's. Those that do not begin with a dash are said
// by any command.
var otherFlags = map[string]string{
	"cpus": "--vcpus", "d": "sandbox create, or sandbox exec --detach", "detach": "sandbox create, or sandbox exec --detach", "h": "--help", "hostname": "--name",
	"l": "--tag", "label": "--tag", "m": "--memory", "n": "--tail", "net": "--network", "p": "--port", "publish": "--port", "v": "--mount, or --volume",
}

// flagError names the flag that was probably meant.
func flagError(c *cobra.Command, err error) error {
	unknown, is := errors.AsType[*pflag.NotExistError](err)
	if !is {
		return err
	}
	name := unknown.GetSpecifiedName()
	other := otherFlags[name]
	if first, _, _ := strings.Cut(other, ","); strings.HasPrefix(first, "--") && c.Flags().Lookup(first[2:]) == nil {
		other = ""
	}
	distance := min(3, len(name)) // a flag of one letter is like none
	c.Flags().VisitAll(func(f *pflag.Flag) {
		if d := edits(name, f.Name); otherFlags[name] == "" && !f.Hidden && d < distance {
			other, distance = "--"+f.Name, d
		}
	})
	if other == "" {
		return err
	}
	return fmt.Errorf("%w; did you mean %s?", err, other)
}
