package archive

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// What has taken the place of a file or a directory since it was looked at is not opened.
func TestWhatWasReplacedIsNotOpened(t *testing.T) {
	t.Parallel()
	for what, replace := range map[string]func(path string) error{
		"a link out":     func(path string) error { return os.Symlink("/etc", path) },
		"a link":         func(path string) error { return os.Symlink("other", path) },
		"a named pipe":   func(path string) error { return unix.Mkfifo(path, 0o600) },
		"another file":   func(path string) error { return os.WriteFile(path, nil, 0o600) },
		"a new one":      func(path string) error { return os.Mkdir(path, 0o700) },
		"nothing at all": func(string) error { return nil },
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			path := filepath.Join(dir, "d")
			if err := errors.Join(os.Mkdir(path, 0o700), os.Mkdir(filepath.Join(dir, "other"), 0o700)); err != nil {
				t.Fatal(err)
			}
			root, err := os.OpenRoot(dir)
			if err != nil {
				t.Fatal(err)
			}
			defer root.Close()
			was, err := root.Lstat("d")
			if err != nil {
				t.Fatal(err)
			}
			// It stays, under another name, so that its number is not given out again.
			if err := errors.Join(os.Rename(path, filepath.Join(dir, "was")), replace(path)); err != nil {
				t.Fatal(err)
			}
			if sub, err := OpenDir(root, "d", was); err == nil {
				sub.Close()
				t.Error("OpenDir opened it, want an error")
			}
			if f, _, err := OpenFile(root.OpenFile, "d", os.O_RDONLY, was); err == nil {
				f.Close()
				t.Error("OpenFile opened it, want an error")
			}
		})
	}
}

// Both ends of a copy agree about a file's holes.
func TestPiecesOfAFileWithHolesAreItsData(t *testing.T) {
	t.Parallel()
	f, err := os.Create(filepath.Join(t.TempDir(), "f"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	const size, at = 8 << 20, 4 << 20
	_, err = f.WriteAt([]byte("data"), at)
	if err := errors.Join(err, f.Truncate(size)); err != nil {
		t.Fatal(err)
	}
	info, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	pieces := Pieces(f, info)
	if len(pieces) != 1 || pieces[0].Offset > at || pieces[0].Offset+pieces[0].Length < at+4 || pieces[0].Length > 1<<20 {
		t.Fatalf("Pieces = %v, want one with the four bytes at %d", pieces, at)
	}
	got, read, err := ParseSparse(SparseRecord(size, pieces), pieces[0].Length)
	if err != nil || got != size || len(read) != 1 || read[0] != pieces[0] {
		t.Errorf("ParseSparse = %d, %v, %v, want %d, %v", got, read, err, size, pieces)
	}
}

// A directory that a link replaces has changed, wherever the link leads.
func TestADirectoryThatALinkReplacesHasChanged(t *testing.T) {
	t.Parallel()
	for _, to := range []string{"../outside", "/", "none", "file", "dir"} {
		dir := t.TempDir()
		root, err := os.OpenRoot(dir)
		if err != nil {
			t.Fatal(err)
		}
		defer root.Close()
		if err := errors.Join(root.Mkdir("dir", 0o755), root.WriteFile("file", nil, 0o644)); err != nil {
			t.Fatal(err)
		}
		was, err := root.Lstat("dir")
		if err := errors.Join(err, root.Rename("dir", "away"), root.Symlink(to, "dir")); err != nil {
			t.Fatal(err)
		}
		if sub, err := OpenDir(root, "dir", was); !errors.Is(err, ErrChanged) {
			t.Errorf("a link to %s: %v, %v", to, sub, err)
		}
		// The same if every Lstat finds the file that was there before, and every attempt to open it finds a link that leads out of root.
		is, err := root.Lstat("dir")
		if err != nil {
			t.Fatal(err)
		}
		if sub, err := OpenDir(root, "dir", is); to == "../outside" && !errors.Is(err, ErrChanged) {
			t.Errorf("a link to %s at each opening: %v, %v", to, sub, err)
		}
	}
}

// The kernel's links in /proc/self/fd lead to files that need not have names.
func TestTheKernelsLinksAreTakenForTheirFiles(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	named, err := os.Create(filepath.Join(dir, "named"))
	if err != nil {
		t.Fatal(err)
	}
	defer named.Close()
	removed, err := os.Create(filepath.Join(dir, "removed"))
	if err != nil {
		t.Fatal(err)
	}
	defer removed.Close()
	if err := errors.Join(os.Remove(removed.Name()), os.WriteFile(filepath.Join(dir, "removed (deleted)"), []byte("another"), 0o644)); err != nil {
		t.Fatal(err)
	}
	if report, err := Pack(t.Context(), io.Discard, fmt.Sprintf("/proc/self/fd/%d", named.Fd()), Options{}); err != nil || report.Files != 1 {
		t.Errorf("Pack of a file that has a name: %+v, %v", report, err)
	}
	if report, err := Pack(t.Context(), io.Discard, fmt.Sprintf("/proc/self/fd/%d", removed.Fd()), Options{}); err == nil || !strings.Contains(err.Error(), "no name") {
		t.Errorf("Pack of a file that has none: %+v, %v", report, err)
	}
}

// No method leaves the directory, whatever the name.
func TestNoNameLeadsOutOfADirectoryToWriteTo(t *testing.T) {
	t.Parallel()
	outside := t.TempDir()
	if err := errors.Join(os.MkdirAll(filepath.Join(outside, "in/sub"), 0o755), os.WriteFile(filepath.Join(outside, "f"), nil, 0o644), os.WriteFile(filepath.Join(outside, "in/file"), nil, 0o644), os.Symlink("..", filepath.Join(outside, "in/up"))); err != nil {
		t.Fatal(err)
	}
	d, err := openInto(filepath.Join(outside, "in"))
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	for _, name := range []string{"../f", "sub/../../f", "..", "sub/..", "up/f"} {
		_, open := d.OpenFile(name, os.O_RDONLY, 0)
		_, stat := d.Lstat(name)
		for op, err := range map[string]error{
			"OpenFile": open, "Lstat": stat, "Mkdir": d.Mkdir(name+"/new", 0o755), "Symlink": d.Symlink("x", name), "Link": d.Link(name, "linked"), "Link to": d.Link("file", name),
			"Rename": d.Rename(name, "renamed"), "Rename to": d.Rename("file", name), "Chmod": d.Chmod(name, 0o700), "Remove": d.Remove(name),
		} {
			if err == nil {
				t.Errorf("%s of %q succeeded", op, name)
			}
		}
	}
	if names, err := filepath.Glob(filepath.Join(outside, "*")); err != nil || len(names) != 2 {
		t.Errorf("outside are %q, %v", names, err)
	}
}
