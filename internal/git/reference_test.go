//go:build linux

package git_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/seed-1a2d6d8f/sandbox/internal/git"
	"github.com/seed-1a2d6d8f/sandbox/internal/gittest"
)

// plainClone clones with git itself, by the user's configuration and environment.
func plainClone(t *testing.T, url string, flags ...string) (string, error) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "clone")
	cmd := exec.CommandContext(t.Context(), "git", append(append([]string{"clone", "-q"}, flags...), "--", url, dir)...)
	cmd.Dir = t.TempDir()
	out, err := cmd.CombinedOutput()
	if err != nil {
		err = fmt.Errorf("%w: %s", err, out)
	}
	return dir, err
}

// repositories are a bare repository, one with a working tree, a worktree and a submodule of it.
func repositories(t *testing.T) map[string]string {
	t.Helper()
	r := gittest.New(t)
	work := filepath.Join(r.Root, "work")
	gittest.Run(t, work, "worktree", "add", "-q", "-b", "other", filepath.Join(r.Root, "tree"))
	gittest.Run(t, r.Root, "init", "-q", "-b", "main", "super")
	gittest.Run(t, filepath.Join(r.Root, "super"), "-c", "protocol.file.allow=always", "submodule", "--quiet", "add", r.Dir, "sub")
	return map[string]string{"bare": r.Dir, "work": work, "worktree": filepath.Join(r.Root, "tree"), "submodule": filepath.Join(r.Root, "super", "sub")}
}

// giveAway makes a tree another user's, the directory itself included.
func giveAway(t *testing.T, dir string, uid int) {
	t.Helper()
	err := filepath.WalkDir(dir, func(file string, _ os.DirEntry, err error) error {
		return errors.Join(err, os.Lchown(file, uid, uid))
	})
	if err != nil {
		t.Fatal(err)
	}
}

// git refuses repositories of others unless the user's configuration, or sudo, says otherwise.
func TestRepositoriesOfOthersAreClonedAsByGit(t *testing.T) {
	repos := repositories(t)
	giveAway(t, filepath.Dir(repos["bare"]), 4711)
	home, etc := t.TempDir(), filepath.Join(t.TempDir(), "etc")
	file := filepath.Join(home, ".gitconfig")
	write := func(file, text string) {
		t.Helper()
		if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, []byte(text), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("HOME", home)
	t.Setenv("XDG_CONFIG_HOME", "")
	os.Unsetenv("XDG_CONFIG_HOME")
	t.Setenv("GIT_CONFIG_SYSTEM", etc)
	for kind, dir := range repos {
		lines := func(dirs ...string) string {
			text := "[safe]\n"
			for _, d := range dirs {
				text += fmt.Sprintf("\tdirectory = %q\n", d)
			}
			return text
		}
		own := []string{dir, dir + "/.git"}
		if kind == "worktree" || kind == "submodule" {
			b, _ := os.ReadFile(dir + "/.git")
			own = append(own, strings.TrimSpace(strings.TrimPrefix(string(b), "gitdir: ")), filepath.Join(filepath.Dir(dir), "work/.git"))
		}
		relative, err := filepath.Rel(home, dir)
		if err != nil {
			t.Fatal(err)
		}
		for name, set := range map[string]func(){
			"nothing":          func() {},
			"user":             func() { write(file, lines(own...)) },
			"machine":          func() { write(etc, lines(own...)) },
			"all":              func() { write(file, lines("*")) },
			"reset":            func() { write(etc, lines("*")); write(file, lines("")) },
			"set again":        func() { write(etc, lines("")); write(file, lines(own...)) },
			"XDG":              func() { write(filepath.Join(home, ".config/git/config"), lines(own...)) },
			"included":         func() { write(filepath.Join(home, "more"), lines(own...)); write(file, "[include]\n\tpath = more\n") },
			"below home":       func() { write(file, lines("~/"+relative, "~/"+relative+"/.git")) },
			"another":          func() { write(file, lines("/srv/other")) },
			"sudo":             func() { t.Setenv("SUDO_UID", "4711") },
			"sudo, of another": func() { t.Setenv("SUDO_UID", "4712") },
			"a broken file":    func() { write(file, "[safe\n") },
		} {
			for _, url := range []string{dir, "file://" + dir} {
				t.Run(kind+" "+name+" "+url[:1], func(t *testing.T) {
					for _, old := range []string{file, etc, filepath.Join(home, ".config/git/config")} {
						os.Remove(old)
					}
					set()
					defer os.Unsetenv("SUDO_UID")
					theirs, theirErr := plainClone(t, url)
					c, err := git.New(t.Context(), git.Repo{Location: parse(t, url)})
					if name == "a broken file" {
						if err == nil {
							t.Error("a repository of another was cloned")
							c.Remove()
						}
						return
					}
					if (err == nil) != (theirErr == nil) {
						t.Fatalf("New: %v; git clone: %v", err, theirErr)
					}
					if err != nil {
						if !strings.Contains(err.Error(), "safe.directory") {
							t.Errorf("New: %v, want what to do", err)
						}
						return
					}
					defer c.Remove()
					if got, want := gittest.Run(t, c.Dir, "rev-parse", "HEAD"), gittest.Run(t, theirs, "rev-parse", "HEAD"); got != want {
						t.Errorf("HEAD is %s, want %s", got, want)
					}
				})
			}
		}
	}
}

// A repository whose HEAD leads nowhere has an error that says what to take; git clone leaves an
// empty directory and a warning.
func TestHeadToNowhereListsTheBranches(t *testing.T) {
	t.Parallel()
	r := gittest.New(t)
	server := r.HTTP(t, "", "", nil)
	for name, x := range map[string]struct {
		prepare []string // arguments of git
		want    []string
	}{
		"a branch that is not there": {[]string{"symbolic-ref", "HEAD", "refs/heads/master"}, []string{`"main"`, `"dev"`}},
		"no branch":                  {nil, []string{`"v2"`}},
	} {
		for _, url := range []string{r.Dir, "file://" + r.Dir, server.URL + "/repo.git"} {
			for _, depth := range []int{0, 1} {
				gittest.Run(t, r.Dir, "symbolic-ref", "HEAD", "refs/heads/master")
				if x.prepare == nil {
					for _, b := range strings.Fields(gittest.Run(t, r.Dir, "for-each-ref", "--format=%(refname)", "refs/heads")) {
						gittest.Run(t, r.Dir, "update-ref", "-d", b)
					}
				} else {
					gittest.Run(t, r.Dir, "branch", "-f", "main", r.Commits[2])
					gittest.Run(t, r.Dir, "branch", "-f", "dev", r.Other)
				}
				c, err := git.New(t.Context(), git.Repo{Location: parse(t, url), Depth: depth})
				var missing *git.MissingError
				if !errors.As(err, &missing) {
					t.Errorf("%s: New(%s) with depth %d: %v, want that its HEAD is missing", name, url, depth, err)
					if c != nil {
						c.Remove()
					}
					continue
				}
				for _, branch := range x.want {
					if !strings.Contains(err.Error(), branch) {
						t.Errorf("%s: New(%s): %v, want that it names %s", name, url, err, branch)
					}
				}
			}
		}
	}
	if dir := clone(t, git.Repo{Location: parse(t, r.Dir), Revision: "v2"}); read(t, dir, "n") != "2" {
		t.Error("a tag of a repository without branches is another")
	}
}

// Whatever this program's umask is, a clone is as with 022.
func TestUmaskOfTheProgramDoesNotMatter(t *testing.T) {
	r := gittest.New(t)
	list := func(dir string) (modes []string) {
		err := filepath.WalkDir(dir, func(file string, d os.DirEntry, err error) error {
			if err != nil {
				return err
			}
			name, _ := filepath.Rel(dir, file)
			if ext := filepath.Ext(name); ext == ".pack" || ext == ".idx" || ext == ".rev" || name == ".git/branches" || name == ".git/FETCH_HEAD" {
				return nil
			}
			info, err := d.Info()
			modes = append(modes, fmt.Sprintf("%s %v", name, info.Mode()))
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		return modes
	}
	theirs, err := plainClone(t, "file://"+r.Dir, "--template=")
	if err != nil {
		t.Fatal(err)
	}
	defer syscall.Umask(syscall.Umask(0o22))
	for _, umask := range []int{0o77, 0o22, 0o27, 0o2, 0} {
		for _, rev := range []string{"", r.Commits[2]} {
			unix.Umask(umask)
			c, err := git.New(t.Context(), git.Repo{Location: parse(t, "file://"+r.Dir), Revision: rev})
			unix.Umask(0o22)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(list(theirs), list(c.Dir)); rev == "" && diff != "" {
				t.Errorf("with umask %o (-git +clone):\n%s", umask, diff)
			}
			for _, mode := range list(c.Dir) {
				if perm := mode[strings.LastIndexByte(mode, ' ')+1:]; perm[0] != 'L' && (perm[4] != 'r' || perm[7] != 'r' || perm[5] == 'w' || perm[8] == 'w') {
					t.Errorf("with umask %o at %q: %s", umask, rev, mode)
				}
			}
			if got := gittest.Run(t, c.Dir, "status", "--porcelain"); got != "" {
				t.Errorf("with umask %o it is not clean: %s", umask, got)
			}
			if err := c.Remove(); err != nil {
				t.Error(err)
			}
		}
	}
}
