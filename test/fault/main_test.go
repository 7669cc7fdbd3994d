package fault_test

import (
	"flag"
	"testing"

	"github.com/seed-1a2d6d8f/sandbox/test/harness"
)

func TestMain(m *testing.M) {
	// Tests that run beside others wait for the leases of programs that were killed, mostly.
	_ = flag.Set("test.parallel", "16")
	harness.Main(m)
}
