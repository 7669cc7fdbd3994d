package sandbox

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"unicode/utf8"

	"github.com/seed-1a2d6d8f/sandbox/internal/record"
)

// A Source is where the first files of a sandbox's workspace come from: [Git], [Tarball] or [Dir]. String
// tells which, and never has a secret in it.
type Source interface {
	fmt.Stringer
	// check returns every complaint that needs no look at anything.
	check(*settings) []error
	// prepare comes first of all that is done to make the sandbox: it may refuse, and
	// change what is made.
	prepare(context.Context, *build) error
	// fill brings the files into the new workspace, beside the making of the container.
	// A main process does not start before it has returned. It takes back what it leaves
	// elsewhere; the volume is not its own to take back.
	fill(context.Context, *filler) error
}

// WithSource fills the workspace of a new sandbox. The files are there, whole, before
// the main process starts and [Create] returns; when they can't be had the sandbox is not
// made. [GetOrCreate] looks at no source when there is a sandbox already. There is one
// source at most, and none for a workspace that is adopted ([WithID]). Default: an empty
// workspace.
func WithSource(source Source) CreateOption {
	return createOption(func(s *settings) {
		switch given := source.(type) { // the caller may change what it points to
		case *Git:
			if source = nil; given != nil {
				source = *given
			}
		case *Tarball:
			if source = nil; given != nil {
				source = *given
			}
		}
		if source == nil {
			s.problems = append(s.problems, errors.New("WithSource: there is no source; leave the option out for an empty workspace"))
			return
		}
		if s.source != nil {
			s.problems = append(s.problems, fmt.Errorf("WithSource: a sandbox has one source, and there are %v and %v", s.source, source))
		}
		s.source = source
	})
}

// adopting refuses a source for a workspace that has been used.
func (b *build) adopting() error {
	if b.s.source == nil && b.s.origin == nil {
		return nil
	}
	return fmt.Errorf("%w: workspace %s is there, with its files: it is adopted without a source, or deleted first", ErrExists, record.WorkspaceName(b.rec.ID))
}

// filler fills volumes of this build.
func (b *build) filler() *filler {
	return &filler{helper: helper{c: b.c, eng: b.eng, nonce: b.rec.Nonce, report: b.report},
		rec: b.rec, image: cmp.Or(b.base, b.s.image), guest: b.guest.mount(), user: b.user(), step: "copy"}
}

// source fills the workspace, if there is a source.
func (f *filler) source(ctx context.Context, source Source) error {
	if source == nil {
		return nil
	}
	f.step = "source"
	f.report.report(Progress{Step: f.step, Text: source.String()})
	if err := source.fill(ctx, f); err != nil {
		return fmt.Errorf("source: %w", err)
	}
	return nil
}

// workspace is the fill of the workspace with a directory, for the sandbox's user.
func (f *filler) workspace(dir string) fill {
	return fill{dir: dir, volume: record.WorkspaceName(f.rec.ID), role: record.RoleWorkspace, owner: owner(f.user)}
}

// owner is the user as a copy takes it.
func owner(user string) string {
	if user == "" || user == "0" || user == "root" {
		return "0:0"
	}
	return user
}

type dirSource struct {
	path string
	err  error
}

// Dir is a [Source]: a copy of a directory of this machine as it is when the sandbox is
// made, by the rules of [RWCopy], but everything in it belongs to the sandbox's user, and
// setuid and setgid bits of files are taken off. A relative path is made absolute here.
func Dir(path string) Source {
	if path == "" || strings.ContainsRune(path, 0) || !utf8.ValidString(path) {
		return dirSource{path, fmt.Errorf("%q is no path", path)}
	}
	abs, err := filepath.Abs(path)
	return dirSource{abs, err}
}

func (d dirSource) String() string { return "directory " + d.path }

func (d dirSource) check(*settings) []error {
	err := d.err
	if err == nil {
		err = checkCopySource(d.path)
	}
	if err != nil {
		return []error{fmt.Errorf("WithSource: %w", err)}
	}
	return nil
}

func (d dirSource) prepare(context.Context, *build) error { return nil }

func (d dirSource) fill(ctx context.Context, f *filler) error {
	return f.run(ctx, []fill{f.workspace(d.path)})
}
