package sandbox_test

import (
	"bytes"
	"flag"
	"go/ast"
	"go/parser"
	"go/printer"
	"go/token"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var updateAPI = flag.Bool("update-api", false, "write the exported API to testdata/api")

// exported returns the exported declarations of a package, one after the other, without comments
// and function bodies.
func exported(dir string) (string, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		return "", err
	}
	fset := token.NewFileSet()
	var list []string
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(fset, name, nil, parser.SkipObjectResolution)
		if err != nil {
			return "", err
		}
		ast.FileExports(f)
		for _, d := range f.Decls {
			for _, one := range single(d) {
				var b bytes.Buffer
				if err := (&printer.Config{Mode: printer.UseSpaces, Tabwidth: 4}).Fprint(&b, fset, one); err != nil {
					return "", err
				}
				// Blank lines are where comments were.
				list = append(list, strings.ReplaceAll(strings.ReplaceAll(b.String(), "\n\n", "\n"), "\n\n", "\n"))
			}
		}
	}
	slices.Sort(list)
	return strings.Join(list, "\n") + "\n", nil
}

// single returns the names of a group as declarations of their own. A group of constants stays
// together, since one may continue another.
func single(d ast.Decl) []ast.Decl {
	if f, is := d.(*ast.FuncDecl); is {
		f.Body = nil
	}
	g, is := d.(*ast.GenDecl)
	if !is {
		return []ast.Decl{d}
	}
	if g.Tok == token.IMPORT {
		return nil
	}
	if g.Tok == token.CONST {
		return []ast.Decl{g}
	}
	var list []ast.Decl
	for _, spec := range g.Specs {
		list = append(list, &ast.GenDecl{Tok: g.Tok, Specs: []ast.Spec{spec}})
	}
	return list
}

// The exported API changes on purpose only: "make api" renews the files.
func TestExportedAPI(t *testing.T) {
	t.Parallel()
	for pkg, dir := range map[string]string{"sandbox": ".", "sandboxhttp": "sandboxhttp", "sandboxtest": "sandboxtest", "sandboxtools": "sandboxtools"} {
		got, err := exported(dir)
		if err != nil {
			t.Fatal(err)
		}
		file := filepath.Join("testdata", "api", pkg+".txt")
		if *updateAPI {
			if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
				t.Fatal(err)
			}
			continue
		}
		want, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(strings.Split(string(want), "\n"), strings.Split(got, "\n")); diff != "" {
			t.Errorf("the API of %s has changed; if it was meant to, run \"make api\" (-want +got):\n%s", pkg, diff)
		}
	}
}
