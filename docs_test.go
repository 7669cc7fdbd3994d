package sandbox_test

import (
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var (
	link     = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	heading  = regexp.MustCompile(`(?m)^#+ (.+)$`)
	unlinked = regexp.MustCompile(`[^\p{L}\p{N} _-]`)
)

// anchors returns the names that a page's headings have in links.
func anchors(page string) []string {
	var all []string
	for _, h := range heading.FindAllStringSubmatch(page, -1) {
		all = append(all, strings.ReplaceAll(unlinked.ReplaceAllString(strings.ToLower(h[1]), ""), " ", "-"))
	}
	return all
}

// pages returns the names of all pages.
func pages(t *testing.T) []string {
	t.Helper()
	return files(t, "*.md", "docs/*.md", "docs/*/*.md", "test/*.md")
}

// files returns the names of the files that match one of the patterns, each of which has some.
func files(t *testing.T, patterns ...string) []string {
	t.Helper()
	var all []string
	for _, pattern := range patterns {
		more, err := filepath.Glob(pattern)
		if err != nil || len(more) == 0 {
			t.Fatalf("files %s: %q, %v", pattern, more, err)
		}
		all = append(all, more...)
	}
	return all
}

// read returns the text of a file.
func read(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// Links from one page of the documentation lead to files and headings that exist.
func TestLinksOfTheDocumentationLeadSomewhere(t *testing.T) {
	t.Parallel()
	for _, page := range pages(t) {
		text := read(t, page)
		for _, l := range link.FindAllStringSubmatch(text, -1) {
			if strings.Contains(l[1], "://") {
				continue
			}
			file, anchor, _ := strings.Cut(l[1], "#")
			target := path.Join(path.Dir(filepath.ToSlash(page)), file)
			if file == "" {
				target = page
			}
			if _, err := os.Stat(target); err != nil {
				t.Errorf("%s: the link %s: %v", page, l[1], err)
				continue
			}
			if anchor == "" {
				continue
			}
			linked, err := os.ReadFile(target)
			if err != nil || !slices.Contains(anchors(string(linked)), anchor) {
				t.Errorf("%s: the link %s: no such heading, %v", page, l[1], err)
			}
		}
	}
}

// The contents of the README are its sections, in their order, and each leads on to more.
func TestContentsAreTheHeadings(t *testing.T) {
	t.Parallel()
	_, rest, _ := strings.Cut(read(t, "README.md"), "\n## Contents\n")
	contents, _, _ := strings.Cut(rest, "\n## ")
	var listed []string
	for _, l := range link.FindAllStringSubmatch(contents, -1) {
		if anchor, ok := strings.CutPrefix(l[1], "#"); ok {
			listed = append(listed, anchor)
		}
	}
	if want := anchors(rest); !slices.Equal(listed, want) || len(want) < 10 {
		t.Errorf("the contents are %q, want the headings %q", listed, want)
	}
	for section := range strings.SplitSeq(rest, "\n## ") {
		if !link.MatchString(section) {
			t.Errorf("the section %.30q has no link to a page, an example or the package documentation", section)
		}
	}
}

// What a stranger needs first fits on one page. The rest is in docs.
func TestREADMEIsShort(t *testing.T) {
	t.Parallel()
	if n := strings.Count(read(t, "README.md"), "\n"); n > 300 {
		t.Errorf("README.md has %d lines, want at most 300", n)
	}
}

var (
	space = regexp.MustCompile(`\s+`)
	block = regexp.MustCompile("(?ms)^```go\n(.*?)^```$")
)

// Each block of Go on a page is in a file that is compiled, but for white space.
func TestBlocksOfGoAreCompiled(t *testing.T) {
	t.Parallel()
	squeeze := func(text string) string { return strings.TrimSpace(space.ReplaceAllString(text, " ")) }
	var compiled strings.Builder
	for _, file := range files(t, "example*_test.go", "*/example_test.go", "examples/*/main.go") {
		compiled.WriteString(squeeze(read(t, file)))
	}
	seen := map[string]int{}
	for _, page := range pages(t) {
		for _, b := range block.FindAllStringSubmatch(read(t, page), -1) {
			seen[page]++
			if !strings.Contains(compiled.String(), squeeze(b[1])) {
				t.Errorf("%s shows what no example has:\n%s", page, b[1])
			}
		}
	}
	for _, page := range []string{"README.md", "docs/commands.md", "docs/files.md", "docs/forks.md", "docs/getting-started.md", "docs/network.md",
		"docs/operations.md", "docs/pools.md", "docs/ports.md", "docs/sessions.md", "docs/testing.md", "docs/volumes.md"} {
		if seen[page] == 0 {
			t.Errorf("%s has no block of Go: does the test still see them?", page)
		}
	}
}

// The index lists all pages, and so does that of the decisions.
func TestEveryPageIsInItsIndex(t *testing.T) {
	t.Parallel()
	for _, dir := range []string{"docs", "docs/decisions"} {
		index, err := os.ReadFile(filepath.Join(dir, "README.md"))
		if err != nil {
			t.Fatal(err)
		}
		pages, err := filepath.Glob(filepath.Join(dir, "*.md"))
		if err != nil || len(pages) < 10 {
			t.Fatalf("%s: pages %q, %v", dir, pages, err)
		}
		for _, page := range pages {
			if name := filepath.Base(page); name != "README.md" && !strings.Contains(string(index), "]("+name+")") {
				t.Errorf("%s/README.md does not link %s", dir, name)
			}
		}
	}
}

// tableRow is a row of a table with figures.
var tableRow = regexp.MustCompile(`(?m)^\|(.*)\|$`)

// rows returns the rows of a page's tables, without notes.
func rows(page string) []string {
	var all []string
	for _, r := range tableRow.FindAllStringSubmatch(page, -1) {
		cells := strings.Split(strings.Map(func(r rune) rune {
			if strings.ContainsRune("¹²³", r) {
				return -1
			}
			return r
		}, r[1]), "|")
		for i, cell := range cells {
			cells[i] = strings.TrimSpace(cell)
		}
		all = append(all, strings.Join(cells, " | "))
	}
	return all
}

// The README has no figures of its own: its rows are rows of docs/performance.md.
func TestFiguresOfTheREADMEAreMeasured(t *testing.T) {
	t.Parallel()
	_, rest, _ := strings.Cut(read(t, "README.md"), "\n## Numbers\n")
	section, _, _ := strings.Cut(rest, "\n## ")
	shown, measured := rows(section), rows(read(t, "docs/performance.md"))
	if len(shown) < 7 {
		t.Errorf("the section Numbers has %d rows: does the test still see them?", len(shown))
	}
	for _, row := range shown {
		if strings.ContainsAny(row, "0123456789") && !slices.Contains(measured, row) {
			t.Errorf("the README says %s, which is no row of docs/performance.md", row)
		}
	}
	if text := tableRow.ReplaceAllString(section, ""); regexp.MustCompile(`\d`).MatchString(text) {
		t.Errorf("the section Numbers has figures outside of its table:\n%s", text)
	}
}

// duration is a figure that a benchmark measures.
var duration = regexp.MustCompile(`\b\d+(\.\d+)? (ms|µs|MB/s)\b`)

// Other pages repeat measured figures or have none. The pages of decisions have the figures of their day, and
// that of swarms those of ci/scale and test/cluster.
func TestFiguresOfPagesAreMeasured(t *testing.T) {
	t.Parallel()
	measured := read(t, "docs/performance.md")
	if !duration.MatchString(measured) {
		t.Error("docs/performance.md has no figure: does the test still see it?")
	}
	for _, page := range pages(t) {
		if strings.HasPrefix(page, "docs/decisions/") || page == "docs/performance.md" || page == "docs/cluster.md" {
			continue
		}
		for _, figure := range duration.FindAllString(read(t, page), -1) {
			if !regexp.MustCompile(`[| ]` + regexp.QuoteMeta(figure) + `\b`).MatchString(measured) {
				t.Errorf("%s says %s, which is not in docs/performance.md", page, figure)
			}
		}
	}
}

// What a caller needs first fits on one page. The rest is in docs.
func TestPackageDocumentationIsShort(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("doc.go")
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(text), "\n"); n > 180 {
		t.Errorf("doc.go has %d lines, want at most 180", n)
	}
}

// The names that coming-from.md leads to are those of the packages.
func TestNamesToComeToExist(t *testing.T) {
	t.Parallel()
	var api strings.Builder
	for _, file := range files(t, "testdata/api/*.txt") {
		api.WriteString(read(t, file))
	}
	seen := 0
	for _, row := range rows(read(t, "docs/coming-from.md")) {
		cells := strings.Split(row, " | ")
		for _, name := range regexp.MustCompile("`([A-Za-z.]+)`").FindAllStringSubmatch(cells[len(cells)-1], -1) {
			seen++
			want := `\b` + name[1] + `\b`
			if of, method, ok := strings.Cut(name[1], "."); ok {
				want = `func \(\w+ \*?` + of + `\) ` + method + `\(|type ` + of + ` struct \{[^}]*\b` + method + `\b`
			}
			if !regexp.MustCompile(want).MatchString(api.String()) {
				t.Errorf("docs/coming-from.md: there is no %s", name[1])
			}
		}
	}
	if seen < 50 {
		t.Errorf("docs/coming-from.md has %d names: does the test still see them?", seen)
	}
}
