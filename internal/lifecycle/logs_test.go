package lifecycle

import (
	"bytes"
	"fmt"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/seed-1a2d6d8f/sandbox/internal/engine"
	"github.com/seed-1a2d6d8f/sandbox/internal/errdefs"
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
			if l.Stream != "stdout" && l.Stream != "stderr" || len(l.Command) > 64 || errdefs.Printable(l.Command) != l.Command {
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

// Not parallel: it measures this process's memory. The main process forges lines of many
// commands, in the largest pieces that the engine has, and ends none of them.
func TestUnfinishedLinesTakeLittleMemory(t *testing.T) {
	heap := func() int64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	for name, end := range map[string]bool{"forged": true, "plain": false} {
		t.Run(name, func(t *testing.T) {
			const command, piece, rounds = 200, 16 << 10, 40
			asm := newAssembly()
			before, in, out, peak := heap(), 0, 0, int64(0)
			text := bytes.Repeat([]byte("x"), piece)
			for i := range command * rounds {
				p := engine.LogPiece{Text: text, Stderr: i%2 == 0}
				if end {
					p.Text, p.End = fmt.Appendf(nil, "\x1eagent-sandbox c%d + %s", i%command, text), true
				}
				in += piece
				if l, given := asm.add(p); given {
					out += len(l.Text)
				}
				if i%500 == 0 {
					peak = max(peak, heap()-before)
				}
			}
			asm.rest(func(l LogLine) bool {
				out += len(l.Text)
				return true
			})
			if in != out {
				t.Errorf("of %d bytes %d came out", in, out)
			}
			if peak > 3*maxOpenBytes {
				t.Errorf("unfinished lines hold %d bytes, want at most some %d", peak, maxOpenBytes)
			}
		})
	}
}

// A line without an end is one of its session, also where the output of a command follows it.
func TestLinesOfTwoSessionsAreNotJoined(t *testing.T) {
	t.Parallel()
	stop := time.Unix(1700000000, 0)
	start := stop.Add(2 * time.Second)
	piece := func(at time.Time, text string, end bool) engine.LogPiece {
		return engine.LogPiece{Time: at, Text: []byte(text), End: end, Broken: !end && len(text) < 16<<10}
	}
	log := []engine.LogPiece{
		piece(stop.Add(-time.Hour), "oldest", false),
		piece(stop.Add(-time.Minute), "first", true),
		piece(stop.Add(-time.Second), "no end\x1eagent-sandbox id . command", true),
		piece(stop.Add(10*time.Millisecond), "\x1eagent-sandbox id . again", true),
		piece(start.Add(-10*time.Millisecond), "second", true),
	}
	for _, c := range []engine.Container{
		{FinishedAt: stop, StartedAt: start},
		{FinishedAt: start.Add(time.Hour), StartedAt: start},
	} {
		asm := newAssembly()
		var got []string
		for _, p := range log {
			if l, broken := asm.endSession(p, sessionBegan(c)); broken {
				got = append(got, l.Text)
			}
			if l, whole := asm.add(p); whole {
				got = append(got, l.Text)
			}
		}
		if want := []string{"oldest", "first", "command", "again", "no end", "second"}; !slices.Equal(got, want) {
			t.Errorf("lines %q, want %q", got, want)
		}
	}
}

// assembleLog puts a log's lines together as Logs does, and returns how many lines it held
// unfinished at the most.
func assembleLog(pieces [][]byte, end func(i int) bool) (lines []LogLine, held int) {
	asm := newAssembly()
	for i, text := range pieces {
		if line, whole := asm.add(engine.LogPiece{Text: text, End: end(i), Stderr: i%3 == 0}); whole {
			lines = append(lines, line)
		}
		open := 0
		for _, b := range asm.open {
			open += len(b.text)
		}
		if open != asm.bytes {
			panic(fmt.Sprintf("%d bytes are open, and %d counted", open, asm.bytes))
		}
		held = max(held, len(asm.open))
	}
	asm.rest(func(l LogLine) bool {
		lines = append(lines, l)
		return true
	})
	return lines, held
}
