package exec_test

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/format"
	"go/parser"
	"go/token"
	"maps"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/seed-1a2d6d8f/sandbox/internal/enginetest"
	"github.com/seed-1a2d6d8f/sandbox/test/harness"
)

// gorootLeftOut are tests of os/exec that Cmd does not pass, and why; "" are not tests. All others run.
var gorootLeftOut = map[string]string{
	"TestMain": "", "cmdHang": "", "startHang": "", "cmdDescribeFiles": "", "cmdSignalTest": "",
	"TestCredentialNoSetGroups": "no SysProcAttr: User",
	"TestWaitid":                "no Process: of this system's own processes",
	"TestSIGCHLD":               "of this process's signals",
	"TestPipeLookPathLeak":      "of this process's descriptors",
	"TestExtraFiles":            "no ExtraFiles",
	"TestExtraFilesRace":        "no ExtraFiles",
	"TestWaitInterrupt":         "no Cancel: the context's end kills",
	"TestCancelErrors":          "no Cancel: the context's end kills",
	"TestString":                "String has the Path as given: PATH is looked up inside",
	"TestNoPath":                "another text: the error of a zero Cmd is ErrInvalidArgument",
	"TestStart_twice":           "another text: sandbox: exec: ... already started",
	"TestStdinClose":            "StdinPipe is no *os.File",
	"TestExplicitPWD":           "a link in a directory of this machine: TestCmdIsAsOSExec has links",
	"TestAbsPathExec":           "needs Go's tools inside, and a Cmd that is a literal",
}

// The tests of os/exec itself, as far as they are of what Cmd has, pass for Cmd.
func TestGorootsTestsOfOSExec(t *testing.T) {
	enginetest.Need(t)
	t.Parallel()
	from := harness.GoRoot(t, "src/os/exec")
	texts, ran := map[string][]byte{}, map[string]bool{}
	for _, name := range []string{"exec_test.go", "exec_posix_test.go"} {
		texts[name] = rewriteForCmd(t, filepath.Join(from, name), ran)
	}
	harness.PassesWith(t, "testdata/goroot/run", texts, slices.Collect(maps.Keys(ran)), "SANDBOX_TEST_GOROOT_FILE="+filepath.Join(from, "exec_test.go"))
	if len(ran) < 15 {
		t.Errorf("%d tests ran: %v", len(ran), slices.Sorted(maps.Keys(ran)))
	}
}

// rewriteForCmd returns a file of os/exec's tests without what is left out, and with the packages
// of testdata/goroot in place of os/exec and internal/testenv. It adds the names of the tests to ran.
func rewriteForCmd(t *testing.T, file string, ran map[string]bool) []byte {
	t.Helper()
	files := token.NewFileSet()
	f, err := parser.ParseFile(files, file, nil, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	f.Decls = slices.DeleteFunc(f.Decls, func(d ast.Decl) bool {
		fn, ok := d.(*ast.FuncDecl)
		if !ok {
			return false
		}
		_, out := gorootLeftOut[fn.Name.Name]
		out = out || uses(fn, "poll") || uses(fn, "fdtest")
		if !out && strings.HasPrefix(fn.Name.Name, "Test") {
			ran[fn.Name.Name] = true
		}
		return out
	})
	ast.Inspect(f, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.CompositeLit: // the map of helper commands
			n.Elts = slices.DeleteFunc(n.Elts, func(e ast.Expr) bool {
				kv, ok := e.(*ast.KeyValueExpr)
				if !ok {
					return false
				}
				v, ok := kv.Value.(*ast.Ident)
				return ok && leftOut(v.Name)
			})
		case *ast.BlockStmt: // registerHelperCommand
			n.List = slices.DeleteFunc(n.List, func(s ast.Stmt) bool {
				e, ok := s.(*ast.ExprStmt)
				if !ok {
					return false
				}
				call, ok := e.X.(*ast.CallExpr)
				if !ok || len(call.Args) != 2 {
					return false
				}
				v, ok := call.Args[1].(*ast.Ident)
				return ok && leftOut(v.Name)
			})
		}
		return true
	})
	const shims = "github.com/seed-1a2d6d8f/sandbox/test/exec/testdata/goroot/"
	for _, d := range f.Decls {
		g, ok := d.(*ast.GenDecl)
		if !ok || g.Tok != token.IMPORT {
			continue
		}
		g.Specs = slices.DeleteFunc(g.Specs, func(s ast.Spec) bool {
			p, err := strconv.Unquote(s.(*ast.ImportSpec).Path.Value)
			return err != nil || !uses(f, path.Base(p))
		})
		for _, s := range g.Specs {
			switch p := s.(*ast.ImportSpec).Path; p.Value {
			case `"os/exec"`, `"internal/testenv"`:
				p.Value = fmt.Sprintf("%q", shims+path.Base(strings.Trim(p.Value, `"`)))
			}
		}
	}
	var b bytes.Buffer
	if err := format.Node(&b, files, f); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func leftOut(name string) bool {
	_, out := gorootLeftOut[name]
	return out
}

// uses reports whether code has a name of a package.
func uses(n ast.Node, pkg string) (found bool) {
	ast.Inspect(n, func(n ast.Node) bool {
		if s, ok := n.(*ast.SelectorExpr); ok {
			if x, ok := s.X.(*ast.Ident); ok && x.Name == pkg {
				found = true
			}
		}
		return !found
	})
	return found
}
