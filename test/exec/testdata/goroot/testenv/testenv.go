// Package testenv has the names of package internal/testenv that the tests of os/exec use.
package testenv

import (
	"os"
	"testing"
)

// Executable is the test's program, which is at the same path in the sandbox.
func Executable(testing.TB) string { return os.Args[0] }

func MustHaveExec(testing.TB)    {}
func MustHaveSymlink(testing.TB) {}

func SkipFlaky(t testing.TB, _ int) { t.Helper() }
