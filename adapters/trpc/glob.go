package trpc

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/bmatcuk/doublestar/v4"
	"trpc.group/trpc-go/trpc-agent-go/codeexecutor"
)

const (
	maxEntries = 100_000 // files and directories that one call looks at
	maxLinks   = 40      // on the way to a file
)

var errEnough = errors.New("enough was found")

// glob calls visit with the regular files that match, by their names in the workspace and those that links
// lead to. Files outside of the workspace are left out, and links that lead nowhere. Wildcards don't go
// through links to directories, which can be loops.
func (c *call) glob(patterns []string, visit func(name, real string) error) error {
	t := &tree{call: c, infos: map[string]fs.FileInfo{}}
	root, _, err := t.real(c.ws.Path)
	if err != nil {
		return err
	}
	patterns = codeexecutor.NormalizeGlobs(patterns)
	for _, pattern := range patterns {
		if !doublestar.ValidatePattern(pattern) {
			return fmt.Errorf("pattern %q: %w", pattern, doublestar.ErrBadPattern)
		}
	}
	for _, pattern := range patterns {
		full, err := c.inside(pattern)
		if err != nil {
			continue
		}
		if full == c.ws.Path {
			continue // a directory
		}
		names, err := doublestar.Glob(t, strings.TrimPrefix(full, c.ws.Path+"/"), doublestar.WithNoFollow())
		if err = errors.Join(err, t.err); err != nil {
			return err
		}
		for _, name := range names {
			real, err := t.file(root, name)
			if err == nil && real != "" && !codeexecutor.IsRootMetadataTempPath(name) && !codeexecutor.IsRootMetadataTempPath(real) {
				err = visit(name, real)
			}
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// file is the name of a file that links lead to, or "" for what is left out.
func (t *tree) file(root, name string) (string, error) {
	full, info, err := t.real(t.dir(name))
	if err != nil || !info.Mode().IsRegular() {
		return "", t.err
	}
	real, err := filepath.Rel(root, full)
	if err != nil || !filepath.IsLocal(real) {
		return "", nil
	}
	return real, nil
}

// tree is the workspace as a file system that a search may look at for so long.
type tree struct {
	*call
	seen  int
	infos map[string]fs.FileInfo // of Lstat, by full path
	err   error                  // that ends the search
}

var (
	_ fs.StatFS    = (*tree)(nil)
	_ fs.ReadDirFS = (*tree)(nil)
)

// count counts entries, and keeps an error that is not about one of them.
func (t *tree) count(n int, err error) error {
	if t.seen += n; t.err == nil && t.seen > maxEntries {
		t.err = fmt.Errorf("there are more than %d files to look at", maxEntries)
	}
	about := errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) || errors.Is(err, syscall.ENOTDIR) || errors.Is(err, syscall.ELOOP)
	if t.err == nil && err != nil && !about {
		t.err = err
	}
	return errors.Join(t.err, err)
}

func (t *tree) Open(name string) (fs.File, error) {
	return nil, &fs.PathError{Op: "open", Path: name, Err: errors.ErrUnsupported}
}

func (t *tree) Stat(name string) (fs.FileInfo, error) {
	if t.err != nil {
		return nil, t.err
	}
	info, err := t.sb.Stat(t.ctx, t.dir(name))
	return info, t.count(1, err)
}

func (t *tree) ReadDir(name string) ([]fs.DirEntry, error) {
	if t.err != nil {
		return nil, t.err
	}
	all, err := t.sb.ReadDir(t.ctx, t.dir(name))
	for _, e := range all {
		if info, err := e.Info(); err == nil {
			t.infos[path.Join(t.dir(name), e.Name())] = info
		}
	}
	return all, t.count(len(all), err)
}

func (t *tree) lstat(full string) (info fs.FileInfo, err error) {
	if t.infos[full] == nil {
		info, err = t.sb.Lstat(t.ctx, full)
		if err = t.count(1, err); err != nil {
			return nil, err
		}
		t.infos[full] = info
	}
	return t.infos[full], nil
}

// real returns the path of a file with all symbolic links resolved, and the FileInfo of that path.
func (t *tree) real(name string) (string, fs.FileInfo, error) {
	done, rest := "/", strings.Split(strings.TrimPrefix(name, "/"), "/")
	var info fs.FileInfo
	for links := 0; len(rest) > 0; {
		next := path.Join(done, rest[0])
		rest = rest[1:]
		var err error
		if info, err = t.lstat(next); err != nil {
			return "", nil, err
		}
		if info.Mode()&fs.ModeSymlink == 0 {
			done = next
			continue
		}
		if links++; links > maxLinks {
			return "", nil, &fs.PathError{Op: "readlink", Path: name, Err: syscall.ELOOP}
		}
		target, err := t.sb.Readlink(t.ctx, next)
		if err = t.count(1, err); err != nil {
			return "", nil, err
		}
		if path.IsAbs(target) {
			done = "/"
		}
		rest = append(strings.Split(strings.TrimPrefix(target, "/"), "/"), rest...)
	}
	return done, info, nil
}
