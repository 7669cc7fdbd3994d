package wire_test

import (
	"testing"

	"github.com/seed-1a2d6d8f/sandbox/internal/guest/wire"
)

// Only PID 1 itself ends with a code that says that it found the files plain: no signal, no error of Go's runtime, no runtime's
// code does.
func TestPlainCodes(t *testing.T) {
	t.Parallel()
	want := map[int]int{}
	for _, code := range []int{wire.CodeStopped, wire.CodeTimeout, wire.CodeLease, wire.CodeIdle} {
		want[wire.PlainCode(code)] = code
	}
	for exit := range 256 {
		code, plain := wire.EndCode(exit)
		if of, is := want[exit]; is != plain || is && code != of || !is && code != exit {
			t.Errorf("EndCode(%d) = %d, %t", exit, code, plain)
		}
		if plain && (exit > 125 || exit < 3) {
			t.Errorf("%d is a code that others give", exit)
		}
	}
}
