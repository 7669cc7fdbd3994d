// Package git clones untrusted repositories with this machine's git program, and keeps the
// credentials for them secret.
//
// It ignores the machine's and the user's git configuration except safe.directory, and runs no
// program that they or the repository name: no hooks, filters, credential helpers or templates. It
// fetches no submodules, and files in Git LFS stay pointers. ssh is the exception: it uses the user's
// own configuration, keys and agent, never prompts, and accepts known hosts only.
package git

import (
	"bytes"
	"cmp"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode"
)

// Repo is what to clone.
type Repo struct {
	Location
	Revision string // a branch, a tag or a commit; empty is the server's default branch
	Depth    int    // of the history; 0 is all of it
	// Only are the addresses of the server to connect to, and no redirect is followed; none leaves
	// both to git.
	Only []netip.Addr
	// Progress is called with git's progress messages, by another goroutine.
	Progress func(text string)
}

// MissingError reports that a repository has no such revision. If that is empty, its HEAD leads to
// nothing, and Names are its references: of branches or, without any, of tags or others.
type MissingError struct {
	Revision string
	Names    []string
}

func (e *MissingError) Error() string {
	if e.Revision != "" {
		return fmt.Sprintf("the repository has no branch, tag or commit %q", e.Revision)
	}
	var names []string
	for _, name := range e.Names[:min(len(e.Names), maxNames)] {
		names = append(names, strconv.Quote(name))
	}
	more := ""
	if n := len(e.Names) - maxNames; n > 0 {
		more = fmt.Sprintf(" and %d more", n)
	}
	return fmt.Sprintf("the repository's HEAD leads to no branch that it has: set Revision to what it has, %s%s", strings.Join(names, ", "), more)
}

// maxNames bounds the references in an error.
const maxNames = 10

// Error is a failure of git.
type Error struct {
	Text string // its last lines of output, without credentials
	Err  error  // its exit status
}

func (e *Error) Error() string {
	if e.Text == "" {
		return "git: " + e.Err.Error()
	}
	return "git: " + e.Text
}

func (e *Error) Unwrap() error { return e.Err }

// own are lines in which git says something of its own. Others may have text of the server, such as
// "remote: …", "fatal: remote error: …" and "fatal: protocol error: bad line length character: …", or name files of this machine.
var own = regexp.MustCompile(`^(fatal: unable to access '[^']*': (The requested URL returned error: [0-9]+|Could not resolve host: [A-Za-z0-9.-]+|SSL [a-z ]+)` +
	`|fatal: (repository '[^']*' not found|Authentication failed for '[^']*'|[Cc]ould not read (Username|Password) for '[^']*': [a-z ]+|Remote branch [^ ]+ not found in upstream origin)` +
	`|Host key verification failed\.|Permission denied \([a-z,-]+\)\.)$`)

// Public is the text without what the server said.
func (e *Error) Public() string {
	var lines []string
	for line := range strings.SplitSeq(e.Text, separator) {
		if own.MatchString(line) {
			lines = append(lines, line)
		}
	}
	if len(lines) == 0 {
		return fmt.Sprintf("git: the repository could not be cloned (%v)", e.Err)
	}
	return "git: " + strings.Join(lines, separator)
}

// separator is between the lines of an error.
const separator = "; "

// A Clone is a working tree with its repository, in a directory of its own. The caller
// removes it.
type Clone struct {
	Dir        string   // the working tree
	Submodules []string // the directories of those that were not fetched
	Pointers   []string // files that are pointers to their content in Git LFS
	temp       string
}

// Remove removes the clone from this machine.
func (c *Clone) Remove() error { return os.RemoveAll(c.temp) }

// Program returns the path of the git program.
func Program() (string, error) { return exec.LookPath("git") }

// New clones a repository into a new temporary directory. Afterwards the credentials remain
// in this process's memory only.
func New(ctx context.Context, repo Repo) (c *Clone, err error) {
	program, err := Program()
	if err != nil {
		return nil, err
	}
	parent, err := filepath.Abs(os.TempDir()) // git runs in another directory
	if err != nil {
		return nil, err
	}
	temp, err := os.MkdirTemp(parent, "agent-sandbox-git-")
	if err != nil {
		return nil, err
	}
	c = &Clone{Dir: filepath.Join(temp, "tree"), temp: temp}
	defer func() {
		if err != nil {
			err = errors.Join(err, c.Remove())
			c = nil
		}
	}()
	r := &runner{ctx: ctx, repo: repo, program: program, temp: temp, dir: c.Dir}
	if err := os.Mkdir(filepath.Join(temp, "home"), 0o700); err != nil {
		return c, err
	}
	err = r.trust()
	if err == nil {
		err = r.clone()
	}
	if err == nil {
		err = r.openUp()
	}
	if err == nil {
		c.Submodules, c.Pointers, err = r.missing()
	}
	if err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return c, err
	}
	// It serves no purpose in the sandbox.
	if err := os.Remove(filepath.Join(r.gitDir(), "FETCH_HEAD")); err != nil && !errors.Is(err, os.ErrNotExist) {
		return c, err
	}
	return c, nil
}

type runner struct {
	ctx       context.Context
	repo      Repo
	program   string
	temp, dir string
	sha256    bool // the repository's IDs have 64 digits, as far as is known
}

// gitDir is the clone's repository. Git gets it even before it exists: otherwise it would look for one
// in the directories above.
func (r *runner) gitDir() string { return filepath.Join(r.dir, ".git") }

var (
	fullID  = regexp.MustCompile(`^([0-9a-fA-F]{40}|[0-9a-fA-F]{64})$`)
	shortID = regexp.MustCompile(`^[0-9a-fA-F]{4,64}$`)
)

func (r *runner) clone() error {
	rev := r.repo.Revision
	switch {
	case rev == "":
		return cmp.Or(r.fresh(""), r.hasHead())
	case strings.HasPrefix(rev, "refs/heads/"):
		return r.branch(rev)
	case strings.HasPrefix(rev, "refs/"):
		return r.reference(rev)
	case fullID.MatchString(rev):
		err := r.commit(strings.ToLower(rev))
		if !errors.As(err, new(*MissingError)) {
			return err
		}
		if served, e := r.serves("refs/heads/"+rev, "refs/tags/"+rev); e != nil || !served {
			return cmp.Or(e, err)
		}
		return r.fresh(rev) // a branch or tag can have such a name
	}
	err := r.fresh(rev)
	var failed *exec.ExitError
	if !errors.As(err, &failed) || r.ctx.Err() != nil {
		return err
	}
	// Git's messages can't be parsed reliably, so ask whether the revision is the cause.
	if served, e := r.serves("refs/heads/"+rev, "refs/tags/"+rev); e != nil || served {
		return err
	}
	if shortID.MatchString(rev) {
		return r.abbreviated(rev)
	}
	return &MissingError{Revision: r.repo.Revision}
}

// missing lists what the commit that is checked out has elsewhere.
func (r *runner) missing() (submodules, pointers []string, err error) {
	var all, lfs bytes.Buffer
	err = cmp.Or(r.run(&all, "-C", r.dir, "ls-files", "-z", "--stage"), r.run(&lfs, "-C", r.dir, "ls-files", "-z", "--", ":(attr:filter=lfs)"))
	for entry := range strings.SplitSeq(all.String(), "\x00") {
		if mode, name, _ := strings.Cut(entry, "\t"); strings.HasPrefix(mode, "160000 ") {
			submodules = append(submodules, name)
		}
	}
	for name := range strings.SplitSeq(strings.TrimSuffix(lfs.String(), "\x00"), "\x00") {
		if name != "" && isPointer(filepath.Join(r.dir, filepath.FromSlash(name))) {
			pointers = append(pointers, name)
		}
	}
	return submodules, pointers, err
}

// pointerSize is what a pointer of Git LFS is smaller than, as git-lfs says.
const pointerSize = 1024

var pointer = regexp.MustCompile(`^version https://(git-lfs|hawser)\.github\.com/spec/`)

// isPointer reports whether a file is a pointer, and not content that was committed in spite of the
// attribute. No filter has changed it.
func isPointer(file string) bool {
	if info, err := os.Lstat(file); err != nil || !info.Mode().IsRegular() || info.Size() >= pointerSize {
		return false
	}
	text, err := os.ReadFile(file)
	return err == nil && pointer.Match(text)
}

// hasHead returns an error if the clone has nothing to check out although the repository has
// references: git clone only warns.
func (r *runner) hasHead() error {
	if r.has("HEAD") {
		return nil
	}
	all, err := r.references()
	if err != nil || len(all) == 0 {
		return err
	}
	missing := &MissingError{Names: all}
	for _, kind := range []string{"refs/tags/", "refs/heads/"} {
		var names []string
		for _, ref := range all {
			if name, is := strings.CutPrefix(ref, kind); is {
				names = append(names, name)
			}
		}
		if len(names) > 0 {
			missing.Names = names
		}
	}
	return missing
}

// branch clones a branch by its full name.
func (r *runner) branch(ref string) error {
	err := r.fresh(strings.TrimPrefix(ref, "refs/heads/"))
	var failed *exec.ExitError
	switch {
	case err == nil && r.in("symbolic-ref", "--quiet", "HEAD") != nil && r.ctx.Err() == nil:
		return &MissingError{Revision: ref} // git has taken the tag of that name
	case errors.As(err, &failed) && r.ctx.Err() == nil:
		if served, e := r.serves(ref); e == nil && !served {
			return &MissingError{Revision: ref}
		}
	}
	return cmp.Or(err, r.ctx.Err())
}

// reference gets a reference that is no branch, by its full name.
func (r *runner) reference(ref string) error {
	// Where it is missing git would take another one that ends with the name.
	if served, err := r.serves(ref); err != nil {
		return err
	} else if !served {
		return &MissingError{Revision: ref}
	}
	if !strings.HasPrefix(ref, "refs/tags/") {
		return r.fetched(ref)
	}
	if r.repo.Depth > 0 {
		return r.shallow("+"+ref+":"+ref, ref)
	}
	if err := r.fresh("", "--no-checkout"); err != nil {
		return err
	}
	return r.checkout(ref)
}

// serves reports whether the repository has one of the references of these full names.
func (r *runner) serves(refs ...string) (bool, error) {
	all, err := r.references(refs...) // it lists references that end with the name, too
	return slices.ContainsFunc(all, func(ref string) bool { return slices.Contains(refs, ref) }), err
}

// references lists the full names of the repository's references that match, or of all.
func (r *runner) references(match ...string) (names []string, err error) {
	var list bytes.Buffer
	if err := r.run(&list, append([]string{"ls-remote", "--", r.repo.URL}, match...)...); err != nil {
		return nil, err
	}
	for line := range strings.Lines(list.String()) {
		id, ref, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "\t")
		r.sha256 = len(id) == sha256Digits
		if !strings.HasSuffix(ref, "^{}") { // else it is what an annotated tag points to
			names = append(names, ref)
		}
	}
	return names, nil
}

// fresh clones a branch or tag, or the repository's HEAD.
func (r *runner) fresh(rev string, flags ...string) error {
	if err := os.RemoveAll(r.dir); err != nil {
		return err
	}
	args := append([]string{"clone", "--progress", "--template=", "--no-recurse-submodules", "--no-local"}, flags...)
	if r.repo.Depth > 0 && !slices.Contains(flags, "--no-checkout") {
		args = append(args, "--depth", strconv.Itoa(r.repo.Depth))
	}
	if rev != "" {
		args = append(args, "--branch", rev)
	}
	return r.git(append(args, "--", r.repo.URL, r.dir)...)
}

// sha256Digits is the length of an ID in a repository with SHA-256.
const sha256Digits = 64

// commit gets one commit by its ID. If the server doesn't serve single commits, it clones
// the whole history.
func (r *runner) commit(id string) error {
	if r.repo.Depth > 0 {
		r.sha256 = len(id) == sha256Digits
		if err := r.shallow(id, id); err == nil || r.ctx.Err() != nil {
			return err
		}
	}
	if err := r.fresh("", "--no-checkout"); err != nil {
		return err
	}
	if !r.has(id) {
		// It may be on no branch.
		if err := r.in("fetch", "--progress", "--no-tags", "--", "origin", id); err != nil || !r.has(id) {
			return cmp.Or[error](r.ctx.Err(), &MissingError{Revision: r.repo.Revision})
		}
	}
	return r.checkout(id)
}

// shallow fetches a commit or a reference with limited history, and checks it out.
func (r *runner) shallow(refspec, commit string) error {
	args := []string{"init", "--quiet", "--template="}
	if r.sha256 {
		args = append(args, "--object-format=sha256")
	}
	if err := errors.Join(os.RemoveAll(r.dir), r.git(append(args, "--", r.dir)...)); err != nil {
		return err
	}
	for _, kv := range [][2]string{{"remote.origin.url", r.repo.URL}, {"remote.origin.fetch", "+refs/heads/*:refs/remotes/origin/*"}} {
		if err := r.in("config", kv[0], kv[1]); err != nil {
			return err
		}
	}
	if err := r.in("fetch", "--progress", "--no-tags", "--depth", strconv.Itoa(r.repo.Depth), "--", "origin", refspec); err != nil {
		return err
	}
	return r.checkout(commit)
}

// fetched gets a reference that is neither a branch nor a tag.
func (r *runner) fetched(ref string) error {
	if r.repo.Depth > 0 {
		return r.shallow(ref, "FETCH_HEAD")
	}
	if err := r.fresh("", "--no-checkout"); err != nil {
		return err
	}
	if err := r.in("fetch", "--progress", "--no-tags", "--", "origin", ref); err != nil {
		return err
	}
	return r.checkout("FETCH_HEAD")
}

// abbreviated gets a commit by a prefix of its ID, which only the whole history resolves.
func (r *runner) abbreviated(id string) error {
	if err := r.fresh("", "--no-checkout"); err != nil {
		return err
	}
	if !r.has(id) {
		return cmp.Or[error](r.ctx.Err(), &MissingError{Revision: r.repo.Revision})
	}
	return r.checkout(id)
}

func (r *runner) has(commit string) bool {
	return r.in("rev-parse", "--verify", "--quiet", "--end-of-options", commit+"^{commit}") == nil
}

func (r *runner) checkout(commit string) error {
	return r.in("checkout", "--quiet", "--force", "--detach", commit, "--")
}

// in runs git in the clone.
func (r *runner) in(args ...string) error { return r.git(append([]string{"-C", r.dir}, args...)...) }

// settings are the flags that keep git from running other programs.
func (r *runner) settings() []string {
	set := []string{
		"core.hooksPath=" + os.DevNull, "core.fsmonitor=false", "core.attributesFile=" + os.DevNull, "core.excludesFile=" + os.DevNull,
		"core.askPass=", "credential.helper=", "submodule.recurse=false", "fetch.recurseSubmodules=false",
		"gc.auto=0", "maintenance.auto=false", "init.defaultBranch=main", "advice.detachedHead=false", "core.autocrlf=false",
		"http.followRedirects=initial", "protocol.version=2",
	}
	if len(r.repo.Only) > 0 {
		set = append(set, "http.followRedirects=false")
		if pin := r.repo.pin(); pin != "" {
			set = append(set, "http.curloptResolve="+pin)
		}
	}
	if r.secret() {
		// Only this server gets them, also after a redirect.
		set = append(set, fmt.Sprintf("credential.%s://%s.helper=!%s; :", r.repo.Scheme, r.repo.host, credentialCommand(r.temp)))
	}
	var args []string
	for _, s := range set {
		args = append(args, "-c", s)
	}
	return args
}

// pin returns, in the form of curl, which addresses the host has. Git before 2.37 does not know the
// setting, and asks a DNS server again.
func (r Repo) pin() string {
	u, err := url.Parse(r.URL)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" {
		return ""
	}
	port := u.Port()
	if port == "" {
		port = map[string]string{"http": "80", "https": "443"}[u.Scheme]
	}
	var addresses []string
	for _, a := range r.Only {
		addresses = append(addresses, a.String())
	}
	return u.Hostname() + ":" + port + ":" + strings.Join(addresses, ",")
}

func (r *runner) secret() bool {
	return r.repo.host != "" && (r.repo.Username != "" || r.repo.Password != "")
}

// inherited are the variables that git gets from our own environment: search paths, proxies,
// certificates, and the user who called sudo, whose repositories git trusts.
var inherited = []string{
	"PATH", "TMPDIR", "LANG", "SUDO_UID", "SSH_AUTH_SOCK", "SSL_CERT_FILE", "SSL_CERT_DIR", "KRB5CCNAME", "KRB5_CONFIG",
	"GIT_SSL_CAINFO", "GIT_SSL_CAPATH", "GIT_SSL_CERT", "GIT_SSL_KEY", "GIT_SSL_VERSION", "GIT_SSL_CIPHER_LIST",
	"GIT_PROXY_SSL_CAINFO", "GIT_PROXY_SSL_CERT", "GIT_PROXY_SSL_KEY",
	"http_proxy", "https_proxy", "all_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY",
	"SYSTEMROOT", "TEMP", "TMP", "USERPROFILE", "PATHEXT", "COMSPEC", // Windows
}

// paths are the variables that name files: git runs in another directory.
var paths = []string{
	"TMPDIR", "SSH_AUTH_SOCK", "SSL_CERT_FILE", "SSL_CERT_DIR", "TEMP", "TMP",
	"GIT_SSL_CAINFO", "GIT_SSL_CAPATH", "GIT_SSL_CERT", "GIT_SSL_KEY", "GIT_PROXY_SSL_CAINFO", "GIT_PROXY_SSL_CERT", "GIT_PROXY_SSL_KEY",
	"HOME", "XDG_CONFIG_HOME", "GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM",
}

// variables returns those of our own environment that are set, with absolute paths.
func variables(keys ...string) (env []string) {
	for _, key := range keys {
		v, ok := os.LookupEnv(key)
		switch {
		case !ok:
			continue
		case v == "":
		case slices.Contains(paths, key):
			v = absolute(v)
		case key == "PATH":
			dirs := filepath.SplitList(v)
			for i, dir := range dirs {
				if dir != "" || runtime.GOOS != "windows" { // elsewhere an empty one is this directory
					dirs[i] = absolute(dir)
				}
			}
			v = strings.Join(dirs, string(filepath.ListSeparator))
		}
		env = append(env, key+"="+v)
	}
	return env
}

func absolute(path string) string {
	abs, err := filepath.Abs(path)
	if err != nil {
		return path
	}
	return abs
}

// ssh is the environment with which git runs ssh as it would without us: in our directory, with our home, and with all variables
// that ssh's configuration or the command may name. Git's own stay out, and what would ask for a password.
func ssh() (env []string) {
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "GIT_") && !strings.HasPrefix(v, "SSH_ASKPASS") {
			env = append(env, v)
		}
	}
	command, variant := os.Getenv("GIT_SSH_COMMAND"), os.Getenv("GIT_SSH_VARIANT")
	if program := os.Getenv("GIT_SSH"); command == "" && program != "" {
		command = quote(program)
	}
	if command == "" {
		command, variant = "ssh -o BatchMode=yes -o ControlMaster=no -o ControlPath=none -o PermitLocalCommand=no -o ForwardAgent=no -o ForwardX11=no -o ClearAllForwardings=yes", "ssh"
	}
	if variant == "" {
		variant = variantOf(command)
	}
	if variant != "" {
		env = append(env, "GIT_SSH_VARIANT="+variant)
	}
	if home, ok := os.LookupEnv("HOME"); ok {
		command = "export HOME=" + quote(home) + " && " + command
	} else {
		command = "unset HOME && " + command
	}
	if dir, err := os.Getwd(); err == nil {
		command = "cd " + quote(dir) + " && " + command
	}
	return append(env, "GIT_SSH_COMMAND="+command)
}

// quote makes s one word of a shell's command.
func quote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

// variantOf returns which ssh git takes a shell's command for by its name; "" if git tries that out.
func variantOf(command string) string {
	first, _, _ := strings.Cut(strings.TrimSpace(command), " ")
	if mark := first[:min(1, len(first))]; mark == "'" || mark == `"` {
		first = strings.Split(command, mark)[1]
	}
	name := strings.TrimSuffix(strings.ToLower(filepath.Base(first)), ".exe")
	if slices.Contains([]string{"ssh", "plink", "putty", "tortoiseplink"}, name) {
		return name
	}
	return ""
}

func (r *runner) environ() []string {
	allowed := r.repo.Scheme
	if allowed == "http" {
		allowed = "http:https"
	}
	env := variables(inherited...)
	if r.repo.Scheme == "ssh" {
		env = append(ssh(), env...)
	}
	// The clone's reflog names the committer. Don't put this machine's user there.
	return append(env,
		"HOME="+filepath.Join(r.temp, "home"), "GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_GLOBAL="+r.trusted(), "GIT_ATTR_NOSYSTEM=1",
		"GIT_DIR="+r.gitDir(), "GIT_TERMINAL_PROMPT=0", "SSH_ASKPASS_REQUIRE=never", "GIT_LFS_SKIP_SMUDGE=1", "GIT_ALLOW_PROTOCOL="+allowed, "LC_ALL=C",
		"GIT_COMMITTER_NAME=sandbox", "GIT_COMMITTER_EMAIL=sandbox@localhost", "GIT_AUTHOR_NAME=sandbox", "GIT_AUTHOR_EMAIL=sandbox@localhost")
}

// waitDelay bounds the wait for git's output after it was killed.
const waitDelay = 5 * time.Second

// git runs git and discards its stdout.
func (r *runner) git(args ...string) error { return r.run(nil, args...) }

// run runs git. The end of the context kills it with all of its processes.
func (r *runner) run(stdout io.Writer, args ...string) error {
	if err := r.ctx.Err(); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(r.ctx)
	defer cancel()
	cmd := exec.CommandContext(ctx, r.program, append(r.settings(), args...)...)
	cmd.Dir = r.temp
	cmd.Env = r.environ()
	cmd.WaitDelay = waitDelay
	setSession(cmd)
	if r.secret() {
		done, err := r.passCredentials(cmd)
		if err != nil {
			return fmt.Errorf("pass credentials: %w", err)
		}
		defer done()
	}
	out := &output{runner: r}
	cmd.Stdout, cmd.Stderr = stdout, out
	err := cmd.Run()
	if err == nil {
		return nil
	}
	if r.ctx.Err() != nil {
		return r.ctx.Err()
	}
	return &Error{out.last(), err}
}

// credentials returns them in the format of a git credential helper.
func (r *runner) credentials() []byte {
	return []byte("username=" + r.repo.Username + "\npassword=" + r.repo.Password + "\n")
}

// output keeps the last lines of git's output and reports its progress.
type output struct {
	*runner
	mu       sync.Mutex
	line     []byte
	lines    []string
	reported time.Time
}

const (
	maxLine  = 1 << 10
	maxLines = 8
)

func (w *output) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, b := range p {
		if b != '\n' && b != '\r' {
			if len(w.line) < maxLine {
				w.line = append(w.line, b)
			}
			continue
		}
		w.endLine()
	}
	return len(p), nil
}

var progress = regexp.MustCompile(`^(remote: )?[A-Z][a-z]+ [a-z]+: +[0-9]+% \([0-9]+/[0-9]+\)[A-Za-z0-9 ,.|/]*$`)

// endLine keeps a line, or reports it as progress. What the server says is dropped if it
// knows a password, which it could repeat.
func (w *output) endLine() {
	line := string(bytes.TrimSpace(w.line))
	w.line = w.line[:0]
	if line == "" {
		return
	}
	line = w.redact(line)
	if progress.MatchString(line) {
		if w.repo.Progress != nil && time.Since(w.reported) > 100*time.Millisecond {
			w.reported = time.Now()
			w.repo.Progress(line)
		}
		return
	}
	if strings.HasPrefix(line, "Cloning into ") || strings.HasPrefix(line, "remote:") && w.secret() {
		return
	}
	if w.lines = append(w.lines, line); len(w.lines) > maxLines {
		w.lines = w.lines[1:]
	}
}

func (w *output) last() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.endLine()
	return strings.Join(w.lines, separator)
}

// redact removes credentials, which a server may send back, and control characters, which
// a terminal would interpret.
func (r *runner) redact(line string) string {
	user, password := r.repo.Username, r.repo.Password
	pair := user + ":" + password
	for _, secret := range []string{pair, password, user} {
		if secret == "" || secret == ":" {
			continue
		}
		for _, form := range []string{base64.StdEncoding.EncodeToString([]byte(secret)), url.QueryEscape(secret), url.PathEscape(secret), url.UserPassword(secret, "").String(), secret} {
			line = strings.ReplaceAll(line, strings.TrimSuffix(form, ":"), "xxxxx")
		}
	}
	return strings.Map(func(c rune) rune {
		if unicode.IsControl(c) || c == unicode.ReplacementChar {
			return '?'
		}
		return c
	}, line)
}
