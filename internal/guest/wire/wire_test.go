package wire_test

import (
	"testing"

	"github.com/seed-1a2d6d8f/sandbox/internal/guest/wire"
)

// No signal, no error of Go's runtime and no OCI runtime gives a marked code.
func TestMarkedCodes(t *testing.T) {
	t.Parallel()
	want := map[int]int{}
	for _, code := range []int{wire.CodeStopped, wire.CodeTimeout, wire.CodeLease, wire.CodeChanged, wire.CodeIdle} {
		want[wire.MarkedCode(code)] = code
	}
	for exit := range 256 {
		code, marked := wire.EndCode(exit)
		if of, is := want[exit]; is != marked || is && code != of || !is && code != exit {
			t.Errorf("EndCode(%d) = %d, %t", exit, code, marked)
		}
		if marked && (exit > 125 || exit < 3) {
			t.Errorf("%d is a code that others give", exit)
		}
	}
}
