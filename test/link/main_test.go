package link_test

import (
	"testing"
	"time"

	"github.com/seed-1a2d6d8f/sandbox/internal/guest"
	"github.com/seed-1a2d6d8f/sandbox/test/harness"
)

func TestMain(m *testing.M) {
	if !harness.Soaking() {
		// Shorter than in use, and long enough for a busy machine.
		guest.Keepalive = guest.Intervals{Silent: 2 * time.Second, Idle: 2 * time.Second, Answer: 5 * time.Second}
	}
	harness.Main(m)
}
