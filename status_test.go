package sandbox_test

import (
	"testing"

	"github.com/seed-1a2d6d8f/sandbox"
)

// X20.
func TestStatesOfTheEngineHaveOneWord(t *testing.T) {
	for word, want := range map[string]sandbox.State{
		"created": sandbox.StateCreating, "running": sandbox.StateRunning, "restarting": sandbox.StateRunning, "paused": sandbox.StatePaused,
		"exited": sandbox.StateStopped, "removing": sandbox.StateStopped, "dead": sandbox.StateError, "new in some version": sandbox.StateError,
	} {
		if got := sandbox.StateOf(word); got != want {
			t.Errorf("%s is %q, want %q", word, got, want)
		}
	}
}
