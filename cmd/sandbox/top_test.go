package main

import (
	"bytes"
	"context"
	"encoding/json"
	"strings"
	"testing"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/internal/enginetest"
	"github.com/seed-1a2d6d8f/sandbox/test/harness"
)

// top prints what runs, and on a terminal does so until it is interrupted.
func TestTopPrintsWhatRuns(t *testing.T) {
	enginetest.Need(t)
	t.Parallel()
	name, stopped := harness.UniqueName(t), harness.UniqueName(t)+"-s"
	removeAtEnd(t, name, stopped)
	mustCall(t, "create", "--name", name, "--tag", "top="+name)
	mustCall(t, "create", "--name", stopped, "--tag", "top="+name)
	mustCall(t, "stop", stopped)
	out := mustCall(t, "top", "--once", "--tag", "top="+name)
	lines := strings.Split(strings.TrimSpace(out), "\n")
	if len(lines) != 2 || !strings.HasPrefix(lines[0], "NAME ") || !strings.HasPrefix(lines[1], name+" ") || !strings.Contains(lines[1], "2.0 GB") {
		t.Errorf("top = %q, want %s alone and its limit", out, name)
	}
	var row usageRow
	out = mustCall(t, "top", "--json", "--prefix", name)
	if err := json.Unmarshal([]byte(out), &row); err != nil || row.Name != name || row.ID == "" || row.MemoryBytes == 0 || row.Processes == 0 {
		t.Errorf("top --json = %q, %v", out, err)
	}

	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	screen := &frames{enough: cancel}
	noteFlags([]string{"top", "--interval", "1ms"})
	a := newApp(strings.NewReader(""), screen, screen)
	a.interactive = func(any) bool { return true }
	if code := a.run(ctx, []string{"top", "--interval", "1ms", "--prefix", name}); code != codeInterrupted || screen.seen < 3 {
		t.Errorf("top on a terminal: code %d after %d tables, want %d when it is interrupted", code, screen.seen, codeInterrupted)
	}
}

// frames is a screen that calls enough when it was cleared three times.
type frames struct {
	seen   int
	enough func()
}

func (f *frames) Write(p []byte) (int, error) {
	if f.seen += bytes.Count(p, []byte("\x1b[2J")); f.seen >= 3 {
		f.enough()
	}
	return len(p), nil
}

// What a machine has is printed for people, and in JSON as numbers.
func TestHealthIsForPeople(t *testing.T) {
	t.Parallel()
	rows := healthRows(sandbox.Health{Healthy: true, Memory: 8 << 30, CPUs: 2}, sandbox.Support{Runtimes: []string{"runc", "runsc"}})
	for label, want := range map[string]string{"Healthy": "yes", "Memory": "8.0 GB", "CPUs": "2", "OCI runtimes": "runc, runsc", "Rootless": "no"} {
		for _, r := range rows {
			if r.label == label && r.text() != want {
				t.Errorf("%s is %q, want %q", label, r.text(), want)
			}
		}
	}
}
