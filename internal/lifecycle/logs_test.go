package lifecycle

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/seed-1a2d6d8f/sandbox/internal/engine"
)

// Frames of commands are read from a log that the main process may write anything to.
func FuzzLogLines(f *testing.F) {
	const mark = "\x1eagent-sandbox "
	f.Add([]byte("plain|"+mark+"a . whole|"+mark+"a + part|"+mark+"a . end|main"+mark+"b . in the middle"), uint8(255))
	f.Add([]byte(mark+" . x|"+mark+"a|"+mark+"a +|\x1e|"+mark+mark), uint8(0b1010))
	f.Fuzz(func(t *testing.T, log []byte, ends uint8) {
		pieces := bytes.Split(log, []byte("|"))
		lines, _ := assembleLog(pieces, func(i int) bool { return ends>>(i%8)&1 == 1 })
		size := 0
		for _, l := range lines {
			size += len(l.Text)
			if l.Stream != "stdout" && l.Stream != "stderr" || len(l.Command) > 64 {
				t.Errorf("%q: line %+v", log, l)
			}
		}
		if size > len(log) {
			t.Errorf("%q: %d bytes became %d", log, len(log), size)
		}
	})
}

func TestForgedFramesAreBounded(t *testing.T) {
	t.Parallel()
	var pieces [][]byte
	for i := range 20_000 {
		pieces = append(pieces, fmt.Appendf(nil, "\x1eagent-sandbox c%d + never ended", i))
	}
	if lines, held := assembleLog(pieces, func(int) bool { return true }); held > 300 || len(lines) != len(pieces) {
		t.Errorf("of %d lines that never end %d were held, and %d came out", len(pieces), held, len(lines))
	}
}

// assembleLog puts a log's lines together as Logs does, and returns how many lines it held
// unfinished at the most.
func assembleLog(pieces [][]byte, end func(i int) bool) (lines []LogLine, held int) {
	asm := assembly{}
	for i, text := range pieces {
		if line, whole := asm.add(engine.LogPiece{Text: text, End: end(i), Stderr: i%3 == 0}); whole {
			lines = append(lines, line)
		}
		held = max(held, len(asm))
	}
	asm.rest(func(l LogLine) bool {
		lines = append(lines, l)
		return true
	})
	return lines, held
}
