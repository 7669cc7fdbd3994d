package sandboxtools

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"unicode/utf8"
)

const (
	maxLine   = 1 << 20 // bytes of a line of a file that is searched
	maxFiles  = 50_000  // files and directories that one search looks into
	maxSearch = 1 << 30 // bytes that one search reads
	maxDepth  = 500     // of directories
)

// matches is how many lines a result of grep has at most, and paths how many paths one of glob: more if
// it may be longer than by default.
func (o Options) matches() int { return max(200, o.Output/164) }
func (o Options) paths() int   { return max(1000, o.Output/33) }

// unsearched are directories that are left out.
var unsearched = []string{".git", "node_modules"}

var errEnough = errors.New("enough was found")

type globInput struct {
	Pattern string `json:"pattern"`
	Path    string `json:"path"`
}

func (s *set) globTool() Tool {
	return define(s, Tool{
		Name: "glob",
		Description: fmt.Sprintf("Find files and directories by their names, %d at most. Directories named %s are left out.",
			s.limits.paths(), strings.Join(unsearched, " and ")),
		ReadOnly: true,
		Schema: schema(
			property{"pattern", "string", false, "such as *.go, or src/**/*_test.go, where ** is any number of directories"},
			property{"path", "string", true, "the directory, default the working directory of the sandbox"},
		),
	}, s.glob)
}

func (s *set) glob(ctx context.Context, in globInput) (Result, error) {
	if in.Pattern == "" || path.IsAbs(in.Pattern) {
		return Result{}, fmt.Errorf("pattern %q: it has to be relative to path", in.Pattern)
	}
	pattern := strings.Split(path.Clean(in.Pattern), "/")
	for _, part := range pattern {
		if _, err := path.Match(part, ""); err != nil || part == ".." {
			return Result{}, fmt.Errorf("pattern %q: %w", in.Pattern, cmp.Or(err, errors.New("it leaves the directory")))
		}
	}
	var out Result
	free := s.limits.Output
	w := walker{set: s, visit: func(_ context.Context, name, below string, _ fs.DirEntry) error {
		if !match(pattern, strings.Split(below, "/")) {
			return nil
		}
		name = valid([]byte(name))
		if free -= len(name) + 1; free < 0 || len(out.Paths) == s.limits.paths() {
			return errEnough
		}
		out.Paths = append(out.Paths, name)
		return nil
	}}
	err := w.walk(ctx, in.Path, "", 0)
	out.More = errors.Is(err, errEnough)
	if err != nil && !out.More {
		return Result{}, err
	}
	out.Text = listed(out.Paths, "files", out.More)
	return out, nil
}

// match reports whether the parts of a path match those of a pattern. It takes time in the product of
// their numbers, however many ** there are.
func match(pattern, name []string) bool {
	ends := make([]bool, len(name)+1) // that the pattern so far matches that many parts
	ends[0] = true
	for _, part := range pattern {
		next := make([]bool, len(name)+1)
		for i := range next {
			switch {
			case part == "**":
				next[i] = ends[i] || i > 0 && next[i-1]
			case i > 0 && ends[i-1]:
				next[i], _ = path.Match(part, name[i-1])
			}
		}
		ends = next
	}
	return ends[len(name)]
}

// listed is a list as text.
func listed(lines []string, what string, more bool) string {
	if len(lines) == 0 && !more {
		return "[no " + what + " found]"
	}
	text := strings.Join(lines, "\n")
	if more {
		text += "\n[there are more, or there was more to search: narrow it]"
	}
	return text
}

type grepInput struct {
	Pattern string `json:"pattern"`
	Path    string `json:"path"`
	Files   string `json:"files"`
}

func (s *set) grepTool() Tool {
	return define(s, Tool{
		Name: "grep",
		Description: fmt.Sprintf("Find the lines of text files that match a regular expression, %d lines at most. Directories named %s are left out.",
			s.limits.matches(), strings.Join(unsearched, " and ")),
		ReadOnly: true,
		Schema: schema(
			property{"pattern", "string", false, "a regular expression in Go's syntax"},
			property{"path", "string", true, "the directory or file, default the working directory of the sandbox"},
			property{"files", "string", true, "look only into files whose names match this, such as *.go, or with a slash their paths below path, such as src/**/*.go"},
		),
	}, s.grep)
}

func (s *set) grep(ctx context.Context, in grepInput) (Result, error) {
	pattern, err := regexp.Compile(in.Pattern)
	if err != nil {
		return Result{}, err
	}
	if _, err := path.Match(in.Files, ""); err != nil {
		return Result{}, fmt.Errorf("files %q: %w", in.Files, err)
	}
	limited, cancel := context.WithTimeoutCause(ctx, s.limits.CommandTime, errEnough)
	defer cancel()
	names := cmp.Or(in.Files, "*")
	f := &finder{set: s, pattern: pattern, bytes: s.limits.Output, unread: io.LimitedReader{N: maxSearch}}
	w := walker{set: s, visit: func(ctx context.Context, name, below string, e fs.DirEntry) error {
		if !strings.Contains(names, "/") {
			below = e.Name()
		}
		if !e.Type().IsRegular() || !match(strings.Split(names, "/"), strings.Split(below, "/")) {
			return nil
		}
		return f.file(ctx, name)
	}}
	info, err := s.sb.Stat(limited, cmp.Or(in.Path, "."))
	switch {
	case err != nil:
	case info.IsDir():
		err = w.walk(limited, in.Path, "", 0)
	default:
		err = f.file(limited, in.Path)
	}
	more := errors.Is(err, errEnough) || ctx.Err() == nil && errors.Is(context.Cause(limited), errEnough)
	if err != nil && !more {
		return Result{}, err
	}
	var lines []string
	for _, m := range f.matches {
		lines = append(lines, fmt.Sprintf("%s:%d:%s", m.Path, m.Line, m.Text))
	}
	return Result{Text: listed(lines, "lines", more), Matches: f.matches, More: more}, nil
}

// walker visits the files and directories below one, without following links.
type walker struct {
	*set
	// visit gets the path of a file, and the same without the directory where the walk began.
	visit func(ctx context.Context, name, below string, e fs.DirEntry) error
	seen  int
}

// walk visits what is in the directory root/below.
func (w *walker) walk(ctx context.Context, root, below string, depth int) error {
	if depth > maxDepth {
		return errEnough
	}
	all, err := w.sb.ReadDir(ctx, cmp.Or(path.Join(root, below), "."))
	if err != nil {
		return err
	}
	for _, e := range all {
		if w.seen++; w.seen > maxFiles {
			return errEnough
		}
		name := path.Join(below, e.Name())
		if e.IsDir() && slices.Contains(unsearched, e.Name()) {
			continue
		}
		err := w.visit(ctx, path.Join(root, name), name, e)
		if err == nil && e.IsDir() {
			err = w.walk(ctx, root, name, depth+1)
		}
		// What is removed or replaced meanwhile, or can't be read, is not found.
		gone := errors.Is(err, fs.ErrNotExist) || errors.Is(err, errNotRegular) || errors.Is(err, syscall.ENOTDIR)
		if err != nil && !gone && !errors.Is(err, fs.ErrPermission) {
			return err
		}
	}
	return nil
}

// finder collects lines that match a pattern.
type finder struct {
	*set
	pattern *regexp.Regexp
	matches []Match
	bytes   int              // that the result may still have
	unread  io.LimitedReader // of the file that is searched; its bound is for all files
}

// file searches one file, unless it is not a text file.
func (f *finder) file(ctx context.Context, name string) error {
	file, done, err := f.set.open(ctx, name)
	if err != nil {
		return err
	}
	defer done()
	f.unread.R = file
	scanner := bufio.NewScanner(&f.unread)
	scanner.Buffer(make([]byte, 0, 64<<10), maxLine)
	for n := 1; scanner.Scan(); n++ {
		line := scanner.Bytes()
		if !utf8.Valid(line) || slices.Contains(line, 0) {
			return nil
		}
		if !f.pattern.Match(line) {
			continue
		}
		text := string(line[:min(len(line), 500)])
		if f.bytes -= len(text) + len(name); f.bytes < 0 || len(f.matches) == f.limits.matches() {
			return errEnough
		}
		f.matches = append(f.matches, Match{Path: valid([]byte(name)), Line: n, Text: valid([]byte(text))})
	}
	switch err := scanner.Err(); {
	case err != nil && !errors.Is(err, bufio.ErrTooLong):
		return err
	case f.unread.N == 0:
		return errEnough
	}
	return nil
}
