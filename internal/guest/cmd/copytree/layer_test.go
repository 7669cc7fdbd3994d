//go:build linux

package copytree

import (
	"archive/tar"
	"bytes"
	"errors"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

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
			return errors.Join(os.WriteFile(filepath.Join(dir, "workspace", trees.Opaque), nil, 0o700), unix.Mknod(filepath.Join(dir, "workspace", trees.OpaqueDevice), unix.S_IFCHR, 0))
		}, true},
		{"an attribute of the storage driver", func(dir string) error { return unix.Setxattr(dir, "trusted.overlay.impure", []byte("y"), 0) }, true},
		{"no mount point", func(dir string) error { return os.Remove(filepath.Join(dir, "workspace")) }, true},
		{"a file", func(dir string) error { return os.WriteFile(filepath.Join(dir, "f"), nil, 0o644) }, false},
		{"a directory", func(dir string) error { return os.Mkdir(filepath.Join(dir, "d"), 0o755) }, false},
		{"a file that is gone", func(dir string) error { return unix.Mknod(filepath.Join(dir, "f"), unix.S_IFCHR, 0) }, false},
		{"the root's mode", func(dir string) error { return os.Chmod(dir, 0o700) }, false},
		{"the root's owner", func(dir string) error { return os.Chown(dir, 1, 0) }, false},
		{"the root's attributes", func(dir string) error { return unix.Setxattr(dir, "user.a", []byte("b"), 0) }, false},
		{"a root that is opaque", func(dir string) error { return os.WriteFile(filepath.Join(dir, trees.Opaque), nil, 0o700) }, false},
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

// What a session can't start without is copied first, and said to be there.
func TestCopierCopiesLayersFirst(t *testing.T) {
	layer, tree, toLayer, toTree := t.TempDir(), t.TempDir(), t.TempDir(), t.TempDir()
	for _, dir := range []string{layer, tree} {
		if err := os.WriteFile(filepath.Join(dir, "f"), []byte("x"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	c := newCopier()
	tree = filepath.Join(tree, "gone")
	err := c.run(wire.Copy{Jobs: []wire.CopyJob{{From: tree, To: toTree}, {From: layer, To: toLayer, Layer: true}}})
	if e := toCopyError(err); err == nil || e.Job != 0 {
		t.Errorf("a tree that is gone: %+v", e)
	}
	select {
	case <-c.layers:
	default:
		t.Error("the layer is not said to be there")
	}
	if _, err := os.Stat(filepath.Join(toLayer, "f")); err != nil {
		t.Errorf("the layer is not there: %v", err)
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

// packed is a layer on its way.
func packed(t *testing.T, upper string) []byte {
	t.Helper()
	c := newCopier()
	if err := c.run(wire.Copy{Jobs: []wire.CopyJob{{From: upper, Layer: true, Pack: true}}}); err != nil {
		t.Fatalf("pack: %v", err)
	}
	return c.packed.Bytes()
}

// What a layer makes of an image it also makes of it when it is laid in from inside, and
// doing so again changes nothing.
func TestLayersAreTheSameLaidIn(t *testing.T) {
	lower, upper := image(t), t.TempDir()
	source := overlaid(t, lower, upper)
	shell(t, changes, source)
	// What is in a directory and has not inherited its list came before that.
	if err := errors.Join(unix.Removexattr(filepath.Join(source, "dirs-acl"), "system.posix_acl_default"), os.WriteFile(filepath.Join(source, "dirs-acl/f"), nil, 0o644),
		os.Mkdir(filepath.Join(source, "dirs-acl/d"), 0o755), unix.Setxattr(filepath.Join(source, "dirs-acl"), "system.posix_acl_default", []byte(acl), 0)); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(unix.Removexattr(filepath.Join(source, "changes"), "user.a"), unix.Removexattr(filepath.Join(source, "changes/f"), "user.a"),
		unix.Setxattr(filepath.Join(source, "changes"), "user.c", []byte("d"), 0), unix.Setxattr(filepath.Join(source, "new/f"), "system.posix_acl_access", []byte(acl), 0),
		unix.Setxattr(filepath.Join(source, "changes"), "system.posix_acl_default", []byte(acl), 0)); err != nil {
		t.Fatal(err)
	}
	look := func(dir string) map[string]string {
		tree := treeOf(t, dir)
		for name, line := range tree {
			tree[name] = regexp.MustCompile(", (8|16) blocks").ReplaceAllString(line, "") // of what was written in pieces
		}
		return tree
	}
	want := look(source)
	stream := packed(t, upper)
	target := overlaid(t, lower, t.TempDir())
	for range 2 {
		if err := newCopier().receive(bytes.NewReader(stream), []wire.CopyJob{{To: target, Layer: true}}); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, look(target)); diff != "" {
			t.Errorf("(-source +target):\n%s", diff)
		}
	}
}

// The marks of every kind of storage driver say the same.
func TestLayersOfEveryDriverAreRead(t *testing.T) {
	xattr := func(name, value string) func(string) error {
		return func(dir string) error { return unix.Setxattr(filepath.Join(dir, "empties"), name, []byte(value), 0) }
	}
	for _, tt := range []struct {
		what   string
		mark   func(dir string) error
		unfit  bool
		opaque bool
	}{
		{"none", func(string) error { return nil }, false, false},
		{"the kernel's", xattr("trusted.overlay.opaque", "y"), false, true},
		{"the kernel's without root", xattr("user.overlay.opaque", "y"), false, true},
		{"fuse-overlayfs'", xattr("user.fuseoverlayfs.opaque", "y"), false, true},
		{"a file", func(dir string) error { return os.WriteFile(filepath.Join(dir, "empties", trees.Opaque), nil, 0o600) }, false, true},
		{"a device", func(dir string) error {
			return unix.Mknod(filepath.Join(dir, "empties", trees.OpaqueDevice), unix.S_IFCHR, 0)
		}, false, true},
		{"one that says nothing", xattr("trusted.overlay.origin", "x"), false, false},
		{"one of a later kernel", xattr("trusted.overlay.opaque", "x"), true, false},
		{"a directory elsewhere", xattr("trusted.overlay.redirect", "/stays"), true, false},
		{"owners elsewhere", xattr("user.containers.override_stat", "0:0:0"), true, false},
		{"a name of a driver's", func(dir string) error { return os.WriteFile(filepath.Join(dir, ".wh.f"), nil, 0o600) }, true, false},
		{"contents elsewhere", func(dir string) error {
			return errors.Join(os.WriteFile(filepath.Join(dir, "f"), nil, 0o600), unix.Setxattr(filepath.Join(dir, "f"), "trusted.overlay.metacopy", nil, 0))
		}, true, false},
		{"too much", func(dir string) error {
			return os.WriteFile(filepath.Join(dir, "f"), make([]byte, wire.MaxLayer), 0o600)
		}, true, false},
	} {
		t.Run(tt.what, func(t *testing.T) {
			layer, target := t.TempDir(), image(t)
			if err := errors.Join(os.MkdirAll(filepath.Join(layer, "empties/d"), 0o755), os.WriteFile(filepath.Join(layer, "empties/new"), nil, 0o600), tt.mark(layer)); err != nil {
				t.Fatal(err)
			}
			c := newCopier()
			err := c.run(wire.Copy{Jobs: []wire.CopyJob{{From: layer, Layer: true, Pack: true}}})
			if unfit := err != nil && toCopyError(err).Unfit; unfit != tt.unfit || err != nil && !unfit {
				t.Fatalf("pack: %v", err)
			}
			if tt.unfit {
				return
			}
			if err := newCopier().receive(&c.packed, []wire.CopyJob{{To: target, Layer: true}}); err != nil {
				t.Fatal(err)
			}
			want := []string{"empties", "empties/d", "empties/d/f", "empties/f", "empties/new"}
			if tt.opaque {
				want = []string{"empties", "empties/d", "empties/new"}
			}
			got := treeOf(t, target)
			names := slices.Sorted(maps.Keys(got))
			names = slices.DeleteFunc(names, func(n string) bool { return !strings.HasPrefix(n, "empties") })
			if !slices.Equal(names, want) {
				t.Errorf("there is %q, want %q", names, want)
			}
			for name, line := range got {
				if strings.Contains(line, "overlay") {
					t.Errorf("%s has an attribute of the driver's: %s", name, line)
				}
			}
		})
	}
}

// What is mounted in a sandbox is not its layer's: nothing of it is changed or removed.
func TestMountsAreLeftAloneByALayer(t *testing.T) {
	layer, target := t.TempDir(), image(t)
	point := filepath.Join(target, "mounted/d/d and more")
	mounted := t.TempDir()
	script := `cd "$1"; mkdir -p "mounted/d/d and more" goes; touch "mounted/d/d and more/f" mounted/.wh..wh..opq mounted/new; mknod stays c 0 0; mkdir -p gone; chmod 700 "mounted/d/d and more"`
	shell(t, script, layer)
	if err := errors.Join(os.Mkdir(point, 0o755), unix.Mount(mounted, point, "", unix.MS_BIND, ""), os.WriteFile(filepath.Join(mounted, "theirs"), nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(point, 0); err != nil {
			t.Error(err)
		}
	})
	before := treeOf(t, mounted)
	if err := newCopier().receive(bytes.NewReader(packed(t, layer)), []wire.CopyJob{{To: target, Layer: true}}); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(before, treeOf(t, mounted)); diff != "" {
		t.Errorf("what is mounted (-before +after):\n%s", diff)
	}
	var names []string
	for name := range treeOf(t, target) {
		if strings.HasPrefix(name, "mounted") || strings.HasPrefix(name, "stays") {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	if want := []string{"mounted", "mounted/d", "mounted/d/d and more", "mounted/d/d and more/theirs", "mounted/new"}; !slices.Equal(names, want) {
		t.Errorf("there is %q, want %q", names, want)
	}
}

// Whatever a stream says, nothing outside of the directory it is for is touched.
func FuzzReceive(f *testing.F) {
	layer := f.TempDir()
	if out, err := exec.Command("sh", "-ec", `cd "$1"; mkdir -p a/b; echo f >a/b/f; ln a/b/f a/g; ln -s .. up; mkfifo p; mknod w c 0 0; touch a/.wh..wh..opq; truncate -s 9999 s; echo >>s`, "sh", layer).CombinedOutput(); err != nil {
		f.Fatalf("%v: %s", err, out)
	}
	for _, send := range []func(*trees.Writer) error{
		func(w *trees.Writer) error { return w.Layer(0, layer) },
		func(w *trees.Writer) error { return w.Send(0, layer) },
	} {
		var stream bytes.Buffer
		w := trees.New(f.Context(), &stream)
		if err := errors.Join(send(w), w.Close()); err != nil {
			f.Fatal(err)
		}
		f.Add(stream.Bytes(), true)
		f.Add(stream.Bytes(), false)
	}
	var bad bytes.Buffer // a second name of what a link leads to
	w := tar.NewWriter(&bad)
	for _, h := range []*tar.Header{
		{Name: "0/up", Typeflag: tar.TypeSymlink, Linkname: "../theirs"}, {Name: "0/x", Typeflag: tar.TypeLink, Linkname: "0/up/f"},
		{Name: "0/up/new", Typeflag: tar.TypeReg}, {Name: "0/up/f", Typeflag: tar.TypeReg, PAXRecords: map[string]string{wire.TreeGone: "1"}},
	} {
		h.Format, h.ModTime = tar.FormatPAX, time.Unix(1, 0)
		if err := w.WriteHeader(h); err != nil {
			f.Fatal(err)
		}
		f.Add(bytes.Clone(bad.Bytes()), true)
		f.Add(bytes.Clone(bad.Bytes()), false)
	}
	f.Fuzz(func(t *testing.T, stream []byte, merge bool) {
		outside := t.TempDir()
		to, theirs := filepath.Join(outside, "to"), filepath.Join(outside, "theirs")
		if err := errors.Join(os.MkdirAll(filepath.Join(to, "a/c"), 0o755), os.Symlink("../theirs", filepath.Join(to, "link")),
			os.Mkdir(theirs, 0o755), os.WriteFile(filepath.Join(theirs, "f"), []byte("theirs"), 0o600)); err != nil {
			t.Fatal(err)
		}
		want := treeOf(t, theirs)
		said := newCopier().receive(bytes.NewReader(stream), []wire.CopyJob{{To: to, Layer: merge}})
		if diff := cmp.Diff(want, treeOf(t, theirs)); diff != "" {
			t.Errorf("after %v (-before +after):\n%s", said, diff)
		}
		if names, err := filepath.Glob(filepath.Join(outside, "*")); err != nil || len(names) != 2 {
			t.Errorf("there is %q, %v", names, err)
		}
	})
}
