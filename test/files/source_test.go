package files_test

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/internal/enginetest"
	"github.com/seed-1a2d6d8f/sandbox/internal/gittest"
	"github.com/seed-1a2d6d8f/sandbox/internal/record"
	"github.com/seed-1a2d6d8f/sandbox/test/harness"
)

// from makes a sandbox of the client's with the source.
func from(t *testing.T, c *sandbox.Client, source sandbox.Source, opts ...sandbox.CreateOption) *sandbox.Sandbox {
	t.Helper()
	return harness.CreateWith(t, c, nil, append(opts, sandbox.WithSource(source))...)
}

// notMade tries to make a sandbox of the source and returns the error, having seen that
// nothing is left.
func notMade(t *testing.T, c *sandbox.Client, source sandbox.Source, opts ...sandbox.CreateOption) error {
	t.Helper()
	name := harness.UniqueName(t)
	harness.Remove(t, c, name)
	sb, err := c.Create(t.Context(), append(opts, sandbox.WithName(name), harness.Quick, sandbox.WithSource(source))...)
	if err == nil {
		sb.Detach()
		t.Errorf("Create from %v: it was made", source)
		return errors.New("none")
	}
	if sb != nil {
		t.Errorf("Create from %v: a handle beside an error", source)
	}
	if left := harness.Objects(t, harness.NewEngine(t), harness.Named(name)); len(left) > 0 {
		t.Errorf("Create from %v left %q", source, left)
	}
	return err
}

// bareImage is an image with users and nothing else, but for members: no shell, no git, no
// tar.
func bareImage(t *testing.T, user string, members ...harness.TarMember) string {
	t.Helper()
	content := harness.Tar(t, append(members, harness.TarFile("etc/passwd", "root:x:0:0::/:\nbuilder:x:1234:2345::/:\n"), harness.TarFile("etc/group", "makers:x:3456:\n"))...)
	return harness.Image(t, content, "USER "+user)
}

// The image has neither git nor a shell, and everything is its user's. What the image
// has in the place of the workspace is not in the way of a source, and not in the workspace.
func TestGitSourceNeedsNothingInTheImage(t *testing.T) {
	t.Parallel()
	r := gittest.New(t)
	image := bareImage(t, "builder", harness.TarFile("workspace/n", "of the image"), harness.TarFile("workspace/old", "of the image"))
	harness.BothWays(t, func(t *testing.T, c *sandbox.Client) {
		sb := from(t, c, sandbox.Git{URL: "file://" + r.Dir, Revision: "v2"}, sandbox.WithImage(image))
		if got, err := sb.ReadFile(t.Context(), "n"); string(got) != "2" || err != nil {
			t.Errorf("the file is %q, %v", got, err)
		}
		if got, err := sb.ReadFile(t.Context(), ".git/HEAD"); strings.TrimSpace(string(got)) != r.Commits[1] || err != nil {
			t.Errorf("HEAD is %q, %v, want %q", got, err, r.Commits[1])
		}
		if _, err := sb.Stat(t.Context(), "old"); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("a file of the image: %v, want that there is none", err)
		}
		// It belongs to the user, who is no root.
		if err := sb.WriteFile(t.Context(), "n", []byte("mine"), 0o644); err != nil {
			t.Error(err)
		}
		if err := sb.WriteFile(t.Context(), ".git/new", []byte("mine"), 0o644); err != nil {
			t.Error(err)
		}
		if err := sb.WriteFile(t.Context(), "new", []byte("mine"), 0o644); err != nil {
			t.Error(err)
		}
	})
}

// A clone that git inside works with, of the user whatever that is called.
func TestGitSourceIsAWorkingClone(t *testing.T) {
	t.Parallel()
	r := gittest.New(t)
	server := r.HTTP(t, "someone", "s3cr3t", nil)
	c := harness.NewClient(t)
	for _, user := range harness.EveryNth(2, []struct{ is, owner string }{{"", "0:0"}, {"node", "1000:1000"}, {"1000:5", "1000:5"}, {"4711", "4711:0"}}) {
		t.Run(user.is, func(t *testing.T) {
			t.Parallel()
			var opts []sandbox.CreateOption
			if user.is != "" {
				opts = append(opts, sandbox.WithUser(user.is))
			}
			sb := from(t, c, sandbox.Git{URL: server.URL + "/repo.git", Username: "someone", Password: "s3cr3t"}, opts...)
			if got := harness.Run(t, sb, "git", "status", "--porcelain", "--branch"); got != "## main...origin/main" {
				t.Errorf("git status: %q", got)
			}
			if got := harness.Run(t, sb, "git", "log", "--format=%s"); got != "3\n2\n1" {
				t.Errorf("git log: %q", got)
			}
			if got := harness.Run(t, sb, "git", "remote", "get-url", "origin"); got != server.URL+"/repo.git" {
				t.Errorf("origin is %q", got)
			}
			if got := harness.Run(t, sb, "sh", "-c", "find . -printf '%U:%G\n' | sort -u; stat -c %a ."); got != user.owner+"\n755" {
				t.Errorf("it belongs to %q, want %q", got, user.owner)
			}
			harness.Run(t, sb, "git", "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-q", "--allow-empty", "-m", "x")
		})
	}
}

// atRevisions makes sandboxes of every nth of a tag, a branch and a commit, each without its history.
func atRevisions(t *testing.T, n int, r *gittest.Repo, source sandbox.Git) {
	t.Helper()
	c := harness.NewClient(t)
	for _, at := range harness.EveryNth(n, []struct{ revision, want string }{{"v2", "2 " + r.Commits[1]}, {"dev", "dev " + r.Other}, {r.Commits[0], "1 " + r.Commits[0]}}) {
		source.Revision, source.Depth = at.revision, 1
		sb := from(t, c, source)
		if got := harness.Run(t, sb, "git", "log", "--format=%s %H"); got != at.want {
			t.Errorf("%s: git log: %q, want %q", at.revision, got, at.want)
		}
	}
}

// Git clones over ssh with a key.
func TestGitSourceOverSSH(t *testing.T) {
	r := gittest.New(t)
	port, command := gittest.SSH(t)
	t.Setenv("GIT_SSH_COMMAND", command)
	atRevisions(t, 3, r, sandbox.Git{URL: fmt.Sprintf("ssh://git@127.0.0.1:%d%s", port, r.Dir)})
}

// Git clones over http with a password.
func TestGitSourceOverHTTP(t *testing.T) {
	t.Parallel()
	r := gittest.New(t)
	server := r.HTTP(t, "someone", "s3cr3t", nil)
	atRevisions(t, 1, r, sandbox.Git{URL: server.URL + "/repo.git", Username: "someone", Password: "s3cr3t"})
	for _, password := range []string{"", "wrong"} {
		if err := notMade(t, harness.NewClient(t), sandbox.Git{URL: server.URL + "/repo.git", Username: "someone", Password: password}); strings.Contains(err.Error(), "someone") {
			t.Errorf("password %q: %v", password, err)
		}
	}
}

// The main process sees everything, or there is none.
func TestMainProcessSeesTheWholeSource(t *testing.T) {
	t.Parallel()
	var members []harness.TarMember
	for i := range 3000 {
		members = append(members, harness.TarFile(fmt.Sprintf("d%d/f%d", i%50, i), "x"))
	}
	archive := harness.Tar(t, members...)
	c := harness.NewClient(t)
	sb := from(t, c, sandbox.Tarball{Reader: bytes.NewReader(archive)},
		sandbox.WithCommand("sh", "-c", "find . -type f | wc -l > /tmp/seen; find . -user root | wc -l >> /tmp/seen; sleep 1000"))
	harness.Eventually(t, "the main process has looked", func() bool {
		got, err := sb.ReadFile(t.Context(), "/tmp/seen")
		return err == nil && strings.Count(string(got), "\n") == 2
	})
	if got, _ := sb.ReadFile(t.Context(), "/tmp/seen"); string(got) != "3000\n3051\n" {
		t.Errorf("it saw %q", got)
	}
	// A mount in the workspace is made after the source, not before.
	sub := harness.HostDir(t, map[string]string{"mounted": "m"})
	sb = harness.CreateWith(t, c, []sandbox.Mount{{Source: sub, Target: "/workspace/d1/sub"}}, sandbox.WithSource(sandbox.Tarball{Reader: bytes.NewReader(archive)}))
	if got := harness.Run(t, sb, "sh", "-c", "ls d1/sub; ls d1 | wc -l"); got != "mounted\n61" {
		t.Errorf("with a mount: %q", got)
	}
}

// A source directory is copied for the user; a directory may be given as the source with what it has.
func TestDirSource(t *testing.T) {
	t.Parallel()
	dir := harness.HostDir(t, map[string]string{"a": "1", "sub/b": "2", "program": "p"})
	if err := errors.Join(os.Chmod(filepath.Join(dir, "program"), 0o755|fs.ModeSetuid), os.Symlink("a", filepath.Join(dir, "l")), os.Link(filepath.Join(dir, "a"), filepath.Join(dir, "hard"))); err != nil {
		t.Fatal(err)
	}
	harness.BothWays(t, func(t *testing.T, c *sandbox.Client) {
		var steps []string
		sb := from(t, c, sandbox.Dir(dir), sandbox.WithUser("node"), sandbox.WithProgress(func(p sandbox.Progress) {
			if p.Step == "source" {
				steps = append(steps, fmt.Sprintf("%d %s", p.Files, p.Text))
			}
		}))
		got := harness.Run(t, sb, "sh", "-c", "cat a sub/b l; stat -c '%U %a %n' . sub program; stat -c %h hard")
		if want := "121node 755 .\nnode 755 sub\nnode 755 program\n2"; got != want {
			t.Errorf("it is\n%s\nwant\n%s", got, want)
		}
		if len(steps) < 2 || steps[0] != "0 directory "+dir || steps[len(steps)-1] != "5 left out or changed, 1: /workspace/program (its setuid bit)" {
			t.Errorf("progress: %q", steps)
		}
		harness.Run(t, sb, "sh", "-c", "echo changed > a")
		if b, _ := os.ReadFile(filepath.Join(dir, "a")); string(b) != "1" {
			t.Error("a write inside was seen outside")
		}
	})
}

// A worktree and a submodule have their repository elsewhere.
func TestCopiesOfWorktreesSayThatGitWillNotWork(t *testing.T) {
	t.Parallel()
	r := gittest.New(t)
	tree, submodule := r.Elsewhere(t)
	c := harness.NewClient(t)
	said := func(name string, opts ...sandbox.CreateOption) string {
		var texts []string
		harness.CreateWith(t, c, nil, append(opts, sandbox.WithProgress(func(p sandbox.Progress) { texts = append(texts, p.Text) }))...)
		return strings.Join(texts, "\n")
	}
	for _, dir := range []string{tree, submodule} {
		for name, got := range map[string]string{
			"Dir":     said("Dir", sandbox.WithSource(sandbox.Dir(dir))),
			"WithDir": said("mount", sandbox.WithMounts(sandbox.Mount{Source: dir, Target: "/tree"})),
		} {
			if !strings.Contains(got, "git will not work") || !strings.Contains(got, dir) {
				t.Errorf("%s of %s: %q, want a word about it", name, dir, got)
			}
		}
	}
	if got := said("repository", sandbox.WithSource(sandbox.Dir(filepath.Join(r.Root, "work")))); strings.Contains(got, "git") && strings.Contains(got, "not work") {
		t.Errorf("Dir of a repository: %q", got)
	}
	sb := from(t, c, sandbox.Git{URL: tree})
	if got := harness.Run(t, sb, "git", "branch", "--show-current"); got != "other" {
		t.Errorf("Git of a worktree: branch %q", got)
	}
}

// Tarballs are plain, zstd or gzip, by a file, a reader and a server that redirects, with
// what forges' archives and those of other tools have in them.
func TestTarballSource(t *testing.T) {
	t.Parallel()
	bin := harness.TarFile("top/bin", "program")
	bin.Mode = 0o6755
	sub := harness.TarMember{Header: tar.Header{Typeflag: tar.TypeDir, Name: "top/sub/", Mode: 0o750, ModTime: time.Unix(2e9, 0)}}
	hard := harness.TarMember{Header: tar.Header{Typeflag: tar.TypeLink, Name: "top/hard", Linkname: "top/bin"}}
	device := harness.TarMember{Header: tar.Header{Typeflag: tar.TypeChar, Name: "top/null", Devmajor: 1, Devminor: 3}}
	global := harness.TarMember{Header: tar.Header{Typeflag: tar.TypeXGlobalHeader, PAXRecords: map[string]string{"comment": "0123"}}}
	attr := harness.TarFile("top/attr", "a")
	attr.PAXRecords = map[string]string{"SCHILY.xattr.user.k": "v", "SCHILY.xattr.security.capability": "x"}
	plain := harness.Tar(t, global, bin, harness.TarFile("top/sub/late", "x"), sub, harness.TarFile("/top/abs", "absolute"), harness.TarFile("top/./dot", "d"), hard, harness.TarLink("top/link", "/etc/passwd"),
		harness.TarFile("top/twice", "one"), harness.TarFile("top/twice", "two"), device, attr, harness.TarFile("beside", "b"))
	path := filepath.Join(t.TempDir(), "x.tar")
	if err := os.WriteFile(path, plain, 0o644); err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if u, p, _ := r.BasicAuth(); u != "u" || p != "p" {
			w.WriteHeader(http.StatusUnauthorized)
		} else if n := r.URL.Query().Get("n"); len(n) < 5 {
			http.Redirect(w, r, "?n=x"+n, http.StatusFound)
		} else {
			w.Write(append(harness.Gzip(t, plain), make([]byte, 512)...)) // padding as tapes have it
		}
	}))
	defer server.Close()
	c := harness.NewClient(t)
	for name, source := range map[string]sandbox.Tarball{
		"plain file": {Path: path}, "zstd reader": {Reader: bytes.NewReader(harness.Zstd(t, plain))},
		"gzip URL": {URL: strings.Replace(server.URL, "://", "://u:p@", 1) + "/x"},
	} {
		t.Run(name, func(t *testing.T) {
			var said []string
			source.Strip = 1
			sb := from(t, c, &source, sandbox.WithUser("node"), sandbox.WithProgress(func(p sandbox.Progress) { said = append(said, p.Text) }))
			const look = "find . -printf '%P %m %u %l\n' | sort; cat abs dot twice; stat -c '%h %Y' hard sub"
			want := "755 node \nabs 644 node \nattr 644 node \nbin 755 node \ndot 644 node \nhard 755 node \nlink 777 node /etc/passwd\n" +
				"sub 750 node \nsub/late 644 node \ntwice 644 node \nabsolutedtwo2 1000000000\n2 2000000000"
			if got := harness.Run(t, sb, "sh", "-c", look); got != want {
				t.Errorf("it is\n%s\nwant\n%s", got, want)
			}
			if !strings.Contains(strings.Join(said, "\n"), `left out or changed, 4: /workspace/null (a device)`) {
				t.Errorf("the device was left out without a word: %q", said)
			}
		})
	}
}

// Hostile archives. Each error names the entry, and nothing is left.
func TestHostileTarballsMakeNothing(t *testing.T) {
	t.Parallel()
	c := harness.NewClient(t)
	for name, x := range harness.HostileTarballs(t) {
		if !x.Whole {
			continue
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if err := notMade(t, c, x.Source); !errors.Is(err, sandbox.ErrInvalidArgument) || !strings.Contains(err.Error(), x.Want) {
				t.Errorf("Create: %v, want an ErrInvalidArgument with %s", err, x.Want)
			}
		})
	}
}

// Servers that redirect, stall, break off, lie and answer something else.
func TestTarballServersThatMisbehave(t *testing.T) {
	t.Parallel()
	whole := harness.Tar(t, harness.TarFile("first", strings.Repeat("x", 5000)))
	stalled := make(chan bool, 1)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/404":
			http.Error(w, "<html>no", http.StatusNotFound)
		case "/loop":
			http.Redirect(w, r, "/loop?s3cr3t=1", http.StatusFound)
		case "/file":
			http.Redirect(w, r, "file:///etc/passwd", http.StatusFound)
		case "/html":
			io.WriteString(w, "<html>please sign in"+strings.Repeat(" ", 1000))
		case "/cut":
			w.Header().Set("Content-Length", fmt.Sprint(len(whole)))
			w.Write(whole[:2000])
			w.(http.Flusher).Flush()
			panic(http.ErrAbortHandler)
		case "/long": // it says that there is more than there is
			w.Header().Set("Content-Length", fmt.Sprint(len(whole)+100))
			w.Write(whole)
			panic(http.ErrAbortHandler)
		case "/short": // it says that there is less
			conn, _, _ := w.(http.Hijacker).Hijack()
			fmt.Fprintf(conn, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\nConnection: close\r\n\r\n", 2000)
			conn.Write(whole)
			conn.Close()
		case "/stall":
			w.Write(whole[:2000])
			w.(http.Flusher).Flush()
			stalled <- true
			<-r.Context().Done()
		}
	}))
	defer server.Close()
	c := harness.NewClient(t)
	for _, x := range []struct {
		path, want string
		invalid    bool
	}{
		{"/404?s3cr3t=1", "status 404 Not Found", false}, {"/loop", "10 redirects", false}, {"/file", `scheme "file"`, false}, {"/html", "an HTML page", true},
		{"/cut", "breaks off", true}, {"/long", "breaks off", true}, {"/short", "breaks off", true},
	} {
		err := notMade(t, c, sandbox.Tarball{URL: strings.Replace(server.URL, "://", "://u:s3cr3t@", 1) + x.path})
		if !strings.Contains(err.Error(), x.want) || strings.Contains(err.Error(), "s3cr3t") || errors.Is(err, sandbox.ErrInvalidArgument) != x.invalid {
			t.Errorf("%s: %v, want %s", x.path, err, x.want)
		}
	}
	// A stall ends with the context, wherever it is.
	ctx, cancel := context.WithCancel(t.Context())
	go func() { <-stalled; cancel() }()
	name := harness.UniqueName(t)
	harness.Remove(t, c, name)
	_, err := c.Create(ctx, sandbox.WithName(name), sandbox.WithSource(sandbox.Tarball{URL: server.URL + "/stall"}))
	if !errors.Is(err, context.Canceled) {
		t.Errorf("a server that stalls: %v", err)
	}
	if left := harness.Objects(t, harness.NewEngine(t), harness.Named(name)); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
	// A reader that never returns does not keep the call.
	pr, pw := io.Pipe()
	defer pw.Close()
	ctx, cancel = context.WithCancel(t.Context())
	go func() { pw.Write(whole[:2000]); cancel() }()
	_, err = c.Create(ctx, sandbox.WithName(name), sandbox.WithSource(sandbox.Tarball{Reader: pr}))
	if !errors.Is(err, context.Canceled) {
		t.Errorf("a reader that stalls: %v", err)
	}
	// What a reader fails with is the caller's to see.
	mine := errors.New("mine")
	err = notMade(t, c, sandbox.Tarball{Reader: io.MultiReader(bytes.NewReader(whole[:2000]), failing{mine})})
	if !errors.Is(err, mine) || errors.Is(err, sandbox.ErrInvalidArgument) {
		t.Errorf("a reader that fails: %v", err)
	}
}

type failing struct{ error }

func (f failing) Read([]byte) (int, error) { return 0, f.error }

// Refused before anything is done, and all at once.
func TestSourcesThatCantBe(t *testing.T) {
	t.Parallel()
	c := harness.Nowhere(t)
	none := filepath.Join(t.TempDir(), "none")
	plain := filepath.Join(t.TempDir(), "plain")
	if err := os.WriteFile(plain, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	for _, x := range []struct {
		source sandbox.Source
		want   string
	}{
		{nil, "there is no source"}, {(*sandbox.Git)(nil), "there is no source"}, {(*sandbox.Tarball)(nil), "there is no source"},
		{sandbox.Git{}, "URL is empty"}, {sandbox.Git{URL: "-u"}, "begins with '-'"}, {sandbox.Git{URL: "ext::sh"}, "names a program"},
		{sandbox.Git{URL: "git://s3cr3t/x"}, `scheme "git"`}, {sandbox.Git{URL: "https://a:s3cr3t@h/%zz"}, "can't be read"},
		{sandbox.Git{URL: "https://h/a", Revision: "-x"}, "revision"}, {sandbox.Git{URL: "https://h/a", Depth: -1}, "negative"},
		{sandbox.Git{URL: "ssh://h/a", Password: "s3cr3t"}, "https and http"}, {sandbox.Git{URL: "https://a:s3cr3t@h/a", Password: "s3cr3t"}, "both"},
		{sandbox.Git{URL: "https://h/a", Username: "a\nb", Password: "s3cr3t"}, "line break"},
		{sandbox.Tarball{}, "0 do"}, {sandbox.Tarball{URL: "http://h", Path: plain}, "2 do"}, {sandbox.Tarball{URL: "file:///x"}, `scheme "file"`},
		{sandbox.Tarball{URL: "http://u:s3cr3t@h/%zz"}, "can't be read"}, {sandbox.Tarball{URL: "http:///x"}, "no host"}, {sandbox.Tarball{Path: none}, "no such file"},
		{sandbox.Tarball{Path: t.TempDir()}, "is not a file"}, {sandbox.Tarball{Path: plain, Strip: -1}, "negative"}, {sandbox.Tarball{Path: plain, MaxBytes: -1}, "negative"},
		{sandbox.Tarball{Path: plain, MaxEntries: -1}, "negative"},
		{sandbox.Dir(none), "no such file"}, {sandbox.Dir(plain), "must be a directory"}, {sandbox.Dir("/"), "whole file system"}, {sandbox.Dir(""), "not a path"},
	} {
		_, err := c.Create(t.Context(), sandbox.WithSource(x.source))
		if !errors.Is(err, sandbox.ErrInvalidArgument) || !strings.Contains(err.Error(), x.want) {
			t.Errorf("Create from %#v: %v, want %s", x.source, err, x.want)
		}
		if strings.Contains(fmt.Sprintf("%v %#v %+v", err, x.source, x.source), "s3cr3t@") {
			t.Errorf("%#v shows a secret: %v", x.source, err)
		}
	}
	_, err := c.Create(t.Context(), sandbox.WithSource(sandbox.Dir(t.TempDir())), sandbox.WithSource(sandbox.Git{URL: "https://u:s3cr3t@h/a"}))
	if !errors.Is(err, sandbox.ErrInvalidArgument) || !strings.Contains(err.Error(), "one source") || strings.Contains(err.Error(), "s3cr3t") {
		t.Errorf("two sources: %v", err)
	}
}

// After a clone the password is nowhere: not in what the engine knows of the
// container, its volumes and helpers, not in the files, not in what was logged or
// reported.
func TestPasswordOfASourceIsNowhere(t *testing.T) {
	t.Parallel()
	const password = "p4ssw0rd-3f9a"
	r := gittest.New(t)
	server := r.HTTP(t, "user-77ab", password, nil)
	var log bytes.Buffer
	c := harness.NewClient(t, sandbox.WithLogger(slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))))
	var said []string
	source := sandbox.Git{URL: strings.Replace(server.URL, "://", "://user-77ab:"+password+"@", 1) + "/repo.git"}
	began := time.Now().Add(-time.Second)
	sb := from(t, c, source, sandbox.WithProgress(func(p sandbox.Progress) { said = append(said, fmt.Sprint(p)) }))
	fmt.Fprintf(&log, "%v %+v %#v", source, source, source)
	slog.New(slog.NewJSONHandler(&log, nil)).Info("x", "source", source)
	text := log.String() + strings.Join(said, "\n")
	eng := harness.NewEngine(t)
	var container, volume, events any
	enginetest.Get(t, "/containers/"+record.ContainerName(sb.Name())+"/json", &container)
	enginetest.Get(t, "/volumes/"+record.WorkspaceName(sb.ID()), &volume)
	text += fmt.Sprint(container, volume, events)
	for _, secret := range []string{password, "user-77ab"} {
		if strings.Contains(text, secret) {
			t.Errorf("%q is in what is known of the sandbox", secret)
		}
		cmd := sb.Command(t.Context(), "grep", "-rlF", secret, "/workspace")
		if out, _ := cmd.Output(); len(out) > 0 {
			t.Errorf("%q is in %s", secret, out)
		}
	}
	harness.NoHelpers(t, eng, began, func(_, of string) bool { return of == sb.Name() })
}

// A sandbox that is there is not filled again. A workspace that is adopted has no
// source.
func TestSourceIsForNewWorkspacesAlone(t *testing.T) {
	t.Parallel()
	c := harness.NewClient(t)
	name := harness.UniqueName(t)
	harness.Remove(t, c, name)
	first, second := harness.HostDir(t, map[string]string{"a": "1"}), harness.HostDir(t, map[string]string{"a": "2"})
	for _, dir := range []string{first, second} {
		sb, err := c.GetOrCreate(t.Context(), name, harness.Quick, sandbox.WithSource(sandbox.Dir(dir)))
		if err != nil {
			t.Fatalf("GetOrCreate: %v", err)
		}
		if got, err := sb.ReadFile(t.Context(), "a"); string(got) != "1" || err != nil {
			t.Errorf("the file is %q, %v", got, err)
		}
		sb.Detach()
	}
	id := record.NewID()
	sb, err := c.Create(t.Context(), sandbox.WithID(id), sandbox.WithPersistent(true), harness.Quick)
	if err != nil {
		t.Fatal(err)
	}
	sb.Detach()
	if _, err := c.Delete(t.Context(), id, sandbox.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		harness.RemoveNow(t, c, id)
		c.DeleteVolume(context.Background(), record.WorkspaceName(id), sandbox.DeleteVolumeOptions{})
	})
	_, err = c.Create(t.Context(), sandbox.WithID(id), sandbox.WithSource(sandbox.Dir(first)))
	if !errors.Is(err, sandbox.ErrExists) || !strings.Contains(err.Error(), "adopted without a source") {
		t.Errorf("Create that adopts with a source: %v", err)
	}
	if _, err := harness.NewEngine(t).InspectVolume(t.Context(), record.WorkspaceName(id)); err != nil {
		t.Errorf("the workspace is gone: %v", err)
	}
}

// A missing revision, a repository that is none, a user the image does not know.
func TestGitSourceThatFails(t *testing.T) {
	temp := t.TempDir()
	t.Setenv("TMPDIR", temp)
	r := gittest.New(t)
	c := harness.NewClient(t)
	if err := notMade(t, c, sandbox.Git{URL: r.Dir, Revision: "nosuch"}); !errors.Is(err, sandbox.ErrInvalidArgument) || !strings.Contains(err.Error(), `no branch, tag or commit "nosuch"`) {
		t.Errorf("a missing revision: %v", err)
	}
	if err := notMade(t, c, sandbox.Git{URL: r.Dir + "x"}); !strings.Contains(err.Error(), "repo.gitx") {
		t.Errorf("no repository: %v", err)
	}
	if err := notMade(t, c, sandbox.Git{URL: r.Dir}, sandbox.WithUser("nobody-there")); !strings.Contains(err.Error(), "nobody-there") {
		t.Errorf("no such user: %v", err)
	}
	t.Setenv("PATH", temp)
	if err := notMade(t, c, sandbox.Git{URL: r.Dir}); !strings.Contains(err.Error(), "git") {
		t.Errorf("no git: %v", err)
	}
	if left, _ := filepath.Glob(filepath.Join(temp, "agent-sandbox-*")); len(left) > 0 {
		t.Errorf("left on this machine: %q", left)
	}
}
