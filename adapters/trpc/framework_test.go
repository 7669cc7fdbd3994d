package trpc_test

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	_ "github.com/stretchr/testify/require" // the framework's tests import it

	"github.com/seed-1a2d6d8f/sandbox/internal/enginetest"
)

// notOurs are the framework's tests of what ours does not do, see docs/agents.md.
var notOurs = map[string]string{
	"TestRuntime_CreateWorkspace_TrustedLocal_ReusesRoot":              "workspaces at a path of the caller's",
	"TestRuntime_CreateWorkspace_TrustedLocal_RelativeRoot_AutoInputs": "workspaces at a path of the caller's",
	"TestRuntime_CreateWorkspace_TrustedLocal_RepairsCorruptMetadata":  "workspaces at a path of the caller's",
	"TestRuntime_CreateWorkspace_AutoInputsHost":                       "a directory that all workspaces link to",
	"TestRuntime_StageInputs_ArtifactAndLinks":                         "links to files of this machine",
	"TestRuntime_ExecuteInline_PythonOrSkip":                           "the image has no Python",
	"TestRuntime_StageInputs_HostLink_ReplacesExisting":                "links to files of this machine",
	"TestRuntime_CollectOutputs_BrokenSymlinkErrors":                   "a link that leads nowhere fails a collection",
}

// The framework's own tests of its local workspaces, of the version in go.mod, with package local in place
// of the framework's. Nothing of them is kept here.
func TestFrameworksTests(t *testing.T) {
	enginetest.Need(t)
	t.Parallel()
	const theirs, ours = "trpc.group/trpc-go/trpc-agent-go/codeexecutor/local", "github.com/seed-1a2d6d8f/sandbox/adapters/trpc/internal/local"
	dir := strings.TrimSpace(string(output(t, "go", "list", "-f", "{{.Dir}}", theirs)))
	here, err := filepath.Abs("internal/local")
	if err != nil {
		t.Fatal(err)
	}
	tmp := t.TempDir()
	replace := map[string]string{}
	add := func(name, text string) {
		if err := os.WriteFile(filepath.Join(tmp, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		replace[filepath.Join(here, name)] = filepath.Join(tmp, name)
	}
	add("main_test.go", "package local_test\n\nimport (\n\t\"testing\"\n\n\t\""+ours+"\"\n)\n\nfunc TestMain(m *testing.M) { local.Main(m) }\n")
	for _, name := range []string{"workspace_runtime_test.go", "workspace_inputs_test.go"} {
		text, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		add(name, strings.ReplaceAll(string(text), `"`+theirs+`"`, `"`+ours+`"`))
	}
	overlay, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(tmp, "overlay.json"), overlay, 0o600); err != nil {
		t.Fatal(err)
	}
	out, _ := exec.CommandContext(t.Context(), "go", "test", "-overlay", filepath.Join(tmp, "overlay.json"), "-vet=off", "-ldflags=-w", "-json", "-count=1", "./internal/local").Output()
	passed, results := 0, map[string]string{}
	text := map[string]string{}
	for line := range bytes.Lines(out) {
		var e struct{ Action, Test, Output string }
		if err := json.Unmarshal(line, &e); err != nil {
			t.Logf("%s", line)
			continue
		}
		text[e.Test] += e.Output
		switch e.Action {
		case "pass", "fail", "skip":
			results[e.Test] = e.Action
		}
	}
	for name, result := range results {
		_, not := notOurs[name]
		switch {
		case name == "":
		case result == "pass" && !not:
			passed++
		case result != "fail" || !not:
			t.Errorf("%s: %s\n%s", name, result, text[name])
		}
	}
	if passed < 60 || passed+len(notOurs) != len(results)-1 {
		t.Errorf("%d of the framework's tests pass, %d of %d are not for ours:\n%s", passed, len(notOurs), len(results)-1, text[""])
	}
}

func output(t *testing.T, argv ...string) []byte {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), argv[0], argv[1:]...).Output()
	if err != nil {
		t.Fatalf("%q: %v", argv, err)
	}
	return out
}
