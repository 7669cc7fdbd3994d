package examples_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/seed-1a2d6d8f/sandbox/internal/enginetest"
)

const root = "../.."

var (
	workflow = regexp.MustCompile("(?ms)^```yaml\n(.*?)^```$")
	step     = regexp.MustCompile(`(?m)^ +- run: (.+)$`)
	install  = regexp.MustCompile(`^go install github\.com/seed-1a2d6d8f/sandbox/(\S+)@latest$`)
)

// The steps of the workflows in docs/ci.md work, in a project that has tests of npm and of Go.
func TestStepsOfTheWorkflowsRun(t *testing.T) {
	enginetest.Need(t)
	t.Parallel()
	text, err := os.ReadFile(root + "/docs/ci.md")
	if err != nil {
		t.Fatal(err)
	}
	workflows := workflow.FindAllSubmatch(text, -1)
	if len(workflows) < 2 {
		t.Fatalf("docs/ci.md has %d workflows: does the test still see them?", len(workflows))
	}
	bin, project := t.TempDir(), projectOf(t)
	for _, w := range workflows {
		steps := step.FindAllStringSubmatch(string(w[1]), -1)
		if len(steps) < 2 || len(steps) != strings.Count(string(w[1]), "run:") {
			t.Errorf("a workflow has %d steps that run something, want each in a line of its own:\n%s", len(steps), w[1])
		}
		for _, s := range steps {
			line := s[1]
			if program := install.FindStringSubmatch(line); program != nil { // of this tree
				line = "cd " + absolute(t, root) + " && go build -o " + bin + " ./" + program[1]
			}
			cmd := exec.CommandContext(t.Context(), "bash", "-euo", "pipefail", "-c", line)
			cmd.Dir = project
			cmd.Env = append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"), "GOFLAGS=-mod=mod")
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Fatalf("%s: %v\n%s", s[1], err, out)
			}
		}
	}
	if _, err := os.Stat(filepath.Join(project, "artifacts")); err != nil {
		t.Error(err)
	}
}

// projectOf returns a project with a test of npm and one of Go, which uses sandboxtest of this tree.
func projectOf(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	module, err := os.ReadFile(root + "/go.mod")
	if err != nil {
		t.Fatal(err)
	}
	sums, err := os.ReadFile(root + "/go.sum")
	if err != nil {
		t.Fatal(err)
	}
	own := strings.Replace(string(module), "module github.com/seed-1a2d6d8f/sandbox\n", "module example.com/project\n", 1) +
		"\nrequire github.com/seed-1a2d6d8f/sandbox v0.0.0\n\nreplace github.com/seed-1a2d6d8f/sandbox => " + absolute(t, root) + "\n"
	for name, content := range map[string]string{
		"package.json":      `{"name": "project", "version": "1.0.0", "scripts": {"test": "node -e 'process.exit(6*7 == 42 ? 0 : 1)'"}}`,
		"package-lock.json": `{"name": "project", "version": "1.0.0", "lockfileVersion": 3, "packages": {"": {"name": "project", "version": "1.0.0"}}}`,
		"go.mod":            own,
		"go.sum":            string(sums),
		"report_test.go": `package project

import (
	"testing"

	"github.com/seed-1a2d6d8f/sandbox/sandboxtest"
)

func TestReport(t *testing.T) {
	sb := sandboxtest.New(t)
	if got := sandboxtest.Run(t, sb, "node", "-p", "6*7"); got != "42\n" {
		t.Errorf("node -p 6*7 = %q, want 42", got)
	}
}
`,
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func absolute(t *testing.T, path string) string {
	t.Helper()
	abs, err := filepath.Abs(path)
	if err != nil {
		t.Fatal(err)
	}
	return abs
}
