package archive_test

import (
	"archive/zip"
	"bytes"
	"context"
	"embed"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/seed-1a2d6d8f/sandbox/internal/archive"
)

// unpack makes target of what pack packs.
func unpack(t *testing.T, target string, pack func(context.Context, io.Writer) (archive.Report, error)) archive.Report {
	t.Helper()
	var b bytes.Buffer
	if _, err := pack(t.Context(), &b); err != nil {
		t.Fatalf("Pack: %v", err)
	}
	report, err := archive.Unpack(t.Context(), &b, target, archive.Hostile, archive.Options{Complete: true})
	if err != nil {
		t.Fatalf("Unpack: %v", err)
	}
	return report
}

func copyTree(t *testing.T, from, to string) archive.Report {
	t.Helper()
	return unpack(t, to, func(ctx context.Context, w io.Writer) (archive.Report, error) {
		return archive.Pack(ctx, w, from, archive.Options{})
	})
}

func TestDirectoriesThatWereThereStayAsTheyWere(t *testing.T) {
	t.Parallel()
	for _, mode := range []uint32{0o700, 0o1777, 0o555, 0o2750, 0, 0o777} {
		for _, theirs := range []uint32{0o777, 0, 0o1777, 0o500} {
			t.Run(fmt.Sprintf("%o by %o", mode, theirs), func(t *testing.T) {
				t.Parallel()
				from, to := t.TempDir(), filepath.Join(t.TempDir(), "to")
				for _, dir := range []string{from + "/there/below", from + "/new/below", to + "/there/below"} {
					if err := os.MkdirAll(dir, 0o755); err != nil {
						t.Fatal(err)
					}
				}
				old := []unix.Timespec{{Sec: 1e9}, {Sec: 1e9}}
				for _, name := range []string{"there/below", "there", "new/below", "new", "."} {
					if err := unix.Setxattr(filepath.Join(from, name), "user.theirs", []byte("x"), 0); err != nil {
						t.Fatal(err)
					}
					unix.Chmod(filepath.Join(from, name), theirs)
					unix.UtimesNanoAt(unix.AT_FDCWD, filepath.Join(from, name), old, 0)
				}
				was := map[string]unix.Stat_t{}
				for _, name := range []string{"there/below", "there", "."} {
					unix.Chown(filepath.Join(to, name), 12, 34)
					unix.Chmod(filepath.Join(to, name), mode)
					var st unix.Stat_t
					if err := unix.Stat(filepath.Join(to, name), &st); err != nil {
						t.Fatal(err)
					}
					was[name] = st
				}
				copyTree(t, from, to)
				for name, st := range was {
					var now unix.Stat_t
					unix.Stat(filepath.Join(to, name), &now)
					n, err := unix.Getxattr(filepath.Join(to, name), "user.theirs", make([]byte, 10))
					if now.Mode != st.Mode || now.Uid != st.Uid || now.Gid != st.Gid || now.Mtim.Sec == 1e9 || err != unix.ENODATA {
						t.Errorf("%s was %o of %d:%d, is %o of %d:%d, its time %d, an attribute of %d bytes", name, st.Mode, st.Uid, st.Gid, now.Mode, now.Uid, now.Gid, now.Mtim.Sec, n)
					}
				}
				for _, name := range []string{"new/below", "new"} {
					var now unix.Stat_t
					unix.Stat(filepath.Join(to, name), &now)
					if now.Mode&0o7777 != theirs || now.Mtim.Sec != 1e9 {
						t.Errorf("%s is %o of %d, want %o of %d", name, now.Mode&0o7777, now.Mtim.Sec, theirs, int(1e9))
					}
				}
			})
		}
	}
}

// Of two copies to the same new directory the later one says what to do, and leaves that of the other alone.
func TestACopyThatMeetsAnotherSaysSo(t *testing.T) {
	t.Parallel()
	from, parent := t.TempDir(), t.TempDir()
	to := filepath.Join(parent, "to")
	if err := os.WriteFile(filepath.Join(from, "mine"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	if _, err := archive.Pack(t.Context(), &b, from, archive.Options{}); err != nil {
		t.Fatal(err)
	}
	once := func(string, *archive.Report) {
		if err := os.MkdirAll(filepath.Join(to, "theirs"), 0o755); err != nil {
			t.Error(err)
		}
	}
	stream := bytes.NewReader(b.Bytes())
	_, err := archive.Unpack(t.Context(), stream, to, archive.Hostile, archive.Options{Complete: true, Progress: once})
	if !errors.Is(err, fs.ErrExist) || !strings.Contains(err.Error(), "repeat it") || !strings.Contains(err.Error(), to) {
		t.Errorf("Unpack: %v", err)
	}
	copyTree(t, from, to)
	var names []string
	for _, dir := range []string{parent, to} {
		list, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range list {
			names = append(names, d.Name())
		}
	}
	if got := strings.Join(names, " "); got != "to mine theirs" {
		t.Errorf("afterwards there is %s", got)
	}
}

//go:embed pack.go merge_linux_test.go
var embedded embed.FS

// zipped is an archive of package zip: with a directory that has no entry, one with, and permissions
// of Unix.
func zipped(t *testing.T) fs.FS {
	t.Helper()
	var b bytes.Buffer
	w := zip.NewWriter(&b)
	for name, mode := range map[string]fs.FileMode{"d/f": 0o444, "e/": 0, "program": 0o555, "secret": 0o400} {
		h := &zip.FileHeader{Name: name}
		if mode != 0 {
			h.SetMode(mode)
		}
		if _, err := w.CreateHeader(h); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	r, err := zip.NewReader(bytes.NewReader(b.Bytes()), int64(b.Len()))
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// The precedent is os.CopyFS, before a umask of 022.
func TestFileSystemsWithoutPermissionsAreWritable(t *testing.T) {
	t.Parallel()
	began := time.Now()
	for name, x := range map[string]struct {
		fsys fs.FS
		want map[string]fs.FileMode
	}{
		"embed.FS": {embedded, map[string]fs.FileMode{".": 0o755, "pack.go": 0o644}},
		"zip":      {zipped(t), map[string]fs.FileMode{".": 0o755, "d": 0o755, "d/f": 0o644, "e": 0o755, "program": 0o755, "secret": 0o600}},
		"MapFS": {fstest.MapFS{"d/f": {}, "d/e/x": {Mode: 0o555}, "d/secret": {Mode: 0o600}},
			map[string]fs.FileMode{".": 0o755, "d": 0o755, "d/e": 0o755, "d/f": 0o644, "d/e/x": 0o755, "d/secret": 0o600}},
	} {
		to := filepath.Join(t.TempDir(), "to")
		unpack(t, to, func(ctx context.Context, w io.Writer) (archive.Report, error) {
			return archive.PackFS(ctx, w, x.fsys, archive.Options{})
		})
		for file, want := range x.want {
			info, err := os.Stat(filepath.Join(to, file))
			if err != nil {
				t.Errorf("%s: %v", name, err)
			} else if info.Mode().Perm() != want || info.ModTime().Before(began.Add(-time.Second)) {
				t.Errorf("%s: %s is %v of %v, want %v of now", name, file, info.Mode(), info.ModTime(), want)
			}
		}
	}
}

// A file system of real files, as os.DirFS is one, has permissions and times to keep.
func TestFileSystemsOfFilesKeepTheirPermissions(t *testing.T) {
	t.Parallel()
	from, to := t.TempDir(), filepath.Join(t.TempDir(), "to")
	for name, mode := range map[string]fs.FileMode{"a": 0o444, "b": 0, "c": 0o4711} {
		if err := os.WriteFile(filepath.Join(from, name), nil, 0o644); err != nil {
			t.Fatal(err)
		}
		unix.Chmod(filepath.Join(from, name), uint32(mode))
	}
	unix.Chmod(from, 0o555)
	os.Chtimes(filepath.Join(from, "a"), time.Unix(0, 0), time.Unix(0, 0))
	unpack(t, to, func(ctx context.Context, w io.Writer) (archive.Report, error) {
		return archive.PackFS(ctx, w, os.DirFS(from), archive.Options{})
	})
	for name, want := range map[string]fs.FileMode{".": 0o555, "a": 0o444, "b": 0, "c": 0o711} {
		info, err := os.Stat(filepath.Join(to, name))
		if err != nil || info.Mode().Perm() != want {
			t.Errorf("%s: %v, %v, want %o", name, info, err, want)
		}
		if name == "a" && info.ModTime().Unix() != 0 {
			t.Errorf("a is of %v, want 1970", info.ModTime())
		}
	}
}

// The kernel tells no size of what it makes up.
func TestFilesWithoutASizeAreCopied(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"/proc/version", "/proc/cpuinfo", "/proc/self/limits", "/proc/kallsyms", "/sys/kernel/mm/transparent_hugepage/enabled"} {
		want, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		dir, base := filepath.Split(name)
		for way, pack := range map[string]func(context.Context, io.Writer) (archive.Report, error){
			"Pack": func(ctx context.Context, w io.Writer) (archive.Report, error) {
				return archive.Pack(ctx, w, name, archive.Options{})
			},
			"PackFS": func(ctx context.Context, w io.Writer) (archive.Report, error) {
				return archive.PackFS(ctx, w, only{os.DirFS(dir), base}, archive.Options{})
			},
		} {
			to := filepath.Join(t.TempDir(), "to")
			unpack(t, to, pack)
			if way == "PackFS" {
				to = filepath.Join(to, base)
			}
			if got, err := os.ReadFile(to); err != nil || len(got) == 0 || name != "/proc/cpuinfo" && !bytes.Equal(got, want) {
				t.Errorf("%s of %s: %d bytes, %v, want %d", way, name, len(got), err, len(want))
			}
		}
	}
	if _, err := archive.Pack(t.Context(), io.Discard, "/proc/self/pagemap", archive.Options{}); err == nil {
		t.Error("Pack of a file without a size and an end: no error")
	}
}

// only is one file of a file system.
type only struct {
	fs.FS
	name string
}

func (o only) ReadDir(string) ([]fs.DirEntry, error) {
	info, err := fs.Stat(o.FS, o.name)
	return []fs.DirEntry{fs.FileInfoToDirEntry(info)}, err
}

// Nanoseconds since 1970 don't reach as far as file systems do.
func TestTimesOfAnyYearAreKeptOrReported(t *testing.T) {
	t.Parallel()
	fsys := fstest.MapFS{}
	for _, year := range []int{1, 1600, 1901, 1902, 1969, 1970, 2037, 2038, 2039, 2106, 2261, 2262, 2263, 2400, 2445, 2447, 2500, 9999} {
		when := time.Date(year, 12, 31, 23, 59, 59, 999, time.UTC)
		fsys[fmt.Sprint(year)] = &fstest.MapFile{ModTime: when}
		fsys[fmt.Sprintf("%d.d", year)] = &fstest.MapFile{ModTime: when, Mode: fs.ModeDir | 0o755}
	}
	for _, dir := range []string{t.TempDir(), memory(t)} {
		to := filepath.Join(dir, "to")
		report := unpack(t, to, func(ctx context.Context, w io.Writer) (archive.Report, error) {
			return archive.PackFS(ctx, w, fsys, archive.Options{})
		})
		said := map[string]bool{}
		for _, s := range report.Skipped {
			said[s.Path] = true
		}
		for name, file := range fsys {
			info, err := os.Stat(filepath.Join(to, name))
			if err != nil {
				t.Fatal(err)
			}
			if kept := info.ModTime().Unix() == file.ModTime.Unix(); kept == said[name] || !kept && dir == memory(t) {
				t.Errorf("in %s %s is of %v; reported: %v", dir, name, info.ModTime().UTC(), said[name])
			}
		}
	}
}

// memory is a directory in memory, which stores times of any year.
func memory(t *testing.T) string {
	t.Helper()
	dir := filepath.Join("/dev/shm", filepath.Base(filepath.Dir(t.TempDir())))
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}
