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

// Links from one page of the documentation lead to files and headings that exist.
func TestLinksOfTheDocumentationLeadSomewhere(t *testing.T) {
	t.Parallel()
	var pages []string
	for _, pattern := range []string{"*.md", "docs/*.md", "docs/*/*.md", "test/*.md"} {
		more, err := filepath.Glob(pattern)
		if err != nil || len(more) == 0 {
			t.Fatalf("pages %s: %q, %v", pattern, more, err)
		}
		pages = append(pages, more...)
	}
	for _, page := range pages {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, l := range link.FindAllStringSubmatch(string(text), -1) {
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
	text, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), "\n## Contents\n")
	contents, _, _ := strings.Cut(rest, "\n## ")
	var listed []string
	for _, l := range link.FindAllStringSubmatch(contents, -1) {
		if anchor, ok := strings.CutPrefix(l[1], "#"); ok {
			listed = append(listed, anchor)
		}
	}
	if want := anchors(rest); !slices.Equal(listed, want) || len(want) < 15 {
		t.Errorf("the contents are %q, want the headings %q", listed, want)
	}
	for section := range strings.SplitSeq(rest, "\n## ") {
		if !link.MatchString(section) {
			t.Errorf("the section %.30q has no link to a page, an example or the package documentation", section)
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

// The README has no figures of its own.
func TestFiguresOfTheREADMEAreMeasured(t *testing.T) {
	t.Parallel()
	readme, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	measured, err := os.ReadFile("docs/performance.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(readme), "\n## Performance\n")
	section, _, _ := strings.Cut(rest, "\n## ")
	figures := regexp.MustCompile(`\d+(\.\d+)?`).FindAllString(link.ReplaceAllString(section, ""), -1)
	if len(figures) == 0 {
		t.Error("the section Performance has no figure: does the test still see it?")
	}
	for _, figure := range figures {
		if !regexp.MustCompile(`\| *` + regexp.QuoteMeta(figure) + ` `).Match(measured) {
			t.Errorf("the README says %s, which is not in docs/performance.md", figure)
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
