package engine

import (
	"errors"
	"net"
	"testing"
)

// Who has closed a stream learns that, and not that the engine is unavailable.
func TestClosedStreamSaysSo(t *testing.T) {
	t.Parallel()
	ours, theirs := net.Pipe()
	defer theirs.Close()
	var h hijacked
	h.init(&Engine{}, ours, ours)
	if err := h.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := h.Read(make([]byte, 1)); !errors.Is(err, net.ErrClosed) {
		t.Errorf("Read after Close = %v, want net.ErrClosed", err)
	}
	if _, err := h.Write([]byte("x")); !errors.Is(err, net.ErrClosed) {
		t.Errorf("Write after Close = %v, want net.ErrClosed", err)
	}
}
