//go:build linux

package copytree

import (
	"errors"
	"path"
	"slices"
	"strings"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/seed-1a2d6d8f/sandbox/internal/guest/wire"
)

// A branch is one directory that is being copied.
type branch struct {
	job      int
	root     int     // the job's target
	parent   *branch // for the path; nil at the root
	name     string
	src, dst int
	stat     unix.Stat_t
	left     atomic.Int64 // tasks that need src and dst
}

// path is relative to the job's directory.
func (b *branch) path() string {
	if b.parent == nil {
		return ""
	}
	var parts []string
	for ; b.parent != nil; b = b.parent {
		parts = append(parts, b.name)
	}
	slices.Reverse(parts)
	return strings.Join(parts, "/")
}

// pathError says where a copy failed.
type pathError struct {
	job     int
	path    string
	err     error
	changed bool
	denied  bool
}

func (e *pathError) Error() string { return e.err.Error() }
func (e *pathError) Unwrap() error { return e.err }

func toCopyError(err error) *wire.CopyError {
	e := &wire.CopyError{Message: err.Error()}
	var p *pathError
	if errors.As(err, &p) {
		e.Job, e.Path, e.Message, e.Changed, e.Denied = p.job, []byte(p.path), p.err.Error(), p.changed, p.denied
	}
	return e
}

var errChanged = errors.New("changed while it was copied")

func (b *branch) fail(name string, err error) error {
	changed := errors.Is(err, errChanged) || errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ESTALE)
	return &pathError{job: b.job, path: path.Join(b.path(), name), err: err, changed: changed, denied: errors.Is(err, unix.EACCES)}
}
