package eino

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"regexp"
	"strings"
	"time"

	"github.com/cloudwego/eino/adk/filesystem"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/sandboxtools"
)

// DefaultOutput is the default of [Options].Output, in bytes.
const DefaultOutput = 1 << 20

// Options limit what one call of a [Backend] may take. The zero value has the defaults.
type Options struct {
	// CommandTime bounds each call and each command. Default [sandboxtools.DefaultCommandTime].
	CommandTime time.Duration
	// Output bounds what a call returns, in bytes. Default [DefaultOutput]. Calls that find more than
	// fits are an error; a file is cut, and so is a command's output.
	Output int
}

// Backend is a [filesystem.Backend]: the files of a sandbox, with their paths in it. It is safe for
// concurrent use. Files are regular files in UTF-8 alone. Searches don't follow links, and leave out
// directories named .git and node_modules. An empty path of a search is the sandbox's working directory.
type Backend struct {
	sb    *sandbox.Sandbox
	o     Options
	tools map[string]sandboxtools.Tool
}

var _ filesystem.Backend = (*Backend)(nil)

// NewBackend returns the backend without a shell; see [NewShell] and [NewStreamingShell]. The sandbox
// stays the caller's.
func NewBackend(sb *sandbox.Sandbox, o Options) *Backend {
	o.Output = cmp.Or(max(o.Output, 0), DefaultOutput)
	o.CommandTime = cmp.Or(max(o.CommandTime, 0), sandboxtools.DefaultCommandTime)
	b := &Backend{sb: sb, o: o, tools: map[string]sandboxtools.Tool{}}
	for _, t := range sandboxtools.New(sb, sandboxtools.Options{CommandTime: o.CommandTime, Output: o.Output, Report: report}) {
		b.tools[t.Name] = t
	}
	return b
}

// call calls a tool.
func (b *Backend) call(ctx context.Context, name string, args map[string]any) (sandboxtools.Result, error) {
	body, err := json.Marshal(args)
	if err != nil {
		return sandboxtools.Result{}, err
	}
	return b.tools[name].Call(ctx, body)
}

// absolute is a path of the file system's root, whatever is left out.
func absolute(name string) string { return path.Join("/", name) }

// LsInfo returns what is in a directory, or the path of a file.
func (b *Backend) LsInfo(ctx context.Context, req *filesystem.LsInfoRequest) ([]filesystem.FileInfo, error) {
	ctx, cancel := context.WithTimeout(ctx, b.o.CommandTime)
	defer cancel()
	dir := absolute(req.Path)
	info, err := b.sb.Stat(ctx, dir)
	switch {
	case err != nil:
		return nil, err
	case !info.IsDir():
		return []filesystem.FileInfo{{Path: dir}}, nil
	}
	all, err := b.sb.ReadDir(ctx, dir)
	if err != nil {
		return nil, err
	}
	free := b.o.Output
	var infos []filesystem.FileInfo
	for _, e := range all {
		name := strings.ToValidUTF8(path.Join(dir, e.Name()), "\uFFFD")
		if free -= len(name) + 1; free < 0 {
			return nil, fmt.Errorf("%s has %d files: too many for one answer", dir, len(all))
		}
		infos = append(infos, filesystem.FileInfo{Path: name})
	}
	return infos, nil
}

const defaultLines = 200

// Read returns lines of a file, each with its number. It returns "" if the file has fewer than Offset
// lines, 200 if Limit is not positive, and says at the end if it returns fewer for their length.
func (b *Backend) Read(ctx context.Context, req *filesystem.ReadRequest) (string, error) {
	first, limit := max(req.Offset, 0), req.Limit
	if limit <= 0 {
		limit = defaultLines
	}
	r, err := b.call(ctx, "read", map[string]any{"path": absolute(req.FilePath), "line": first + 1, "lines": limit})
	switch {
	case errors.Is(err, io.EOF):
		return "", nil
	case err != nil:
		return "", err
	}
	text := r.Text
	if r.More {
		text = strings.TrimSuffix(text, "\n[the file goes on]")
	}
	lines := strings.Split(text, "\n")
	cut := r.More && len(lines) <= limit // within a line
	lines = lines[:min(len(lines), limit)]
	var out strings.Builder
	for i, line := range lines {
		if i > 0 {
			out.WriteByte('\n')
		}
		fmt.Fprintf(&out, "%6d\t%s", first+i+1, line)
	}
	if cut {
		out.WriteString("\n[the lines are too long: there is more]")
	}
	return out.String(), nil
}

// GrepRaw returns the lines that have the text, of each the first 500 bytes.
func (b *Backend) GrepRaw(ctx context.Context, req *filesystem.GrepRequest) ([]filesystem.GrepMatch, error) {
	dir, err := b.searched(ctx, req.Path)
	if err != nil {
		return nil, err
	}
	r, err := b.call(ctx, "grep", map[string]any{"pattern": regexp.QuoteMeta(req.Pattern), "path": dir, "files": req.Glob})
	if err == nil && r.More {
		err = fmt.Errorf("more than %d lines have %q, or there are too many files in %s: search for more, or in less", len(r.Matches), req.Pattern, dir)
	}
	if err != nil {
		return nil, err
	}
	var matches []filesystem.GrepMatch
	for _, m := range r.Matches {
		matches = append(matches, filesystem.GrepMatch{Path: m.Path, Line: m.Line, Content: m.Text})
	}
	return matches, nil
}

// GlobInfo returns the files and directories whose paths below Path match the pattern. A pattern that
// begins with a slash is for the file system's root.
func (b *Backend) GlobInfo(ctx context.Context, req *filesystem.GlobInfoRequest) ([]filesystem.FileInfo, error) {
	dir, pattern, err := req.Path, req.Pattern, error(nil)
	if strings.HasPrefix(pattern, "/") {
		dir, pattern = split(pattern)
	}
	if dir, err = b.searched(ctx, dir); err != nil {
		return nil, err
	}
	r, err := b.call(ctx, "glob", map[string]any{"pattern": pattern, "path": dir})
	if err == nil && r.More {
		err = fmt.Errorf("more than %d files match %q, or there are too many in %s: search for less", len(r.Paths), req.Pattern, dir)
	}
	if err != nil {
		return nil, err
	}
	var infos []filesystem.FileInfo
	for _, name := range r.Paths {
		infos = append(infos, filesystem.FileInfo{Path: name})
	}
	return infos, nil
}

// split splits an absolute pattern where its first wildcard is.
func split(pattern string) (dir, rest string) {
	parts := strings.Split(strings.TrimLeft(path.Clean(pattern), "/"), "/")
	n := 0
	for n < len(parts)-1 && !strings.ContainsAny(parts[n], `*?[{\`) {
		n++
	}
	return absolute(path.Join(parts[:n]...)), path.Join(parts[n:]...)
}

// searched is the directory of a search.
func (b *Backend) searched(ctx context.Context, dir string) (string, error) {
	if dir != "" {
		return absolute(dir), nil
	}
	ctx, cancel := context.WithTimeout(ctx, b.o.CommandTime)
	defer cancel()
	st, err := b.sb.Status(ctx)
	if err != nil || st.Settings.Workdir == nil {
		return sandbox.Workspace, err
	}
	return *st.Settings.Workdir, nil
}

const cleanupTime = 10 * time.Second

// Write writes a new file, and makes the directories that it is in. It is an error if the file exists.
func (b *Backend) Write(ctx context.Context, req *filesystem.WriteRequest) error {
	ctx, cancel := context.WithTimeout(ctx, b.o.CommandTime)
	defer cancel()
	name := absolute(req.FilePath)
	if err := b.sb.MkdirAll(ctx, path.Dir(name), 0o755); err != nil {
		return err
	}
	f, err := b.sb.OpenFile(ctx, name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("%s exists: edit it, or write another file: %w", name, err)
	}
	if err != nil {
		return err
	}
	defer context.AfterFunc(ctx, func() { f.Close() })()
	_, err = f.WriteString(req.Content)
	if err = errors.Join(err, f.Close()); err != nil { // a part of a file would be in the way of the next attempt
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTime)
		defer cancel()
		err = errors.Join(err, b.sb.Remove(ctx, name))
	}
	return err
}

// Edit replaces a text in a file.
func (b *Backend) Edit(ctx context.Context, req *filesystem.EditRequest) error {
	_, err := b.call(ctx, "edit", map[string]any{"path": absolute(req.FilePath), "old": req.OldString, "new": req.NewString, "all": req.ReplaceAll})
	return err
}
