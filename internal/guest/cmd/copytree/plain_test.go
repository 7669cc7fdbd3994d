//go:build linux

package copytree

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
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
		{"a whiteout", func(dir string) error { return unix.Mknod(filepath.Join(dir, "passwd"), unix.S_IFCHR, 0) }, false},
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
			if got := plain(dir, []string{"/a/b", "/passwd"}); got != tt.want {
				t.Errorf("plain: %v, want %v", got, tt.want)
			}
		})
	}
}
