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
	pages, err := filepath.Glob("*.md")
	more, moreErr := filepath.Glob("docs/*.md")
	if pages = append(pages, more...); err != nil || moreErr != nil || len(pages) < 8 {
		t.Fatalf("pages %q, %v, %v", pages, err, moreErr)
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
