//go:build linux

package proc

import (
	"testing"
)

func TestOOMTagsAreDistinctAndRest(t *testing.T) {
	t.Parallel()
	var b oomTags
	seen := map[oomTag]bool{}
	for range maxOOMTags {
		got := b.take()
		if got <= childOOMScore || got > 1000 || seen[got] {
			t.Fatalf("tag %d", got)
		}
		seen[got] = true
	}
	if b.take() != 0 {
		t.Error("more tags than there are")
	}
	b.release(childOOMScore + 5)
	if got := b.take(); got != childOOMScore+5 {
		t.Errorf("got %d", got)
	}
	b.release(0)
}
