package files_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"embed"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/test/harness"
)

// tree describes a tree on this machine, one line for each entry.
func tree(t *testing.T, dir string) string {
	t.Helper()
	return describe(t, exec.Command("sh", "-ec", describeScript, dir))
}

// treeInside is tree of a sandbox.
func treeInside(t *testing.T, sb *sandbox.Sandbox, dir string) string {
	t.Helper()
	return harness.Run(t, sb, "sh", "-ec", describeScript, dir)
}

const describeScript = `cd "$0"; find . -printf '%P|%y|%m|%T@|%l|%n|' \( -type f -printf '%s|' -exec sha256sum --zero {} \; -o -printf '\0' \) | sort -z | tr '\0\n' '\n?'`

func describe(t *testing.T, cmd *exec.Cmd) string {
	t.Helper()
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %v\n%s", cmd, err, out)
	}
	return strings.TrimSpace(string(out))
}

// fullTree makes a tree with all that a copy is to keep.
const fullTree = `
	mkdir -p "$0/a/b" "$0/empty"; cd "$0"
	printf 'hello' > hello; : > nothing; head -c 3000000 /dev/urandom > a/large
	printf x > "$(printf 'a/new\nline')"; printf y > "$(printf 'a/\377\376')"; printf z > 'a/ü'; printf d > .dot
	printf n > "a/$(printf 'n%.0s' $(seq 255))"
	ln -s ../hello a/link; ln -s /etc/passwd a/absolute; ln -s ../../../outside a/out; ln -s nowhere dangling
	ln hello a/hard; ln a/large a/b/hard
	truncate -s 50M a/sparse; printf data | dd of=a/sparse bs=1 seek=20000000 conv=notrunc status=none
	chmod 4755 a/ü; chmod 600 nothing; chmod 1777 empty; chmod 555 a/b
	touch -d '2001-02-03 04:05:06.123456789Z' hello a/b a/large empty; touch -h -d '2002-02-03 04:05:06.5Z' a/link`

// A file that shrinks while it is copied arrives without what it lost, and the report says so; one that grows has the length that it
// had. GNU tar fills up the first with zeros and warns, and has the second as here.
func TestFilesThatChangeWhileTheyAreCopied(t *testing.T) {
	t.Parallel()
	sb := harness.Shared(t)
	const size, step = 64 << 20, 8 << 20 // between two calls of Progress
	host := filepath.Join(t.TempDir(), "changes")
	if err := os.WriteFile(host, bytes.Repeat([]byte("x"), size), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, to := range []int64{size - 2*step, size + 2*step} {
		want, left := min(size, to), []sandbox.Skipped(nil)
		if to < size {
			left = []sandbox.Skipped{{Path: ".", Reason: "it shrank while it was copied"}}
		}
		change := func(truncate func() error) sandbox.CopyOptions {
			return sandbox.CopyOptions{Progress: func(s sandbox.CopyStatus) {
				if s.Bytes < 2*step {
					if err := truncate(); err != nil {
						t.Error(err)
					}
				}
			}}
		}
		check := func(call string, report sandbox.CopyReport, err error, info fs.FileInfo, statErr error) {
			t.Helper()
			if err := errors.Join(err, statErr); err != nil || info.Size() != want || !slices.Equal(report.Skipped, left) {
				t.Errorf("%s of a file of %d bytes that becomes one of %d: %+v, %v; want %d bytes and the remarks %v", call, size, to, report, err, want, left)
			}
		}
		if err := os.Truncate(host, size); err != nil {
			t.Fatal(err)
		}
		report, err := sb.CopyIn(t.Context(), host, "changes", change(func() error { return os.Truncate(host, to) }))
		info, statErr := sb.Stat(t.Context(), "changes")
		check("CopyIn", report, err, info, statErr)

		harness.Run(t, sb, "sh", "-c", fmt.Sprintf("head -c %d /dev/zero >changes", size))
		out := filepath.Join(t.TempDir(), "out")
		report, err = sb.CopyOut(t.Context(), "changes", out, change(func() error { return sb.Truncate(t.Context(), "changes", to) }))
		info, statErr = os.Stat(out)
		check("CopyOut", report, err, info, statErr)
	}
}

// Names with newlines, not in UTF-8 and of 255 bytes, links out of the tree and
// absolute ones, hard links, holes, setuid.
func TestCopyKeepsATreeBothWays(t *testing.T) {
	t.Parallel()
	sb := harness.Shared(t)
	src, back := filepath.Join(t.TempDir(), "src"), filepath.Join(t.TempDir(), "back")
	harness.Shell(t, fullTree, src)
	in, err := sb.CopyIn(t.Context(), src, "deep/down/tree", sandbox.CopyOptions{})
	if err != nil || len(in.Skipped) != 0 {
		t.Fatalf("CopyIn: %+v, %v", in, err)
	}
	want := tree(t, src)
	if diff := cmp.Diff(want, treeInside(t, sb, "deep/down/tree")); diff != "" {
		t.Errorf("inside (-host +sandbox):\n%s", diff)
	}
	if got := harness.Run(t, sb, "sh", "-c", "du -k deep/down/tree/a/sparse | cut -f1"); len(got) > 3 {
		t.Errorf("the sparse file takes %s KiB inside", got)
	}
	out, err := sb.CopyOut(t.Context(), "deep/down/tree", back, sandbox.CopyOptions{})
	if err != nil {
		t.Fatalf("CopyOut: %v", err)
	}
	if diff := cmp.Diff([]sandbox.Skipped{{Path: "a/ü", Reason: "its setuid bit"}}, out.Skipped); diff != "" {
		t.Errorf("CopyOut skipped (-want +got):\n%s", diff)
	}
	want = strings.Replace(want, "a/ü|f|4755|", "a/ü|f|755|", 1)
	if diff := cmp.Diff(want, tree(t, back)); diff != "" {
		t.Errorf("copied back (-want +got):\n%s", diff)
	}
	if in.Files != out.Files || in.Directories != out.Directories || in.Bytes != out.Bytes || in.Files != 15 || in.Directories != 4 {
		t.Errorf("reports differ: in %+v, out %+v", in, out)
	}
}

func TestCopyOfASingleFileNamesTheCopy(t *testing.T) {
	t.Parallel()
	sb := ofNode(t)
	ctx, dir := t.Context(), t.TempDir()
	src := filepath.Join(dir, "src.txt")
	if err := os.WriteFile(src, []byte("one"), 0o640); err != nil {
		t.Fatal(err)
	}
	for _, to := range []string{"copy.txt", "into/"} {
		if _, err := sb.CopyIn(ctx, src, to, sandbox.CopyOptions{}); err != nil {
			t.Fatalf("CopyIn to %q: %v", to, err)
		}
	}
	if got := harness.Run(t, sb, "stat", "-c", "%n %a %U %s", "copy.txt", "into/src.txt"); got != "copy.txt 640 node 3\ninto/src.txt 640 node 3" {
		t.Errorf("inside: %q", got)
	}
	if _, err := sb.CopyOut(ctx, "copy.txt", src, sandbox.CopyOptions{}); err != nil {
		t.Errorf("CopyOut over a file: %v", err)
	}
	if _, err := sb.CopyOut(ctx, "copy.txt", dir+"/", sandbox.CopyOptions{}); err != nil {
		t.Errorf("CopyOut into a directory: %v", err)
	}
	if b, err := os.ReadFile(filepath.Join(dir, "copy.txt")); string(b) != "one" || err != nil {
		t.Errorf("copied into the directory: %q, %v", b, err)
	}
	if _, err := sb.CopyOut(ctx, "copy.txt", dir, sandbox.CopyOptions{}); err == nil {
		t.Error("CopyOut of a file over a directory: no error")
	}
	if _, err := sb.CopyIn(ctx, src, "into", sandbox.CopyOptions{}); err == nil {
		t.Error("CopyIn of a file over a directory: no error")
	}
}

func TestCopyMergesIntoADirectory(t *testing.T) {
	t.Parallel()
	sb := harness.Shared(t)
	ctx := t.Context()
	src := filepath.Join(t.TempDir(), "src")
	harness.Shell(t, `mkdir -p "$0/d"; cd "$0"; printf new > d/f; printf l > was-link; ln -s x was-file; ln d/f d/g`, src)
	harness.Run(t, sb, "sh", "-ec", `mkdir -p merged/d; cd merged; printf old > d/f; printf kept > d/kept; printf target > target; ln -s target was-link; printf f > was-file; ln d/f d/g`)
	if _, err := sb.CopyIn(ctx, src, "merged", sandbox.CopyOptions{}); err != nil {
		t.Fatal(err)
	}
	if got := harness.Run(t, sb, "sh", "-c", `cd merged; cat d/f d/g d/kept target was-link; readlink was-file; find . | sort | tr '\n' ' '; stat -c %h d/f`); got !=
		"newnewkepttargetlx\n. ./d ./d/f ./d/g ./d/kept ./target ./was-file ./was-link 2" {
		t.Errorf("merged: %q", got)
	}
	harness.Run(t, sb, "sh", "-ec", `rm merged/d/f; mkdir merged/d/f`)
	if _, err := sb.CopyIn(ctx, src, "merged", sandbox.CopyOptions{}); err == nil || !strings.Contains(err.Error(), "d/f") {
		t.Errorf("a file over a directory: %v, want an error that names d/f", err)
	}
}

// A device or a pipe alone is no copy.
func TestCopyOfASpecialFileIsRefusedByName(t *testing.T) {
	t.Parallel()
	sb := harness.Shared(t)
	harness.Run(t, sb, "mkfifo", "fifo")
	to := filepath.Join(t.TempDir(), "x")
	for _, name := range []string{"fifo", "/dev/zero"} {
		_, err := sb.CopyOut(t.Context(), name, to, sandbox.CopyOptions{})
		if !errors.Is(err, sandbox.ErrInvalidArgument) || !strings.Contains(err.Error(), name) {
			t.Errorf("CopyOut(%q): %v, want ErrInvalidArgument and the name", name, err)
		}
	}
	if _, err := sb.CopyIn(t.Context(), "/dev/zero", "x", sandbox.CopyOptions{}); !errors.Is(err, sandbox.ErrInvalidArgument) {
		t.Errorf("CopyIn(/dev/zero): %v, want ErrInvalidArgument", err)
	}
	if _, err := os.Lstat(to); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("something was made: %v", err)
	}
	for _, err := range []error{
		harness.Second(sb.CopyOut(t.Context(), "none", to, sandbox.CopyOptions{})),
		harness.Second(sb.CopyIn(t.Context(), "/no/such", "x", sandbox.CopyOptions{})),
	} {
		if !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("copy of what is not there: %v, want fs.ErrNotExist", err)
		}
	}
}

// Pipes, sockets, devices, setuid. What is not kept is said, both ways.
func TestSpecialFilesInATreeAreReported(t *testing.T) {
	t.Parallel()
	sb := harness.Shared(t)
	harness.Run(t, sb, "sh", "-ec", `mkdir special; cd special; mkfifo pipe; printf x > file; chmod 6755 file
		node -e 'require("net").createServer().listen("sock", () => process.kill(process.pid, 9))' || true`)
	to := filepath.Join(t.TempDir(), "t")
	report, err := sb.CopyOut(t.Context(), "special", to, sandbox.CopyOptions{})
	if err != nil {
		t.Fatal(err)
	}
	want := []sandbox.Skipped{{Path: "pipe", Reason: "a named pipe"}, {Path: "sock", Reason: "a socket"},
		{Path: "file", Reason: "its setuid bit"}, {Path: "file", Reason: "its setgid bit"}}
	got := map[sandbox.Skipped]bool{}
	for _, s := range report.Skipped {
		got[s] = true
	}
	for _, w := range want {
		if !got[w] {
			t.Errorf("not reported: %v; got %v", w, report.Skipped)
		}
	}
	if got := tree(t, to); !strings.Contains(got, "file|f|755|") || strings.Contains(got, "pipe") {
		t.Errorf("copied:\n%s", got)
	}
	// There is no device in a sandbox but those it is given.
	devices := filepath.Join(t.TempDir(), "dev")
	report, err = sb.CopyOut(t.Context(), "/dev", devices, sandbox.CopyOptions{})
	if err != nil || !slices.Contains(report.Skipped, sandbox.Skipped{Path: "zero", Reason: "a device"}) {
		t.Errorf("CopyOut(/dev): %+v, %v, want its devices reported", report, err)
	}
	if _, err := os.Lstat(filepath.Join(devices, "zero")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("of a device there is %v", err)
	}

	src := t.TempDir()
	harness.Shell(t, `cd "$0"; mkfifo pipe; mknod device c 1 3; printf x > file
		perl -MSocket -e 'socket(S, AF_UNIX, SOCK_STREAM, 0); bind(S, sockaddr_un("sock"))'`, src)
	report, err = sb.CopyIn(t.Context(), src, "in", sandbox.CopyOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range []sandbox.Skipped{{Path: "pipe", Reason: "a named pipe"}, {Path: "sock", Reason: "a socket"}, {Path: "device", Reason: "a device"}} {
		if !slices.Contains(report.Skipped, w) {
			t.Errorf("CopyIn did not report %v, only %v", w, report.Skipped)
		}
	}
	if got := harness.Run(t, sb, "ls", "in"); got != "file" {
		t.Errorf("inside there is %q", got)
	}
}

// What is in the way at the destination must not lead the copy elsewhere.
func TestCopyOutDoesNotFollowLinksAtTheDestination(t *testing.T) {
	t.Parallel()
	sb := harness.Shared(t)
	harness.Run(t, sb, "sh", "-ec", `mkdir -p evil/d; printf evil > evil/d/f; printf evil > evil/g`)
	dir := t.TempDir()
	harness.Shell(t, `mkdir -p "$0/outside" "$0/to"; cd "$0"; printf good > outside/f; printf good > outside/g; ln -s ../outside to/d; ln -s ../outside/g to/g`, dir)
	_, err := sb.CopyOut(t.Context(), "evil", filepath.Join(dir, "to"), sandbox.CopyOptions{})
	if err == nil || !strings.Contains(err.Error(), "d") {
		t.Errorf("CopyOut over a link to a directory: %v, want an error", err)
	}
	harness.Run(t, sb, "rm", "-r", "evil/d")
	if _, err := sb.CopyOut(t.Context(), "evil", filepath.Join(dir, "to"), sandbox.CopyOptions{}); err != nil {
		t.Errorf("CopyOut over a link to a file: %v", err)
	}
	for _, name := range []string{"f", "g"} {
		if b, _ := os.ReadFile(filepath.Join(dir, "outside", name)); string(b) != "good" {
			t.Errorf("outside/%s holds %q", name, b)
		}
	}
	if b, _ := os.ReadFile(filepath.Join(dir, "to", "g")); string(b) != "evil" {
		t.Errorf("to/g holds %q", b)
	}
}

// Link swaps, files that grow, shrink and vanish. The copy ends, and everything
// it has is a version that was there.
func TestCopyOutOfATreeThatMoves(t *testing.T) {
	t.Parallel()
	sb := harness.Shared(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	harness.Run(t, sb, "sh", "-ec", `mkdir -p moves/d secret; printf no > secret/f; for i in $(seq 50); do printf $i > moves/f$i; done; head -c 4000000 /dev/zero > moves/large`)
	churn := sb.Command(ctx, "sh", "-c", `cd moves; while :; do
		mv d e; ln -s ../secret d; rm d; mv e d
		rm -f f7; printf 7 > f7; truncate -s 1000 large; truncate -s 4000000 large; printf more >> f9; truncate -s 1 f9; done`)
	if err := churn.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { cancel(); churn.Wait() }()
	for i := range 15 {
		to := filepath.Join(t.TempDir(), fmt.Sprint(i))
		if _, err := sb.CopyOut(t.Context(), "moves", to, sandbox.CopyOptions{}); err != nil {
			t.Fatalf("CopyOut: %v", err)
		}
		if _, err := os.Lstat(filepath.Join(to, "d", "f")); err == nil {
			t.Fatal("the copy went through a link that took a directory's place")
		}
		if got, err := os.ReadFile(filepath.Join(to, "f50")); err != nil || string(got) != "50" {
			t.Errorf("f50 holds %q, %v", got, err)
		}
	}
}

// Paths of 4,000 characters are copied.
func TestDeepPathsAreCopied(t *testing.T) {
	t.Parallel()
	sb := harness.Shared(t)
	src := filepath.Join(t.TempDir(), "src")
	if err := os.Mkdir(src, 0o755); err != nil {
		t.Fatal(err)
	}
	root, err := os.OpenRoot(src)
	if err != nil {
		t.Fatal(err)
	}
	part := strings.Repeat("p", 199)
	for range 20 { // 4,000 characters and more
		if err := root.Mkdir(part, 0o755); err != nil {
			t.Fatal(err)
		}
		sub, err := root.OpenRoot(part)
		if err != nil {
			t.Fatal(err)
		}
		root.Close()
		root = sub
	}
	if err := root.WriteFile("end", []byte("deep"), 0o644); err != nil {
		t.Fatal(err)
	}
	root.Close()
	if _, err := sb.CopyIn(t.Context(), src, "abyss", sandbox.CopyOptions{}); err != nil {
		t.Fatal(err)
	}
	back := filepath.Join(t.TempDir(), "back")
	report, err := sb.CopyOut(t.Context(), "abyss", back, sandbox.CopyOptions{})
	if err != nil || report.Files != 1 || report.Directories != 21 || report.Bytes != 4 {
		t.Errorf("CopyOut of a path of 4,000 characters: %+v, %v", report, err)
	}
}

//go:embed copy_test.go
var embedded embed.FS

func TestCopyInTakesFileSystems(t *testing.T) {
	t.Parallel()
	sb := harness.Shared(t)
	var last sandbox.CopyStatus
	report, err := sb.CopyInFS(t.Context(), embedded, "emb", sandbox.CopyOptions{Progress: func(s sandbox.CopyStatus) { last = s }})
	if err != nil {
		t.Fatal(err)
	}
	want, _ := embedded.ReadFile("copy_test.go")
	if got, err := sb.ReadFile(t.Context(), "emb/copy_test.go"); err != nil || !bytes.Equal(got, want) {
		t.Errorf("emb/copy_test.go: %d bytes, %v; want %d", len(got), err, len(want))
	}
	if last.Files != report.Files || last.Bytes != report.Bytes || report.Files < 1 {
		t.Errorf("progress ended at %+v, the report is %+v", last, report)
	}
	// One sandbox into another.
	other := harness.NewSandbox(t)
	populate(t, sb, "/workspace/tree")
	sub, err := fs.Sub(sb.FS(), "workspace/tree")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := other.CopyInFS(t.Context(), sub, "tree", sandbox.CopyOptions{}); err != nil {
		t.Fatal(err)
	}
	if got := harness.Run(t, other, "sh", "-c", "cat tree/hello.txt; readlink tree/a/link"); got != "hello\n../hello.txt" {
		t.Errorf("from sandbox to sandbox: %q", got)
	}
}

// endless is a source of a file that never ends.
type endless struct{}

func (e *endless) Stat() (fs.FileInfo, error) { return e, nil }

func (e *endless) Name() string { return "endless" }

func (e *endless) Size() int64 { return 1 << 40 }

func (e *endless) Mode() fs.FileMode { return 0o644 }

func (e *endless) ModTime() time.Time { return time.Time{} }

func (e *endless) IsDir() bool { return false }

func (e *endless) Sys() any { return nil }

func (e *endless) Close() error { return nil }

func (e *endless) Read(b []byte) (int, error) { return len(b), nil }

// nothingBehind waits until a directory inside has no entries but those, and no
// process of a copy runs.
func nothingBehind(t *testing.T, sb *sandbox.Sandbox, want string) {
	t.Helper()
	harness.Eventually(t, "nothing of the copy is left inside", func() bool {
		return harness.Run(t, sb, "sh", "-c", `ls -A | tr '\n' ' '; ps -eo args= | grep -cE '[g]uest (un)?pack' || true`) == want+"0"
	})
}

func TestCancelledCopyLeavesNothing(t *testing.T) {
	t.Parallel()
	cancelCopies(t, 48<<20)
}

func TestSoakCancelledCopyOfAGiBLeavesNothing(t *testing.T) {
	harness.Soak(t)
	cancelCopies(t, 1<<30)
}

// cancelCopies cancels a copy of a file of that size in the middle, each way.
func cancelCopies(t *testing.T, size int64) {
	t.Helper()
	sb := harness.NewSandbox(t)
	why := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	src := filepath.Join(t.TempDir(), "big")
	if err := os.WriteFile(src, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	f, _ := os.OpenFile(src, os.O_WRONLY, 0)
	if _, err := io.CopyN(f, rand.Reader, size); err != nil {
		t.Fatal(err)
	}
	f.Close()
	_, err := sb.CopyIn(ctx, src, "big", sandbox.CopyOptions{Progress: func(s sandbox.CopyStatus) {
		if s.Bytes > size/3 {
			cancel(why)
		}
	}})
	if !errors.Is(err, why) || !strings.Contains(err.Error(), "big") {
		t.Errorf("cancelled CopyIn: %v, want the cause and the path", err)
	}
	nothingBehind(t, sb, "")

	ctx, cancel = context.WithCancelCause(t.Context())
	if _, err := sb.CopyIn(t.Context(), src, "big", sandbox.CopyOptions{}); err != nil {
		t.Fatal(err)
	}
	to := t.TempDir()
	_, err = sb.CopyOut(ctx, "big", filepath.Join(to, "big"), sandbox.CopyOptions{Progress: func(s sandbox.CopyStatus) {
		if s.Bytes > size/3 {
			cancel(why)
		}
	}})
	if !errors.Is(err, why) || !strings.Contains(err.Error(), "big") {
		t.Errorf("cancelled CopyOut: %v, want the cause and the path", err)
	}
	if list, _ := os.ReadDir(to); len(list) != 0 {
		t.Errorf("left here: %v", list)
	}
	nothingBehind(t, sb, "big ")
}

// The sandbox is stopped in the middle of a copy. The copy waits for
// that, so that it can't be the faster one.
func TestCopyUnderAStopFailsAndLeavesNothing(t *testing.T) {
	t.Parallel()
	c := harness.NewClient(t)
	sb := harness.NewSandbox(t, sandbox.WithName(harness.UniqueName(t)), sandbox.WithStopTimeout(2*time.Second))
	harness.Run(t, sb, "sh", "-c", "head -c 100000000 /dev/zero > big")
	to, tree := t.TempDir(), t.TempDir()
	harness.Shell(t, `cd "$0"; mkdir sub; echo x > a; head -c 60000000 /dev/zero > sub/large; echo x > z`, tree)
	for what, copy := range map[string]func(sb *sandbox.Sandbox, progress sandbox.CopyOptions) error{
		"CopyOut": func(sb *sandbox.Sandbox, p sandbox.CopyOptions) error {
			return harness.Second(sb.CopyOut(t.Context(), "big", to+"/", p))
		},
		"CopyIn of a tree": func(sb *sandbox.Sandbox, p sandbox.CopyOptions) error {
			return harness.Second(sb.CopyIn(t.Context(), tree, "tree", p))
		},
		"CopyIn of a big file": func(sb *sandbox.Sandbox, p sandbox.CopyOptions) error {
			return harness.Second(sb.CopyIn(t.Context(), tree+"/sub/large", "big2", p))
		},
		"CopyIn of an odd file": func(sb *sandbox.Sandbox, p sandbox.CopyOptions) error {
			return harness.Second(sb.CopyInFS(t.Context(), oneFile{&endless{}}, "big3", p))
		},
	} {
		h, err := c.Get(t.Context(), sb.Name()) // which starts it again
		if err != nil {
			t.Fatal(err)
		}
		var once sync.Once
		err = copy(h, sandbox.CopyOptions{Progress: func(s sandbox.CopyStatus) {
			if s.Bytes < 10<<20 {
				return
			}
			once.Do(func() {
				if _, err := sb.Stop(t.Context()); err != nil {
					t.Error(err)
				}
			})
		}})
		if !errors.Is(err, sandbox.ErrNotRunning) || !strings.Contains(err.Error(), "big") && !strings.Contains(err.Error(), "tree") {
			t.Errorf("%s of a sandbox that is stopped meanwhile: %v, want ErrNotRunning and the path", what, err)
		}
		if err := h.Detach(); err != nil {
			t.Error(err)
		}
	}
	if list, _ := os.ReadDir(to); len(list) != 0 {
		t.Errorf("left here: %v", list)
	}
	if _, err := sb.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	nothingBehind(t, sb, "big ")
}

func TestStoppedSandboxIsReadWithoutStartingIt(t *testing.T) {
	t.Parallel()
	c := harness.NewClient(t)
	sb, err := c.Create(t.Context(), sandbox.WithName(harness.UniqueName(t)))
	if err != nil {
		t.Fatal(err)
	}
	harness.Remove(t, c, sb.Name())
	t.Cleanup(func() { sb.Detach() })
	ctx := t.Context()
	populate(t, sb, "/workspace/tree")
	harness.Run(t, sb, "sh", "-c", "printf layer > /opt/layer; mkfifo tree/pipe; ln -s /workspace/tree/hello.txt /opt/link; head -c 2000000 /dev/urandom > tree/a/random; sha256sum < tree/a/random > sum")
	if _, err := sb.Stop(ctx); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"tree/hello.txt": "hello\n", "/opt/layer": "layer", "tree/a/link": "hello\n", "/opt/link": "hello\n"} {
		if got, err := sb.ReadFile(ctx, name); string(got) != want || err != nil {
			t.Errorf("ReadFile(%q) = %q, %v; want %q", name, got, err, want)
		}
	}
	if _, err := sb.ReadFile(ctx, "none"); !errors.Is(err, fs.ErrNotExist) || errors.Is(err, sandbox.ErrNotFound) {
		t.Errorf("ReadFile(none): %v, want fs.ErrNotExist", err)
	}
	if info, err := sb.Stat(ctx, "tree/a/link"); err != nil || info.Size() != 6 || !info.Mode().IsRegular() {
		t.Errorf("Stat of a link: %v, %v", info, err)
	}
	if info, err := sb.Lstat(ctx, "tree/a/link"); err != nil || info.Mode().Type() != fs.ModeSymlink {
		t.Errorf("Lstat of a link: %v, %v", info, err)
	}
	if target, err := sb.Readlink(ctx, "tree/a/link"); target != "../hello.txt" || err != nil {
		t.Errorf("Readlink = %q, %v", target, err)
	}
	list, err := sb.ReadDir(ctx, "tree")
	var names []string
	for _, d := range list {
		names = append(names, d.Name())
	}
	if diff := cmp.Diff([]string{"a", "empty", "hello.txt", "nothing", "pipe"}, names); diff != "" || err != nil {
		t.Errorf("ReadDir: %v\n%s", err, diff)
	}
	f, err := sb.Open(ctx, "tree/hello.txt")
	if err != nil {
		t.Fatal(err)
	}
	f.Seek(2, io.SeekStart)
	if rest, err := io.ReadAll(f); string(rest) != "llo\n" || err != nil {
		t.Errorf("after Seek: %q, %v", rest, err)
	}
	f.Close()
	to := filepath.Join(t.TempDir(), "tree")
	report, err := sb.CopyOut(ctx, "tree", to, sandbox.CopyOptions{})
	if err != nil || report.Bytes < 2000000 {
		t.Errorf("CopyOut: %+v, %v", report, err)
	}
	if target, err := os.Readlink(filepath.Join(to, "a", "link")); target != "../hello.txt" || err != nil {
		t.Errorf("copied link: %q, %v", target, err)
	}
	if st, err := sb.Status(ctx); err != nil || st.State != sandbox.StateStopped {
		t.Errorf("afterwards it is %v, %v; want stopped", st.State, err)
	}
}

// A killed client's copy leaves nothing inside, whichever way it went.
func TestKilledClientLeavesNoPartialCopy(t *testing.T) {
	t.Parallel()
	sb := harness.NewSandbox(t)
	harness.Run(t, sb, "sh", "-c", "mkdir old; echo kept > old/endless; truncate -s 100G large")
	for _, how := range []string{"into a new tree", "into a tree there is", "a single file", "out"} {
		cmd := harness.Process(t, "copy", sb.Name(), how, t.TempDir())
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(out, make([]byte, 1)); err != nil {
			t.Fatalf("%s: %v", how, err)
		}
		cmd.Process.Kill()
		cmd.Wait()
		nothingBehind(t, sb, "large old ")
		if got := harness.Run(t, sb, "sh", "-c", "ls -A old; cat old/endless"); got != "endless\nkept" {
			t.Errorf("%s: in the tree that was there is %q", how, got)
		}
	}
}

func init() {
	// copies without an end, in a way, and says so once it has begun.
	harness.AddRole("copy", func(args []string) error {
		ctx := context.Background()
		sb, err := sandbox.Get(ctx, args[0])
		if err != nil {
			return err
		}
		var once sync.Once
		begun := sandbox.CopyOptions{Progress: func(s sandbox.CopyStatus) {
			if s.Bytes > 8<<20 {
				once.Do(func() { os.Stdout.WriteString("x") })
			}
		}}
		switch args[1] {
		case "into a new tree":
			_, err = sb.CopyInFS(ctx, manyFiles{oneFile{&endless{}}}, "new", begun)
		case "into a tree there is":
			_, err = sb.CopyInFS(ctx, oneFile{&endless{}}, "old", begun)
		case "a single file":
			_, err = sb.CopyIn(ctx, "/proc/self/exe", "single", sandbox.CopyOptions{Progress: func(s sandbox.CopyStatus) {
				if s.Bytes > 1<<20 {
					once.Do(func() { os.Stdout.WriteString("x") })
					select {} // until we are killed
				}
			}})
		case "out":
			_, err = sb.CopyOut(ctx, "large", filepath.Join(args[2], "large"), sandbox.CopyOptions{MaxBytes: 1 << 40, Progress: func(sandbox.CopyStatus) {
				once.Do(func() { os.Stdout.WriteString("x") })
				select {}
			}})
		}
		return err
	})
}

// oneFile is a directory that holds an endless file.
type oneFile struct{ e *endless }

func (o oneFile) Open(name string) (fs.File, error) {
	if name == "." {
		return nil, fs.ErrInvalid
	}
	return o.e, nil
}

func (o oneFile) Stat(name string) (fs.FileInfo, error) { return dirInfo{o.e}, nil }

func (o oneFile) ReadDir(name string) ([]fs.DirEntry, error) {
	return []fs.DirEntry{fs.FileInfoToDirEntry(o.e)}, nil
}

// manyFiles has others before the endless one, which take their time to be removed.
type manyFiles struct{ oneFile }

func (m manyFiles) Open(name string) (fs.File, error) {
	if strings.HasPrefix(name, "a") {
		return emptyFile{m.e, name}, nil
	}
	return m.oneFile.Open(name)
}

func (m manyFiles) ReadDir(name string) (list []fs.DirEntry, err error) {
	for i := range 5000 {
		list = append(list, fs.FileInfoToDirEntry(emptyFile{m.e, fmt.Sprintf("a%04d", i)}))
	}
	return append(list, fs.FileInfoToDirEntry(m.e)), nil
}

// emptyFile has a name.
type emptyFile struct {
	*endless
	name string
}

func (e emptyFile) Name() string { return e.name }

func (e emptyFile) Size() int64 { return 0 }

func (e emptyFile) Stat() (fs.FileInfo, error) { return e, nil }

func (e emptyFile) Read([]byte) (int, error) { return 0, io.EOF }

type dirInfo struct{ *endless }

func (dirInfo) Mode() fs.FileMode { return fs.ModeDir | 0o755 }

func (dirInfo) IsDir() bool { return true }

// Everybody inside can give a file of his own the setuid bit. A copy belongs to another user, who may be root: whichever way it
// leaves the sandbox, such bits are dropped and reported.
func TestNoCopyOfASandboxesFilesIsPrivileged(t *testing.T) {
	t.Parallel()
	c := harness.NewClient(t)
	sb := harness.CreateWith(t, c, nil, sandbox.WithUser("node"), sandbox.WithWorkdir("/tmp"))
	harness.Run(t, sb, "sh", "-ec", `mkdir -p su/d; cd su; echo x >f; chmod 6755 f; chmod 2775 d; chmod 1777 .`)
	to := harness.NewSandbox(t)
	want := []sandbox.Skipped{{Path: "d", Reason: "its setgid bit"}, {Path: "f", Reason: "its setuid and setgid bits"}}
	check := func(state string) {
		var b bytes.Buffer
		report, err := sb.CopyOutTar(t.Context(), "su", &b, sandbox.CopyOptions{})
		if diff := cmp.Diff(want, report.Skipped); diff != "" || err != nil {
			t.Errorf("%s, CopyOutTar: %v, skipped (-want +got):\n%s", state, err, diff)
		}
		dir := t.TempDir()
		extract := exec.Command("tar", "-xpC", dir)
		extract.Stdin = &b
		describe(t, extract)
		if got := describe(t, exec.Command("stat", "-c", "%a", dir, dir+"/d", dir+"/f")); got != "1777\n775\n755" {
			t.Errorf("%s, CopyOutTar: modes %q", state, got)
		}
		sub, err := fs.Sub(sb.FS(), "tmp/su")
		if err != nil {
			t.Fatal(err)
		}
		report, err = to.CopyInFS(t.Context(), sub, state, sandbox.CopyOptions{})
		if diff := cmp.Diff(want, report.Skipped); diff != "" || err != nil {
			t.Errorf("%s, CopyInFS: %v, skipped (-want +got):\n%s", state, err, diff)
		}
		if got := harness.Run(t, to, "stat", "-c", "%a", state, state+"/d", state+"/f"); got != "1777\n775\n755" {
			t.Errorf("%s, CopyInFS: modes %q", state, got)
		}
	}
	check("running")
	if _, err := sb.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	check("stopped")
}
