package volumes_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/internal/engine"
	"github.com/seed-1a2d6d8f/sandbox/test/harness"
)

// A helper that was made and can't be started goes before the copy takes the other way; and
// where that can't be gone either, the Create fails and leaves neither.
func TestHelpersThatDoNotStartAreNotLeft(t *testing.T) {
	t.Parallel()
	eng := harness.NewEngine(t)
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "f"), []byte("x"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, most := range []int{1, 2} {
		var mu sync.Mutex
		var refused []string
		c := harness.NewClient(t, sandbox.WithHost(harness.InFront(t, func(w http.ResponseWriter, r *http.Request) bool {
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
			harness.Refuse(w, "no mounts of that kind")
			return true
		}, nil)))
		name := harness.UniqueName(t)
		sb, err := c.Create(t.Context(), sandbox.WithName(name), sandbox.WithMounts(sandbox.Mount{Source: dir, Target: "/data"}))
		if err == nil {
			harness.RemoveNow(t, c, name)
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

// Nothing but sockets and devices is lost,
// and what is changed inside a copy is not changed on the host.
func TestCopyKeepsEverything(t *testing.T) {
	dir := harness.TreeOfEverything(t)
	// Reading for the manifest moves access times, which a copy must not.
	const state = harness.Manifest + "\nfind . -printf '%P %A@ %C@\\n' | sort"
	want, before := onHost(t, dir, harness.Manifest), onHost(t, dir, state)
	harness.BothWays(t, func(t *testing.T, c *sandbox.Client) {
		var mu sync.Mutex
		var told []sandbox.Progress
		sb := harness.CreateWith(t, c, []sandbox.Mount{{Source: dir, Target: "/the copy"}}, sandbox.WithProgress(func(p sandbox.Progress) {
			mu.Lock()
			defer mu.Unlock()
			told = append(told, p)
		}))
		got := harness.Run(t, sb, "sh", "-c", "cd '/the copy' && "+harness.Manifest)
		if diff := cmp.Diff(strings.Split(want, "\n"), strings.Split(got, "\n")); diff != "" {
			t.Errorf("the copy (-source +copy):\n%s", diff)
		}
		if blocks := harness.Run(t, sb, "stat", "-c", "%b", "/the copy/sparse"); len(blocks) > 3 {
			t.Errorf("a file of 16 MiB with 6 bytes of data takes %s blocks in the copy", blocks)
		}
		harness.Run(t, sb, "sh", "-ec", `cd '/the copy'
			echo more >> empty; echo else > .hidden/.git/config; rm first; chmod 777 sub; mv xattr moved; touch added; ln -sf x link`)
		mu.Lock()
		defer mu.Unlock()
		last := told[len(told)-1]
		for _, p := range told {
			if p.Step == "copy" {
				last = p
			}
		}
		if !strings.Contains(last.Text, "left out or changed, 2: ") || !strings.Contains(last.Text, "/the copy/socket (a socket)") || last.Files < 20 || last.Current < 300_000 {
			t.Errorf("the last progress of the copy is %+v, want the socket and the device named, files and bytes", last)
		}
	})
	if diff := cmp.Diff(before, onHost(t, dir, state)); diff != "" {
		t.Errorf("the host's directory (-before +after):\n%s", diff)
	}
}

// What the engine's root may not read below a directory, and the caller may, comes through the caller, as the directory itself does.
func TestCopyOfWhatTheEngineMayNotRead(t *testing.T) {
	t.Parallel()
	for _, unread := range []string{".", "sub/dir", "sub/f"} {
		dir := harness.HostDir(t, map[string]string{"a": "a", "sub/dir/f": "d", "sub/f": "f", "sub/z/f": "z", "z": "z"})
		if err := errors.Join(os.Chmod(filepath.Join(dir, unread), 0o700), os.Chown(filepath.Join(dir, unread), 1000, 1000)); err != nil {
			t.Fatal(err)
		}
		want := onHost(t, dir, harness.Manifest)
		// Root without this capability is as it is on a network file system, or in a namespace of users that has no ID for the owner.
		c := harness.NewClient(t, sandbox.WithHost(harness.InFront(t, func(_ http.ResponseWriter, r *http.Request) bool {
			if is(r, "POST", "/containers/create") && strings.HasPrefix(r.URL.Query().Get("name"), "agent-sandbox-helper.") {
				body, err := io.ReadAll(r.Body)
				if err != nil {
					t.Error(err)
				}
				body = bytes.Replace(body, []byte("DAC_OVERRIDE"), []byte("CHOWN"), 1) // which helpers have
				r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
			}
			return false
		}, nil)))
		sb := harness.CreateWith(t, c, []sandbox.Mount{{Source: dir, Target: "/data"}})
		if diff := cmp.Diff(strings.Split(want, "\n"), strings.Split(harness.Run(t, sb, "sh", "-c", "cd /data && "+harness.Manifest), "\n")); diff != "" {
			t.Errorf("a copy with an unreadable %s (-source +copy):\n%s", unread, diff)
		}
	}
}

// Nested targets in any order each get their own tree, and one source, which
// may be a link to a directory, goes into two volumes.
func TestNestedCopiesGetTheirOwnTrees(t *testing.T) {
	outer := harness.HostDir(t, map[string]string{"o": "outer", "sub/hidden": "h"})
	inner := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(harness.HostDir(t, map[string]string{"i": "inner"}), inner); err != nil {
		t.Fatal(err)
	}
	harness.BothWays(t, func(t *testing.T, c *sandbox.Client) {
		sb := harness.CreateWith(t, c, []sandbox.Mount{
			{Source: inner, Target: "/w/sub"}, {Source: outer, Target: "/w"}, {Source: inner, Target: "/workspace/in"},
		})
		if got := harness.Run(t, sb, "sh", "-c", "cd /w && find . -type f | sort && cat /workspace/in/i"); got != "./o\n./sub/i\ninner" {
			t.Errorf("nested mounts hold %q", got)
		}
		if harness.CopiedVolume(t, sb, "/w/sub") == harness.CopiedVolume(t, sb, "/workspace/in") {
			t.Error("two copies of one source share a volume")
		}
	})
}

// A main process finds the copy complete.
func TestMainProcessFindsTheCopyComplete(t *testing.T) {
	files := map[string]string{}
	for i := range 2000 {
		files[fmt.Sprintf("d%d/f%d", i%50, i)] = "x"
	}
	dir := harness.HostDir(t, files)
	sb := harness.CreateWith(t, harness.NewClient(t), []sandbox.Mount{{Source: dir, Target: "/data"}},
		sandbox.WithCommand("sh", "-c", "find /data -type f | wc -l > /workspace/n.new; mv /workspace/n.new /workspace/n; sleep 1000"))
	harness.Eventually(t, "the main process has counted", func() bool {
		return sb.Command(t.Context(), "test", "-e", "/workspace/n").Run() == nil
	})
	if got := harness.Run(t, sb, "cat", "/workspace/n"); got != "2000" {
		t.Errorf("the main process found %s files of 2000", got)
	}
}

// A mount in the workspace does not keep it from its user.
func TestWorkspaceWithAMountInItIsItsUsers(t *testing.T) {
	sb := harness.CreateWith(t, harness.NewClient(t), []sandbox.Mount{{Source: harness.HostDir(t, map[string]string{"f": "x"}), Target: "/workspace/in/it"}}, sandbox.WithUser("node"))
	if got := harness.Run(t, sb, "sh", "-c", "echo mine > /workspace/file && stat -c %U /workspace && cat /workspace/in/it/f"); got != "node\nx" {
		t.Errorf("in the workspace there is %q", got)
	}
}
