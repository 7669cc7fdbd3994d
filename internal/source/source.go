// Package source reads the first files of a workspace from a directory, a clone or an
// archive. It uses no engine.
package source

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"unicode/utf8"

	"github.com/seed-1a2d6d8f/sandbox/internal/archive"
	"github.com/seed-1a2d6d8f/sandbox/internal/guest/trees"
)

// A Source supplies the first files of a workspace. Its String contains no secret.
type Source interface {
	fmt.Stringer
	// Check returns all problems that can be found without a network or another program.
	Check() []error
	// Ready returns what this machine lacks for Fill.
	Ready() error
	// Fill writes the files to the target. It leaves nothing elsewhere.
	Fill(context.Context, Target) error
}

// A Target receives the files of a source into a new workspace.
type Target interface {
	// Dir copies a directory of this machine.
	Dir(ctx context.Context, dir string) error
	// Stream copies the trees that write writes; what names them in errors.
	Stream(ctx context.Context, what string, write func(*trees.Writer) error) error
	// Report reports progress, for people.
	Report(text string)
	// Bounds are the addresses that the files may come from.
	Bounds() *Bounds
	// Place is where the files are in the sandbox.
	Place() string
	// LeftOut reports what of the source was left out.
	LeftOut(archive.Report)
}

type dir struct {
	path string
	err  error
}

// Dir returns a directory of this machine as a source. A relative path is made absolute now.
func Dir(path string) Source {
	if path == "" || strings.ContainsRune(path, 0) || !utf8.ValidString(path) {
		return dir{path, fmt.Errorf("%q is not a path", path)}
	}
	abs, err := filepath.Abs(path)
	return dir{abs, err}
}

func (d dir) String() string { return "directory " + d.path }

func (d dir) Check() []error {
	err := d.err
	if err == nil {
		err = CheckDir(d.path)
	}
	if err != nil {
		return []error{fmt.Errorf("WithSource: %w", err)}
	}
	return nil
}

func (d dir) Ready() error { return nil }

func (d dir) Fill(ctx context.Context, to Target) error { return to.Dir(ctx, d.path) }

// maxGitFile bounds the file .git, which has a path.
const maxGitFile = 8 << 10

// RepositoryElsewhere explains why git will not work in a copy of a directory, or returns "": a
// worktree and a submodule have a file .git that names a directory elsewhere.
func RepositoryElsewhere(dir string) string {
	name := filepath.Join(dir, ".git")
	if info, err := os.Lstat(name); err != nil || !info.Mode().IsRegular() || info.Size() > maxGitFile {
		return ""
	}
	text, err := os.ReadFile(name)
	to, is := strings.CutPrefix(strings.TrimSpace(string(text)), "gitdir: ")
	if err != nil || !is || filepath.IsLocal(to) {
		return ""
	}
	return fmt.Sprintf("git will not work in the copy: %s names %q, which is not copied; the source Git clones a worktree, without what is not committed", name, to)
}

// CheckDir returns why a directory of this machine can't be copied.
func CheckDir(dir string) error {
	dir = filepath.Clean(dir)
	if dir == filepath.VolumeName(dir)+string(filepath.Separator) {
		return fmt.Errorf("source %q is a whole file system: name a directory in it", dir)
	}
	st, err := os.Stat(dir)
	if err != nil {
		return fmt.Errorf("source: %w", err)
	}
	if !st.IsDir() {
		return fmt.Errorf("source %q must be a directory: for a file, mount the directory it is in, or write it with the sandbox's file calls", dir)
	}
	return nil
}
