//go:build linux

package proc

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/seed-1a2d6d8f/sandbox/internal/guest/accounts"
)

func TestAccountFilesMayBeAnything(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	fifo := filepath.Join(dir, "fifo")
	if err := unix.Mkfifo(fifo, 0o644); err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(dir, "link")
	if err := os.Symlink("/dev/zero", link); err != nil {
		t.Fatal(err)
	}
	huge := filepath.Join(dir, "huge")
	if err := os.WriteFile(huge, []byte("first:x:5:5::/:\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(huge, 1<<40); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{fifo, link, dir, filepath.Join(dir, "missing"), huge} {
		open := func() io.ReadCloser { return openAccounts(path) }
		id, err := accounts.Resolve("1234", open, open)
		if err != nil || id.UID != 1234 {
			t.Errorf("%s: %+v, %v", path, id, err)
		}
	}
	if id, err := accounts.Resolve("first", func() io.ReadCloser { return openAccounts(huge) }, func() io.ReadCloser { return io.NopCloser(strings.NewReader("")) }); err != nil || id.UID != 5 {
		t.Errorf("first line of a huge file: %+v, %v", id, err)
	}
}
