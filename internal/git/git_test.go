package git_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/seed-1a2d6d8f/sandbox/internal/git"
	"github.com/seed-1a2d6d8f/sandbox/internal/gittest"
)

// clone clones and has the clone removed.
func clone(t *testing.T, repo git.Repo) string {
	t.Helper()
	c, err := git.New(t.Context(), repo)
	if err != nil {
		t.Fatalf("New(%v at %q): %v", repo.Location, repo.Revision, err)
	}
	t.Cleanup(func() {
		if err := c.Remove(); err != nil {
			t.Error(err)
		}
	})
	return c.Dir
}

func parse(t *testing.T, raw string) git.Location {
	t.Helper()
	l, err := git.Parse(raw)
	if err != nil {
		t.Fatalf("Parse(%q): %v", raw, err)
	}
	return l
}

func read(t *testing.T, dir, name string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// A branch, a tag, a commit however it is written, each with and without a depth.
func TestEveryKindOfRevision(t *testing.T) {
	t.Parallel()
	r := gittest.New(t)
	server := r.HTTP(t, "u", "p", nil)
	for _, way := range []struct{ name, url string }{
		{"file", "file://" + r.Dir}, {"path", r.Dir}, {"http", strings.Replace(server.URL, "://", "://u:p@", 1) + "/repo.git"},
	} {
		for _, c := range []struct {
			rev, n string
			branch string // checked out
			depth1 int    // commits there are with a depth of 1
		}{
			{"", "3", "main", 1},
			{"main", "3", "main", 1},
			{"refs/heads/main", "3", "main", 1},
			{"dev", "dev", "dev", 1},
			{"v2", "2", "", 1},
			{r.Commits[0], "1", "", 1},
			{strings.ToUpper(r.Commits[0]), "1", "", 1},
			{r.Commits[1][:8], "2", "", 2}, // nobody gives away what is abbreviated
			{r.Hidden, "hidden", "", 1},
			{"refs/pull/1/head", "hidden", "", 1},
		} {
			for _, depth := range []int{0, 1} {
				t.Run(fmt.Sprintf("%s %s depth %d", way.name, c.rev, depth), func(t *testing.T) {
					t.Parallel()
					dir := clone(t, git.Repo{Location: parse(t, way.url), Revision: c.rev, Depth: depth})
					if got := read(t, dir, "n"); got != c.n {
						t.Errorf("it is commit %q, want %q", got, c.n)
					}
					if got := gittest.Run(t, dir, "branch", "--show-current"); got != c.branch {
						t.Errorf("branch %q, want %q", got, c.branch)
					}
					if got := gittest.Run(t, dir, "rev-list", "--count", "HEAD"); depth == 1 && got != fmt.Sprint(c.depth1) {
						t.Errorf("%s commits with a depth of 1, want %d", got, c.depth1)
					}
					if got := gittest.Run(t, dir, "status", "--porcelain"); got != "" {
						t.Errorf("it is not clean: %s", got)
					}
				})
			}
		}
	}
}

// A full name is that of one reference, whatever others have the same ending.
func TestFullNameIsExact(t *testing.T) {
	t.Parallel()
	r := gittest.New(t)
	hex, tagged := strings.Repeat("ab", 20), strings.Repeat("CD", 20)
	for ref, commit := range map[string]string{
		"refs/heads/topic": r.Commits[0], "refs/tags/topic": r.Commits[1], "refs/tags/v1.0": r.Commits[0],
		"refs/heads/" + hex: r.Commits[1], "refs/tags/" + hex: r.Commits[0], "refs/tags/" + tagged: r.Commits[0],
		"refs/heads/refs/tags/deep": r.Commits[0], "refs/heads/refs/pull/2/head": r.Commits[0], "refs/heads/refs/heads/in": r.Commits[1],
	} {
		gittest.Run(t, r.Dir, "update-ref", ref, commit)
	}
	for rev, want := range map[string]struct{ n, branch string }{ // no n: it is missing
		"topic": {"1", "topic"}, "refs/heads/topic": {"1", "topic"}, "refs/tags/topic": {"2", ""},
		"v1.0": {"1", ""}, "refs/tags/v1.0": {"1", ""}, "refs/heads/v1.0": {},
		"refs/heads/main": {"3", "main"}, "refs/tags/main": {}, "refs/tags/v2": {"2", ""}, "refs/tags/v2^{}": {},
		"refs/heads/" + hex: {"2", hex}, "refs/tags/" + hex: {"1", ""}, hex: {"2", hex}, tagged: {"1", ""},
		"refs/tags/deep": {}, "refs/pull/2/head": {}, "refs/heads/in": {},
		"refs/heads/refs/heads/in": {"2", "refs/heads/in"}, "refs/heads/refs/tags/deep": {"1", "refs/tags/deep"},
	} {
		for _, depth := range []int{0, 1} {
			t.Run(fmt.Sprintf("%s depth %d", rev, depth), func(t *testing.T) {
				t.Parallel()
				repo := git.Repo{Location: parse(t, "file://"+r.Dir), Revision: rev, Depth: depth}
				if want.n == "" {
					c, err := git.New(t.Context(), repo)
					if err == nil {
						defer c.Remove()
						t.Errorf("it is commit %q", read(t, c.Dir, "n"))
					}
					if !errors.As(err, new(*git.MissingError)) {
						t.Errorf("New: %v, want that it is missing", err)
					}
					return
				}
				dir := clone(t, repo)
				if got := read(t, dir, "n"); got != want.n {
					t.Errorf("it is commit %q, want %q", got, want.n)
				}
				if got := gittest.Run(t, dir, "branch", "--show-current"); got != want.branch {
					t.Errorf("branch %q, want %q", got, want.branch)
				}
				if got := gittest.Run(t, dir, "rev-list", "--count", "HEAD"); depth == 1 && got != "1" {
					t.Errorf("%s commits with a depth of 1", got)
				}
				if got := gittest.Run(t, dir, "status", "--porcelain"); got != "" {
					t.Errorf("it is not clean: %s", got)
				}
			})
		}
	}
}

// A repository with SHA-256 is cloned like others.
func TestRepositoryWithSHA256(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	gittest.Run(t, dir, "init", "-q", "-b", "main", "--object-format=sha256", ".")
	for _, n := range []string{"1", "2", "3"} {
		gittest.Run(t, dir, "commit", "-q", "--allow-empty", "-m", n)
	}
	gittest.Run(t, dir, "tag", "-a", "-m", "two", "v2", "HEAD~1")
	gittest.Run(t, dir, "update-ref", "refs/pull/1/head", "HEAD~1")
	gittest.Run(t, dir, "config", "uploadpack.allowAnySHA1InWant", "true")
	id := gittest.Run(t, dir, "rev-parse", "HEAD~1")
	for _, rev := range []string{"", "main", "v2", "refs/tags/v2", "refs/heads/main", "refs/pull/1/head", id, strings.ToUpper(id), id[:10]} {
		want := "2"
		if rev == "" || strings.HasSuffix(rev, "main") {
			want = "3"
		}
		for _, depth := range []int{0, 1} {
			got := clone(t, git.Repo{Location: parse(t, "file://"+dir), Revision: rev, Depth: depth})
			if subject := gittest.Run(t, got, "log", "-1", "--format=%s"); subject != want {
				t.Errorf("%q with depth %d is commit %q, want %q", rev, depth, subject, want)
			}
			if n := gittest.Run(t, got, "rev-list", "--count", "HEAD"); depth == 1 && n != "1" && rev != id[:10] {
				t.Errorf("%q: %s commits with a depth of 1", rev, n)
			}
		}
	}
}

func TestRevisionThatIsMissing(t *testing.T) {
	t.Parallel()
	r := gittest.New(t)
	for _, rev := range []string{"nosuch", "refs/heads/nosuch", "refs/pull/9/head", "0123456789012345678901234567890123456789", "0123abc"} {
		for _, depth := range []int{0, 1} {
			_, err := git.New(t.Context(), git.Repo{Location: parse(t, r.Dir), Revision: rev, Depth: depth})
			var missing *git.MissingError
			if !errors.As(err, &missing) || !strings.Contains(err.Error(), rev) {
				t.Errorf("New of %q with depth %d: %v, want that it is missing", rev, depth, err)
			}
		}
	}
	if _, err := git.New(t.Context(), git.Repo{Location: parse(t, r.Dir+"x")}); err == nil || errors.As(err, new(*git.MissingError)) {
		t.Errorf("New of no repository: %v", err)
	}
}

// A repository without commits is cloned: it is empty.
func TestEmptyRepository(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	gittest.Run(t, dir, "init", "-q", "--bare", ".")
	for _, depth := range []int{0, 1} {
		got := clone(t, git.Repo{Location: parse(t, dir), Depth: depth})
		if url := gittest.Run(t, got, "remote", "get-url", "origin"); url != dir {
			t.Errorf("origin is %q", url)
		}
	}
}

// Submodules and what LFS keeps are left where they are, the configuration
// knows the URL and no more, and nothing tells of this machine.
func TestCloneIsPlain(t *testing.T) {
	t.Parallel()
	r := gittest.New(t)
	server := r.HTTP(t, "someone", "s3cr3t-w0rd", nil)
	l := parse(t, strings.Replace(server.URL, "://", "://someone:s3cr3t-w0rd@", 1)+"/repo.git")
	dir := clone(t, git.Repo{Location: l})
	if names, err := os.ReadDir(filepath.Join(dir, "sub")); err != nil || len(names) != 0 {
		t.Errorf("the submodule has %v, %v", names, err)
	}
	if got := read(t, dir, "large.bin"); got != gittest.Pointer {
		t.Errorf("the file of LFS is %q", got)
	}
	if got, err := os.Readlink(filepath.Join(dir, "link")); err != nil || got != "/etc/passwd" {
		t.Errorf("the link is %q, %v", got, err)
	}
	if info, err := os.Stat(filepath.Join(dir, "program")); err != nil || info.Mode()&0o100 == 0 {
		t.Errorf("the program is %v, %v", info, err)
	}
	want := "[core]\n\trepositoryformatversion = 0\n\tfilemode = true\n\tbare = false\n\tlogallrefupdates = true\n" +
		"[remote \"origin\"]\n\turl = " + server.URL + "/repo.git\n\tfetch = +refs/heads/*:refs/remotes/origin/*\n" +
		"[branch \"main\"]\n\tremote = origin\n\tmerge = refs/heads/main\n"
	if got := read(t, dir, ".git/config"); got != want {
		t.Errorf(".git/config is\n%s\nwant\n%s", got, want)
	}
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	// A name as short as "vm" is in compressed data by chance. An identity that git makes up has it after an @.
	secrets := []string{"s3cr3t-w0rd", "someone", filepath.Dir(dir), "@" + host}
	err = filepath.WalkDir(dir, func(name string, d os.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		b, err := os.ReadFile(name)
		for _, secret := range secrets {
			if strings.Contains(string(b), secret) {
				t.Errorf("%s has %q in it", name, secret)
			}
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(filepath.Join(dir, ".git/hooks")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("it has hooks: %v", err)
	}
}

// The user's and the machine's configuration take no part: what they name is not run,
// and their credentials are not sent.
func TestNothingOfTheHostsConfigurationTakesPart(t *testing.T) {
	r := gittest.New(t)
	home := t.TempDir()
	ran := filepath.Join(home, "ran")
	bait := "[core]\n\thooksPath = " + home + "/hooks\n\tfsmonitor = touch " + ran + "\n\tsshCommand = touch " + ran + "\n\taskPass = touch " + ran +
		"\n[init]\n\ttemplateDir = " + home + "/template\n[credential]\n\thelper = \"!touch " + ran + "; echo username=ambient; echo password=ambient\"\n" +
		"[filter \"lfs\"]\n\tsmudge = touch " + ran + "\n\trequired = true\n[url \"file:///nowhere/\"]\n\tinsteadOf = http://\n" +
		"[submodule]\n\trecurse = true\n"
	hook := "#!/bin/sh\ntouch " + ran + "\n"
	for name, text := range map[string]string{
		".gitconfig": bait, ".netrc": "machine 127.0.0.1 login ambient password ambient\n", "hooks/post-checkout": hook, "template/hooks/post-checkout": hook,
	} {
		name = filepath.Join(home, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(name), 0o755), os.WriteFile(name, []byte(text), 0o755)); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("HOME", home)
	t.Setenv("GIT_CONFIG_GLOBAL", filepath.Join(home, ".gitconfig"))
	t.Setenv("GIT_CONFIG_COUNT", "1")
	t.Setenv("GIT_CONFIG_KEY_0", "core.hooksPath")
	t.Setenv("GIT_CONFIG_VALUE_0", home+"/hooks")
	t.Setenv("GIT_TEMPLATE_DIR", home+"/template")
	t.Setenv("GIT_ASKPASS", "touch "+ran)
	t.Setenv("GIT_DIR", home)
	open := r.HTTP(t, "", "", nil)
	clone(t, git.Repo{Location: parse(t, open.URL+"/repo.git")})
	closed := r.HTTP(t, "ambient", "ambient", nil)
	if _, err := git.New(t.Context(), git.Repo{Location: parse(t, closed.URL+"/repo.git")}); err == nil {
		t.Error("it was cloned with credentials that nobody gave")
	}
	for _, req := range closed.Requests() {
		if req.Header.Get("Authorization") != "" {
			t.Error("a server was sent credentials that nobody gave")
		}
	}
	if _, err := os.Stat(ran); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("something of the configuration was run: %v", err)
	}
}

// The clone is below TMPDIR, in whatever repository that is: its configuration
// takes no part, as the user's does not.
func TestTMPDIRMayBeAnywhere(t *testing.T) {
	r := gittest.New(t)
	top := t.TempDir()
	for _, dir := range []string{"relative", "configured", "configured:1", "broken"} {
		if err := os.Mkdir(filepath.Join(top, dir), 0o755); err != nil {
			t.Fatal(err)
		}
		if name := filepath.Join(top, dir); strings.HasPrefix(dir, "configured") {
			gittest.Run(t, name, "init", "-q")
			gittest.Run(t, name, "config", "url.file:///nowhere/.insteadOf", "file:///")
		}
	}
	if err := errors.Join(os.WriteFile(filepath.Join(top, "broken", ".git"), []byte("gitdir: nowhere\n"), 0o644), os.Symlink("configured", filepath.Join(top, "link"))); err != nil {
		t.Fatal(err)
	}
	t.Chdir(top)
	for _, dir := range []string{"relative", filepath.Join(top, "configured"), filepath.Join(top, "configured:1"), filepath.Join(top, "broken"), filepath.Join(top, "link")} {
		t.Run(filepath.Base(dir), func(t *testing.T) {
			t.Setenv("TMPDIR", dir)
			for rev, want := range map[string]string{"": "3", "v2": "2", "refs/tags/v2": "2", "refs/heads/dev": "dev", r.Commits[0]: "1", r.Commits[0][:8]: "1", "refs/pull/1/head": "hidden"} {
				for _, depth := range []int{0, 1} {
					c, err := git.New(t.Context(), git.Repo{Location: parse(t, "file://"+r.Dir), Revision: rev, Depth: depth})
					if err != nil {
						t.Errorf("New of %q with depth %d: %v", rev, depth, err)
						continue
					}
					if got := read(t, c.Dir, "n"); got != want {
						t.Errorf("%q with depth %d is commit %q, want %q", rev, depth, got, want)
					}
					if err := c.Remove(); err != nil {
						t.Error(err)
					}
				}
			}
			if _, err := git.New(t.Context(), git.Repo{Location: parse(t, "file://"+r.Dir), Revision: "nosuch"}); !errors.As(err, new(*git.MissingError)) {
				t.Errorf("New of a revision that is missing: %v", err)
			}
			if left := must(filepath.Glob(filepath.Join(dir, "agent-sandbox-*"))); len(left) > 0 {
				t.Errorf("left: %q", left)
			}
		})
	}
}

// Relative paths in the environment are those of this program's directory, as with git clone.
func TestCertificatesByARelativePath(t *testing.T) {
	r := gittest.New(t)
	behind, err := url.Parse(r.HTTP(t, "", "", nil).URL)
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewUnstartedServer(httputil.NewSingleHostReverseProxy(behind))
	server.TLS = &tls.Config{ClientAuth: tls.RequireAnyClientCert}
	server.StartTLS()
	defer server.Close()
	private, err := x509.MarshalPKCS8PrivateKey(server.TLS.Certificates[0].PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	t.Chdir(t.TempDir())
	for name, block := range map[string]*pem.Block{
		"certificate.pem": {Type: "CERTIFICATE", Bytes: server.Certificate().Raw}, "key.pem": {Type: "PRIVATE KEY", Bytes: private},
	} {
		if err := os.WriteFile(name, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("GIT_SSL_CAINFO", "certificate.pem")
	t.Setenv("GIT_SSL_CERT", "certificate.pem") // the client's is the server's
	t.Setenv("GIT_SSL_KEY", "key.pem")
	for _, rev := range []string{"", "refs/pull/1/head"} {
		clone(t, git.Repo{Location: parse(t, server.URL+"/repo.git"), Revision: rev})
	}
}

// Files that match .gitattributes alone are no pointers.
func TestPointersAreFilesThatAreOne(t *testing.T) {
	t.Parallel()
	r := gittest.New(t)
	work := filepath.Join(r.Root, "work")
	old := strings.Replace(gittest.Pointer, "git-lfs", "hawser", 1)
	for name, text := range map[string]string{
		"old.bin": old, "sub 1/new\nline.bin": gittest.Pointer, "longest.bin": gittest.Pointer + strings.Repeat("x", 1023-len(gittest.Pointer)),
		"content.bin": "content", "empty.bin": "", "long.bin": gittest.Pointer + strings.Repeat("x", 1024-len(gittest.Pointer)), "later.bin": "\n" + gittest.Pointer,
		"similar.bin": strings.Replace(gittest.Pointer, "git-lfs", "other", 1), "without an attribute": gittest.Pointer,
	} {
		name = filepath.Join(work, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(name), 0o755), os.WriteFile(name, []byte(text), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("large.bin", filepath.Join(work, "link.bin")); err != nil {
		t.Fatal(err)
	}
	gittest.Run(t, work, "add", "-A")
	gittest.Run(t, work, "commit", "-q", "-m", "files")
	c, err := git.New(t.Context(), git.Repo{Location: parse(t, work)})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Remove()
	if want := []string{"large.bin", "longest.bin", "old.bin", "sub 1/new\nline.bin"}; !slices.Equal(c.Pointers, want) {
		t.Errorf("Pointers are %q, want %q", c.Pointers, want)
	}
}

// The credentials are in no process' arguments or environment while git runs, and in no
// error. A server that sends us to another one does not get the other one told.
func TestCredentialsAreNowhere(t *testing.T) {
	t.Parallel()
	const user, password = "someone-8d1fzq", "p/a:s s%40w0rd+é-77c2zq"
	r := gittest.New(t)
	seen := make(chan string, 100)
	server := r.HTTP(t, user, password, func(_ http.ResponseWriter, req *http.Request) bool {
		if _, p, _ := req.BasicAuth(); p == password {
			seen <- "password"
			for _, name := range []string{"cmdline", "environ"} {
				files, _ := filepath.Glob("/proc/[0-9]*/" + name)
				for _, f := range files {
					if b, _ := os.ReadFile(f); strings.Contains(string(b), "77c2zq") || strings.Contains(string(b), "8d1fzq") {
						seen <- fmt.Sprintf("%s: %q", f, b)
					}
				}
			}
		}
		return false
	})
	l := parse(t, server.URL+"/repo.git")
	l.Username, l.Password = user, password
	clone(t, git.Repo{Location: l})
	if len(seen) == 0 {
		t.Error("the server was not told the password")
	}
	for len(seen) > 0 {
		if s := <-seen; s != "password" {
			t.Errorf("credentials in %s", s)
		}
	}
	hides := func(what string, err error) {
		t.Helper()
		if err == nil {
			t.Errorf("%s: no error", what)
			return
		}
		for _, secret := range []string{"77c2", "8d1f"} {
			if strings.Contains(err.Error(), secret) || strings.Contains(fmt.Sprintf("%+v %#v", err, err), secret) {
				t.Errorf("%s: the error has %q in it: %v", what, secret, err)
			}
		}
	}
	elsewhere := r.HTTP(t, user, password, nil)
	away := r.HTTP(t, "", "", func(w http.ResponseWriter, req *http.Request) bool {
		http.Redirect(w, req, elsewhere.URL+req.URL.RequestURI(), http.StatusFound)
		return true
	})
	l = parse(t, away.URL+"/repo.git")
	l.Username, l.Password = user, password
	_, err := git.New(t.Context(), git.Repo{Location: l})
	hides("a redirect to another server", err)
	for _, req := range elsewhere.Requests() {
		if req.Header.Get("Authorization") != "" {
			t.Error("another server was told the credentials")
		}
	}
	echo := r.HTTP(t, "", "", func(w http.ResponseWriter, req *http.Request) bool {
		if u, p, ok := req.BasicAuth(); ok {
			w.Header().Set("Content-Type", "text/plain")
			w.WriteHeader(http.StatusForbidden)
			fmt.Fprintf(w, "you are %s with %s, or %s\n", u, p, req.Header.Get("Authorization"))
			return true
		}
		w.Header().Set("WWW-Authenticate", `Basic realm="git"`)
		w.WriteHeader(http.StatusUnauthorized)
		return true
	})
	l = parse(t, echo.URL+"/repo.git")
	l.Username, l.Password = user, password
	_, err = git.New(t.Context(), git.Repo{Location: l})
	hides("a server that says them back", err)
	repeat := r.HTTP(t, "", "", func(w http.ResponseWriter, req *http.Request) bool {
		if _, p, ok := req.BasicAuth(); ok {
			http.Redirect(w, req, "/"+url.PathEscape(p)+"?"+url.QueryEscape(p), http.StatusFound)
			return true
		}
		w.Header().Set("WWW-Authenticate", `Basic realm="git"`)
		w.WriteHeader(http.StatusUnauthorized)
		return true
	})
	l = parse(t, repeat.URL+"/repo.git")
	l.Username, l.Password = user, password
	_, err = git.New(t.Context(), git.Repo{Location: l})
	hides("a redirect to the password", err)
	l = parse(t, server.URL+"/repo.git")
	l.Username, l.Password = user, "wrong-77c2"
	_, err = git.New(t.Context(), git.Repo{Location: l})
	hides("a wrong password", err)
}

// Both ways to write an ssh URL.
func TestSSH(t *testing.T) {
	r := gittest.New(t)
	port, command := gittest.SSH(t)
	t.Setenv("GIT_SSH_COMMAND", command)
	for _, raw := range []string{fmt.Sprintf("ssh://git@127.0.0.1:%d%s", port, r.Dir), "git@127.0.0.1:" + r.Dir} {
		dir := clone(t, git.Repo{Location: parse(t, raw), Revision: "v2", Depth: 1})
		if got := read(t, dir, "n"); got != "2" {
			t.Errorf("of %s it is commit %q", raw, got)
		}
		if got := gittest.Run(t, dir, "remote", "get-url", "origin"); got != raw {
			t.Errorf("origin is %q, want %q", got, raw)
		}
	}
	t.Setenv("GIT_SSH_COMMAND", strings.Replace(command, "known'", "none'", 1))
	if _, err := git.New(t.Context(), git.Repo{Location: parse(t, fmt.Sprintf("ssh://git@127.0.0.1:%d%s", port, r.Dir))}); err == nil {
		t.Error("a host that is not known was taken")
	}
}

// When the caller goes, so does git and whatever it started, and nothing is left.
func TestCancelledClone(t *testing.T) {
	temp := t.TempDir()
	t.Setenv("TMPDIR", temp)
	r := gittest.New(t)
	reached := make(chan bool, 10)
	server := r.HTTP(t, "", "", func(_ http.ResponseWriter, req *http.Request) bool {
		reached <- true
		<-req.Context().Done()
		return true
	})
	ctx, cancel := context.WithCancel(t.Context())
	go func() { <-reached; cancel() }()
	began := time.Now()
	_, err := git.New(ctx, git.Repo{Location: parse(t, server.URL+"/repo.git")})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("New: %v", err)
	}
	if d := time.Since(began); d > time.Minute {
		t.Errorf("it took %v", d)
	}
	if left, _ := filepath.Glob(filepath.Join(temp, "agent-sandbox-*")); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
	for _, f := range must(filepath.Glob("/proc/[0-9]*/cmdline")) {
		if b, _ := os.ReadFile(f); strings.Contains(string(b), server.URL) {
			t.Errorf("%s still runs: %q", f, b)
		}
	}
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// What may be a URL, and what is never repeated.
func TestParse(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ raw, scheme, url, text, user, password string }{
		{"https://example.com/a/b.git", "https", "https://example.com/a/b.git", "https://example.com/a/b.git", "", ""},
		{"https://tok@example.com/a", "https", "https://example.com/a", "https://example.com/a", "tok", ""},
		{"https://u:p%40q@example.com:8443/a", "https", "https://example.com:8443/a", "https://example.com:8443/a", "u", "p@q"},
		{"http://[::1]:80/a", "http", "http://[::1]:80/a", "http://[::1]:80/a", "", ""},
		{"ssh://git@example.com:22/a", "ssh", "ssh://git@example.com:22/a", "ssh://example.com:22/a", "", ""},
		{"git@example.com:a/b.git", "ssh", "git@example.com:a/b.git", "example.com:a/b.git", "", ""},
		{"example.com:/a b", "ssh", "example.com:/a b", "example.com:/a b", "", ""},
		{"git@[::1]:a", "ssh", "git@[::1]:a", "[::1]:a", "", ""},
		{"file:///a/b", "file", "file:///a/b", "file:///a/b", "", ""},
		{"/a/b c", "file", "/a/b c", "/a/b c", "", ""},
		{"/a?b#c%zz", "file", "/a?b#c%zz", "/a?b#c%zz", "", ""},
		{"/a\x1b\nb\xe9", "file", "/a\x1b\nb\xe9", `"/a\x1b\nb\xe9"`, "", ""},
		{"file://localhost/a", "file", "file://localhost/a", "file://localhost/a", "", ""},
		{"file:///a b/\u00fc", "file", "file:///a%20b/%C3%BC", "file:///a%20b/%C3%BC", "", ""},
	} {
		l, err := git.Parse(c.raw)
		if err != nil {
			t.Errorf("Parse(%q): %v", c.raw, err)
			continue
		}
		if l.Scheme != c.scheme || l.URL != c.url || l.String() != c.text || l.Username != c.user || l.Password != c.password {
			t.Errorf("Parse(%q) is %+v", c.raw, []string{l.Scheme, l.URL, l.String(), l.Username, l.Password})
		}
	}
	for _, raw := range []string{
		"", "-u", "--upload-pack=touch /tmp/x", "ext::sh -c touch", "fd::7", "::x", "git://s3cr3t.example.com/a", "ftp://u:s3cr3t@h/a", "gopher://h/a", "javascript://h/a",
		"relative/path", "./a:b", "../a", "a", "https://u:s3cr3t@/a", "https://u:s3cr3t@h", "https://u:s3cr3t@h/a?x=1", "https://u:s3cr3t@h/a#f", "https://u:s3cr3t@h:x/a",
		"https://u:s3cr3t@h/%zz", "ssh://git:s3cr3t@h/a", "ssh://-oProxyCommand=x/a", "ssh://-oProxyCommand=x@h/a", "-oProxyCommand=x:a", "git@-oProxyCommand=x:a",
		"git:s3cr3t@h:a", "git@h:", "git@h:-x", "file://h/a", "file://localhost", "file://localhost:1/a", "file:///a\nb", "file:///\xff", "h:a\nb", "/a\x00b", "file://u:s3cr3t@h/a", "file://u:s3cr3t@localhost/a", "file:a", "file:///a?b", "file:///a#b", "https://h/a\nb", "https://h/a\x00", "https://h/\xff", "https:///a", "https://h h/a",
		"https://u:s3cr3t@h:/a", strings.Repeat("/a", 5000),
	} {
		l, err := git.Parse(raw)
		if err == nil {
			t.Errorf("Parse(%q) is %+v", raw, l)
		} else if strings.Contains(err.Error(), "s3cr3t") {
			t.Errorf("Parse(%q): the error repeats it: %v", raw, err)
		}
	}
}

func TestCheckRevision(t *testing.T) {
	t.Parallel()
	for _, good := range []string{"main", "feature/x", "v1.2.3", "release-1", "ünï", "HEAD", "refs/pull/1/head", "a@b"} {
		if err := git.CheckRevision(good); err != nil {
			t.Error(err)
		}
	}
	for _, bad := range []string{"-x", "--upload-pack=x", "a b", "a..b", "HEAD~1", "v1^{}", "main:file", "a\nb", "@{-1}", "@", "/a", "a/", "a*", "\xff", "a\\b", "[a", strings.Repeat("a", 2000)} {
		if git.CheckRevision(bad) == nil {
			t.Errorf("CheckRevision(%q) is nil", bad)
		}
	}
}

// Whatever is taken for a URL is nothing that git takes for something else.
func FuzzParse(f *testing.F) {
	for _, s := range []string{"https://u:p@h/a", "git@h:a", "ssh://g@h:1/a", "file:///a", "/a", "ext::x", "-x", "[::1]:a", "a@b@c:d", "/a\n\xff", "file://localhost/a"} {
		f.Add(s)
	}
	schemes := []string{"https", "http", "ssh", "file"}
	f.Fuzz(func(t *testing.T, raw string) {
		l, err := git.Parse(raw)
		if err != nil {
			return
		}
		if !slices.Contains(schemes, l.Scheme) || l.URL == "" || l.URL[0] == '-' || strings.ContainsRune(l.URL, 0) || !filepath.IsAbs(l.URL) && strings.ContainsAny(l.URL, "\n\r") || strings.ContainsFunc(l.String(), unicode.IsControl) {
			t.Fatalf("Parse(%q) is %+v", raw, l)
		}
		again, err := git.Parse(l.URL)
		if err != nil || again.URL != l.URL || again.Scheme != l.Scheme || again.Username != "" || again.Password != "" {
			t.Fatalf("Parse(%q).URL is %q, and that again %+v, %v", raw, l.URL, again, err)
		}
		if l.Scheme == "http" || l.Scheme == "https" {
			if len(l.Password) > 3 && !strings.Contains(strings.ReplaceAll(raw, ":"+l.Password+"@", ""), l.Password) && strings.Contains(l.URL+l.String(), l.Password) {
				t.Fatalf("the password of %q is in %q", raw, l.URL)
			}
		}
	})
}

// Git connects to the addresses that were checked, not to those that a DNS server has later, and
// follows no redirect.
func TestOnlyTheGivenAddresses(t *testing.T) {
	t.Parallel()
	r := gittest.New(t)
	server := r.HTTP(t, "", "", nil)
	_, port, err := net.SplitHostPort(strings.TrimPrefix(server.URL, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	l, err := git.Parse("http://checked.invalid:" + port + "/repo.git")
	if err != nil {
		t.Fatal(err)
	}
	c, err := git.New(t.Context(), git.Repo{Location: l, Only: []netip.Addr{netip.MustParseAddr("127.0.0.1")}})
	if err != nil {
		t.Fatalf("a name that no DNS server has: %v", err)
	}
	if err := c.Remove(); err != nil {
		t.Error(err)
	}
	redirect := httptest.NewServer(http.RedirectHandler(server.URL+"/repo.git/info/refs?service=git-upload-pack", http.StatusFound))
	defer redirect.Close()
	if l, err = git.Parse(redirect.URL + "/repo.git"); err != nil {
		t.Fatal(err)
	}
	if c, err := git.New(t.Context(), git.Repo{Location: l, Only: []netip.Addr{netip.MustParseAddr("127.0.0.1")}}); err == nil {
		t.Errorf("a redirect was followed: %v", c.Remove())
	}
}

func TestHostOfALocation(t *testing.T) {
	t.Parallel()
	for raw, want := range map[string]string{
		"https://a.test/r": "a.test", "http://u:p@a.test:8080/r": "a.test", "https://[::1]:80/r": "::1", "ssh://u@a.test:22/r": "a.test",
		"u@a.test:r": "a.test", "a.test:r/s:t": "a.test", "u@[::1]:r": "::1", "/srv/r": "", "file:///srv/r": "", "file://localhost/srv/r": "",
	} {
		l, err := git.Parse(raw)
		if err != nil || l.Host() != want {
			t.Errorf("%s: host %q, %v, want %q", raw, l.Host(), err, want)
		}
	}
}
