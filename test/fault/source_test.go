package fault_test

import (
	"bytes"
	"strings"
	"testing"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/internal/gittest"
	"github.com/seed-1a2d6d8f/sandbox/test/harness"
)

// A Create with a source leaves nothing, whatever call fails.
func TestCreateFromATarballSurvivesAFaultInAnyCallSoak(t *testing.T) {
	harness.Soak(t)
	archive := harness.Tar(t, harness.TarFile("a", "1"), harness.TarFile("d/b", strings.Repeat("x", 100_000)))
	testFaults(t, creation(func(x *trial) []sandbox.CreateOption {
		return append(plain(x), sandbox.WithSource(sandbox.Tarball{Reader: bytes.NewReader(archive)}))
	}, create))
}

func TestCreateFromGitSurvivesAFaultInAnyCallSoak(t *testing.T) {
	harness.Soak(t)
	r := gittest.New(t)
	testFaults(t, creation(func(x *trial) []sandbox.CreateOption {
		return append(plain(x), sandbox.WithSource(sandbox.Git{URL: r.Dir}), sandbox.WithUser("node"), sandbox.WithCommand("sleep", "1000"))
	}, create))
}
