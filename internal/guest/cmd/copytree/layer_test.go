//go:build linux

package copytree

import (
	"archive/tar"
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/seed-1a2d6d8f/sandbox/internal/guest/cmd/proc"
	"github.com/seed-1a2d6d8f/sandbox/internal/guest/trees"
	"github.com/seed-1a2d6d8f/sandbox/internal/guest/wire"
)

// A layer is bare only when it is as the engine made it: whatever else there is in it has
// to be copied.
func TestCopierKnowsBareLayers(t *testing.T) {
	if os.Getuid() != 0 {
		t.Fatal("owners and devices take root")
	}
	nothing := func(string) error { return nil }
	for _, tt := range []struct {
		what string
		do   func(dir string) error
		want bool
	}{
		{"nothing but mount points", nothing, true},
		{"a time", func(dir string) error { return os.Chtimes(dir, time.Unix(1, 0), time.Unix(1, 0)) }, true},
		{"a mark of the storage driver", func(dir string) error {
			return errors.Join(os.WriteFile(filepath.Join(dir, "workspace", opaqueFile), nil, 0o700), unix.Mknod(filepath.Join(dir, "workspace", opaqueDevice), unix.S_IFCHR, 0))
		}, true},
		{"an attribute of the storage driver", func(dir string) error { return unix.Setxattr(dir, "trusted.overlay.impure", []byte("y"), 0) }, true},
		{"no mount point", func(dir string) error { return os.Remove(filepath.Join(dir, "workspace")) }, true},
		{"a file", func(dir string) error { return os.WriteFile(filepath.Join(dir, "f"), nil, 0o644) }, false},
		{"a directory", func(dir string) error { return os.Mkdir(filepath.Join(dir, "d"), 0o755) }, false},
		{"a file that is gone", func(dir string) error { return unix.Mknod(filepath.Join(dir, "f"), unix.S_IFCHR, 0) }, false},
		{"the root's mode", func(dir string) error { return os.Chmod(dir, 0o700) }, false},
		{"the root's owner", func(dir string) error { return os.Chown(dir, 1, 0) }, false},
		{"the root's attributes", func(dir string) error { return unix.Setxattr(dir, "user.a", []byte("b"), 0) }, false},
		{"a root that is opaque", func(dir string) error { return os.WriteFile(filepath.Join(dir, opaqueFile), nil, 0o700) }, false},
		{"something below a mount point", func(dir string) error { return os.Mkdir(filepath.Join(dir, "workspace/d"), 0o755) }, false},
		{"a file in a mount point's place", func(dir string) error {
			return errors.Join(os.Remove(filepath.Join(dir, "workspace")), os.WriteFile(filepath.Join(dir, "workspace"), nil, 0o644))
		}, false},
		{"a link in a mount point's place", func(dir string) error {
			return errors.Join(os.Remove(filepath.Join(dir, "workspace")), os.Symlink(".agent-sandbox", filepath.Join(dir, "workspace")))
		}, false},
	} {
		t.Run(tt.what, func(t *testing.T) {
			src, to := t.TempDir(), t.TempDir()
			for _, name := range []string{"workspace", ".agent-sandbox"} {
				if err := os.Mkdir(filepath.Join(src, name), 0o755); err != nil {
					t.Fatal(err)
				}
			}
			if err := errors.Join(os.Chmod(src, 0o755), tt.do(src)); err != nil {
				t.Fatal(err)
			}
			c := newCopier()
			err := c.run(wire.Copy{Jobs: []wire.CopyJob{{From: src, To: to, Layer: true, Mounts: []string{"workspace", ".agent-sandbox"}}}})
			if err != nil || c.roots[0].Bare != tt.want {
				t.Errorf("bare = %v, %v, want %v", c.roots[0].Bare, err, tt.want)
			}
		})
	}
}

// overlaid is what an overlay of a lower directory shows, whose own layer is upper.
func overlaid(t *testing.T, lower, upper string) (merged string) {
	t.Helper()
	merged, work := t.TempDir(), t.TempDir()
	options := "lowerdir=" + lower + ",upperdir=" + upper + ",workdir=" + work
	if err := unix.Mount("overlay", merged, "overlay", 0, options); err != nil {
		t.Fatalf("mount an overlay: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(merged, 0); err != nil {
			t.Error(err)
		}
	})
	return merged
}

func shell(t *testing.T, script, dir string) {
	t.Helper()
	if out, err := exec.Command("sh", "-ec", script, "sh", dir).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
}

// image makes a directory that has something of everything a layer can change.
func image(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	script := `cd "$1"; mkdir -p stays/d goes/d/d empties/d file-now/d dir-was link-was/d changes moves mounted/d/d plain dirs-acl dirs-gid; chmod 2755 dirs-gid; chown 3:4 dirs-gid
		for f in stays/f stays/d/f goes/f goes/d/f empties/f empties/d/f file-now/f link-was/f changes/f changes/g moves/f mounted/f mounted/d/f; do echo $f >$f; done
		echo f >dir-now; ln -s stays link-now; echo a >linked; ln linked changes/linked`
	shell(t, script, dir)
	for _, name := range []string{"user.a", "user.kept"} {
		for _, file := range []string{"changes", "changes/f"} {
			if err := unix.Setxattr(filepath.Join(dir, file), name, []byte("b"), 0); err != nil {
				t.Fatal(err)
			}
		}
	}
	// New files in it inherit.
	if err := unix.Setxattr(filepath.Join(dir, "dirs-acl"), "system.posix_acl_default", []byte(acl), 0); err != nil {
		t.Fatal(err)
	}
	return dir
}

// acl is an access control list, as the kernel has it.
const acl = "\x02\x00\x00\x00\x01\x00\x06\x00\xff\xff\xff\xff\x02\x00\x04\x00\x09\x00\x00\x00\x04\x00\x04\x00\xff\xff\xff\xff\x10\x00\x04\x00\xff\xff\xff\xff\x20\x00\x00\x00\xff\xff\xff\xff"

// changes does everything to what an image shows that a layer can say.
const changes = `cd "$1"; rm stays/f; rm -r goes; chmod 600 stays/d/f; echo f >dirs-gid/f; mkdir dirs-gid/d; touch dirs-gid/d/f; chgrp 0 dirs-gid/f; rm -r empties; mkdir empties; echo new >empties/new; mkdir empties/d
	rm -r file-now; echo f >file-now; rm dir-now; mkdir dir-now; echo f >dir-now/f; rm -r link-was; ln -s /elsewhere link-was; rm link-now; mkdir link-now; echo f >link-now/f
	chmod 2750 changes; chown 5:6 changes; echo more >>changes/f; chmod 4711 changes/g; rm changes/linked; ln linked changes/again
	mv moves/f moves/g; mkfifo -m 640 pipe; chown -h 7:8 link-was; touch -d @1 pipe changes stays; truncate -s 1M sparse; echo end >>sparse; ln sparse plain/sparse
	mkdir -p new/a/b; echo f >new/a/b/f; ln new/a/b/f new/f; touch -d @2.5 new/a/b/f new/a; ln -s f new/l; touch -h -d @3 new/l; chmod 1711 .`

// What a layer makes of an image its copy makes of it, too, whatever the engine has made there to
// mount something on.
func TestCopiedLayersAreTheSame(t *testing.T) {
	lower, upper, to := image(t), t.TempDir(), t.TempDir()
	source := overlaid(t, lower, upper)
	shell(t, changes, source)
	if err := errors.Join(unix.Removexattr(filepath.Join(source, "changes"), "user.a"), unix.Removexattr(filepath.Join(source, "changes/f"), "user.a"),
		unix.Setxattr(filepath.Join(source, "changes"), "user.c", []byte("d"), 0), unix.Setxattr(filepath.Join(source, "new/f"), "system.posix_acl_access", []byte(acl), 0),
		unix.Setxattr(filepath.Join(source, "changes"), "system.posix_acl_default", []byte(acl), 0)); err != nil {
		t.Fatal(err)
	}
	shell(t, `cd "$1"; mkdir -p link-was/mount-point goes/mount-point new/f; touch empties moves`, to)
	shell(t, `mkdir "$1/omitted"; touch -d @4 "$1"`, upper)
	spec := wire.Copy{Jobs: []wire.CopyJob{{From: upper, To: to, Layer: true, Omit: []string{"omitted"}}}}
	c := newCopier()
	if err := errors.Join(c.clear(spec.Jobs[0]), c.run(spec)); err != nil {
		t.Fatal(err)
	}
	var stream bytes.Buffer
	streamed := t.TempDir()
	spec.Jobs[0].To = streamed
	if err := errors.Join(send(&spec, &stream), newCopier().receive(&stream, spec.Jobs)); err != nil {
		t.Fatal(err)
	}
	shell(t, `rmdir "$1/omitted"; touch -d @4 "$1"`, upper)
	look := func(dir string) map[string]string {
		tree := treeOf(t, dir)
		for name, line := range tree {
			tree[name] = regexp.MustCompile(", (8|16) blocks").ReplaceAllString(line, "") // of what was written in pieces
		}
		return tree
	}
	want := look(source)
	for way, to := range map[string]string{"copied": to, "streamed": streamed} {
		if diff := cmp.Diff(want, look(overlaid(t, lower, to))); diff != "" {
			t.Errorf("%s (-source +target):\n%s", way, diff)
		}
	}
}

// A layer is found by the name of a directory that it alone has.
func TestLayersAreFoundByTheirMarks(t *testing.T) {
	dir := t.TempDir()
	shell(t, `cd "$1"; mkdir -p 1/fs/a 2/fs/b 2/work/a 3/fs/c 4/fs/c 4/fs/own 5/work; touch metadata.db 4/fs/d; ln -s ../1/fs 5/fs; ln -s /etc 1/fs/e`, dir)
	for mark, want := range map[string]string{"b": "2", "own": "4", "a": "", "c": "", "d": "", "e": "", "none": ""} {
		got, err := findLayers(dir, "fs", []string{"b", mark})
		if (err == nil) != (want != "") || err == nil && !slices.Equal(got, []string{"2", want}) {
			t.Errorf("findLayers of %q = %q, %v, want %q", mark, got, err, want)
		}
	}
}

// Where attributes of overlayfs can't be set, as on /proc, a layer is not copied, unless its overlay
// has those of users. The probe leaves nothing.
func TestLayersAreCopiedWhereTheirMarksShow(t *testing.T) {
	dir := t.TempDir()
	for _, tt := range []struct {
		root  mount
		dir   string
		shows bool
	}{
		{mount{"overlay", "rw,lowerdir=/l,upperdir=/u"}, dir, true},
		{mount{"overlay", "rw,lowerdir=/l,upperdir=/u"}, "/proc", false},
		{mount{"overlay", "rw,lowerdir=/l,upperdir=/u,userxattr"}, "/proc", true},
		{mount{"fuse.fuse-overlayfs", "rw"}, "/proc", true},
	} {
		if err := tt.root.showsMarks(tt.dir); (err == nil) != tt.shows {
			t.Errorf("%+v: marks in %s: %v, want them to show: %t", tt.root, tt.dir, err, tt.shows)
		}
	}
	if n, err := unix.Listxattr(dir, make([]byte, 1<<10)); n != 0 || err != nil {
		t.Errorf("attributes afterwards: %d bytes, %v", n, err)
	}
}

func TestOwnLayerIsThatOfTheRoot(t *testing.T) {
	const (
		before = "1 0 0:1 / / rw - rootfs rootfs rw\n"
		procfs = "5 3 0:5 / /proc rw,nosuid - proc proc rw\n"
		other  = "6 3 0:6 / /mnt rw - overlay overlay rw,lowerdir=/l,upperdir=/other,workdir=/w\n"
		gvisor = "18 17 0:20 / / rw - overlay none rw\n" // without --overlay2=none
	)
	for text, want := range map[string]string{
		before + "3 2 0:50 / / ro,relatime master:3 - overlay overlay rw,lowerdir=/s/1/fs:/s/2/fs,upperdir=/s/3/fs,workdir=/s/3/work,nouserxattr\n" + procfs + other: "/s/3/fs",
		"3 2 0:50 / / rw - overlay overlay rw,lowerdir=l/A:l/B,upperdir=/a\\040b\\054c/3/fs,workdir=/w\n":                                                            "/a b,c/3/fs",
		"3 2 0:50 / / rw - fuse.fuse-overlayfs fuse-overlayfs rw,upperdir=/x\n" + other:                                                                              "",
		gvisor: "",
		"3 2 0:50 / / rw - overlay overlay rw,upperdir=/x\n" + "4 3 8:1 / / rw - ext4 /dev/sda1 rw\n": "",
	} {
		root := rootOf(proc.ParseMounts(text))
		if root.upper() != want {
			t.Errorf("of\n%sthe layer is %q, want %q", text, root.upper(), want)
		}
		if root.volatile() != (text == gvisor) {
			t.Errorf("of\n%swhat changes is lost: %v", text, root.volatile())
		}
	}
}

// Whatever a stream says, nothing outside of the directory it is for is touched.
func FuzzReceive(f *testing.F) {
	tree := f.TempDir()
	if out, err := exec.Command("sh", "-ec", `cd "$1"; mkdir -p a/b; echo f >a/b/f; ln a/b/f a/g; ln -s .. up; mkfifo p; mknod w c 0 0; touch a/.wh..wh..opq; truncate -s 9999 s; echo >>s`, "sh", tree).CombinedOutput(); err != nil {
		f.Fatalf("%v: %s", err, out)
	}
	var stream bytes.Buffer
	whole := trees.New(f.Context(), &stream)
	if err := errors.Join(whole.Send(0, tree), whole.Close()); err != nil {
		f.Fatal(err)
	}
	f.Add(stream.Bytes())
	var bad bytes.Buffer // a second name of what a link leads to
	w := tar.NewWriter(&bad)
	for _, h := range []*tar.Header{
		{Name: "0/up", Typeflag: tar.TypeSymlink, Linkname: "../theirs"}, {Name: "0/x", Typeflag: tar.TypeLink, Linkname: "0/up/f"},
		{Name: "0/up/new", Typeflag: tar.TypeReg}, {Name: "0/up/f", Typeflag: tar.TypeReg, PAXRecords: map[string]string{wire.TreeReplace: "1"}},
	} {
		h.Format, h.ModTime = tar.FormatPAX, time.Unix(1, 0)
		if err := w.WriteHeader(h); err != nil {
			f.Fatal(err)
		}
		f.Add(bytes.Clone(bad.Bytes()))
	}
	f.Fuzz(func(t *testing.T, stream []byte) {
		outside := t.TempDir()
		to, theirs := filepath.Join(outside, "to"), filepath.Join(outside, "theirs")
		if err := errors.Join(os.MkdirAll(filepath.Join(to, "a/c"), 0o755), os.Symlink("../theirs", filepath.Join(to, "link")),
			os.Mkdir(theirs, 0o755), os.WriteFile(filepath.Join(theirs, "f"), []byte("theirs"), 0o600)); err != nil {
			t.Fatal(err)
		}
		want := treeOf(t, theirs)
		said := newCopier().receive(bytes.NewReader(stream), []wire.CopyJob{{To: to}})
		if diff := cmp.Diff(want, treeOf(t, theirs)); diff != "" {
			t.Errorf("after %v (-before +after):\n%s", said, diff)
		}
		if names, err := filepath.Glob(filepath.Join(outside, "*")); err != nil || len(names) != 2 {
			t.Errorf("there is %q, %v", names, err)
		}
	})
}

// A layer that is filled loses what an earlier copy left, and keeps the mark by which it is found again.
func TestALayerKeepsItsMark(t *testing.T) {
	to := t.TempDir()
	for _, name := range []string{".agent-sandbox-mark", ".agent-sandbox-other", "etc"} {
		if err := os.Mkdir(filepath.Join(to, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := newCopier().clear(wire.CopyJob{To: to, Layer: true, ToMark: ".agent-sandbox-mark"}); err != nil {
		t.Fatal(err)
	}
	left, err := os.ReadDir(to)
	if err != nil || len(left) != 1 || left[0].Name() != ".agent-sandbox-mark" {
		t.Errorf("left are %v, %v", left, err)
	}
}
