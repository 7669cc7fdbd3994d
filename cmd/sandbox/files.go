package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"strings"

	"github.com/spf13/cobra"

	"github.com/seed-1a2d6d8f/sandbox"
)

func (a *app) cpCommand() *cobra.Command {
	var (
		user   string
		asJSON bool
	)
	c := &cobra.Command{
		Use:   "cp SOURCE DESTINATION",
		Short: "Copy files into a sandbox or out of it: NAME:PATH is a path in a sandbox",
		Long: `Copy a file or a tree into a sandbox, or out of it. NAME:PATH is a path in a sandbox, relative to
/workspace unless it is absolute; write ./a:b for a file here whose name has a colon. A
DESTINATION that is a directory gets the copy under its own name, and so does one that ends with a
slash if SOURCE is a file; a directory becomes a DESTINATION that does not exist. Of a SOURCE that
is "." or ends with "/.", the contents are copied into DESTINATION, as by "docker cp".

To copy into a sandbox resumes it; a stopped one is read without resuming it.`,
		Args:              cobra.ExactArgs(2),
		ValidArgsFunction: a.paths,
		RunE: func(c *cobra.Command, args []string) error {
			fromName, from := splitPath(args[0])
			toName, to := splitPath(args[1])
			if strings.HasSuffix(from, "/..") {
				from = path.Clean(from) // it has the name of a directory
			}
			switch {
			case fromName == "" && from == "" || toName == "" && to == "":
				return usagef("cp: a path is empty")
			case fromName != "" && toName != "":
				return usagef("cp: one of the two must be a path of this machine")
			case fromName == "" && toName == "":
				return usagef("cp: neither %q nor %q is a path in a sandbox: write NAME:PATH", args[0], args[1])
			case fromName == "" && from == "-" || fromName != "" && to == "-":
				return usagef("cp: archives are not read from stdin or written to stdout: write ./- for a file of that name, or see sandbox exec NAME -- tar")
			case fromName != "" && isHome(from) || toName != "" && isHome(to):
				return usagef("cp: ~ is not expanded in a sandbox: write an absolute path, such as %s:/root, or NAME:./~ for a file of that name", cmp.Or(toName, fromName))
			case toName != "":
				return a.copying(c, asJSON, toName, user, func(f copier) (sandbox.CopyReport, error) {
					to := destination(from, to, os.Stat, func(name string) (fs.FileInfo, error) { return f.Stat(c.Context(), name) })
					return f.CopyIn(c.Context(), from, to, sandbox.CopyOptions{Progress: a.progress.copied})
				})
			}
			return a.copying(c, asJSON, fromName, user, func(f copier) (sandbox.CopyReport, error) {
				to := destination(from, to, func(name string) (fs.FileInfo, error) { return f.Stat(c.Context(), name) }, os.Stat)
				return f.CopyOut(c.Context(), from, to, sandbox.CopyOptions{Progress: a.progress.copied})
			})
		},
	}
	c.Flags().StringVarP(&user, "user", "u", "", "the user in the sandbox who reads or owns the files (default the sandbox's)")
	jsonFlag(c, &asJSON)
	return c
}

// destination returns where a copy goes: into a directory that exists, under the copy's name, but to itself if the contents of a
// directory are copied. What does not exist becomes the copy of a directory, as by docker cp, with or without a slash.
func destination(from, to string, statFrom, statTo func(string) (fs.FileInfo, error)) string {
	from = strings.TrimRight(from, "/")
	if contents := from == "." || strings.HasSuffix(from, "/."); contents {
		return cmp.Or(strings.TrimRight(to, "/"), to[:min(len(to), 1)])
	}
	if st, err := statTo(to); err == nil && st.IsDir() {
		return strings.TrimRight(to, "/") + "/"
	} else if errors.Is(err, fs.ErrNotExist) && strings.HasSuffix(to, "/") {
		if st, err := statFrom(from); err == nil && st.IsDir() {
			return strings.TrimRight(to, "/")
		}
	}
	return to
}

// copier is a sandbox, or its files as one of its users.
type copier interface {
	Stat(ctx context.Context, name string) (fs.FileInfo, error)
	CopyIn(ctx context.Context, hostPath, inside string, o sandbox.CopyOptions) (sandbox.CopyReport, error)
	CopyOut(ctx context.Context, inside, hostPath string, o sandbox.CopyOptions) (sandbox.CopyReport, error)
}

// splitPath splits NAME:PATH. The name is empty if s is a path of this machine.
func splitPath(s string) (name, inside string) {
	name, inside, ok := strings.Cut(s, ":")
	if !ok || strings.Contains(name, "/") || name == "" {
		return "", s
	}
	if inside == "" {
		inside = "."
	}
	return name, inside
}

// isHome reports whether a shell would expand the path to one in the home directory.
func isHome(path string) bool { return path == "~" || strings.HasPrefix(path, "~/") }

// copying calls fn with the sandbox's files, and says what the copy left out.
func (a *app) copying(c *cobra.Command, asJSON bool, name, user string, fn func(copier) (sandbox.CopyReport, error)) error {
	return a.withSandbox(c, name, func(sb *sandbox.Sandbox) error {
		var files copier = sb
		if user != "" {
			files = sb.FilesAs(user)
		}
		report, err := fn(files)
		a.leftOut(report)
		switch {
		case err != nil:
		case asJSON:
			err = printJSON(a.stdout, report)
		default:
			err = a.say("copied %s and %s, %s", count(report.Files, "file"), count(report.Directories, "directory"), bytesText(report.Bytes))
		}
		return err
	})
}

// count is a number of things, for people.
func count(n int64, what string) string {
	switch {
	case n == 1:
	case strings.HasSuffix(what, "y"):
		what = strings.TrimSuffix(what, "y") + "ies"
	case strings.HasSuffix(what, "s"), strings.HasSuffix(what, "x"):
		what += "es"
	default:
		what += "s"
	}
	return fmt.Sprintf("%d %s", n, what)
}

// leftOut says on stderr what a copy left out or changed.
func (a *app) leftOut(report sandbox.CopyReport) {
	a.progress.clear()
	for _, note := range report.Skipped {
		fmt.Fprintln(a.stderr, "sandbox: left out or changed:", graphic(note.String()))
	}
	if report.More > 0 {
		fmt.Fprintf(a.stderr, "sandbox: left out or changed: %d more\n", report.More)
	}
}
