package sandboxtools

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"
	"unicode/utf8"

	"github.com/seed-1a2d6d8f/sandbox"
)

const (
	maxEdit = 8 << 20 // bytes of a file that can be edited
	maxSkip = 1 << 28 // bytes of the lines before those that are read
)

const pathText = "relative to the working directory of the sandbox unless absolute"

type readInput struct {
	Path  string `json:"path"`
	Line  whole  `json:"line"`
	Lines whole  `json:"lines"`
}

func (s *set) readTool() Tool {
	return define(s, Tool{
		Name:        "read",
		Description: fmt.Sprintf("Read lines of a text file, %d bytes at most.", s.limits.Output),
		ReadOnly:    true,
		Schema: schema(
			property{"path", "string", false, pathText},
			property{"line", "integer", true, "the first line, default 1"},
			property{"lines", "integer", true, "the number of lines, default all"},
		),
	}, s.read)
}

func (s *set) read(ctx context.Context, in readInput) (Result, error) {
	if in.Line < 0 || in.Lines < 0 {
		return Result{}, errors.New("line and lines count from the first line on: for the end of a file use \"bash\" with tail")
	}
	out, err := s.part(ctx, in)
	if out.More {
		out.Text += "\n[the file goes on]"
	}
	return out, err
}

// part returns lines of a file.
func (s *set) part(ctx context.Context, in readInput) (Result, error) {
	f, done, err := s.open(ctx, in.Path)
	if err != nil {
		return Result{}, err
	}
	defer done()
	r := bufio.NewReaderSize(f, 64<<10)
	if err := skip(r, in.Path, int(in.Line)-1); err != nil {
		return Result{}, err
	}
	var text strings.Builder
	for n := whole(0); in.Lines == 0 || n < in.Lines; {
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
			return Result{}, err
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
			return fmt.Errorf("%s has %d lines: %w", name, skipped, io.EOF)
		case !errors.Is(err, bufio.ErrBufferFull):
			return err
		}
		if bytes > maxSkip {
			return fmt.Errorf("the first %d lines of %s have more than %d bytes: use \"bash\"", lines, name, int64(maxSkip))
		}
	}
	return nil
}

// lines returns the text of a file, which is cut if there is more.
func lines(name, text string, more bool) (Result, error) {
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
		return Result{}, fmt.Errorf("%s is not a text file in UTF-8: use \"bash\"", name)
	}
	return Result{Text: text, More: more}, nil
}

type writeInput struct {
	Path       string  `json:"path"`
	Content    *string `json:"content"` // one that was forgotten is not an empty one
	Executable bool    `json:"executable"`
}

func (s *set) writeTool() Tool {
	return define(s, Tool{
		Name:        "write",
		Description: "Write a whole file, and make the directories that it is in.",
		Schema: schema(
			property{"path", "string", false, pathText},
			property{"content", "string", false, "the whole new content"},
			property{"executable", "boolean", false, "whether the file is a program"},
		),
	}, s.write)
}

func (s *set) write(ctx context.Context, in writeInput) (Result, error) {
	if in.Content == nil {
		return Result{}, missing("content")
	}
	mode := os.FileMode(0o644)
	if in.Executable {
		mode = 0o755
	}
	if err := s.checkTarget(ctx, in.Path); err != nil {
		return Result{}, err
	}
	if err := s.sb.MkdirAll(ctx, path.Dir(in.Path), 0o755); err != nil {
		return Result{}, err
	}
	if err := s.sb.WriteFile(ctx, in.Path, []byte(*in.Content), mode); err != nil {
		return Result{}, err
	}
	if in.Executable {
		if err := s.sb.Chmod(ctx, in.Path, mode); err != nil { // of a file that was there
			return Result{}, err
		}
	}
	return Result{Text: fmt.Sprintf("Wrote %d bytes to %s.", len(*in.Content), in.Path)}, nil
}

type editInput struct {
	Path string  `json:"path"`
	Old  string  `json:"old"`
	New  *string `json:"new"` // as Content
	All  bool    `json:"all"`
}

func (s *set) editTool() Tool {
	return define(s, Tool{
		Name:        "edit",
		Description: "Replace a text in a file. The text has to occur exactly once, unless all is true.",
		Schema: schema(
			property{"path", "string", false, pathText},
			property{"old", "string", false, "the text to replace, with its white space"},
			property{"new", "string", false, "the text instead"},
			property{"all", "boolean", false, "whether to replace it wherever it occurs"},
		),
	}, s.edit)
}

func (s *set) edit(ctx context.Context, in editInput) (Result, error) {
	if in.Old == "" {
		return Result{}, errors.New("the text to replace is empty: see the tool \"write\"")
	}
	if in.New == nil {
		return Result{}, missing("new")
	}
	old, instead := in.Old, *in.New
	content, err := s.readAll(ctx, in.Path)
	if err != nil {
		return Result{}, err
	}
	// A model does not see that lines end with CR LF, and they all stay so.
	if n := strings.Count(content, "\n"); n > 0 && n == strings.Count(content, "\r\n") && !strings.Contains(old+instead, "\r") {
		old, instead = strings.ReplaceAll(old, "\n", "\r\n"), strings.ReplaceAll(instead, "\n", "\r\n")
	}
	n := strings.Count(content, old)
	switch {
	case n == 0:
		return Result{}, fmt.Errorf("the text does not occur in %s", in.Path)
	case n > 1 && !in.All:
		return Result{}, fmt.Errorf("the text occurs %d times in %s: give more of it, or set all", n, in.Path)
	}
	if err := s.sb.WriteFile(ctx, in.Path, []byte(strings.ReplaceAll(content, old, instead)), 0o644); err != nil {
		return Result{}, err
	}
	return Result{Text: fmt.Sprintf("Replaced %d in %s.", n, in.Path)}, nil
}

// readAll reads a file that can be edited.
func (s *set) readAll(ctx context.Context, name string) (string, error) {
	f, done, err := s.open(ctx, name)
	if err != nil {
		return "", err
	}
	defer done()
	content, err := io.ReadAll(io.LimitReader(f, maxEdit+1))
	switch {
	case err != nil:
		return "", err
	case len(content) > maxEdit:
		return "", fmt.Errorf("%s has more than %d bytes: too large to edit, use \"bash\"", name, maxEdit)
	case !utf8.Valid(content):
		return "", fmt.Errorf("%s is not a text file in UTF-8: use \"bash\"", name)
	}
	return string(content), nil
}

// missing is the error of a call without an argument that has no default.
func missing(argument string) error {
	return fmt.Errorf("the argument %s is missing", argument)
}

// checkPath refuses a path that is missing, or that a shell would expand.
func checkPath(name string) error {
	if name == "" {
		return missing("path")
	}
	return checkHome(name)
}

func checkHome(name string) error {
	if name == "~" || strings.HasPrefix(name, "~/") {
		return fmt.Errorf("%q: ~ is not expanded: give the absolute path, which \"bash\" prints with echo ~", name)
	}
	return nil
}

// open opens a regular file to read it. Reads end with ctx. The caller calls done afterwards.
func (s *set) open(ctx context.Context, name string) (f *sandbox.File, done func(), err error) {
	if err := checkPath(name); err != nil {
		return nil, nil, err
	}
	f, err = s.sb.Open(ctx, name)
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
func (s *set) checkTarget(ctx context.Context, name string) error {
	if err := checkPath(name); err != nil {
		return err
	}
	info, err := s.sb.Stat(ctx, name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	}
	return checkRegular(name, info)
}
