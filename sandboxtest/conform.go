package sandboxtest

import (
	"testing"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/conform"
)

// Conform checks what the client's engine does for sandboxes, each capability as a subtest of t:
// see [conform.Run]. A subtest fails if the capability is broken, and is skipped, with the
// reason, if the engine refuses it or the check lacks something else. In the end t logs the
// whole table. It takes a minute or two, and leaves nothing on the engine.
func Conform(t *testing.T, c *sandbox.Client) {
	t.Helper()
	report, err := conform.Run(t.Context(), c, conform.Options{Done: func(r conform.Result) {
		t.Run(r.Check, func(t *testing.T) {
			switch r.Outcome {
			case conform.Works:
				t.Log(r.Reason)
			case conform.Broken:
				t.Errorf("broken: %s", r.Reason)
			default:
				t.Skipf("%s: %s", r.Outcome, r.Reason)
			}
		})
	}})
	t.Log("\n" + report.String())
	if err != nil {
		t.Errorf("conform: %v", err)
	}
}
