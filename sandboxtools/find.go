package sandboxtools

import (
	"bufio"
	"bytes"
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
)

const (
	maxLine   = 64 << 10 // bytes of a line that is searched as one
	maxFiles  = 50_000   // files and directories that one search looks into
	maxSearch = 1 << 30  // bytes that one search reads
	maxDepth  = 500      // of directories
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
			property{"pattern", "string", false, "such as *.go, src/**/*_test.go, where ** is any number of directories, or *.{js,ts}"},
			property{"path", "string", true, "the directory, default the working directory of the sandbox"},
		),
	}, s.glob)
}

func (s *set) glob(ctx context.Context, in globInput) (Result, error) {
	if in.Pattern == "" {
		return Result{}, missing("pattern")
	}
	if err := cmp.Or(checkHome(in.Path), checkHome(in.Pattern)); err != nil {
		return Result{}, err
	}
	patterns, err := parsePatterns(in.Pattern)
	if err != nil {
		return Result{}, fmt.Errorf("pattern %q: %w", in.Pattern, err)
	}
	var out Result
	free := s.limits.Output
	w := walker{set: s, visit: func(_ context.Context, name, below string, _ fs.DirEntry) error {
		parts := strings.Split(below, "/")
		if !slices.ContainsFunc(patterns, func(p []string) bool { return match(p, parts) }) {
			return nil
		}
		name = valid([]byte(name))
		if free -= len(name) + 1; free < 0 || len(out.Paths) == s.limits.paths() {
			return errEnough
		}
		out.Paths = append(out.Paths, name)
		return nil
	}}
	err = w.walk(ctx, in.Path, "", 0)
	out.More = errors.Is(err, errEnough)
	if err != nil && !out.More {
		return Result{}, err
	}
	out.Text = listed(out.Paths, "files", out.More)
	return out, nil
}

const (
	maxPattern      = 1000 // bytes
	maxAlternatives = 200
)

// parsePatterns returns the parts, for match, of each pattern that one with alternatives stands for.
func parsePatterns(pattern string) (all [][]string, err error) {
	if len(pattern) > maxPattern {
		return nil, fmt.Errorf("it has more than %d bytes", maxPattern)
	}
	alternatives, ok := alternatives(nil, pattern)
	if !ok {
		return nil, fmt.Errorf("it has more than %d alternatives", maxAlternatives)
	}
	for _, one := range alternatives {
		if path.IsAbs(one) {
			return nil, errors.New("it has to be relative to path")
		}
		parts := slices.CompactFunc(strings.Split(path.Clean(one), "/"), func(a, b string) bool { return a == "**" && b == "**" })
		for i, part := range parts {
			parts[i] = classes.ReplaceAllStringFunc(part, negate)
			if _, err := path.Match(parts[i], ""); err != nil || part == ".." {
				return nil, cmp.Or(err, errors.New("it leaves the directory"))
			}
		}
		all = append(all, parts)
	}
	return all, nil
}

// classes finds classes of characters, and characters after a backslash.
var classes = regexp.MustCompile(`(?s)\\.|\[(\\.|[^\\\]])*`)

// negate makes the [!a-z] of shells the [^a-z] of package path.
func negate(class string) string {
	if rest, ok := strings.CutPrefix(class, "[!"); ok {
		return "[^" + rest
	}
	return class
}

// alternatives appends the patterns that one with braces stands for, as in a shell: {a,b} is a or b, and braces without a
// comma are themselves. ok is false if there are too many.
func alternatives(all []string, pattern string) (_ []string, ok bool) {
	for i := 0; i < len(pattern); i++ {
		switch pattern[i] {
		case '\\':
			i++
		case '{':
			choices, length := choices(pattern[i:])
			for _, c := range choices {
				if all, ok = alternatives(all, pattern[:i]+c+pattern[i+length:]); !ok {
					return all, false
				}
			}
			if choices != nil {
				return all, true
			}
		}
	}
	return append(all, pattern), len(all) < maxAlternatives
}

// choices returns what is between the commas of the braces that text begins with, and their length. There are none without a comma,
// or if the brace is not closed.
func choices(text string) (all []string, length int) {
	depth, begin := 0, 1
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case c == '\\':
			i++
		case c == '{':
			depth++
		case c == ',' && depth == 1:
			all, begin = append(all, text[begin:i]), i+1
		case c == '}':
			if depth--; depth > 0 {
				continue
			}
			if all == nil {
				return nil, 0
			}
			return append(all, text[begin:i]), i + 1
		}
	}
	return nil, 0
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
			property{"files", "string", true, "look only into files whose names match this, such as *.go or *.{js,ts}, or with a slash their paths below path, such as src/**/*.go"},
		),
	}, s.grep)
}

func (s *set) grep(ctx context.Context, in grepInput) (Result, error) {
	if err := checkHome(in.Path); err != nil {
		return Result{}, err
	}
	pattern, err := regexp.Compile(in.Pattern)
	if err != nil {
		return Result{}, err
	}
	names, err := parsePatterns(cmp.Or(in.Files, "*"))
	if err != nil {
		return Result{}, fmt.Errorf("files %q: %w", in.Files, err)
	}
	limited, cancel := context.WithTimeoutCause(ctx, s.limits.CommandTime, errEnough)
	defer cancel()
	f := &finder{set: s, pattern: pattern, bytes: s.limits.Output, unread: io.LimitedReader{N: maxSearch}}
	w := walker{set: s, visit: func(ctx context.Context, name, below string, e fs.DirEntry) error {
		parts, last := strings.Split(below, "/"), []string{e.Name()}
		fits := func(p []string) bool {
			if len(p) == 1 {
				return match(p, last)
			}
			return match(p, parts)
		}
		if !e.Type().IsRegular() || !slices.ContainsFunc(names, fits) {
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
		if ctx.Err() != nil {
			return context.Cause(ctx)
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

// file searches one file, unless a zero byte near its beginning shows that it is not a text file.
func (f *finder) file(ctx context.Context, name string) error {
	file, done, err := f.set.open(ctx, name)
	if err != nil {
		return err
	}
	defer done()
	f.unread.R = file
	r := bufio.NewReaderSize(&f.unread, maxLine)
	if head, _ := r.Peek(maxLine); slices.Contains(head, 0) {
		return nil
	}
	for n := 1; ; n++ {
		line, matches, err := f.line(r)
		switch {
		case errors.Is(err, io.EOF) && f.unread.N == 0:
			return errEnough
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		case !matches:
			continue
		}
		text := string(line[:min(len(line), 500)])
		if f.bytes -= len(text) + len(name); f.bytes < 0 || len(f.matches) == f.limits.matches() {
			return errEnough
		}
		f.matches = append(f.matches, Match{Path: valid([]byte(name)), Line: n, Text: valid([]byte(text))})
	}
}

// line returns the next line, of one that is longer than maxLine the beginning, and whether it matches. There is no line if err is not nil.
func (f *finder) line(r *bufio.Reader) (line []byte, matches bool, err error) {
	line, err = r.ReadSlice('\n')
	switch {
	case errors.Is(err, bufio.ErrBufferFull):
		line = bytes.Clone(line)
		rest := &lineReader{r: r}
		matches = f.pattern.MatchReader(bufio.NewReader(io.MultiReader(bytes.NewReader(line), rest)))
		_, err = io.Copy(io.Discard, rest)
		return line, matches && err == nil, err
	case err == nil, errors.Is(err, io.EOF) && len(line) > 0:
		line = bytes.TrimSuffix(bytes.TrimSuffix(line, []byte("\n")), []byte("\r"))
		return line, f.pattern.Match(line), nil
	}
	return nil, false, err
}

// lineReader reads a line to its end.
type lineReader struct {
	r    *bufio.Reader
	part []byte
	err  error
}

func (l *lineReader) Read(p []byte) (int, error) {
	if len(l.part) == 0 && l.err == nil {
		part, err := l.r.ReadSlice('\n')
		l.part = part
		if !errors.Is(err, bufio.ErrBufferFull) {
			l.part = bytes.TrimSuffix(bytes.TrimSuffix(part, []byte("\n")), []byte("\r"))
			l.err = cmp.Or(err, io.EOF)
		}
	}
	if len(l.part) == 0 {
		return 0, l.err
	}
	n := copy(p, l.part)
	l.part = l.part[n:]
	return n, nil
}
