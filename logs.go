package sandbox

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"slices"
	"time"

	"github.com/seed-1a2d6d8f/sandbox/internal/engine"
	"github.com/seed-1a2d6d8f/sandbox/internal/guest/wire"
)

// The streams of a [LogLine].
const (
	Stdout = "stdout"
	Stderr = "stderr"
)

// LogOptions say which part of a log to read. The zero value is all that is kept.
type LogOptions struct {
	// Tail is how many of the last lines to begin with; 0 is all of them, and a
	// negative one none, for who follows. Of lines longer than 16 KiB each 16 KiB
	// count as one.
	Tail int
	// Follow goes on with new lines until the session ends.
	Follow bool
	// Since leaves out what was written before. Zero leaves out nothing.
	Since time.Time
}

// LogLine is one line of a log.
type LogLine struct {
	// Stream is "stdout" or "stderr".
	Stream string
	// Time is when the line, or its first 16 KiB, reached the engine.
	Time time.Time
	// Text is the line without its end. What is not UTF-8 the engine may have replaced.
	Text string
	// Command is the ID of the detached command that wrote it (see [Cmd.ID]); empty for
	// the main process.
	Command string
}

// maxLogLine bounds what one line may take in memory.
const maxLogLine = 16 << 20

// Logs reads what the main process ([WithCommand]) and detached commands have written,
// in this session and those before, oldest first, each stream of each in the order it
// was written. The engine keeps the last 30 MB. A stopped sandbox can be read and is
// not resumed. Lines longer than 16 MiB come in pieces. Of a detached command that
// writes more than 4 MiB/s for long some may be missing, which the log then says. What
// runs inside writes the log itself: do not trust it further than that.
//
// Who follows a main process that writes tens of megabytes at once may miss some of them
// and what comes after: engines as old as 20.10 lose the place of a follower when they
// begin a new file for the log under it. Reading anew finds all that is kept.
//
// An error is the last thing that the sequence yields. With [LogOptions.Follow] it
// ends without one when the session does, and with [ErrEngineUnavailable] when the
// engine was lost. ctx bounds all of it. Leaving the loop lets go of everything; the
// sequence may be ranged over again and then reads anew.
func (s *Sandbox) Logs(ctx context.Context, o LogOptions) iter.Seq2[LogLine, error] {
	return func(yield func(LogLine, error) bool) {
		if err := s.logs(ctx, o, func(l LogLine) bool { return yield(l, nil) }); err != nil {
			yield(LogLine{}, fail("logs", s.rec.Name, err))
		}
	}
}

func (s *Sandbox) logs(ctx context.Context, o LogOptions, yield func(LogLine) bool) error {
	if err := s.usable(); err != nil {
		return err
	}
	got, err := s.current(ctx)
	if err != nil {
		return err
	}
	log, err := s.eng.ReadLog(ctx, got.ID, engine.LogSpec{Tail: o.Tail, Follow: o.Follow, Since: o.Since})
	if errors.Is(err, engine.ErrNotFound) {
		return ErrNotFound
	}
	if err != nil {
		return err
	}
	defer log.Close()
	asm := assembly{}
	for {
		p, err := log.Next()
		if err != nil {
			if !asm.rest(yield) {
				return nil
			}
			switch {
			case ctx.Err() != nil:
				return cancelled(ctx)
			case !errors.Is(err, io.EOF):
				return fmt.Errorf("read the log: %w", err)
			case o.Follow && hasSession(got):
				return s.sessionOver(ctx, got)
			}
			return nil
		}
		if line, whole := asm.add(p); whole && !yield(line) {
			return nil
		}
	}
}

// source is who wrote a line, and where to.
type source struct{ stream, command string }

// assembly puts lines together again from the engine's pieces, and those of commands
// from the keeper's frames within them.
type assembly map[source]*begun

// maxBegun bounds the lines that a main process which forges frames can begin and never
// end.
const maxBegun = 256

// begun is a line whose end is still to come.
type begun struct {
	time time.Time
	text []byte
}

func (a assembly) add(p engine.LogPiece) (LogLine, bool) {
	main := source{stream: Stdout}
	if p.Stderr {
		main.stream = Stderr
	}
	b := a[main]
	if b == nil {
		if p.End && bytes.IndexByte(p.Text, wire.LogMark[0]) < 0 { // as nearly all of them
			return LogLine{Stream: main.stream, Time: p.Time, Text: string(p.Text)}, true
		}
		b = &begun{time: p.Time}
		a[main] = b
	}
	b.text = append(b.text, p.Text...)
	if !p.End && len(b.text) < maxLogLine {
		return LogLine{}, false
	}
	before, frame, framed := bytes.Cut(b.text, []byte(wire.LogMark))
	id, text, more, ok := parseFrame(frame)
	from := source{main.stream, id}
	if framed && ok && (a[from] != nil || len(a) < maxBegun) {
		// It came in the middle of a line of the main process, or at its beginning.
		if c := a[from]; c != nil {
			c.text = append(c.text, text...)
		} else {
			a[from] = &begun{time: p.Time, text: bytes.Clone(text)}
		}
		if b.text = before; len(before) == 0 {
			delete(a, main)
		}
		if more && len(a[from].text) < maxLogLine {
			return LogLine{}, false
		}
		return a.take(from), true
	}
	return a.take(main), true
}

// parseFrame reads what follows the mark of a frame.
func parseFrame(frame []byte) (id string, text []byte, more, ok bool) {
	name, rest, found := bytes.Cut(frame, []byte(" "))
	if !found || len(name) == 0 || len(name) > wire.MaxLogID || len(rest) < 2 || rest[1] != ' ' || rest[0] != wire.LogWhole && rest[0] != wire.LogPart {
		return "", nil, false, false
	}
	return string(name), rest[2:], rest[0] == wire.LogPart, true
}

func (a assembly) take(s source) LogLine {
	b := a[s]
	delete(a, s)
	return LogLine{Stream: s.stream, Time: b.time, Text: string(b.text), Command: s.command}
}

// rest yields the lines that never ended, the oldest first.
func (a assembly) rest(yield func(LogLine) bool) bool {
	var lines []LogLine
	for s := range a {
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

// sessionEnds is how much later than the end of its log the engine may say that a
// session has ended.
const sessionEnds = 10 * time.Second

// sessionOver returns nil when the session is over, which its log's end alone does not
// say: an engine that goes away ends it, too.
func (s *Sandbox) sessionOver(ctx context.Context, was engine.Container) error {
	for deadline := time.Now().Add(sessionEnds); ; {
		got, err := locate(ctx, s.eng, s.rec.Name)
		switch {
		case errors.Is(err, engine.ErrNotFound):
			return nil // removed
		case err != nil:
			return fmt.Errorf("the log ended and so may have the session: %w", err)
		case got.ID != was.ID || !got.StartedAt.Equal(was.StartedAt) || !hasSession(got):
			return nil
		case time.Now().After(deadline):
			return classify(ErrEngineUnavailable, errors.New("the engine ended the log, and the session goes on"))
		}
		if err := pause(ctx, stillThere); err != nil {
			return err
		}
	}
}
