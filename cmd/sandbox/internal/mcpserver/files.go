package mcpserver

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"unicode/utf8"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/seed-1a2d6d8f/sandbox"
)

const (
	maxEdit    = 8 << 20 // bytes of a file that can be edited
	maxEntries = 1000    // of a directory, in one result
	maxLine    = 1 << 20 // bytes of a line of a file that is searched
	maxFiles   = 50_000  // files and directories that one search looks into
	maxSearch  = 1 << 30 // bytes that one search reads
	maxSkip    = 1 << 28 // bytes of the lines before those that are read
	maxMatches = 200     // lines in the result of a search
)

func (s *Server) addFileTools(server *mcp.Server) {
	add(server, "read", fmt.Sprintf("Read lines of a text file, %d bytes at most.", s.limits.Output), readOnly, bounded(s, s.read))
	add(server, "write", "Write a file, and make the directories that it is in.", changes, bounded(s, s.write))
	add(server, "edit", "Replace a text in a file. The text has to occur exactly once, unless all is set.", changes, bounded(s, s.edit))
	add(server, "list", fmt.Sprintf("List a directory, %d entries at most.", maxEntries), readOnly, bounded(s, s.dir))
	add(server, "search", fmt.Sprintf("Find the lines of text files below a directory that match a regular expression, %d lines at most. "+
		"Directories named .git and node_modules are left out.", maxMatches), readOnly, s.search)
}

// bounded bounds the time of a tool.
func bounded[In, Out any](s *Server, fn func(context.Context, *mcp.CallToolRequest, In) (Out, error)) func(context.Context, *mcp.CallToolRequest, In) (Out, error) {
	return func(ctx context.Context, req *mcp.CallToolRequest, in In) (Out, error) {
		late := fmt.Errorf("it took longer than %v, which is the limit", s.limits.CommandTime)
		ctx, cancel := context.WithTimeoutCause(ctx, s.limits.CommandTime, late)
		defer cancel()
		out, err := fn(ctx, req, in)
		if err != nil && ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return out, err
	}
}

// open opens a regular file to read it. Reads end with ctx. The caller calls done afterwards.
func open(ctx context.Context, sb *sandbox.Sandbox, name string) (f *sandbox.File, done func(), err error) {
	f, err = sb.Open(ctx, name)
	if err != nil {
		return nil, nil, err
	}
	unbind := context.AfterFunc(ctx, func() { f.Close() })
	done = func() {
		if unbind() {
			f.Close()
		}
	}
	info, err := f.Stat()
	if err == nil {
		err = checkRegular(name, info)
	}
	if err != nil {
		done()
		return nil, nil, err
	}
	return f, done, nil
}

// checkRegular refuses files that may have no end, or that wait for somebody.
func checkRegular(name string, info fs.FileInfo) error {
	switch {
	case info.IsDir():
		return fmt.Errorf("%s is a directory", name)
	case !info.Mode().IsRegular():
		return fmt.Errorf("%s %w", name, errNotRegular)
	}
	return nil
}

var errNotRegular = errors.New("is not a regular file")

// checkTarget refuses to write to what is there and is not a regular file.
func checkTarget(ctx context.Context, sb *sandbox.Sandbox, name string) error {
	info, err := sb.Stat(ctx, name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	}
	return checkRegular(name, info)
}

// Read is the input of the tool "read".
type Read struct {
	Sandbox string `json:"sandbox"`
	Path    string `json:"path" jsonschema:"relative to /workspace unless absolute"`
	Line    int    `json:"line,omitempty" jsonschema:"the first line, default 1"`
	Lines   int    `json:"lines,omitempty" jsonschema:"the number of lines, default all"`
}

// Lines is the result of the tool "read".
type Lines struct {
	Text string `json:"text"`
	More bool   `json:"more,omitempty" jsonschema:"the file goes on after the text"`
}

func (s *Server) read(ctx context.Context, _ *mcp.CallToolRequest, in Read) (Lines, error) {
	sb, err := s.get(in.Sandbox)
	if err != nil {
		return Lines{}, err
	}
	f, done, err := open(ctx, sb, in.Path)
	if err != nil {
		return Lines{}, err
	}
	defer done()
	r := bufio.NewReaderSize(f, 64<<10)
	if err := skip(r, in.Path, in.Line-1); err != nil {
		return Lines{}, err
	}
	var text strings.Builder
	for n := 0; in.Lines <= 0 || n < in.Lines; {
		part, err := r.ReadSlice('\n')
		if free := s.limits.Output - text.Len(); len(part) > free {
			text.Write(part[:free])
			return lines(in.Path, text.String(), true)
		}
		text.Write(part)
		switch {
		case err == nil:
			n++
		case errors.Is(err, io.EOF):
			return lines(in.Path, text.String(), false)
		case !errors.Is(err, bufio.ErrBufferFull):
			return Lines{}, err
		}
	}
	_, err = r.Peek(1)
	return lines(in.Path, text.String(), err == nil)
}

// skip reads a number of lines.
func skip(r *bufio.Reader, name string, lines int) error {
	skipped, bytes := 0, int64(0)
	for skipped < lines {
		part, err := r.ReadSlice('\n')
		bytes += int64(len(part))
		switch {
		case err == nil:
			skipped++
		case errors.Is(err, io.EOF):
			if len(part) > 0 {
				skipped++
			}
			return fmt.Errorf("%s has %d lines", name, skipped)
		case !errors.Is(err, bufio.ErrBufferFull):
			return err
		}
		if bytes > maxSkip {
			return fmt.Errorf("the first %d lines of %s have more than %d bytes: use \"exec\"", lines, name, int64(maxSkip))
		}
	}
	return nil
}

// lines returns the text of a file, which is cut if there is more.
func lines(name, text string, more bool) (Lines, error) {
	if more {
		// The cut may be within a character.
		for i := 1; i < utf8.UTFMax && i <= len(text); i++ {
			if utf8.RuneStart(text[len(text)-i]) {
				if !utf8.FullRuneInString(text[len(text)-i:]) {
					text = text[:len(text)-i]
				}
				break
			}
		}
	}
	if !utf8.ValidString(text) {
		return Lines{}, fmt.Errorf("%s is not a text file in UTF-8", name)
	}
	return Lines{Text: text, More: more}, nil
}

// Write is the input of the tool "write".
type Write struct {
	Sandbox    string `json:"sandbox"`
	Path       string `json:"path" jsonschema:"relative to /workspace unless absolute"`
	Content    string `json:"content"`
	Executable bool   `json:"executable,omitempty"`
}

func (s *Server) write(ctx context.Context, _ *mcp.CallToolRequest, in Write) (None, error) {
	sb, err := s.get(in.Sandbox)
	if err != nil {
		return None{}, err
	}
	mode := os.FileMode(0o644)
	if in.Executable {
		mode = 0o755
	}
	if err := checkTarget(ctx, sb, in.Path); err != nil {
		return None{}, err
	}
	if err := sb.MkdirAll(ctx, path.Dir(in.Path), 0o755); err != nil {
		return None{}, err
	}
	if err := sb.WriteFile(ctx, in.Path, []byte(in.Content), mode); err != nil || !in.Executable {
		return None{}, err
	}
	return None{}, sb.Chmod(ctx, in.Path, mode) // of a file that was there
}

// Edit is the input of the tool "edit".
type Edit struct {
	Sandbox string `json:"sandbox"`
	Path    string `json:"path" jsonschema:"relative to /workspace unless absolute"`
	Old     string `json:"old" jsonschema:"the text to replace"`
	New     string `json:"new"`
	All     bool   `json:"all,omitempty" jsonschema:"replace it wherever it occurs"`
}

// Edited is the result of the tool "edit".
type Edited struct {
	Replaced int `json:"replaced" jsonschema:"the number of places"`
}

func (s *Server) edit(ctx context.Context, _ *mcp.CallToolRequest, in Edit) (Edited, error) {
	sb, err := s.get(in.Sandbox)
	if err != nil {
		return Edited{}, err
	}
	if in.Old == "" {
		return Edited{}, errors.New("the text to replace is empty: see the tool \"write\"")
	}
	content, err := readAll(ctx, sb, in.Path)
	if err != nil {
		return Edited{}, err
	}
	n := strings.Count(content, in.Old)
	switch {
	case n == 0:
		return Edited{}, fmt.Errorf("the text does not occur in %s", in.Path)
	case n > 1 && !in.All:
		return Edited{}, fmt.Errorf("the text occurs %d times in %s: give more of it, or set all", n, in.Path)
	}
	return Edited{Replaced: n}, sb.WriteFile(ctx, in.Path, []byte(strings.ReplaceAll(content, in.Old, in.New)), 0o644)
}

// readAll reads a file that can be edited.
func readAll(ctx context.Context, sb *sandbox.Sandbox, name string) (string, error) {
	f, done, err := open(ctx, sb, name)
	if err != nil {
		return "", err
	}
	defer done()
	content, err := io.ReadAll(io.LimitReader(f, maxEdit+1))
	switch {
	case err != nil:
		return "", err
	case len(content) > maxEdit:
		return "", fmt.Errorf("%s has more than %d bytes: too large to edit", name, maxEdit)
	case !utf8.Valid(content):
		return "", fmt.Errorf("%s is not a text file in UTF-8", name)
	}
	return string(content), nil
}

// Dir is the input of the tool "list".
type Dir struct {
	Sandbox string `json:"sandbox"`
	Path    string `json:"path,omitempty" jsonschema:"default /workspace"`
}

// Entries is the result of the tool "list".
type Entries struct {
	Entries []Entry `json:"entries"`
	More    int     `json:"more,omitempty" jsonschema:"the number of entries that are left out"`
}

// Entry is one entry of a directory.
type Entry struct {
	Name      string `json:"name"`
	Type      string `json:"type" jsonschema:"file, directory, symlink or other"`
	SizeBytes int64  `json:"sizeBytes,omitempty" jsonschema:"of a file"`
}

func (s *Server) dir(ctx context.Context, _ *mcp.CallToolRequest, in Dir) (Entries, error) {
	out := Entries{Entries: []Entry{}}
	sb, err := s.get(in.Sandbox)
	if err != nil {
		return out, err
	}
	all, err := sb.ReadDir(ctx, cmp.Or(in.Path, "."))
	if err != nil {
		return out, err
	}
	if len(all) > maxEntries {
		out.More, all = len(all)-maxEntries, all[:maxEntries]
	}
	for _, e := range all {
		entry := Entry{Name: valid([]byte(e.Name())), Type: "other"}
		switch {
		case e.IsDir():
			entry.Type = "directory"
		case e.Type() == fs.ModeSymlink:
			entry.Type = "symlink"
		case e.Type().IsRegular():
			entry.Type = "file"
			if info, err := e.Info(); err == nil {
				entry.SizeBytes = info.Size()
			}
		}
		out.Entries = append(out.Entries, entry)
	}
	return out, nil
}

// Search is the input of the tool "search".
type Search struct {
	Sandbox string `json:"sandbox"`
	Pattern string `json:"pattern" jsonschema:"a regular expression in Go's syntax"`
	Path    string `json:"path,omitempty" jsonschema:"the directory, default /workspace"`
	Files   string `json:"files,omitempty" jsonschema:"look only into files whose names match this, such as *.go"`
}

// Matches is the result of the tool "search".
type Matches struct {
	Matches []Match `json:"matches"`
	More    bool    `json:"more,omitempty" jsonschema:"the search ended before it had seen all files"`
}

// Match is one line that matches.
type Match struct {
	Path string `json:"path"`
	Line int    `json:"line"`
	Text string `json:"text"`
}

var errEnough = errors.New("enough was found")

func (s *Server) search(ctx context.Context, _ *mcp.CallToolRequest, in Search) (Matches, error) {
	out := Matches{Matches: []Match{}}
	sb, err := s.get(in.Sandbox)
	if err != nil {
		return out, err
	}
	pattern, err := regexp.Compile(in.Pattern)
	if err != nil {
		return out, err
	}
	if _, err := path.Match(in.Files, ""); err != nil {
		return out, fmt.Errorf("files %q: %w", in.Files, err)
	}
	root := path.Join("/workspace", in.Path)
	if path.IsAbs(in.Path) {
		root = path.Clean(in.Path)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, s.limits.CommandTime, errEnough)
	defer cancel()
	found := &finder{pattern: pattern, matches: out.Matches, bytes: s.limits.Output, unread: io.LimitedReader{N: maxSearch}}
	err = found.walk(ctx, sb, root, cmp.Or(in.Files, "*"))
	if errors.Is(err, errEnough) || errors.Is(context.Cause(ctx), errEnough) {
		out.More, err = true, nil
	}
	out.Matches = found.matches
	return out, err
}

// finder collects lines that match a pattern.
type finder struct {
	pattern *regexp.Regexp
	matches []Match
	files   int
	bytes   int              // that the result may still have
	unread  io.LimitedReader // of the file that is searched; its bound is for all files
}

// walk searches the files below a directory whose names match, without following links.
func (f *finder) walk(ctx context.Context, sb *sandbox.Sandbox, dir, names string) error {
	if f.files++; f.files > maxFiles {
		return errEnough
	}
	all, err := sb.ReadDir(ctx, dir)
	if err != nil {
		return err
	}
	for _, e := range all {
		name := path.Join(dir, e.Name())
		switch {
		case e.IsDir() && !slices.Contains([]string{".git", "node_modules"}, e.Name()):
			err = f.walk(ctx, sb, name, names)
		case e.Type().IsRegular():
			if ok, _ := path.Match(names, e.Name()); ok {
				err = f.file(ctx, sb, name)
			}
		}
		// What is removed or replaced meanwhile, or can't be read, is not found.
		gone := errors.Is(err, fs.ErrNotExist) || errors.Is(err, errNotRegular) || errors.Is(err, syscall.ENOTDIR)
		if err != nil && !gone && !errors.Is(err, fs.ErrPermission) {
			return err
		}
		err = nil
	}
	return nil
}

// file searches one file, unless it is not a text file.
func (f *finder) file(ctx context.Context, sb *sandbox.Sandbox, name string) error {
	if f.files++; f.files > maxFiles {
		return errEnough
	}
	file, done, err := open(ctx, sb, name)
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
		if f.bytes -= len(text) + len(name); f.bytes < 0 || len(f.matches) == maxMatches {
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
