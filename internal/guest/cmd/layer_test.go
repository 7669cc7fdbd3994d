//go:build linux

package main

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

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
