package main

import (
	"bytes"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/seed-1a2d6d8f/sandbox/internal/enginetest"
	"github.com/seed-1a2d6d8f/sandbox/test/harness"
)

// sessionLines are the calls of the session in docs/cli.md. DIRECTORY has two files, and SNAPSHOT is the ID
// that the snapshot has got.
var sessionLines = [][]string{
	{"create", "--name", "build", "--from", "DIRECTORY", "--network", "deny-all"},
	{"exec", "build", "--", "ls"},
	{"exec", "build", "--", "node", "app.js"},
	{"list", "--prefix", "build"},
	{"snapshot", "create", "--name", "tested", "build"},
	{"exec", "build", "--", "rm", "app.js"},
	{"exec", "build", "--", "node", "-e", "fetch('http://192.0.2.1').catch(e => console.log(e.cause.code))"},
	{"egress", "build"},
	{"rollback", "build", "SNAPSHOT"},
	{"exec", "build", "--", "ls"},
	{"fork", "build", "--name", "build-2"},
	{"update", "--port", "8080", "--tag", "team=a", "build"},
	{"network", "build"},
	{"snapshot", "list", "--sandbox", "build"},
	{"exec", "build", "--", "no-such-program"},
	{"stop", "build", "build-2"},
	{"list", "--format", "{{.Name}}: {{.State}}", "--prefix", "build"},
	{"lst"},
	{"delete", "--delete-volumes", "build", "build-2"},
	{"snapshot", "delete", "SNAPSHOT"},
}

// The session in docs/cli.md is what the program prints; -update writes it.
func TestSessionOfTheDocumentation(t *testing.T) {
	enginetest.Need(t)
	t.Parallel()
	name := harness.UniqueName(t)
	removeAtEnd(t, name, name+"-2")
	dir := harness.HostDir(t, map[string]string{"app.js": "console.log('it works')\n", "package.json": "{}\n"})
	snapshot := ""
	var got strings.Builder
	var ids []string // and what is written instead
	for _, line := range sessionLines {
		real := slices.Clone(line)
		for i := range real {
			real[i] = strings.NewReplacer("DIRECTORY", dir, "SNAPSHOT", snapshot).Replace(regexp.MustCompile(`^build`).ReplaceAllString(real[i], name))
		}
		noteFlags(real)
		var out bytes.Buffer
		run(t.Context(), real, strings.NewReader(""), &out, &out)
		if line[0] == "snapshot" && line[1] == "create" {
			snapshot = strings.TrimSpace(out.String()[strings.LastIndex(strings.TrimSpace(out.String()), "\n")+1:])
			removeSnapshotAtEnd(t, snapshot)
			ids = append(ids, snapshot, "c5k2mwq7ztxa")
		}
		switch line[0] {
		case "create":
			ids = append(ids, details(t, name).ID, "h3vbn6r2yqle")
		case "fork":
			ids = append(ids, details(t, name+"-2").ID, "p7sdj4f5ouwi")
		}
		fmt.Fprintf(&got, "    $ sandbox %s\n", shellLine(real))
		for text := range strings.Lines(out.String()) {
			if !regexp.MustCompile(`^sandbox: (copy|source|image|commit)`).MatchString(text) { // how far a step is
				got.WriteString("    " + text)
			}
		}
	}
	text := strings.NewReplacer(append(ids, name, "build", dir, "app")...).Replace(got.String())
	text = regexp.MustCompile(`\b\d+[smh]( ago)?\b`).ReplaceAllString(text, "2s$1")
	text = regexp.MustCompile(`(\S) {2,}`).ReplaceAllString(text, "$1  ") // columns are as wide as the names
	const file, begin, end = "../../docs/cli.md", "<!-- session, written by a test -->\n\n", "\n<!-- end of the session -->"
	doc, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, found := strings.Cut(string(doc), begin)
	want, after, ended := strings.Cut(rest, end)
	if !found || !ended {
		t.Fatalf("%s has no session", file)
	}
	if *update {
		if err := os.WriteFile(file, []byte(before+begin+text+end+after), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if diff := cmp.Diff(want, text); diff != "" {
		t.Errorf("go test ./cmd/sandbox -run TestSession -update rewrites the session in %s, which differs (-want +got):\n%s", file, diff)
	}
}

// shellLine is a call as one writes it in a shell.
func shellLine(args []string) string {
	words := make([]string, len(args))
	for i, arg := range args {
		switch words[i] = arg; {
		case strings.Contains(arg, "'"):
			words[i] = `"` + arg + `"`
		case strings.ContainsAny(arg, " {"):
			words[i] = "'" + arg + "'"
		}
	}
	return strings.Join(words, " ")
}
