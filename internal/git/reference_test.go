//go:build linux

package git_test

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/seed-1a2d6d8f/sandbox/internal/git"
	"github.com/seed-1a2d6d8f/sandbox/internal/gittest"
	"github.com/seed-1a2d6d8f/sandbox/test/harness"
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
	worktree, submodule := r.Elsewhere(t)
	return map[string]string{"bare": r.Dir, "work": filepath.Join(r.Root, "work"), "worktree": worktree, "submodule": submodule}
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

// A repository that TMPDIR is in says nothing of whom to trust.
func TestSafeDirectoryOfTheRepositoryAbove(t *testing.T) {
	r := gittest.New(t)
	giveAway(t, r.Root, 4711)
	above := filepath.Join(t.TempDir(), "a:b")
	gittest.Run(t, filepath.Dir(above), "init", "-q", above)
	gittest.Run(t, above, "config", "safe.directory", "*")
	t.Setenv("TMPDIR", above)
	t.Setenv("GIT_CONFIG_GLOBAL", os.DevNull)
	t.Setenv("GIT_CONFIG_SYSTEM", os.DevNull)
	c, err := git.New(t.Context(), git.Repo{Location: parse(t, r.Dir)})
	if err == nil {
		c.Remove()
	}
	if err == nil || !strings.Contains(err.Error(), "safe.directory") {
		t.Errorf("New: %v, want that the repository is another user's", err)
	}
}

// Relative paths in the environment are those of this program's directory, as with git clone.
func TestRelativePathsOfTheEnvironment(t *testing.T) {
	r := gittest.New(t)
	giveAway(t, r.Root, 4711)
	open := gittest.New(t)
	port, ssh := gittest.SSH(t)
	program, err := exec.LookPath("ssh")
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(t.TempDir(), "it's here")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Chdir(dir)
	script := "#!/bin/sh\nexec " + strings.Replace(ssh, "ssh", program, 1) + ` "$@"` + "\n"
	plink := "#!/bin/sh\n[ \"$1\" != -batch ] || shift\n[ \"$1\" = -P ] || exit 9\nshift\nexec bin/ssh -p \"$@\"\n" // as PuTTY's, it takes no -p
	for name, text := range map[string]string{
		"bin/ssh": script, "home/bin/ssh": script, "bin/plink": plink, "of mine/PLINK.exe": plink, "ssh_config": "", "config": "[safe]\n\tdirectory = *\n", "home/.gitconfig": "[safe]\n\tdirectory = *\n", "none": "",
	} {
		if err := errors.Join(os.MkdirAll(filepath.Dir(name), 0o755), os.WriteFile(name, []byte(text), 0o755)); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("GIT_CONFIG_NOSYSTEM", "1")
	os.Unsetenv("GIT_SSH_COMMAND") // which is none for these tests
	remote := fmt.Sprintf("ssh://git@127.0.0.1:%d%s", port, open.Dir)
	for _, x := range []struct {
		env  map[string]string
		url  string
		want bool
	}{
		{map[string]string{"GIT_SSH": "bin/ssh", "GIT_CONFIG_GLOBAL": "none"}, remote, true},
		{map[string]string{"GIT_SSH": "./bin/ssh", "GIT_CONFIG_GLOBAL": "none"}, remote, true},
		{map[string]string{"GIT_SSH": "ssh", "PATH": dir + "/bin:" + os.Getenv("PATH"), "GIT_CONFIG_GLOBAL": "none"}, remote, true},
		{map[string]string{"PATH": "bin:" + os.Getenv("PATH")}, remote, true},
		{map[string]string{"GIT_SSH_COMMAND": "bin/ssh"}, remote, true},
		{map[string]string{"GIT_SSH_COMMAND": "bin/ssh -F ssh_config"}, remote, true},
		{map[string]string{"GIT_SSH_COMMAND": "'of mine/PLINK.exe' -batch"}, remote, true},
		{map[string]string{"GIT_SSH_COMMAND": `"of mine/PLINK.exe"`}, remote, true},
		{map[string]string{"GIT_SSH_COMMAND": "A=1 exec bin/plink"}, remote, false},
		{map[string]string{"GIT_SSH_COMMAND": "bin/plink"}, remote, true},
		{map[string]string{"GIT_SSH_COMMAND": "bin/plink", "GIT_SSH_VARIANT": "simple"}, remote, false},
		{map[string]string{"GIT_SSH_COMMAND": "false"}, remote, false},
		{map[string]string{"GIT_SSH_COMMAND": "~/bin/ssh", "HOME": "home"}, remote, true},
		{map[string]string{"GIT_SSH_COMMAND": "~/bin/ssh", "HOME": "."}, remote, true},
		{map[string]string{"GIT_SSH_COMMAND": "~/bin/ssh", "HOME": "none"}, remote, false},
		{map[string]string{"GIT_SSH_COMMAND": `"$TOOLS_8D1F/ssh"`, "TOOLS_8D1F": "bin"}, remote, true},
		{map[string]string{"GIT_CONFIG_GLOBAL": "config"}, r.Dir, true},
		{map[string]string{"GIT_CONFIG_GLOBAL": "none"}, r.Dir, false},
		{map[string]string{"HOME": "home"}, r.Dir, true},
		{map[string]string{"HOME": "."}, r.Dir, false},
	} {
		t.Run(fmt.Sprint(x.env), func(t *testing.T) {
			for k, v := range x.env {
				t.Setenv(k, v)
			}
			by := exec.Command("git", "clone", "--quiet", x.url, t.TempDir()+"/clone")
			if out, err := by.CombinedOutput(); (err == nil) != x.want {
				t.Fatalf("git clone: %v, %s", err, out)
			}
			c, err := git.New(t.Context(), git.Repo{Location: parse(t, x.url)})
			if err == nil {
				err = c.Remove()
			}
			if (err == nil) != x.want {
				t.Errorf("New: %v, and git clone has an error: %t", err, !x.want)
			}
		})
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

// variety makes repositories of many kinds, one for each directory (or bundle) in its own.
const variety = `cd "$0"; export GIT_AUTHOR_DATE='1000000000 +0200' GIT_COMMITTER_DATE='1000000000 +0200' GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@x GIT_COMMITTER_NAME=c GIT_COMMITTER_EMAIL=c@x
git() { command git -c protocol.file.allow=always -c init.defaultBranch=main "$@"; }
fill() (
	mkdir -p "$1"; cd "$1"; git init -q $2 .
	mkdir -p deep/er .dir; echo 1 >deep/er/f; : >empty; printf 'a\r\nb\r\n' >crlf; printf 'a\nb\n' >lf.txt; printf 'a\nb\n' >win.bat; printf 'x\0y' >bin; echo '#!/bin/sh' >program; chmod 755 program
	printf '*.txt text\n*.bat text eol=crlf\nmixed text=auto\nid ident\nutf16 working-tree-encoding=UTF-16LE\n*.lfs filter=lfs diff=lfs merge=lfs -text\n*.up filter=nope\nsecret export-ignore\n' >.gitattributes
	printf 'a\r\nb\n' >mixed; echo '$Id$' >id; printf 'a\0\n\0' >utf16; echo s >secret; echo up >x.up
	printf 'version https://git-lfs.github.com/spec/v1\noid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\nsize 12345\n' >big.lfs
	ln -s deep/er/f link; ln -s /etc/passwd absolute; ln -s loop loop; ln -s nowhere .dir/dangling
	for n in 'new
line' "tab	" 'sp ace ' ' lead' 'ü' "$(printf 'caf\351')" -dash 'back\slash' '"quoted"' "it's" '*' A a .hidden "$(printf '%0200d' 1)"; do echo "$n" >"./$n"; done
	echo ignored >.gitignore; echo yes >ignored; git add -A -f . 2>/dev/null; git commit -qm 1
	for i in 2 3 4; do echo $i >n; git add n; git commit -qm $i; done
	git tag light HEAD~1; git tag -a -m x annotated HEAD~2; git tag -a -m y nested annotated 2>/dev/null; git tag -a -m z of-a-tree HEAD^{tree}; git tag -a -m b of-a-blob HEAD:n
	git checkout -q -b dev HEAD~1; echo dev >n; git commit -qam dev; git branch feat/ü; git branch a.b-c_d; git checkout -q --orphan alone; git rm -qrf .; echo alone >alone; git add alone; git commit -qm alone
	git checkout -q main; git merge -q -s ours -m merge dev; git notes add -m note
)
fill work; git clone -q --bare work bare.git
git clone -q --mirror work packed.git; git -C packed.git gc -q; git -C packed.git pack-refs --all
fill sha256 --object-format=sha256
git clone -q --bare work tags.git; for b in $(git -C tags.git for-each-ref --format='%(refname)' refs/heads); do git -C tags.git update-ref -d $b; done
git clone -q --bare work nowhere.git; git -C nowhere.git symbolic-ref HEAD refs/heads/gone
git init -q empty; git init -q --bare -b trunk trunk.git
git clone -q work detached; git -C detached checkout -q HEAD~2
git clone -q work lost; git -C lost checkout -q --detach; git -C lost commit -q --allow-empty -m lost
git clone -q --depth 2 file://$0/work shallow
git clone -q --shared work borrowed
git clone -q work dirty; cd dirty; echo changed >n; echo staged >staged; git add staged; echo untracked >untracked; git stash -q 2>/dev/null; echo changed >n; cd ..
git clone -q work aliases; cd aliases; git symbolic-ref refs/heads/alias refs/heads/main; git update-ref refs/heads/HEAD dev 2>/dev/null || git update-ref refs/heads/HEAD origin/dev; git update-ref refs/heads/refs/heads/main HEAD~1; git update-ref refs/tags/main HEAD~2; git update-ref refs/pull/1/head HEAD; git replace HEAD~1 HEAD~2; cd ..
git -C work worktree add -q -b other ../worktree
git init -q --separate-git-dir=apart.git apart; cd apart; echo x >f; git add f; git commit -qm f; cd ..
git init -q super; cd super; git submodule --quiet add ../work 'sub mod'; git commit -qm sub; cd ..; mkdir modules; ln -s "../super/sub mod" modules/sub
git init -q nothing; git -C nothing commit -q --allow-empty -m nothing
mkdir odd; git clone -q --bare work 'odd/sp ace #1%41+ü?.git'; git clone -q --bare work 'odd/sp ace %41+ü@:.git'; git clone -q --bare work "$(printf 'odd/new\nline\r\033\001caf\351.git')"
cd work; git bundle create -q ../all.bundle --all; cd ..
git clone -q work grafted; cd grafted; git config core.sharedRepository group; git config remote.pushDefault x; git config core.autocrlf true; git config receive.denyCurrentBranch ignore; cd ..
`

// state is all that git tells of a repository, and its files.
func state(t *testing.T, dir string) (lines []string) {
	t.Helper()
	for _, command := range []string{
		"for-each-ref --format=%(refname)|%(objectname)|%(symref)|%(*objectname)|%(upstream)|%(upstream:track)", "rev-parse --symbolic-full-name HEAD",
		"status --porcelain=v2 --branch -z", "fsck --full --strict", "config --local --list -z", "rev-parse --is-shallow-repository --show-object-format",
		"rev-list --all --objects", "log -g --format=%gD|%gs", "ls-files -s -t -z", "submodule status", "stash list", "worktree list --porcelain",
	} {
		cmd := exec.CommandContext(t.Context(), "git", append([]string{"-C", dir}, strings.Split(command, " ")...)...)
		cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL="+os.DevNull, "GIT_CONFIG_NOSYSTEM=1", "LC_ALL=C")
		out, err := cmd.CombinedOutput()
		text := strings.ReplaceAll(string(out), dir, "DIR")
		of := strings.FieldsFunc(text, func(r rune) bool { return r == '\n' || r == 0 })
		if strings.HasPrefix(command, "config") || strings.HasPrefix(command, "rev-list") {
			slices.Sort(of) // what is in both has no order
		}
		lines = append(lines, fmt.Sprintf("git %s: %v", command, err))
		lines = append(lines, of...)
	}
	err := filepath.WalkDir(dir, func(file string, d os.DirEntry, err error) error {
		if err != nil || d.Name() == ".git" {
			return cmp.Or(err, fs.SkipDir)
		}
		info, err := d.Info()
		content := []byte(nil)
		if d.Type() == 0 && err == nil {
			content, err = os.ReadFile(file)
		}
		to, _ := os.Readlink(file)
		name, _ := filepath.Rel(dir, file)
		lines = append(lines, fmt.Sprintf("%q %v %q %q", name, info.Mode(), to, content))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return lines
}

// git clone is the reference of all that a clone has: references, objects, configuration and files.
func TestClonesAreAsGitMakesThem(t *testing.T) {
	home := t.TempDir()
	t.Setenv("HOME", home)
	t.Setenv("XDG_CONFIG_HOME", home)
	t.Setenv("GIT_CONFIG_SYSTEM", os.DevNull)
	root := t.TempDir()
	docs, err := os.ReadFile("../../docs/differences.md")
	if err = cmp.Or(err, os.WriteFile(filepath.Join(home, ".gitconfig"), []byte("[init]\n\tdefaultBranch = main\n"), 0o644)); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.CommandContext(t.Context(), "sh", "-ec", variety, root).CombinedOutput(); err != nil {
		t.Fatalf("%v, %s", err, out)
	}
	const row = "a HEAD that names a branch that is not there"
	if !strings.Contains(string(docs), "\n| "+row+" | an empty directory, and a warning | an error that lists the branches |\n") {
		t.Errorf("docs/differences.md has no row %q", row)
	}
	var dirs []string
	for _, pattern := range []string{"/*", "/odd/*", "/modules/*"} {
		found, err := filepath.Glob(root + pattern)
		if err != nil {
			t.Fatal(err)
		}
		dirs = append(dirs, found...)
	}
	dirs = append(dirs, root+"/bare") // without .git
	revisions := []string{"", "main", "dev", "light", "annotated", "nested", "feat/ü", "alone", "none", "HEAD", "alias", "trunk"}
	also := harness.Every(3)
	for _, seed := range harness.Seeds(1, 40) {
		rnd := rand.New(rand.NewPCG(seed, 5))
		for i, dir := range dirs {
			name := filepath.Base(dir)
			if name == "odd" || name == "modules" || name == "apart.git" {
				continue // no repositories
			}
			for n, rev := range []string{"", revisions[rnd.IntN(len(revisions))]} {
				depth, url := rnd.IntN(3)*n, []string{"", "file://", "file://localhost"}[rnd.IntN(3)]+dir+[]string{"", "/"}[rnd.IntN(2)]
				switch {
				case n > 0 && !also(i):
					continue
				case strings.HasSuffix(dir, ".bundle"):
					url, depth = dir, 0
				case name == "bare", strings.Contains(dir, "?"), strings.Contains(dir, "\n"): // found without .git if there is no slash; the begin of a query in a URL, and what none has
					url = dir
				case strings.Contains(dir, "%"):
					url = strings.Replace(url, dir, strings.NewReplacer("%", "%25", " ", "%20", "ü", "%C3%BC").Replace(dir), 1)
					url = "file://" + strings.TrimPrefix(url, "file://")
				}
				t.Run(fmt.Sprintf("%d %s at %q, depth %d", seed, strings.Replace(url, root, "", 1), rev, depth), func(t *testing.T) {
					t.Parallel()
					flags := []string{"--no-local"}
					if rev != "" {
						flags = append(flags, "--branch", rev)
					}
					if depth > 0 {
						flags = append(flags, "--depth", strconv.Itoa(depth))
					}
					theirs, theirErr := plainClone(t, url, flags...)
					c, err := git.New(t.Context(), git.Repo{Location: parse(t, url), Revision: rev, Depth: depth})
					if err == nil {
						defer c.Remove()
					}
					var missing *git.MissingError
					switch is := errors.As(err, &missing); {
					case is && rev == "" && theirErr == nil && (name == "tags.git" || name == "nowhere.git"):
						return
					case is && rev != "" && theirErr != nil && strings.Contains(theirErr.Error(), "not found in upstream origin"):
						return
					case err != nil || theirErr != nil:
						t.Fatalf("New: %v; git clone: %v", err, theirErr)
					}
					if diff := gocmp.Diff(state(t, theirs), state(t, c.Dir)); diff != "" {
						t.Errorf("(-git +clone):\n%s", diff)
					}
				})
			}
		}
	}
}

// Git clones what Parse refuses, as docs/differences.md says.
func TestURLsThatAreRefused(t *testing.T) {
	t.Parallel()
	r := gittest.New(t)
	docs, err := os.ReadFile("../../docs/differences.md")
	if err != nil {
		t.Fatal(err)
	}
	for name, row := range map[string]string{"elsewhere": "another host than `localhost` in a `file:` URL", "/new\nline": "control characters, and bytes that are not UTF-8, in URLs and ssh addresses", "/\xff": "control characters, and bytes that are not UTF-8, in URLs and ssh addresses"} {
		dir := r.Dir
		if name[0] == '/' {
			dir = filepath.Join(r.Root, name)
			gittest.Run(t, r.Root, "clone", "-q", "--bare", r.Dir, dir)
			name = ""
		}
		if _, err := plainClone(t, "file://"+name+dir); err != nil {
			t.Error(err)
		}
		if l, err := git.Parse("file://" + name + dir); err == nil {
			t.Errorf("Parse of %q is %+v", "file://"+name+dir, l)
		}
		if name == "" {
			clone(t, git.Repo{Location: parse(t, dir)})
			clone(t, git.Repo{Location: parse(t, "file://"+(&url.URL{Path: dir}).EscapedPath())})
		}
		if !strings.Contains(string(docs), "\n| "+row+" |") {
			t.Errorf("docs/differences.md has no row %q", row)
		}
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
			if diff := gocmp.Diff(list(theirs), list(c.Dir)); rev == "" && diff != "" {
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
