package sandbox_test

import (
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// The ranks of this repository's packages, as tests: which package may do what.

const module = "github.com/seed-1a2d6d8f/sandbox"

// linked is every module whose code gets into a program that imports this package, on
// whatever system, and why. Ours to decide are those without "by".
var linked = map[string]string{
	module: "itself",

	"github.com/docker/docker":                                      "the engine's API: types and client",
	"github.com/docker/go-connections":                              "published ports and TLS settings in the engine's own types",
	"github.com/containerd/errdefs":                                 "error classes of the engine's client",
	"github.com/distribution/reference":                             "image names, as the engine reads them",
	"github.com/klauspost/compress":                                 "zstd, in tarballs: the standard library has none",
	"golang.org/x/crypto":                                           "SSH, the protocol to the guest",
	"golang.org/x/net":                                              "IDNA: domain names in network policies",
	"golang.org/x/sync":                                             "errgroup, singleflight",
	"golang.org/x/sys":                                              "by x/crypto (CPU features), go-winio and otel (Windows)",
	"golang.org/x/text":                                             "by x/net/idna",
	"github.com/Microsoft/go-winio":                                 "by the engine's client on Windows: named pipes",
	"github.com/containerd/errdefs/pkg":                             "by the engine's client: HTTP status to error class",
	"github.com/docker/go-units":                                    "by the engine's types: ulimits",
	"github.com/moby/docker-image-spec":                             "by the engine's types: image configuration",
	"github.com/opencontainers/go-digest":                           "by the engine's types: digests",
	"github.com/opencontainers/image-spec":                          "by the engine's types: image configuration",
	"github.com/pkg/errors":                                         "by the engine's client",
	"github.com/felixge/httpsnoop":                                  "by otelhttp",
	"github.com/go-logr/logr":                                       "by otel",
	"github.com/go-logr/stdr":                                       "by otel",
	"github.com/cespare/xxhash/v2":                                  "by otel: hashing of attributes",
	"go.opentelemetry.io/auto/sdk":                                  "by otel",
	"go.opentelemetry.io/otel":                                      "internal/trace: spans and durations, by the global providers",
	"go.opentelemetry.io/otel/log":                                  "by otel",
	"go.opentelemetry.io/otel/metric":                               "the same; and by otelhttp",
	"go.opentelemetry.io/otel/trace":                                "the same; and by the engine's client, which wraps its transport in otelhttp",
	"go.opentelemetry.io/contrib/instrumentation/net/http/otelhttp": "by the engine's client: tracing of its calls",
}

// guestOnly never gets into a caller's program: it is for what runs inside a sandbox.
var guestOnly = []string{
	module + "/internal/guest/cmd", "github.com/creack/pty", "github.com/google/nftables", "github.com/miekg/dns",
	"github.com/vishvananda/netlink", "github.com/mdlayher", "golang.org/x/crypto/x509roots",
}

// dockers are the modules of the engine's API, under their names past and to come.
var dockers = regexp.MustCompile(`^github\.com/(docker/docker|docker/go-connections|moby/moby|moby/client)(/|$)`)

// source is one Go file of this repository.
type source struct {
	file string // slash-separated, from the root
	pkg  string // import path
	test bool
	fset *token.FileSet
	ast  *ast.File
}

func (s source) at(n ast.Node) string { return s.fset.Position(n.Pos()).String() }

func (s source) imports() []string {
	var paths []string
	for _, i := range s.ast.Imports {
		p, _ := strconv.Unquote(i.Path.Value)
		paths = append(paths, p)
	}
	return paths
}

// within reports whether the file's package is that one or below it.
func (s source) within(pkg string) bool {
	return s.pkg == module+"/"+pkg || strings.HasPrefix(s.pkg, module+"/"+pkg+"/")
}

// name is the package without the module and internal/; "sandbox" is the root.
func (s source) name() string { return short(s.pkg) }

func short(pkg string) string {
	if pkg == module {
		return "sandbox"
	}
	return strings.TrimPrefix(strings.TrimPrefix(pkg, module+"/"), "internal/")
}

// sources is every Go file of the repository, for all systems.
var sources = sync.OnceValues(func() ([]source, error) {
	var all []source
	fset := token.NewFileSet()
	err := filepath.WalkDir(".", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if base := d.Name(); d.IsDir() && name != "." && (strings.HasPrefix(base, ".") || strings.HasPrefix(base, "_") || base == "testdata") {
			return filepath.SkipDir
		}
		if d.IsDir() || filepath.Ext(name) != ".go" {
			return nil
		}
		f, err := parser.ParseFile(fset, name, nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		name = filepath.ToSlash(name)
		all = append(all, source{name, path.Join(module, path.Dir(name)), strings.HasSuffix(name, "_test.go"), fset, f})
		return nil
	})
	return all, err
})

// sourcesOf returns the files, without tests, that keep selects.
func sourcesOf(t *testing.T, keep func(source) bool) []source {
	t.Helper()
	all, err := sources()
	if err != nil {
		t.Fatal(err)
	}
	var some []source
	for _, s := range all {
		if !s.test && keep(s) {
			some = append(some, s)
		}
	}
	if len(some) == 0 {
		t.Fatal("no file to look at: the packages have moved, and this test has to follow")
	}
	return some
}

// goList runs go list on the root package.
func goList(t *testing.T, goos, format string, flags ...string) []string {
	t.Helper()
	args := append([]string{"list", "-deps", "-f", format}, flags...)
	cmd := exec.Command("go", append(args, ".")...)
	cmd.Env = append(os.Environ(), "GOOS="+goos)
	if goos != "linux" {
		cmd.Env = append(cmd.Env, "CGO_ENABLED=0")
	}
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go %s: %v", strings.Join(cmd.Args[1:], " "), err)
	}
	return strings.Fields(string(out))
}

// ranks says which packages of ours each package may import. TestImportsRunOneWay also
// fails for an entry that no import needs any more.
var ranks = map[string][]string{
	"errdefs":        {},
	"bound":          {"errdefs"},
	"policy":         {},
	"archive":        {"errdefs"},
	"guest/trees":    {"archive", "guest/wire"},
	"guest/wire":     {"policy"},
	"git":            {},
	"engine":         {"bound"},
	"guest":          {"bound", "errdefs", "guest/wire"},
	"guest/accounts": {},
	"record":         {"policy"},
	"claim":          {"bound", "engine", "record"},

	"trace":     {"errdefs"},
	"source":    {"archive", "errdefs", "git", "guest/trees", "policy"},
	"plan":      {"engine", "errdefs", "guest/wire", "policy", "record", "source"},
	"store":     {"bound", "claim", "engine", "errdefs", "guest/wire", "record", "trace"},
	"machine":   {"archive", "bound", "claim", "engine", "errdefs", "guest", "guest/accounts", "guest/trees", "guest/wire", "plan", "policy", "record", "source", "store", "trace"},
	"transfer":  {"archive", "bound", "claim", "engine", "errdefs", "guest", "guest/trees", "guest/wire", "machine", "record", "source", "store", "trace"},
	"provision": {"bound", "claim", "engine", "errdefs", "guest/wire", "machine", "plan", "policy", "record", "store", "transfer"},
	"lifecycle": {"archive", "bound", "claim", "engine", "errdefs", "guest", "guest/wire", "machine", "plan", "policy", "provision", "record", "store", "trace", "transfer"},
	"files":     {"archive", "bound", "engine", "errdefs", "guest", "guest/wire", "lifecycle", "store"},
	"cluster":   {"bound", "claim", "engine", "errdefs", "lifecycle", "machine", "plan", "record", "store"},
	"sandbox":   {"archive", "bound", "cluster", "engine", "errdefs", "files", "guest", "guest/wire", "lifecycle", "machine", "plan", "policy", "record", "source", "store", "trace"},
}

// imports are what the packages of ranks import of ours, without tests.
func layerImports(t *testing.T) map[string][]string {
	t.Helper()
	got := map[string][]string{}
	for _, s := range sourcesOf(t, func(s source) bool { _, is := ranks[s.name()]; return is }) {
		got[s.name()] = append(got[s.name()], nil...)
		for _, i := range s.imports() {
			if strings.HasPrefix(i, module) && !slices.Contains(got[s.name()], short(i)) {
				got[s.name()] = append(got[s.name()], short(i))
			}
		}
	}
	for _, list := range got {
		slices.Sort(list)
	}
	return got
}

func TestImportsRunOneWay(t *testing.T) {
	t.Parallel()
	got := layerImports(t)
	for name, may := range ranks {
		list, there := got[name]
		if !there {
			t.Errorf("there is no package %s any more: take it off the table", name)
		}
		for _, i := range list {
			if _, below := ranks[i]; !below {
				t.Errorf("%s imports %s, which is no layer", name, i)
			} else if !slices.Contains(may, i) {
				t.Errorf("%s imports %s: the table does not allow it", name, i)
			}
		}
		for _, i := range may {
			if !slices.Contains(list, i) {
				t.Errorf("%s does not import %s any more: take it off the table", name, i)
			}
		}
	}
}

func TestEveryInternalPackageIsALayer(t *testing.T) {
	t.Parallel()
	beside := regexp.MustCompile(`^(enginetest|gittest|guest/guesttest|guest/gen|guest/cmd(/.*)?)$`) // of tests, and of the guest's program
	for _, s := range sourcesOf(t, func(s source) bool { return s.within("internal") }) {
		if _, is := ranks[s.name()]; !is && !beside.MatchString(s.name()) {
			t.Errorf("%s: package %s is not in the table of ranks", s.file, s.name())
		}
	}
}

// The picture in docs/architecture.md has an arrow for each import that no other import of
// the same package brings along.
func TestThePictureShowsTheImports(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("docs/architecture.md")
	if err != nil {
		t.Fatal(err)
	}
	_, picture, found := strings.Cut(string(text), "```mermaid\n")
	picture, _, closed := strings.Cut(picture, "```")
	if !found || !closed {
		t.Fatal("docs/architecture.md has no Mermaid picture")
	}
	drawn := map[string]bool{}
	for _, m := range regexp.MustCompile(`(?m)^\s*(\S+) --> (\S+)$`).FindAllStringSubmatch(picture, -1) {
		drawn[m[1]+" --> "+m[2]] = true
	}
	got := layerImports(t)
	var reaches func(from, to string) bool
	reaches = func(from, to string) bool {
		return slices.ContainsFunc(got[from], func(i string) bool { return i == to || reaches(i, to) })
	}
	for from, list := range got {
		for _, to := range list {
			arrow := from + " --> " + to
			direct := !slices.ContainsFunc(list, func(i string) bool { return i != to && reaches(i, to) })
			if direct && !drawn[arrow] {
				t.Errorf("docs/architecture.md lacks the arrow %s", arrow)
			}
			if direct {
				delete(drawn, arrow)
			}
		}
	}
	for arrow := range drawn {
		t.Errorf("docs/architecture.md has the arrow %s, which no import is behind or others imply", arrow)
	}
}

// What runs inside a sandbox is no part of anybody's program.
func TestNobodyImportsTheGuestsProgram(t *testing.T) {
	t.Parallel()
	all, err := sources()
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range all {
		for _, i := range s.imports() {
			if strings.HasPrefix(i, module+"/internal/guest/cmd") && !s.within("internal/guest/cmd") {
				t.Errorf("%s imports %s", s.file, i)
			}
		}
	}
}

func TestOnlyTheEnginePackageImportsTheDockerAPI(t *testing.T) {
	t.Parallel()
	found := false
	all, err := sources()
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range all {
		for _, i := range s.imports() {
			switch {
			case !dockers.MatchString(i):
			case s.pkg == module+"/internal/engine":
				found = true
			default:
				t.Errorf("%s imports %s: only internal/engine may", s.file, i)
			}
		}
	}
	if !found {
		t.Error("internal/engine does not import the Docker API either: has it moved?")
	}
}

func TestRootLinksOnlyWhatIsListed(t *testing.T) {
	t.Parallel()
	got := map[string]bool{}
	for _, goos := range []string{"linux", "darwin", "windows"} {
		for _, m := range goList(t, goos, "{{with .Module}}{{.Path}}{{end}}") {
			got[m] = true
		}
		for _, p := range goList(t, goos, "{{.ImportPath}}") {
			for _, not := range guestOnly {
				if p == not || strings.HasPrefix(p, not+"/") {
					t.Errorf("on %s the root links %s, which is for the guest alone", goos, p)
				}
			}
		}
	}
	for m := range got {
		if linked[m] == "" {
			t.Errorf("the root links module %s, which is not in the list: is it worth having in every caller's program?", m)
		}
	}
	for m := range linked {
		if !got[m] {
			t.Errorf("the root does not link module %s any more: take it off the list", m)
		}
	}
}

// Who serves sandboxes over HTTP links little more: the server's side of WebSockets.
func TestHandlersLinkALibraryForWebSockets(t *testing.T) {
	t.Parallel()
	more := map[string]bool{}
	for _, m := range goList(t, "linux", "{{with .Module}}{{.Path}}{{end}}", "./sandboxhttp") {
		if linked[m] == "" {
			more[m] = true
		}
	}
	if want := map[string]bool{"github.com/coder/websocket": true}; !maps.Equal(more, want) {
		t.Errorf("beside the root, sandboxhttp links %v, want %v", more, want)
	}
}

// Each adapter is a module of its own, so that nobody who does not use it gets its framework.
func TestAdaptersAreModulesOfTheirOwn(t *testing.T) {
	t.Parallel()
	dirs, err := filepath.Glob("adapters/*")
	if err != nil || len(dirs) == 0 {
		t.Fatalf("no adapters: %q, %v", dirs, err)
	}
	for _, dir := range dirs {
		dir = filepath.ToSlash(dir)
		text, err := os.ReadFile(path.Join(dir, "go.mod"))
		if err != nil {
			t.Error(err)
			continue
		}
		lines := strings.Split(string(text), "\n")
		for _, want := range []string{"module " + module + "/" + dir, "replace " + module + " => ../.."} {
			if !slices.Contains(lines, want) {
				t.Errorf("%s/go.mod has no line %q", dir, want)
			}
		}
	}
	out, err := exec.Command("go", "list", "./...").Output()
	if err != nil || !strings.Contains(string(out), module+"/sandboxtools\n") {
		t.Fatalf("go list: %v\n%s", err, out)
	}
	if strings.Contains(string(out), module+"/adapters") {
		t.Errorf("this module has packages of adapters:\n%s", out)
	}
}

// rootAPI is the root package as its callers' compiler sees it.
func rootAPI(t *testing.T) *types.Package {
	t.Helper()
	flags := []string{"-export"}
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, s := range info.Settings {
			if s.Key == "-race" && s.Value == "true" {
				flags = append(flags, "-race") // what this test was built with is there already
			}
		}
	}
	files := map[string]string{}
	for _, line := range goList(t, "linux", "{{if .Export}}{{.ImportPath}}={{.Export}}{{end}}", flags...) {
		p, file, _ := strings.Cut(line, "=")
		files[p] = file
	}
	open := func(p string) (io.ReadCloser, error) {
		if files[p] == "" {
			return nil, fmt.Errorf("no export data for %s", p)
		}
		return os.Open(files[p])
	}
	pkg, err := importer.ForCompiler(token.NewFileSet(), "gc", open).Import(module)
	if err != nil {
		t.Fatal(err)
	}
	return pkg
}

// mentions calls visit for every named type that a caller of api meets: in signatures,
// exported fields and methods, type parameters and the types of variables.
func mentions(api *types.Package, visit func(where string, named *types.TypeName)) {
	seen := map[types.Type]bool{}
	var walk func(where string, t types.Type)
	tuple := func(where string, list *types.Tuple) {
		for v := range list.Variables() {
			walk(where, v.Type())
		}
	}
	walk = func(where string, t types.Type) {
		if named, ok := t.(interface{ Obj() *types.TypeName }); ok {
			visit(where, named.Obj())
		}
		if seen[t] {
			return
		}
		seen[t] = true
		switch t := t.(type) {
		case *types.Alias:
			walk(where, types.Unalias(t))
		case *types.Named:
			for arg := range t.TypeArgs().Types() {
				walk(where, arg)
			}
			if t.Obj().Pkg() != api {
				return
			}
			for m := range t.Methods() {
				if m.Exported() {
					walk(where+"."+m.Name(), m.Type())
				}
			}
			walk(where, t.Underlying())
		case *types.Struct:
			for f := range t.Fields() {
				if f.Exported() {
					walk(where+"."+f.Name(), f.Type())
				}
			}
		case *types.Interface:
			for m := range t.Methods() {
				if m.Exported() {
					walk(where+"."+m.Name(), m.Type())
				}
			}
			for e := range t.EmbeddedTypes() {
				walk(where, e)
			}
		case *types.Signature:
			tuple(where, t.Params())
			tuple(where, t.Results())
		case *types.Map:
			walk(where, t.Key())
			walk(where, t.Elem())
		case interface{ Elem() types.Type }: // pointers, slices, arrays, channels
			walk(where, t.Elem())
		}
	}
	for _, name := range api.Scope().Names() {
		if o := api.Scope().Lookup(name); o.Exported() {
			walk(name, o.Type())
		}
	}
}

func TestExportedAPIMentionsNoTypeOfOthers(t *testing.T) {
	t.Parallel()
	api := rootAPI(t)
	met := 0
	mentions(api, func(where string, named *types.TypeName) {
		pkg := named.Pkg()
		if pkg == nil || pkg == api { // error and comparable, or our own
			met++
			return
		}
		if first, _, _ := strings.Cut(pkg.Path(), "/"); strings.Contains(first, ".") {
			t.Errorf("%s mentions %s.%s: the API has its own types and those of the standard library", where, pkg.Path(), named.Name())
		}
	})
	if met < 50 {
		t.Errorf("the API mentions %d types of its own: the test does not see it", met)
	}
}

// A volume comes with a sandbox. Making one alone is not what this library is for.
func TestNoFunctionMakesAVolumeAlone(t *testing.T) {
	t.Parallel()
	makes := regexp.MustCompile(`^(Create|New|Make|Add|Ensure|GetOrCreate|Provision).*Volume`)
	api := rootAPI(t)
	check := func(name string, o types.Object) {
		sig, ok := o.Type().(*types.Signature)
		if !ok || !o.Exported() {
			return
		}
		if makes.MatchString(o.Name()) {
			t.Errorf("%s makes a volume alone", name)
		}
		// Whoever returns one volume made it or looked for it.
		for v := range sig.Results().Variables() {
			named, ok := v.Type().(*types.Named)
			if ok && named.Obj().Name() == "Volume" && !strings.HasPrefix(o.Name(), "Inspect") {
				t.Errorf("%s returns a volume: does it make one?", name)
			}
		}
	}
	for _, name := range api.Scope().Names() {
		o := api.Scope().Lookup(name)
		check(name, o)
		if named, ok := o.Type().(*types.Named); ok && o.Exported() {
			for m := range named.Methods() {
				check(name+"."+m.Name(), m)
			}
		}
	}
}

// Docker alone. No interface of the API has another provider behind it: nobody else
// can implement one.
func TestNobodyElseImplementsAnInterface(t *testing.T) {
	t.Parallel()
	api, met := rootAPI(t), 0
	for _, name := range api.Scope().Names() {
		o, ok := api.Scope().Lookup(name).(*types.TypeName)
		if !ok || !o.Exported() || !types.IsInterface(o.Type()) {
			continue
		}
		met++
		open := true
		for m := range o.Type().Underlying().(*types.Interface).Methods() {
			open = open && m.Exported()
		}
		if open {
			t.Errorf("anybody can implement %s", name)
		}
	}
	if met < 5 {
		t.Errorf("the API has %d interfaces: the test does not see it", met)
	}
}

// keepsState is for the ranks: all but those that write what a caller asks for, copies and
// clones.
func keepsState(s source) bool {
	_, is := ranks[s.name()]
	return is && !slices.Contains([]string{"archive", "git", "guest/trees"}, s.name()) // trees reads below a root
}

// sockets is the exception to the rule that they write nothing: ssh's control sockets are in
// directories, which end with them.
const sockets = "internal/engine/sshmaster.go"

// The engine is the only place where state lives: no file is written on the caller's
// machine by the packages that keep it.
func TestNoFileIsWritten(t *testing.T) {
	t.Parallel()
	writes := regexp.MustCompile(`^(Create|CreateTemp|WriteFile|Mkdir|MkdirAll|MkdirTemp|OpenFile|OpenRoot|OpenInRoot|Rename|Link|Symlink|CopyFS|Truncate|Chmod|Chown|Lchown|Chtimes|Remove|RemoveAll)$`)
	excepted := false
	for _, s := range sourcesOf(t, keepsState) {
		if s.file == sockets {
			excepted = true
			continue
		}
		names := map[string]bool{} // under which package os is known here
		for _, i := range s.ast.Imports {
			switch p, _ := strconv.Unquote(i.Path.Value); {
			case p == "io/ioutil":
				t.Errorf("%s imports io/ioutil", s.at(i))
			case p == "os" && i.Name == nil:
				names["os"] = true
			case p == "os":
				names[i.Name.Name] = true
			}
		}
		ast.Inspect(s.ast, func(n ast.Node) bool {
			sel, ok := n.(*ast.SelectorExpr)
			if !ok || !writes.MatchString(sel.Sel.Name) {
				return true
			}
			if x, ok := sel.X.(*ast.Ident); ok && names[x.Name] {
				t.Errorf("%s: os.%s: labels in the engine are the only state", s.at(n), sel.Sel.Name)
			}
			return true
		})
	}
	if !excepted {
		t.Errorf("there is no %s, which is an exception", sockets)
	}
}

// Nobody is asked and nothing is told but through what the caller passed.
func TestNothingIsReadOrPrinted(t *testing.T) {
	t.Parallel()
	says := regexp.MustCompile(`^(os\.(Stdin|Stdout|Stderr|Exit)|fmt\.(Print|Printf|Println|Scan|Scanf|Scanln)|log\.(Print|Printf|Println|Fatal|Fatalf|Panic))$`)
	for _, s := range sourcesOf(t, func(s source) bool { _, is := ranks[s.name()]; return is }) {
		ast.Inspect(s.ast, func(n ast.Node) bool {
			sel, ok := n.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			if x, ok := sel.X.(*ast.Ident); ok && says.MatchString(x.Name+"."+sel.Sel.Name) {
				t.Errorf("%s: %s.%s", s.at(n), x.Name, sel.Sel.Name)
			}
			return true
		})
	}
}

// A call of another package's method names the field that has it: a type that embeds a type of
// another package of ours would have its methods, too, and the reader of a call could not see which
// layer answers. Types without methods can be embedded.
func TestNoMethodsAreInheritedFromOtherPackages(t *testing.T) {
	t.Parallel()
	below := func(s source) bool { return s.within("internal") }
	methods := map[string]int{} // of each type, by import path and name
	for _, s := range sourcesOf(t, below) {
		for _, d := range s.ast.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && f.Recv != nil {
				methods[s.pkg+"."+receiverName(f)]++
			}
		}
	}
	if len(methods) < 100 {
		t.Errorf("%d types below internal have methods: the test does not see them", len(methods))
	}
	for _, s := range sourcesOf(t, below) {
		paths := map[string]string{} // what each name of an import means in this file
		for i, p := range s.imports() {
			name := path.Base(p)
			if given := s.ast.Imports[i].Name; given != nil {
				name = given.Name
			}
			paths[name] = p
		}
		ast.Inspect(s.ast, func(n ast.Node) bool {
			typ, ok := n.(*ast.StructType)
			if !ok {
				return true
			}
			for _, f := range typ.Fields.List {
				embedded := f.Type
				if star, ok := embedded.(*ast.StarExpr); ok {
					embedded = star.X
				}
				sel, ok := embedded.(*ast.SelectorExpr)
				if !ok || len(f.Names) > 0 {
					continue
				}
				if of := paths[types.ExprString(sel.X)] + "." + sel.Sel.Name; strings.HasPrefix(of, module+"/") && methods[of] > 0 {
					t.Errorf("%s: embeds %s, which has %d methods: give the field a name", s.at(f), types.ExprString(sel), methods[of])
				}
			}
			return true
		})
	}
}

// A wait with nothing but a time and a context is bound.Sleep, and a call that outlives its caller's context
// is bound by bound.Outlive. What waits for something of its own, or a time at most, does so where it is.
func TestWaitsAreInOnePackage(t *testing.T) {
	t.Parallel()
	found := 0
	for _, s := range sourcesOf(t, func(s source) bool { _, is := ranks[s.name()]; return is }) {
		ast.Inspect(s.ast, func(n ast.Node) bool {
			use := misplacedWait(n)
			switch {
			case use == "":
			case s.name() == "bound":
				found++
			default:
				t.Errorf("%s: use %s", s.at(n), use)
			}
			return true
		})
	}
	if found != 2 {
		t.Errorf("package bound has %d waits, want those of Sleep and Outlive: the test does not see them", found)
	}
}

// misplacedWait returns which function of package bound does what n does, or "".
func misplacedWait(n ast.Node) string {
	switch n := n.(type) {
	case *ast.CallExpr:
		of := types.ExprString(n.Fun)
		if of == "time.Sleep" {
			return "bound.Sleep"
		}
		if of != "context.WithTimeout" && of != "context.WithDeadline" {
			return ""
		}
		if parent, is := n.Args[0].(*ast.CallExpr); is && types.ExprString(parent.Fun) == "context.WithoutCancel" {
			return "bound.Outlive"
		}
	case *ast.SelectStmt:
		times := 0
		for _, c := range n.Body.List {
			receive, is := c.(*ast.CommClause).Comm.(*ast.ExprStmt)
			if !is {
				return ""
			}
			switch from := strings.TrimPrefix(types.ExprString(receive.X), "<-"); {
			case from == "tick.C": // a rhythm
				return ""
			case strings.HasPrefix(from, "time.After("), strings.HasSuffix(from, ".C"):
				times++
			case !regexp.MustCompile(`(?i)^(\w+\.)*(ctx|own|life|context)\.Done\(\)$`).MatchString(from):
				return ""
			}
		}
		if times > 0 {
			return "bound.Sleep"
		}
	}
	return ""
}

// receiverName is the name of a method's type.
func receiverName(f *ast.FuncDecl) string {
	typ := f.Recv.List[0].Type
	if star, ok := typ.(*ast.StarExpr); ok {
		typ = star.X
	}
	if index, ok := typ.(*ast.IndexExpr); ok {
		typ = index.X
	}
	return types.ExprString(typ)
}

// widths bound how many names each package below internal exports: types, functions, methods of
// exported types, variables and constants, without fields. The commit that raises a bound says why.
var widths = map[string]int{
	"errdefs":        31,
	"bound":          15,
	"policy":         40,
	"archive":        52,
	"guest/trees":    10,
	"guest/wire":     282,
	"git":            20,
	"engine":         155,
	"guest":          85,
	"guest/accounts": 10,
	"record":         150,
	"claim":          45,
	"trace":          25,
	"source":         25,
	"plan":           52,
	"store":          95,
	"machine":        75,
	"transfer":       35,
	"provision":      30,
	"lifecycle":      65,
	"files":          50,
	"cluster":        20,
}

func TestPackagesStayNarrow(t *testing.T) {
	t.Parallel()
	names := map[string]int{}
	for _, s := range sourcesOf(t, func(s source) bool { return s.within("internal") && !isTool(s) }) {
		names[s.name()] += exportedNames(s.ast)
	}
	for pkg, n := range names {
		switch bound, is := widths[pkg]; {
		case !is:
			t.Errorf("%s exports %d names and has no bound", pkg, n)
		case n > bound:
			t.Errorf("%s exports %d names, its bound is %d", pkg, n, bound)
		}
	}
	for pkg := range widths {
		if names[pkg] == 0 {
			t.Errorf("there is no package %s, which has a bound", pkg)
		}
	}
}

// isTool reports whether a file is for tests or generates other files.
func isTool(s source) bool {
	return s.ast.Name.Name == "main" || strings.HasSuffix(s.name(), "test") || strings.Contains(s.name(), "guest/cmd")
}

// exportedNames counts the exported names that a file declares.
func exportedNames(file *ast.File) (n int) {
	for _, d := range file.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			if d.Name.IsExported() && (d.Recv == nil || ast.IsExported(receiverName(d))) {
				n++
			}
		case *ast.GenDecl:
			for _, spec := range d.Specs {
				switch spec := spec.(type) {
				case *ast.TypeSpec:
					if spec.Name.IsExported() {
						n++
					}
				case *ast.ValueSpec:
					for _, name := range spec.Names {
						if name.IsExported() {
							n++
						}
					}
				}
			}
		}
	}
	return n
}

// customary are methods that implement what everybody knows.
var customary = []string{"Error", "Unwrap", "Is", "As", "String", "Write", "Read", "MarshalJSON", "UnmarshalJSON", "LogValue"}

func TestEveryExportedNameIsDocumented(t *testing.T) {
	t.Parallel()
	packages := map[string]string{} // import path to a file of it, while undocumented
	for _, s := range sourcesOf(t, func(source) bool { return true }) {
		if _, seen := packages[s.pkg]; !seen {
			packages[s.pkg] = s.file
		}
		if s.ast.Doc != nil {
			packages[s.pkg] = ""
		}
		for _, d := range s.ast.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				if undocumentedFunc(d) {
					t.Errorf("%s: %s has no doc comment", s.at(d), d.Name.Name)
				}
			case *ast.GenDecl:
				for _, name := range undocumented(d) {
					t.Errorf("%s: %s has no doc comment", s.at(name), name.Name)
				}
			}
		}
	}
	for pkg, file := range packages {
		if file != "" {
			t.Errorf("package %s (%s) has no doc comment", pkg, file)
		}
	}
}

func undocumentedFunc(d *ast.FuncDecl) bool {
	if d.Doc != nil || !d.Name.IsExported() {
		return false
	}
	if d.Recv == nil {
		return true
	}
	recv := d.Recv.List[0].Type
	if star, ok := recv.(*ast.StarExpr); ok {
		recv = star.X
	}
	if index, ok := recv.(*ast.IndexExpr); ok {
		recv = index.X
	}
	id, ok := recv.(*ast.Ident)
	return ok && id.IsExported() && !slices.Contains(customary, d.Name.Name)
}

// undocumented returns the exported names of a declaration that neither they nor their
// group says anything about.
func undocumented(d *ast.GenDecl) (names []*ast.Ident) {
	for _, spec := range d.Specs {
		switch spec := spec.(type) {
		case *ast.TypeSpec:
			if d.Doc == nil && spec.Doc == nil && spec.Comment == nil && spec.Name.IsExported() {
				names = append(names, spec.Name)
			}
		case *ast.ValueSpec:
			for _, name := range spec.Names {
				if d.Doc == nil && spec.Doc == nil && spec.Comment == nil && name.IsExported() {
					names = append(names, name)
				}
			}
		}
	}
	return names
}

// implied are methods that other packages call.
var implied = slices.Concat(customary, []string{"ReadFrom", "WriteTo", "MarshalText", "UnmarshalText"})

// exampled are the verbs of a package: functions that are no options, and methods.
var exampled = map[string]*regexp.Regexp{
	".":           regexp.MustCompile(`^(Sandbox|Files|Cmd|File|Client|NetworkPolicy)$`),
	"sandboxhttp": regexp.MustCompile(`^$`),
	"sandboxtest": regexp.MustCompile(`^$`),
}

// Every verb is called in an example, and a function has one of its own name, which its
// documentation shows.
func TestEveryVerbHasAnExample(t *testing.T) {
	t.Parallel()
	all, err := sources()
	if err != nil {
		t.Fatal(err)
	}
	for dir, receivers := range exampled {
		verbs := map[string]bool{} // whether it is a method
		named, called := map[string]bool{}, map[string]bool{}
		for _, s := range all {
			if path.Dir(s.file) != dir {
				continue
			}
			for _, d := range s.ast.Decls {
				f, ok := d.(*ast.FuncDecl)
				switch {
				case !ok:
				case s.test && strings.HasPrefix(f.Name.Name, "Example"):
					named[f.Name.Name] = true
					ast.Inspect(f, func(n ast.Node) bool {
						if sel, ok := n.(*ast.SelectorExpr); ok {
							called[sel.Sel.Name] = true
						}
						return true
					})
				case s.test || !f.Name.IsExported() || slices.Contains(implied, f.Name.Name) || isOption(f):
				case f.Recv == nil:
					verbs[f.Name.Name] = false
				case receivers.MatchString(receiver(f)):
					if _, function := verbs[f.Name.Name]; !function {
						verbs[f.Name.Name] = true
					}
				}
			}
		}
		for verb, method := range verbs {
			if !called[verb] {
				t.Errorf("%s: no example calls %s", dir, verb)
			}
			own := func(name string) bool { return strings.HasPrefix(name+"_", "Example"+verb+"_") }
			if !method && !slices.ContainsFunc(slices.Collect(maps.Keys(named)), own) {
				t.Errorf("%s: there is no Example%s", dir, verb)
			}
		}
		if len(verbs) < 3 {
			t.Errorf("%s has %d verbs: the test does not see them", dir, len(verbs))
		}
	}
}

// untraced are the verbs that make no span, each with its reason.
var untraced = map[string]string{
	"Sandbox.Command": "its span is from Start to Wait",
	"Files.ReadFile":  oneFile, "Files.WriteFile": oneFile, "Files.WriteFrom": oneFile, "Files.Mkdir": oneFile, "Files.MkdirAll": oneFile,
	"Files.MkdirTemp": oneFile, "Files.Remove": oneFile, "Files.RemoveAll": oneFile, "Files.Rename": oneFile,
	"Files.Symlink": oneFile, "Files.Readlink": oneFile, "Files.Chmod": oneFile, "Files.Chown": oneFile,
	"Files.Lchown": oneFile, "Files.Chtimes": oneFile, "Files.Truncate": oneFile, "Files.Stat": oneFile,
	"Files.Lstat": oneFile, "Files.ReadDir": oneFile, "Files.Open": oneFile, "Files.Create": oneFile,
	"Files.OpenFile": oneFile,
}

const oneFile = "calls of single files are too many and too short"

// Every verb makes a span, as the package's documentation says. A function without receiver calls
// the default client's method.
func TestEveryVerbIsTraced(t *testing.T) {
	t.Parallel()
	unused := maps.Clone(untraced)
	for _, s := range sourcesOf(t, func(s source) bool { return path.Dir(s.file) == "." }) {
		for _, d := range s.ast.Decls {
			f, ok := d.(*ast.FuncDecl)
			if !ok || !f.Name.IsExported() || !takesContext(f) {
				continue
			}
			name, is, want := f.Name.Name, calls(f.Body, "trace", "Start", "Do"), "trace.Start or trace.Do"
			if f.Recv == nil {
				is, want = calls(f.Body, "defaultClient()", name), "the default client's "+name
			} else {
				name = receiver(f) + "." + name
			}
			_, exempt := unused[name]
			delete(unused, name)
			if is == exempt {
				t.Errorf("%s: %s calls %s: %v; as untraced it is listed: %v", s.file, name, want, is, exempt)
			}
		}
	}
	for name := range unused {
		t.Errorf("there is no %s, which is listed as untraced", name)
	}
}

// takesContext reports whether a function has a context as its first parameter.
func takesContext(f *ast.FuncDecl) bool {
	params := f.Type.Params.List
	return len(params) > 0 && types.ExprString(params[0].Type) == "context.Context"
}

// calls reports whether code calls one of the functions of a package, or methods of a value.
func calls(code ast.Node, of string, names ...string) (found bool) {
	ast.Inspect(code, func(n ast.Node) bool {
		if call, ok := n.(*ast.CallExpr); ok {
			sel, ok := call.Fun.(*ast.SelectorExpr)
			found = found || ok && types.ExprString(sel.X) == of && slices.Contains(names, sel.Sel.Name)
		}
		return !found
	})
	return found
}

// receiver is the type of a method without its pointer; that of the methods that Sandbox and Files
// have in common counts as one of them.
func receiver(f *ast.FuncDecl) string {
	typ := f.Recv.List[0].Type
	if star, ok := typ.(*ast.StarExpr); ok {
		typ = star.X
	}
	id, _ := typ.(*ast.Ident)
	if id == nil || id.Name == "fileCalls" {
		return "Files"
	}
	return id.Name
}

// isOption reports whether the function returns an option, or something else that is only passed
// on.
func isOption(f *ast.FuncDecl) bool {
	if f.Type.Results == nil || len(f.Type.Results.List) != 1 || f.Recv != nil {
		return false
	}
	switch t := f.Type.Results.List[0].Type.(type) {
	case *ast.Ident:
		return strings.HasSuffix(t.Name, "Option") || t.Name == "Source" || t.Name == "NetworkPolicy"
	case *ast.SelectorExpr:
		return strings.HasSuffix(t.Sel.Name, "Option")
	}
	return false
}
