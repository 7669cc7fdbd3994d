package sandbox_test

import (
	"strings"
	"testing"

	"github.com/seed-1a2d6d8f/sandbox"
)

// Volume sizes in readable units, and which sizes carry a warning.
func TestSizesAreForPeople(t *testing.T) {
	t.Parallel()
	for n, want := range map[int64]string{
		0: "0 B", 1: "1 B", 1023: "1023 B", 1024: "1.0 KB", 1536: "1.5 KB", 1<<20 - 1: "1.0 MB", 1 << 20: "1.0 MB", 3 << 19: "1.5 MB",
		1 << 30: "1.0 GB", 10 << 30: "10.0 GB", 10<<30 + 1: "10.0 GB", 1 << 40: "1.0 TB", 1 << 50: "1.0 PB", 1 << 60: "1024.0 PB",
		sandbox.UnknownSize: "unknown",
	} {
		v := sandbox.VolumeOfSize(n)
		if v.Size != want || v.SizeBytes != n {
			t.Errorf("%d bytes are %q, want %q", n, v.Size, want)
		}
		if warns := strings.Contains(v.Warning, "disk usage") && strings.Contains(v.Warning, want); warns != (n > 10<<30) || !warns && v.Warning != "" {
			t.Errorf("the warning about %d bytes is %q", n, v.Warning)
		}
	}
}
