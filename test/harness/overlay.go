package harness

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// GoRoot is the directory of Go's own sources, such as "src/os".
func GoRoot(t *testing.T, dir string) string {
	t.Helper()
	root, err := exec.CommandContext(t.Context(), "go", "env", "GOROOT").Output()
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Join(strings.TrimSpace(string(root)), dir)
}

// PassesWith runs the tests of a package below this directory as if it had these files, too, and fails
// unless each test of ran passes.
func PassesWith(t *testing.T, dir string, files map[string][]byte, ran []string, env ...string) {
	t.Helper()
	here, err := filepath.Abs(dir)
	if err != nil {
		t.Fatal(err)
	}
	tmp, replace := t.TempDir(), map[string]string{}
	for name, text := range files {
		file := filepath.Join(tmp, name)
		if err := os.WriteFile(file, text, 0o644); err != nil {
			t.Fatal(err)
		}
		replace[filepath.Join(here, name)] = file
	}
	overlay, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(tmp, "overlay"), overlay, 0o644); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "go", "test", "-count=1", "-v", "-overlay="+filepath.Join(tmp, "overlay"), "./"+dir)
	cmd.Env = append(append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS="), env...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	for _, name := range ran {
		if !bytes.Contains(out, []byte("--- PASS: "+name+" ")) {
			t.Errorf("%s did not pass", name)
		}
	}
}
