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
		if got.score <= childOOMScore || got.score > 1000 || seen[got] || !b.has(got) {
			t.Fatalf("tag %+v", got)
		}
		seen[got] = true
	}
	if b.take() != (oomTag{}) {
		t.Error("more tags than there are")
	}
	first := oomTag{childOOMScore + 5, 1}
	b.release(first)
	if !b.has(first) {
		t.Error("a tag is lost with the release")
	}
	if got := b.take(); got != (oomTag{childOOMScore + 5, 2}) || b.has(first) || !b.has(got) {
		t.Errorf("got %+v; the first one is still there: %t", got, b.has(first))
	}
	b.release(oomTag{})
}
