// Package os_test is run with the tests of os beside this file: see TestGorootsTestsOfOS.
package os_test

import (
	"context"
	"flag"
	"fmt"
	hostos "os"
	"testing"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/test/files/testdata/goroot/os"
)

func TestMain(m *testing.M) {
	flag.Parse()
	code, err := run(m)
	if err != nil {
		fmt.Fprintln(hostos.Stderr, err)
		code = 1
	}
	hostos.Exit(code)
}

// run runs the tests in a sandbox whose workspace is the directory of package os, as a user with a
// second group: many of them skip root, and those of Chown need a group to change to.
func run(m *testing.M) (code int, err error) {
	ctx := context.Background()
	sb, err := sandbox.Create(ctx, sandbox.WithSource(sandbox.Dir(hostos.Getenv("SANDBOX_TEST_GOROOT_OS"))))
	if err != nil {
		return 0, err
	}
	defer func() {
		if closeErr := sb.Close(); err == nil {
			err = closeErr
		}
	}()
	if err := sb.Command(ctx, "sh", "-ec", "usermod -aG adm node; test \"$(id -G node)\" = '1000 4'").Run(); err != nil {
		return 0, err
	}
	os.Files = sb.FilesAs("node")
	return m.Run(), nil
}

// tempDir is t.TempDir in the sandbox.
func tempDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "goroot")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// chdir is t.Chdir in the sandbox. Tests that call it are not parallel.
func chdir(t testing.TB, dir string) {
	t.Helper()
	was, err := os.Getwd()
	if err == nil {
		err = os.Chdir(dir)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.Chdir(was); err != nil {
			t.Error(err)
		}
	})
}

// testMaybeRooted runs a test without a Root: a sandbox's files have none.
func testMaybeRooted(t *testing.T, f func(*testing.T, *os.Root)) {
	chdir(t, tempDir(t))
	f(t, nil)
}
