//go:build ignore

// Command figures prints the size of this repository's code, see ci/figures.
package main

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"log"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
)

// size is that of one package.
type size struct{ files, lines, testFiles, testLines, names int }

// figures are the sizes of packages, and the lengths of all functions outside of tests,
// benchmarks and examples.
type figures struct {
	sizes   map[string]*size
	lengths []int
}

func main() {
	f := figures{sizes: map[string]*size{}}
	err := filepath.WalkDir(".", func(name string, d fs.DirEntry, err error) error {
		if base := d.Name(); d.IsDir() && name != "." && (strings.HasPrefix(base, ".") || base == "testdata") {
			return filepath.SkipDir
		}
		if err != nil || d.IsDir() || path.Ext(name) != ".go" || filepath.Dir(name) == "ci" {
			return err
		}
		return f.file(filepath.ToSlash(name))
	})
	if err != nil {
		log.Fatal(err)
	}
	f.print()
}

// file counts one file.
func (f *figures) file(name string) error {
	text, err := os.ReadFile(name)
	if err != nil {
		return err
	}
	fset := token.NewFileSet()
	parsed, err := parser.ParseFile(fset, name, text, parser.SkipObjectResolution)
	if err != nil {
		return err
	}
	s := f.sizes[path.Dir(name)]
	if s == nil {
		s = &size{}
		f.sizes[path.Dir(name)] = s
	}
	lines := bytes.Count(text, []byte("\n"))
	if strings.HasSuffix(name, "_test.go") {
		s.testFiles++
		s.testLines += lines
		return nil
	}
	s.files++
	s.lines += lines
	for _, d := range parsed.Decls {
		s.names += exported(d)
		if fn, is := d.(*ast.FuncDecl); is && !strings.HasPrefix(name, "bench/") && !strings.HasPrefix(name, "examples/") {
			f.lengths = append(f.lengths, fset.Position(fn.End()).Line-fset.Position(fn.Pos()).Line+1)
		}
	}
	return nil
}

// exported counts the exported names of a declaration. Methods are not counted.
func exported(d ast.Decl) (n int) {
	switch d := d.(type) {
	case *ast.FuncDecl:
		if d.Recv == nil && d.Name.IsExported() {
			n++
		}
	case *ast.GenDecl:
		for _, s := range d.Specs {
			var names []*ast.Ident
			switch s := s.(type) {
			case *ast.TypeSpec:
				names = []*ast.Ident{s.Name}
			case *ast.ValueSpec:
				names = s.Names
			}
			for _, name := range names {
				if name.IsExported() {
					n++
				}
			}
		}
	}
	return n
}

func (f *figures) print() {
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "files\tlines\ttest files\ttest lines\texported names\t  package")
	row := func(s size, name string) {
		names := ""
		if strings.HasPrefix(name, "internal") {
			names = fmt.Sprint(s.names)
		}
		fmt.Fprintf(w, "%d\t%d\t%d\t%d\t%s\t  %s\n", s.files, s.lines, s.testFiles, s.testLines, names, name)
	}
	var all size
	for _, name := range slices.Sorted(maps.Keys(f.sizes)) {
		s := f.sizes[name]
		all.files, all.lines = all.files+s.files, all.lines+s.lines
		all.testFiles, all.testLines = all.testFiles+s.testFiles, all.testLines+s.testLines
		row(*s, name)
	}
	row(all, "all")
	w.Flush()
	slices.Sort(f.lengths)
	n := len(f.lengths)
	fmt.Printf("%d functions outside of tests, bench and examples: median %d lines, p90 %d, longest %d\n", n, f.lengths[n/2], f.lengths[n*9/10], f.lengths[n-1])
}
