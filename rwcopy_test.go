package sandbox_test

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/internal/engine"
)

// A helper that was made and can't be started goes before the copy takes the other way; and
// where that can't be gone either, the Create fails and leaves neither.
func TestHelpersThatDoNotStartAreNotLeft(t *testing.T) {
	t.Parallel()
	eng := directly(t)
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "f"), []byte("x"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, most := range []int{1, 2} {
		var mu sync.Mutex
		var refused []string
		c := newClient(t, sandbox.WithHost(inFront(t, func(w http.ResponseWriter, r *http.Request) bool {
			parts := strings.Split(r.URL.Path, "/")
			if !is(r, "POST", "/start") || len(parts) < 3 {
				return false
			}
			got, err := eng.InspectContainer(r.Context(), parts[len(parts)-2])
			mu.Lock()
			defer mu.Unlock()
			if err != nil || !strings.HasPrefix(got.Name, "agent-sandbox-helper.") || len(refused) == most {
				return false
			}
			refused = append(refused, got.ID)
			refuse(w, "no mounts of that kind")
			return true
		}, nil)))
		name := uniqueName(t)
		sb, err := c.Create(t.Context(), sandbox.WithName(name), sandbox.WithMounts(sandbox.Mount{Source: dir, Target: "/data"}))
		if err == nil {
			removeNow(t, c, name)
			sb.Detach()
		}
		if (err == nil) != (most == 1) || len(refused) != most {
			t.Errorf("with %d helpers refused of %d: Create: %v", len(refused), most, err)
		}
		for _, id := range refused {
			if got, err := eng.InspectContainer(t.Context(), id); !errors.Is(err, engine.ErrNotFound) {
				t.Errorf("a helper that was not started is left: %s %s, %v", got.Name, got.State, err)
			}
		}
	}
}

// bothWays (X15) runs a test with the engine copying by itself, and with the copy going through
// this process.
func bothWays(t *testing.T, test func(t *testing.T, c *sandbox.Client)) {
	t.Run("beside", func(t *testing.T) { test(t, newClient(t)) })
	t.Run("streamed", func(t *testing.T) {
		test(t, newClient(t, behind(t, elsewhereRun)))
	})
}

// createWith makes a sandbox of the client's with the mounts.
func createWith(t *testing.T, c *sandbox.Client, mounts []sandbox.Mount, opts ...sandbox.CreateOption) *sandbox.Sandbox {
	t.Helper()
	name := uniqueName(t)
	remove(t, c, name)
	sb, err := c.Create(t.Context(), append(opts, sandbox.WithName(name), quick, sandbox.WithMounts(mounts...))...)
	if err != nil {
		t.Fatalf("Create: %v", err)
	}
	t.Cleanup(func() { sb.Detach() })
	return sb
}

// manifest is a shell command that prints all there is to know of the tree it runs in.
const manifest = `
find . ! -type s ! -type b ! -type c -printf '%P|%y|%m|%U:%G|%T@|%l|%n\n' | sed 's/^|d|\([^|]*|[^|]*|[^|]*|\)|.*/|d|\1/' | LC_ALL=C sort
find . -type f -printf '%P %s\n' | LC_ALL=C sort
find . -type f -exec sha256sum {} + | LC_ALL=C sort
tar --format=pax --xattrs --xattrs-include='*' -cf - . | grep -ao 'SCHILY.xattr.[a-z]*.[a-z]*=[a-z]*' | LC_ALL=C sort`

// treeOfEverything makes a tree with every kind of thing in it.
func treeOfEverything(t *testing.T) string {
	t.Helper()
	dir := host(t, map[string]string{
		"plain": "x", "empty": "", ".hidden/.git/config": "c", "sub/deep/er/file": strings.Repeat("y", 300_000),
		"odd\nname": "n", "not utf8 \xff": "u", "sp ace/ünï": "s", strings.Repeat("l", 200): "long",
		"first": "two names", "xattr": "a", "capable": "b", "setuid": "s", "owned": "o",
	})
	do := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	in := func(name string) string { return filepath.Join(dir, name) }
	do(os.Mkdir(in("void"), 0o711))
	do(os.Link(in("first"), in("sub/second")))
	for name, to := range map[string]string{
		"link": "plain", "dangling": "nowhere", "absolute": "/etc/passwd", "escaping": "../../../x", "sub/up": "../../y", "todir": "sub",
	} {
		do(os.Symlink(to, in(name)))
	}
	do(syscall.Mkfifo(in("fifo"), 0o640))
	do(syscall.Mknod(in("device"), syscall.S_IFCHR|0o600, 1<<8|3))
	l, err := net.Listen("unix", in("socket"))
	do(err)
	t.Cleanup(func() { l.Close() })
	do(syscall.Setxattr(in("xattr"), "user.key", []byte("value"), 0))
	do(syscall.Setxattr(in("sub"), "user.dir", []byte("too"), 0))
	sparse, err := os.Create(in("sparse"))
	do(err)
	_, err = sparse.WriteAt([]byte("middle"), 5<<20)
	do(err)
	do(sparse.Truncate(16 << 20))
	do(sparse.Close())
	do(os.Chown(in("owned"), 12345, 54321))
	do(os.Lchown(in("link"), 1234, 4321))
	do(os.Chown(in("sub/deep"), 7, 8))
	do(os.Chmod(in("setuid"), fs.ModeSetuid|0o755))
	do(os.Chmod(in("void"), fs.ModeSticky|fs.ModeSetgid|0o751))
	do(os.Chmod(in("plain"), 0o000))
	// The directories last, since everything above moves their times; the deepest first.
	for i, name := range []string{"plain", "empty", "sub/deep/er/file", "sub/deep/er", "sub/deep", "void", "."} {
		at := time.Unix(1_000_000_000+int64(i), 123_456_789)
		do(os.Chtimes(in(name), at, at))
	}
	do(os.Chmod(dir, 0o750))
	return dir
}

func onHost(t *testing.T, dir, script string) string {
	t.Helper()
	cmd := exec.Command("sh", "-c", script)
	cmd.Dir = dir
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%q: %v", script, err)
	}
	return strings.TrimSpace(string(out))
}

// A37, E26, E32, E33, E34, E35, E36, E45, E46: nothing but sockets and devices is lost.
func TestCopyKeepsEverything(t *testing.T) {
	dir := treeOfEverything(t)
	want := onHost(t, dir, manifest)
	bothWays(t, func(t *testing.T, c *sandbox.Client) {
		var mu sync.Mutex
		var told []sandbox.Progress
		sb := createWith(t, c, []sandbox.Mount{{Source: dir, Target: "/the copy"}}, sandbox.WithProgress(func(p sandbox.Progress) {
			mu.Lock()
			defer mu.Unlock()
			told = append(told, p)
		}))
		got := run(t, sb, "sh", "-c", "cd '/the copy' && "+manifest)
		if diff := cmp.Diff(strings.Split(want, "\n"), strings.Split(got, "\n")); diff != "" {
			t.Errorf("the copy (-source +copy):\n%s", diff)
		}
		if blocks := run(t, sb, "stat", "-c", "%b", "/the copy/sparse"); len(blocks) > 3 {
			t.Errorf("a file of 16 MiB with 6 bytes of data takes %s blocks in the copy", blocks)
		}
		mu.Lock()
		defer mu.Unlock()
		last := told[len(told)-1]
		for _, p := range told {
			if p.Step == "copy" {
				last = p
			}
		}
		if !strings.Contains(last.Text, `skipped 2 sockets and devices: `) || !strings.Contains(last.Text, "socket") || last.Files < 20 || last.Current < 300_000 {
			t.Errorf("the last progress of the copy is %+v, want the socket and the device named, files and bytes", last)
		}
	})
	if now := onHost(t, dir, manifest); now != want {
		t.Errorf("the source was changed:\n%s", cmp.Diff(want, now))
	}
}

// A49, E17, E18, E43: nested targets in any order each get their own tree, and one source goes
// into two volumes.
func TestNestedCopiesGetTheirOwnTrees(t *testing.T) {
	outer := host(t, map[string]string{"o": "outer", "sub/hidden": "h"})
	inner := host(t, map[string]string{"i": "inner"})
	bothWays(t, func(t *testing.T, c *sandbox.Client) {
		sb := createWith(t, c, []sandbox.Mount{
			{Source: inner, Target: "/w/sub"}, {Source: outer, Target: "/w"}, {Source: inner, Target: "/workspace/in"},
		})
		if got := run(t, sb, "sh", "-c", "cd /w && find . -type f | sort && cat /workspace/in/i"); got != "./o\n./sub/i\ninner" {
			t.Errorf("nested mounts hold %q", got)
		}
		if copyOf(t, sb, "/w/sub") == copyOf(t, sb, "/workspace/in") {
			t.Error("two copies of one source share a volume")
		}
	})
}

// E27: what the image has at the target is not mixed in.
func TestCopyOfAnEmptyDirectoryIsEmpty(t *testing.T) {
	sb := createWith(t, newClient(t), []sandbox.Mount{{Source: t.TempDir(), Target: "/etc/apt"}})
	if got := run(t, sb, "ls", "-A", "/etc/apt"); got != "" {
		t.Errorf("the copy of an empty directory over one of the image has %q", got)
	}
}

// E31: the source may be a link to a directory.
func TestCopyFollowsALinkAtItsTop(t *testing.T) {
	dir := host(t, map[string]string{"f": "x"})
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(dir, link); err != nil {
		t.Fatal(err)
	}
	bothWays(t, func(t *testing.T, c *sandbox.Client) {
		sb := createWith(t, c, []sandbox.Mount{{Source: link, Target: "/data"}})
		if got := run(t, sb, "cat", "/data/f"); got != "x" {
			t.Errorf("the file behind the link is %q", got)
		}
	})
}

// E37, E38: a file that never stands still is named, and nothing is left.
func TestFileThatChangesUnderTheCopyIsNamed(t *testing.T) {
	dir := host(t, map[string]string{"still": "x"})
	busy := filepath.Join(dir, "busy")
	// It takes so long that the writer comes in between also on a busy machine.
	if err := os.WriteFile(busy, make([]byte, 256<<20), 0o644); err != nil {
		t.Fatal(err)
	}
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		f, err := os.OpenFile(busy, os.O_WRONLY, 0)
		if err != nil {
			t.Error(err)
			return
		}
		defer f.Close()
		for n := 0; ; n++ {
			select {
			case <-stop:
				return
			default:
				f.WriteAt([]byte(fmt.Sprint(n)), 1000)
			}
		}
	})
	defer wg.Wait()
	defer close(stop)
	eng := newEngine(t)
	bothWays(t, func(t *testing.T, c *sandbox.Client) {
		name := uniqueName(t)
		remove(t, c, name)
		_, err := c.Create(t.Context(), sandbox.WithName(name), sandbox.WithMounts(sandbox.Mount{Source: dir, Target: "/data"}))
		var path *fs.PathError
		if !errors.As(err, &path) || path.Path != busy || !strings.Contains(err.Error(), "changed while it was copied") {
			t.Errorf("Create with a source that changes: %v", err)
		}
		if left := objects(t, eng, named(name)); len(left) > 0 {
			t.Errorf("left of it: %q", left)
		}
	})
}

// A11: the copy is of the moment of the creation.
func TestLaterChangesOfTheSourceAreNotSeen(t *testing.T) {
	dir := host(t, map[string]string{"f": "before"})
	sb := createWith(t, newClient(t), []sandbox.Mount{{Source: dir, Target: "/data"}})
	if err := os.WriteFile(filepath.Join(dir, "f"), []byte("after"), 0o644); err != nil {
		t.Fatal(err)
	}
	if got := run(t, sb, "cat", "/data/f"); got != "before" {
		t.Errorf("inside the file is %q", got)
	}
}

// A1: a main process finds the copy complete.
func TestMainProcessFindsTheCopyComplete(t *testing.T) {
	files := map[string]string{}
	for i := range 2000 {
		files[fmt.Sprintf("d%d/f%d", i%50, i)] = "x"
	}
	dir := host(t, files)
	sb := createWith(t, newClient(t), []sandbox.Mount{{Source: dir, Target: "/data"}},
		sandbox.WithCommand("sh", "-c", "find /data -type f | wc -l > /workspace/n.new; mv /workspace/n.new /workspace/n; sleep 1000"))
	eventually(t, "the main process has counted", func() bool {
		return sb.Command(t.Context(), "test", "-e", "/workspace/n").Run() == nil
	})
	if got := run(t, sb, "cat", "/workspace/n"); got != "2000" {
		t.Errorf("the main process found %s files of 2000", got)
	}
}

// E16, E47: a mount in the workspace does not keep it from its user.
func TestWorkspaceWithAMountInItIsItsUsers(t *testing.T) {
	sb := createWith(t, newClient(t), []sandbox.Mount{{Source: host(t, map[string]string{"f": "x"}), Target: "/workspace/in/it"}}, sandbox.WithUser("node"))
	if got := run(t, sb, "sh", "-c", "echo mine > /workspace/file && stat -c %U /workspace && cat /workspace/in/it/f"); got != "node\nx" {
		t.Errorf("in the workspace there is %q", got)
	}
}
