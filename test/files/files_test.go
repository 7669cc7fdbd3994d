package files_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/fstest"
	"testing/iotest"
	"time"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/test/harness"
)

// ofNode returns a running sandbox whose user is not root, which tests use together.
var ofNode = harness.Sharing(sandbox.WithUser("node"))

func TestWhatIsWrittenIsRead(t *testing.T) {
	t.Parallel()
	sb := harness.Shared(t)
	ctx := t.Context()
	for _, size := range []int{0, 1, 4096, 256 << 10, 256<<10 + 1, 9 << 20} {
		want := make([]byte, size)
		rand.Read(want)
		name := fmt.Sprintf("file-%d", size)
		if err := sb.WriteFile(ctx, name, want, 0o640); err != nil {
			t.Fatalf("WriteFile of %d bytes: %v", size, err)
		}
		got, err := sb.ReadFile(ctx, "/workspace/"+name)
		if err != nil || !bytes.Equal(got, want) {
			t.Errorf("ReadFile: %d bytes, %v; want the %d written", len(got), err, size)
		}
	}
	if got := harness.Run(t, sb, "stat", "-c", "%a %U", "file-1"); got != "640 root" {
		t.Errorf("stat = %q, want 640 root", got)
	}
}

func TestWriteFileKeepsWhatAFileIs(t *testing.T) {
	t.Parallel()
	sb := harness.Shared(t)
	harness.Run(t, sb, "sh", "-c", `mkdir keeps; cd keeps; echo old > f; chown 1000:1000 f; chmod 4751 f; ln -s f link`)
	if err := sb.WriteFile(t.Context(), "keeps/link", []byte("new"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := harness.Run(t, sb, "sh", "-c", `cd keeps; stat -c '%a %u:%g' f; readlink link; cat f; ls -A | wc -l`); got != "4751 1000:1000\nf\nnew2" {
		t.Errorf("after WriteFile through a link: %q", got)
	}
}

// A member of a group writes the files of the others, who keep their access. In a directory with the sticky
// bit only the owner can replace a file, but whoever has the permission can write it.
func TestWriteFileInDirectoriesThatUsersShare(t *testing.T) {
	t.Parallel()
	sb := harness.NewSandbox(t)
	harness.Run(t, sb, "sh", "-ec", `groupadd dev; usermod -aG dev node; useradd alice
		mkdir /srv/group; cd /srv/group; chgrp dev .; chmod 770 .; echo old >f; chown alice:dev f; chmod 664 f
		mkdir -m 1777 /srv/sticky; cd /srv/sticky; echo longer content >f; chmod 666 f`)
	for name, want := range map[string]string{"/srv/group/f": "664 node:dev new 1", "/srv/sticky/f": "666 root:root new 1"} {
		if err := sb.FilesAs("node").WriteFile(t.Context(), name, []byte("new"), 0o644); err != nil {
			t.Errorf("WriteFile(%s): %v", name, err)
		}
		got := harness.Run(t, sb, "sh", "-c", `echo "$(stat -c '%a %U:%G' "$0") $(cat "$0") $(ls -A "$(dirname "$0")" | wc -l)"`, name)
		if got != want {
			t.Errorf("%s after WriteFile: %q, want %q", name, got, want)
		}
	}
}

func TestWriteFileWritesMountPointsAndDevices(t *testing.T) {
	t.Parallel()
	sb := harness.Shared(t)
	if err := sb.WriteFile(t.Context(), "/etc/hosts", []byte("127.0.0.1 localhost here\n"), 0); err != nil {
		t.Errorf("WriteFile(/etc/hosts): %v", err)
	}
	if got := harness.Run(t, sb, "sh", "-c", "cat /etc/hosts; ls -A /etc | grep agent-sandbox || true"); got != "127.0.0.1 localhost here" {
		t.Errorf("/etc/hosts holds %q", got)
	}
	if err := sb.WriteFile(t.Context(), "/dev/null", []byte("x"), 0o644); err != nil {
		t.Errorf("WriteFile(/dev/null): %v", err)
	}
	sleep := sb.Command(t.Context(), "sleep", "1000") // until the test ends
	if err := sleep.Start(); err != nil {
		t.Fatal(err)
	}
	adj := fmt.Sprintf("/proc/%d/oom_score_adj", sleep.Pid())
	if err := sb.WriteFile(t.Context(), adj, []byte("900"), 0o644); err != nil {
		t.Errorf("WriteFile(%s): %v", adj, err)
	}
	if got := harness.Read(t, sb, adj); got != "900\n" {
		t.Errorf("%s holds %q", adj, got)
	}
	if err := sleep.Kill(); err != nil {
		t.Error(err)
	}
	sleep.Wait()
}

func TestReadersSeeTheOldFileOrTheNew(t *testing.T) {
	t.Parallel()
	sb := harness.Shared(t)
	ctx := t.Context()
	whole := func(b byte) []byte { return bytes.Repeat([]byte{b}, 600<<10) }
	if err := sb.WriteFile(ctx, "read", whole('a'), 0o644); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for i := range 20 {
			if err := sb.WriteFile(ctx, "read", whole('a'+byte(i%26)), 0o644); err != nil {
				t.Error(err)
			}
		}
	})
	for range 20 {
		got, err := sb.ReadFile(ctx, "read")
		if err != nil || len(got) != 600<<10 || bytes.Count(got, got[:1]) != len(got) {
			t.Errorf("ReadFile during WriteFile: %d bytes, %v; want one whole version", len(got), err)
		}
	}
	wg.Wait()
}

func TestFileErrorsSayWhichAndWhy(t *testing.T) {
	t.Parallel()
	sb := ofNode(t)
	ctx := t.Context()
	harness.Run(t, sb, "sh", "-c", "mkdir d && touch d/x file && ln -s loop loop")
	for _, tt := range []struct {
		call string
		err  error
		want error
	}{
		{"ReadFile", harness.Second(sb.ReadFile(ctx, "none")), fs.ErrNotExist},
		{"ReadFile of a directory", harness.Second(sb.ReadFile(ctx, "d")), syscall.EISDIR},
		{"ReadFile below a file", harness.Second(sb.ReadFile(ctx, "file/none")), syscall.ENOTDIR},
		{"ReadFile of a loop", harness.Second(sb.ReadFile(ctx, "loop")), syscall.ELOOP},
		{"ReadFile of a long name", harness.Second(sb.ReadFile(ctx, strings.Repeat("n", 256))), syscall.ENAMETOOLONG},
		{"ReadFile of nothing", harness.Second(sb.ReadFile(ctx, "")), fs.ErrNotExist},
		{"ReadFile of root's", harness.Second(sb.ReadFile(ctx, "/etc/shadow")), fs.ErrPermission},
		{"ReadFile of NUL", harness.Second(sb.ReadFile(ctx, "a\x00b")), sandbox.ErrInvalidArgument},
		{"WriteFile to root's", sb.WriteFile(ctx, "/etc/passwd", nil, 0o644), fs.ErrPermission},
		{"WriteFile to a directory", sb.WriteFile(ctx, "d", nil, 0o644), syscall.EISDIR},
		{"WriteFile nowhere", sb.WriteFile(ctx, "none/f", nil, 0o644), fs.ErrNotExist},
		{"Mkdir", sb.Mkdir(ctx, "d", 0o755), fs.ErrExist},
		{"Mkdir read-only", sb.Mkdir(ctx, path.Dir(harness.Raw(t, sb).Config.Entrypoint[0])+"/d", 0o755), syscall.EROFS},
		{"Remove", sb.Remove(ctx, "d"), syscall.ENOTEMPTY},
		{"Symlink", sb.Symlink(ctx, "x", "file"), fs.ErrExist},
		{"Readlink", harness.Second(sb.Readlink(ctx, "file")), fs.ErrInvalid},
		{"Chown", sb.Chown(ctx, "file", 0, 0), fs.ErrPermission},
		{"Rename", sb.Rename(ctx, "none", "there"), fs.ErrNotExist},
		{"OpenFile exclusive", harness.Second(sb.OpenFile(ctx, "file", os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)), fs.ErrExist},
		{"OpenFile O_NOFOLLOW", harness.Second(sb.OpenFile(ctx, "file", os.O_RDONLY|syscall.O_NOFOLLOW, 0)), sandbox.ErrInvalidArgument},
		{"OpenFile O_DIRECTORY", harness.Second(sb.OpenFile(ctx, "d", os.O_RDONLY|syscall.O_DIRECTORY, 0)), sandbox.ErrInvalidArgument},
		{"OpenFile O_WRONLY|O_RDWR", harness.Second(sb.OpenFile(ctx, "file", os.O_WRONLY|os.O_RDWR, 0)), sandbox.ErrInvalidArgument},
		{"OpenFile O_CLOEXEC", harness.Second(sb.OpenFile(ctx, "none", os.O_RDONLY|syscall.O_CLOEXEC|syscall.O_NONBLOCK, 0)), fs.ErrNotExist},
		{"Stat", harness.Second(sb.Stat(ctx, "none")), fs.ErrNotExist},
	} {
		if tt.want == fs.ErrInvalid {
			tt.want = syscall.EINVAL
		}
		if !errors.Is(tt.err, tt.want) {
			t.Errorf("%s: %v; want %v", tt.call, tt.err, tt.want)
		}
		var own *sandbox.Error
		if !errors.As(tt.err, &own) || own.Name != sb.Name() {
			t.Errorf("%s: %v is no *Error of the sandbox", tt.call, tt.err)
		}
		if errors.Is(tt.err, sandbox.ErrNotFound) {
			t.Errorf("%s: %v says the sandbox is not found", tt.call, tt.err)
		}
		var path *fs.PathError
		var link *os.LinkError
		if !errors.As(tt.err, &path) && !errors.As(tt.err, &link) {
			t.Errorf("%s: %v has no path", tt.call, tt.err)
		}
	}
}

func TestFilesBelongToTheUser(t *testing.T) {
	t.Parallel()
	sb := ofNode(t)
	ctx := t.Context()
	if err := sb.WriteFile(ctx, "mine", []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	info, err := sb.Stat(ctx, "mine")
	if err != nil {
		t.Fatal(err)
	}
	if sys := info.Sys().(*sandbox.FileStat); sys.UID != 1000 || info.Mode() != 0o600 {
		t.Errorf("owner %d, mode %v; want 1000 and 0600", sys.UID, info.Mode())
	}
	if err := sb.FilesAs("root").WriteFile(ctx, "theirs", []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := sb.ReadFile(ctx, "theirs"); !errors.Is(err, fs.ErrPermission) {
		t.Errorf("ReadFile of root's file: %v, want fs.ErrPermission", err)
	}
	if _, err := sb.FilesAs("nobody-knows").ReadFile(ctx, "mine"); !errors.Is(err, sandbox.ErrInvalidArgument) {
		t.Errorf("as an unknown user: %v, want ErrInvalidArgument", err)
	}
}

func TestCallsOfPackageOSWork(t *testing.T) {
	t.Parallel()
	sb := harness.Shared(t)
	ctx := t.Context()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(sb.MkdirAll(ctx, "a/b/c", 0o750))
	must(sb.MkdirAll(ctx, "a/b/c", 0o750))
	must(sb.WriteFile(ctx, "a/f", []byte("0123456789"), 0o644))
	must(sb.Rename(ctx, "a/f", "a/b/g"))
	must(sb.Symlink(ctx, "../b/g", "a/b/link"))
	target, err := sb.Readlink(ctx, "a/b/link")
	must(err)
	must(sb.Chmod(ctx, "a/b/g", 0o600|fs.ModeSetgid))
	must(sb.Chown(ctx, "a/b/g", 7, -1))
	must(sb.Lchown(ctx, "a/b/link", 8, 9))
	when := time.Date(2001, 2, 3, 4, 5, 6, 123456789, time.UTC)
	must(sb.Chtimes(ctx, "a/b/g", time.Time{}, when))
	must(sb.Truncate(ctx, "a/b/g", 4))
	must(sb.Chtimes(ctx, "a/b/g", time.Time{}, when))
	info, err := sb.Stat(ctx, "a/b/link")
	must(err)
	if target != "../b/g" || info.Mode() != 0o600|fs.ModeSetgid || info.Size() != 4 || !info.ModTime().Equal(when) || info.Name() != "link" {
		t.Errorf("link to %q, %v", target, info)
	}
	changed := harness.Run(t, sb, "stat", "-c", "%.9Z", "a/b/g")
	if at := info.Sys().(*sandbox.FileStat).Ctime; fmt.Sprintf("%d.%09d", at.Unix(), at.Nanosecond()) != changed {
		t.Errorf("the ctime is %v, want %s", at, changed)
	}
	link, err := sb.Lstat(ctx, "a/b/link")
	must(err)
	if sys := link.Sys().(*sandbox.FileStat); link.Mode().Type() != fs.ModeSymlink || sys.UID != 8 || sys.GID != 9 {
		t.Errorf("Lstat: %v, %+v", link, sys)
	}
	temp, err := sb.MkdirTemp(ctx, "", "x-*-y")
	must(err)
	if !strings.HasPrefix(temp, "/tmp/x-") || !strings.HasSuffix(temp, "-y") {
		t.Errorf("MkdirTemp = %q", temp)
	}
	must(sb.Remove(ctx, temp))
	list, err := sb.ReadDir(ctx, "a/b")
	must(err)
	if got := fmt.Sprint(list); len(list) != 3 || list[0].Name() != "c" || list[1].Name() != "g" || list[2].Name() != "link" {
		t.Errorf("ReadDir = %v", got)
	}
	must(sb.RemoveAll(ctx, "a"))
	must(sb.RemoveAll(ctx, "a"))
	if _, err := sb.Lstat(ctx, "a"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("after RemoveAll: %v", err)
	}
}

func TestOpenFilesReadWriteAndSeek(t *testing.T) {
	t.Parallel()
	sb := harness.Shared(t)
	ctx := t.Context()
	f, err := sb.Create(ctx, "f")
	if err != nil {
		t.Fatal(err)
	}
	want := make([]byte, 5<<20+17)
	rand.Read(want)
	if n, err := io.Copy(f, bytes.NewReader(want)); n != int64(len(want)) || err != nil {
		t.Fatalf("Copy in: %d, %v", n, err)
	}
	if _, err := f.WriteAt([]byte("here"), 3<<20); err != nil {
		t.Fatal(err)
	}
	copy(want[3<<20:], "here")
	if at, err := f.Seek(1, io.SeekStart); at != 1 || err != nil {
		t.Fatal(at, err)
	}
	var got bytes.Buffer
	if n, err := io.Copy(&got, f); n != int64(len(want)-1) || err != nil || !bytes.Equal(got.Bytes(), want[1:]) {
		t.Errorf("Copy out: %d, %v, the same %v", n, err, bytes.Equal(got.Bytes(), want[1:]))
	}
	if n, err := f.Read(make([]byte, 1)); n != 0 || err != io.EOF {
		t.Errorf("Read at the end: %d, %v; want EOF", n, err)
	}
	if err := f.Truncate(10); err != nil {
		t.Error(err)
	}
	if info, err := f.Stat(); err != nil || info.Size() != 10 || info.Name() != "f" || f.Name() != "f" {
		t.Errorf("Stat: %v, %v", info, err)
	}
	if err := f.Close(); err != nil {
		t.Error(err)
	}
	if _, err := f.Write(nil); !errors.Is(err, fs.ErrClosed) {
		t.Errorf("Write after Close: %v, want fs.ErrClosed", err)
	}
	log, err := sb.OpenFile(ctx, "f", os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	log.WriteString("one")
	log.WriteString("two")
	if got := harness.Run(t, sb, "tail", "-c", "6", "f"); got != "onetwo" {
		t.Errorf("after two writes that append: %q", got)
	}
}

// A reader that breaks off, such as a truncated gzip file or the body of a request whose client went away, ends with
// [io.ErrUnexpectedEOF]. That is an error, as in package os, and not the end of the content.
func TestContentThatBreaksOffIsAnError(t *testing.T) {
	t.Parallel()
	sb := harness.Shared(t)
	ctx, dir := t.Context(), t.TempDir()
	for _, size := range []int{0, 10, 2 << 20} {
		broken := func() io.Reader {
			return io.MultiReader(bytes.NewReader(make([]byte, size)), iotest.ErrReader(io.ErrUnexpectedEOF))
		}
		ref, err := os.Create(filepath.Join(dir, "ref"))
		if err != nil {
			t.Fatal(err)
		}
		defer ref.Close()
		f, err := sb.Create(ctx, "breaks")
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		wantN, want := io.Copy(ref, broken())
		if n, err := io.Copy(f, broken()); n != wantN || err != want {
			t.Errorf("io.Copy of %d bytes and an error: %d, %v; with package os %d, %v", size, n, err, wantN, want)
		}
		harness.Write(t, sb, "breaks", "old")
		for _, name := range []string{"breaks", "breaks-new"} {
			if _, err := sb.WriteFrom(ctx, name, broken(), 0o644); !errors.Is(err, io.ErrUnexpectedEOF) {
				t.Errorf("WriteFrom(%q) of %d bytes and an error: %v, want the reader's", name, size, err)
			}
		}
		if got := harness.Run(t, sb, "sh", "-c", "cat breaks; find . -name 'breaks-*'"); got != "old" {
			t.Errorf("after WriteFrom of %d bytes and an error the files have %.20q, want the old content alone", size, got)
		}
		fsys := breaking{fstest.MapFS{"f": {Data: make([]byte, size+1)}}, size}
		want = os.CopyFS(filepath.Join(dir, fmt.Sprint("fs", size)), fsys)
		if report, err := sb.CopyInFS(ctx, fsys, "breaks-fs", sandbox.CopyOptions{}); !errors.Is(want, io.ErrUnexpectedEOF) || !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("CopyInFS of a file that breaks off after %d bytes: %+v, %v; with package os %v", size, report, err, want)
		}
		if _, err := sb.Lstat(ctx, "breaks-fs"); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("Lstat of what the copy left: %v, want fs.ErrNotExist", err)
		}
	}
}

// breaking is a file system whose files break off after so many bytes, as an archive's that is damaged.
type breaking struct {
	fs.FS
	after int
}

func (b breaking) Open(name string) (fs.File, error) {
	f, err := b.FS.Open(name)
	if err != nil || name == "." {
		return f, err
	}
	return &breakingFile{f, io.MultiReader(io.LimitReader(f, int64(b.after)), iotest.ErrReader(io.ErrUnexpectedEOF))}, nil
}

type breakingFile struct {
	fs.File
	r io.Reader
}

func (b *breakingFile) Read(p []byte) (int, error) { return b.r.Read(p) }

// A file of a stopped sandbox is read through the engine. If its reply breaks off, whoever reads the file gets an error, and never a
// part of it.
func TestStoppedFileThatBreaksOffIsAnError(t *testing.T) {
	t.Parallel()
	var cut atomic.Bool
	c := harness.NewClient(t, sandbox.WithHost(harness.InFront(t, func(http.ResponseWriter, *http.Request) bool { return false }, func(r *http.Response) error {
		if cut.Load() && r.Request.Method == http.MethodGet && strings.HasSuffix(r.Request.URL.Path, "/archive") {
			r.Body = struct {
				io.Reader
				io.Closer
			}{io.LimitReader(r.Body, 512+100<<10), r.Body}
		}
		return nil
	})))
	sb := harness.CreateWith(t, c, nil)
	if err := sb.WriteFile(t.Context(), "f", make([]byte, 300<<10), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := sb.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	to := filepath.Join(t.TempDir(), "f")
	for what, read := range map[string]func() (int, error){
		"ReadFile": func() (int, error) {
			b, err := sb.ReadFile(t.Context(), "f")
			return len(b), err
		},
		"Open and io.Copy": func() (int, error) {
			f, err := sb.Open(t.Context(), "f")
			if err != nil {
				return 0, err
			}
			defer f.Close()
			n, err := io.Copy(io.Discard, f)
			return int(n), err
		},
		"fs.ReadFile": func() (int, error) {
			b, err := fs.ReadFile(sb.FS(), "workspace/f")
			return len(b), err
		},
		"CopyOut": func() (int, error) {
			report, err := sb.CopyOut(t.Context(), "f", to, sandbox.CopyOptions{})
			return int(report.Bytes), err
		},
	} {
		cut.Store(true)
		if n, err := read(); !errors.Is(err, io.ErrUnexpectedEOF) || !strings.Contains(err.Error(), "repeat") {
			t.Errorf("%s of a file that breaks off: %d bytes, %v; want an error that says so", what, n, err)
		}
		cut.Store(false)
		if n, err := read(); n != 300<<10 || err != nil {
			t.Errorf("%s: %d bytes, %v", what, n, err)
		}
	}
}

// A pipe that nobody writes to must not hold its reader for good, nor the others.
func TestCloseEndsAReadThatWaits(t *testing.T) {
	t.Parallel()
	sb := harness.Shared(t)
	harness.Run(t, sb, "sh", "-c", "rm -f pipe; mkfifo pipe")
	f, err := sb.OpenFile(t.Context(), "pipe", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	result := make(chan error, 1)
	go func() { result <- harness.Second(f.Read(make([]byte, 10))) }()
	if err := sb.WriteFile(t.Context(), "other", nil, 0o600); err != nil {
		t.Error(err)
	}
	if err := f.Close(); err != nil {
		t.Error(err)
	}
	select {
	case err := <-result:
		if !errors.Is(err, os.ErrClosed) {
			t.Errorf("Read of an empty pipe, closed meanwhile: %v, want ErrClosed", err)
		}
	case <-time.After(harness.CallBound):
		t.Error("Read still waits after Close")
	}
}

func TestACancelledCallReturnsItsCause(t *testing.T) {
	t.Parallel()
	sb := harness.Shared(t)
	harness.Run(t, sb, "true")
	why := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(why)
	if _, err := sb.ReadFile(ctx, "f"); !errors.Is(err, context.Canceled) || !errors.Is(err, why) {
		t.Errorf("ReadFile on a context that ended: %v", err)
	}
	ctx, cancel = context.WithCancelCause(t.Context())
	time.AfterFunc(50*time.Millisecond, func() { cancel(why) })
	if _, err := sb.ReadFile(ctx, "/dev/zero"); !errors.Is(err, why) { // a file without an end
		t.Errorf("ReadFile(/dev/zero), cancelled: %v", err)
	}
	if _, err := sb.Stat(t.Context(), "/"); err != nil {
		t.Errorf("the next call: %v", err)
	}
}

// The program inside that carries out the calls opens what it is asked for, which can be its own streams.
func TestStreamsOfTheFileServerCannotBeOpened(t *testing.T) {
	t.Parallel()
	sb := harness.NewSandbox(t)
	ctx, cancel := context.WithTimeout(t.Context(), harness.CallBound)
	defer cancel()
	harness.Run(t, sb, "ln", "-s", "/proc/self/fd/1", "link")
	for _, name := range []string{"link", "/dev/stdin", "/dev/stdout", "/dev/stderr", "/proc/self/fd/0", "/proc/self/fd/1", "/proc/self/fd/2"} {
		_, err := sb.ReadFile(ctx, name)
		if !errors.Is(err, syscall.ENXIO) {
			t.Errorf("ReadFile(%s): %v, want ENXIO", name, err)
		}
		for _, flags := range []int{os.O_RDONLY, os.O_WRONLY, os.O_RDWR} {
			if _, err := sb.OpenFile(ctx, name, flags, 0); !errors.Is(err, syscall.ENXIO) {
				t.Errorf("OpenFile(%s, %d): %v, want ENXIO", name, flags, err)
			}
		}
		if err := sb.WriteFile(ctx, name, []byte("x"), 0o644); err == nil {
			t.Errorf("WriteFile(%s): no error", name)
		}
		if _, err := sb.Stat(ctx, "/"); err != nil {
			t.Fatalf("the next call: %v", err)
		}
	}
}

func TestFileServerThatWasKilledIsStartedAgain(t *testing.T) {
	t.Parallel()
	sb := harness.NewSandbox(t)
	ctx := t.Context()
	f, err := sb.Create(ctx, "f")
	if err != nil {
		t.Fatal(err)
	}
	harness.Run(t, sb, "sh", "-c", `for p in /proc/[0-9]*; do if tr '\0' ' ' < $p/cmdline | grep -q 'guest[ ]files'; then kill -9 ${p#/proc/}; fi; done`)
	if _, err := f.Write([]byte("x")); err == nil {
		t.Error("Write to a file of a killed server: no error")
	}
	f.Close()
	harness.Eventually(t, "the next call works", func() bool { return sb.WriteFile(ctx, "f", []byte("y"), 0o644) == nil })
}

func TestFilesAfterCloseAreErrClosed(t *testing.T) {
	t.Parallel()
	sb := harness.NewSandbox(t)
	f, err := sb.Open(t.Context(), "/etc/passwd")
	if err != nil {
		t.Fatal(err)
	}
	if err := sb.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := f.Read(make([]byte, 1)); !errors.Is(err, sandbox.ErrClosed) {
		t.Errorf("Read of a file of a closed handle: %v, want ErrClosed", err)
	}
	for call, err := range map[string]error{
		"ReadFile":  harness.Second(sb.ReadFile(t.Context(), "f")),
		"WriteFile": sb.WriteFile(t.Context(), "f", nil, 0),
		"Rename":    sb.Rename(t.Context(), "f", "g"),
		"Open":      harness.Second(sb.Open(t.Context(), "f")),
		"FS.Open":   harness.Second(sb.FS().Open("f")),
	} {
		if !errors.Is(err, sandbox.ErrClosed) {
			t.Errorf("%s: %v, want ErrClosed", call, err)
		}
	}
}

func TestWritingResumesAStoppedSandbox(t *testing.T) {
	t.Parallel()
	sb := harness.NewSandbox(t, sandbox.WithPersistent(true))
	ctx := t.Context()
	if err := sb.WriteFile(ctx, "f", []byte("1"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := sb.Stop(ctx); err != nil {
		t.Fatal(err)
	}
	if err := sb.WriteFile(ctx, "f", []byte("2"), 0o644); err != nil {
		t.Fatal(err)
	}
	if got := harness.Run(t, sb, "cat", "f"); got != "2" {
		t.Errorf("f holds %q", got)
	}
}

func TestListOfAnEmptyDirectoryIsNotNil(t *testing.T) {
	t.Parallel()
	sb := harness.NewSandbox(t, sandbox.WithPersistent(true))
	if err := sb.Mkdir(t.Context(), "empty", 0o755); err != nil {
		t.Fatal(err)
	}
	check := func(state string) {
		t.Helper()
		f, err := sb.Open(t.Context(), "empty")
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		ofFile, fileErr := f.ReadDir(-1)
		ofSandbox, sandboxErr := sb.ReadDir(t.Context(), "empty")
		ofFS, fsErr := fs.ReadDir(sb.FS(), "workspace/empty")
		if err := errors.Join(fileErr, sandboxErr, fsErr); err != nil {
			t.Fatal(err)
		}
		for call, list := range map[string][]fs.DirEntry{"File.ReadDir": ofFile, "Sandbox.ReadDir": ofSandbox, "FS.ReadDir": ofFS} {
			if list == nil || len(list) != 0 {
				t.Errorf("%s of an empty directory of a %s sandbox: %#v, want an empty list that is not nil", call, state, list)
			}
		}
	}
	check("running")
	if _, err := sb.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	check("stopped")
}
