package sandbox_test

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/seed-1a2d6d8f/sandbox"
)

// A workspace that begins as a clone, at a tag and without its history.
func ExampleWithSource() {
	ctx := context.Background()
	repository, cleanup, err := exampleRepository()
	if err != nil {
		fmt.Println(err)
		return
	}
	defer cleanup()
	sb, err := sandbox.Create(ctx, sandbox.WithSource(sandbox.Git{URL: repository, Revision: "v1.0", Depth: 1}))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer sb.Close()

	out, err := sb.Command(ctx, "git", "describe", "--tags").Output()
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Printf("at %s", out)
	// Output: at v1.0
}

// An archive as a forge makes them, with one directory on top that is taken off.
func ExampleTarball() {
	ctx := context.Background()
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	for name, content := range map[string]string{"project-1.0/hello.js": "console.log('hello')"} {
		if err := w.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(content))}); err != nil {
			fmt.Println(err)
			return
		}
		if _, err := w.Write([]byte(content)); err != nil {
			fmt.Println(err)
			return
		}
	}
	if err := w.Close(); err != nil {
		fmt.Println(err)
		return
	}
	sb, err := sandbox.Create(ctx, sandbox.WithSource(sandbox.Tarball{Reader: &archive, Strip: 1}))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer sb.Close()

	out, err := sb.Command(ctx, "node", "hello.js").Output()
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Printf("%s", out)
	// Output: hello
}

// exampleRepository makes a repository with a tag, v1.0.
func exampleRepository() (dir string, cleanup func(), err error) {
	dir, err = os.MkdirTemp("", "example-")
	if err != nil {
		return "", nil, err
	}
	cleanup = func() { os.RemoveAll(dir) }
	if err := os.WriteFile(filepath.Join(dir, "file"), []byte("x"), 0o644); err != nil {
		return dir, cleanup, err
	}
	for _, args := range [][]string{
		{"init", "--quiet"}, {"add", "file"}, {"-c", "user.name=a", "-c", "user.email=a@localhost", "commit", "--quiet", "--message", "first"}, {"tag", "v1.0"},
	} {
		cmd := exec.Command("git", args...)
		cmd.Dir = dir
		if out, err := cmd.CombinedOutput(); err != nil {
			return dir, cleanup, fmt.Errorf("git: %w: %s", err, out)
		}
	}
	return dir, cleanup, nil
}

// What a source has that a sandbox can't have is in a report.
func ExampleSandbox_Copied() {
	ctx := context.Background()
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeChar, Name: "dev/null", Devmajor: 1, Devminor: 3})
	if err = errors.Join(err, w.Close()); err != nil {
		fmt.Println(err)
		return
	}
	sb, err := sandbox.Create(ctx, sandbox.WithSource(sandbox.Tarball{Reader: &archive}))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer sb.Close()

	for _, s := range sb.Copied().Skipped {
		fmt.Println(s)
	}
	// Output: /workspace/dev/null: a device
}
