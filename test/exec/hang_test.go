package exec_test

import (
	"testing"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/internal/enginetest"
	"github.com/seed-1a2d6d8f/sandbox/test/harness"
)

// An exec of the engine that never starts costs some seconds, and no sandbox: without another one
// its lease would run out.
func TestAnExecThatHangsEndsNoSandbox(t *testing.T) {
	t.Parallel()
	proxy := enginetest.NewProxy(t)
	c := harness.NewClient(t, sandbox.WithHost(proxy.Host()))
	proxy.ArmAtNth(2, "/start", enginetest.Stall, nil) // the first one starts the container
	sb, err := c.Create(t.Context(), harness.Quick)
	if err != nil {
		t.Fatal(err)
	}
	defer sb.Close()
	if got := harness.Run(t, sb, "echo", "here"); got != "here" {
		t.Errorf("the command printed %q", got)
	}
	if !proxy.Fired() {
		t.Error("no exec has hung")
	}
	st, err := sb.Status(t.Context())
	if err != nil || st.State != sandbox.StateRunning {
		t.Errorf("afterwards: %+v, %v", st, err)
	}
}
