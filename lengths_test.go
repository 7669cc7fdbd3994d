package sandbox_test

import (
	"cmp"
	"go/ast"
	"slices"
	"strings"
	"testing"
)

// Bounds of the length of functions, in lines, where the reader needs them: outside of
// benchmarks and examples.
const (
	longestFunction = 100
	ninthOfTen      = 35 // nine of ten are no longer
)

func TestFunctionsAreShort(t *testing.T) {
	t.Parallel()
	type function struct {
		at, name string
		lines    int
	}
	var all []function
	for _, s := range sourcesOf(t, func(s source) bool {
		return !s.within("bench") && !s.within("examples") && !strings.Contains(s.file, "/testdata/")
	}) {
		for _, d := range s.ast.Decls {
			if f, is := d.(*ast.FuncDecl); is {
				lines := s.fset.Position(f.End()).Line - s.fset.Position(f.Pos()).Line + 1
				all = append(all, function{s.at(f), f.Name.Name, lines})
				if lines > longestFunction {
					t.Errorf("%s: %s has %d lines, more than %d: make it a sequence of steps", s.at(f), f.Name.Name, lines, longestFunction)
				}
			}
		}
	}
	slices.SortFunc(all, func(a, b function) int { return cmp.Compare(a.lines, b.lines) })
	if p90 := all[len(all)*9/10]; p90.lines > ninthOfTen {
		t.Errorf("one function of ten has at least %d lines, want at most %d; the longest are %v", p90.lines, ninthOfTen, all[len(all)-10:])
	}
}
