package files_test

import (
	"archive/zip"
	"bytes"
	"cmp"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/test/harness"
)

// namesScript lists names, kinds, where links lead, who may run a file, and contents. Other permissions and times differ on purpose.
const namesScript = `cd "$0"; find . -mindepth 1 \( -type f -perm -100 -printf 'x|' -o -printf '|' \) \( -perm /6000 -printf 's|' -o -printf '|' \) -printf '%P|%y|%l|' \( -type f -exec sha256sum --zero {} \; -o -printf '\0' \) |
	sort -z | tr '\0\n' '\n?'`

// randomFS is a tree of about that many entries: in memory, as a directory and as an archive.
func randomFS(t *testing.T, r *rand.Rand, entries int) map[string]fs.FS {
	t.Helper()
	memory, dirs := fstest.MapFS{}, []string{"."}
	for i := range entries {
		name := path.Join(dirs[r.IntN(len(dirs))], fmt.Sprintf("%s%d", []string{"f", "ü ", ".", "-r", "a\tb"}[r.IntN(5)], i))
		when := time.Unix(r.Int64N(2e9), r.Int64N(1e9))
		switch r.IntN(5) {
		case 0:
			memory[name] = &fstest.MapFile{Mode: fs.ModeDir | []fs.FileMode{0o755, 0o755, fs.ModeSetgid | 0o755}[r.IntN(3)], ModTime: when}
			dirs = append(dirs, name)
		case 1:
			memory[name] = &fstest.MapFile{Mode: fs.ModeSymlink | 0o777, Data: []byte([]string{"../up", "nowhere", "/etc/passwd", "f1"}[r.IntN(4)]), ModTime: when}
		default:
			data := make([]byte, r.IntN(3)*r.IntN(70_000))
			for i := range data {
				data[i] = byte(r.Uint32())
			}
			memory[name] = &fstest.MapFile{Mode: []fs.FileMode{0o644, 0o755, 0o600, 0o444, fs.ModeSetuid | 0o755, fs.ModeSetuid | fs.ModeSetgid | 0o711}[r.IntN(6)], Data: data, ModTime: when}
		}
	}
	dir := t.TempDir()
	var packed bytes.Buffer
	archive := zip.NewWriter(&packed)
	for _, name := range slices.Sorted(maps.Keys(memory)) {
		file, at := memory[name], filepath.Join(dir, name)
		var err error
		switch file.Mode.Type() {
		case fs.ModeDir:
			err = cmp.Or(os.MkdirAll(at, 0o755), os.Chmod(at, file.Mode))
		case fs.ModeSymlink:
			err = os.Symlink(string(file.Data), at)
		default:
			err = cmp.Or(os.WriteFile(at, file.Data, file.Mode), os.Chmod(at, file.Mode))
		}
		if err != nil {
			t.Fatal(err)
		}
		if file.Mode.Type() == fs.ModeSymlink {
			continue // zip.Reader does not read them
		}
		h := &zip.FileHeader{Name: name, Method: zip.Deflate, Modified: file.ModTime}
		if file.Mode.IsDir() {
			h.Name += "/"
		}
		h.SetMode(file.Mode)
		w, err := archive.CreateHeader(h)
		if err != nil {
			t.Fatal(err)
		}
		w.Write(file.Data)
	}
	if err := archive.Close(); err != nil {
		t.Fatal(err)
	}
	unpacked, err := zip.NewReader(bytes.NewReader(packed.Bytes()), int64(packed.Len()))
	if err != nil {
		t.Fatal(err)
	}
	return map[string]fs.FS{"a MapFS": memory, "a directory": os.DirFS(dir), "an archive": unpacked}
}

// quoted is a path as reports have it.
func quoted(name string) string {
	if strings.Contains(name, "\t") {
		return strconv.Quote(name)
	}
	return name
}

// CopyInFS copies what os.CopyFS copies.
func TestCopyInFSIsAsCopyFS(t *testing.T) {
	t.Parallel()
	sb := harness.Shared(t)
	for _, seed := range harness.Seeds(2, 100) {
		for what, fsys := range randomFS(t, rand.New(rand.NewPCG(seed, 77)), 60) {
			t.Run(fmt.Sprintf("%d, %s", seed, what), func(t *testing.T) {
				t.Parallel()
				dir := filepath.Join(t.TempDir(), "copy")
				if err := os.CopyFS(dir, fsys); err != nil {
					t.Fatal(err)
				}
				target := fmt.Sprintf("copyfs %d %s", seed, what)
				report, err := sb.CopyInFS(t.Context(), fsys, target, sandbox.CopyOptions{})
				var left []sandbox.Skipped
				if err := fs.WalkDir(fsys, ".", func(name string, d fs.DirEntry, _ error) error {
					info, err := d.Info()
					switch {
					case err != nil:
						return err
					case info.Mode()&fs.ModeSetuid != 0 && info.Mode()&fs.ModeSetgid != 0:
						left = append(left, sandbox.Skipped{Path: quoted(name), Reason: "its setuid and setgid bits"})
					case info.Mode()&fs.ModeSetuid != 0:
						left = append(left, sandbox.Skipped{Path: quoted(name), Reason: "its setuid bit"})
					case info.Mode()&fs.ModeSetgid != 0:
						left = append(left, sandbox.Skipped{Path: quoted(name), Reason: "its setgid bit"})
					}
					return nil
				}); err != nil {
					t.Fatal(err)
				}
				if diff := gocmp.Diff(left, report.Skipped); err != nil || diff != "" {
					t.Fatalf("CopyInFS: %v, left out (-want +got):\n%s", err, diff)
				}
				want := describe(t, exec.Command("sh", "-ec", namesScript, dir))
				if diff := gocmp.Diff(want, harness.Run(t, sb, "sh", "-ec", namesScript, target)); diff != "" {
					t.Errorf("(-os.CopyFS +CopyInFS)\n%s", diff)
				}
			})
		}
	}
}
