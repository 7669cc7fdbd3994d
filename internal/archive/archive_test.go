package archive

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// stream makes an archive of headers; a regular file's content is its size in dots.
func archiveOf(t testing.TB, headers ...*tar.Header) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, h := range headers {
		if h.Format = tar.FormatPAX; h.Typeflag == tar.TypeXGlobalHeader {
			h.Mode = 0
		}
		if err := w.WriteHeader(h); err != nil {
			t.Fatalf("%+v: %v", h, err)
		}
		if h.Typeflag == tar.TypeReg {
			if _, err := w.Write(bytes.Repeat([]byte("."), int(h.Size))); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func top() *tar.Header {
	return &tar.Header{Name: ".", Typeflag: tar.TypeDir, Mode: 0o755, ModTime: time.Unix(1, 1)}
}
func file(name string) *tar.Header {
	return &tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o644, Size: 5}
}
func link(kind byte, name, target string) *tar.Header {
	return &tar.Header{Name: name, Typeflag: kind, Linkname: target}
}
func end() *tar.Header {
	return &tar.Header{Typeflag: tar.TypeXGlobalHeader, PAXRecords: map[string]string{recordNote: noteEnd}}
}

// unpackHostile unpacks a stream beside a canary and says what it wrote outside.
func unpackHostile(t testing.TB, stream []byte, prepare func(dest string)) (Report, error) {
	t.Helper()
	dir := t.TempDir()
	for _, name := range []string{"canary", "target/f"} {
		os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755)
		os.WriteFile(filepath.Join(dir, name), []byte("alive"), 0o644)
	}
	dest := filepath.Join(dir, "in", "dest")
	if prepare != nil {
		prepare(dest)
	}
	report, err := Unpack(t.Context(), bytes.NewReader(stream), dest, Hostile, Options{Complete: true})
	for _, name := range []string{"canary", "target/f"} {
		if b, err := os.ReadFile(filepath.Join(dir, name)); string(b) != "alive" || err != nil {
			t.Errorf("outside, %s holds %q, %v", name, b, err)
		}
	}
	for at, want := range map[string]int{dir: 3, filepath.Join(dir, "target"): 1} {
		if list, _ := os.ReadDir(at); len(list) > want {
			t.Errorf("outside, in %s, there is now %v", at, list)
		}
	}
	if list, _ := os.ReadDir(filepath.Join(dir, "in")); err != nil && prepare == nil && len(list) != 0 {
		t.Errorf("after %v there is %v", err, list)
	}
	return report, err
}

func TestHostileStreamsWriteNothingOutside(t *testing.T) {
	t.Parallel()
	for name, headers := range map[string][]*tar.Header{
		"a name that climbs":              {top(), file("./../../canary")},
		"a name that climbs in between":   {top(), file("./a/../../../canary")},
		"an absolute name":                {top(), file("/etc/canary")},
		"a name without its beginning":    {top(), file("canary")},
		"an empty part":                   {top(), file("./a//b")},
		"through a link of its own":       {top(), link(tar.TypeSymlink, "./l", "../../target"), file("./l/f")},
		"through a link made a directory": {top(), link(tar.TypeSymlink, "./l", "../../target"), {Name: "./l", Typeflag: tar.TypeDir, Mode: 0o755}, file("./l/f")},
		"a hard link out":                 {top(), link(tar.TypeLink, "./h", "../../canary"), file("./h")},
		"a hard link through a link":      {top(), link(tar.TypeSymlink, "./l", "../../target"), link(tar.TypeLink, "./h", "./l/f")},
		"through a link within":           {top(), file("./d/f"), link(tar.TypeSymlink, "./l", "d"), {Name: "./l", Typeflag: tar.TypeDir, Mode: 0o755}, file("./l/f")},
		"a hard link through one within":  {top(), file("./d/f"), link(tar.TypeSymlink, "./l", "d"), link(tar.TypeLink, "./h", "./l/f")},
		"a hard link to nothing":          {top(), link(tar.TypeLink, "./h", "./none")},
		"a hard link to the top":          {top(), link(tar.TypeLink, "./h", ".")},
		"the top again, a link":           {top(), link(tar.TypeSymlink, ".", "../target")},
		"the top a link":                  {link(tar.TypeSymlink, ".", "../target"), file("./f")},
		"two tops":                        {file("."), file(".")},
		"a directory made a file":         {top(), {Name: "./d", Typeflag: tar.TypeDir, Mode: 0o755}, file("./d")},
		"a long name":                     {top(), file("./" + strings.Repeat("n", 256))},
		"a longer path":                   {top(), file("./" + strings.Repeat("n/", 40000) + "f")},
		"a note of another's shrinking":   {top(), note(noteShrunk, "./../../canary", "1")},
		"a note of a link's shrinking":    {top(), link(tar.TypeSymlink, "./l", "../../canary"), note(noteShrunk, "./l", "1")},
		"a note of growing":               {top(), file("./f"), note(noteShrunk, "./f", "6")},
		"more after the end":              {top(), end(), file("./f")},
		"holes out of order":              {top(), sparse("./f", "100;50,3;10,2")},
		"holes beyond the end":            {top(), sparse("./f", "10;8,5")},
		"holes of another size":           {top(), sparse("./f", "100;0,4")},
		"holes that overflow":             {top(), sparse("./f", "9223372036854775807;9223372036854775806,5")},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := unpackHostile(t, archiveOf(t, append(headers, end())...), nil); err == nil {
				t.Error("Unpack: no error")
			}
		})
	}
}

func note(kind, path, text string) *tar.Header {
	return &tar.Header{Typeflag: tar.TypeXGlobalHeader, PAXRecords: map[string]string{recordNote: kind, recordPath: path, recordText: text}}
}

func sparse(name, record string) *tar.Header {
	h := file(name)
	h.PAXRecords = map[string]string{recordSparse: record}
	return h
}

func TestPrivilegesAreTakenOffAndSaid(t *testing.T) {
	t.Parallel()
	h := file("./f")
	h.Mode = 0o6755
	h.PAXRecords = map[string]string{recordXattr + "security.capability": "x"}
	dev := &tar.Header{Name: "./dev", Typeflag: tar.TypeBlock, Mode: 0o666}
	report, err := unpackHostile(t, archiveOf(t, top(), h, dev, end()), nil)
	if err != nil || len(report.Skipped) != 4 {
		t.Errorf("Unpack: %+v, %v; want 4 remarks: setuid, setgid, an attribute, a device", report, err)
	}
}

func TestAStreamThatBreaksOffLeavesNothing(t *testing.T) {
	t.Parallel()
	whole := archiveOf(t, top(), file("./a"), link(tar.TypeSymlink, "./l", "x"), &tar.Header{Name: "./d", Typeflag: tar.TypeDir}, file("./d/b"), end())
	for _, n := range []int{0, 1, 511, 512, 1024, 1536, 2048, 3000, len(whole) / 2, len(whole) - 3000} {
		if _, err := unpackHostile(t, whole[:n], nil); err == nil {
			t.Errorf("Unpack of %d of %d bytes: no error", n, len(whole))
		}
	}
	if _, err := unpackHostile(t, archiveOf(t, top(), file("./a")), nil); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("Unpack of a stream that does not say it is whole: %v", err)
	}
}

func TestAMergeThatBreaksOffKeepsTheOldFile(t *testing.T) {
	t.Parallel()
	h := file("./f")
	h.Size = 1 << 20
	whole := archiveOf(t, top(), h, end())
	var dest string
	_, err := unpackHostile(t, whole[:len(whole)/2], func(at string) {
		dest = at
		os.MkdirAll(dest, 0o755)
		os.WriteFile(filepath.Join(dest, "f"), []byte("old"), 0o644)
	})
	if b, _ := os.ReadFile(filepath.Join(dest, "f")); err == nil || string(b) != "old" {
		t.Errorf("Unpack: %v, f holds %d bytes; want an error and the old file", err, len(b))
	}
	if list, _ := os.ReadDir(dest); len(list) != 1 {
		t.Errorf("there is now %v", list)
	}
}

func TestRemarksAreBounded(t *testing.T) {
	t.Parallel()
	headers := []*tar.Header{top()}
	for range maxSkipped + 10 {
		headers = append(headers, note(noteSkipped, "x", strings.Repeat("y", 1000)))
	}
	report, err := unpackHostile(t, archiveOf(t, append(headers, end())...), nil)
	if err != nil || len(report.Skipped) != maxSkipped || report.More != 10 {
		t.Errorf("Unpack: %d remarks and %d more, %v", len(report.Skipped), report.More, err)
	}
}

// shrinking is a file system whose file is shorter than it says.
type shrinking struct{ fs.FS }

func (s shrinking) Open(name string) (fs.File, error) {
	f, err := s.FS.Open(name)
	if err != nil || name == "." {
		return f, err
	}
	return short{f}, nil
}

type short struct{ fs.File }

func (s short) Read(b []byte) (int, error) {
	n, err := s.File.Read(b[:min(len(b), 3)])
	if n > 0 {
		return n, io.EOF
	}
	return n, err
}

func TestAFileThatShrinksIsCutAndSaid(t *testing.T) {
	t.Parallel()
	src := t.TempDir()
	os.WriteFile(filepath.Join(src, "f"), []byte("0123456789"), 0o644)
	var b bytes.Buffer
	if _, err := PackFS(t.Context(), &b, shrinking{os.DirFS(src)}, Options{}); err != nil {
		t.Fatal(err)
	}
	dest := filepath.Join(t.TempDir(), "dest")
	report, err := Unpack(t.Context(), &b, dest, Hostile, Options{Complete: true})
	got, _ := os.ReadFile(filepath.Join(dest, "f"))
	if err != nil || string(got) != "012" || len(report.Skipped) != 1 {
		t.Errorf("Unpack: %v, %+v, %q; want 012 and a remark", err, report, got)
	}
}

func TestPackSaysWhyItStopped(t *testing.T) {
	t.Parallel()
	var b bytes.Buffer
	if _, err := Pack(t.Context(), &b, filepath.Join(t.TempDir(), "none"), Options{}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Pack: %v, want fs.ErrNotExist", err)
	}
	_, err := Unpack(t.Context(), &b, filepath.Join(t.TempDir(), "dest"), Hostile, Options{Complete: true})
	var remote *RemoteError
	if !errors.As(err, &remote) || remote.Errno != 2 {
		t.Errorf("Unpack: %v, want the other side's ENOENT", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Pack(ctx, io.Discard, t.TempDir(), Options{}); !errors.Is(err, context.Canceled) {
		t.Errorf("Pack on a context that ended: %v", err)
	}
}

func FuzzUnpack(f *testing.F) {
	f.Add(archiveOf(f, top(), file("./a"), end()), false)
	f.Add(archiveOf(f, top(), link(tar.TypeSymlink, "./l", "../../target"), file("./l/f"), end()), true)
	f.Add(archiveOf(f, file("."), end()), false)
	f.Add(archiveOf(f, top(), file("./a"), link(tar.TypeLink, "./b", "./a"), note(noteShrunk, "./a", "2"), end()), false)
	f.Add(archiveOf(f, top(), sparse("./f", "100;50,5"), end()), true)
	f.Add(archiveOf(f, top(), &tar.Header{Name: "./d/e", Typeflag: tar.TypeDir}, file("./x/y/z"), end()), true)
	f.Fuzz(func(t *testing.T, stream []byte, there bool) {
		if bytes.Contains(stream, []byte("AGENTSANDBOX.sparse")) && len(stream) > 1<<16 {
			return
		}
		var prepare func(string)
		if there {
			prepare = func(dest string) {
				os.MkdirAll(filepath.Join(dest, "d"), 0o755)
				os.Symlink("../../target", filepath.Join(dest, "l"))
			}
		}
		unpackHostile(t, stream, prepare)
	})
}

func FuzzParseSparse(f *testing.F) {
	f.Add("100;50,5", int64(5))
	f.Add("9223372036854775807;9223372036854775806,5", int64(5))
	f.Fuzz(func(t *testing.T, record string, stored int64) {
		size, pieces, err := ParseSparse(record, stored)
		if err != nil {
			return
		}
		end, sum := int64(0), int64(0)
		for _, p := range pieces {
			if p.Offset < end || p.Length < 0 {
				t.Fatalf("%q: piece %+v after %d", record, p, end)
			}
			end, sum = p.Offset+p.Length, sum+p.Length
		}
		if end > size || sum != stored {
			t.Fatalf("%q: pieces end at %d of %d and hold %d of %d", record, end, size, sum, stored)
		}
	})
}

func FuzzClean(f *testing.F) {
	f.Add("./a/b", 0)
	f.Add("a/../../b", 1)
	f.Fuzz(func(t *testing.T, name string, strip int) {
		got, err := clean(name, max(0, min(strip, 3)), maxName)
		if err == nil && !filepath.IsLocal(got) {
			t.Errorf("clean(%q, %d) = %q, which is not below", name, strip, got)
		}
	})
}
