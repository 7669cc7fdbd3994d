// Package testenv has the names of package internal/testenv that the tests of os use.
package testenv

import "testing"

func MustHaveSymlink(testing.TB) {}

func HasSymlink() bool { return true }

// HasLink is false: a sandbox's files have no Link.
func HasLink() bool { return false }

// Builder is a name: the sandbox is the tests' own machine.
func Builder() string { return "sandbox" }

func SkipFlaky(t testing.TB, _ int) { t.Helper() }

func SyscallIsNotSupported(error) bool { return false }
