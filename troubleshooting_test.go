package sandbox_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// printed returns the string literals of the code that is not for tests.
func printed(t *testing.T) []string {
	t.Helper()
	var all []string
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && slices.Contains([]string{".git", "adapters", "bench", "ci", "enginetest", "examples", "test", "testdata"}, d.Name()):
			return filepath.SkipDir
		case d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go"):
			return nil
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
		if err != nil {
			return err
		}
		ast.Inspect(file, func(n ast.Node) bool {
			if l, ok := n.(*ast.BasicLit); ok && l.Kind == token.STRING {
				text, err := strconv.Unquote(l.Value)
				if err != nil {
					t.Errorf("%s: %s: %v", path, l.Value, err)
				}
				all = append(all, text)
			}
			return true
		})
		return nil
	})
	if err != nil || len(all) < 1000 {
		t.Fatalf("the code has %d literals, %v", len(all), err)
	}
	return all
}

var (
	quotedText = regexp.MustCompile("(?m)^\\| `([^`|]+)` \\|")
	textTable  = regexp.MustCompile(`(?m)^\| text \|.*\n(?:\|.*\n)+`)
)

// Every error text that a page explains is one that the code prints: its parts between "…" are in
// one literal, in their order.
func TestQuotedErrorTextsAreTheCodes(t *testing.T) {
	t.Parallel()
	literals := printed(t)
	for page, least := range map[string]int{"docs/troubleshooting.md": 40, "docs/getting-started.md": 3} {
		quoted := 0
		for _, table := range textTable.FindAllString(read(t, page), -1) {
			lines := strings.Split(strings.TrimSpace(table), "\n")[2:]
			for _, line := range lines {
				text := quotedText.FindStringSubmatch(line)
				if text == nil {
					t.Errorf("%s: this row has no text: %s", page, line)
					continue
				}
				quoted++
				if !slices.ContainsFunc(literals, func(l string) bool { return has(l, text[1]) }) {
					t.Errorf("%s quotes %q, which no code prints", page, text[1])
				}
			}
		}
		if quoted < least {
			t.Errorf("%s quotes %d texts, want at least %d: does the test still see them?", page, quoted, least)
		}
	}
}

// has reports whether the parts of text are in literal, in their order.
func has(literal, text string) bool {
	for part := range strings.SplitSeq(text, "…") {
		_, rest, ok := strings.Cut(literal, strings.TrimSpace(strings.TrimRight(part, ": ")))
		if !ok {
			return false
		}
		literal = rest
	}
	return true
}
