package sandbox_test

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
	"strings"
	"testing/fstest"
	"time"

	"github.com/seed-1a2d6d8f/sandbox"
)

// Other processes inside see the old content or the new one, never half of it.
func ExampleSandbox_WriteFrom() {
	ctx := context.Background()
	sb, err := sandbox.Create(ctx)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer sb.Close()

	n, err := sb.WriteFrom(ctx, "numbers", strings.NewReader("1\n2\n3\n"), 0o644)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(n)
	// Output: 6
}

func ExampleSandbox_WriteFile() {
	ctx := context.Background()
	sb, err := sandbox.Create(ctx)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer sb.Close()

	if err := sb.WriteFile(ctx, "config.json", []byte(`{"debug": true}`), 0o600); err != nil {
		fmt.Println(err)
		return
	}
	data, err := sb.ReadFile(ctx, "config.json")
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Printf("%s\n", data)
	// Output: {"debug": true}
}

// What a copy could not keep is in its report.
func ExampleSandbox_CopyOut() {
	ctx := context.Background()
	sb, err := sandbox.Create(ctx)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer sb.Close()
	dir, err := os.MkdirTemp("", "example")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)

	if err := sb.Command(ctx, "sh", "-c", "mkdir project && mkfifo project/pipe").Run(); err != nil {
		fmt.Println(err)
		return
	}
	if _, err := sb.CopyIn(ctx, "examples", "project", sandbox.CopyOptions{}); err != nil {
		fmt.Println(err)
		return
	}
	report, err := sb.CopyOut(ctx, "project", filepath.Join(dir, "out"), sandbox.CopyOptions{})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(report.Skipped)
	// Output: [pipe: a named pipe]
}

// Everything that takes a file system takes a sandbox.
func ExampleSandbox_FS() {
	ctx := context.Background()
	sb, err := sandbox.Create(ctx)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer sb.Close()

	matches, err := fs.Glob(sb.FS(), "etc/*-release")
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(matches)
	// Output: [etc/os-release]
}

// The methods are those of package os, and act inside.
func ExampleSandbox_ReadDir() {
	ctx := context.Background()
	sb, err := sandbox.Get(ctx, existing())
	if err != nil {
		fmt.Println(err)
		return
	}
	defer sb.Detach()
	dir, err := sb.MkdirTemp(ctx, "", "site")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer sb.RemoveAll(ctx, dir)
	err = errors.Join(
		sb.MkdirAll(ctx, dir+"/css", 0o755),
		sb.WriteFile(ctx, dir+"/draft.html", []byte("<p>hello"), 0o600),
		sb.Rename(ctx, dir+"/draft.html", dir+"/index.html"),
		sb.Chmod(ctx, dir+"/index.html", 0o644),
		sb.Symlink(ctx, "index.html", dir+"/home"),
	)
	if err != nil {
		fmt.Println(err)
		return
	}
	entries, err := sb.ReadDir(ctx, dir)
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, e := range entries {
		fmt.Println(e.Name(), e.IsDir())
	}
	target, err := sb.Readlink(ctx, dir+"/home")
	fmt.Println(target, err)
	// Output:
	// css true
	// home false
	// index.html false
	// index.html <nil>
}

// An open file is read and written in parts, like an os.File.
func ExampleSandbox_Create() {
	ctx := context.Background()
	sb, err := sandbox.Get(ctx, existing())
	if err != nil {
		fmt.Println(err)
		return
	}
	defer sb.Detach()
	f, err := sb.Create(ctx, "/tmp/records")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer f.Close()
	if _, err := f.WriteString("first second"); err != nil {
		fmt.Println(err)
	}
	if _, err := f.WriteAt([]byte("FIRST"), 0); err != nil {
		fmt.Println(err)
	}
	part := make([]byte, 6)
	if _, err := f.ReadAt(part, 6); err != nil {
		fmt.Println(err)
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		fmt.Println(err)
	}
	all, err := io.ReadAll(f)
	fmt.Printf("%s, %s, %v\n", part, all, err)
	// Output: second, FIRST second, <nil>
}

// Another user's permissions hold.
func ExampleSandbox_FilesAs() {
	ctx := context.Background()
	sb, err := sandbox.Get(ctx, existing())
	if err != nil {
		fmt.Println(err)
		return
	}
	defer sb.Detach()
	_, err = sb.FilesAs("nobody").ReadFile(ctx, "/etc/shadow")
	fmt.Println(errors.Is(err, fs.ErrPermission))
	// Output: true
}

// A tree of any fs.FS is copied, such as one that is embedded in the program.
func ExampleSandbox_CopyInFS() {
	ctx := context.Background()
	sb, err := sandbox.Get(ctx, existing())
	if err != nil {
		fmt.Println(err)
		return
	}
	defer sb.Detach()
	tree := fstest.MapFS{"site/index.html": {Data: []byte("<p>hello")}}
	report, err := sb.CopyInFS(ctx, tree, "/tmp/embedded", sandbox.CopyOptions{})
	if err != nil {
		fmt.Println(err)
		return
	}
	f, err := sb.Open(ctx, "/tmp/embedded/site/index.html")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(report.Files, st.Name(), st.Size())
	// Output: 1 index.html 8
}

// A log is appended to, cut, and dated, by its user.
func ExampleSandbox_OpenFile() {
	ctx := context.Background()
	sb, err := sandbox.Get(ctx, existing())
	if err != nil {
		fmt.Println(err)
		return
	}
	defer sb.Detach()
	if err := sb.Mkdir(ctx, "/tmp/logs", 0o755); err != nil {
		fmt.Println(err)
		return
	}
	for _, line := range []string{"one\n", "two\n"} {
		f, err := sb.OpenFile(ctx, "/tmp/logs/app", os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
		if err != nil {
			fmt.Println(err)
			return
		}
		_, err = f.WriteString(line)
		if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
			fmt.Println(err)
			return
		}
	}
	day := time.Date(2026, 1, 2, 0, 0, 0, 0, time.UTC)
	err = errors.Join(
		sb.Truncate(ctx, "/tmp/logs/app", 4),
		sb.Chown(ctx, "/tmp/logs/app", 1000, 1000),
		sb.Chtimes(ctx, "/tmp/logs/app", day, day),
		sb.Symlink(ctx, "app", "/tmp/logs/latest"),
		sb.Lchown(ctx, "/tmp/logs/latest", 1000, 1000), // of the link itself
	)
	if err != nil {
		fmt.Println(err)
		return
	}
	app, err := sb.Stat(ctx, "/tmp/logs/latest")
	if err != nil {
		fmt.Println(err)
		return
	}
	link, err := sb.Lstat(ctx, "/tmp/logs/latest")
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(app.Size(), app.ModTime().UTC().Format(time.DateOnly), app.Sys().(*sandbox.FileStat).UID, link.Mode().Type() == fs.ModeSymlink)
	fmt.Println(sb.Remove(ctx, "/tmp/logs/latest"))
	// Output:
	// 4 2026-01-02 1000 true
	// <nil>
}

// A name is relative to the working directory unless it is absolute. Errors are those of package os.
func ExampleSandbox_ReadFile() {
	ctx := context.Background()
	sb, err := sandbox.Create(ctx)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer sb.Close()

	data, err := sb.ReadFile(ctx, "/etc/debian_version")
	fmt.Println(len(data) > 0, err)
	_, err = sb.ReadFile(ctx, "notes.txt")
	fmt.Println(errors.Is(err, fs.ErrNotExist))
	// Output:
	// true <nil>
	// true
}

// The name of the copy is the second path, relative to the working directory inside.
func ExampleSandbox_CopyIn() {
	ctx := context.Background()
	sb, err := sandbox.Create(ctx)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer sb.Close()

	report, err := sb.CopyIn(ctx, "examples/hello", "hello", sandbox.CopyOptions{})
	if err != nil {
		fmt.Println(err)
		return
	}
	out, err := sb.Command(ctx, "ls", "hello").Output()
	fmt.Printf("%d file, nothing skipped: %t\n%s%v\n", report.Files, len(report.Skipped) == 0, out, err)
	// Output:
	// 1 file, nothing skipped: true
	// main.go
	// <nil>
}

// A tree comes and goes as a stream, here in memory.
func ExampleSandbox_CopyInTar() {
	ctx := context.Background()
	sb, err := sandbox.Get(ctx, existing())
	if err != nil {
		fmt.Println(err)
		return
	}
	defer sb.Detach()
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	if err := w.AddFS(fstest.MapFS{"site/index.html": {Data: []byte("<p>hello")}}); err != nil {
		fmt.Println(err)
		return
	}
	if err := w.Close(); err != nil {
		fmt.Println(err)
		return
	}
	report, err := sb.CopyInTar(ctx, &archive, "/tmp/unpacked", sandbox.CopyOptions{})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(report.Files)
	// Output: 1
}

func ExampleSandbox_CopyOutTar() {
	ctx := context.Background()
	sb, err := sandbox.Get(ctx, existing())
	if err != nil {
		fmt.Println(err)
		return
	}
	defer sb.Detach()
	if err := sb.MkdirAll(ctx, "/tmp/packed/sub", 0o755); err != nil {
		fmt.Println(err)
		return
	}
	var archive bytes.Buffer
	if _, err := sb.CopyOutTar(ctx, "/tmp/packed", &archive, sandbox.CopyOptions{}); err != nil {
		fmt.Println(err)
		return
	}
	for r := tar.NewReader(&archive); ; {
		h, err := r.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(h.Name)
	}
	// Output:
	// .
	// ./sub
}
