package main

import (
	"bytes"
	"strings"
	"testing"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/internal/enginetest"
	"github.com/seed-1a2d6d8f/sandbox/test/harness"
)

// A template has the fields of the library's types, and what it prints can't control the terminal.
func TestFormatsAreTemplates(t *testing.T) {
	t.Parallel()
	infos := []sandbox.Info{{Name: "a", State: sandbox.StateRunning, Tags: map[string]string{"k": "v"}}, {Name: "b\x1b[2J"}}
	for text, want := range map[string]string{
		"{{.Name}}\t{{.State}}": "a\trunning\nb\\x1b[2J\t\n",
		"{{index .Tags `k`}}":   "v\n\n",
		"{{json .Tags}}":        `{"k":"v"}` + "\nnull\n",
		"{{size 2048}}":         "2.0 KB\n2.0 KB\n",
		"{{.None}}":             "usage",
	} {
		var f format
		if err := f.Set(text); err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		err := printFormatted(&out, f, infos)
		got := out.String()
		if _, wrong := err.(usageError); wrong {
			got = "usage"
		} else if err != nil {
			got = err.Error()
		}
		if got != want {
			t.Errorf("--format %s = %q, want %q", text, got, want)
		}
	}
	for _, args := range [][]string{{"list", "--format", "{{"}, {"list", "--json", "--format", "json"}, {"inspect", "--format", "{{nothing}}", "a"}} {
		if code, _, errOut := call(t.Context(), "", append([]string{"-H", "unix:///nowhere.sock"}, args...)...); code != codeUsage || strings.Contains(errOut, "nowhere") {
			t.Errorf("%q: code %d, %q, want %d", args, code, errOut, codeUsage)
		}
	}
}

// Each list takes a template.
func TestListsTakeFormats(t *testing.T) {
	enginetest.Need(t)
	t.Parallel()
	name := harness.UniqueName(t)
	removeAtEnd(t, name)
	mustCall(t, "create", "--name", name)
	snapshot := strings.TrimSpace(mustCall(t, "snapshot", "create", name))
	removeSnapshotAtEnd(t, snapshot)
	command := strings.TrimSpace(mustCall(t, "exec", "--detach", name, "--", "sleep", "1000"))
	workspace := details(t, name).Workspace.Name
	for _, test := range []struct {
		want string // a line
		args []string
	}{
		{name + " running", []string{"list", "--prefix", name, "--format", "{{.Name}} {{.State}}"}},
		{workspace, []string{"inspect", name, "--format", "{{.Workspace.Name}}"}},
		{workspace, []string{"volume", "list", "--format", "{{.Name}}"}},
		{"", []string{"volume", "orphans", "--format", "{{with .Sandboxes}}{{.}}{{end}}"}},
		{snapshot + " " + name, []string{"snapshot", "list", "--sandbox", name, "--format", "{{.ID}} {{.Sandbox}}"}},
		{command + " sleep", []string{"processes", name, "--format", "{{.ID}} {{.Path}}"}},
		{"", []string{"egress", name, "--format", "{{.Name}}"}},
	} {
		out := mustCall(t, test.args...)
		if !strings.Contains("\n"+out, "\n"+test.want+"\n") && out != "" {
			t.Errorf("%q = %q, want the line %q", test.args, out, test.want)
		}
		if out == "" && test.want != "" {
			t.Errorf("%q prints nothing, want %q", test.args, test.want)
		}
	}
	if out := mustCall(t, "-q", "processes", name); out != command+"\n" {
		t.Errorf("processes --quiet = %q, want the ID", out)
	}
}
