package trees_test

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/seed-1a2d6d8f/sandbox/internal/archive"
	"github.com/seed-1a2d6d8f/sandbox/internal/guest/trees"
)

// hooked is a writer that calls before with the number of each write and what is written.
type hooked struct {
	w      io.Writer
	n      int
	before func(n int, p []byte)
}

func (h *hooked) Write(p []byte) (int, error) {
	h.n++
	h.before(h.n, p)
	return h.w.Write(p)
}

// fill writes files of a size, at paths below a new directory.
func fill(t *testing.T, size int, paths ...string) (dir string) {
	t.Helper()
	dir = t.TempDir()
	for _, p := range paths {
		p = filepath.Join(dir, p)
		if err := errors.Join(os.MkdirAll(filepath.Dir(p), 0o755), os.WriteFile(p, bytes.Repeat([]byte("x"), size), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// A file that grows while it is sent is cut where it ended; one that shrinks, and a file or a
// directory that vanishes, is named, also if nothing is left of the source.
func TestSourceThatChangesWhileItIsSent(t *testing.T) {
	t.Parallel()
	const large = 5 << 20 // not read before its header is sent
	in := func(change func(path string) error, name string) func(string) error {
		return func(dir string) error { return change(filepath.Join(dir, name)) }
	}
	for what, tt := range map[string]struct {
		path   string // the file in the source
		size   int
		header string // before which it changes
		change func(dir string) error
		failed string // the path that is named, below the source; none for success
	}{
		"grows": {"d/f", large, "0/d/f", in(func(path string) error {
			f, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
			if err == nil {
				_, err = f.Write(make([]byte, 1<<20))
				err = errors.Join(err, f.Close())
			}
			return err
		}, "d/f"), ""},
		"shrinks":            {"d/f", large, "0/d/f", in(func(path string) error { return os.Truncate(path, large/2) }, "d/f"), "d/f"},
		"shrinks to nothing": {"d/f", large, "0/d/f", in(func(path string) error { return os.Truncate(path, 0) }, "d/f"), "d/f"},
		"vanishes":           {"d/f", 1, "0/d/", in(os.Remove, "d/f"), "d/f"},
		"becomes a directory": {"d/f", large, "0/d/f", in(func(path string) error {
			return errors.Join(os.Truncate(path, 1), os.Remove(path), os.Mkdir(path, 0o755))
		}, "d/f"), "d/f"},
		"with its directory":           {"d/e/f", 1, "0/", in(os.RemoveAll, "d"), "d"},
		"with the directory around it": {"d/e/f", 1, "0/d/", in(os.RemoveAll, "d/e"), "d/e"},
		"with the whole source":        {"d/e/f", 1, "0/d/e/", os.RemoveAll, "d/e/f"},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			dir := fill(t, tt.size, tt.path)
			var b bytes.Buffer
			changed := false
			w := trees.New(t.Context(), &hooked{w: &b, before: func(_ int, p []byte) {
				if !changed && bytes.HasPrefix(p, append([]byte(tt.header), 0)) {
					changed = true
					if err := tt.change(dir); err != nil {
						t.Error(err)
					}
				}
			}})
			err := w.Send(0, dir)
			if !changed {
				t.Fatal("the source was not changed")
			}
			if tt.failed == "" {
				if err := errors.Join(err, w.Close()); err != nil {
					t.Fatalf("Send: %v", err)
				}
				r := tar.NewReader(&b)
				for {
					h, err := r.Next()
					if err != nil {
						t.Fatalf("there is no file in the stream: %v", err)
					}
					if h.Typeflag != tar.TypeReg {
						continue
					}
					if got, err := io.ReadAll(r); err != nil || len(got) != tt.size || bytes.Contains(got, []byte{0}) {
						t.Errorf("%d bytes arrived, %v; want the %d that there were", len(got), err, tt.size)
					}
					return
				}
			}
			var path *fs.PathError
			if !errors.Is(err, archive.ErrChanged) || !errors.As(err, &path) || path.Path != filepath.Join(dir, tt.failed) {
				t.Errorf("Send = %v, want ErrChanged about %s", err, filepath.Join(dir, tt.failed))
			}
		})
	}
}

// Memory does not grow with the number of files, and a copy can be cancelled between any two.
func TestHugeTreesAreStreamed(t *testing.T) {
	const dirs, perDir = 300, 100
	dir := t.TempDir()
	for d := range dirs {
		sub := filepath.Join(dir, fmt.Sprintf("a-directory-with-quite-a-long-name-%d", d))
		if err := os.Mkdir(sub, 0o755); err != nil {
			t.Fatal(err)
		}
		for f := range perDir {
			if err := os.WriteFile(filepath.Join(sub, fmt.Sprintf("a-file-with-quite-a-long-name-%d", f)), nil, 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	heap := func() int64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	var first, most int64
	h := &hooked{w: io.Discard, before: func(n int, _ []byte) {
		if n == 1000 {
			first = heap()
		} else if n%6000 == 0 {
			most = max(most, heap())
		}
	}}
	if err := trees.New(t.Context(), h).Send(0, dir); err != nil {
		t.Fatal(err)
	}
	// The names alone would take 2 MB.
	if h.n < dirs*perDir || most-first > 500_000 {
		t.Errorf("after %d writes the heap has grown from %d to %d bytes", h.n, first, most)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	h = &hooked{w: io.Discard, before: func(n int, _ []byte) {
		if n == 5000 {
			cancel()
		}
	}}
	// The file's own writes may follow, and the attributes of the directories above it.
	if err := trees.New(ctx, h).Send(0, dir); !errors.Is(err, context.Canceled) || h.n > 5005 {
		t.Errorf("Send = %v after %d writes, want context.Canceled after 5000", err, h.n)
	}
}
