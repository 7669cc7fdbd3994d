//go:build linux

package copytree

import (
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"
)

// deepen makes a chain of directories, each with a file, below an open one.
func deepen(t *testing.T, dir string, levels int) {
	t.Helper()
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	for range levels {
		if err == nil {
			err = unix.Mkdirat(fd, "d", 0o755)
		}
		if err == nil {
			err = unix.Symlinkat("/", fd, "link")
		}
		next := -1
		if err == nil {
			next, err = unix.Openat(fd, "d", unix.O_RDONLY|unix.O_DIRECTORY, 0)
		}
		if err != nil {
			t.Fatal(err)
		}
		unix.Close(fd)
		fd = next
	}
	unix.Close(fd)
}

// Trees of any shape and depth go, with two directories open at a time and without following links.
func TestEmptyRemovesTreesOfAnyDepth(t *testing.T) {
	outside := t.TempDir()
	kept := filepath.Join(outside, "kept")
	if err := os.WriteFile(kept, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	r := rand.New(rand.NewPCG(1, 2))
	dirs := []string{dir}
	for i := range 3000 {
		path := filepath.Join(dirs[r.IntN(len(dirs))], strconv.Itoa(i))
		var err error
		switch r.IntN(6) {
		case 0, 1:
			err = os.Mkdir(path, os.FileMode(r.IntN(0o1000))|0o700)
			dirs = append(dirs, path)
		case 2:
			err = os.WriteFile(path, []byte("text"), 0o400)
		case 3:
			err = os.Symlink(outside, path)
		case 4:
			err = unix.Mkfifo(path, 0o600)
		case 5:
			err = os.Link(kept, path)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(dir, ".removed-1"), 0o755); err != nil { // a name that it would give
		t.Fatal(err)
	}
	deepen(t, filepath.Join(dir, ".removed-1"), 2000)
	var was unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &was); err != nil {
		t.Fatal(err)
	}
	few := unix.Rlimit{Cur: 64, Max: was.Max}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &few); err != nil {
		t.Fatal(err)
	}
	err := Empty([]string{dir})
	if e := unix.Setrlimit(unix.RLIMIT_NOFILE, &was); err != nil || e != nil {
		t.Fatalf("Empty: %v; %v", err, e)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
	if _, err := os.Stat(kept); err != nil {
		t.Errorf("a file that links lead to: %v", err)
	}
}
