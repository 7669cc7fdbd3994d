package lifecycle

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	"github.com/seed-1a2d6d8f/sandbox/internal/bound"
	"github.com/seed-1a2d6d8f/sandbox/internal/engine"
	"github.com/seed-1a2d6d8f/sandbox/internal/errdefs"
	"github.com/seed-1a2d6d8f/sandbox/internal/guest"
	"github.com/seed-1a2d6d8f/sandbox/internal/guest/wire"
)

// A LogLine is one line of a log. The root package documents its fields.
type LogLine struct {
	Stream  string
	Time    time.Time
	Text    string
	Command string
}

// LogOptions say which part of a log to read. The root package documents its fields.
type LogOptions struct {
	Tail    int
	Follow  bool
	Since   time.Time
	Command *string
}

// logSource is the stream and the command that a line is from.
type logSource struct{ stream, command string }

const (
	// maxLogLine bounds one line, in bytes.
	maxLogLine = 16 << 20
	// maxOpenBytes bounds all incomplete lines together: a main process can write forged
	// frames of many commands. A line that would exceed it is given in pieces.
	maxOpenBytes = 2 * maxLogLine
	// maxOpenLines bounds the number of incomplete lines.
	maxOpenLines = 256
)

// assembly joins lines from the engine's pieces, and those of commands from the frames within
// them.
type assembly struct {
	open  map[logSource]*openLine
	bytes int // of all open lines
}

// openLine is an incomplete line.
type openLine struct {
	time time.Time
	text []byte
}

func newAssembly() *assembly { return &assembly{open: map[logSource]*openLine{}} }

// append adds text to a line, and reports whether the line has to be given as it is.
func (a *assembly) append(s logSource, at time.Time, text []byte) (full bool) {
	b := a.open[s]
	if b == nil {
		b = &openLine{time: at}
		a.open[s] = b
	}
	b.text = append(b.text, text...)
	a.bytes += len(text)
	return len(b.text) >= maxLogLine || a.bytes >= maxOpenBytes
}

// mainSource is the main process on the stream of p.
func mainSource(p engine.LogPiece) logSource {
	if p.Stderr {
		return logSource{stream: "stderr"}
	}
	return logSource{stream: "stdout"}
}

func (a *assembly) add(p engine.LogPiece) (LogLine, bool) {
	main := mainSource(p)
	end := p.End || p.Broken
	if a.open[main] == nil && end && bytes.IndexByte(p.Text, wire.LogMark[0]) < 0 { // as nearly all of them
		return LogLine{Stream: main.stream, Time: p.Time, Text: string(p.Text)}, true
	}
	if full := a.append(main, p.Time, p.Text); !end && !full {
		return LogLine{}, false
	}
	b := a.open[main]
	before, frame, framed := bytes.Cut(b.text, []byte(wire.LogMark))
	id, text, more, ok := parseFrame(frame)
	from := logSource{main.stream, id}
	if framed && ok && (a.open[from] != nil || len(a.open) < maxOpenLines) {
		// It came in the middle of a line of the main process, or at its beginning.
		a.bytes -= len(b.text) - len(before)
		full := a.append(from, p.Time, text)
		if b.text = before; len(before) == 0 {
			delete(a.open, main)
		}
		if more && !full {
			return LogLine{}, false
		}
		return a.take(from), true
	}
	return a.take(main), true
}

// endSession returns an incomplete line of the main process of an earlier session, if p is of the session that began at began.
func (a *assembly) endSession(p engine.LogPiece, began time.Time) (LogLine, bool) {
	main := mainSource(p)
	b := a.open[main]
	if b == nil || !b.time.Before(began) || p.Time.Before(began) {
		return LogLine{}, false
	}
	return a.take(main), true
}

// startMargin is how long before a container's StartedAt its output may be in the log.
const startMargin = 100 * time.Millisecond

// sessionBegan returns a time between the last two sessions of a container. The times in the log of what a session wrote at its
// beginning and its end may be a little outside of the container's.
func sessionBegan(c engine.Container) time.Time {
	if gap := c.StartedAt.Sub(c.FinishedAt); !c.FinishedAt.IsZero() && gap > 0 {
		return c.FinishedAt.Add(gap / 2)
	}
	return c.StartedAt.Add(-startMargin)
}

// parseFrame parses a frame after its mark. An ID is in ASCII, as the keeper requires.
func parseFrame(frame []byte) (id string, text []byte, more, ok bool) {
	name, rest, found := bytes.Cut(frame, []byte(" "))
	notASCII := func(c rune) bool { return c <= ' ' || c > '~' }
	if !found || len(name) == 0 || len(name) > wire.MaxLogID || bytes.ContainsFunc(name, notASCII) || len(rest) < 2 || rest[1] != ' ' || rest[0] != wire.LogWhole && rest[0] != wire.LogPart {
		return "", nil, false, false
	}
	return string(name), rest[2:], rest[0] == wire.LogPart, true
}

func (a *assembly) take(s logSource) LogLine {
	b := a.open[s]
	delete(a.open, s)
	a.bytes -= len(b.text)
	return LogLine{Stream: s.stream, Time: b.time, Text: string(b.text), Command: s.command}
}

// rest yields the incomplete lines, the oldest first.
func (a *assembly) rest(yield func(LogLine) bool) bool {
	var lines []LogLine
	for s := range a.open {
		lines = append(lines, a.take(s))
	}
	slices.SortFunc(lines, func(a, b LogLine) int { return a.Time.Compare(b.Time) })
	for _, l := range lines {
		if !yield(l) {
			return false
		}
	}
	return true
}

// Logs calls yield with the lines of the log until it returns false.
func (h *Handle) Logs(ctx context.Context, o LogOptions, yield func(LogLine) bool) error {
	if o.Command == nil {
		return h.logs(ctx, o, yield)
	}
	if o.Tail > 0 { // which the engine would count of all
		last, newest, err := h.tail(ctx, o)
		if err != nil {
			return err
		}
		if !o.Follow {
			for _, line := range last {
				if !yield(line) {
					break
				}
			}
			return nil
		}
		// Read again, as lines may come meanwhile.
		o.Tail, o.Since = 0, newest
		if len(last) > 0 {
			o.Since = last[0].Time
		}
	}
	return h.logs(ctx, o, func(line LogLine) bool { return line.Command != *o.Command || yield(line) })
}

// tail returns the last o.Tail lines of a command, and the time of the newest line of all.
func (h *Handle) tail(ctx context.Context, o LogOptions) (last []LogLine, newest time.Time, err error) {
	newest = o.Since
	err = h.logs(ctx, LogOptions{Since: o.Since}, func(line LogLine) bool {
		newest = line.Time
		if line.Command == *o.Command {
			last = append(last[max(0, len(last)-o.Tail+1):], line)
		}
		return true
	})
	return last, newest, err
}

func (h *Handle) logs(ctx context.Context, o LogOptions, yield func(LogLine) bool) error {
	if err := h.CheckUsable(); err != nil {
		return err
	}
	got, err := h.Current(ctx)
	if err != nil {
		return err
	}
	reading, lost := context.WithCancelCause(ctx)
	var watch sync.WaitGroup
	defer watch.Wait()
	defer lost(nil)
	if o.Follow {
		watch.Go(func() { h.watchEngine(reading, lost) })
	}
	log, err := h.c.Engine.ReadLog(reading, got.ID, engine.LogSpec{Tail: o.Tail, Follow: o.Follow, Since: o.Since})
	if errors.Is(err, engine.ErrNotFound) {
		return errdefs.NotFound
	}
	if err != nil {
		return cmp.Or(lostEngine(ctx, reading), err)
	}
	defer log.Close()
	asm, began := newAssembly(), sessionBegan(got)
	for {
		p, err := log.Next()
		if err != nil {
			if !asm.rest(yield) {
				return nil
			}
			switch {
			case ctx.Err() != nil:
				return errdefs.Cancelled(ctx)
			case !errors.Is(err, io.EOF):
				return fmt.Errorf("read the log: %w", cmp.Or(lostEngine(ctx, reading), err))
			case o.Follow && got.HasSession():
				return h.confirmEnded(ctx, got)
			}
			return nil
		}
		if line, broken := asm.endSession(p, began); broken && !yield(line) {
			return nil
		}
		if line, whole := asm.add(p); whole && !yield(line) {
			return nil
		}
	}
}

// lostEngine returns why reading has ended, if ctx, that of the caller, has not.
func lostEngine(ctx, reading context.Context) error {
	if ctx.Err() != nil || reading.Err() == nil {
		return nil
	}
	return context.Cause(reading)
}

// watchEngine calls lost when the engine does not answer while a log is followed: what is between
// may keep a connection open that is dead behind it.
func (h *Handle) watchEngine(ctx context.Context, lost func(error)) {
	for bound.Sleep(ctx, guest.Keepalive.Silent) == nil {
		own, cancel := context.WithTimeout(ctx, guest.Keepalive.Answer)
		err := h.answerBefore(own, func() error { return h.c.Engine.Ping(own) })
		cancel()
		if errors.Is(err, errNoAnswer) {
			lost(errdefs.Classify(errdefs.EngineUnavailable, fmt.Errorf("%w: %v have passed", err, guest.Keepalive.Answer)))
			return
		}
	}
}
