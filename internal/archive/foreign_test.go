package archive_test

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"io"
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/seed-1a2d6d8f/sandbox/internal/archive"
)

// A foreign tree is what a reader of entries has been given.
type foreignTree struct {
	t     testing.TB
	kinds map[string]byte
	bytes int64
}

// take checks what FromForeign promises of each entry.
func (f *foreignTree) take(e archive.ForeignEntry, content io.Reader) error {
	if e.Name == "" || e.Name == "." || path.IsAbs(e.Name) || path.Clean(e.Name) != e.Name || slices.Contains(strings.Split(e.Name, "/"), "..") {
		f.t.Fatalf("entry %q is named %q", e.Header.Name, e.Name)
	}
	if dir := path.Dir(e.Name); dir != "." && f.kinds[dir] != tar.TypeDir {
		f.t.Fatalf("%q comes before its directory", e.Name)
	}
	had, there := f.kinds[e.Name]
	switch {
	case there && (had == tar.TypeDir) != (e.Typeflag == tar.TypeDir):
		f.t.Fatalf("%q becomes another kind of thing", e.Name)
	case there != e.Replaces && e.Typeflag != tar.TypeDir:
		f.t.Fatalf("%q replaces: %v, want %v", e.Name, e.Replaces, there)
	}
	if e.Typeflag == tar.TypeLink {
		if kind, ok := f.kinds[e.Link]; !ok || kind == tar.TypeDir {
			f.t.Fatalf("%q is a link to %q, which is not there", e.Name, e.Link)
		}
	}
	f.kinds[e.Name] = e.Typeflag
	if content == nil {
		return nil
	}
	n, err := io.Copy(io.Discard, content)
	f.bytes += n
	return err
}

func foreign(t testing.TB, b []byte, strip int, limits archive.Limits) (*foreignTree, archive.Report, error) {
	f := &foreignTree{t: t, kinds: map[string]byte{}}
	report, err := archive.FromForeign(context.Background(), bytes.NewReader(b), "", strip, limits, f.take)
	return f, report, err
}

// Whatever the bytes are, what comes of them is a tree, within its limits.
func FuzzForeign(f *testing.F) {
	add := func(headers ...tar.Header) {
		var b bytes.Buffer
		w := tar.NewWriter(&b)
		for _, h := range headers {
			if w.WriteHeader(&h) == nil {
				w.Write(make([]byte, h.Size))
			}
		}
		w.Close()
		f.Add(b.Bytes(), 0)
		f.Add(b.Bytes(), 1)
	}
	add(tar.Header{Name: "a", Size: 5}, tar.Header{Name: "a", Size: 1}, tar.Header{Typeflag: tar.TypeLink, Name: "b", Linkname: "a"})
	add(tar.Header{Typeflag: tar.TypeSymlink, Name: "l", Linkname: ".."}, tar.Header{Name: "l/a"})
	add(tar.Header{Name: "/d/e/f"}, tar.Header{Typeflag: tar.TypeDir, Name: "d/"}, tar.Header{Name: "../x"}, tar.Header{Name: "d"})
	add(tar.Header{Typeflag: tar.TypeXGlobalHeader, PAXRecords: map[string]string{"k": "v"}}, tar.Header{Name: strings.Repeat("n/", 200)})
	limits := archive.Limits{Bytes: 10_000, Entries: 20}
	f.Fuzz(func(t *testing.T, b []byte, strip int) {
		tree, report, err := foreign(t, b, strip&3, limits)
		if tree.bytes > limits.Bytes || int64(len(tree.kinds)) > limits.Entries {
			t.Fatalf("%d bytes, %d entries are beyond the limits", tree.bytes, len(tree.kinds))
		}
		if err == nil && report.Files+report.Dirs < int64(len(tree.kinds)) {
			t.Fatalf("%+v reported of %d", report, len(tree.kinds))
		}
	})
}

// What is remembered of an archive is bounded by its entries, not by their names.
func TestForeignNamesAreBounded(t *testing.T) {
	t.Parallel()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	long := strings.Repeat(strings.Repeat("n", 200)+"/", 18)
	for i := range 1000 {
		if err := w.WriteHeader(&tar.Header{Name: long + strings.Repeat("x", 1+i%200), Format: tar.FormatPAX}); err != nil {
			t.Fatal(err)
		}
	}
	w.Close()
	_, _, err := foreign(t, b.Bytes(), 0, archive.Limits{Bytes: 1, Entries: 2000})
	if err != nil {
		t.Errorf("names that are allowed: %v", err)
	}
	b.Reset()
	w = tar.NewWriter(&b)
	for i := range 1000 {
		if err := w.WriteHeader(&tar.Header{Name: long + string(rune('a'+i%26)) + strings.Repeat("x", 1+i/26), Format: tar.FormatPAX}); err != nil {
			t.Fatal(err)
		}
	}
	w.Close()
	_, _, err = foreign(t, b.Bytes(), 0, archive.Limits{Bytes: 1, Entries: 2000})
	var entry *archive.EntryError
	if !errors.As(err, &entry) || !strings.Contains(err.Error(), "names") {
		t.Errorf("names that are too long together: %v", err)
	}
	if _, _, err := foreign(t, b.Bytes(), 0, archive.Limits{Bytes: 1 << 62, Entries: 1 << 62}); err != nil {
		t.Errorf("limits without end: %v", err)
	}
}

func TestSniff(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"\ufeff  <!doctype HTML>": "an HTML page", "<html>": "an HTML page", "<?xml version": "an XML document", `{"message":`: "a JSON document",
		"PK\x03\x04": "a zip archive", "BZh9": "compressed with bzip2", "\xfd7zXZ\x00": "compressed with xz", "hello": "", "": "",
	} {
		if got := archive.Sniff([]byte(in)); got != want {
			t.Errorf("Sniff(%q) is %q, want %q", in, got, want)
		}
	}
}
