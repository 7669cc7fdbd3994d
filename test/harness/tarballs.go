package harness

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"

	"github.com/seed-1a2d6d8f/sandbox"
)

// TarLink is a symbolic link.
func TarLink(name, to string) TarMember {
	return TarMember{Header: tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: to, Mode: 0o777}}
}

// Gzip compresses b.
func Gzip(t testing.TB, b []byte) []byte {
	t.Helper()
	var out bytes.Buffer
	w := gzip.NewWriter(&out)
	if _, err := w.Write(b); err != nil {
		t.Fatal(err)
	}
	w.Close()
	return out.Bytes()
}

// Zstd compresses b.
func Zstd(t testing.TB, b []byte) []byte {
	t.Helper()
	w, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	return w.EncodeAll(b, nil)
}

// zeros is so many zeros.
type zeros int64

func (z *zeros) Read(p []byte) (int, error) {
	if *z <= 0 {
		return 0, io.EOF
	}
	n := min(len(p), int(*z))
	clear(p[:n])
	*z -= zeros(n)
	return n, nil
}

// A HostileTarball is an archive that no sandbox is made from.
type HostileTarball struct {
	Source sandbox.Tarball
	Want   string // in the error
	Whole  bool   // to be tried with a sandbox that is not made; a Reader is there once
}

// HostileTarballs are archives that mean no good.
func HostileTarballs(t *testing.T) map[string]HostileTarball {
	t.Helper()
	many := make([]TarMember, 100_000)
	for i := range many {
		many[i] = TarFile(fmt.Sprintf("f%d", i), "")
	}
	hole := TarFile("hole", "x")
	hole.Size = 10 << 30
	sparse := func(format string) io.Reader { // a file of 10 GiB that is nothing but a hole, in 10 KiB
		dir := t.TempDir()
		if err := errors.Join(os.WriteFile(filepath.Join(dir, "hole"), nil, 0o644), os.Truncate(filepath.Join(dir, "hole"), 10<<30)); err != nil {
			t.Fatal(err)
		}
		out, err := exec.Command("tar", "-C", dir, "--format="+format, "--sparse", "-cf", "-", "hole").Output()
		if err != nil {
			t.Fatal(err)
		}
		return bytes.NewReader(out)
	}
	bomb := func() io.Reader { // a file of 9 GiB in 9 MiB
		pr, pw := io.Pipe()
		t.Cleanup(func() { pr.Close() })
		go func() {
			z, _ := gzip.NewWriterLevel(pw, gzip.BestSpeed)
			w := tar.NewWriter(z)
			big := zeros(9 << 30)
			err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: "bomb", Size: int64(big), Mode: 0o644})
			if err == nil {
				_, err = io.Copy(w, &big)
			}
			pw.CloseWithError(errors.Join(err, z.Close()))
		}()
		return pr
	}
	padded := func() io.Reader { // an archive with 4 GiB of nothing after it
		big := zeros(4 << 30)
		return io.MultiReader(bytes.NewReader(Tar(t, TarFile("a", "a"))), &big)
	}
	whole := Tar(t, TarFile("first", strings.Repeat("x", 5000)), TarFile("second", strings.Repeat("y", 5000)))
	return map[string]HostileTarball{
		"parent":             {sandbox.Tarball{Reader: bytes.NewReader(Tar(t, TarFile("ok", ""), TarFile("../evil", "x")))}, `"../evil"`, true},
		"parent within":      {sandbox.Tarball{Reader: bytes.NewReader(Tar(t, TarFile("a/../../evil", "x")))}, `"a/../../evil"`, false},
		"parent, stripped":   {sandbox.Tarball{Strip: 1, Reader: bytes.NewReader(Tar(t, TarFile("../evil", "x")))}, `"../evil"`, false},
		"write through":      {sandbox.Tarball{Reader: bytes.NewReader(Tar(t, TarLink("l", "/etc"), TarFile("l/passwd", "x")))}, `"l/passwd"`, true},
		"make through":       {sandbox.Tarball{Reader: bytes.NewReader(Tar(t, TarLink("a", ".."), TarLink("a/b", "..")))}, `"a/b"`, false},
		"replace by a link":  {sandbox.Tarball{Reader: bytes.NewReader(Tar(t, TarFile("d/f", ""), TarLink("d", "/etc"), TarFile("d/passwd", "")))}, `"d"`, false},
		"link outside":       {sandbox.Tarball{Reader: bytes.NewReader(Tar(t, TarMember{Header: tar.Header{Typeflag: tar.TypeLink, Name: "h", Linkname: "../../etc/passwd"}}))}, `"h"`, false},
		"link to nothing":    {sandbox.Tarball{Reader: bytes.NewReader(Tar(t, TarMember{Header: tar.Header{Typeflag: tar.TypeLink, Name: "h", Linkname: "/etc/passwd"}}))}, `"h"`, false},
		"file below a file":  {sandbox.Tarball{Reader: bytes.NewReader(Tar(t, TarFile("f", ""), TarFile("f/x", "")))}, `"f/x"`, false},
		"100,000 entries":    {sandbox.Tarball{Reader: bytes.NewReader(Tar(t, many...))}, `"f65536": the archive holds more than 65536 entries`, true},
		"entries of one's":   {sandbox.Tarball{Reader: bytes.NewReader(Tar(t, many[:11]...)), MaxEntries: 10}, `"f10"`, false},
		"a deep name":        {sandbox.Tarball{Reader: bytes.NewReader(Tar(t, TarFile(strings.Repeat("a/", 500)+"f", ""))), MaxEntries: 100}, `more than 100 entries`, false},
		"bytes of one's":     {sandbox.Tarball{Reader: bytes.NewReader(whole), MaxBytes: 9999}, `"second": the archive holds more than 9999 bytes`, false},
		"a hole of GNU's":    {sandbox.Tarball{Reader: sparse("gnu")}, `"hole": the archive holds more than 8589934592 bytes`, false},
		"a hole":             {sandbox.Tarball{Reader: sparse("pax")}, `"hole": the archive holds more than 8589934592 bytes`, true},
		"a size":             {sandbox.Tarball{Reader: bytes.NewReader(func() []byte { b := new(bytes.Buffer); tar.NewWriter(b).WriteHeader(&hole.Header); return b.Bytes() }())}, `"hole"`, false},
		"a gzip bomb":        {sandbox.Tarball{Reader: bomb()}, `"bomb"`, true},
		"a bomb behind":      {sandbox.Tarball{Reader: padded()}, `after its end`, false},
		"broken off":         {sandbox.Tarball{Reader: bytes.NewReader(whole[:7000])}, `"second"`, true},
		"broken off between": {sandbox.Tarball{Reader: bytes.NewReader(whole[:5632])}, `"first"`, false},
		"broken gzip":        {sandbox.Tarball{Reader: bytes.NewReader(Gzip(t, whole)[:60])}, `breaks off`, false},
		"no gzip trailer":    {sandbox.Tarball{Reader: bytes.NewReader(Gzip(t, whole)[:len(Gzip(t, whole))-4])}, `breaks off`, false},
		"broken zstd":        {sandbox.Tarball{Reader: bytes.NewReader(Zstd(t, whole)[:40])}, ``, false},
		"bad gzip":           {sandbox.Tarball{Reader: strings.NewReader("\x1f\x8bnonsense nonsense")}, `compression`, false},
		"bad bzip2":          {sandbox.Tarball{Reader: strings.NewReader("BZh9nonsense nonsense")}, `argument: malformed archive: its compression`, false},
		"empty":              {sandbox.Tarball{Reader: strings.NewReader("")}, `it is empty`, false},
		"HTML":               {sandbox.Tarball{Reader: strings.NewReader("\n<!DOCTYPE html><html><body>Sign in" + strings.Repeat(" please", 300))}, `an HTML page`, false},
		"zip":                {sandbox.Tarball{Reader: strings.NewReader("PK\x03\x04" + strings.Repeat("x", 600))}, `a zip archive`, false},
		"something":          {sandbox.Tarball{Reader: strings.NewReader(strings.Repeat("something", 600))}, `not a tar archive`, false},
		"something short":    {sandbox.Tarball{Reader: strings.NewReader("x")}, `not a tar archive`, false},
		"all taken off":      {sandbox.Tarball{Reader: bytes.NewReader(whole), Strip: 3}, `"first"`, false},
	}
}
