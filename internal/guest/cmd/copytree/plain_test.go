//go:build linux

package copytree

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/seed-1a2d6d8f/sandbox/internal/guest/cmd/proc"
	"github.com/seed-1a2d6d8f/sandbox/internal/guest/wire"
)

func TestPlainLayers(t *testing.T) {
	t.Parallel()
	file := func(name string, size int64) func(string) error {
		return func(dir string) error {
			return os.WriteFile(filepath.Join(dir, name), make([]byte, size), 0o644)
		}
	}
	for _, tt := range []struct {
		what string
		make func(dir string) error
		want bool
	}{
		{"nothing", func(string) error { return nil }, true},
		{"directories", func(dir string) error { return os.MkdirAll(filepath.Join(dir, "a/b/c"), 0o755) }, true},
		{"a small file", file("passwd", 100), true},
		{"a link elsewhere", func(dir string) error { return os.Symlink("/", filepath.Join(dir, "other")) }, true},
		{"a large file", file("passwd", 5<<20), false},
		{"a file on the way", file("a", 1), false},
		{"a link at the end", func(dir string) error { return os.Symlink("other", filepath.Join(dir, "passwd")) }, false},
		{"a link on the way", func(dir string) error { return os.Symlink("other", filepath.Join(dir, "a")) }, false},
		{"a dangling link", func(dir string) error { return os.Symlink("nowhere", filepath.Join(dir, "a")) }, false},
		{"a pipe", func(dir string) error { return unix.Mkfifo(filepath.Join(dir, "passwd"), 0o600) }, false},
		{"a whiteout", func(dir string) error { return unix.Mknod(filepath.Join(dir, "passwd"), unix.S_IFCHR, 0) }, true},
		{"a device", func(dir string) error {
			return unix.Mknod(filepath.Join(dir, "passwd"), unix.S_IFCHR, int(unix.Mkdev(1, 3)))
		}, false},
		{"a mount point that is a file", func(dir string) error {
			return errors.Join(os.Mkdir(filepath.Join(dir, "a"), 0o755), os.WriteFile(filepath.Join(dir, "a/b"), nil, 0o644))
		}, true},
		{"a mount point that is a pipe", func(dir string) error {
			return errors.Join(os.Mkdir(filepath.Join(dir, "a"), 0o755), unix.Mkfifo(filepath.Join(dir, "a/b"), 0o600))
		}, false},
		{"a directory in place of an account file", func(dir string) error { return os.Mkdir(filepath.Join(dir, "passwd"), 0o755) }, false},
		{"nothing where the image has a link", func(dir string) error { return os.Mkdir(filepath.Join(dir, "l"), 0o755) }, true},
		{"a directory where the image has a link", func(dir string) error { return os.MkdirAll(filepath.Join(dir, "l/m"), 0o755) }, false},
		{"another directory's contents", func(dir string) error {
			at := filepath.Join(dir, "a")
			if err := os.Mkdir(at, 0o755); err != nil {
				return err
			}
			return unix.Setxattr(at, "trusted.overlay.redirect", []byte("/b"), 0)
		}, false},
	} {
		t.Run(tt.what, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			if err := tt.make(dir); err != nil {
				t.Fatal(err)
			}
			if got := plain(dir, []wire.PathCheck{{Name: "/a/b"}, {Name: "/passwd", Kind: wire.KindAccount}, {Name: "/l/m", Kind: wire.KindLink}}); got != tt.want {
				t.Errorf("plain: %v, want %v", got, tt.want)
			}
		})
	}
}

func TestANeededPathIsMissing(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "a/b"), 0o755); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{"/a/b": "", "/a/c": "/a/c", "/b/c": "/b"} {
		if name, is := proc.WrongPath(dir, wire.PathCheck{Name: path, Needed: true}); name != want || (is != "") != (want != "") {
			t.Errorf("%s: %s is %q, want %q", path, name, is, want)
		}
	}
}

// A file that the engine must not open keeps its contents under another name.
func TestReplacedAccountFiles(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		what string
		make func(at string) error
	}{
		{"a link", func(at string) error { return os.Symlink("/workspace/link", at) }},
		{"a pipe", func(at string) error { return unix.Mkfifo(at, 0o600) }},
		{"a directory with files", func(at string) error { return os.MkdirAll(at+"/a/b", 0o755) }},
	} {
		t.Run(tt.what, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			at := filepath.Join(dir, "etc/passwd")
			if err := errors.Join(os.Mkdir(filepath.Join(dir, "etc"), 0o755), tt.make(at), os.Symlink("/", at+".new"), os.WriteFile(at+".replaced-0", nil, 0o600)); err != nil {
				t.Fatal(err)
			}
			was, err := os.Lstat(at)
			if err != nil {
				t.Fatal(err)
			}
			order := wire.Look{Trees: []wire.LookTree{{Dir: dir, Paths: []wire.PathCheck{{Name: "/etc/passwd", Kind: wire.KindAccount}},
				Replace: map[string]string{"/etc/passwd": "root\n"}, Read: []string{"/etc/passwd", "/etc/group"}}}}
			got, err := look(order)
			if err != nil || len(got.Wrong) != 0 || len(got.Replaced) != 1 || string(got.Files["/etc/passwd"]) != "root\n" || len(got.Files) != 1 {
				t.Errorf("look = %+v, %v", got, err)
			}
			if kept, err := os.Lstat(at + ".replaced-1"); err != nil || !os.SameFile(was, kept) {
				t.Errorf("what was there is not kept: %v, %v", kept, err)
			}
			if got, err = look(order); err != nil || len(got.Wrong)+len(got.Replaced) != 0 {
				t.Errorf("the second look = %+v, %v", got, err)
			}
		})
	}
}

// The way to a file that is replaced has only directories, so nothing outside of the tree is changed.
func TestNothingIsReplacedThroughALink(t *testing.T) {
	t.Parallel()
	dir, outside := t.TempDir(), t.TempDir()
	if err := errors.Join(unix.Mkfifo(filepath.Join(outside, "passwd"), 0o600), os.Symlink(outside, filepath.Join(dir, "etc"))); err != nil {
		t.Fatal(err)
	}
	got, err := look(wire.Look{Trees: []wire.LookTree{{Dir: dir, Paths: []wire.PathCheck{{Name: "/etc/passwd", Kind: wire.KindAccount}},
		Replace: map[string]string{"/etc/passwd": "root\n"}}}})
	if err != nil || len(got.Replaced) != 0 || len(got.Wrong) != 1 || got.Wrong[0].Name != "/etc" || got.Wrong[0].Is != "a symbolic link" {
		t.Errorf("look = %+v, %v", got, err)
	}
	if entries, err := os.ReadDir(outside); err != nil || len(entries) != 1 {
		t.Errorf("outside of the tree: %v, %v", entries, err)
	}
}
