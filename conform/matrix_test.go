package conform_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/seed-1a2d6d8f/sandbox/conform"
)

var update = flag.Bool("update", false, "write docs/engines.md")

const (
	reports = "../docs/engines/*.json" // ci/engines writes them
	table   = "../docs/engines.md"
)

// A reason begins with the sandbox's name, which differs.
var named = regexp.MustCompile(`^.*"conform-[^"]*": `)

// The table in docs/engines.md has what the reports say, and no report says that something is broken or
// was not tried.
func TestMatrix(t *testing.T) {
	files, err := filepath.Glob(reports)
	if err != nil || len(files) == 0 {
		t.Fatalf("no reports: %v", err)
	}
	slices.Sort(files)
	names := make([]string, len(files))
	cells := map[string][]string{}
	var engines, notes bytes.Buffer
	numbers := map[string]int{}
	for i, file := range files {
		names[i] = strings.TrimSuffix(filepath.Base(file), ".json")
		var r conform.Report
		b, err := os.ReadFile(file)
		if err == nil {
			err = json.Unmarshal(b, &r)
		}
		if err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		e := r.Engine
		fmt.Fprintf(&engines, "| %s | %s | %s | %s | %s |\n", names[i], e.Version, e.APIVersion, e.StorageDriver, e.Kernel)
		for _, result := range r.Results {
			if result.Outcome == conform.Broken || result.Outcome == conform.NotRun {
				t.Errorf("%s: %s: %s: %s", names[i], result.Check, result.Outcome, result.Reason)
			}
			cell := string(result.Outcome)
			if result.Reason != "" {
				reason := named.ReplaceAllString(result.Reason, "")
				if numbers[reason] == 0 {
					numbers[reason] = len(numbers) + 1
					fmt.Fprintf(&notes, "%d. %s\n", numbers[reason], strings.ReplaceAll(reason, "\n", " "))
				}
				cell += fmt.Sprintf(" (%d)", numbers[reason])
			}
			for len(cells[result.Check]) < i {
				cells[result.Check] = append(cells[result.Check], "")
			}
			cells[result.Check] = append(cells[result.Check], cell)
		}
	}
	var b bytes.Buffer
	b.WriteString("# Engines\n\nWhat `sandbox conform` found on each engine. `ci/engines` makes the reports in docs/engines, and\n" +
		"`go test ./conform -run TestMatrix -update` this page from them.\n\n")
	fmt.Fprintf(&b, "| | %s |\n|---|%s\n", strings.Join(names, " | "), strings.Repeat("---|", len(names)))
	for _, check := range conform.Checks() {
		row := cells[check]
		for len(row) < len(names) {
			row = append(row, "")
		}
		if slices.Contains(row, "") {
			t.Errorf("%q is not in every report: run ci/engines", check)
		}
		fmt.Fprintf(&b, "| %s | %s |\n", check, strings.Join(row, " | "))
	}
	fmt.Fprintf(&b, "\n%s\n| engine | version | API | storage driver | kernel |\n|---|---|---|---|---|\n%s", notes.String(), engines.String())
	if *update {
		if err := os.WriteFile(table, b.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := os.ReadFile(table); err != nil || !bytes.Equal(got, b.Bytes()) {
		t.Errorf("%s differs from the reports (%v): go test ./conform -run TestMatrix -update", table, err)
	}
}
