package conform_test

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io/fs"
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
	reports  = "../docs/engines/*.json" // ci/engines writes them
	volatile = "../docs/engines/docker-28-gvisor.default"
	table    = "../docs/engines.md"

	notMeasured = "not measured"
	notTried    = "not tried"
)

// figures are the benchmarks that ci/engines runs on each engine.
var figures = []string{"create_vs_floor", "exec_true_vs_engine_exec", "fork_small_vs_create", "fork_pause_vs_engine_pause", "fork_pause_ms"}

// areas are the rows of the short table, each with what its checks' names begin with.
var areas = []struct {
	name   string
	checks []string
}{
	{"create, list, delete", []string{"create", "get or create", "list", "delete"}},
	{"commands, main process", []string{"commands", "main process"}},
	{"files", []string{"files"}},
	{"volumes", []string{"volumes"}},
	{"stop and resume, timeouts", []string{"stop", "timeout", "connection"}},
	{"forks, snapshots, rollback", []string{"fork", "three forks", "snapshot", "rollback", "prune"}},
	{"updates", []string{"update"}},
	{"limits", []string{"limits"}},
	{"ports", []string{"ports"}},
	{"network policies", []string{"network"}},
	{"a small surface of the kernel", []string{"kernel"}},
}

// untried are checks that are newer than an engine's report. The next ci/engines tries them.
var untried = map[string][]string{}

// areaOf returns the index of the area that a check is in.
func areaOf(check string) int {
	return slices.IndexFunc(areas, func(a struct {
		name   string
		checks []string
	}) bool {
		return slices.ContainsFunc(a.checks, func(prefix string) bool { return strings.HasPrefix(check, prefix) })
	})
}

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
	measured := map[string][]string{}
	compact := make([][]string, len(areas))
	kernels := make([][]conform.KernelCall, len(files))
	for i, file := range files {
		names[i] = strings.TrimSuffix(filepath.Base(file), ".json")
		r := reportOf(t, file)
		e := r.Engine
		kernels[i] = r.Kernel
		works, all := make([]int, len(areas)), make([]int, len(areas))
		for _, result := range r.Results {
			area := areaOf(result.Check)
			if area < 0 {
				t.Fatalf("%q is in no row of the short table", result.Check)
			}
			if all[area]++; result.Outcome == conform.Works {
				works[area]++
			}
		}
		for area := range areas {
			cell := fmt.Sprintf("%d of %d", works[area], all[area])
			if all[area] == 0 {
				cell = notTried
			} else if works[area] == all[area] {
				cell = "yes"
			} else if works[area] == 0 {
				cell = "no"
			}
			compact[area] = append(compact[area], cell)
		}
		values := benchOf(t, strings.TrimSuffix(file, ".json")+".bench")
		for _, f := range figures {
			measured[f] = append(measured[f], cmp.Or(values[f], notMeasured))
		}
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
	b.WriteString("In number of checks:\n\n")
	fmt.Fprintf(&b, "| | %s |\n|---|%s\n", strings.Join(names, " | "), strings.Repeat("---|", len(names)))
	for i, area := range areas {
		fmt.Fprintf(&b, "| %s | %s |\n", area.name, strings.Join(compact[i], " | "))
	}
	b.WriteString("\nEvery check, with the reasons of refusals below:\n\n")
	fmt.Fprintf(&b, "| | %s |\n|---|%s\n", strings.Join(names, " | "), strings.Repeat("---|", len(names)))
	for _, check := range conform.Checks() {
		row := cells[check]
		for len(row) < len(names) {
			row = append(row, "")
		}
		for i, cell := range row {
			if missing := slices.Contains(untried[check], names[i]); (cell == "") != missing {
				t.Errorf("%q is in the report of %s: %t, want %t: run ci/engines, or see untried", check, names[i], cell != "", !missing)
			} else if missing {
				row[i] = notTried
			}
		}
		fmt.Fprintf(&b, "| %s | %s |\n", check, strings.Join(row, " | "))
	}
	fmt.Fprintf(&b, "\n%s\n", notes.String())
	b.WriteString(kernelTable(names, kernels))
	b.WriteString("Figures of `make bench`, see [performance.md](performance.md), taken on each engine. Those with \"vs\" are ratios to bare calls\n" +
		"of that engine, or to `Create`.\n\n")
	fmt.Fprintf(&b, "| | %s |\n|---|%s\n", strings.Join(names, " | "), strings.Repeat("---|", len(names)))
	for _, f := range figures {
		fmt.Fprintf(&b, "| %s | %s |\n", f, strings.Join(measured[f], " | "))
	}
	fmt.Fprintf(&b, "\nWith gVisor's runtime as it is configured by default, without `--overlay2=none`: %s\n", refusalOf(t))
	fmt.Fprintf(&b, "\n| engine | version | API | storage driver | kernel |\n|---|---|---|---|---|\n%s", engines.String())
	same(t, table, b.Bytes())
}

// kernelTable is the table of what calls of the kernel came to inside, a row for all calls with the same
// answers.
func kernelTable(names []string, kernels [][]conform.KernelCall) string {
	var order []string
	calls := map[string][]string{} // by answers
	for i, first := range kernels[0] {
		var cells []string
		for _, engine := range kernels {
			cell := notTried
			if i < len(engine) && engine[i].Call == first.Call {
				if cell = engine[i].Root; engine[i].User != cell {
					cell += ", user " + engine[i].User
				}
			}
			cells = append(cells, cell)
		}
		row := strings.Join(cells, " | ")
		if calls[row] == nil {
			order = append(order, row)
		}
		calls[row] = append(calls[row], first.Call)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "Calls of the kernel that \"kernel surface\" tried inside, as root and as a user, and what they came to. [kernel.md](kernel.md) says\n"+
		"why. \"allowed\" is for a family that has any kind of socket.\n\n| | %s |\n|---|%s\n", strings.Join(names, " | "), strings.Repeat("---|", len(names)))
	for _, row := range order {
		text := strings.Join(calls[row], ", ")
		fmt.Fprintf(&b, "| %s | %s |\n", strings.ReplaceAll(text, ", socket ", ", "), row)
	}
	return b.String() + "\n"
}

// same compares a file with its content, or writes it.
func same(t *testing.T, file string, content []byte) {
	t.Helper()
	if *update {
		if err := os.WriteFile(file, content, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := os.ReadFile(file); err != nil || !bytes.Equal(got, content) {
		t.Errorf("%s differs from the reports (%v): go test ./conform -run TestMatrix -update", file, err)
	}
}

func reportOf(t *testing.T, file string) (r conform.Report) {
	t.Helper()
	b, err := os.ReadFile(file)
	if err == nil {
		err = json.Unmarshal(b, &r)
	}
	if err != nil {
		t.Fatalf("%s: %v", file, err)
	}
	return r
}

// benchOf reads the lines of a file that bench has written, which may not exist.
func benchOf(t *testing.T, file string) map[string]string {
	t.Helper()
	values := map[string]string{}
	b, err := os.ReadFile(file)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		if f := strings.Fields(line); len(f) == 4 && f[0] == "BENCH" {
			values[f[1]] = f[2]
		}
	}
	return values
}

// refusalOf returns why a runtime that loses files is refused.
func refusalOf(t *testing.T) string {
	t.Helper()
	if _, err := os.Stat(volatile); errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%s is missing: run ci/engines docker-28-gvisor", volatile)
		return "not tried"
	}
	r := reportOf(t, volatile)
	if len(r.Results) == 0 {
		t.Fatalf("%s has no results", volatile)
	}
	for _, result := range r.Results {
		if result.Outcome != conform.Refused {
			t.Errorf("%s: %s %s, want it to be refused", volatile, result.Check, result.Outcome)
		}
	}
	return "refused, " + strings.ReplaceAll(named.ReplaceAllString(r.Results[0].Reason, ""), "\n", " ")
}
