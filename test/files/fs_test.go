package files_test

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"testing"
	"testing/fstest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/test/harness"
)

// populate makes a tree with what file systems have, below dir.
func populate(t *testing.T, sb *sandbox.Sandbox, dir string) {
	t.Helper()
	harness.Run(t, sb, "sh", "-ec", `
		mkdir -p "$0/a/b/c" "$0/empty" && cd "$0"
		echo hello > hello.txt
		: > nothing
		head -c 200 /dev/urandom > a/noise
		printf 'x' > 'a/b/with space'
		printf 'ü' > 'a/b/ümlaut'
		ln -s ../hello.txt a/link
		ln -s b a/dirlink
		ln hello.txt a/hard
		chmod 600 nothing; chmod 4755 a/b/ümlaut; chmod 1777 empty
		touch -d '2001-02-03 04:05:06.123456789Z' hello.txt a/b`, dir)
}

func TestFSPassesTheStandardSuite(t *testing.T) {
	t.Parallel()
	sb := harness.Shared(t)
	populate(t, sb, "/workspace/suite")
	sub, err := fs.Sub(sb.FS(), "workspace/suite")
	if err != nil {
		t.Fatal(err)
	}
	if err := fstest.TestFS(sub, "hello.txt", "nothing", "a/noise", "a/b/with space", "a/b/ümlaut", "a/link", "a/hard", "empty"); err != nil {
		t.Error(err)
	}
}

// Listings of a stopped sandbox have whole seconds, so all files are of whole seconds here.
func TestFSOfAStoppedSandboxPassesTheStandardSuite(t *testing.T) {
	t.Parallel()
	c := harness.NewClient(t)
	sb := harness.CreateWith(t, c, nil)
	populate(t, sb, "/workspace/suite")
	harness.Run(t, sb, "sh", "-ec", `cd suite; ln a/noise a/b/noise; ln a/link a/link2; ln -s nowhere dangling; mkfifo pipe; ln pipe pipe2; truncate -s 65M a/large; ln a/large large
		find . -exec touch -h -d 2001-02-03 {} +`)
	list := func() (entries []string) {
		err := fs.WalkDir(sb.FS(), "workspace/suite", func(name string, d fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			info, err := d.Info()
			if err == nil && !d.IsDir() {
				entries = append(entries, fmt.Sprint(name, " ", fs.FormatFileInfo(info)))
			}
			return err
		})
		if err != nil {
			t.Errorf("WalkDir: %v", err)
		}
		return entries
	}
	running := list()
	if _, err := sb.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(running, list()); diff != "" {
		t.Errorf("entries (-running +stopped):\n%s", diff)
	}
	if report, err := sb.CopyOutTar(t.Context(), "suite", io.Discard, sandbox.CopyOptions{}); err != nil || report.Bytes < 130<<20 {
		t.Errorf("CopyOutTar: %+v, %v", report, err)
	}
	sub, err := fs.Sub(sb.FS(), "workspace/suite/a/b")
	if err != nil {
		t.Fatal(err)
	}
	if err := fstest.TestFS(sub, "noise", "with space", "ümlaut"); err != nil {
		t.Error(err)
	}
}

func TestWalkDirSeesTenThousandFiles(t *testing.T) {
	t.Parallel()
	sb := harness.Shared(t)
	harness.Run(t, sb, "sh", "-ec", `for d in $(seq 100); do mkdir -p walk/$d; (cd walk/$d; seq 100 | xargs touch); done`)
	start := time.Now()
	files, dirs := 0, 0
	err := fs.WalkDir(sb.FS(), "workspace/walk", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			dirs++
		} else {
			files++
		}
		return nil
	})
	if err != nil || files != 10000 || dirs != 101 {
		t.Errorf("WalkDir: %d files, %d directories, %v; want 10000 and 101", files, dirs, err)
	}
	t.Logf("%v", time.Since(start))
}

func TestFSErrorsAreWhatPackageFSPromises(t *testing.T) {
	t.Parallel()
	sb := ofNode(t)
	fsys := sb.FS()
	for _, tt := range []struct {
		name string
		want error
	}{
		{"no/such/file", fs.ErrNotExist},
		{"root/.ssh", fs.ErrPermission},
		{"/etc/passwd", fs.ErrInvalid},
		{"etc/../etc/passwd", fs.ErrInvalid},
		{"", fs.ErrInvalid},
	} {
		_, err := fsys.Open(tt.name)
		var path *fs.PathError
		if !errors.As(err, &path) || !errors.Is(err, tt.want) || path.Path != tt.name {
			t.Errorf("Open(%q) = %v (%T), want a *fs.PathError of %v", tt.name, err, err, tt.want)
		}
		if _, direct := err.(*fs.PathError); !direct {
			t.Errorf("Open(%q) = %T, want *fs.PathError itself", tt.name, err)
		}
	}
}

func TestFSFilesSeek(t *testing.T) {
	t.Parallel()
	sb := harness.Shared(t)
	if err := sb.WriteFile(t.Context(), "digits", []byte("0123456789"), 0o644); err != nil {
		t.Fatal(err)
	}
	f, err := sb.FS().Open("workspace/digits")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	r := f.(io.ReadSeeker)
	if at, err := r.Seek(-3, io.SeekEnd); at != 7 || err != nil {
		t.Fatalf("Seek = %d, %v; want 7", at, err)
	}
	rest, err := io.ReadAll(r)
	if string(rest) != "789" || err != nil {
		t.Errorf("after Seek: %q, %v; want 789", rest, err)
	}
	var two [2]byte
	if n, err := f.(io.ReaderAt).ReadAt(two[:], 4); n != 2 || err != nil || string(two[:]) != "45" {
		t.Errorf("ReadAt(4) = %d, %v, %q; want 45", n, err, two)
	}
}

// The whole of / includes what the kernel makes up: files of no size that have
// content, and names that come and go.
func TestFSReadsWhatTheKernelMakesUp(t *testing.T) {
	t.Parallel()
	sb := harness.Shared(t)
	b, err := fs.ReadFile(sb.FS(), "proc/self/status")
	if err != nil || len(b) == 0 {
		t.Errorf("ReadFile(proc/self/status) = %d bytes, %v", len(b), err)
	}
	if list, err := fs.ReadDir(sb.FS(), "proc"); err != nil || len(list) < 20 {
		t.Errorf("ReadDir(proc) = %d entries, %v", len(list), err)
	}
}
