// Package exec_test is run with the tests of os/exec beside this file: see TestGorootsTestsOfOSExec.
package exec_test

import (
	"context"
	"flag"
	"fmt"
	"os"
	"testing"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/test/exec/testdata/goroot/exec"
)

// TestMain is the tests outside, and the programs that they start inside.
func TestMain(m *testing.M) {
	if os.Getenv("GO_EXEC_TEST_PID") != "" {
		helperCommands[os.Args[1]](os.Args[2:]...)
		os.Exit(0)
	}
	flag.Parse()
	code, err := run(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func run(m *testing.M) (int, error) {
	ctx := context.Background()
	dir, err := os.Getwd()
	if err != nil {
		return 0, err
	}
	sb, err := sandbox.Create(ctx, sandbox.WithWorkdir(dir), sandbox.WithEnv(map[string]string{"GO_EXEC_TEST_PID": "1"}))
	if err != nil {
		return 0, err
	}
	defer sb.Close()
	exec.Sandbox = sb
	if _, err := sb.CopyIn(ctx, os.Args[0], os.Args[0], sandbox.CopyOptions{}); err != nil {
		return 0, err
	}
	text, err := os.ReadFile(os.Getenv("SANDBOX_TEST_GOROOT_FILE"))
	if err != nil {
		return 0, err
	}
	if err := sb.WriteFile(ctx, dir+"/exec_test.go", text, 0o644); err != nil {
		return 0, err
	}
	return m.Run(), nil
}
