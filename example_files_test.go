package sandbox_test

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/seed-1a2d6d8f/sandbox"
)

// Other processes inside see the old content or the new one, never half of it.
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
	if _, err := sb.CopyIn(ctx, "examples", "project"); err != nil {
		fmt.Println(err)
		return
	}
	report, err := sb.CopyOut(ctx, "project", filepath.Join(dir, "out"))
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
