package volumes_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/test/harness"
)

// A mounted directory that is gone is no reason to take the files of a stopped sandbox for missing:
// a program would write them anew. Each call names the directory, and with that back all is well.
func TestMountedDirectoryThatIsGoneHidesNoFiles(t *testing.T) {
	t.Parallel()
	c := harness.NewClient(t)
	for what, tt := range map[string]struct {
		mode   sandbox.MountMode
		remove func(dir string) error
	}{
		"read-only":     {sandbox.RO, os.RemoveAll},
		"read-write":    {sandbox.RW, os.RemoveAll},
		"the parent":    {sandbox.RO, func(dir string) error { return os.RemoveAll(filepath.Dir(dir)) }},
		"dangling link": {sandbox.RO, func(dir string) error { return errors.Join(os.RemoveAll(dir), os.Symlink("nowhere", dir)) }},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			dir := filepath.Join(t.TempDir(), "parent", "mounted")
			if err := os.MkdirAll(dir, 0o755); err != nil {
				t.Fatal(err)
			}
			sb := harness.CreateWith(t, c, []sandbox.Mount{{Source: dir, Target: "/data", Mode: tt.mode}})
			harness.Write(t, sb, "f", "precious")
			if err := sb.Symlink(t.Context(), "f", "link"); err != nil {
				t.Fatal(err)
			}
			if _, err := sb.Stop(t.Context()); err != nil {
				t.Fatal(err)
			}
			if _, err := sb.ReadFile(t.Context(), "missing"); !errors.Is(err, fs.ErrNotExist) || strings.Contains(err.Error(), "API") {
				t.Errorf("ReadFile of a missing file = %v", err)
			}
			if err := tt.remove(dir); err != nil {
				t.Fatal(err)
			}
			calls := map[string]func(name string) error{
				"ReadFile": func(name string) error { return harness.Second(sb.ReadFile(t.Context(), name)) },
				"Stat":     func(name string) error { return harness.Second(sb.Stat(t.Context(), name)) },
				"Lstat":    func(name string) error { return harness.Second(sb.Lstat(t.Context(), name)) },
				"Readlink": func(string) error { return harness.Second(sb.Readlink(t.Context(), "link")) },
				"ReadDir":  func(string) error { return harness.Second(sb.ReadDir(t.Context(), "/workspace")) },
				"FS":       func(string) error { return harness.Second(fs.Stat(sb.FS(), "workspace/f")) },
				"CopyOut": func(name string) error {
					return harness.Second(sb.CopyOut(t.Context(), name, filepath.Join(t.TempDir(), "out"), sandbox.CopyOptions{}))
				},
				"Get":   func(string) error { return harness.Second(c.Get(t.Context(), sb.Name())) },
				"Start": func(string) error { return harness.Second(sb.Start(t.Context())) },
			}
			for call, do := range calls {
				for _, name := range []string{"f", "link", "missing"} {
					err := do(name)
					if !errors.Is(err, sandbox.ErrInvalidArgument) || errors.Is(err, fs.ErrNotExist) || errors.Is(err, sandbox.ErrNotFound) || !strings.Contains(err.Error(), dir) {
						t.Errorf("%s of %s = %v, want ErrInvalidArgument and %s", call, name, err, dir)
					}
				}
			}
			if err := errors.Join(os.RemoveAll(dir), os.MkdirAll(dir, 0o755)); err != nil {
				t.Fatal(err)
			}
			if got := harness.Read(t, sb, "f"); got != "precious" {
				t.Errorf("with the directory f is %q", got)
			}
		})
	}
}
