package lifecycle_test

import (
	"testing"
	"time"

	"github.com/seed-1a2d6d8f/sandbox/internal/lifecycle"
	"github.com/seed-1a2d6d8f/sandbox/test/harness"
)

func TestMain(m *testing.M) {
	lifecycle.LeaseRenewal = 5 * time.Second
	harness.Main(m)
}
