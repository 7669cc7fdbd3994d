package anthropic_test

import (
	"testing"

	"github.com/seed-1a2d6d8f/sandbox/test/harness"
)

func TestMain(m *testing.M) { harness.Main(m) }
