package files_test

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

// limited returns a sandbox of a client with limits.
func limited(t *testing.T, l sandbox.Limits) *sandbox.Sandbox {
	t.Helper()
	c := harness.NewClient(t, sandbox.WithLimits(l))
	sb, err := c.Create(t.Context(), sandbox.WithName(harness.UniqueName(t)))
	if err != nil {
		t.Fatal(err)
	}
	harness.Remove(t, c, sb.Name())
	t.Cleanup(func() { sb.Detach() })
	return sb
}

// tooLarge fails the test unless err is ErrTooLarge and says each of words.
func tooLarge(t *testing.T, call string, err error, words ...string) {
	t.Helper()
	if !errors.Is(err, sandbox.ErrTooLarge) {
		t.Errorf("%s: %v, want ErrTooLarge", call, err)
		return
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("%s: %v, want it to say %q", call, err, w)
		}
	}
}

func TestReadingEndsAtTheLimits(t *testing.T) {
	t.Parallel()
	sb := limited(t, sandbox.Limits{ReadFile: 1 << 20, ReadDir: 50})
	harness.Run(t, sb, "sh", "-ec", `head -c 1048576 /dev/urandom > whole; cp whole larger; printf x >> larger; truncate -s 1T huge
		ln -s /dev/zero zero; mkdir full many; for i in $(seq 50); do : > full/$i; done; cp -r full/. many; : > many/51`)
	read := func(name string) error { return harness.Second(sb.ReadFile(t.Context(), name)) }
	list := func(name string) error { return harness.Second(sb.ReadDir(t.Context(), name)) }
	both := func(state string) {
		if b, err := sb.ReadFile(t.Context(), "whole"); err != nil || len(b) != 1<<20 {
			t.Errorf("%s: ReadFile of as much as the limit: %d bytes, %v", state, len(b), err)
		}
		tooLarge(t, state+": ReadFile of a byte more", read("larger"), "Limits.ReadFile", "1048577", "1048576")
		tooLarge(t, state+": ReadFile of 1 TiB", read("huge"), "Limits.ReadFile", "1099511627776")
		if got, err := sb.ReadDir(t.Context(), "full"); err != nil || len(got) != 50 {
			t.Errorf("%s: ReadDir of as many as the limit: %d, %v", state, len(got), err)
		}
		tooLarge(t, state+": ReadDir of one more", list("many"), "Limits.ReadDir", "50")
	}
	both("running")
	tooLarge(t, "ReadFile of a link to /dev/zero", read("zero"), "Limits.ReadFile")
	tooLarge(t, "ReadFile of FS", func() error { _, err := sb.FS().Open("workspace/larger"); return errors.Join(err, read("larger")) }())

	many, err := sb.Open(t.Context(), "many")
	if err != nil {
		t.Fatal(err)
	}
	_, err = many.ReadDir(-1)
	tooLarge(t, "File.ReadDir(-1)", err, "Limits.ReadDir")
	if err := many.Close(); err != nil {
		t.Error(err)
	}
	if many, err = sb.Open(t.Context(), "many"); err != nil {
		t.Fatal(err)
	}
	if got, err := many.ReadDir(1000); err != nil || len(got) != 51 {
		t.Errorf("File.ReadDir(1000): %d, %v, want all", len(got), err)
	}
	if err := many.Close(); err != nil {
		t.Error(err)
	}
	f, err := sb.Open(t.Context(), "zero")
	if err != nil {
		t.Fatal(err)
	}
	if n, err := f.Read(make([]byte, 2<<20)); err != nil || n == 0 {
		t.Errorf("Read of an open device: %d, %v", n, err)
	}
	if err := f.Close(); err != nil {
		t.Error(err)
	}

	if _, err := sb.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	both("stopped")
}

func TestCopiesEndAtTheirLimits(t *testing.T) {
	t.Parallel()
	sb := limited(t, sandbox.Limits{})
	harness.Run(t, sb, "sh", "-ec", `mkdir -p t/d; head -c 100000 /dev/zero > t/a; cp t/a t/d/b; ln t/a t/c; mkdir holes; truncate -s 1T holes/f`)
	copies := func(state string) {
		for _, tt := range []struct {
			what, from string
			opts       sandbox.CopyOptions
			says       string
		}{
			{"a tree within its limits", "t", sandbox.CopyOptions{MaxBytes: 200_000, MaxEntries: 5}, ""},
			{"one byte more", "t", sandbox.CopyOptions{MaxBytes: 199_999}, "MaxBytes"},
			{"one entry more", "t", sandbox.CopyOptions{MaxEntries: 4}, "MaxEntries"},
			{"one file", "t/a", sandbox.CopyOptions{MaxBytes: 99_999}, "MaxBytes"},
			{"holes, by default", "holes", sandbox.CopyOptions{}, "MaxBytes"},
		} {
			to := filepath.Join(t.TempDir(), "to")
			report, err := sb.CopyOut(t.Context(), tt.from, to, tt.opts)
			if tt.says == "" {
				if err != nil || report.Files != 3 || report.Bytes != 200_000 {
					t.Errorf("%s: CopyOut of %s: %+v, %v", state, tt.what, report, err)
				}
				continue
			}
			tooLarge(t, state+": CopyOut of "+tt.what, err, tt.says)
			if list, _ := os.ReadDir(filepath.Dir(to)); len(list) != 0 {
				t.Errorf("%s: CopyOut of %s left %v", state, tt.what, list)
			}
		}
	}
	copies("running")
	src := harness.HostDir(t, map[string]string{"a": "12345", "b": "12345"})
	_, err := sb.CopyIn(t.Context(), src, "in", sandbox.CopyOptions{MaxBytes: 9})
	tooLarge(t, "CopyIn", err, "MaxBytes")
	_, err = sb.CopyInFS(t.Context(), os.DirFS(src), "in", sandbox.CopyOptions{MaxEntries: 2})
	tooLarge(t, "CopyInFS", err, "MaxEntries")
	if _, err := sb.Lstat(t.Context(), "in"); err == nil {
		t.Error("a copy beyond its limits is there")
	}
	_, err = sb.CopyOut(t.Context(), "t", filepath.Join(t.TempDir(), "to"), sandbox.CopyOptions{MaxBytes: -1})
	if !errors.Is(err, sandbox.ErrInvalidArgument) {
		t.Errorf("CopyOut with a negative limit: %v, want ErrInvalidArgument", err)
	}
	if _, err := sb.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	copies("stopped")
}

// A program inside names files so that whoever prints a report obeys it.
func TestReportsOfACopyArePrintable(t *testing.T) {
	t.Parallel()
	sb := harness.NewSandbox(t)
	harness.Run(t, sb, "sh", "-ec", `mkdir t; mkfifo "$(printf 't/\033]0;owned\007\nnext')" t/plain`)
	var names []string
	report, err := sb.CopyOut(t.Context(), "t", filepath.Join(t.TempDir(), "t"), sandbox.CopyOptions{Progress: func(s sandbox.CopyStatus) { names = append(names, s.Name) }})
	if err != nil || len(report.Skipped) != 2 {
		t.Fatalf("CopyOut: %+v, %v", report, err)
	}
	for _, s := range report.Skipped {
		if s.Path != "plain" && s.Path != `"\x1b]0;owned\a\nnext"` {
			t.Errorf("skipped %q", s.Path)
		}
	}
	if strings.ContainsAny(strings.Join(names, ""), "\x1b\n") {
		t.Errorf("progress: %q", names)
	}
	harness.Run(t, sb, "sh", "-ec", `printf x > "$(printf 't/\033[2J')"`)
	dest := t.TempDir()
	if err := os.Mkdir(filepath.Join(dest, "\x1b[2J"), 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err = sb.CopyOut(t.Context(), "t", dest, sandbox.CopyOptions{}); err == nil || strings.Contains(err.Error(), "\x1b") {
		t.Errorf("CopyOut over a directory: %q, want an error that is printable", err)
	}
	harness.Run(t, sb, "sh", "-ec", `ln -s "$(printf '/none\033[2J')" link`)
	if _, err := sb.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	_, readErr := sb.ReadFile(t.Context(), "link")
	_, copyErr := sb.CopyOut(t.Context(), "link", filepath.Join(t.TempDir(), "to"), sandbox.CopyOptions{})
	for _, err := range []error{readErr, copyErr} {
		if !errors.Is(err, fs.ErrNotExist) || strings.Contains(err.Error(), "\x1b") {
			t.Errorf("of a stopped sandbox's dangling link: %q, want ErrNotExist that is printable", err)
		}
	}
}
