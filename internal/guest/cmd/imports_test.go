//go:build linux

package main

import (
	"os"
	"os/exec"
	"path"
	"slices"
	"strings"
	"testing"
)

// below are the packages of this program, with those that each may import.
var below = map[string][]string{
	"proc":       {},
	"copytree":   {"proc"},
	"fileserver": {"proc"},
	"sftpserver": {"proc"},
	"egress":     {"proc"},
	"sshserver":  {"proc"},
	"pid1":       {"proc", "egress"},
}

func TestImportsRunOneWay(t *testing.T) {
	t.Parallel()
	cmd := exec.Command("go", "list", "-f", `{{.ImportPath}} {{join .Imports " "}}`, "./...")
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	const here = "/internal/guest/cmd/"
	seen := 0
	for line := range strings.Lines(string(out)) {
		f := strings.Fields(line)
		if !strings.Contains(f[0], here) {
			continue // main imports all
		}
		pkg := path.Base(f[0])
		may, ok := below[pkg]
		if !ok {
			t.Errorf("package %s is not in the table", pkg)
		}
		seen++
		for _, i := range f[1:] {
			if strings.Contains(i, here) && !slices.Contains(may, path.Base(i)) {
				t.Errorf("%s imports %s", pkg, path.Base(i))
			}
		}
	}
	if seen != len(below) {
		t.Errorf("%d packages, %d in the table", seen, len(below))
	}
}
