package fork_test

import (
	"archive/tar"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/test/harness"
)

// declared are the directories that the image of these tests declares as volumes: one with files of
// the image, one inside of it, one inside of the workspace, and one that is not in the image.
var declared = []string{"/var/lib/data", "/var/lib/data/deeper", "/workspace/in", "/not/there"}

var treeProgram = sync.OnceValues(func() ([]byte, error) { return harness.BuildPrograms("tree") })

// treeImage is an image with testdata/tree as /tree, some files, and declared volumes.
func treeImage(t *testing.T, volumes ...string) string {
	t.Helper()
	program, err := treeProgram()
	if err != nil {
		t.Fatal(err)
	}
	dir := func(name string, mode int64) harness.TarMember {
		return harness.TarMember{Header: tar.Header{Typeflag: tar.TypeDir, Name: name, Mode: mode, Uid: 70, Gid: 71, ModTime: time.Unix(1e9, 5e8), Format: tar.FormatPAX}}
	}
	members := []harness.TarMember{
		dir("var/lib/data/", 0o2750), dir("var/lib/data/deeper/", 0o711), harness.TarFile("var/lib/data/first", "the image's"), harness.TarFile("var/lib/data/deeper/second", "too"),
		dir("opt/", 0o755), dir("img/", 0o755), dir("img/dir/", 0o1777), dir("img/dir/below/", 0o700), harness.TarFile("img/dir/below/file", "f"),
	}
	for i := range 9 {
		members = append(members, harness.TarFile(fmt.Sprint("img/file", i), fmt.Sprint(i)), dir(fmt.Sprintf("img/sub%d/", i), 0o755), harness.TarFile(fmt.Sprintf("img/sub%d/x", i), "x"))
	}
	var changes []string
	for _, v := range volumes {
		changes = append(changes, "VOLUME "+v)
	}
	// Archives end with two empty blocks.
	content := append(program[:len(program)-1024:len(program)-1024], harness.Tar(t, members...)...)
	return harness.Image(t, content, changes...)
}

// census is a line for each file of a sandbox of treeImage.
func census(t *testing.T, sb *sandbox.Sandbox) []string {
	t.Helper()
	return strings.Split(harness.Run(t, sb, "/tree", "list", "/"), "\n")
}

func wantCensus(t *testing.T, what string, want []string, sb *sandbox.Sandbox) {
	t.Helper()
	if diff := cmp.Diff(want, census(t, sb)); diff != "" {
		t.Errorf("files (-source +%s):\n%s", what, diff)
	}
}

// A fork, a sandbox of a snapshot and one that is rolled back have each file that their source had
// at that moment, with all that is to know of it, wherever it is: in the container's own layer, in
// the workspace, in copies of directories, in volumes that the image declares, and in mounts inside
// of these. A new container after an update has them, too.
func TestCopiesHaveEachFileOfTheirSource(t *testing.T) {
	t.Parallel()
	for _, seed := range harness.EveryNth(2, harness.Seeds(2, 100)) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			t.Parallel()
			copiesHaveEachFile(t, fmt.Sprint(seed), seed%2 == 0)
		})
	}
}

// copiesHaveEachFile has files outside of volumes unless inLayer is false.
func copiesHaveEachFile(t *testing.T, seed string, inLayer bool) {
	c := harness.NewClient(t)
	copied := harness.TreeOfEverything(t)
	sb := harness.CreateWith(t, c, []sandbox.Mount{{Source: copied, Target: "/the copy"}, {Source: copied, Target: "/var/lib/data/copy"}},
		sandbox.WithImage(treeImage(t, declared...)))
	all := append([]string{"/workspace", "/the copy", "/var/lib/data/copy"}, declared...)
	if inLayer {
		all = append(all, "/opt/own")
		harness.Run(t, sb, "/tree", "spoil", seed, "/img")
	}
	harness.Run(t, sb, append([]string{"/tree", "grow", seed}, all...)...)
	held := sb.Command(t.Context(), "/tree", append([]string{"hold"}, all...)...)
	started(t, held, "holds")
	want := census(t, sb)
	fork := forked(t, c, sb.Name())
	wantCensus(t, "fork", want, fork)
	for _, fork := range forkedN(t, c, sb.Name(), 2) {
		wantCensus(t, "one of two forks", want, fork)
	}
	snap := harness.SnapshotOf(t, c, sb, sandbox.SnapshotOptions{})
	made := harness.CreateWith(t, c, nil, fromSnap(snap))
	wantCensus(t, "sandbox of a snapshot", want, made)
	for _, changed := range []*sandbox.Sandbox{fork, made} {
		harness.Run(t, changed, append([]string{"/tree", "spoil", seed + "7", "/img"}, all...)...)
	}
	wantCensus(t, "source after its copies were changed", want, sb)
	if err := held.Kill(); err != nil {
		t.Error(err)
	}
	held.Wait()
	harness.Run(t, sb, append([]string{"/tree", "spoil", seed + "3", "/img"}, all...)...)
	wantCensus(t, "another sandbox of the snapshot", want, harness.CreateWith(t, c, nil, fromSnap(snap)))
	for _, back := range []*sandbox.Sandbox{sb, made, fork} {
		if err := back.Rollback(t.Context(), snap.ID); err != nil {
			t.Fatalf("Rollback: %v", err)
		}
		wantCensus(t, "rolled back", want, back)
	}
	harness.Update(t, sb, sandbox.WithPorts(3000))
	if _, err := sb.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	wantCensus(t, "fork of a stopped sandbox", want, forked(t, c, sb.Name()))
	wantCensus(t, "updated", want, sb)
}

// started starts a command and returns when it has written a word.
func started(t *testing.T, cmd *sandbox.Cmd, word string) {
	t.Helper()
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var first string
	if _, err := fmt.Fscanln(out, &first); first != word {
		t.Fatalf("the command's first word is %q, %v, want %q", first, err, word)
	}
}
