package files_test

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/format"
	"go/parser"
	"go/token"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/seed-1a2d6d8f/sandbox/internal/enginetest"
	"github.com/seed-1a2d6d8f/sandbox/test/harness"
)

// gorootFiles are the files of package os's tests whose tests run. Of root_test.go, whose tests
// are of Root, other tests use a function. The other files are of processes, the environment,
// pipes, sockets and the system's calls.
var gorootFiles = []string{
	"error_test.go", "file_test.go", "os_test.go", "os_unix_test.go", "path_test.go", "read_test.go",
	"removeall_test.go", "root_test.go", "stat_test.go", "tempfile_test.go",
}

// gorootLeftOut are tests of those files that do not run, and why; "" are not tests. All others run.
var gorootLeftOut = map[string]string{
	"TestMain": "", "testMaybeRooted": "", "init": "",

	"TestStartProcess":                    "processes",
	"TestKillStartProcess":                "processes",
	"TestKillFindProcess":                 "processes",
	"TestNilProcessStateString":           "processes",
	"TestGetppid":                         "processes",
	"TestStatStdin":                       "processes",
	"TestRemoveAllNoFcntl":                "processes",
	"TestFileChdirTestlog":                "processes",
	"TestHostname":                        "of this process",
	"TestLargeWriteToConsole":             "of this process",
	"TestChdirAndGetwd":                   "of this process: its working directory",
	"TestProgWideChdir":                   "of this process: its working directory",
	"TestFileChdir":                       "of this process: its working directory",
	"TestRemoveAllLongPath":               "of this process: a working directory below more than 4,096 bytes",
	"TestMkdirStickyUmask":                "of this process: its umask",
	"TestUserCacheDir":                    "of this process: its environment",
	"TestUserConfigDir":                   "of this process: its environment",
	"TestUserHomeDir":                     "of this process: its environment",
	"TestUserCacheDirXDGConfigDirEnvVar":  "of this process: its environment",
	"TestUserConfigDirXDGConfigDirEnvVar": "of this process: its environment",

	"TestSeekError":       "pipes",
	"TestPipeThreads":     "pipes",
	"TestPipeIOCloseRace": "pipes",
	"TestPipeCloseRace":   "pipes",
	"TestNewFileBlock":    "descriptors",
	"TestNewFileNonBlock": "descriptors",
	"TestNewFileInvalid":  "descriptors",

	"TestReadFileContents":     "of what is inside os",
	"TestRandomLen":            "no CreateTemp",
	"TestSplitPath":            "of what is inside os",
	"TestReaddirStatFailures":  "of what is inside os",
	"TestReaddirRemoveRace":    "of what is inside os",
	"TestWriteAtInAppendMode":  "another error",
	"TestWriteStringAlloc":     "of what os allocates",
	"TestIssue60181":           "descriptors",
	"TestIsExist":              "of errors without a file",
	"TestIsPermission":         "of errors without a file",
	"TestPathErrorUnwrap":      "of errors without a file",
	"TestErrorIsMethods":       "of errors without a file",
	"TestStatConsole":          "of Windows",
	"TestRenameCaseDifference": "of Windows and macOS",

	"TestRootDirFS":                        "no Root",
	"TestHardLink":                         "no Link",
	"TestFileChown":                        "no File.Chown",
	"TestCreateTemp":                       "no CreateTemp",
	"TestCreateTempPattern":                "no CreateTemp",
	"TestCreateTempBadPattern":             "no CreateTemp",
	"TestMkdirAll":                         "another error: with the name that the call was given",
	"TestRemoveAllButReadOnlyAndPathError": "another error: with the name that the call was given",
	"TestMkdirAllAtSlash":                  "needs root",
	"TestDirSeek":                          "no Seek of a directory",
	"TestReaddirSmallSeek":                 "no Seek of a directory",
	"TestDirFSEmptyDir":                    "no DirFS: that of testdata is a part of FS",
	"TestNilFileMethods":                   "a nil File panics",
	"TestCopyFS":                           "no CopyFS: CopyInFS merges",
	"TestCopyFSWithSymlinks":               "no CopyFS: CopyInFS merges",
}

// The tests of package os itself, as far as they are of calls that a sandbox's files have, pass
// for those.
func TestGorootsTestsOfOS(t *testing.T) {
	enginetest.Need(t)
	t.Parallel()
	from := harness.GoRoot(t, "src/os")
	texts, ran := rewriteForSandbox(t, from)
	harness.PassesWith(t, "testdata/goroot/run", texts, ran, "SANDBOX_TEST_GOROOT_OS="+from)
	t.Logf("%d tests ran", len(ran))
	if len(ran) < 80 {
		t.Errorf("%d tests ran: %v", len(ran), ran)
	}
}

// rewriteForSandbox returns package os's tests without what is left out and what that alone
// uses, and with the packages of testdata/goroot in place of os and internal/testenv. ran are the
// names of the tests.
func rewriteForSandbox(t *testing.T, dir string) (texts map[string][]byte, ran []string) {
	t.Helper()
	fset, files, used := token.NewFileSet(), map[string]*ast.File{}, map[string]bool{}
	for _, name := range gorootFiles {
		f, err := parser.ParseFile(fset, filepath.Join(dir, name), nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		f.Decls = slices.DeleteFunc(f.Decls, func(d ast.Decl) bool {
			fn, ok := d.(*ast.FuncDecl)
			if !ok {
				return false
			}
			_, out := gorootLeftOut[fn.Name.Name]
			test := fn.Recv == nil && strings.HasPrefix(fn.Name.Name, "Test")
			if test && !out && name != "root_test.go" {
				used[fn.Name.Name], ran = true, append(ran, fn.Name.Name)
			}
			return out || test && name == "root_test.go"
		})
		inSandbox(f)
		files[name] = f
	}
	for known := 0; known < len(used); { // what the tests use, what that uses, ...
		known = len(used)
		for _, f := range files {
			for _, d := range f.Decls {
				if declares(d, used) {
					ast.Inspect(d, func(n ast.Node) bool {
						if id, ok := n.(*ast.Ident); ok {
							used[id.Name] = true
						}
						return true
					})
				}
			}
		}
	}
	texts = map[string][]byte{}
	for name, f := range files {
		f.Decls = slices.DeleteFunc(f.Decls, func(d ast.Decl) bool {
			g, ok := d.(*ast.GenDecl)
			return !(ok && g.Tok == token.IMPORT) && !declares(d, used)
		})
		replaceImports(f)
		var b bytes.Buffer
		if err := format.Node(&b, fset, f); err != nil {
			t.Fatal(err)
		}
		texts[name] = b.Bytes()
	}
	slices.Sort(ran)
	return texts, ran
}

// declares reports whether a declaration is of one of the names. A method is declared with its type.
func declares(d ast.Decl, names map[string]bool) bool {
	switch d := d.(type) {
	case *ast.FuncDecl:
		return d.Recv == nil && names[d.Name.Name]
	case *ast.GenDecl:
		return slices.ContainsFunc(d.Specs, func(s ast.Spec) bool {
			switch s := s.(type) {
			case *ast.TypeSpec:
				return names[s.Name.Name]
			case *ast.ValueSpec:
				return slices.ContainsFunc(s.Names, func(n *ast.Ident) bool { return names[n.Name] })
			}
			return false
		})
	}
	return false
}

// inSandbox replaces t.TempDir and t.Chdir, and removes the parts of tests that are of Root.
func inSandbox(f *ast.File) {
	ast.Inspect(f, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.CallExpr:
			s, ok := n.Fun.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			if to := map[string]string{"TempDir": "tempDir", "Chdir": "chdir"}[s.Sel.Name]; to != "" && isName(s.X, "t") {
				n.Fun, n.Args = &ast.Ident{NamePos: s.Pos(), Name: to}, append([]ast.Expr{s.X}, n.Args...)
			}
		case *ast.BlockStmt:
			n.List = slices.DeleteFunc(n.List, func(s ast.Stmt) bool {
				e, ok := s.(*ast.ExprStmt)
				if !ok {
					return false
				}
				call, ok := e.X.(*ast.CallExpr)
				if !ok || len(call.Args) != 2 {
					return false
				}
				part, ok := call.Args[0].(*ast.BasicLit)
				return ok && (part.Value == `"InRoot"` || part.Value == `"RootOpenFile"`)
			})
		}
		return true
	})
}

func replaceImports(f *ast.File) {
	const shims = "github.com/seed-1a2d6d8f/sandbox/test/files/testdata/goroot/"
	for _, d := range f.Decls {
		g, ok := d.(*ast.GenDecl)
		if !ok || g.Tok != token.IMPORT {
			continue
		}
		g.Specs = slices.DeleteFunc(g.Specs, func(s ast.Spec) bool {
			i := s.(*ast.ImportSpec)
			p, err := strconv.Unquote(i.Path.Value)
			return err != nil || i.Name == nil && !usesPackage(f, path.Base(p))
		})
		for _, s := range g.Specs {
			switch p := s.(*ast.ImportSpec).Path; p.Value {
			case `"os"`, `"internal/testenv"`:
				p.Value = fmt.Sprintf("%q", shims+path.Base(strings.Trim(p.Value, `"`)))
			}
		}
	}
}

func isName(e ast.Expr, name string) bool {
	id, ok := e.(*ast.Ident)
	return ok && id.Name == name
}

// usesPackage reports whether code has a name of a package.
func usesPackage(n ast.Node, pkg string) (found bool) {
	ast.Inspect(n, func(n ast.Node) bool {
		s, ok := n.(*ast.SelectorExpr)
		found = found || ok && isName(s.X, pkg)
		return !found
	})
	return found
}
