package files_test

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/internal/gittest"
	"github.com/seed-1a2d6d8f/sandbox/test/harness"
)

// leftOut has a line for each file that a copy has left out or changed.
func leftOut(report sandbox.CopyReport) (lines []string) {
	for _, s := range report.Skipped {
		lines = append(lines, s.String())
	}
	slices.Sort(lines)
	return lines
}

// What a source, a mount, a fork and a snapshot leave out is in the handle's report, wherever the
// tree was copied, and in its status.
func TestHandleReportsWhatWasLeftOut(t *testing.T) {
	t.Parallel()
	dir := harness.HostDir(t, map[string]string{"sub/f": "x", "program": "x", "na\nme": "x", ".git": "gitdir: /elsewhere/.git/worktrees/w\n"})
	if err := errors.Join(unix.Mknod(filepath.Join(dir, "sub/sock"), unix.S_IFSOCK|0o600, 0),
		unix.Mknod(filepath.Join(dir, "null"), unix.S_IFCHR|0o600, int(unix.Mkdev(1, 3))), unix.Chmod(filepath.Join(dir, "program"), 0o4755)); err != nil {
		t.Fatal(err)
	}
	repo := gittest.New(t)
	archive := harness.Tar(t, harness.TarFile("readme", ""), harness.TarFile("top/f", "x"),
		harness.TarMember{Header: tar.Header{Typeflag: tar.TypeChar, Name: "top/null", Devmajor: 1, Devminor: 3}},
		harness.TarMember{Header: tar.Header{Typeflag: tar.TypeReg, Name: "top/su", Mode: 0o6755, PAXRecords: map[string]string{"SCHILY.xattr.security.capability": "x"}}},
		harness.TarMember{Header: tar.Header{Typeflag: tar.TypeReg, Name: "top/s\x1bu", Mode: 0o4755}})
	elsewhere := "git will not work in the copy: " + dir + `/.git names "/elsewhere/.git/worktrees/w", which is not copied; the source Git clones a worktree, without what is not committed`
	others := false
	harness.BothWays(t, func(t *testing.T, c *sandbox.Client) {
		type row struct {
			sb   *sandbox.Sandbox
			want []string
		}
		rows := map[string]row{
			"a directory": {from(t, c, sandbox.Dir(dir)), []string{
				"/workspace/null: a device", "/workspace/program: its setuid bit", "/workspace/sub/sock: a socket", "/workspace: " + elsewhere}},
			"a mount": {harness.CreateWith(t, c, []sandbox.Mount{{Source: dir, Target: "/data/d"}}), []string{
				"/data/d/null: a device", "/data/d/sub/sock: a socket", "/data/d: " + elsewhere}},
		}
		if !others { // which go through this program in any case
			others = true
			maps.Copy(rows, map[string]row{
				"an archive": {from(t, c, sandbox.Tarball{Reader: bytes.NewReader(archive), Strip: 1}), []string{
					`"/workspace/s\x1bu": its setuid bit`, "/workspace/null: a device", "/workspace/readme: its name has no more elements than are removed", "/workspace/su: extended attribute security.capability",
					"/workspace/su: its setuid and setgid bits"}},
				"a repository": {from(t, c, sandbox.Git{URL: repo.Dir}), []string{
					"/workspace/large.bin: a file in Git LFS: it is the pointer alone", "/workspace/sub: a submodule, which is not fetched"}},
				"nothing": {harness.CreateWith(t, c, nil), nil},
			})
		}
		for what, made := range rows {
			copied := made.sb.Copied()
			if got := leftOut(copied); !slices.Equal(got, made.want) || copied.More != 0 {
				t.Errorf("%s: left out are %q and %d more, want %q", what, got, copied.More, made.want)
			}
			if is := copied.Files > 0 && copied.Directories > 0; is != (what != "nothing") {
				t.Errorf("%s: %d files and %d directories were copied", what, copied.Files, copied.Directories)
			}
			if st := harness.Status(t, made.sb); (st.Copied == nil) != (what == "nothing") || st.Copied != nil && !slices.Equal(leftOut(*st.Copied), made.want) {
				t.Errorf("%s: the status has %+v", what, st.Copied)
			}
		}
	})
}

// A fork and a snapshot say what of their source they lack, each for its own call.
func TestForksAndSnapshotsReportWhatWasLeftOut(t *testing.T) {
	t.Parallel()
	c := harness.NewClient(t)
	source := harness.CreateWith(t, c, nil)
	const sockets = `const n = require("net"); for (const f of ["/workspace/a", "/srv/b"]) n.createServer().listen(f, () => console.log(f))`
	server := source.Command(t.Context(), "node", "-e", sockets)
	server.Detached = true
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	harness.WaitForFile(t, source, "/workspace/a")
	harness.WaitForFile(t, source, "/srv/b")
	want := []string{"/srv/b: a socket", "/workspace/a: a socket"}
	fork, err := c.Fork(t.Context(), source.Name(), harness.Quick)
	if err != nil {
		t.Fatal(err)
	}
	defer fork.Close()
	if got := leftOut(fork.Copied()); !slices.Equal(got, want) {
		t.Errorf("the fork's report is %q, want %q", got, want)
	}
	snap := harness.SnapshotOf(t, c, source, sandbox.SnapshotOptions{})
	if snap.Copied == nil || !slices.Equal(leftOut(*snap.Copied), want) {
		t.Errorf("the snapshot's report is %+v, want %q", snap.Copied, want)
	}
	if got := leftOut(source.Copied()); len(got) > 0 {
		t.Errorf("the source's own report has %q", got)
	}
	dir := harness.HostDir(t, nil)
	if err := unix.Mknod(filepath.Join(dir, "own"), unix.S_IFSOCK|0o600, 0); err != nil {
		t.Fatal(err)
	}
	forks, err := c.ForkN(t.Context(), source.Name(), 2, harness.Quick, sandbox.WithMounts(sandbox.Mount{Source: dir, Target: "/own"}))
	if err != nil {
		t.Fatal(err)
	}
	for i, f := range forks {
		if got := leftOut(f.Sandbox.Copied()); !slices.Equal(got, []string{"/own/own: a socket", "/srv/b: a socket", "/workspace/a: a socket"}) {
			t.Errorf("the report of fork %d is %q", i, got)
		}
		if err := f.Sandbox.Close(); err != nil {
			t.Error(err)
		}
	}
}

// The session that copies a directory that an update has added says what it left out.
func TestReportOfADirectoryThatAnUpdateAdds(t *testing.T) {
	t.Parallel()
	dir := harness.HostDir(t, map[string]string{"f": "x"})
	if err := errors.Join(unix.Mknod(filepath.Join(dir, "sock"), unix.S_IFSOCK|0o600, 0), os.Chmod(dir, 0o755)); err != nil {
		t.Fatal(err)
	}
	c := harness.NewClient(t)
	sb := harness.CreateWith(t, c, nil)
	harness.Update(t, sb, sandbox.WithMounts(sandbox.Mount{Source: dir, Target: "/late"}))
	if _, err := sb.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	before := fmt.Sprint(leftOut(sb.Copied()))
	if _, err := sb.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprint(before, leftOut(sb.Copied())); got != "[][/late/sock: a socket]" {
		t.Errorf("the reports before and after the start are %s", got)
	}
}
