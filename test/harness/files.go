package harness

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/seed-1a2d6d8f/sandbox"
)

// Shell runs a script on this machine, whose $0 is dir.
func Shell(t *testing.T, script, dir string) {
	t.Helper()
	if out, err := exec.Command("sh", "-ec", script, dir).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}

// BuildProgram builds a static program of testdata for sandboxes with processors of that kind. All are built alike, and
// like the guest, so that they share what is compiled.
func BuildProgram(name, arch string) ([]byte, error) {
	dir, err := os.MkdirTemp("", name)
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	out := filepath.Join(dir, name)
	build := exec.Command("go", "build", "-ldflags=-s -w", "-o", out, "./testdata/"+name)
	build.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH="+arch, "GOFLAGS=")
	if text, err := build.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("%w\n%s", err, text)
	}
	return os.ReadFile(out)
}

// Installed returns this machine's programs with the libraries that they are linked with, as an archive, and the name of their loader.
// Other files may be among them.
func Installed(t *testing.T, files ...string) (archive []byte, loader string) {
	t.Helper()
	for _, file := range files {
		libs, _ := exec.Command("ldd", file).Output() // none of what is no program
		for word := range strings.FieldsSeq(string(libs)) {
			if strings.HasPrefix(word, "/") && !strings.HasSuffix(word, ":") && !slices.Contains(files, word) {
				files = append(files, word)
			}
			if strings.HasPrefix(filepath.Base(word), "ld-") {
				loader = filepath.Base(word)
			}
		}
	}
	tar := exec.Command("tar", append([]string{"-c", "-h"}, files...)...)
	var stderr bytes.Buffer
	tar.Stderr = &stderr
	archive, err := tar.Output()
	if err != nil {
		t.Fatalf("%v (ci/clients installs what is missing)\n%s", err, &stderr)
	}
	return archive, loader
}

// BuildPrograms builds static programs of testdata, and returns them as an archive.
func BuildPrograms(names ...string) ([]byte, error) {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, d := range []string{"tmp/", "etc/"} {
		w.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: d, Mode: 0o1777})
	}
	for _, name := range names {
		content, err := BuildProgram(name, runtime.GOARCH)
		if err != nil {
			return nil, err
		}
		w.WriteHeader(&tar.Header{Name: name, Mode: 0o755, Size: int64(len(content))})
		w.Write(content)
	}
	err := w.Close()
	return b.Bytes(), err
}

// PutFiles writes files outside of volumes and in the workspace, and [ReadFiles] tells of them.
func PutFiles(ctx context.Context, sb *sandbox.Sandbox, text string) error {
	for _, name := range []string{"/srv/data/file", "/workspace/file"} {
		err := errors.Join(sb.MkdirAll(ctx, filepath.Dir(name), 0o750), sb.WriteFile(ctx, name, []byte(text), 0o600),
			sb.Chown(ctx, name, 12, 34), sb.Chmod(ctx, name, fs.ModeSetuid|0o751))
		if err != nil {
			return err
		}
	}
	return nil
}

// ReadFiles tells of the files that [PutFiles] writes.
func ReadFiles(ctx context.Context, sb *sandbox.Sandbox) (string, error) {
	var all strings.Builder
	for _, name := range []string{"/srv/data", "/srv/data/file", "/workspace/file"} {
		st, err := sb.Stat(ctx, name)
		if err != nil {
			return "", err
		}
		owner, _ := st.Sys().(*sandbox.FileStat)
		fmt.Fprintln(&all, name, st.Mode(), owner.UID, owner.GID)
		if !st.IsDir() {
			b, err := sb.ReadFile(ctx, name)
			if err != nil {
				return "", err
			}
			fmt.Fprintf(&all, "%q\n", b)
		}
	}
	return all.String(), nil
}

// Manifest is a shell command that prints all there is to know of the tree it runs in.
const Manifest = `
find . ! -type s ! -type b ! -type c -printf '%P|%y|%m|%U:%G|%T@|%l|%n\n' | sed 's/^|d|\([^|]*|[^|]*|[^|]*|\)|.*/|d|\1/' | LC_ALL=C sort
find . -type f -printf '%P %s\n' | LC_ALL=C sort
find . -type f -exec sha256sum {} + | LC_ALL=C sort
tar --format=pax --xattrs --xattrs-include='*' -cf - . | grep -ao 'SCHILY.xattr.[a-z]*.[a-z]*=[a-z]*' | LC_ALL=C sort`

// A TarMember is an entry of an archive that a test makes.
type TarMember struct {
	tar.Header
	Content string
}

// TarFile is a regular file.
func TarFile(name, content string) TarMember {
	return TarMember{Header: tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644, ModTime: time.Unix(1e9, 0)}, Content: content}
}

// Tar is an archive of these members.
func Tar(t testing.TB, members ...TarMember) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, m := range members {
		if m.Size == 0 {
			m.Size = int64(len(m.Content))
		}
		if err := w.WriteHeader(&m.Header); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, m.Content); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// HostDir makes a directory to copy from.
func HostDir(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, content := range files {
		name = filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// CopiedVolume is the volume that a directory was copied into.
func CopiedVolume(t *testing.T, sb *sandbox.Sandbox, target string) string {
	t.Helper()
	for _, m := range sb.Mounts() {
		if m.Target == target {
			return m.Volume
		}
	}
	t.Fatalf("there is no mount at %s: %v", target, sb.Mounts())
	return ""
}
