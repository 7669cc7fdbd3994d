package sandbox

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"

	"github.com/seed-1a2d6d8f/sandbox/internal/git"
)

// Git is a [Source]: a clone of a repository, with its history and a remote called origin,
// that belongs to the sandbox's user. The git of this machine makes it, in a directory for
// temporary files, from where it is copied; neither the image nor the engine's machine
// needs one, and what this machine reaches can be cloned. It uses nothing of the machine's
// or user's git configuration and runs no hook, filter or credential helper of theirs.
// Proxies are those of the environment. The directory, agent-sandbox-git-… in [os.TempDir],
// is removed when the call ends, and stays when this program dies before.
//
// Submodules are not fetched: their directories are empty. Files that Git LFS keeps
// elsewhere are the small pointers that the repository has in their place. Inside, with a
// network and credentials of its own, the sandbox can fetch both.
type Git struct {
	// URL is https, http, ssh or file, what scp takes (user@host:path), or an absolute
	// path. It is what the clone has as its origin, without credentials. For ssh this
	// machine's ssh is used, with the user's keys, agent, configuration and known hosts, or
	// what GIT_SSH_COMMAND says; it never asks anything.
	URL string
	// Revision is a branch, a tag or a commit's ID, full or abbreviated, or a reference by
	// its full name (refs/…). A branch is checked out as such, all else detached. Default:
	// what the repository calls HEAD. One that does not exist fails the call; a repository
	// that is empty is fine when there is none.
	Revision string
	// Depth is how many commits of history there are, of the one branch then. 0, the
	// default, is everything. A server that does not give away the commit alone, and an
	// abbreviated one, make it everything, too.
	Depth int
	// Username and Password are for https and http, and may be in the URL instead. Only
	// the URL's host is told; they are in no argument, environment, label, error, log or
	// file of the clone. http sends them in the clear.
	Username, Password string
}

// String tells the repository and revision, without credentials.
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

// GoString is String: the fields have secrets.
func (g Git) GoString() string { return g.String() }

// LogValue is String.
func (g Git) LogValue() slog.Value { return slog.StringValue(g.String()) }

// repo is what to clone, and every complaint about it.
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

func (g Git) check(*settings) []error {
	_, problems := g.repo()
	return problems
}

func (g Git) prepare(context.Context, *build) error {
	if _, err := git.Program(); err != nil {
		return fmt.Errorf("source: cloning needs a git on this machine: %w", err)
	}
	return nil
}

func (g Git) fill(ctx context.Context, f *filler) (err error) {
	repo, _ := g.repo()
	repo.Progress = func(text string) { f.report.report(Progress{Step: f.step, Text: text}) }
	clone, err := git.New(ctx, repo)
	if err != nil {
		var missing *git.MissingError
		if errors.As(err, &missing) {
			err = classify(ErrInvalidArgument, err)
		}
		return fmt.Errorf("clone %v: %w", g, err)
	}
	defer func() { err = errors.Join(err, clone.Remove()) }()
	return f.run(ctx, []fill{f.workspace(clone.Dir)})
}
