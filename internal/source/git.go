package source

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/seed-1a2d6d8f/sandbox/internal/archive"
	"github.com/seed-1a2d6d8f/sandbox/internal/errdefs"
	"github.com/seed-1a2d6d8f/sandbox/internal/git"
)

// Git is a clone of a repository. The root package documents its fields.
type Git struct {
	URL, Revision      string
	Depth              int
	Username, Password string
}

// String returns the repository and revision, without credentials.
func (g Git) String() string {
	l, err := git.Parse(g.URL)
	if err != nil {
		return "git repository of a URL that can't be used"
	}
	if g.Revision == "" {
		return "git " + l.String()
	}
	return fmt.Sprintf("git %s at %s", l, g.Revision)
}

// repo returns what to clone, and all problems.
func (g Git) repo() (git.Repo, []error) {
	var problems []error
	bad := func(err error) { problems = append(problems, fmt.Errorf("Git: %w", err)) }
	l, err := git.Parse(g.URL)
	if err != nil {
		bad(err)
		return git.Repo{}, problems
	}
	if g.Revision != "" {
		if err := git.CheckRevision(g.Revision); err != nil {
			bad(err)
		}
	}
	if g.Depth < 0 {
		bad(fmt.Errorf("depth %d is negative", g.Depth))
	}
	if g.Username != "" || g.Password != "" {
		switch {
		case l.Scheme != "http" && l.Scheme != "https":
			bad(fmt.Errorf("username and password are for https and http: ssh has its user in the URL, and keys; the scheme is %q", l.Scheme))
		case l.Username != "" || l.Password != "":
			bad(errors.New("there are credentials both in the URL and in Username and Password"))
		}
		l.Username, l.Password = g.Username, g.Password
	}
	if strings.ContainsAny(l.Username+l.Password, "\r\n\x00") {
		bad(errors.New("the username or password has a line break or a NUL in it"))
	}
	return git.Repo{Location: l, Revision: g.Revision, Depth: g.Depth}, problems
}

// Check implements [Source].
func (g Git) Check() []error {
	_, problems := g.repo()
	return problems
}

// Ready implements [Source].
func (g Git) Ready() error {
	if _, err := git.Program(); err != nil {
		return fmt.Errorf("source: cloning needs a git on this machine: %w", err)
	}
	return nil
}

// Fill implements [Source].
func (g Git) Fill(ctx context.Context, to Target) (err error) {
	repo, _ := g.repo()
	repo.Progress = to.Report
	if host := repo.Host(); host != "" && to.Bounds() != nil {
		if repo.Only, err = to.Bounds().Resolve(ctx, host); err != nil {
			return fmt.Errorf("clone %v: %w", g, err)
		}
	}
	clone, err := git.New(ctx, repo)
	if err != nil {
		var missing *git.MissingError
		if errors.As(err, &missing) {
			err = errdefs.Classify(errdefs.InvalidArgument, err)
		}
		return fmt.Errorf("clone %v: %w", g, err)
	}
	defer func() { err = errors.Join(err, clone.Remove()) }()
	if err := to.Dir(ctx, clone.Dir); err != nil {
		return err
	}
	report := archive.Report{Below: to.Place()}
	for _, dir := range clone.Submodules {
		report.Skip(dir, "a submodule, which is not fetched")
	}
	for _, file := range clone.Pointers {
		report.Skip(file, "a file in Git LFS: it is the pointer alone")
	}
	to.LeftOut(report)
	return nil
}
