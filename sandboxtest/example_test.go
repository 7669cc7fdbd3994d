package sandboxtest_test

import (
	"testing"

	"github.com/seed-1a2d6d8f/sandbox/sandboxtest"
)

func TestReport(t *testing.T) {
	sb := sandboxtest.New(t)
	if got := sandboxtest.Run(t, sb, "node", "-p", "6*7"); got != "42\n" {
		t.Errorf("node -p 6*7 = %q, want 42", got)
	}
}
