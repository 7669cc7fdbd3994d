//go:build ignore

// Soaks prints a line for each test that does more in a soak: the directory of its package, and its name. It is a test that calls
// Soak, Soaking or Rounds of test/harness, or a function that does.
package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"log"
	"maps"
	"path/filepath"
	"slices"
	"strings"
)

func main() {
	log.SetFlags(0)
	dirs := map[string][]*ast.File{}
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && d.Name() == "testdata":
			return fs.SkipDir
		case d.IsDir() || !strings.HasSuffix(path, ".go"):
			return nil
		}
		f, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		dirs[filepath.Dir(path)] = append(dirs[filepath.Dir(path)], f)
		return err
	})
	if err != nil {
		log.Fatal(err)
	}
	shared := asking(dirs["test/harness"], map[string]bool{"Soak": true, "Soaking": true, "Rounds": true})
	for _, dir := range slices.Sorted(maps.Keys(dirs)) {
		for _, name := range slices.Sorted(maps.Keys(asking(dirs[dir], shared))) {
			if dir != "test/harness" && (strings.HasPrefix(name, "Test") || strings.HasPrefix(name, "Fuzz")) && name != "TestMain" {
				fmt.Printf("./%s %s\n", dir, name)
			}
		}
	}
}

// asking returns the functions of a package that ask for a soak: those that name one of harness, and those that name such a function.
func asking(files []*ast.File, harness map[string]bool) map[string]bool {
	asks := map[string]bool{}
	for more := true; more; {
		more = false
		for _, f := range files {
			own := f.Name.Name == "harness"
			for _, d := range f.Decls {
				fn, is := d.(*ast.FuncDecl)
				if !is || fn.Body == nil || asks[fn.Name.Name] {
					continue
				}
				ast.Inspect(fn.Body, func(n ast.Node) bool {
					switch n := n.(type) {
					case *ast.SelectorExpr:
						x, is := n.X.(*ast.Ident)
						if is && x.Name == "harness" && harness[n.Sel.Name] || asks[n.Sel.Name] {
							asks[fn.Name.Name] = true
						}
						ast.Inspect(n.X, func(n ast.Node) bool { // which may be a call
							if id, is := n.(*ast.Ident); is && asks[id.Name] {
								asks[fn.Name.Name] = true
							}
							return true
						})
						return false
					case *ast.Ident:
						if asks[n.Name] || own && harness[n.Name] {
							asks[fn.Name.Name] = true
						}
					}
					return true
				})
				more = more || asks[fn.Name.Name]
			}
		}
	}
	if len(files) > 0 && files[0].Name.Name == "harness" {
		for name := range harness {
			asks[name] = true
		}
	}
	return asks
}
