package archive

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"testing/fstest"
)

// project is a destination with files of its own: one with a second name outside of it, and a
// secret.
func project(t *testing.T) (dest string, unchanged func()) {
	t.Helper()
	dir := t.TempDir()
	dest = filepath.Join(dir, "dest")
	files := map[string]string{filepath.Join(dir, "store.js"): "shared", filepath.Join(dest, "secret.env"): "key", filepath.Join(dest, "sub/mine"): "mine"}
	for name, text := range files {
		if err := errors.Join(os.MkdirAll(filepath.Dir(name), 0o755), os.WriteFile(name, []byte(text), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Link(filepath.Join(dir, "store.js"), filepath.Join(dest, "react.js")); err != nil {
		t.Fatal(err)
	}
	return dest, func() {
		t.Helper()
		for name, text := range files {
			if b, err := os.ReadFile(name); string(b) != text {
				t.Errorf("%s holds %q, %v, want %q", name, b, err, text)
			}
		}
		if _, err := os.Lstat(filepath.Join(dest, "public.txt")); err == nil {
			t.Error("public.txt was made")
		}
	}
}

func TestNotesAndLinksReachOnlyFilesOfTheStream(t *testing.T) {
	t.Parallel()
	sub := &tar.Header{Name: "./sub", Typeflag: tar.TypeDir, Mode: 0o755}
	for name, headers := range map[string][]*tar.Header{
		"a note about a file with a name outside": {top(), note(noteShrunk, "./react.js", "0")},
		"a note about a file below":               {top(), sub, note(noteShrunk, "./sub/mine", "0")},
		"a note after another file":               {top(), file("./a"), note(noteShrunk, "./react.js", "0")},
		"a note about a linked name":              {top(), file("./a"), link(tar.TypeLink, "./b", "./a"), note(noteShrunk, "./b", "0")},
		"a note that comes late":                  {top(), file("./a"), file("./b"), note(noteShrunk, "./a", "0")},
		"a second note":                           {top(), file("./a"), note(noteShrunk, "./a", "3"), note(noteShrunk, "./a", "2")},
		"a note about a directory":                {top(), sub, note(noteShrunk, "./sub", "0")},
		"a note about the tree":                   {top(), note(noteShrunk, ".", "0")},
		"a note of growth":                        {top(), file("./a"), note(noteShrunk, "./a", "9223372036854775807")},
		"a hard link to a file that was there":    {top(), link(tar.TypeLink, "./public.txt", "./secret.env")},
		"a hard link to a file below":             {top(), sub, link(tar.TypeLink, "./public.txt", "./sub/mine")},
		"a hard link to a directory":              {top(), sub, link(tar.TypeLink, "./public.txt", "./sub")},
		"a hard link to what comes later":         {top(), link(tar.TypeLink, "./public.txt", "./secret.env"), file("./secret.env")},
	} {
		t.Run(name, func(t *testing.T) {
			dest, unchanged := project(t)
			_, err := Unpack(t.Context(), bytes.NewReader(archiveOf(t, append(headers, end())...)), dest, Hostile, Options{Complete: true})
			if !errors.Is(err, ErrFormat) {
				t.Errorf("Unpack: %v, want ErrFormat", err)
			}
			unchanged()
		})
	}
}

// A file that replaces one with a name outside is a new one, so its note cuts nothing else.
func TestANoteCutsTheNewFileAlone(t *testing.T) {
	t.Parallel()
	dest, unchanged := project(t)
	stream := archiveOf(t, top(), file("./react.js"), note(noteShrunk, "./react.js", "2"), link(tar.TypeLink, "./again", "./react.js"), end())
	if _, err := Unpack(t.Context(), bytes.NewReader(stream), dest, Hostile, Options{Complete: true}); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"react.js", "again"} {
		if b, _ := os.ReadFile(filepath.Join(dest, name)); string(b) != ".." {
			t.Errorf("%s holds %q, want the first 2 bytes", name, b)
		}
	}
	unchanged()
}

func TestASingleFileDoesNotGrowByANote(t *testing.T) {
	t.Parallel()
	dest := filepath.Join(t.TempDir(), "dest")
	_, err := Unpack(t.Context(), bytes.NewReader(archiveOf(t, file("."), note(noteShrunk, ".", "1099511627776"), end())), dest, Hostile, Options{Complete: true})
	if !errors.Is(err, ErrFormat) {
		t.Errorf("Unpack: %v, want ErrFormat", err)
	}
}

// heap is the memory in use once garbage is gone.
func heap() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// Not parallel: it measures this process's memory.
func TestAReportKeepsLittleOfAHostileStream(t *testing.T) {
	pr, pw := io.Pipe()
	go func() {
		w := tar.NewWriter(pw)
		w.WriteHeader(top())
		long := strings.Repeat("x", 64<<10)
		for i := range maxSkipped {
			h := note(noteSkipped, fmt.Sprint(i)+"\x1b[2J"+long, fmt.Sprint(i)+long)
			h.Format = tar.FormatPAX
			if w.WriteHeader(h) != nil {
				break
			}
		}
		h := end()
		h.Format = tar.FormatPAX
		w.WriteHeader(h)
		pw.CloseWithError(w.Close())
	}()
	before := heap()
	report, err := Unpack(t.Context(), pr, filepath.Join(t.TempDir(), "dest"), Hostile, Options{Complete: true})
	used := int64(heap()) - int64(before)
	if err != nil || len(report.Skipped) != maxSkipped {
		t.Errorf("Unpack: %v, %d remarks", err, len(report.Skipped))
	}
	if most := int64(3 * maxSkipped * (maxPath + maxReason)); used > most {
		t.Errorf("the report holds %d bytes, want at most %d", used, most)
	}
	for _, s := range report.Skipped[:1] {
		if strings.Contains(s.Path, "\x1b") || len(s.Path) > 2*maxPath || len(s.Reason) > 2*maxReason {
			t.Errorf("a remark of %d and %d bytes: %.50q", len(s.Path), len(s.Reason), s.Path)
		}
	}
	runtime.KeepAlive(report)
}

// Not parallel: it measures this process's memory.
func TestDirectoriesAndTheirAttributesAreBounded(t *testing.T) {
	limits := Limits{Bytes: 1 << 20, Entries: 1000}
	for name, h := range map[string]func(i int) *tar.Header{
		"attributes": func(i int) *tar.Header {
			return &tar.Header{Name: fmt.Sprintf("./d%d", i), Typeflag: tar.TypeDir, Mode: 0o755, PAXRecords: map[string]string{recordXattr + "user.x": strings.Repeat("v", 500<<10)}}
		},
		"unknown records": func(i int) *tar.Header {
			return &tar.Header{Name: fmt.Sprintf("./d%d", i), Typeflag: tar.TypeDir, Mode: 0o755, PAXRecords: map[string]string{"VENDOR.x": strings.Repeat("v", 500<<10)}}
		},
		"long names": func(i int) *tar.Header {
			return &tar.Header{Name: fmt.Sprintf("./%d", i) + strings.Repeat("/"+strings.Repeat("n", 200), 20), Typeflag: tar.TypeDir, Mode: 0o755}
		},
		"names longer than paths": func(i int) *tar.Header {
			return &tar.Header{Name: "." + strings.Repeat("/n", 30<<10), Typeflag: tar.TypeDir, Mode: 0o755}
		},
	} {
		t.Run(name, func(t *testing.T) {
			pr, pw := io.Pipe()
			go func() {
				w := tar.NewWriter(pw)
				w.WriteHeader(top())
				for i := 0; ; i++ {
					h := h(i)
					h.Format = tar.FormatPAX
					if w.WriteHeader(h) != nil {
						return
					}
				}
			}()
			dest := filepath.Join(t.TempDir(), "dest")
			before := heap()
			peak := before
			opts := Options{Complete: true, Limits: limits, Progress: func(string, *Report) { peak = max(peak, heap()) }}
			_, err := Unpack(t.Context(), pr, dest, Hostile, opts)
			pr.Close()
			if err == nil {
				t.Error("Unpack of a stream without an end: no error")
			}
			if used := peak - before; used > 8<<20 {
				t.Errorf("Unpack held %d bytes; then %v", used, err)
			}
			if list, _ := os.ReadDir(filepath.Dir(dest)); len(list) != 0 {
				t.Errorf("after %v there is %v", err, list)
			}
		})
	}
}

func TestCopiesEndAtTheirLimits(t *testing.T) {
	t.Parallel()
	limits := Limits{Bytes: 100, Entries: 5}
	large := file("./large")
	large.Size = 101
	for name, tt := range map[string]struct {
		headers []*tar.Header
		what    string
	}{
		"entries":              {[]*tar.Header{top(), file("./1"), file("./2"), file("./3"), file("./4"), file("./5")}, "entries"},
		"links":                {[]*tar.Header{top(), file("./1"), link(tar.TypeLink, "./2", "./1"), link(tar.TypeSymlink, "./3", "x"), link(tar.TypeLink, "./4", "./1"), link(tar.TypeLink, "./5", "./1")}, "entries"},
		"skipped":              {[]*tar.Header{top(), {Name: "./1", Typeflag: tar.TypeFifo}, {Name: "./2", Typeflag: tar.TypeFifo}, {Name: "./3", Typeflag: tar.TypeFifo}, {Name: "./4", Typeflag: tar.TypeFifo}, {Name: "./5", Typeflag: tar.TypeFifo}}, "entries"},
		"directories left out": {[]*tar.Header{top(), file("./a/b/c/d/e/f")}, "entries"},
		"the same again":       {[]*tar.Header{top(), top(), top(), top(), top(), top()}, "entries"},
		"bytes of one":         {[]*tar.Header{top(), large}, "bytes"},
		"a single file":        {[]*tar.Header{{Name: ".", Typeflag: tar.TypeReg, Mode: 0o644, Size: 101}}, "bytes"},
		"a hole":               {[]*tar.Header{top(), sparse("./f", "1099511627776;0,5")}, "bytes"},
		"holes that add up":    {[]*tar.Header{top(), sparse("./f", "60;0,5"), sparse("./g", "60;0,5")}, "bytes"},
	} {
		t.Run(name, func(t *testing.T) {
			dest := filepath.Join(t.TempDir(), "dest")
			_, err := Unpack(t.Context(), bytes.NewReader(archiveOf(t, append(tt.headers, end())...)), dest, Hostile, Options{Complete: true, Limits: limits})
			var limit *LimitError
			if !errors.As(err, &limit) || limit.What != tt.what {
				t.Errorf("Unpack: %v, want the limit of %s", err, tt.what)
			}
			if list, _ := os.ReadDir(filepath.Dir(dest)); len(list) != 0 {
				t.Errorf("after %v there is %v", err, list)
			}
		})
	}
	for name, fsys := range map[string]fstest.MapFS{
		"entries": {"1": {}, "2": {}, "3": {}, "4": {}, "5": {}},
		"bytes":   {"f": {Data: make([]byte, 101)}},
	} {
		_, err := PackFS(t.Context(), io.Discard, fsys, Options{Limits: limits})
		var limit *LimitError
		if !errors.As(err, &limit) || limit.What != name {
			t.Errorf("PackFS: %v, want the limit of %s", err, name)
		}
	}
	within := fstest.MapFS{"1": {Data: make([]byte, 50)}, "2": {Data: make([]byte, 50)}, "d/4": {}}
	var b bytes.Buffer
	if _, err := PackFS(t.Context(), &b, within, Options{Limits: limits}); err != nil {
		t.Errorf("PackFS of a tree within its limits: %v", err)
	}
	if r, err := Unpack(t.Context(), &b, filepath.Join(t.TempDir(), "dest"), Hostile, Options{Complete: true, Limits: limits}); err != nil || r.Files != 3 || r.Bytes != 100 {
		t.Errorf("Unpack of a tree within its limits: %+v, %v", r, err)
	}
}

// endless is a stream that begins with data and goes on for ever.
type endless struct{ once, again io.Reader }

func (e endless) Read(b []byte) (int, error) {
	n, err := e.once.Read(b)
	if err == io.EOF {
		return e.again.Read(b)
	}
	return n, err
}

type repeat struct {
	data []byte
	at   int
}

func (r *repeat) Read(b []byte) (int, error) {
	n := copy(b, r.data[r.at:])
	r.at = (r.at + n) % len(r.data)
	return n, nil
}

func TestStreamsWithoutAnEndAreLeft(t *testing.T) {
	t.Parallel()
	whole := archiveOf(t, top(), end())
	trailer := len(archiveOf(t)) // what ends an archive
	notes := archiveOf(t, note(noteSkipped, "./x", "y"))
	notes = notes[:len(notes)-trailer]
	head := archiveOf(t, top())
	head = head[:len(head)-trailer]
	for name, stream := range map[string]io.Reader{
		"zeros after the end": endless{bytes.NewReader(whole), &repeat{data: make([]byte, 1<<16)}},
		"notes":               endless{bytes.NewReader(head), &repeat{data: notes}},
	} {
		t.Run(name, func(t *testing.T) {
			dest := filepath.Join(t.TempDir(), "dest")
			if _, err := Unpack(t.Context(), stream, dest, Hostile, Options{Complete: true, Limits: Limits{Bytes: 1000, Entries: 10}}); err == nil {
				t.Error("Unpack: no error")
			}
		})
	}
}

func TestNamesOfAStreamArePrintableInErrorsAndReports(t *testing.T) {
	t.Parallel()
	const evil = "\x1b]0;owned\a\nlevel=error"
	dir := &tar.Header{Name: "./" + evil, Typeflag: tar.TypeDir, Mode: 0o755}
	for name, headers := range map[string][]*tar.Header{
		"a failure":         {top(), {Typeflag: tar.TypeXGlobalHeader, PAXRecords: map[string]string{recordNote: noteFailed, recordPath: evil, recordText: evil}}},
		"a refusal":         {top(), {Typeflag: tar.TypeXGlobalHeader, PAXRecords: map[string]string{recordNote: noteRefused, recordPath: evil, recordText: evil}}},
		"a name":            {top(), file("./" + evil + "/../x")},
		"a replaced tree":   {top(), dir, file("./" + evil)},
		"a file's entry":    {top(), file("./" + evil), dir},
		"a missing parent":  {top(), file("./" + evil), file("./" + evil + "/x")},
		"a link":            {top(), link(tar.TypeLink, "./"+evil, "./"+evil+"2")},
		"a note":            {top(), note(noteShrunk, "./"+evil, "1")},
		"too many bytes":    {top(), {Name: "./" + evil, Typeflag: tar.TypeReg, Size: 2000}},
		"too many entries":  {top(), file("./1"), file("./2"), file("./3"), file("./4"), file("./" + evil)},
		"holes that are no": {top(), sparse("./"+evil, "x")},
	} {
		t.Run(name, func(t *testing.T) {
			stream := archiveOf(t, append(headers, end())...)
			var said []string
			opts := Options{Complete: true, Limits: Limits{Bytes: 1000, Entries: 5}, Progress: func(name string, _ *Report) { said = append(said, name) }}
			report, err := Unpack(t.Context(), bytes.NewReader(stream), filepath.Join(t.TempDir(), "dest"), Hostile, opts)
			if err == nil {
				t.Fatal("Unpack: no error")
			}
			said = append(said, err.Error())
			for _, s := range report.Skipped {
				said = append(said, s.Path, s.Reason)
			}
			for _, text := range said {
				if strings.ContainsAny(text, "\x1b\a\n") {
					t.Errorf("it says %q", text)
				}
			}
		})
	}
}

// Whatever a stream contains: the files of the destination keep their content and their one
// name, and the stream stays within its limits.
func FuzzUnpackIntoAProject(f *testing.F) {
	f.Add(archiveOf(f, top(), file("./a"), note(noteShrunk, "./a", "2"), link(tar.TypeLink, "./b", "./a"), end()))
	f.Add(archiveOf(f, top(), note(noteShrunk, "./react.js", "0"), end()))
	f.Add(archiveOf(f, top(), link(tar.TypeLink, "./public.txt", "./secret.env"), end()))
	f.Add(archiveOf(f, top(), link(tar.TypeSymlink, "./l", "secret.env"), link(tar.TypeLink, "./public.txt", "./l"), note(noteShrunk, "./l", "0"), end()))
	f.Add(archiveOf(f, top(), sparse("./f", "100;50,5"), note(noteShrunk, "./f", "60"), end()))
	f.Add(archiveOf(f, top(), file("./x/y/z"), note(noteSkipped, "\x1b", "y"), note(noteFailed, "x", "\n"), end()))
	f.Fuzz(func(t *testing.T, stream []byte) {
		dest := filepath.Join(t.TempDir(), "dest")
		outside := filepath.Join(filepath.Dir(dest), "store.js")
		kept := map[string]string{outside: "shared", filepath.Join(dest, "secret.env"): "key"}
		for name, text := range kept {
			os.MkdirAll(filepath.Dir(name), 0o755)
			os.WriteFile(name, []byte(text), 0o644)
		}
		os.Link(outside, filepath.Join(dest, "react.js"))
		secret, _ := os.Lstat(filepath.Join(dest, "secret.env"))
		limits := Limits{Bytes: 1 << 16, Entries: 64}
		report, err := Unpack(t.Context(), bytes.NewReader(stream), dest, Hostile, Options{Complete: true, Limits: limits})
		if b, e := os.ReadFile(outside); string(b) != "shared" {
			t.Errorf("outside there is %q, %v, after %v", b, e, err)
		}
		if report.Files+report.Dirs > limits.Entries+1 || report.Bytes > limits.Bytes {
			t.Errorf("beyond the limits: %+v", report)
		}
		size := int64(0)
		filepath.WalkDir(dest, func(name string, d os.DirEntry, err error) error {
			if err != nil {
				return nil // a directory without permissions
			}
			info, err := os.Lstat(name)
			if err != nil || !info.Mode().IsRegular() {
				return nil
			}
			if size += info.Size(); os.SameFile(info, secret) {
				if b, _ := os.ReadFile(name); string(b) != "key" || filepath.Base(name) != "secret.env" {
					t.Errorf("secret.env is %s now, with %q", name, b)
				}
			}
			return nil
		})
		if err == nil && size > limits.Bytes+int64(len("shared")+len("key")) {
			t.Errorf("%d bytes, more than %d", size, limits.Bytes)
		}
	})
}
