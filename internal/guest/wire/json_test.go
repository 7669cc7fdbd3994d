package wire_test

import (
	"bufio"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/seed-1a2d6d8f/sandbox/internal/guest/wire"
)

func TestLinesAreBounded(t *testing.T) {
	t.Parallel()
	for _, n := range []int{wire.MaxControlLine, wire.MaxControlLine + 1, 10 * wire.MaxControlLine} {
		line := strings.Repeat("x", n-1) + "\n"
		got, err := wire.ReadLine(bufio.NewReaderSize(strings.NewReader(line), 16), wire.MaxControlLine)
		if fits := n <= wire.MaxControlLine; fits != (err == nil) || fits && string(got) != line {
			t.Errorf("a line of %d bytes: %d, %v", n, len(got), err)
		}
	}
	if _, err := wire.ReadLine(bufio.NewReader(strings.NewReader("no end")), wire.MaxControlLine); !errors.Is(err, io.EOF) {
		t.Errorf("a line without end: %v", err)
	}
}
