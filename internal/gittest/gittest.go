// Package gittest provides a git repository for tests, and serves it over HTTP and SSH on
// the loopback interface.
package gittest

import (
	"crypto/ed25519"
	"crypto/rand"
	"encoding/pem"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/cgi"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/crypto/ssh"
)

// A Repo is a bare repository, repo.git in Root.
type Repo struct {
	Root string
	Dir  string
	// Commits are on main, the oldest first; file "n" of each has its number. The second is
	// tagged "v2". Other is on branch "dev". Hidden is on no branch; the reference
	// refs/pull/1/head points to it.
	Commits       []string
	Other, Hidden string
}

// Run runs git in a directory, without the user's configuration.
func Run(t testing.TB, dir string, args ...string) string {
	t.Helper()
	cmd := exec.Command("git", args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL="+os.DevNull, "GIT_CONFIG_NOSYSTEM=1",
		"GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a@localhost", "GIT_COMMITTER_NAME=a", "GIT_COMMITTER_EMAIL=a@localhost")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("git %q: %v\n%s", args, err, out)
	}
	return strings.TrimSpace(string(out))
}

// Pointer is the content of a file in Git LFS.
const Pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\nsize 12345\n"

// New makes a repository with a submodule, a file in LFS, a symbolic link and a program.
func New(t testing.TB) *Repo {
	t.Helper()
	root := t.TempDir()
	r := &Repo{Root: root, Dir: filepath.Join(root, "repo.git")}
	work := filepath.Join(root, "work")
	Run(t, root, "init", "-q", "-b", "main", work)
	write := func(name, content string, mode os.FileMode) {
		if err := os.WriteFile(filepath.Join(work, name), []byte(content), mode); err != nil {
			t.Fatal(err)
		}
	}
	write("program", "#!/bin/sh\n", 0o755)
	write(".gitattributes", "*.bin filter=lfs diff=lfs merge=lfs -text\n", 0o644)
	write("large.bin", Pointer, 0o644)
	write(".gitmodules", "[submodule \"sub\"]\n\tpath = sub\n\turl = ../elsewhere.git\n", 0o644)
	if err := os.Symlink("/etc/passwd", filepath.Join(work, "link")); err != nil {
		t.Fatal(err)
	}
	commit := func(n string) string {
		write("n", n, 0o644)
		Run(t, work, "add", "-A")
		Run(t, work, "commit", "-q", "-m", n)
		return Run(t, work, "rev-parse", "HEAD")
	}
	first := commit("1")
	if err := os.Mkdir(filepath.Join(work, "sub"), 0o755); err != nil {
		t.Fatal(err)
	}
	Run(t, work, "update-index", "--add", "--cacheinfo", "160000,"+first+",sub")
	r.Commits = append(r.Commits, first, commit("2"))
	Run(t, work, "tag", "-a", "-m", "two", "v2")
	r.Commits = append(r.Commits, commit("3"))
	Run(t, work, "checkout", "-q", "-b", "dev")
	r.Other = commit("dev")
	Run(t, work, "checkout", "-q", "-b", "hidden", "main")
	r.Hidden = commit("hidden")
	Run(t, work, "checkout", "-q", "main")
	Run(t, root, "clone", "-q", "--bare", work, r.Dir)
	Run(t, r.Dir, "update-ref", "refs/pull/1/head", r.Hidden)
	Run(t, r.Dir, "branch", "-q", "-D", "hidden")
	Run(t, r.Dir, "remote", "remove", "origin")
	return r
}

// Elsewhere makes a worktree, on the branch "other", and a submodule, whose .git name directories elsewhere.
func (r *Repo) Elsewhere(t testing.TB) (worktree, submodule string) {
	t.Helper()
	worktree = filepath.Join(r.Root, "tree")
	Run(t, filepath.Join(r.Root, "work"), "worktree", "add", "-q", "-b", "other", worktree)
	Run(t, r.Root, "init", "-q", "-b", "main", "super")
	super := filepath.Join(r.Root, "super")
	Run(t, super, "-c", "protocol.file.allow=always", "submodule", "--quiet", "add", r.Dir, "sub")
	return worktree, filepath.Join(super, "sub")
}

// A Server serves a repository's Root over smart HTTP.
type Server struct {
	*httptest.Server
	mu       sync.Mutex
	requests []*http.Request
}

// Requests returns the requests so far.
func (s *Server) Requests() []*http.Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.requests
}

// HTTP serves the repository, only to that user if user is not empty. before, which may be
// nil, returns true if it has answered a request itself.
func (r *Repo) HTTP(t testing.TB, user, password string, before func(http.ResponseWriter, *http.Request) bool) *Server {
	t.Helper()
	git, err := exec.LookPath("git")
	if err != nil {
		t.Fatal(err)
	}
	backend := &cgi.Handler{
		Path: git, Args: []string{"http-backend"}, InheritEnv: []string{"PATH"}, Stderr: io.Discard,
		Env: []string{"GIT_PROJECT_ROOT=" + r.Root, "GIT_HTTP_EXPORT_ALL=1", "GIT_CONFIG_GLOBAL=" + os.DevNull, "GIT_CONFIG_NOSYSTEM=1"},
	}
	s := &Server{}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		s.mu.Lock()
		s.requests = append(s.requests, req.Clone(req.Context()))
		s.mu.Unlock()
		if before != nil && before(w, req) {
			return
		}
		if u, p, ok := req.BasicAuth(); user != "" && (!ok || u != user || p != password) {
			w.Header().Set("WWW-Authenticate", `Basic realm="git"`)
			http.Error(w, "unauthorized", http.StatusUnauthorized)
			return
		}
		if p := req.Header.Get("Git-Protocol"); p != "" {
			with := *backend
			with.Env = append(with.Env[:len(with.Env):len(with.Env)], "GIT_PROTOCOL="+p)
			with.ServeHTTP(w, req)
			return
		}
		backend.ServeHTTP(w, req)
	}))
	t.Cleanup(s.Close)
	return s
}

// SSH serves all repositories of this machine to the holder of a key. It returns the
// server's port and the value for GIT_SSH_COMMAND.
func SSH(t testing.TB) (port int, command string) {
	t.Helper()
	dir := t.TempDir()
	_, host := key(t)
	userKey, user := key(t)
	conf := &ssh.ServerConfig{PublicKeyCallback: func(_ ssh.ConnMetadata, k ssh.PublicKey) (*ssh.Permissions, error) {
		if string(k.Marshal()) != string(user.PublicKey().Marshal()) {
			return nil, fmt.Errorf("unknown key")
		}
		return nil, nil
	}}
	conf.AddHostKey(host)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	t.Cleanup(func() { l.Close(); all.Wait() })
	all.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			all.Go(func() { serveSSH(conn, conf) })
		}
	})
	port = l.Addr().(*net.TCPAddr).Port
	known := fmt.Sprintf("[127.0.0.1]:%d %s", port, ssh.MarshalAuthorizedKey(host.PublicKey()))
	for name, text := range map[string]string{"known": known, "key": string(userKey)} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return port, fmt.Sprintf("ssh -F none -i '%[1]s/key' -p %[2]d -o IdentitiesOnly=yes -o BatchMode=yes -o UserKnownHostsFile='%[1]s/known' -o GlobalKnownHostsFile=none", dir, port)
}

func key(t testing.TB) ([]byte, ssh.Signer) {
	t.Helper()
	_, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	block, err := ssh.MarshalPrivateKey(private, "")
	if err != nil {
		t.Fatal(err)
	}
	signer, err := ssh.NewSignerFromKey(private)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(block), signer
}

func serveSSH(conn net.Conn, conf *ssh.ServerConfig) {
	defer conn.Close()
	_, chans, reqs, err := ssh.NewServerConn(conn, conf)
	if err != nil {
		return
	}
	go ssh.DiscardRequests(reqs)
	for c := range chans {
		if c.ChannelType() != "session" {
			c.Reject(ssh.UnknownChannelType, "")
			continue
		}
		ch, reqs, err := c.Accept()
		if err != nil {
			return
		}
		go func() {
			defer ch.Close()
			for req := range reqs {
				var msg struct{ Command string }
				if req.Type != "exec" || ssh.Unmarshal(req.Payload, &msg) != nil {
					if req.WantReply {
						req.Reply(req.Type == "env", nil)
					}
					continue
				}
				req.Reply(true, nil)
				code := uint32(0)
				cmd := exec.Command("sh", "-c", msg.Command)
				cmd.Stdout, cmd.Stderr = ch, ch.Stderr()
				in, err := cmd.StdinPipe()
				if err == nil {
					go func() { io.Copy(in, ch); in.Close() }()
					err = cmd.Run()
				}
				if err != nil {
					code = 128
				}
				ch.SendRequest("exit-status", false, ssh.Marshal(struct{ Status uint32 }{code}))
				return
			}
		}()
	}
}
