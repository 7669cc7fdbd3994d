package eino_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/cloudwego/eino/adk/filesystem"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/adapters/eino"
	"github.com/seed-1a2d6d8f/sandbox/test/harness"
)

// commandOutput and operator are what package commandline of eino-ext has, which this module does not import.
type commandOutput struct {
	Stdout   string
	Stderr   string
	ExitCode int
}

type operator interface {
	ReadFile(ctx context.Context, path string) (string, error)
	WriteFile(ctx context.Context, path string, content string) error
	IsDirectory(ctx context.Context, path string) (bool, error)
	Exists(ctx context.Context, path string) (bool, error)
	RunCommand(ctx context.Context, command []string) (*commandOutput, error)
}

func TestOperator(t *testing.T) {
	t.Parallel()
	sb := harness.NewSandbox(t)
	var op operator = eino.NewOperator[commandOutput](sb, eino.Options{Output: 2000, CommandTime: harness.CallBound})
	hasty := eino.NewOperator[commandOutput](sb, eino.Options{Output: 2000, CommandTime: 2 * time.Second})
	ctx := t.Context()
	if err := op.WriteFile(ctx, "d/a", "text"); err != nil {
		t.Fatal(err)
	}
	if got, err := op.ReadFile(ctx, "/workspace/d/a"); got != "text" || err != nil {
		t.Errorf("ReadFile: %q, %v", got, err)
	}
	for name, want := range map[string][2]bool{"d": {true, true}, "d/a": {true, false}, "none": {}} {
		exists, err := op.Exists(ctx, name)
		dir, dirErr := op.IsDirectory(ctx, name)
		if exists != want[0] || dir != want[1] || err != nil || (dirErr == nil) != exists {
			t.Errorf("%s: exists %t, %v, a directory %t, %v", name, exists, err, dir, dirErr)
		}
	}
	for _, c := range []struct {
		argv []string
		want commandOutput
	}{
		{[]string{"sh", "-c", "cat d/a; echo err >&2; exit 3"}, commandOutput{"text", "err\n", 3}},
		{[]string{"sh", "-c", "yes | head -c 100000; yes n | head -c 100000 >&2"}, commandOutput{strings.Repeat("y\n", 1000), strings.Repeat("n\n", 1000), 0}},
		{[]string{"sh", "-c", "sleep 1000 & echo left"}, commandOutput{"left\n", "", 0}},
	} {
		got, err := op.RunCommand(ctx, c.argv)
		if err != nil || *got != c.want {
			t.Errorf("%q: %+v, %v, want %+v", c.argv, got, err, c.want)
		}
	}
	if got, err := hasty.RunCommand(ctx, []string{"sleep", "1000"}); err != nil || *got != (commandOutput{"", "", 137}) {
		t.Errorf("a command that takes too long: %+v, %v", got, err)
	}
	if _, err := hasty.RunCommand(ctx, []string{"yes", "", ""}); err != nil {
		t.Errorf("a command that takes too long, and writes: %v", err)
	}
	if _, err := op.RunCommand(ctx, nil); err == nil {
		t.Error("no command is no error")
	}
	if err := op.WriteFile(ctx, "long", strings.Repeat("x", 2001)); err != nil {
		t.Fatal(err)
	}
	if _, err := op.ReadFile(ctx, "long"); !errors.Is(err, sandbox.ErrTooLarge) {
		t.Errorf("ReadFile of a long file: %v", err)
	}
	if _, err := op.ReadFile(ctx, "/dev/zero"); err == nil || !strings.Contains(err.Error(), "regular") {
		t.Errorf("ReadFile of a device: %v", err)
	}
	if err := sb.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := op.RunCommand(ctx, []string{"true"}); !errors.Is(err, sandbox.ErrClosed) && !errors.Is(err, sandbox.ErrSessionLost) {
		t.Errorf("a command in a sandbox that is gone: %v", err)
	}
}

func TestShellIsBounded(t *testing.T) {
	t.Parallel()
	sb := harness.NewSandbox(t)
	shell := eino.NewShell(sb, eino.Options{Output: 4000, CommandTime: harness.CallBound})
	got, err := shell.Execute(t.Context(), &filesystem.ExecuteRequest{Command: "yes | head -c 3000000; echo last"})
	if err != nil || !got.Truncated || len(got.Output) > 5000 || !strings.HasSuffix(got.Output, "last\n") || *got.ExitCode != 0 {
		t.Errorf("a flood: %+v, %v", got, err)
	}
	harness.Patiently(t, time.Second, func(limit time.Duration) error {
		got, err := eino.NewShell(sb, eino.Options{Output: 4000, CommandTime: limit}).Execute(t.Context(), &filesystem.ExecuteRequest{Command: "echo first; sleep 1000"})
		if err != nil || got.Truncated || *got.ExitCode != 137 || !strings.HasPrefix(got.Output, "first\n\n[timed out") {
			return fmt.Errorf("a command that takes too long: %+v, %v", got, err)
		}
		return nil
	})
	if err := shell.Write(t.Context(), &filesystem.WriteRequest{FilePath: "long", Content: strings.Repeat("x", 5000)}); err != nil {
		t.Fatal(err)
	}
	if text, err := shell.Read(t.Context(), &filesystem.ReadRequest{FilePath: "/long"}); err != nil || len(text) > 4100 || !strings.HasSuffix(text, "there is more]") {
		t.Errorf("a long line: %d bytes, %v", len(text), err)
	}
	if _, err := shell.GrepRaw(t.Context(), &filesystem.GrepRequest{Pattern: "root", Path: "/usr/share"}); err == nil || !strings.Contains(err.Error(), "more than") {
		t.Errorf("a search that finds too much: %v", err)
	}
	if _, err := shell.GlobInfo(t.Context(), &filesystem.GlobInfoRequest{Pattern: "/usr/share/**"}); err == nil || !strings.Contains(err.Error(), "more than") {
		t.Errorf("a pattern that matches too much: %v", err)
	}
	if _, err := shell.LsInfo(t.Context(), &filesystem.LsInfoRequest{Path: "/usr/bin"}); err == nil || !strings.Contains(err.Error(), "too many") {
		t.Errorf("a list that is too long: %v", err)
	}
}
